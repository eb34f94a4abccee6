//! A ring of PEs: each learns the number of the one before it.

use oxshmem::LaunchConfig;

oxshmem::include_module!(KERNELS, "ring");

fn main() -> oxshmem::Result<()> {
    let pe = oxshmem::init()?;
    let inbox = pe.alloc::<i32>(1)?;
    let arrived = pe.alloc::<u64>(1)?;

    let ring = pe.load(&KERNELS)?.function("ring")?;
    // SAFETY: the kernel takes an int * and a uint64_t *, and uses one element of each.
    unsafe { pe.launch(&ring, LaunchConfig::linear(1, 1), (&inbox, &arrived))? };
    pe.synchronize()?;

    println!("PE {} of {} got {}", pe.my_pe(), pe.n_pes(), pe.read_local(&inbox, 0..1)?[0]);
    pe.finalize()
}
