//! What collectives send: messages and rounds, counted while they run.

use oxshmem::Operations;
use oxshmem_tests::costs;

use crate::Outcome;
use crate::rig::Rig;

oxshmem::include_module!(COSTS, "costs");

/// Words of shadows for `n` PEs: see `kernels/costs.cu`.
fn shadow_words(n: usize) -> usize {
    (1536 / 8 + 4 * n) * 64
}

/// Runs every collective by every algorithm in several sizes, and prints a line of each: see
/// [`costs::Counted`].
pub fn count(_: &[String]) -> Outcome {
    let rig = Rig::new(&COSTS)?;
    let n = rig.n_pes();
    let most = *costs::SIZES.iter().max().ok_or("no sizes")? as usize;
    let (dst, src) = (rig.pe.alloc::<u8>(most * n)?, rig.pe.alloc::<u8>(most * n)?);
    let shadows = rig.pe.alloc::<u64>(shadow_words(n))?;
    let out = rig.pe.alloc::<u64>(4)?;
    for (call, algorithm) in costs::all() {
        for bytes in costs::SIZES {
            rig.pe.barrier_all()?;
            let kernel = (call as u32, algorithm as u32, &dst, &src, bytes / 8, &shadows, &out);
            rig.run_linear("count_messages", 1, 1, kernel)?;
            let [messages, rounds, answer, near] = rig.pe.read(out.view(..4))?[..] else {
                return Err("4 words".into());
            };
            assert_eq!(answer, 0, "{call:?} by {algorithm:?}");
            println!("{}", costs::Counted { call, algorithm, bytes, near: near != 0, messages, rounds });
        }
    }
    rig.finish()
}
