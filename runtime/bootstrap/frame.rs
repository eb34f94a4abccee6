//! Wire format of the bootstrap: a fixed header of 28 bytes, then a payload that the op defines.
//!
//! All integers are big-endian. A string is a 32-bit length and that many bytes of UTF-8; so is a
//! byte string, without the UTF-8.
//!
//! | bytes | field | |
//! |---|---|---|
//! | 0..4 | magic | `OXSB` |
//! | 4..6 | version | [`VERSION`], or that of the peer in a refusal of its version |
//! | 6 | op | [`Op`] |
//! | 7 | reserved | 0 |
//! | 8..12 | generation | how many times the job has been initialised, from 1 |
//! | 12..16 | rank | of the sender; in a frame of the hub the rank it is for, [`HUB`] for all |
//! | 16..24 | sequence | number of the collective within the generation, from 1; else 0 |
//! | 24..28 | length | of the payload |
//!
//! The header and the payload of a refusal are the same in every version, so each side can tell the
//! other what is wrong. The first bytes of a connection are no frames: see `gate.rs`.
//!
//! Nothing here panics on any input: [`Decoder`] accepts bytes in pieces of any size and holds no
//! more than it was given.

use std::net::{IpAddr, Ipv6Addr};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use super::failure::{Failure, FailureKind};
use super::job::JobName;
use super::peer::Peer;
use super::text::cut;

/// First four bytes of every frame.
pub const MAGIC: [u8; 4] = *b"OXSB";
/// Version of header and payloads.
pub const VERSION: u16 = 7;
/// The header's length.
pub const HEADER_LEN: usize = 28;
/// In the rank field of a frame of the hub: it is for every rank that the connection serves.
pub const HUB: u32 = u32::MAX;
/// Longest label of a collective, in bytes.
pub const MAX_LABEL: usize = 128;
/// Longest contribution of one rank to an allgather, in bytes.
pub const MAX_CONTRIBUTION: usize = 16 << 20;
/// Longest result of an allgather, in bytes, with 4 bytes for each rank.
pub const MAX_RESULT: usize = 1 << 30;
/// Longest key of a gather among some ranks, in bytes.
pub const MAX_KEY: usize = 64;
/// Longest contribution of one rank to a gather among some ranks, in bytes.
pub const MAX_GROUP_CONTRIBUTION: usize = 64 << 10;
/// Longest payload of a connection that has not said HELLO yet.
pub const MAX_GREETING: usize = 4 << 10;
/// Longest payload that a rank sends.
pub const MAX_FROM_RANK: usize = MAX_CONTRIBUTION + MAX_LABEL + 8;
/// Longest payload that the hub sends: a result and its count, or the table of the PEs.
pub const MAX_FROM_HUB: usize = MAX_RESULT + 4;
/// Longest host name, node name and reason; longer ones are cut.
const MAX_TEXT: usize = 1024;

pub(super) mod field {
    use super::Range;

    pub const MAGIC: Range<usize> = 0..4;
    pub const VERSION: Range<usize> = 4..6;
    pub const OP: usize = 6;
    pub const RESERVED: usize = 7;
    pub const GENERATION: Range<usize> = 8..12;
    pub const RANK: Range<usize> = 12..16;
    pub const SEQUENCE: Range<usize> = 16..24;
    pub const LENGTH: Range<usize> = 24..28;
}

/// Why bytes are not a frame.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Not the magic: something else talks to this port.
    #[error("not the magic of the bootstrap (found {0:02x?})")]
    Magic(Vec<u8>),
    /// Another version of the protocol.
    #[error(
        "version {0} of the bootstrap protocol, this side has version {VERSION}; use one build of OxSHMEM for all PEs"
    )]
    Version(u16),
    /// An op that is not defined.
    #[error("op {0} does not exist")]
    Op(u8),
    /// The reserved byte is set.
    #[error("reserved byte is {0}, not 0")]
    Reserved(u8),
    /// A payload above the limit.
    #[error("{op:?} with a payload of {length} bytes, the limit is {limit}")]
    TooLong {
        /// The op.
        op: Op,
        /// Length found.
        length: usize,
        /// Limit in force.
        limit: usize,
    },
    /// A payload that its op does not allow.
    #[error("{0:?} with a malformed payload")]
    Payload(Op),
}

