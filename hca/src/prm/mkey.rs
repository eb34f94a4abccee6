//! Memory keys over umems (`mlx5_ifc_create_mkey_*`, `mlx5_ifc_mkc_bits`,
//! `mlx5_ifc_destroy_mkey_*`).

use super::command::command;
use super::layout::layout;

/// `MLX5_MKC_ACCESS_MODE_MTT`: the key translates through a table of pages, here that of a umem.
pub const ACCESS_MODE_MTT: u8 = 1;
/// `qpn` of a key that every QP of its protection domain may use.
pub const ANY_QP: u32 = 0xff_ffff;

layout! {
    /// Memory key context (`mlx5_ifc_mkc_bits`).
    pub struct MkeyContext {
        /// The key is not in use.
        free: bool = 0x01, 1;
        /// Writes may pass each other.
        relaxed_ordering_write: bool = 0x0d, 1;
        /// Remote atomics are allowed.
        a: bool = 0x11, 1;
        /// Remote writes are allowed.
        rw: bool = 0x12, 1;
        /// Remote reads are allowed.
        rr: bool = 0x13, 1;
        /// Local writes are allowed.
        lw: bool = 0x14, 1;
        /// Local reads are allowed.
        lr: bool = 0x15, 1;
        /// [`ACCESS_MODE_MTT`].
        access_mode_1_0: u8 = 0x16, 2;
        /// QP that may use it, or [`ANY_QP`].
        qpn: u32 = 0x20, 24;
        /// Low byte of the key, chosen by software.
        mkey_7_0: u8 = 0x38, 8;
        /// The key covers the whole address space.
        length64: bool = 0x60, 1;
        /// Protection domain.
        pd: u32 = 0x68, 24;
        /// First address that the key translates.
        start_addr: u64 = 0x80, 64;
        /// Bytes covered.
        len: u64 = 0xc0, 64;
        /// Size of the translation table in 16-byte units.
        translations_octword_size: u32 = 0x1a0, 32;
        /// Reads may pass writes.
        relaxed_ordering_read: bool = 0x1d9, 1;
        /// log2 of the page size of the table.
        log_page_size: u8 = 0x1db, 5;
    }
}

command! {
    CreateMkey, 0x110 => 16;
    /// CREATE_MKEY.
    in CreateMkey {
        /// The translation table is a umem's.
        mkey_umem_valid: bool = 0x61, 1;
        /// Size of the translation table in 16-byte units.
        translations_octword_actual_size: u32 = 0x300, 32;
        /// The umem.
        mkey_umem_id: u32 = 0x320, 32;
        /// Offset of `start_addr` in the umem, bytes.
        mkey_umem_offset: u64 = 0x340, 64;
        @
        /// The key.
        mkc: MkeyContext = 0x80;
    }
    /// Its output.
    out CreateMkeyOut {
        /// Upper 24 bits of the key.
        mkey_index: u32 = 0x48, 24;
    }
}

command! {
    DestroyMkey, 16 => 16;
    /// DESTROY_MKEY.
    in DestroyMkey {
        /// Upper 24 bits of the key.
        mkey_index: u32 = 0x48, 24;
    }
    /// Its output.
    out DestroyMkeyOut {}
}
