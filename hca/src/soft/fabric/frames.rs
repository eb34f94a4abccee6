//! Frames of the fabric between nodes.
//!
//! Each begins with a header of 24 bytes, little-endian:
//!
//! | bytes | what |
//! |---|---|
//! | 0..4 | length of the body, at most [`MAX_BODY`] |
//! | 4..6 | kind |
//! | 6..8 | 0 |
//! | 8..12 | number of the initiator's QP |
//! | 12..16 | attempt: changes whenever the QP sends again what it sent before |
//! | 16..24 | number of the request within the attempt, from 0 |
//!
//! A response has the header of the last request that it is for. Requests of one attempt are
//! executed in order; after one that failed or has to wait, the others of the attempt are ignored.

use crate::soft::admission::Target;
use crate::soft::atomics::Atomic;
use crate::soft::control::rights;
use crate::soft::failure::Failure;
use crate::wire::cqe::Syndrome;
use crate::wire::masked_atomic::Repr as Masked;
use oxshmem_system::words::{low16, low32, native};

/// Bytes of a header.
pub(in crate::soft) const HEADER: usize = 24;
/// The most payload of one frame. What is longer is cut, so that others get their turn between.
pub(in crate::soft) const PIECE: usize = 64 << 10;
/// The longest body.
pub(in crate::soft) const MAX_BODY: usize = PIECE + 64;
/// The longest text of a failure.
const MAX_TEXT: usize = 1024;

/// Which request a frame is or belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(in crate::soft) struct Id {
    pub qpn: u32,
    pub attempt: u32,
    pub number: u64,
}

/// A header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::soft) struct Header {
    pub len: usize,
    pub kind: u16,
    pub id: Id,
}

/// The way of a request: the target's QP, and the first packet sequence number of the initiator's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::soft) struct Way {
    pub qpn: u32,
    pub psn: u32,
}

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::soft) enum Request<'a> {
    /// Nothing, if the QP accepts it.
    Probe { right: u32 },
    /// Write a piece of a payload, `offset` bytes from the start of `target`; `order` is 0, or
    /// scrambles the order of its bytes (fault `visibility`).
    Write { target: Target, offset: u64, order: u64, payload: &'a [u8] },
    /// Read a piece of `target`.
    Read { target: Target, offset: u64, len: u64 },
    /// Change a word.
    Atomic { rkey: u32, raddr: u64, atomic: Atomic },
}

/// How it went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::soft) enum Response<'a> {
    /// All requests up to this one are done.
    Done,
    /// They are done, and these bytes were read, or are the word as it was.
    Data(&'a [u8]),
    /// All before it are done, and this one failed.
    Refused(Failure),
    /// All before it are done; this one cannot be now.
    Stalled(String),
}

const PROBE: u16 = 1;
const WRITE: u16 = 2;
const READ: u16 = 3;
const ATOMIC: u16 = 4;
const DONE: u16 = 0x81;
const DATA: u16 = 0x82;
const REFUSED: u16 = 0x83;
const STALLED: u16 = 0x84;

impl Header {
    /// Reads a header; `Err` says what is wrong with it.
    pub(in crate::soft) fn decode(bytes: &[u8; HEADER]) -> Result<Self, String> {
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let (len, kind, zero) = (native(u64::from(low32(word(0)))), low16(word(0) >> 32), low16(word(0) >> 48));
        if len > MAX_BODY {
            return Err(format!("a frame of {len} bytes; the longest has {MAX_BODY}"));
        }
        if zero != 0 {
            return Err(format!("reserved bits {zero:#x} in a header; they are 0"));
        }
        let id = Id { qpn: low32(word(8)), attempt: low32(word(8) >> 32), number: word(16) };
        Ok(Self { len, kind, id })
    }
}

