//! What HCAs of one node say to each other over their sockets.
//!
//! | message | `a`, `b`, `c` | file |
//! |---|---|---|
//! | HELLO | GID of the sender | |
//! | HELLO_OK | GID of the HCA, size of the control segment and 2^32 times the number of UMEM_OK that follow | control segment |
//! | UMEM | id | |
//! | UMEM_OK | id, offset, length; also unrequested | memory |
//! | UMEM_NONE | id | |
//! | FORGET | id; the owner has deregistered it | |
//! | HELD | id; an HCA with an accelerator has mapped it, or knows that it cannot | |

use crate::port::Gid;
use oxshmem_system::words::{low16, low32};
use std::time::Duration;

const MAGIC: u32 = u32::from_le_bytes(*b"OXHF");
const VERSION: u16 = 2;
pub(super) const MESSAGE_BYTES: usize = 32;

/// How long an exchange of two small messages on one machine may take before the peer counts as
/// gone.
pub(in crate::soft) const EXCHANGE_LIMIT: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub(super) enum Kind {
    Hello = 1,
    HelloOk = 2,
    Umem = 3,
    UmemOk = 4,
    UmemNone = 5,
    Forget = 6,
    Held = 7,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) kind: Kind,
    pub(super) a: u64,
    pub(super) b: u64,
    pub(super) c: u64,
}

impl Message {
    pub(super) fn encode(&self) -> [u8; MESSAGE_BYTES] {
        let mut bytes = [0; MESSAGE_BYTES];
        bytes[0..4].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
        bytes[6..8].copy_from_slice(&(self.kind as u16).to_le_bytes());
        for (at, value) in [(8, self.a), (16, self.b), (24, self.c)] {
            bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, String> {
        let bytes: &[u8; MESSAGE_BYTES] =
            bytes.try_into().map_err(|_| format!("{} bytes, a message has {MESSAGE_BYTES}", bytes.len()))?;
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let (magic, version, kind) = (low32(word(0)), low16(word(0) >> 32), low16(word(0) >> 48));
        if magic != MAGIC || version != VERSION {
            return Err(format!("magic {magic:#x} version {version}, expected {MAGIC:#x} version {VERSION}"));
        }
        let kind = [Kind::Hello, Kind::HelloOk, Kind::Umem, Kind::UmemOk, Kind::UmemNone, Kind::Forget, Kind::Held]
            .into_iter()
            .find(|known| *known as u16 == kind)
            .ok_or_else(|| format!("unknown kind {kind}"))?;
        Ok(Self { kind, a: word(8), b: word(16), c: word(24) })
    }
}

/// Returns the abstract socket name of the HCA with this GID.
pub(in crate::soft) fn socket_name(gid: Gid) -> String {
    let (hi, lo) = gid.halves();
    format!("oxshmem-hca-{hi:016x}{lo:016x}")
}
