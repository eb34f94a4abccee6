//! Patience with the resolution of hardware addresses, of cards and of the kernel's verbs alike.

use std::io;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The pause after the first question that the network has not answered; each later one is longer
/// by as much.
const PAUSE: Duration = Duration::from_millis(100);

/// Calls `ask`, which has the kernel resolve a hardware address, again while the kernel says that
/// nothing has answered, until `patience` is over. The kernel waits for an answer as long as it
/// takes to send the question a second time (Linux, `rdma_addr_find_l2_eth_by_grh`: 1 s), so one
/// lost packet may be the end of it, as where many nodes start at once.
pub(crate) fn until_resolved<T, E>(
    patience: Duration,
    mut ask: impl FnMut() -> Result<T, E>,
    cause: impl Fn(&E) -> Option<&io::Error>,
) -> Result<T, E> {
    let begun = Instant::now();
    let mut pause = PAUSE;
    loop {
        let error = match ask() {
            Ok(resolved) => return Ok(resolved),
            Err(error) => error,
        };
        let unanswered = cause(&error).and_then(io::Error::raw_os_error) == Some(libc::ETIMEDOUT);
        if !unanswered || begun.elapsed() + pause > patience {
            return Err(error);
        }
        sleep(pause);
        pause += PAUSE;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Asks a network that resolves the address at question number `answered`, and fails with
    /// `errno` at all others. Returns how that ended, and the number of questions.
    fn ask(patience: Duration, errno: i32, answered: u32) -> (Result<u32, Option<i32>>, u32) {
        let mut asked = 0;
        let question = || {
            asked += 1;
            if asked == answered { Ok(asked) } else { Err(io::Error::from_raw_os_error(errno)) }
        };
        let outcome = until_resolved(patience, question, |error| Some(error));
        (outcome.map_err(|error| error.raw_os_error()), asked)
    }

    #[test]
    fn questions_without_an_answer_are_put_again() {
        let long = Duration::from_secs(3600);
        assert_eq!(ask(long, libc::ETIMEDOUT, 1), (Ok(1), 1));
        assert_eq!(ask(long, libc::ETIMEDOUT, 3), (Ok(3), 3));
        // Others have been answered.
        assert_eq!(ask(long, libc::EHOSTUNREACH, 3), (Err(Some(libc::EHOSTUNREACH)), 1));
        assert_eq!(ask(Duration::ZERO, libc::ETIMEDOUT, 3), (Err(Some(libc::ETIMEDOUT)), 1));
    }
}
