//! Capabilities (`mlx5_ifc_query_hca_cap_*`, `mlx5_ifc_cmd_hca_cap_bits`,
//! `mlx5_ifc_atomic_caps_bits`).

use super::command::command;
use super::layout::layout;

/// `op_mod` for the current general capabilities (`MLX5_CAP_GENERAL << 1 | HCA_CAP_OPMOD_GET_CUR`).
pub const GENERAL_CURRENT: u16 = 1;
/// `op_mod` for the current atomic capabilities (`MLX5_CAP_ATOMIC << 1 | HCA_CAP_OPMOD_GET_CUR`).
pub const ATOMIC_CURRENT: u16 = 3 << 1 | 1;

/// `op_mod` for the current RoCE capabilities (`MLX5_CAP_ROCE << 1 | HCA_CAP_OPMOD_GET_CUR`).
pub const ROCE_CURRENT: u16 = 4 << 1 | 1;

/// `op_mod` for the second part of the current general capabilities (`MLX5_CAP_GENERAL_2 << 1 |
/// HCA_CAP_OPMOD_GET_CUR`), which a card has where [`GeneralCaps::hca_cap_2`] is set.
pub const GENERAL_2_CURRENT: u16 = 0x20 << 1 | 1;

/// Bit of `atomic_operations`: compare and swap.
pub const ATOMIC_OP_CMP_SWAP: u16 = 1 << 0;
/// Bit of `atomic_operations`: fetch and add.
pub const ATOMIC_OP_FETCH_ADD: u16 = 1 << 1;
/// Bit of `atomic_operations`: masked compare and swap.
pub const ATOMIC_OP_EXTENDED_CMP_SWAP: u16 = 1 << 2;
/// Bit of `atomic_operations`: masked fetch and add.
pub const ATOMIC_OP_EXTENDED_FETCH_ADD: u16 = 1 << 3;
/// Bit of `atomic_size_qp`: operands of 4 bytes.
pub const ATOMIC_SIZE_4: u16 = 1 << 2;
/// Bit of `atomic_size_qp`: operands of 8 bytes.
pub const ATOMIC_SIZE_8: u16 = 1 << 3;

layout! {
    /// General capabilities (`mlx5_ifc_cmd_hca_cap_bits`).
    pub struct GeneralCaps {
        /// There is a second part, [`GENERAL_2_CURRENT`].
        hca_cap_2: bool = 0x20, 1;
        /// log2 of the largest send or receive queue.
        log_max_qp_sz: u8 = 0x88, 8;
        /// log2 of the number of QPs.
        log_max_qp: u8 = 0x9b, 5;
        /// log2 of the largest CQ.
        log_max_cq_sz: u8 = 0xc8, 8;
        /// log2 of the number of CQs.
        log_max_cq: u8 = 0xdb, 5;
        /// log2 of the number of memory keys.
        log_max_mkey: u8 = 0xea, 6;
        /// log2 of outstanding reads and atomics a QP may have as requester.
        log_max_ra_req_qp: u8 = 0x14a, 6;
        /// log2 of outstanding reads and atomics a QP accepts.
        log_max_ra_res_qp: u8 = 0x15a, 6;
        /// 0 is InfiniBand, 1 Ethernet.
        port_type: u8 = 0x1b6, 2;
        /// Number of ports.
        num_ports: u8 = 0x1b8, 8;
        /// log2 of the longest message in bytes.
        log_max_msg: u8 = 0x1c3, 5;
        /// `lag_tx_port_affinity` may be set by INIT2RTR_QP.
        init2_lag_tx_port_affinity: bool = 0x1f8, 1;
        /// Version of the CQE format.
        cqe_version: u8 = 0x1fc, 4;
        /// RoCE is there.
        roce: bool = 0x21d, 1;
        /// Atomics are there.
        atomic: bool = 0x21e, 1;
        /// CQ overrun can be ignored.
        cq_oi: bool = 0x220, 1;
        /// RC is there.
        rc: bool = 0x23f, 1;
        /// log2 of the size of a doorbell register with its alternate, bytes.
        log_bf_reg_size: u8 = 0x26b, 5;
        /// Ports that can be bonded.
        num_lag_ports: u8 = 0x27c, 4;
        /// Longest WQE in bytes.
        max_wqe_sz_sq: u16 = 0x290, 16;
        /// log2 of the number of protection domains.
        log_max_pd: u8 = 0x32b, 5;
        /// Clocks of time stamps in CQEs of send queues: 0 free-running only, 1 real time only, 2
        /// both.
        sq_ts_format: u8 = 0x440, 2;
    }
}

