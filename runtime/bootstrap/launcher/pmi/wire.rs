//! Messages of PMI on a descriptor, with a deadline and limits.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::super::common::left;

/// Longest line of PMI-1, and longest message of PMI-2, that is accepted. A value has at most 1024
/// bytes.
const MAX_MESSAGE: usize = 16 << 10;
/// How many digits the length of a message of PMI-2 has.
const LENGTH_DIGITS: usize = 6;

/// Why a PMI could not be used.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// The descriptor is not open.
    #[error("this descriptor is not open here")]
    NotOpen,
    /// The launcher has closed its end.
    #[error("the launcher closed the connection")]
    Closed,
    /// The launcher was silent for too long.
    #[error("no reply within OXSHMEM_BOOTSTRAP_TIMEOUT to {0}")]
    TimedOut(&'static str),
    /// What came is not a message of PMI.
    #[error("what came is not PMI: {0}")]
    Garbage(String),
    /// The launcher refuses a request.
    #[error("{request} was refused: {reason}")]
    Refused {
        /// The request.
        request: &'static str,
        /// The launcher's words.
        reason: String,
    },
    /// The value does not fit.
    #[error("a value of {length} bytes does not fit, the limit is {limit}")]
    TooLong {
        /// Its length.
        length: usize,
        /// The limit.
        limit: usize,
    },
    /// The system's error.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// The fields of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fields(BTreeMap<String, String>);

impl Fields {
    /// Returns a field.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    fn add(&mut self, pair: &str) -> Result<(), WireError> {
        let (name, value) = pair.split_once('=').ok_or_else(|| garbage(pair.as_bytes()))?;
        self.0.insert(name.to_owned(), value.to_owned());
        Ok(())
    }
}

/// The connection. The descriptor stays open, since others of the process may look at it.
#[derive(Debug)]
pub struct Wire {
    fd: OwnedFd,
    deadline: Instant,
    /// What was received and not read yet.
    received: Vec<u8>,
}

impl Wire {
    /// Takes a descriptor of this process.
    pub fn new(fd: RawFd, deadline: Instant) -> Result<Self, WireError> {
        // SAFETY: it is only duplicated, which fails if it is not open.
        let fd = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 3) };
        if fd < 0 {
            return Err(match io::Error::last_os_error() {
                error if error.raw_os_error() == Some(libc::EBADF) => WireError::NotOpen,
                error => error.into(),
            });
        }
        // SAFETY: fcntl made it, and nothing else has it.
        let fd = unsafe { std::os::fd::FromRawFd::from_raw_fd(fd) };
        Ok(Self { fd, deadline, received: Vec::new() })
    }

    /// Sends a line of PMI-1.
    pub fn send_line(&mut self, line: &str) -> Result<(), WireError> {
        self.send(format!("{line}\n").as_bytes())
    }

    /// Sends a message of PMI-2.
    pub fn send_message(&mut self, message: &str) -> Result<(), WireError> {
        self.send(format!("{:<LENGTH_DIGITS$}{message}", message.len()).as_bytes())
    }

    fn send(&mut self, mut bytes: &[u8]) -> Result<(), WireError> {
        while !bytes.is_empty() {
            self.wait(PollFlags::OUT, "a request that it does not read")?;
            match rustix::io::write(&self.fd, bytes) {
                Ok(written) => bytes = &bytes[written..],
                Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => {}
                Err(rustix::io::Errno::PIPE | rustix::io::Errno::CONNRESET) => return Err(WireError::Closed),
                Err(error) => return Err(io::Error::from(error).into()),
            }
        }
        Ok(())
    }

    /// Receives a line of PMI-1, the reply to `request`.
    pub fn line(&mut self, request: &'static str) -> Result<Fields, WireError> {
        let end = loop {
            if let Some(end) = self.received.iter().position(|byte| *byte == b'\n') {
                break end;
            }
            if self.received.len() > MAX_MESSAGE {
                return Err(garbage(&self.received));
            }
            self.receive(request)?;
        };
        let line: Vec<u8> = self.received.drain(..=end).collect();
        let text = std::str::from_utf8(&line).map_err(|_| garbage(&line))?;
        let mut fields = Fields(BTreeMap::new());
        text.split_ascii_whitespace().try_for_each(|pair| {
            // The text of an error may have blanks.
            if pair.contains('=') || fields.get("msg").is_none() { fields.add(pair) } else { Ok(()) }
        })?;
        if fields.get("cmd").is_none() { Err(garbage(&line)) } else { Ok(fields) }
    }

    /// Receives a message of PMI-2, the reply to `request`.
    pub fn message(&mut self, request: &'static str) -> Result<Fields, WireError> {
        while self.received.len() < LENGTH_DIGITS {
            self.receive(request)?;
        }
        let digits = std::str::from_utf8(&self.received[..LENGTH_DIGITS]).map_err(|_| garbage(&self.received))?;
        let length = digits.trim().parse().ok().filter(|length| *length <= MAX_MESSAGE);
        let length: usize = length.ok_or_else(|| garbage(&self.received))?;
        while self.received.len() < LENGTH_DIGITS + length {
            self.receive(request)?;
        }
        let message: Vec<u8> = self.received.drain(..LENGTH_DIGITS + length).skip(LENGTH_DIGITS).collect();
        let text = std::str::from_utf8(&message).map_err(|_| garbage(&message))?;
        let mut fields = Fields(BTreeMap::new());
        for pair in separate(text) {
            fields.add(&pair)?;
        }
        if fields.get("cmd").is_none() { Err(garbage(&message)) } else { Ok(fields) }
    }

    fn receive(&mut self, request: &'static str) -> Result<(), WireError> {
        self.wait(PollFlags::IN, request)?;
        let mut buffer = [0; 4096];
        match rustix::io::read(&self.fd, &mut buffer) {
            Ok(0) | Err(rustix::io::Errno::CONNRESET) => Err(WireError::Closed),
            Ok(read) => {
                self.received.extend_from_slice(&buffer[..read]);
                Ok(())
            }
            Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => Ok(()),
            Err(error) => Err(io::Error::from(error).into()),
        }
    }

    fn wait(&self, flags: PollFlags, request: &'static str) -> Result<(), WireError> {
        loop {
            let left = left(self.deadline).ok_or(WireError::TimedOut(request))?;
            let left =
                Timespec { tv_sec: left.as_secs().try_into().unwrap_or(i64::MAX), tv_nsec: left.subsec_nanos().into() };
            // SAFETY: the descriptor is this value's own and lives as long.
            let fd = unsafe { BorrowedFd::borrow_raw(std::os::fd::AsRawFd::as_raw_fd(&self.fd)) };
            match poll(&mut [PollFd::from_borrowed_fd(fd, flags)], Some(&left)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                Ok(_) => return Ok(()),
                Err(error) => return Err(io::Error::from(error).into()),
            }
        }
    }
}

/// Cuts a message of PMI-2 at its semicolons; two in a row are one of the text.
fn separate(text: &str) -> Vec<String> {
    let mut pairs = Vec::new();
    let mut pair = String::new();
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        if c == ';' && rest.next_if_eq(&';').is_none() {
            pairs.push(std::mem::take(&mut pair));
        } else {
            pair.push(c);
        }
    }
    pairs.push(pair);
    pairs.retain(|pair| !pair.trim_matches(['\0', '\n', ' ']).is_empty());
    pairs
}

fn garbage(bytes: &[u8]) -> WireError {
    let shown = &bytes[..bytes.len().min(60)];
    WireError::Garbage(format!("'{}'", shown.escape_ascii()))
}
