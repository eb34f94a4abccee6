//! From the PEs' pipes to the launcher's standard output and error: whole lines, each with its PE's
//! number.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use super::dumps::Dumps;

/// A line longer than this is passed on in pieces of this length, each a line.
const MAX_LINE: usize = 64 << 10;
/// Text waiting for a slow reader above which the PEs are not read, so that they wait too.
const MAX_WAITING: usize = 1 << 20;
/// What a pipe that polls as writable takes without blocking (`PIPE_BUF`).
const PIECE: usize = 4096;

/// One of a PE's two output pipes.
#[derive(Debug)]
pub(super) struct Source {
    fd: Option<OwnedFd>,
    /// The beginning of a line, or everything that was read if it is captured.
    kept: Vec<u8>,
}

/// Where lines go.
#[derive(Debug)]
pub enum Target<'a> {
    /// Kept in the source.
    Capture,
    /// To a sink, with a prefix.
    Forward { sink: &'a mut Sink, prefix: &'a [u8], heard: Option<Heard<'a>> },
}

/// What reads the lines that are passed on, of which PE.
#[derive(Debug)]
pub struct Heard<'a> {
    pub dumps: &'a mut Dumps,
    pub pe: u32,
}

impl Heard<'_> {
    fn line(&mut self, line: &[u8]) {
        self.dumps.line(self.pe, line);
    }
}

impl Source {
    /// Takes the reading end of a pipe, which becomes non-blocking.
    pub fn new(fd: impl Into<OwnedFd>) -> io::Result<Self> {
        let fd = fd.into();
        rustix::io::ioctl_fionbio(&fd, true)?;
        Ok(Self { fd: Some(fd), kept: Vec::new() })
    }

    /// Returns the pipe, until it has ended.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.fd.as_ref().map(AsFd::as_fd)
    }

    /// Returns what was captured, once the pipe has ended.
    pub fn into_captured(self) -> Vec<u8> {
        self.kept
    }

    /// Reads once and passes on complete lines; at the pipe's end the incomplete one too. Returns
    /// whether more may be there.
    pub fn read(&mut self, target: Target<'_>) -> bool {
        let Some(fd) = &self.fd else { return false };
        let mut buffer = [0; 64 << 10];
        match rustix::io::read(fd, &mut buffer) {
            Ok(0) => self.end(target),
            Ok(read) => {
                self.kept.extend_from_slice(&buffer[..read]);
                if let Target::Forward { sink, prefix, heard } = target {
                    self.pass_on(sink, prefix, heard);
                }
                return true;
            }
            Err(Errno::INTR) => return true,
            Err(Errno::AGAIN) => {}
            Err(_) => self.end(target),
        }
        false
    }

    /// Closes the pipe and passes on an incomplete line.
    pub fn end(&mut self, target: Target<'_>) {
        self.fd = None;
        if let Target::Forward { sink, prefix, .. } = target
            && !self.kept.is_empty()
        {
            sink.line(prefix, &self.kept);
            self.kept = Vec::new();
        }
    }

    fn pass_on(&mut self, sink: &mut Sink, prefix: &[u8], mut heard: Option<Heard<'_>>) {
        let mut rest = &self.kept[..];
        loop {
            let end = rest.iter().position(|byte| *byte == b'\n');
            let (piece, passed) = match end {
                // Complete lines too: the launcher on another machine reads no longer ones.
                _ if end.unwrap_or(rest.len()) > MAX_LINE => (&rest[..MAX_LINE], MAX_LINE),
                Some(end) => (&rest[..end], end + 1),
                None => break,
            };
            sink.line(prefix, piece);
            if let Some(heard) = &mut heard {
                heard.line(piece);
            }
            rest = &rest[passed..];
        }
        let passed = self.kept.len() - rest.len();
        self.kept.drain(..passed);
    }
}

/// The launcher's standard output or error. Never blocks: what cannot be written yet waits here.
#[derive(Debug)]
pub struct Sink {
    fd: BorrowedFd<'static>,
    waiting: Vec<u8>,
    written: usize,
    state: SinkState,
}

/// Whether a sink can be written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SinkState {
    Open,
    /// Its reader has closed the other end.
    Closed,
    /// It cannot be written to any more, for this reason.
    Failed(Errno),
}

impl Sink {
    /// Creates a sink over a descriptor that stays open.
    pub fn new(fd: BorrowedFd<'static>) -> Self {
        Self { fd, waiting: Vec::new(), written: 0, state: SinkState::Open }
    }

    /// Adds a line, given without its end.
    pub fn line(&mut self, prefix: &[u8], line: &[u8]) {
        if self.state == SinkState::Open {
            for part in [prefix, line, b"\n"] {
                self.waiting.extend_from_slice(part);
            }
        }
    }

    /// Returns the descriptor, while something waits to be written to it.
    pub fn pending(&self) -> Option<BorrowedFd<'static>> {
        (!self.waiting.is_empty()).then_some(self.fd)
    }

    /// Returns whether the waiting output has reached the limit, so that no more should be added.
    pub fn is_full(&self) -> bool {
        self.waiting.len() - self.written > MAX_WAITING
    }

    /// Returns whether the reader has closed the other end; then nothing waits either.
    pub fn is_closed(&self) -> bool {
        self.state == SinkState::Closed
    }

    /// Returns why output was lost: a full disk, for example. A reader that closes its end on
    /// purpose is not a loss.
    pub fn failure(&self) -> Option<Errno> {
        match self.state {
            SinkState::Failed(error) => Some(error),
            SinkState::Open | SinkState::Closed => None,
        }
    }

    /// Writes a piece; the descriptor has polled as writable.
    pub fn write(&mut self) {
        let end = self.waiting.len().min(self.written + PIECE);
        match rustix::io::write(self.fd, &self.waiting[self.written..end]) {
            Ok(written) => self.written += written,
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(error) => {
                self.state = if error == Errno::PIPE { SinkState::Closed } else { SinkState::Failed(error) };
                self.written = self.waiting.len();
            }
        }
        // A reader that never catches up must not make this grow: what is moved is less than what
        // has been written since the last time.
        if self.written * 2 >= self.waiting.len() {
            self.waiting.drain(..self.written);
            self.written = 0;
        }
    }
}