macro_rules! ops {
    ($($(#[$doc:meta])* $name:ident = $number:literal,)+) => {
        /// What a frame says.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Op { $($(#[$doc])* $name = $number,)+ }

        impl Op {
            fn from_wire(number: u8) -> Option<Self> {
                match number { $($number => Some(Self::$name),)+ _ => None }
            }
        }
    };
}

ops! {
    /// Rank to hub: the sender's identity.
    Hello = 1,
    /// Hub, or the leader of the node, to rank: your HELLO is in order.
    Accepted = 2,
    /// Hub to rank: your HELLO, or your connection, is refused.
    Refused = 3,
    /// Hub to all: every rank is there; their identities.
    Welcome = 4,
    /// Rank to hub: contribution to an allgather.
    Allgather = 5,
    /// Hub to all: its result.
    Gathered = 6,
    /// Rank to hub: arrived at a barrier.
    Barrier = 7,
    /// Hub to all: the barrier is complete.
    Released = 8,
    /// Rank to hub: finalizes. A collective like the others.
    Goodbye = 9,
    /// Hub to all: every rank has finalized; the generation is over.
    Farewell = 10,
    /// Rank to hub: end the job.
    Abort = 11,
    /// Hub to all: the job has failed.
    Failed = 12,
    /// Rank to hub: contribution to a gather among some ranks.
    Group = 13,
    /// Hub to its members: its result.
    Grouped = 14,
    /// Hub to its members: it has failed, and the job goes on.
    Disbanded = 15,
    /// Rank to hub: contribution to an alltoall. Its result is a `Gathered` for each rank.
    Alltoall = 16,
    /// Leader of a node to hub: the process or the connection of this rank of the node is gone.
    Gone = 17,
}

/// What a rank says about itself when it connects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// The job it belongs to.
    pub job: JobName,
    /// How many ranks it believes the job has.
    pub npes: u32,
    /// Deadline that it wants for joining; whole milliseconds on the wire, as the next.
    pub timeout: Duration,
    /// Deadline that it wants for collectives and gathers.
    pub meeting: Duration,
    /// Its process and machine.
    pub peer: Peer,
}

/// How a rank that has been let in is connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Way {
    /// The rank that its frames go through, [`HUB`] if they go straight to the hub.
    pub leader: u32,
    /// This node's address by which that rank has reached the hub, the unspecified one if the rank
    /// itself has.
    pub address: Ipv6Addr,
}

impl Way {
    /// Straight to the hub.
    pub const DIRECT: Self = Self { leader: HUB, address: Ipv6Addr::UNSPECIFIED };

    /// Creates the way through a rank whose address on the way to the hub is this, if it is known.
    pub fn through(leader: u32, address: Option<IpAddr>) -> Self {
        let address = match address {
            Some(IpAddr::V4(v4)) => v4.to_ipv6_mapped(),
            Some(IpAddr::V6(v6)) => v6,
            None => Ipv6Addr::UNSPECIFIED,
        };
        Self { leader, address }
    }
}

/// A rank's part in a gather.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arrival {
    /// Which gather; the same for all members.
    pub key: Vec<u8>,
    /// What it is for, in messages; the same for all members.
    pub label: String,
    /// Members.
    pub size: u32,
    /// This rank's number among them.
    pub index: u32,
    /// Its contribution.
    pub data: Vec<u8>,
}

