//! Where updates go and what they do, as `kernels/updates.cu` has it.

use super::options::Plan;

/// The finalizer of splitmix64.
fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

/// Words of the table over all PEs.
pub fn words(plan: &Plan, n_pes: usize) -> u64 {
    match plan.words {
        Ok(each) => each * n_pes as u64,
        Err(all) => all,
    }
}

/// Calls `act` with the word and the random bits of each update of PE `pe`.
pub fn each(plan: &Plan, n_pes: usize, pe: usize, mut act: impl FnMut(u64, u64)) {
    let words = words(plan, n_pes);
    let first = pe as u64 * plan.updates;
    for update in 0..plan.updates {
        let random = mix(plan.seed ^ mix(first + update));
        let shift = if plan.skew == 0 { 0 } else { mix(random) % (plan.skew + 1) };
        act((random % words) >> shift, random);
    }
}

/// Returns what PE `me` has of the table when all PEs have made their updates.
pub fn table(plan: &Plan, n_pes: usize, me: usize) -> Vec<u64> {
    let n = n_pes as u64;
    let mut table = vec![0u64; usize::try_from(words(plan, n_pes).div_ceil(n)).unwrap_or(usize::MAX)];
    for pe in 0..n_pes {
        each(plan, n_pes, pe, |word, random| {
            if word % n == me as u64 {
                let at = &mut table[usize::try_from(word / n).unwrap_or(usize::MAX)];
                *at = match plan.update {
                    0 => mix(word),
                    1 => *at ^ random,
                    _ => *at + 1,
                };
            }
        });
    }
    table
}
