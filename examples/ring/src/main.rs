//! A ring: each PE learns which PE is before it.

use oxshmem::{LaunchConfig, SymmetricSlice};

oxshmem::kernels! {
    struct Kernels from "ring" {
        unsafe fn ring(inbox: &SymmetricSlice<i32>, arrived: &SymmetricSlice<u64>);
    }
}

fn main() -> oxshmem::Result<()> {
    let pe = oxshmem::init()?;
    let (inbox, arrived) = (pe.alloc(1)?, pe.alloc(1)?);
    // SAFETY: the kernel uses one element of each.
    unsafe { Kernels::load(&pe)?.ring(&pe, LaunchConfig::linear(1, 1), &inbox, &arrived)? };
    pe.synchronize()?;
    println!("PE {} of {} got {}", pe.my_pe(), pe.n_pes(), pe.read(&inbox)?[0]);
    pe.finalize()
}
