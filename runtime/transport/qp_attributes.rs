//! Attributes of queue pairs, as the configuration gives them.

use oxshmem_hca::objects::QpAttributes;

use crate::bootstrap::meeting_timeout;
use crate::config::Config;

/// Returns which entry of the port's partition key table is used; the configuration's range is that
/// of the field.
#[allow(clippy::cast_possible_truncation)]
pub(super) fn pkey_index(config: &Config) -> u16 {
    config.ib_pkey_index() as u16
}

/// Returns how queue pair `index` is connected, on a card with `atomics` reads and atomics in
/// flight. The configuration's ranges are those of the fields.
#[allow(clippy::cast_possible_truncation)]
pub(super) fn attributes(config: &Config, log_max_rd_atomic: u8, index: u32) -> QpAttributes {
    let ports = config.ib_udp_sport();
    QpAttributes {
        pkey_index: pkey_index(config),
        sl: config.ib_sl() as u8,
        traffic_class: config.ib_traffic_class() as u8,
        hop_limit: config.ib_hop_limit() as u8,
        udp_sport: (!ports.is_empty()).then(|| ports[index as usize % ports.len()] as u16),
        ack_timeout: config.ib_timeout() as u8,
        retry_count: config.ib_retry_count() as u8,
        rnr_retry: config.ib_rnr_retry() as u8,
        // Other PEs wait for this one at the next collective, and are not to give up before it
        // does.
        patience: meeting_timeout(config).min(config.bootstrap_timeout()) / 2,
        spread: index,
        log_max_rd_atomic: (config.ib_max_rd_atomic().trailing_zeros() as u8).min(log_max_rd_atomic),
        ..QpAttributes::default()
    }
}
