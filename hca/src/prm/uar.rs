//! User access regions, the pages of doorbell registers (`mlx5_ifc_alloc_uar_*`,
//! `mlx5_ifc_dealloc_uar_*`).

use super::command::command;

command! {
    AllocUar, 16 => 16;
    /// ALLOC_UAR.
    in AllocUar {}
    /// Its output.
    out AllocUarOut {
        /// 24-bit page number.
        uar: u32 = 0x48, 24;
    }
}

command! {
    DeallocUar, 16 => 16;
    /// DEALLOC_UAR.
    in DeallocUar {
        /// Page number.
        uar: u32 = 0x48, 24;
    }
    /// Its output.
    out DeallocUarOut {}
}
