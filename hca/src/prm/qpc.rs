//! QP context and the address path in it (`mlx5_ifc_qpc_bits`, `mlx5_ifc_ads_bits`).

use super::layout::layout;

/// `st` of a reliable connection.
pub const SERVICE_RC: u8 = 0;
/// `pm_state` MIGRATED, what software always sets.
pub const MIGRATED: u8 = 3;
/// `rq_type` of a QP without receive queue (`MLX5_QPC_RQ_TYPE_ZERO_SIZE_RQ`).
pub const ZERO_SIZE_RQ: u8 = 3;
/// `ts_format`: the card's choice (`MLX5_QPC_TIMESTAMP_FORMAT_DEFAULT`).
pub const TIME_STAMP_DEFAULT: u8 = 1;
/// `opt_param_mask` of INIT2RTR_QP: `lag_tx_port_affinity` is meant (rdma-core:
/// `MLX5_QPC_OPT_MASK_RTS2RTS_LAG_TX_PORT_AFFINITY`, the same bit).
pub const OPT_LAG_PORT: u32 = 1 << 15;
/// `atomic_mode`: operands of up to 8 bytes.
pub const ATOMIC_UP_TO_8_BYTES: u8 = 3;

layout! {
    /// Address path (`mlx5_ifc_ads_bits`).
    pub struct AddressPath {
        /// Index in the P_Key table.
        pkey_index: u16 = 0x10, 16;
        /// A global route header is sent (InfiniBand).
        grh: bool = 0x28, 1;
        /// Path bits of the source LID.
        mlid: u8 = 0x29, 7;
        /// Remote LID (InfiniBand).
        rlid: u16 = 0x30, 16;
        /// A retry comes after 4.096 us x 2^this; 0 is never.
        ack_timeout: u8 = 0x40, 5;
        /// Index in the GID table.
        src_addr_index: u8 = 0x48, 8;
        /// Hop limit.
        hop_limit: u8 = 0x58, 8;
        /// Traffic class.
        tclass: u8 = 0x64, 8;
        /// Flow label.
        flow_label: u32 = 0x6c, 20;
        /// Upper half of the remote GID.
        rgid_hi: u64 = 0x80, 64;
        /// Lower half of the remote GID.
        rgid_lo: u64 = 0xc0, 64;
        /// Differentiated services code point (RoCE).
        dscp: u8 = 0x10a, 6;
        /// UDP source port (RoCE v2).
        udp_sport: u16 = 0x110, 16;
        /// Ethernet priority (RoCE).
        eth_prio: u8 = 0x121, 3;
        /// Service level (InfiniBand).
        sl: u8 = 0x124, 4;
        /// Physical port, from 1.
        vhca_port_num: u8 = 0x128, 8;
        /// Upper bits of the remote MAC address (RoCE).
        rmac_47_32: u16 = 0x130, 16;
        /// Lower bits of the remote MAC address.
        rmac_31_0: u32 = 0x140, 32;
    }
}

layout! {
    /// QP context (`mlx5_ifc_qpc_bits`).
    pub struct QpContext {
        /// State, see [`QpState`].
        state: u8 = 0x00, 4;
        /// Port of a bond that packets leave by, from 1; 0 leaves it to the card.
        lag_tx_port_affinity: u8 = 0x04, 4;
        /// Transport service, [`SERVICE_RC`].
        st: u8 = 0x08, 8;
        /// Path migration, [`MIGRATED`].
        pm_state: u8 = 0x13, 2;
        /// The low bit of the order of data placement (UCX's `ib_mlx5_ifc.h`).
        dp_ordering_0: bool = 0x26, 1;
        /// The order of this context counts, whatever the card's administrator has set.
        dp_ordering_force: bool = 0x27, 1;
        /// Protection domain.
        pd: u32 = 0x28, 24;
        /// Path MTU: 1 is 256 bytes, 5 is 4096.
        mtu: u8 = 0x40, 3;
        /// log2 of the longest message in bytes.
        log_msg_max: u8 = 0x43, 5;
        /// log2 of the receive queue's entries.
        log_rq_size: u8 = 0x49, 4;
        /// The QP has no send queue.
        no_sq: bool = 0x50, 1;
        /// log2 of the send queue's blocks.
        log_sq_size: u8 = 0x51, 4;
        /// Clock of time stamps, [`TIME_STAMP_DEFAULT`] or 0, the free-running one.
        ts_format: u8 = 0x58, 2;
        /// Counter set.
        counter_set_id: u8 = 0x60, 8;
        /// UAR page of the doorbell.
        uar_page: u32 = 0x68, 24;
        /// Whether the card reads a doorbell record of the send queue, a [`SendDbrMode`].
        send_dbr_mode: u8 = 0x80, 2;
        /// Software's number in CQEs, when CQE version 1.
        user_index: u32 = 0x88, 24;
        /// log2 of the page size, less 12.
        log_page_size: u8 = 0xa3, 5;
        /// QP at the other end.
        remote_qpn: u32 = 0xa8, 24;
        /// log2 of the packets between acknowledge requests.
        log_ack_req_freq: u8 = 0x380, 4;
        /// log2 of outstanding reads and atomics as requester.
        log_sra_max: u8 = 0x388, 3;
        /// Retries after a lost packet.
        retry_count: u8 = 0x38d, 3;
        /// Retries when the receiver is not ready; 7 is forever.
        rnr_retry: u8 = 0x390, 3;
        /// First packet sequence number sent.
        next_send_psn: u32 = 0x3c8, 24;
        /// Completion queue of the send queue.
        cqn_snd: u32 = 0x3e8, 24;
        /// log2 of outstanding reads and atomics as responder.
        log_rra_max: u8 = 0x488, 3;
        /// Remote atomics, [`ATOMIC_UP_TO_8_BYTES`].
        atomic_mode: u8 = 0x48c, 4;
        /// Remote reads are accepted.
        rre: bool = 0x490, 1;
        /// Remote writes are accepted.
        rwe: bool = 0x491, 1;
        /// Remote atomics are accepted.
        rae: bool = 0x492, 1;
        /// The high bit of the order of data placement.
        dp_ordering_1: bool = 0x49c, 1;
        /// Receiver-not-ready timer.
        min_rnr_nak: u8 = 0x4a3, 5;
        /// First packet sequence number expected.
        next_rcv_psn: u32 = 0x4a8, 24;
        /// Completion queue of the receive queue.
        cqn_rcv: u32 = 0x4e8, 24;
        /// Doorbell record: offset in its umem.
        dbr_addr: u64 = 0x500, 64;
        /// Kind of receive queue, [`ZERO_SIZE_RQ`].
        rq_type: u8 = 0x565, 3;
        /// Blocks that the HCA has fetched, modulo 2^16.
        hw_sq_wqebb_counter: u16 = 0x5a0, 16;
        /// Blocks that the doorbell record covered, modulo 2^16.
        sw_sq_wqebb_counter: u16 = 0x5b0, 16;
        /// The doorbell record is in a umem.
        dbr_umem_valid: bool = 0x683, 1;
        /// Umem of the doorbell record.
        dbr_umem_id: u32 = 0x720, 32;
        @
        /// The path.
        primary_address_path: AddressPath = 0xc0;
    }
}