/// Appends a frame whose body consists of words and bytes.
fn put(out: &mut Vec<u8>, kind: u16, id: Id, words: &[u64], bytes: &[u8]) {
    let len = words.len() * 8 + bytes.len();
    let first = len as u64 | u64::from(kind) << 32;
    let second = u64::from(id.qpn) | u64::from(id.attempt) << 32;
    for word in [first, second, id.number].iter().chain(words) {
        out.extend_from_slice(&word.to_le_bytes());
    }
    out.extend_from_slice(bytes);
}

fn pair(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

/// What is left of a body.
struct Body<'a>(&'a [u8]);

impl<'a> Body<'a> {
    fn word(&mut self) -> Result<u64, String> {
        let (word, rest) = self.0.split_first_chunk().ok_or_else(|| "a body that ends too early".to_owned())?;
        self.0 = rest;
        Ok(u64::from_le_bytes(*word))
    }

    fn pair(&mut self) -> Result<(u32, u32), String> {
        let word = self.word()?;
        Ok((low32(word), low32(word >> 32)))
    }

    fn end(&self) -> Result<(), String> {
        if self.0.is_empty() { Ok(()) } else { Err(format!("{} bytes too many in a body", self.0.len())) }
    }
}

impl<'a> Request<'a> {
    /// Appends it.
    pub(in crate::soft) fn encode(&self, out: &mut Vec<u8>, id: Id, way: Way) {
        let way = pair(way.qpn, way.psn);
        match self {
            Self::Probe { right } => put(out, PROBE, id, &[way, u64::from(*right)], &[]),
            Self::Write { target, offset, order, payload } => {
                let words = [way, target.rkey.into(), target.raddr, target.len, *offset, *order];
                put(out, WRITE, id, &words, payload);
            }
            Self::Read { target, offset, len } => {
                let words = [way, target.rkey.into(), target.raddr, target.len, *offset, *len];
                put(out, READ, id, &words, &[]);
            }
            Self::Atomic { rkey, raddr, atomic } => {
                let (form, [a, b, c, d]) = form_of(atomic);
                put(out, ATOMIC, id, &[way, pair(*rkey, form), *raddr, a, b, c, d], &[]);
            }
        }
    }

    /// Reads the body of a request. `Err` says what is wrong with it.
    pub(in crate::soft) fn decode(kind: u16, body: &'a [u8]) -> Result<(Way, Self), String> {
        let mut body = Body(body);
        let (qpn, psn) = body.pair()?;
        let way = Way { qpn, psn };
        let ranged = |body: &mut Body<'_>| -> Result<(Target, u64, u64), String> {
            let (rkey, zero) = body.pair()?;
            if zero != 0 {
                return Err(format!("reserved bits {zero:#x} beside a key; they are 0"));
            }
            let target = Target { rkey, raddr: body.word()?, len: body.word()? };
            Ok((target, body.word()?, body.word()?))
        };
        let within = |target: &Target, offset: u64, len: u64| {
            let empty = len == 0 && target.len != 0;
            if empty || len > PIECE as u64 || offset > target.len || len > target.len - offset {
                return Err(format!("a piece of {len} bytes at {offset} of a message of {}", target.len));
            }
            Ok(())
        };
        let request = match kind {
            PROBE => match body.word()? {
                right if right == u64::from(rights::REMOTE_READ) => Self::Probe { right: rights::REMOTE_READ },
                right if right == u64::from(rights::REMOTE_WRITE) => Self::Probe { right: rights::REMOTE_WRITE },
                right => return Err(format!("a probe of right {right:#x}")),
            },
            WRITE => {
                let (target, offset, order) = ranged(&mut body)?;
                let payload = std::mem::take(&mut body.0);
                within(&target, offset, payload.len() as u64)?;
                Self::Write { target, offset, order, payload }
            }
            READ => {
                let (target, offset, len) = ranged(&mut body)?;
                within(&target, offset, len)?;
                Self::Read { target, offset, len }
            }
            ATOMIC => {
                let (rkey, form) = body.pair()?;
                let raddr = body.word()?;
                let operands = [body.word()?, body.word()?, body.word()?, body.word()?];
                let atomic = atomic_of(form, operands).ok_or_else(|| format!("an atomic of form {form}"))?;
                Self::Atomic { rkey, raddr, atomic }
            }
            kind => return Err(format!("unknown request kind {kind}")),
        };
        body.end()?;
        Ok((way, request))
    }
}

