//! A ring of PEs. Run it with `oxrun -n 4 target/release/ring`.

use oxshmem::LaunchConfig;

oxshmem::include_module!(KERNELS, "kernels");

fn main() -> oxshmem::Result<()> {
    let pe = oxshmem::init()?;
    let inbox = pe.alloc::<i32>(1)?;
    let arrived = pe.alloc::<u64>(1)?;

    let ring = pe.load(&KERNELS)?.function("ring")?;
    // SAFETY: the kernel takes an int * and a uint64_t *, and touches one element of each.
    unsafe { pe.launch(&ring, LaunchConfig::linear(1, 1), (&inbox, &arrived))? };
    pe.synchronize()?;

    let from = pe.read_local(&inbox, 0..1)?[0];
    println!("PE {} of {} got {from}", pe.my_pe(), pe.n_pes());
    assert_eq!(from as usize, (pe.my_pe() + pe.n_pes() - 1) % pe.n_pes());
    pe.finalize()
}
