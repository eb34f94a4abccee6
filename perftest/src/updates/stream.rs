//! Where updates go and what they do, as `kernels/updates.cu` has it.

use oxshmem_system::mixing::mix;

use super::options::Plan;

/// Returns the number of words of the table over all PEs.
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
