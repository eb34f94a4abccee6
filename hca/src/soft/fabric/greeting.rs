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

    /// Whether `proof` is that of the HCA that sent this HELLO.
    pub(in crate::soft) fn admits(&self, secret: &[u8], accepting: &[u8; BYTES], proof: &[u8; BYTES]) -> bool {
        let nonces = Nonces { connecting: self.nonce, accepting: *accepting };
        verify(secret, Role::Connecting, &nonces, &self.context(), proof)
    }

    /// The proof of the HCA that got this HELLO.
    pub(in crate::soft) fn welcome(&self, secret: &[u8], accepting: &[u8; BYTES]) -> [u8; BYTES] {
        let nonces = Nonces { connecting: self.nonce, accepting: *accepting };
        prove(secret, Role::Accepting, &nonces, &self.context())
    }
}

/// The CHALLENGE with this nonce.
pub(in crate::soft) fn challenge(nonce: &[u8; BYTES]) -> [u8; CHALLENGE] {
    let mut bytes = [0; CHALLENGE];
    bytes[..8].copy_from_slice(&preamble());
    bytes[8..].copy_from_slice(nonce);
    bytes
}

/// Connects the HCA `from` to HCA `to`, and proves to each that the other belongs to the job.
pub(in crate::soft) fn connect(from: Gid, to: Gid, address: SocketAddr, secret: &[u8]) -> Result<TcpStream> {
    let until = Instant::now() + PATIENCE;
    loop {
        // A listener that has too many connections to handle drops some of them.
        match greet(from, to, address, secret) {
            Ok(stream) => return Ok(stream),
            Err((true, _)) if Instant::now() + PAUSE < until => std::thread::sleep(PAUSE),
            Err((_, detail)) => {
                let what = format!(
                    "HCA {to} of another node, at {address}: {detail}; check that the address is reachable from this node (firewall, \
                     OXSHMEM_INTERFACE)"
                );
                return Err(Error::UnknownGid { gid: to, detail: what });
            }
        }
    }
}

/// One try; an error comes with whether another may succeed.
fn greet(from: Gid, to: Gid, address: SocketAddr, secret: &[u8]) -> std::result::Result<TcpStream, (bool, String)> {
    let again = |error: std::io::Error| (true, error.to_string());
    let mut stream = TcpStream::connect_timeout(&address, LIMIT).map_err(again)?;
    stream.set_read_timeout(Some(LIMIT)).map_err(again)?;
    stream.set_write_timeout(Some(LIMIT)).map_err(again)?;
    stream.set_nodelay(true).map_err(again)?;
    let connecting = nonce().map_err(|error| (false, error.to_string()))?;
    let hello = Hello { from, to, nonce: connecting };
    stream.write_all(&hello.encode()).map_err(again)?;
    let mut bytes = [0; CHALLENGE];
    stream.read_exact(&mut bytes).map_err(again)?;
    check_preamble(&bytes).map_err(|detail| (false, detail))?;
    let accepting = std::array::from_fn(|i| bytes[8 + i]);
    let nonces = Nonces { connecting, accepting };
    stream.write_all(&prove(secret, Role::Connecting, &nonces, &hello.context())).map_err(again)?;
    let mut proof = [0; BYTES];
    stream.read_exact(&mut proof).map_err(|error| {
        (
            false,
            format!("{error}, after this process proved that it belongs to the job; does another job use the port?"),
        )
    })?;
    if !verify(secret, Role::Accepting, &nonces, &hello.context(), &proof) {
        return Err((false, "it does not belong to this job".into()));
    }
    Ok(stream)
}