impl QpContext {
    /// Returns whether the QP places what arrives in the order of posting. The order of data
    /// placement is a number of two bits: 0 is that of the InfiniBand specification, 1 lets reads
    /// and writes pass each other, 2 everything (UCX, `uct_ib_mlx5_dp_ordering_t`).
    pub const fn is_in_order(&self) -> bool {
        !self.dp_ordering_0 && !self.dp_ordering_1
    }
}

/// Where the card finds how far a send queue is filled (`send_dbr_mode`: rdma-core,
/// `tests/mlx5_prm_structs.py`, `SendDbrMode`; DOCA GPUNetIO, `doca_verbs_qp_send_dbr_mode`). A
/// third mode, `NO_DBR_INT` (2), has the card's own processor ring, and is not used here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum SendDbrMode {
    /// `DBR_VALID`: software writes the doorbell record, and then rings in a register of the UAR
    /// page.
    #[default]
    DbrValid = 0,
    /// `NO_DBR_EXT`: software rings at
    /// [`WITHOUT_RECORD`](crate::wire::doorbell::WITHOUT_RECORD) of the UAR page and writes no
    /// record: the card takes the index from the doorbell, and loses none. DOCA GPUNetIO and NCCL
    /// call that a reliable doorbell. CREATE_QP takes it where
    /// [`send_dbr_mode_no_dbr_ext`](super::caps::GeneralCaps2::send_dbr_mode_no_dbr_ext) is set.
    NoDbrExt = 1,
}

impl SendDbrMode {
    /// Returns the mode with this number, if it is one of these.
    pub const fn from_u8(value: u8) -> Option<Self> {
        match value {
            0 => Some(Self::DbrValid),
            1 => Some(Self::NoDbrExt),
            _ => None,
        }
    }

    /// Returns the name as public headers have it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::DbrValid => "DBR_VALID",
            Self::NoDbrExt => "NO_DBR_EXT",
        }
    }
}

/// States of a QP (`MLX5_QPC_STATE_*`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum QpState {
    /// Just created.
    Reset = 0,
    /// Initialised.
    Init = 1,
    /// Ready to receive.
    Rtr = 2,
    /// Ready to send.
    Rts = 3,
    /// Send queue error (not RC).
    SqErr = 4,
    /// Send queue drained.
    Sqd = 5,
    /// Error.
    Err = 6,
}

impl QpState {
    /// Returns the state with this number, if known.
    pub const fn from_u8(value: u8) -> Option<Self> {
        Some(match value {
            0 => Self::Reset,
            1 => Self::Init,
            2 => Self::Rtr,
            3 => Self::Rts,
            4 => Self::SqErr,
            5 => Self::Sqd,
            6 => Self::Err,
            _ => return None,
        })
    }

    /// Returns the name as the PRM writes it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Reset => "RST",
            Self::Init => "INIT",
            Self::Rtr => "RTR",
            Self::Rts => "RTS",
            Self::SqErr => "SQERR",
            Self::Sqd => "SQD",
            Self::Err => "ERR",
        }
    }
}