impl<'a> Response<'a> {
    /// Appends it.
    pub(in crate::soft) fn encode(&self, out: &mut Vec<u8>, id: Id) {
        // A character that is cut in two is read as one that is not known.
        let cut = |text: &str| text.as_bytes()[..text.len().min(MAX_TEXT)].to_vec();
        match self {
            Self::Done => put(out, DONE, id, &[], &[]),
            Self::Data(bytes) => put(out, DATA, id, &[], bytes),
            Self::Refused(failure) => put(out, REFUSED, id, &[failure.syndrome as u64], &cut(&failure.text)),
            Self::Stalled(reason) => put(out, STALLED, id, &[], &cut(reason)),
        }
    }

    /// Reads the body of a response. `Err` says what is wrong with it.
    pub(in crate::soft) fn decode(kind: u16, body: &'a [u8]) -> Result<Self, String> {
        let mut body = Body(body);
        let text = |bytes: &[u8]| {
            let shown = String::from_utf8_lossy(bytes.get(..MAX_TEXT).unwrap_or(bytes));
            shown.chars().filter(|c| !c.is_control()).collect::<String>()
        };
        match kind {
            DONE => body.end().map(|()| Self::Done),
            DATA => Ok(Self::Data(body.0)),
            REFUSED => {
                let number = body.word()?;
                let syndrome = u8::try_from(number).ok().and_then(Syndrome::from_u8);
                let syndrome = syndrome.ok_or_else(|| format!("a failure with syndrome {number:#x}"))?;
                Ok(Self::Refused(Failure::new(syndrome, text(body.0))))
            }
            STALLED => Ok(Self::Stalled(text(body.0))),
            kind => Err(format!("unknown response kind {kind:#x}")),
        }
    }
}

fn form_of(atomic: &Atomic) -> (u32, [u64; 4]) {
    match *atomic {
        Atomic::FetchAdd { add } => (1, [add, 0, 0, 0]),
        Atomic::CompareSwap { compare, swap } => (2, [compare, swap, 0, 0]),
        Atomic::Masked(Masked::FetchAdd4 { add, boundary }) => (3, [add.into(), boundary.into(), 0, 0]),
        Atomic::Masked(Masked::FetchAdd8 { add, boundary }) => (4, [add, boundary, 0, 0]),
        Atomic::Masked(Masked::CompareSwap4 { swap, compare, swap_mask, compare_mask }) => {
            (5, [swap, compare, swap_mask, compare_mask].map(u64::from))
        }
        Atomic::Masked(Masked::CompareSwap8 { swap, compare, swap_mask, compare_mask }) => {
            (6, [swap, compare, swap_mask, compare_mask])
        }
    }
}

