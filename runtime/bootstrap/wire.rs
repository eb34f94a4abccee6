//! The connecting end of a connection: it proves that it belongs to the job, then reads frames.

use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

use oxshmem_system::challenge::BYTES;

use super::frame::{Decoder, Frame, FrameError, MAGIC, MAX_FROM_HUB, Message};
use super::gate::Knock;
use super::stream::Channel;

/// How long nothing more may come of a frame from the hub that has begun.
const STALL: Duration = Duration::from_secs(30);

/// Sends bytes, as far as the other side takes them before the deadline.
///
/// # Errors
/// The connection is lost, or the deadline passes.
pub fn write_all(mut stream: &Channel, mut bytes: &[u8], deadline: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "it does not read what it is sent"));
        }
        stream.set_write_timeout(Some(left))?;
        match stream.write(bytes) {
            Ok(written) => bytes = &bytes[written..],
            Err(error) if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Why a connection is of no use.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    #[error("it closed the connection")]
    Closed,
    #[error("it did not answer in time")]
    TimedOut,
    #[error("what it sent is not a frame: {0}")]
    Frame(#[from] FrameError),
    /// It refuses this side before any proof, as a rendezvous of an old version does.
    #[error("{0}")]
    Refused(String),
    /// It refuses this side after a proof of what strangers may know of the job too.
    #[error("{0}")]
    Bare(String),
    /// It closed the connection instead of accepting this side's proof: it is of another job, or at
    /// its end. The text is to be followed by the name of the secret.
    #[error("it does not accept the proof that this PE knows")]
    TurnedAway,
    /// The other side is not of this job; the text is to be followed by the name of the secret.
    #[error("{0}")]
    Stranger(&'static str),
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// A connection whose calls block, with deadlines.
#[derive(Debug)]
pub struct Wire {
    pub stream: Channel,
    pub decoder: Decoder,
    /// The read timeout that the socket has now.
    timeout: Option<Duration>,
}

impl Wire {
    /// Wraps a connection on which nothing has been read.
    pub fn new(stream: Channel) -> Self {
        Self { stream, decoder: Decoder::new(MAX_FROM_HUB), timeout: None }
    }

    /// Proves to the other side that this one belongs to the job, and makes it prove the same.
    pub fn knock(&mut self, knock: &Knock, deadline: Instant) -> Result<(), WireError> {
        write_all(&self.stream, &knock.opening(), deadline)?;
        let theirs = self.read_exact::<BYTES>(deadline)?;
        let (proof, is_right) = knock.answer(theirs);
        write_all(&self.stream, &proof, deadline)?;
        let theirs = self.read_exact::<BYTES>(deadline).map_err(|error| match error {
            // It knows this PE for one of its job, so it is this job's.
            WireError::Refused(reason) => WireError::Bare(reason),
            // It has sent a nonce, so it is a rendezvous.
            WireError::Closed => WireError::TurnedAway,
            WireError::Io(error) if error.kind() == io::ErrorKind::ConnectionReset => WireError::TurnedAway,
            other => other,
        })?;
        if is_right(&theirs) { Ok(()) } else { Err(WireError::Stranger("it does not prove that it knows")) }
    }

    /// Reads the next bytes, before the first frame. A frame instead of them says why the other
    /// side refuses this one.
    pub fn read_exact<const N: usize>(&mut self, deadline: Instant) -> Result<[u8; N], WireError> {
        let mut bytes = [0; N];
        self.fill(&mut bytes, deadline)?;
        Ok(bytes)
    }

    /// Does the same as [`Wire::read_exact`], into bytes of the caller's.
    pub fn fill(&mut self, bytes: &mut [u8], deadline: Instant) -> Result<(), WireError> {
        let mut filled = 0;
        while filled < bytes.len() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(WireError::TimedOut);
            }
            self.stream.set_read_timeout(Some(left))?;
            self.timeout = Some(left);
            match (&self.stream).read(&mut bytes[filled..]) {
                Ok(0) => return Err(WireError::Closed),
                Ok(read) => filled += read,
                Err(error) if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock) => {}
                Err(error) => return Err(error.into()),
            }
            if bytes[..filled].starts_with(&MAGIC) {
                self.decoder.push(&bytes[..filled]);
                return match self.read(Some(deadline))?.message {
                    Message::Refused { reason } => Err(WireError::Refused(reason)),
                    other => Err(io::Error::other(format!("it sent {:?} before its proof", other.op())).into()),
                };
            }
        }
        Ok(())
    }

    /// Reads the next frame. Without a deadline it waits for the first byte forever, and for more
    /// of the rest not longer than [`STALL`] each time.
    pub fn read(&mut self, deadline: Option<Instant>) -> Result<Frame, WireError> {
        self.next(deadline, Decoder::next_frame)
    }

    /// Does the same as [`Wire::read`], for what `next` finds complete.
    pub fn next<T>(
        &mut self,
        deadline: Option<Instant>,
        next: impl Fn(&mut Decoder) -> Result<Option<T>, FrameError>,
    ) -> Result<T, WireError> {
        let mut grown = None;
        loop {
            if let Some(found) = next(&mut self.decoder)? {
                return Ok(found);
            }
            if self.decoder.is_partial() {
                grown.get_or_insert_with(Instant::now);
            }
            let deadline = deadline.or(grown.map(|grown| grown + STALL));
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Err(WireError::TimedOut);
            }
            if self.timeout != left {
                self.stream.set_read_timeout(left)?;
                self.timeout = left;
            }
            let mut buffer = [0; 64 << 10];
            match (&self.stream).read(&mut buffer) {
                Ok(0) => return Err(WireError::Closed),
                Ok(read) => {
                    self.decoder.push(&buffer[..read]);
                    grown = None;
                }
                Err(error) if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}
