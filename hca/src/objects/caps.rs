//! The capabilities of an HCA.

use crate::error::Result;
use crate::prm::{Command, caps, qpc};
use crate::provider::Provider;

/// Reads the general and the atomic capabilities; of a card without atomics, none of the latter are
/// there.
pub fn query_caps(provider: &dyn Provider) -> Result<(caps::GeneralCaps, caps::AtomicCaps)> {
    let mut output = vec![0; caps::QueryHcaCap::OUT_LEN];
    provider.general_cmd(&caps::QueryHcaCap { op_mod: caps::GENERAL_CURRENT }.encode(), &mut output)?;
    let general = caps::QueryHcaCap::decode_output(&output).caps;
    if !general.atomic {
        return Ok((general, caps::AtomicCaps::default()));
    }
    provider.general_cmd(&caps::QueryHcaCap { op_mod: caps::ATOMIC_CURRENT }.encode(), &mut output)?;
    Ok((general, caps::AtomicCapsOut::decode(&output).caps))
}

/// Reads the second part of the general capabilities; of a card that has none, nothing is there.
pub fn query_second_caps(provider: &dyn Provider, general: &caps::GeneralCaps) -> Result<caps::GeneralCaps2> {
    if !general.hca_cap_2 {
        return Ok(caps::GeneralCaps2::default());
    }
    let mut output = vec![0; caps::QueryHcaCap::OUT_LEN];
    provider.general_cmd(&caps::QueryHcaCap { op_mod: caps::GENERAL_2_CURRENT }.encode(), &mut output)?;
    Ok(caps::GeneralCaps2Out::decode(&output).caps)
}

/// Returns how many QPs may ring without a doorbell record (see
/// [`HcaInfo::without_records`](crate::provider::HcaInfo::without_records)). A card that has such
/// QPs and does not say how many is taken to have no limit but that on all QPs.
pub fn without_records(general: &caps::GeneralCaps, second: &caps::GeneralCaps2) -> u32 {
    match (second.send_dbr_mode_no_dbr_ext, second.log_max_send_dbr_less_qp_sq) {
        (false, _) => 0,
        (true, 0) => 1 << general.log_max_qp,
        (true, log) => 1 << log,
    }
}

/// Returns `ts_format` for QPs (see [`HcaInfo::ts_format`](crate::provider::HcaInfo::ts_format)):
/// the default where the card knows the field, as rdma-core's `dr_send_get_qp_ts_format` chooses.
/// On Ethernet it is a capability of RoCE, otherwise one of send queues.
pub fn query_ts_format(provider: &dyn Provider, general: &caps::GeneralCaps) -> Result<u8> {
    let clocks = if general.roce {
        let mut output = vec![0; caps::QueryHcaCap::OUT_LEN];
        provider.general_cmd(&caps::QueryHcaCap { op_mod: caps::ROCE_CURRENT }.encode(), &mut output)?;
        caps::RoceCapsOut::decode(&output).caps.qp_ts_format
    } else {
        general.sq_ts_format
    };
    Ok(if clocks == 0 { 0 } else { qpc::TIME_STAMP_DEFAULT })
}
