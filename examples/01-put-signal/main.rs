//! Put with signal: every PE streams messages to the next PE, whose kernel waits for each by its
//! signal.
//!
//! The host is in no message's way: one launch per PE sends and receives all of them.

use oxshmem::{LaunchConfig, SymmetricSlice};

oxshmem::kernels! {
    struct Kernels from "put_signal" {
        unsafe fn stream_messages(
            outbox: &SymmetricSlice<u64>, inbox: &SymmetricSlice<u64>, n: u64, rounds: u64,
            arrived: &SymmetricSlice<u64>, credits: &SymmetricSlice<u64>, sums: &SymmetricSlice<u64>,
        );
    }
}

/// Words of a message.
const WORDS: usize = 1000;
const ROUNDS: u64 = 20;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let pe = oxshmem::init()?;
    let previous = (pe.my_pe() + pe.n_pes() - 1) % pe.n_pes();

    // Symmetric memory is zeroed, and lies at the same offset on every PE.
    let (outbox, inbox, sums) = (pe.alloc(WORDS)?, pe.alloc(WORDS)?, pe.alloc(WORDS)?);
    let (arrived, credits) = (pe.alloc(1)?, pe.alloc(1)?);

    let kernels = Kernels::load(&pe)?;
    let one_block = LaunchConfig::linear(1, 128);
    // SAFETY: the kernel uses the first `n` words of the boxes and the sums, and one word of each
    // signal.
    unsafe {
        kernels.stream_messages(&pe, one_block, &outbox, &inbox, WORDS as u64, ROUNDS, &arrived, &credits, &sums)?;
    }
    pe.synchronize()?;

    // Word i of message r of PE p is 1000 p + r + i.
    let expected: Vec<u64> =
        (0..WORDS as u64).map(|i| (1..=ROUNDS).map(|round| 1000 * previous as u64 + round + i).sum()).collect();
    if pe.read(&sums)? != expected {
        return Err(format!("PE {}: the messages of PE {previous} arrived wrong", pe.my_pe()).into());
    }
    println!("PE {}: {ROUNDS} messages of {WORDS} words arrived from PE {previous}", pe.my_pe());
    Ok(pe.finalize()?)
}