/// A payload.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "the variants are those of Op")]
pub enum Message {
    Hello(Hello),
    Accepted(Way),
    Refused { reason: String },
    Welcome { peers: Vec<Peer> },
    Allgather { label: String, data: Vec<u8> },
    Gathered { parts: Vec<Vec<u8>> },
    Barrier { label: String },
    Released,
    Goodbye,
    Farewell,
    Abort { status: Option<i32>, reason: String },
    Failed(Failure),
    Group(Arrival),
    Grouped { parts: Vec<(u32, Vec<u8>)> },
    Disbanded(Failure),
    Alltoall { label: String, data: Vec<u8> },
    Gone { why: String },
}

impl Message {
    /// Returns the op that carries this payload.
    pub fn op(&self) -> Op {
        match self {
            Self::Hello(_) => Op::Hello,
            Self::Accepted(_) => Op::Accepted,
            Self::Refused { .. } => Op::Refused,
            Self::Welcome { .. } => Op::Welcome,
            Self::Allgather { .. } => Op::Allgather,
            Self::Gathered { .. } => Op::Gathered,
            Self::Barrier { .. } => Op::Barrier,
            Self::Released => Op::Released,
            Self::Goodbye => Op::Goodbye,
            Self::Farewell => Op::Farewell,
            Self::Abort { .. } => Op::Abort,
            Self::Failed(_) => Op::Failed,
            Self::Group(_) => Op::Group,
            Self::Grouped { .. } => Op::Grouped,
            Self::Disbanded(_) => Op::Disbanded,
            Self::Alltoall { .. } => Op::Alltoall,
            Self::Gone { .. } => Op::Gone,
        }
    }

    fn emit(&self, out: &mut Writer) {
        match self {
            Self::Hello(hello) => {
                out.0.extend_from_slice(&hello.job.0);
                out.u32(hello.npes);
                out.u64(hello.timeout.as_millis().try_into().unwrap_or(u64::MAX));
                out.u64(hello.meeting.as_millis().try_into().unwrap_or(u64::MAX));
                out.peer(&hello.peer);
            }
            Self::Accepted(way) => {
                out.u32(way.leader);
                out.0.extend_from_slice(&way.address.octets());
            }
            Self::Abort { status, reason } => {
                out.status(*status);
                out.text(reason);
            }
            Self::Refused { reason: text } | Self::Gone { why: text } => out.text(text),
            Self::Welcome { peers } => {
                out.u32(len32(peers));
                peers.iter().for_each(|peer| out.peer(peer));
            }
            Self::Allgather { label, data } | Self::Alltoall { label, data } => {
                out.bytes(label.as_bytes());
                out.bytes(data);
            }
            Self::Gathered { parts } => {
                out.u32(len32(parts));
                parts.iter().for_each(|part| out.bytes(part));
            }
            Self::Barrier { label } => out.bytes(label.as_bytes()),
            Self::Failed(failure) | Self::Disbanded(failure) => out.failure(failure),
            Self::Group(arrival) => {
                out.bytes(&arrival.key);
                out.bytes(arrival.label.as_bytes());
                out.u32(arrival.size);
                out.u32(arrival.index);
                out.bytes(&arrival.data);
            }
            Self::Grouped { parts } => {
                out.u32(len32(parts));
                for (rank, part) in parts {
                    out.u32(*rank);
                    out.bytes(part);
                }
            }
            Self::Released | Self::Goodbye | Self::Farewell => {}
        }
    }

