//! The side of many PEs in one thread, for measurements and tests of a hub alone: PEs of their own
//! would take the machine for themselves.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::error::BootstrapError;
use super::frame::{Decoder, Frame, HEADER_LEN, HUB, Hello, Message, Op, Packet};
use super::gate::Knock;
use super::job::JobId;
use super::peer::Peer;
use super::sockets::raise_file_limit;
use super::stream::{self, Channel};
use super::wire::{Wire, WireError, write_all};

/// Bytes before the parts in a frame with a result: the header, and how many parts there are.
const PARTS: usize = HEADER_LEN + 4;

/// Consecutive ranks of a job. As many as `per_connection` says share a connection, as the PEs of a
/// node do.
#[derive(Debug)]
#[doc(hidden)]
pub struct Crowd {
    ranks: Range<u32>,
    npes: u32,
    per_connection: u32,
    wires: Vec<Wire>,
    generation: u32,
    sequence: u64,
    timeout: Duration,
}

impl Crowd {
    /// Says HELLO in the name of all ranks, and waits until all ranks of the job have.
    ///
    /// # Errors
    /// The hub cannot be reached or refuses a rank, or the deadline passes.
    pub fn join(
        hub: SocketAddr,
        job: JobId,
        (ranks, npes): (Range<u32>, u32),
        per_connection: u32,
        timeout: Duration,
    ) -> Result<Self, BootstrapError> {
        // Fails where the limit is as high as it may be; then a connection fails.
        raise_file_limit();
        let peer = Peer::this();
        let until = Instant::now() + timeout;
        let mut crowd = Self {
            ranks,
            npes,
            per_connection: per_connection.max(1),
            wires: Vec::new(),
            generation: 0,
            sequence: 0,
            timeout,
        };
        let failed = |what: &'static str| move |error: WireError| problem(what, &error.to_string());
        for node in crowd.nodes() {
            let stream = TcpStream::connect(hub).map_err(BootstrapError::system("connecting to the hub"))?;
            stream::tune(&stream).map_err(BootstrapError::system("connecting to the hub"))?;
            let mut wire = Wire::new(Channel::Tcp(stream));
            wire.knock(&Knock::new(job)?, until).map_err(failed("proving that the crowd belongs to the job"))?;
            for rank in node {
                let hello = Hello { job: job.name(), npes, timeout, meeting: timeout, peer: peer.clone() };
                let frame = Frame { generation: 0, rank, sequence: 0, message: Message::Hello(hello) };
                write_all(&wire.stream, &frame.emit(), until).map_err(BootstrapError::system("saying HELLO"))?;
                // The limit on what is sent before the first HELLO is accepted is low.
                let reply = packet(&mut wire, until).map_err(failed("waiting for ACCEPTED"))?;
                expect(&reply, Op::Accepted, rank)?;
                crowd.generation = reply.generation;
            }
            crowd.wires.push(wire);
        }
        for wire in &mut crowd.wires {
            let welcome = packet(wire, until).map_err(failed("waiting for WELCOME"))?;
            expect(&welcome, Op::Welcome, HUB)?;
        }
        Ok(crowd)
    }

    /// Gathers bytes that tell their rank, and checks all of the result.
    ///
    /// # Errors
    /// The job has failed, the deadline passes, or the result is wrong.
    pub fn allgather(&mut self, bytes: usize) -> Result<(), BootstrapError> {
        self.say(|rank| {
            let mut data = Vec::with_capacity(bytes);
            stamp(&mut data, rank, HUB, bytes);
            Message::Allgather { label: "crowd".into(), data }
        })?;
        let npes = self.npes;
        self.hear(false, |result, to| result.op == Op::Gathered && are_parts(&result.bytes, npes, bytes, to))
    }

    /// Exchanges bytes that tell both ranks, and checks all of the result.
    ///
    /// # Errors
    /// Fails like [`Crowd::allgather`].
    pub fn alltoall(&mut self, bytes: usize) -> Result<(), BootstrapError> {
        let npes = self.npes;
        self.say(|rank| {
            let mut data = Vec::with_capacity(npes as usize * bytes);
            (0..npes).for_each(|to| stamp(&mut data, rank, to, bytes));
            Message::Alltoall { label: "crowd".into(), data }
        })?;
        self.hear(true, |result, to| result.op == Op::Gathered && are_parts(&result.bytes, npes, bytes, to))
    }

    /// Meets at a barrier.
    ///
    /// # Errors
    /// Fails like [`Crowd::allgather`].
    pub fn barrier(&mut self) -> Result<(), BootstrapError> {
        self.say(|_| Message::Barrier { label: "crowd".into() })?;
        self.hear(false, |result, _| result.op == Op::Released)
    }

    /// Ends the job in the name of the first rank if `first`, and waits until all have heard of the
    /// end.
    ///
    /// # Errors
    /// The deadline passes, or something else is heard.
    pub fn abort(&mut self, first: bool) -> Result<(), BootstrapError> {
        self.sequence = 0;
        if first && let Some(wire) = self.wires.first() {
            let message = Message::Abort { status: None, reason: "enough".into() };
            let frame = Frame { generation: self.generation, rank: self.ranks.start, sequence: 0, message };
            write_all(&wire.stream, &frame.emit(), Instant::now() + self.timeout)
                .map_err(BootstrapError::system("saying ABORT"))?;
        }
        self.hear(false, |result, _| result.op == Op::Failed)
    }

    /// Returns the ranks of each connection.
    fn nodes(&self) -> Vec<Range<u32>> {
        let Range { start, end } = self.ranks;
        let step = self.per_connection;
        (start..end).step_by(step as usize).map(|first| first..end.min(first.saturating_add(step))).collect()
    }

