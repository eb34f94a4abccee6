//! How an HCA and one of another node find out that they belong to one job.
//!
//! | step | sent by | bytes |
//! |---|---|---|
//! | HELLO | initiator | magic, version, GID of the sender, GID of the receiver, nonce |
//! | CHALLENGE | target | magic, version, nonce |
//! | PROOF | initiator | [`prove`] |
//! | WELCOME | target | [`prove`] |
//!
//! A stranger gets a CHALLENGE at most, and never the same twice.

use crate::error::{Error, Result};
use crate::port::Gid;
use oxshmem_system::challenge::{BYTES, Nonces, Role, nonce, prove, verify};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

const MAGIC: [u8; 4] = *b"OXHT";
const VERSION: u16 = 1;
const CONTEXT: &[u8] = b"oxshmem fabric between nodes";

/// Bytes of a HELLO.
pub(in crate::soft) const HELLO: usize = 8 + 32 + BYTES;
/// Bytes of a CHALLENGE.
pub(in crate::soft) const CHALLENGE: usize = 8 + BYTES;
/// How long all of it may take.
pub(in crate::soft) const LIMIT: Duration = Duration::from_secs(5);
/// How long an HCA tries to reach another.
const PATIENCE: Duration = Duration::from_secs(15);
/// Connections that are begun before the first of them is there. A listener has room for more
/// strangers.
const AT_A_TIME: usize = 64;
/// Time between two tries.
const PAUSE: Duration = Duration::from_millis(50);

/// A HELLO.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::soft) struct Hello {
    pub from: Gid,
    pub to: Gid,
    pub nonce: [u8; BYTES],
}

fn preamble() -> [u8; 8] {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&MAGIC);
    bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
    bytes
}

fn check_preamble(bytes: &[u8]) -> std::result::Result<(), String> {
    if bytes.get(..4) != Some(&MAGIC) {
        return Err("it does not speak the protocol of OxSHMEM's fabric".into());
    }
    let version = u16::from_le_bytes([bytes[4], bytes[5]]);
    if version != VERSION || bytes[6..8] != [0, 0] {
        return Err(format!("it speaks version {version} of the fabric's protocol, this process {VERSION}"));
    }
    Ok(())
}

impl Hello {
    pub(in crate::soft) fn encode(&self) -> [u8; HELLO] {
        let mut bytes = [0; HELLO];
        bytes[..8].copy_from_slice(&preamble());
        let ((a, b), (c, d)) = (self.from.halves(), self.to.halves());
        for (at, word) in [a, b, c, d].into_iter().enumerate() {
            bytes[8 + 8 * at..16 + 8 * at].copy_from_slice(&word.to_le_bytes());
        }
        bytes[40..].copy_from_slice(&self.nonce);
        bytes
    }

    pub(in crate::soft) fn decode(bytes: &[u8; HELLO]) -> std::result::Result<Self, String> {
        check_preamble(bytes)?;
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let (from, to) = (Gid::from_halves(word(8), word(16)), Gid::from_halves(word(24), word(32)));
        Ok(Self { from, to, nonce: std::array::from_fn(|i| bytes[40 + i]) })
    }

    fn context(&self) -> Vec<u8> {
        let ((a, b), (c, d)) = (self.from.halves(), self.to.halves());
        [CONTEXT.to_vec(), [a, b, c, d].iter().flat_map(|word| word.to_le_bytes()).collect()].concat()
    }

    /// Returns whether `proof` is that of the HCA that sent this HELLO.
    pub(in crate::soft) fn admits(&self, secret: &[u8], accepting: &[u8; BYTES], proof: &[u8; BYTES]) -> bool {
        let nonces = Nonces { connecting: self.nonce, accepting: *accepting };
        verify(secret, Role::Connecting, &nonces, &self.context(), proof)
    }

    /// Returns the proof of the HCA that got this HELLO.
    pub(in crate::soft) fn welcome(&self, secret: &[u8], accepting: &[u8; BYTES]) -> [u8; BYTES] {
        let nonces = Nonces { connecting: self.nonce, accepting: *accepting };
        prove(secret, Role::Accepting, &nonces, &self.context())
    }
}

/// Returns the CHALLENGE with this nonce.
pub(in crate::soft) fn challenge(nonce: &[u8; BYTES]) -> [u8; CHALLENGE] {
    let mut bytes = [0; CHALLENGE];
    bytes[..8].copy_from_slice(&preamble());
    bytes[8..].copy_from_slice(nonce);
    bytes
}

/// An HCA of another node: its GID, where it listens, and the secret that shows it that a
/// connection may be.
#[derive(Clone, Copy)]
pub(in crate::soft) struct Target<'a> {
    pub gid: Gid,
    pub address: SocketAddr,
    pub secret: &'a [u8],
}

