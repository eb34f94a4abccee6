//! Signals and the data before them.

use oxshmem::{LaunchConfig, Operations};

use crate::Outcome;
use crate::rig::Rig;

oxshmem::include_module!(SIGNALS, "signals");

/// `signals [alone|short]`: with `alone`, each word is the target of one PE's additions; with
/// `short`, few forms.
pub fn signals(args: &[String]) -> Outcome {
    const ROUNDS: u32 = 3;
    let rig = Rig::new(&SIGNALS)?;
    let n = rig.n_pes();
    // Scope, nbi, add, from shared memory, threads, bytes.
    let mut forms = Vec::new();
    for scope in 0..3u32 {
        for (index, bytes) in [0usize, 1, 8, 28, 29, 100, 300, 5000].into_iter().enumerate() {
            let bit = |of: usize| u32::from((index + scope as usize) >> of & 1 == 1);
            forms.push((scope, bit(0), bit(1), bit(2), [50, 32, 96][scope as usize], bytes));
        }
    }
    forms.push((2, 0, 0, 0, 64, 70_001));
    forms.push((2, 1, 1, 0, 33, 200_000));
    forms.push((2, 0, 1, 1, 64, 30_000));
    if args == ["short"] {
        forms = forms.into_iter().step_by(5).collect();
    }
    for (scope, nbi, add, elsewhere, threads, bytes) in forms {
        let all = ROUNDS as usize * n * bytes;
        let (incoming, outgoing) = (rig.pe.alloc::<u8>(all)?, rig.pe.alloc::<u8>(all)?);
        let signals = rig.pe.alloc::<u64>(n)?;
        let config = LaunchConfig { shared_bytes: bytes, ..LaunchConfig::linear(2, threads) };
        let args = (&incoming, &outgoing, bytes as u64, &signals, ROUNDS, scope, nbi, add, elsewhere, rig.report());
        rig.run("put_signal_rounds", config, args)?;
        rig.pe.barrier_all()?;
        rig.pe.free(signals)?;
        rig.pe.free(outgoing)?;
        rig.pe.free(incoming)?;
    }
    for (form, bytes, threads) in [(0u32, 200usize, 64), (0, 1000, 33), (1, 40, 32), (1, 20_000, 96)] {
        let all = ROUNDS as usize * n * bytes;
        let (incoming, outgoing) = (rig.pe.alloc::<u8>(all)?, rig.pe.alloc::<u8>(all)?);
        let signals = rig.pe.alloc::<u64>(n)?;
        let args = (&incoming, &outgoing, bytes as u64, &signals, ROUNDS, form, rig.report());
        rig.run_linear("signal_behind_puts", 2, threads, args)?;
        rig.pe.barrier_all()?;
    }
    let ladder = rig.filled(&[0u64, 0, 1 << 63, 51, 50, 6, u64::MAX])?;
    rig.pe.barrier_all()?;
    rig.run_linear("signal_comparisons", 2, 1, (&ladder, rig.report()))?;
    if args != ["alone"] {
        let sum = rig.pe.alloc::<u64>(1)?;
        rig.run_linear("signal_sums", 3, 40, (&sum, 5u32, rig.report()))?;
        rig.pe.barrier_all()?;
    }
    rig.finish()
}