/// Writes all bytes to a descriptor, and waits for its reader as a descriptor that blocks does.
///
/// # Errors
/// The descriptor cannot be written to.
pub(super) fn write_all(fd: impl AsFd, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match rustix::io::write(&fd, bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => bytes = &bytes[written..],
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => match poll(&mut [PollFd::new(&fd, PollFlags::OUT)], None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            },
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::io::{Read, Write, pipe};
    use std::os::fd::{FromRawFd, IntoRawFd};

    use super::*;

    /// Returns what comes out of a sink after `pieces` went through a source with prefix `> `.
    fn through(pieces: &[&[u8]]) -> Vec<u8> {
        let (input, mut output) = pipe().unwrap();
        let (mut result, end) = pipe().unwrap();
        let end = end.into_raw_fd();
        // SAFETY: the descriptor stays open until the sink is gone.
        let mut sink = Sink::new(unsafe { BorrowedFd::borrow_raw(end) });
        let mut source = Source::new(input).unwrap();
        for piece in pieces {
            output.write_all(piece).unwrap();
            while source.read(Target::Forward { sink: &mut sink, prefix: b"> ", heard: None }) {}
            assert!(source.fd().is_some());
        }
        drop(output);
        while source.read(Target::Forward { sink: &mut sink, prefix: b"> ", heard: None }) {}
        assert!(source.fd().is_none());
        let reader = std::thread::spawn(move || {
            let mut bytes = Vec::new();
            result.read_to_end(&mut bytes).unwrap();
            bytes
        });
        while sink.pending().is_some() {
            sink.write();
        }
        assert!(!sink.is_closed() && sink.failure().is_none());
        // SAFETY: nothing else owns it.
        drop(unsafe { OwnedFd::from_raw_fd(end) });
        reader.join().unwrap()
    }

    #[test]
    fn lines_are_kept_whole_and_prefixed() {
        assert_eq!(through(&[b"one\ntw", b"o\n\nthree"]), b"> one\n> two\n> \n> three\n");
        assert_eq!(through(&[]), b"");
        assert_eq!(through(&[b"\xff\x00\r\n"]), b"> \xff\x00\r\n");
        let long = vec![b'x'; MAX_LINE];
        let (first, second) = long.split_at(MAX_LINE / 2);
        let whole = [b"> ", &long[..], b"\n"].concat();
        assert!(through(&[first, second, b"\n"]) == whole);
        let cut = [b"> ", &long[..], b"\n> yyy\n"].concat();
        assert!(through(&[first, second, b"yy", b"y\n"]) == cut);
        // One that is complete when it is read is cut alike.
        assert!(through(&[first, second, b"yyy\n"]) == cut);
    }

    #[test]
    fn a_reader_that_never_catches_up_does_not_make_a_sink_grow() {
        let (mut result, end) = pipe().unwrap();
        let end = end.into_raw_fd();
        // SAFETY: the descriptor stays open until the sink is gone.
        let mut sink = Sink::new(unsafe { BorrowedFd::borrow_raw(end) });
        let line = [b'x'; PIECE - 1];
        let mut read = [0; PIECE];
        // Something waits all the time.
        sink.line(b"", &line);
        for _ in 0..1000 {
            sink.line(b"", &line);
            sink.write();
            result.read_exact(&mut read).unwrap();
            assert!(read[..PIECE - 1] == line && read[PIECE - 1] == b'\n');
            assert!(sink.pending().is_some() && sink.waiting.len() <= 4 * PIECE, "{}", sink.waiting.len());
        }
        // SAFETY: nothing else owns it.
        drop(unsafe { OwnedFd::from_raw_fd(end) });
    }

    #[test]
    fn what_does_not_block_is_written_whole() {
        let (mut result, end) = pipe().unwrap();
        rustix::io::ioctl_fionbio(&end, true).unwrap();
        // More than a pipe holds.
        let text = vec![b'x'; 1 << 20];
        let read = std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut bytes = Vec::new();
                result.read_to_end(&mut bytes).unwrap();
                bytes
            });
            write_all(&end, &text).unwrap();
            drop(end);
            reader.join().unwrap()
        });
        assert!(read == text);
        let (result, end) = pipe().unwrap();
        drop(result);
        assert_eq!(write_all(&end, b"x").unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }

    #[test]
    fn a_sink_without_reader_is_closed_and_takes_nothing() {
        let (result, end) = pipe().unwrap();
        drop(result);
        let end = end.into_raw_fd();
        // SAFETY: the descriptor stays open until the sink is gone.
        let mut sink = Sink::new(unsafe { BorrowedFd::borrow_raw(end) });
        sink.line(b"", b"x");
        sink.write();
        assert!(sink.is_closed() && sink.failure().is_none() && sink.pending().is_none());
        sink.line(b"", b"y");
        assert!(sink.pending().is_none());
        // SAFETY: nothing else owns it.
        drop(unsafe { OwnedFd::from_raw_fd(end) });
    }
}
