//! Waiting for another PE without using up the core that it may need.

use std::time::{Duration, Instant};

use oxshmem::{Pe, SymmetricSlice};

use crate::error::Error;

/// How often a PE that has nothing to do looks whether it may go on. It sleeps meanwhile.
const LOOK_EVERY: Duration = Duration::from_micros(500);

/// Waits until the first word of this PE's copy of `word` has reached `value`; `what` is what PE 0
/// does meanwhile, for the error.
///
/// # Errors
/// The job has failed, or the word does not get there within the longest time that a kernel may
/// run.
pub fn until(pe: &Pe, word: &SymmetricSlice<u64>, value: u64, what: impl FnOnce() -> String) -> Result<(), Error> {
    let limit = pe.config().kernel_timeout();
    let begin = Instant::now();
    while pe.read(word.view(..1))?[0] < value {
        // Reports the failure of the job, if that is why the word does not change.
        pe.synchronize()?;
        if begin.elapsed() > limit {
            return Err(Error::Late { me: pe.my_pe(), seconds: limit.as_secs(), what: what() });
        }
        std::thread::sleep(LOOK_EVERY);
    }
    Ok(())
}