    fn parse(op: Op, payload: &[u8]) -> Option<Self> {
        let mut input = Reader(payload);
        let message = match op {
            Op::Hello => Self::Hello(Hello {
                job: JobName(input.take(8)?.try_into().ok()?),
                npes: input.u32()?,
                timeout: Duration::from_millis(input.u64()?),
                meeting: Duration::from_millis(input.u64()?),
                peer: input.peer()?,
            }),
            Op::Accepted => Self::Accepted(Way {
                leader: input.u32()?,
                address: Ipv6Addr::from(<[u8; 16]>::try_from(input.take(16)?).ok()?),
            }),
            Op::Refused => Self::Refused { reason: input.text(MAX_TEXT)? },
            Op::Welcome => Self::Welcome { peers: input.list(Reader::peer)? },
            Op::Allgather => Self::Allgather { label: input.text(MAX_LABEL)?, data: input.bytes()?.to_vec() },
            Op::Gathered => Self::Gathered { parts: input.list(|input| input.bytes().map(<[u8]>::to_vec))? },
            Op::Barrier => Self::Barrier { label: input.text(MAX_LABEL)? },
            Op::Released => Self::Released,
            Op::Goodbye => Self::Goodbye,
            Op::Farewell => Self::Farewell,
            Op::Abort => Self::Abort { status: input.status()?, reason: input.text(MAX_TEXT)? },
            Op::Failed => Self::Failed(input.failure()?),
            Op::Group => Self::Group(Arrival {
                key: input.bytes_up_to(MAX_KEY)?.to_vec(),
                label: input.text(MAX_LABEL)?,
                size: input.u32()?,
                index: input.u32()?,
                data: input.bytes_up_to(MAX_GROUP_CONTRIBUTION)?.to_vec(),
            }),
            Op::Grouped => Self::Grouped { parts: input.list(|input| Some((input.u32()?, input.bytes()?.to_vec())))? },
            Op::Disbanded => Self::Disbanded(input.failure()?),
            Op::Alltoall => Self::Alltoall { label: input.text(MAX_LABEL)?, data: input.bytes()?.to_vec() },
            Op::Gone => Self::Gone { why: input.text(MAX_TEXT)? },
        };
        input.0.is_empty().then_some(message)
    }
}

/// Returns the frame that brings a rank its column of an alltoall, without a copy of each part.
pub fn gathered<'a>(
    generation: u32,
    rank: u32,
    sequence: u64,
    parts: impl ExactSizeIterator<Item = &'a [u8]> + Clone,
) -> Arc<[u8]> {
    let length: usize = parts.clone().map(|part| part.len() + 4).sum();
    let mut out = Writer(Vec::with_capacity(HEADER_LEN + 4 + length));
    out.0.resize(HEADER_LEN, 0);
    out.u32(u32::try_from(parts.len()).unwrap_or(u32::MAX));
    parts.for_each(|part| out.bytes(part));
    write_header(&mut out.0, VERSION, Op::Gathered, (generation, rank, sequence));
    out.0.into()
}

/// Fills the header of a frame whose payload is there.
fn write_header(bytes: &mut [u8], version: u16, op: Op, (generation, rank, sequence): (u32, u32, u64)) {
    let length = u32::try_from(bytes.len() - HEADER_LEN).unwrap_or(u32::MAX);
    bytes[field::MAGIC].copy_from_slice(&MAGIC);
    bytes[field::VERSION].copy_from_slice(&version.to_be_bytes());
    bytes[field::OP] = op as u8;
    bytes[field::GENERATION].copy_from_slice(&generation.to_be_bytes());
    bytes[field::RANK].copy_from_slice(&rank.to_be_bytes());
    bytes[field::SEQUENCE].copy_from_slice(&sequence.to_be_bytes());
    bytes[field::LENGTH].copy_from_slice(&length.to_be_bytes());
}

/// One frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// Initialisation that it belongs to; 0 in a HELLO means whichever comes next.
    pub generation: u32,
    /// Sender, or recipient of a frame of the hub.
    pub rank: u32,
    /// Number of the collective, else 0.
    pub sequence: u64,
    /// What it says.
    pub message: Message,
}

impl Frame {
    /// Returns the frame's bytes. Texts longer than 1024 bytes are cut.
    pub fn emit(&self) -> Vec<u8> {
        self.emit_in(VERSION)
    }

