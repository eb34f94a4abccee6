//! QUERY_HCA_CAP.

use super::checks::Outcome;
use crate::prm::{self, CommandStatus, caps};
use crate::soft::firmware::checks::{decode, refuse};
use crate::soft::limits::{
    LOG_MAX_CQ_SIZE, LOG_MAX_MSG, LOG_MAX_RA, LOG_MAX_SQ_SIZE, LOG_MAX_WITHOUT_RECORD, REGISTER_STRIDE,
};
use crate::soft::state::Engine;

/// Returns log2 of a number that is not 0, rounded down.
#[allow(clippy::cast_possible_truncation, reason = "usize has 64 bits")]
fn log2(number: usize) -> u8 {
    number.ilog2() as u8
}

impl Engine {
    pub(super) fn query_hca_cap(&self, input: &[u8], output: &mut [u8]) -> Outcome<()> {
        let caps::QueryHcaCap { op_mod } = decode(input, output)?;
        match op_mod {
            caps::GENERAL_CURRENT => {
                let caps = caps::GeneralCaps {
                    hca_cap_2: true,
                    log_max_qp_sz: LOG_MAX_SQ_SIZE,
                    log_max_qp: log2(self.qps.limit()),
                    log_max_cq_sz: LOG_MAX_CQ_SIZE,
                    log_max_cq: log2(self.cqs.limit()),
                    log_max_mkey: log2(self.mkeys.limit()),
                    log_max_ra_req_qp: LOG_MAX_RA,
                    log_max_ra_res_qp: LOG_MAX_RA,
                    port_type: 1,
                    num_ports: 1,
                    log_max_msg: LOG_MAX_MSG,
                    cqe_version: 1,
                    roce: true,
                    atomic: true,
                    cq_oi: true,
                    rc: true,
                    log_bf_reg_size: log2(REGISTER_STRIDE),
                    // `ds` has six bits.
                    max_wqe_sz_sq: 63 * 16,
                    log_max_pd: log2(self.pds.limit()),
                    // One port, and a clock that runs freely.
                    init2_lag_tx_port_affinity: false,
                    num_lag_ports: 0,
                    sq_ts_format: 0,
                };
                prm::encode_output(&caps::GeneralCapsOut { caps }, output);
                Ok(())
            }
            caps::GENERAL_2_CURRENT => {
                let offered = self.has_qps_without_record();
                let caps = caps::GeneralCaps2 {
                    dp_ordering_force: true,
                    send_dbr_mode_no_dbr_ext: offered,
                    log_max_send_dbr_less_qp_sq: if offered { LOG_MAX_WITHOUT_RECORD } else { 0 },
                };
                prm::encode_output(&caps::GeneralCaps2Out { caps }, output);
                Ok(())
            }
            caps::ATOMIC_CURRENT => {
                let caps = caps::AtomicCaps {
                    atomic_req_8b_endianness_mode: 1,
                    atomic_operations: caps::ATOMIC_OP_CMP_SWAP
                        | caps::ATOMIC_OP_FETCH_ADD
                        | caps::ATOMIC_OP_EXTENDED_CMP_SWAP
                        | caps::ATOMIC_OP_EXTENDED_FETCH_ADD,
                    atomic_size_qp: caps::ATOMIC_SIZE_4 | caps::ATOMIC_SIZE_8,
                };
                prm::encode_output(&caps::AtomicCapsOut { caps }, output);
                Ok(())
            }
            caps::ROCE_CURRENT => {
                let caps = caps::RoceCaps { qp_ts_format: 0 };
                prm::encode_output(&caps::RoceCapsOut { caps }, output);
                Ok(())
            }
            other => refuse(
                CommandStatus::BadParam,
                0x30,
                format!(
                    "op_mod {other:#x}: known are current general (0x1 and 0x41), atomic (0x7) and RoCE (0x9) capabilities"
                ),
            ),
        }
    }
}
