//! The kernel that is also linked with the device library (`gpu/linked.rs`), compiled as a whole.

use oxshmem::{Config, LaunchConfig, Operations, Pe};
use oxshmem_tests::exchange::{BOARD_WORDS, BYTES, SPARE, THREADS, check_board};

use crate::Outcome;

oxshmem::include_module!(LINKED, "linked");

pub fn exchange(_: &[String]) -> Outcome {
    let pe = Pe::with_config(Config::from_env()?)?;
    let kernel = pe.load(&LINKED)?.kernel("exchange")?;
    let board = pe.alloc::<u64>(BOARD_WORDS)?;
    let (data, wrong) = (pe.alloc::<u8>(3 * BYTES)?, pe.alloc::<u64>(1)?);
    let mut spare = vec![0u8; SPARE];
    let spare_address = spare.as_mut_ptr() as u64;
    let config = LaunchConfig::linear(1, THREADS);
    // SAFETY: the kernel's parameters; `spare` outlives it.
    unsafe { kernel.launch(&pe, config, (&board, &data, BYTES as u64, spare_address, SPARE as u64, &wrong))? };
    pe.synchronize()?;
    assert_eq!(pe.read(wrong.view(..1))?, [0], "values that are wrong");
    pe.barrier_all()?;
    check_board(&pe.read(board.view(..BOARD_WORDS))?);
    Ok(pe.finalize()?)
}