    /// Returns the frame for a peer that speaks another version of the protocol, which understands
    /// no more than a refusal.
    pub fn emit_in(&self, version: u16) -> Vec<u8> {
        let mut out = Writer(vec![0; HEADER_LEN]);
        self.message.emit(&mut out);
        let mut bytes = out.0;
        write_header(&mut bytes, version, self.message.op(), (self.generation, self.rank, self.sequence));
        bytes
    }
}

/// A frame whose payload has not been looked at.
#[derive(Debug, Clone)]
pub struct Packet {
    /// The generation, like that of a [`Frame`].
    pub generation: u32,
    /// The rank, like that of a [`Frame`].
    pub rank: u32,
    /// What it says.
    pub op: Op,
    /// All of its bytes.
    pub bytes: Arc<[u8]>,
}

impl Packet {
    /// Returns what it says.
    ///
    /// # Errors
    /// The payload is not one of its op.
    pub fn message(&self) -> Result<Message, FrameError> {
        let payload = self.bytes.get(HEADER_LEN..).unwrap_or_default();
        Message::parse(self.op, payload).ok_or(FrameError::Payload(self.op))
    }
}

/// What a frame's first bytes say.
struct Header {
    op: Op,
    generation: u32,
    rank: u32,
    sequence: u64,
    /// Bytes of the frame, the header's included.
    length: usize,
}

/// Capacity that a decoder keeps when it has no bytes: a large result is not kept allocated for the
/// rest of the job.
const KEPT: usize = 4 << 10;

/// Cuts a byte stream into frames.
#[derive(Debug)]
pub struct Decoder {
    buffer: Vec<u8>,
    /// Bytes at the front that have been taken.
    taken: usize,
    limit: usize,
}

impl Decoder {
    /// Creates a decoder that refuses payloads above `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self { buffer: Vec::new(), taken: 0, limit }
    }

    /// Changes the limit for the frames that follow.
    pub fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    /// Adds bytes from the stream.
    pub fn push(&mut self, bytes: &[u8]) {
        // Moved only when as much is free, so each byte is moved once at most on average.
        if self.taken > self.buffer.len() / 2 {
            self.buffer.drain(..self.taken);
            self.taken = 0;
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// Returns whether part of a frame is waiting for the rest.
    pub fn is_partial(&self) -> bool {
        self.taken < self.buffer.len()
    }

    /// Returns the next frame, `None` until all of it is there.
    ///
    /// # Errors
    /// The stream is not one of frames; what follows on it cannot be read.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, FrameError> {
        let Some((header, bytes)) = self.front()? else { return Ok(None) };
        let Header { op, generation, rank, sequence, length } = header;
        let message = Message::parse(op, &bytes[HEADER_LEN..]).ok_or(FrameError::Payload(op))?;
        self.take(length);
        Ok(Some(Frame { generation, rank, sequence, message }))
    }

    /// Returns the next frame as it is, `None` until all of it is there. For those that pass it on.
    ///
    /// # Errors
    /// The stream is not one of frames; what follows on it cannot be read.
    pub fn next_packet(&mut self) -> Result<Option<Packet>, FrameError> {
        let Some((header, bytes)) = self.front()? else { return Ok(None) };
        let packet =
            Packet { generation: header.generation, rank: header.rank, op: header.op, bytes: Arc::from(bytes) };
        self.take(header.length);
        Ok(Some(packet))
    }

    /// Returns the bytes that have not been taken.
    pub fn into_rest(mut self) -> Vec<u8> {
        self.buffer.split_off(self.taken)
    }

    /// Returns the frame at the front, if all of it is there.
    fn front(&self) -> Result<Option<(Header, &[u8])>, FrameError> {
        let bytes = &self.buffer[self.taken..];
        let seen = bytes.len().min(MAGIC.len());
        if bytes[..seen] != MAGIC[..seen] {
            return Err(FrameError::Magic(bytes[..seen].to_vec()));
        }
        let Some(header) = bytes.first_chunk::<HEADER_LEN>() else { return Ok(None) };
        let version = u16::from_be_bytes(array(&header[field::VERSION]));
        if version != VERSION {
            return Err(FrameError::Version(version));
        }
        let op = Op::from_wire(header[field::OP]).ok_or(FrameError::Op(header[field::OP]))?;
        if header[field::RESERVED] != 0 {
            return Err(FrameError::Reserved(header[field::RESERVED]));
        }
        let length = u32::from_be_bytes(array(&header[field::LENGTH])) as usize;
        if length > self.limit {
            return Err(FrameError::TooLong { op, length, limit: self.limit });
        }
        let length = HEADER_LEN + length;
        let Some(frame) = bytes.get(..length) else { return Ok(None) };
        let header = Header {
            op,
            generation: u32::from_be_bytes(array(&header[field::GENERATION])),
            rank: u32::from_be_bytes(array(&header[field::RANK])),
            sequence: u64::from_be_bytes(array(&header[field::SEQUENCE])),
            length,
        };
        Ok(Some((header, frame)))
    }

    fn take(&mut self, length: usize) {
        self.taken += length;
        if self.taken == self.buffer.len() {
            self.taken = 0;
            self.buffer.clear();
            self.buffer.shrink_to(KEPT);
        }
    }
}

fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(bytes);
    array
}

fn len32<T>(items: &[T]) -> u32 {
    u32::try_from(items.len()).unwrap_or(u32::MAX)
}

struct Writer(Vec<u8>);

impl Writer {
    fn u32(&mut self, value: u32) {
        self.0.extend_from_slice(&value.to_be_bytes());
    }
    fn u64(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_be_bytes());
    }
    fn bytes(&mut self, bytes: &[u8]) {
        self.u32(len32(bytes));
        self.0.extend_from_slice(bytes);
    }
    fn text(&mut self, text: &str) {
        self.bytes(cut(text, MAX_TEXT).as_bytes());
    }
    fn failure(&mut self, failure: &Failure) {
        self.0.push(failure.kind as u8);
        self.u32(len32(&failure.ranks));
        failure.ranks.iter().for_each(|rank| self.u32(*rank));
        self.text(&failure.message);
        self.status(failure.status);
    }
    fn status(&mut self, status: Option<i32>) {
        self.u32(status.is_some().into());
        self.u32(status.unwrap_or(0).cast_unsigned());
    }
    fn peer(&mut self, peer: &Peer) {
        self.u32(peer.pid);
        self.text(&peer.host);
        self.text(&peer.node);
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }
    fn u32(&mut self) -> Option<u32> {
        self.take(4).map(|bytes| u32::from_be_bytes(array(bytes)))
    }
    fn u64(&mut self) -> Option<u64> {
        self.take(8).map(|bytes| u64::from_be_bytes(array(bytes)))
    }
    fn bytes(&mut self) -> Option<&'a [u8]> {
        let length = self.u32()? as usize;
        self.take(length)
    }
    fn bytes_up_to(&mut self, limit: usize) -> Option<&'a [u8]> {
        self.bytes().filter(|bytes| bytes.len() <= limit)
    }
    fn text(&mut self, limit: usize) -> Option<String> {
        std::str::from_utf8(self.bytes_up_to(limit)?).ok().map(str::to_owned)
    }
    fn failure(&mut self) -> Option<Failure> {
        Some(Failure {
            kind: FailureKind::from_wire(self.take(1)?[0])?,
            ranks: self.list(Self::u32)?,
            message: self.text(MAX_TEXT)?,
            status: self.status()?,
        })
    }
    fn status(&mut self) -> Option<Option<i32>> {
        match (self.u32()?, self.u32()?.cast_signed()) {
            (0, 0) => Some(None),
            (1, status) => Some(Some(status)),
            _ => None,
        }
    }
    fn peer(&mut self) -> Option<Peer> {
        Some(Peer { pid: self.u32()?, host: self.text(MAX_TEXT)?, node: self.text(MAX_TEXT)? })
    }
    /// Reads a count and that many items. Every item takes at least four bytes, so a count that the
    /// bytes cannot hold is refused before anything is allocated for it.
    fn list<T>(&mut self, item: impl Fn(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let count = self.u32()? as usize;
        if count > self.0.len() / 4 {
            return None;
        }
        (0..count).map(|_| item(self)).collect()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn peer() -> impl Strategy<Value = Peer> {
        (any::<u32>(), "[a-z.]{0,40}", "[a-z0-9-]{0,60}").prop_map(|(pid, host, node)| Peer { pid, host, node })
    }

    fn failure() -> impl Strategy<Value = Failure> {
        (0u8..5, vec(any::<u32>(), 0..5), "\\PC{0,60}", any::<Option<i32>>()).prop_map(
            |(kind, ranks, message, status)| Failure {
                status,
                ..Failure::new(FailureKind::from_wire(kind).unwrap(), ranks, message)
            },
        )
    }

    fn message() -> impl Strategy<Value = Message> {
        prop_oneof![
            (any::<[u8; 8]>(), any::<u32>(), any::<[u32; 2]>(), peer()).prop_map(|(job, npes, millis, peer)| {
                let [timeout, meeting] = millis.map(|millis| Duration::from_millis(u64::from(millis)));
                Message::Hello(Hello { job: JobName(job), npes, timeout, meeting, peer })
            }),
            (any::<u32>(), any::<u128>())
                .prop_map(|(leader, address)| Message::Accepted(Way { leader, address: address.into() })),
            "\\PC{0,60}".prop_map(|why| Message::Gone { why }),
            "\\PC{0,60}".prop_map(|reason| Message::Refused { reason }),
            vec(peer(), 0..5).prop_map(|peers| Message::Welcome { peers }),
            ("[a-z ]{0,40}", vec(any::<u8>(), 0..200)).prop_map(|(label, data)| Message::Allgather { label, data }),
            ("[a-z ]{0,40}", vec(any::<u8>(), 0..200)).prop_map(|(label, data)| Message::Alltoall { label, data }),
            vec(vec(any::<u8>(), 0..20), 0..9).prop_map(|parts| Message::Gathered { parts }),
            "[a-z ]{0,40}".prop_map(|label| Message::Barrier { label }),
            Just(Message::Released),
            Just(Message::Goodbye),
            Just(Message::Farewell),
            (any::<Option<i32>>(), "\\PC{0,60}").prop_map(|(status, reason)| Message::Abort { status, reason }),
            failure().prop_map(Message::Failed),
            (vec(any::<u8>(), 0..64), "[a-z ]{0,40}", any::<u32>(), any::<u32>(), vec(any::<u8>(), 0..99))
                .prop_map(|(key, label, size, index, data)| Message::Group(Arrival { key, label, size, index, data })),
            vec((any::<u32>(), vec(any::<u8>(), 0..20)), 0..9).prop_map(|parts| Message::Grouped { parts }),
            failure().prop_map(Message::Disbanded),
        ]
    }

    fn frame() -> impl Strategy<Value = Frame> {
        (any::<u32>(), any::<u32>(), any::<u64>(), message()).prop_map(|(generation, rank, sequence, message)| Frame {
            generation,
            rank,
            sequence,
            message,
        })
    }

    proptest! {
        #[test]
        fn frames_survive_any_cutting_of_the_stream(frames in vec(frame(), 1..6), piece in 1usize..50) {
            let stream: Vec<u8> = frames.iter().flat_map(Frame::emit).collect();
            let mut decoder = Decoder::new(1 << 16);
            let mut got = Vec::new();
            for bytes in stream.chunks(piece) {
                decoder.push(bytes);
                while let Some(frame) = decoder.next_frame().unwrap() {
                    got.push(frame);
                }
            }
            prop_assert!(!decoder.is_partial());
            prop_assert_eq!(got, frames);
        }

        #[test]
        fn what_is_accepted_is_what_would_be_emitted(frame in frame(), flips in vec((any::<prop::sample::Index>(), any::<u8>()), 0..4)) {
            let mut bytes = frame.emit();
            for (index, value) in flips {
                let at = index.index(bytes.len());
                bytes[at] = value;
            }
            let mut decoder = Decoder::new(1 << 16);
            decoder.push(&bytes);
            if let Ok(Some(parsed)) = decoder.next_frame() {
                let emitted = parsed.emit();
                prop_assert_eq!(&emitted, &bytes[..emitted.len()]);
            }
        }

        #[test]
        fn garbage_is_answered(bytes in vec(any::<u8>(), 0..200)) {
            let mut decoder = Decoder::new(64);
            decoder.push(&MAGIC);
            decoder.push(&VERSION.to_be_bytes());
            decoder.push(&bytes);
            while let Ok(Some(_)) = decoder.next_frame() {}
        }
    }

    fn error_of(change: impl Fn(&mut Vec<u8>)) -> FrameError {
        let frame = Frame { generation: 1, rank: 0, sequence: 1, message: Message::Barrier { label: "x".into() } };
        let mut bytes = frame.emit();
        change(&mut bytes);
        let mut decoder = Decoder::new(100);
        decoder.push(&bytes);
        decoder.next_frame().unwrap_err()
    }

    #[test]
    fn each_field_is_checked() {
        assert_eq!(error_of(|b| b[0] = b'G'), FrameError::Magic(b"GXSB".to_vec()));
        assert_eq!(error_of(|b| b.splice(.., *b"GE").for_each(drop)), FrameError::Magic(b"GE".to_vec()));
        assert_eq!(error_of(|b| b[5] = 9), FrameError::Version(9));
        assert_eq!(error_of(|b| b[6] = 0), FrameError::Op(0));
        assert_eq!(error_of(|b| b[7] = 1), FrameError::Reserved(1));
        let too_long = FrameError::TooLong { op: Op::Barrier, length: 101, limit: 100 };
        assert_eq!(error_of(|b| b[27] = 101), too_long);
        assert_eq!(error_of(|b| b[31] = 9), FrameError::Payload(Op::Barrier));
        assert_eq!(error_of(|b| b[32] = 0xff), FrameError::Payload(Op::Barrier));
        let surplus = error_of(|b| {
            b.push(0);
            b[27] += 1;
        });
        assert_eq!(surplus, FrameError::Payload(Op::Barrier));
    }

    #[test]
    fn parts_of_a_gather_have_limits() {
        let parse = |key: usize, data: usize| {
            let arrival = Arrival { key: vec![0; key], label: String::new(), size: 1, index: 0, data: vec![0; data] };
            let mut decoder = Decoder::new(MAX_FROM_RANK);
            let message = Message::Group(arrival);
            decoder.push(&Frame { generation: 1, rank: 0, sequence: 0, message }.emit());
            decoder.next_frame()
        };
        assert!(parse(MAX_KEY, MAX_GROUP_CONTRIBUTION).is_ok());
        for (key, data) in [(MAX_KEY + 1, 0), (0, MAX_GROUP_CONTRIBUTION + 1)] {
            assert_eq!(parse(key, data), Err(FrameError::Payload(Op::Group)));
        }
    }

    #[test]
    fn long_texts_are_cut_at_a_character() {
        let message = Message::Abort { status: None, reason: "é".repeat(600) + "!" };
        let frame = Frame { generation: 1, rank: 0, sequence: 0, message };
        let mut decoder = Decoder::new(2000);
        decoder.push(&frame.emit());
        let Message::Abort { reason, .. } = decoder.next_frame().unwrap().unwrap().message else { panic!() };
        assert_eq!(reason, "é".repeat(512));
    }
}