/// Connects the HCA `from` to each of the targets, and proves to each that the other belongs to the
/// job. Each step is made for many of them before the next, so that they work at the same time.
pub(in crate::soft) fn connect(from: Gid, targets: &[Target<'_>]) -> Result<Vec<TcpStream>> {
    let mut streams = Vec::with_capacity(targets.len());
    for some in targets.chunks(AT_A_TIME) {
        let called: Vec<_> = some.iter().map(|target| Call::begin(from, target)).collect();
        let proved: Vec<_> = called.into_iter().map(|call| call.and_then(Call::prove)).collect();
        let ended: Vec<_> = proved.into_iter().map(|call| call.and_then(Call::end)).collect();
        let until = Instant::now() + PATIENCE;
        for (target, outcome) in some.iter().zip(ended) {
            streams.push(insist(from, target, outcome, until)?);
        }
    }
    Ok(streams)
}

/// Tries again what may succeed later: a listener that has too many connections to handle drops
/// some of them.
fn insist(from: Gid, target: &Target<'_>, first: Tried<TcpStream>, until: Instant) -> Result<TcpStream> {
    let mut outcome = first;
    loop {
        match outcome {
            Ok(stream) => return Ok(stream),
            Err((true, _)) if Instant::now() + PAUSE < until => std::thread::sleep(PAUSE),
            Err((_, detail)) => {
                let Target { gid, address, .. } = target;
                let what = format!(
                    "HCA {gid} of another node, at {address}: {detail}; check that the address is reachable from this node (firewall, \
                     OXSHMEM_INTERFACE)"
                );
                return Err(Error::UnknownGid { gid: *gid, detail: what });
            }
        }
        outcome = Call::begin(from, target).and_then(Call::prove).and_then(Call::end);
    }
}

/// What a step of a try came to; an error comes with whether another try may succeed.
type Tried<T> = std::result::Result<T, (bool, String)>;

fn again(error: std::io::Error) -> (bool, String) {
    (true, error.to_string())
}

/// A try to connect.
struct Call<'a> {
    stream: TcpStream,
    hello: Hello,
    secret: &'a [u8],
    until: Instant,
    /// The target's greeting, once it has sent it.
    accepting: [u8; BYTES],
}

impl<'a> Call<'a> {
    /// Connects, and says HELLO.
    fn begin(from: Gid, target: &Target<'a>) -> Tried<Self> {
        let until = Instant::now() + LIMIT;
        let mut stream = TcpStream::connect_timeout(&target.address, LIMIT).map_err(again)?;
        stream.set_write_timeout(Some(LIMIT)).map_err(again)?;
        stream.set_nodelay(true).map_err(again)?;
        let nonce = nonce().map_err(|error| (false, error.to_string()))?;
        let hello = Hello { from, to: target.gid, nonce };
        stream.write_all(&hello.encode()).map_err(again)?;
        Ok(Self { stream, hello, secret: target.secret, until, accepting: [0; BYTES] })
    }

    /// Reads all of `bytes` before the whole try takes too long, however few come at a time.
    fn read(&mut self, mut bytes: &mut [u8]) -> std::io::Result<()> {
        while !bytes.is_empty() {
            let left = self.until.saturating_duration_since(Instant::now());
            // A timeout of 0 would be none.
            self.stream.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
            match self.stream.read(bytes) {
                Ok(0) => return Err(std::io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => bytes = &mut bytes[count..],
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Takes the challenge, and sends the proof.
    fn prove(mut self) -> Tried<Self> {
        let mut bytes = [0; CHALLENGE];
        self.read(&mut bytes).map_err(again)?;
        check_preamble(&bytes).map_err(|detail| (false, detail))?;
        self.accepting = std::array::from_fn(|i| bytes[8 + i]);
        let proof = prove(self.secret, Role::Connecting, &self.nonces(), &self.hello.context());
        self.stream.write_all(&proof).map_err(again)?;
        Ok(self)
    }

    /// Takes the proof of the target.
    fn end(mut self) -> Tried<TcpStream> {
        let mut proof = [0; BYTES];
        self.read(&mut proof).map_err(|error| {
            let what = "after this process proved that it belongs to the job; does another job use the port?";
            // A target that is busy gives up what takes long, which another try may not.
            (true, format!("{error}, {what}"))
        })?;
        if !verify(self.secret, Role::Accepting, &self.nonces(), &self.hello.context(), &proof) {
            return Err((false, "it does not belong to this job".into()));
        }
        Ok(self.stream)
    }

    fn nonces(&self) -> Nonces {
        Nonces { connecting: self.hello.nonce, accepting: self.accepting }
    }
}
