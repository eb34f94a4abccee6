//! Writes dumps to stderr, and gives up on a reader that does not read.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// How long all of a dump may take to write.
const PATIENCE: Duration = Duration::from_secs(5);
/// What a pipe that polls as writable takes at once, whole (`PIPE_BUF`).
const PIECE: usize = 4096;

/// Writes lines, each with its end, as many at once as are written whole.
pub(super) fn write(lines: &[String]) {
    // SAFETY: descriptor 2 stays open as long as the process; if the program did close it, writing
    // fails.
    let stderr = unsafe { BorrowedFd::borrow_raw(2) };
    let until = Instant::now() + PATIENCE;
    let mut piece = String::new();
    for line in lines {
        if piece.len() + line.len() > PIECE {
            if !write_all(stderr, piece.as_bytes(), until) {
                return;
            }
            piece.clear();
        }
        piece.push_str(line);
    }
    write_all(stderr, piece.as_bytes(), until);
}

/// Returns whether all was written before the deadline.
fn write_all(to: BorrowedFd<'_>, mut bytes: &[u8], until: Instant) -> bool {
    while !bytes.is_empty() {
        let left = until.saturating_duration_since(Instant::now());
        let timeout =
            Timespec { tv_sec: left.as_secs().try_into().unwrap_or(i64::MAX), tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::from_borrowed_fd(to, PollFlags::OUT)], Some(&timeout)) {
            Ok(0) => return false,
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return false,
        }
        match rustix::io::write(to, bytes) {
            Ok(written) => bytes = &bytes[written..],
            Err(Errno::INTR | Errno::AGAIN) if Instant::now() < until => {}
            Err(_) => return false,
        }
    }
    true
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_reader_that_does_not_read_is_given_up() {
        let (_reader, writer) = std::io::pipe().unwrap();
        let bytes = vec![b'x'; 1 << 20];
        let mut rest = &bytes[..];
        // What the pipe holds is written; of the rest the deadline has passed.
        rustix::io::ioctl_fionbio(&writer, true).unwrap();
        while let Ok(written) = rustix::io::write(&writer, rest) {
            rest = &rest[written..];
        }
        assert!(!write_all(writer.as_fd(), rest, Instant::now()));
    }
}