    fn say(&mut self, message: impl Fn(u32) -> Message) -> Result<(), BootstrapError> {
        self.sequence += 1;
        let until = Instant::now() + self.timeout;
        for (wire, ranks) in self.wires.iter().zip(self.nodes()) {
            for rank in ranks {
                let (generation, sequence) = (self.generation, self.sequence);
                let frame = Frame { generation, rank, sequence, message: message(rank) };
                write_all(&wire.stream, &frame.emit(), until).map_err(BootstrapError::system("entering"))?;
            }
        }
        Ok(())
    }

    /// Reads one result for each connection, or for each rank.
    fn hear(&mut self, each: bool, is_right: impl Fn(&Packet, u32) -> bool) -> Result<(), BootstrapError> {
        let until = Instant::now() + self.timeout;
        let nodes = self.nodes();
        for (wire, ranks) in self.wires.iter_mut().zip(nodes) {
            for _ in 0..if each { ranks.len() } else { 1 } {
                let result =
                    packet(wire, until).map_err(|error| problem("waiting for a result", &error.to_string()))?;
                let rank = result.rank;
                let is_for_this = if each { ranks.contains(&rank) } else { rank == HUB };
                if !is_for_this || !is_right(&result, rank) {
                    return Err(problem("checking a result", &told(&result)));
                }
            }
        }
        Ok(())
    }
}

/// Returns the next frame as it is.
fn packet(wire: &mut Wire, until: Instant) -> Result<Packet, WireError> {
    wire.next(Some(until), Decoder::next_packet)
}

fn expect(reply: &Packet, op: Op, rank: u32) -> Result<(), BootstrapError> {
    if (reply.op, reply.rank) == (op, rank) { Ok(()) } else { Err(problem("joining", &told(reply))) }
}

fn told(packet: &Packet) -> String {
    match packet.message() {
        Ok(Message::Refused { reason }) => reason,
        Ok(Message::Failed(failure)) => failure.message,
        _ => format!("the hub sent {:?} to {}", packet.op, packet.rank),
    }
}

fn problem(what: &'static str, why: &str) -> BootstrapError {
    BootstrapError::system(what)(io::Error::other(why.to_owned()))
}

/// Returns eight bytes that tell the rank that they are from, and the one that they are for.
fn word(from: u32, to: u32) -> [u8; 8] {
    (u64::from(from) << 32 | u64::from(to)).to_be_bytes()
}

/// Adds `bytes` bytes of such words.
fn stamp(into: &mut Vec<u8>, from: u32, to: u32, bytes: usize) {
    let word = word(from, to);
    let end = into.len() + bytes;
    while into.len() < end {
        into.extend_from_slice(&word[..word.len().min(end - into.len())]);
    }
}

/// Returns whether a frame has a part from each rank to `to`, all of `bytes` bytes.
fn are_parts(frame: &Arc<[u8]>, npes: u32, bytes: usize, to: u32) -> bool {
    let Some(parts) = frame.get(PARTS..) else { return false };
    let parts = parts.chunks(4 + bytes);
    let is_from = |(from, part): (u32, &[u8])| {
        let word = word(from, to);
        part.len() == 4 + bytes && part[4..].chunks(word.len()).all(|piece| *piece == word[..piece.len()])
    };
    parts.len() == npes as usize && (0..npes).zip(parts).all(is_from)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::{Hub, HubOptions};
    use super::*;

    /// Four crowds that are a job: each rank with a connection of its own, and nodes of five.
    #[test]
    fn a_hub_serves_crowds_that_check_what_they_get() {
        let (npes, patience) = (64, Duration::from_secs(60));
        for per_connection in [1, 5] {
            let hub = Hub::start(HubOptions::local(npes).unwrap()).unwrap();
            std::thread::scope(|scope| {
                for part in 0..4 {
                    let hub = &hub;
                    scope.spawn(move || {
                        let ranks = part * 16..(part + 1) * 16;
                        let mut crowd =
                            Crowd::join(hub.address(), hub.job_id(), (ranks, npes), per_connection, patience).unwrap();
                        crowd.allgather(64).unwrap();
                        crowd.alltoall(64).unwrap();
                        crowd.barrier().unwrap();
                        crowd.abort(part == 2).unwrap();
                    });
                }
            });
            assert_eq!(hub.failure().unwrap().message, "PE 32 aborted the job: enough");
            let (received, sent) = hub.traffic();
            let all = u64::from(npes * npes * 64);
            // An alltoall brings the hub all of its bytes, and it sends all of them on.
            assert!(received > all && sent > all, "{received} {sent}");
            let once = u64::from(npes * 64);
            let connections = if per_connection == 1 { npes } else { 16 };
            assert!(received < 2 * all && sent < 2 * all + u64::from(connections) * 4 * once, "{received} {sent}");
        }
    }

    #[test]
    fn a_wrong_result_is_seen() {
        let frame = |parts: &[(u32, u32, usize)]| {
            let mut bytes = vec![0; PARTS];
            for (from, to, length) in parts {
                bytes.extend([0, 0, 0, 12]);
                stamp(&mut bytes, *from, *to, *length);
            }
            Arc::from(bytes)
        };
        let is_right = |frame: Arc<[u8]>| are_parts(&frame, 2, 12, 1);
        assert!(is_right(frame(&[(0, 1, 12), (1, 1, 12)])));
        for wrong in
            [&[(0, 1, 12)][..], &[(0, 1, 12), (1, 0, 12)], &[(1, 1, 12), (0, 1, 12)], &[(0, 1, 12), (1, 1, 11)]]
        {
            assert!(!is_right(frame(wrong)), "{wrong:?}");
        }
        assert!(!is_right(Arc::from([0; 3])));
    }
}
