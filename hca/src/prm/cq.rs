//! Completion queues (`mlx5_ifc_create_cq_*`, `mlx5_ifc_cqc_bits`, `mlx5_ifc_query_cq_*`,
//! `mlx5_ifc_destroy_cq_*`).

use super::command::command;
use super::layout::layout;

/// `cqe_sz` of 64-byte entries.
pub const CQE_SIZE_64: u8 = 0;

layout! {
    /// Completion queue context (`mlx5_ifc_cqc_bits`).
    pub struct CqContext {
        /// 0 is healthy, 0x9 overflow, 0xa write failure.
        status: u8 = 0x00, 4;
        /// The doorbell record is in a umem.
        dbr_umem_valid: bool = 0x06, 1;
        /// [`CQE_SIZE_64`].
        cqe_sz: u8 = 0x08, 3;
        /// Collapsed: every CQE is written to the first entry.
        cc: bool = 0x0b, 1;
        /// Overrun is ignored: the consumer counter is not looked at.
        oi: bool = 0x0e, 1;
        /// Umem of the doorbell record.
        dbr_umem_id: u32 = 0x20, 32;
        /// log2 of the number of entries.
        log_cq_size: u8 = 0x63, 5;
        /// UAR page of the CQ's doorbells.
        uar_page: u32 = 0x68, 24;
        /// Event queue.
        c_eqn: u32 = 0xa0, 32;
        /// log2 of the page size, less 12.
        log_page_size: u8 = 0xc3, 5;
        /// Entries consumed.
        consumer_counter: u32 = 0x148, 24;
        /// Entries written.
        producer_counter: u32 = 0x168, 24;
        /// Doorbell record: offset in its umem.
        dbr_addr: u64 = 0x1c0, 64;
    }
}

command! {
    CreateCq, 0x110 => 16;
    /// CREATE_CQ.
    in CreateCq {
        /// Offset of the first entry in the umem, bytes.
        cq_umem_offset: u64 = 0x280, 64;
        /// The umem.
        cq_umem_id: u32 = 0x2c0, 32;
        /// The queue is in a umem.
        cq_umem_valid: bool = 0x2e0, 1;
        @
        /// The queue.
        cqc: CqContext = 0x80;
    }
    /// Its output.
    out CreateCqOut {
        /// 24-bit number of the queue.
        cqn: u32 = 0x48, 24;
    }
}

command! {
    QueryCq, 16 => 0x110;
    /// QUERY_CQ.
    in QueryCq {
        /// Number of the queue.
        cqn: u32 = 0x48, 24;
    }
    /// Its output.
    out QueryCqOut {
        @
        /// The queue.
        cqc: CqContext = 0x80;
    }
}

command! {
    DestroyCq, 16 => 16;
    /// DESTROY_CQ.
    in DestroyCq {
        /// Number of the queue.
        cqn: u32 = 0x48, 24;
    }
    /// Its output.
    out DestroyCqOut {}
}