layout! {
    /// The second part of the general capabilities (`mlx5_ifc_cmd_hca_cap_2_bits`).
    pub struct GeneralCaps2 {
        /// INIT2RTR_QP may set [`dp_ordering_force`](super::qpc::QpContext::dp_ordering_force).
        dp_ordering_force: bool = 0x88, 1;
        /// A QP may have the [`SendDbrMode`](super::qpc::SendDbrMode) `NO_DBR_EXT`.
        send_dbr_mode_no_dbr_ext: bool = 0x2e1, 1;
        /// log2 of the QPs and SQs that may have it at a time, those of all processes together
        /// (NCCL's notes on the work submission of GIN name 1024 for ConnectX-8). No command tells
        /// how many are in use.
        log_max_send_dbr_less_qp_sq: u8 = 0x2e3, 5;
    }
}

layout! {
    /// Atomic capabilities (`mlx5_ifc_atomic_caps_bits`).
    pub struct AtomicCaps {
        /// 1: 8-byte operands in memory are in host order.
        atomic_req_8b_endianness_mode: u8 = 0x40, 2;
        /// `ATOMIC_OP_*`.
        atomic_operations: u16 = 0x90, 16;
        /// `ATOMIC_SIZE_*`.
        atomic_size_qp: u16 = 0xb0, 16;
    }
}

layout! {
    /// RoCE capabilities (`mlx5_ifc_roce_cap_bits`).
    pub struct RoceCaps {
        /// As [`GeneralCaps::sq_ts_format`], of QPs on Ethernet.
        qp_ts_format: u8 = 0x1e, 2;
    }
}

command! {
    QueryHcaCap, 16 => 0x1010;
    /// QUERY_HCA_CAP. What comes back depends on `op_mod`.
    in QueryHcaCap {
        /// [`GENERAL_CURRENT`], [`GENERAL_2_CURRENT`], [`ATOMIC_CURRENT`] or [`ROCE_CURRENT`].
        op_mod: u16 = 0x30, 16;
    }
    /// Its output for [`GENERAL_CURRENT`].
    out GeneralCapsOut {
        @
        /// Capabilities.
        caps: GeneralCaps = 0x80;
    }
}

layout! {
    /// The output of QUERY_HCA_CAP for [`GENERAL_2_CURRENT`].
    pub struct GeneralCaps2Out {
        @
        /// Capabilities.
        caps: GeneralCaps2 = 0x80;
    }
}

layout! {
    /// The output of QUERY_HCA_CAP for [`ATOMIC_CURRENT`].
    pub struct AtomicCapsOut {
        @
        /// Capabilities.
        caps: AtomicCaps = 0x80;
    }
}

layout! {
    /// The output of QUERY_HCA_CAP for [`ROCE_CURRENT`].
    pub struct RoceCapsOut {
        @
        /// Capabilities.
        caps: RoceCaps = 0x80;
    }
}

impl GeneralCaps2Out {
    /// Decodes an output.
    pub fn decode(bytes: &[u8]) -> Self {
        super::layout::Layout::read(bytes, 0)
    }
}

impl RoceCapsOut {
    /// Decodes an output.
    pub fn decode(bytes: &[u8]) -> Self {
        super::layout::Layout::read(bytes, 0)
    }
}

impl AtomicCapsOut {
    /// Decodes an output.
    pub fn decode(bytes: &[u8]) -> Self {
        super::layout::Layout::read(bytes, 0)
    }
}
