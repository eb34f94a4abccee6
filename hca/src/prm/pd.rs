//! Protection domains (`mlx5_ifc_alloc_pd_*`, `mlx5_ifc_dealloc_pd_*`).

use super::command::command;

command! {
    AllocPd, 16 => 16;
    /// ALLOC_PD.
    in AllocPd {}
    /// Its output.
    out AllocPdOut {
        /// 24-bit number of the protection domain.
        pd: u32 = 0x48, 24;
    }
}

command! {
    DeallocPd, 16 => 16;
    /// DEALLOC_PD.
    in DeallocPd {
        /// Number of the protection domain.
        pd: u32 = 0x48, 24;
    }
    /// Its output.
    out DeallocPdOut {}
}