fn atomic_of(form: u32, [a, b, c, d]: [u64; 4]) -> Option<Atomic> {
    Some(match form {
        1 => Atomic::FetchAdd { add: a },
        2 => Atomic::CompareSwap { compare: a, swap: b },
        3 => Atomic::Masked(Masked::FetchAdd4 { add: low32(a), boundary: low32(b) }),
        4 => Atomic::Masked(Masked::FetchAdd8 { add: a, boundary: b }),
        5 => Atomic::Masked(Masked::CompareSwap4 {
            swap: low32(a),
            compare: low32(b),
            swap_mask: low32(c),
            compare_mask: low32(d),
        }),
        6 => Atomic::Masked(Masked::CompareSwap8 { swap: a, compare: b, swap_mask: c, compare_mask: d }),
        _ => return None,
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LIMIT: u64 = PIECE as u64;

    fn header(bytes: &[u8]) -> Header {
        Header::decode(bytes.first_chunk().unwrap()).unwrap()
    }

    proptest! {
        #[test]
        fn ranged_requests_survive(
            (rkey, raddr, offset, order) in any::<(u32, u64, u32, u64)>(),
            (qpn, attempt, number) in any::<(u32, u32, u64)>(),
            payload in proptest::collection::vec(any::<u8>(), 1..3000),
        ) {
            let (id, way) = (Id { qpn, attempt, number }, Way { qpn: rkey, psn: qpn });
            let target = Target { rkey, raddr, len: u64::from(offset) + payload.len() as u64 };
            let len = payload.len() as u64;
            let requests = [
                Request::Write { target, offset: offset.into(), order, payload: &payload },
                Request::Read { target, offset: offset.into(), len },
                Request::Probe { right: rights::REMOTE_READ },
            ];
            for request in requests {
                let mut out = Vec::new();
                request.encode(&mut out, id, way);
                let header = header(&out);
                prop_assert_eq!((header.id, header.len), (id, out.len() - HEADER));
                prop_assert_eq!(Request::decode(header.kind, &out[HEADER..]), Ok((way, request)));
                prop_assert!(Request::decode(header.kind, &out[HEADER..out.len() - 1]).is_err() || payload.len() > 1);
            }
        }

        #[test]
        fn atomics_survive(form in 1u32..=6, operands: [u64; 4], raddr: u64) {
            let atomic = atomic_of(form, operands).unwrap();
            let (id, way) = (Id { qpn: 1, attempt: 2, number: 3 }, Way { qpn: 4, psn: 5 });
            let request = Request::Atomic { rkey: 9, raddr, atomic };
            let mut out = Vec::new();
            request.encode(&mut out, id, way);
            prop_assert_eq!(form_of(&atomic).0, form);
            prop_assert_eq!(Request::decode(ATOMIC, &out[HEADER..]), Ok((way, request)));
        }

        #[test]
        fn responses_survive(data in proptest::collection::vec(any::<u8>(), 0..200), text in "[a-z ]{0,80}") {
            let id = Id { qpn: 1, attempt: 2, number: 3 };
            let failure = Failure::new(Syndrome::RemoteAccess, text.clone());
            let failed = [Response::Refused(failure), Response::Stalled(text)];
            for response in [Response::Done, Response::Data(&data)].into_iter().chain(failed) {
                let mut out = Vec::new();
                response.encode(&mut out, id);
                let header = header(&out);
                prop_assert_eq!(header.id, id);
                prop_assert_eq!(Response::decode(header.kind, &out[HEADER..]), Ok(response));
            }
        }

        #[test]
        fn any_bytes_are_a_frame_or_not(bytes in proptest::collection::vec(any::<u8>(), HEADER..200), kind in 0u16..8) {
            let _ = Header::decode(bytes.first_chunk().unwrap());
            let _ = Request::decode(kind, &bytes);
            let _ = Response::decode(0x80 + kind, &bytes);
        }

        #[test]
        fn pieces_lie_within_their_messages(len in 0..3 * LIMIT, offset in 0..3 * LIMIT, total in 0..3 * LIMIT) {
            let words = [0, 0, 0, total, offset, len];
            let body: Vec<u8> = words.iter().flat_map(|word: &u64| word.to_le_bytes()).collect();
            let fits = (len > 0 || total == 0) && len <= LIMIT && offset + len <= total;
            prop_assert_eq!(Request::decode(READ, &body).is_ok(), fits);
        }
    }

    #[test]
    fn a_header_out_of_bounds_is_refused() {
        let mut bytes = [0; HEADER];
        bytes[..4].copy_from_slice(&(MAX_BODY as u32).to_le_bytes());
        assert!(Header::decode(&bytes).is_ok());
        bytes[..4].copy_from_slice(&(MAX_BODY as u32 + 1).to_le_bytes());
        assert!(Header::decode(&bytes).unwrap_err().contains("the longest has"));
        let mut bytes = [0; HEADER];
        bytes[6] = 1;
        assert!(Header::decode(&bytes).is_err());
    }
}
