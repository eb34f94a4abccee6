//! Entry point for fuzzing: arbitrary bytes at the frame parser and at the hub's decisions, without
//! sockets or clocks.

use std::collections::BTreeMap;
use std::time::Duration;

use super::frame::{Arrival, Decoder, Frame, Hello, MAX_FROM_RANK, MAX_GREETING, Message, Op, VERSION, field};
use super::gate::{Gate, Step, request};
use super::session::{Action, Connection, Session};
use super::{JobId, Peer};

const JOB: JobId = JobId([0x5a; 16]);
/// What strangers may know of the job.
const PUBLIC: JobId = JobId([0xa5; 16]);
/// What the hub and the PE at a gate draw.
const NONCE: [u8; 32] = [0x33; 32];

/// Plays `data` as a history of one hub: connections that open, break, send valid frames and
/// garbage, processes that end, time that passes.
///
/// # Panics
/// When the hub does what it never may: it acts on a connection that is gone, sends what is not a
/// frame, or a deadline that has passed stays after a tick.
pub fn frames(data: &[u8]) {
    play(data);
}

/// Returns the hub at the end of the history.
fn play(data: &[u8]) -> Hub {
    let mut input = data.iter().copied();
    let fixed = input.next().unwrap_or(0);
    let mut hub = Hub {
        session: Session::new(JOB.name(), (fixed % 2 == 0).then_some(u32::from(fixed / 2 % 8) + 1)),
        now: Duration::ZERO,
        decoders: BTreeMap::new(),
        opened: 0,
        last: None,
    };
    while let Some(command) = input.next() {
        let argument = input.next().unwrap_or(0);
        let connection = Connection::from(argument >> 4);
        let rank = u32::from(argument & 7);
        match command % 8 {
            0 => hub.open(),
            1 => hub.close(connection),
            2 => {
                let bytes: Vec<u8> = input.by_ref().take(usize::from(command >> 3)).collect();
                hub.bytes(connection, &bytes);
            }
            3 => {
                let peer = Peer { pid: rank, host: "host".into(), node: "node".into() };
                let timeout = Duration::from_secs(u64::from(command >> 5));
                let npes = u32::from(command >> 3) % 8;
                let message = Message::Hello(Hello { job: JOB.name(), npes, timeout, meeting: timeout, peer });
                hub.frame(connection, rank, 0, message);
            }
            4 => {
                let message = match command >> 6 {
                    key if argument & 8 != 0 => {
                        // Eight keys, sizes 0 to 7 and numbers 0 to 31.
                        let numbers = input.next().unwrap_or(0);
                        let (size, index) = (u32::from(numbers & 7), u32::from(numbers >> 3));
                        let label = if command >> 3 & 3 == 0 { "d" } else { "e" }.to_owned();
                        let key = vec![key | command >> 3 & 4];
                        Message::Group(Arrival { key, label, size, index, data: vec![command; usize::from(argument)] })
                    }
                    0 if argument & 4 != 0 => {
                        Message::Alltoall { label: "f".into(), data: vec![command; usize::from(argument)] }
                    }
                    0 => Message::Allgather { label: "a".into(), data: vec![command; usize::from(argument)] },
                    1 => Message::Barrier { label: "b".into() },
                    2 => Message::Goodbye,
                    _ => Message::Abort { status: (argument & 1 != 0).then_some(3), reason: "c".into() },
                };
                hub.frame(connection, rank, u64::from(command >> 3 & 7), message);
            }
            5 => {
                hub.session.exited(rank, "exited");
                hub.settle();
            }
            6 => {
                hub.now += Duration::from_millis(u64::from(argument) * 100);
                hub.session.tick(hub.now);
                assert!(hub.session.deadline().is_none_or(|deadline| deadline > hub.now));
                hub.settle();
            }
            7 if argument & 1 == 1 => {
                // Bytes that no PE sent, in pieces, at a gate.
                let mut gate = Gate::new(JOB, NONCE).known_as(Some(PUBLIC));
                let bytes: Vec<u8> = input.by_ref().take(usize::from(command)).collect();
                for piece in bytes.chunks(usize::from(argument >> 1) + 1) {
                    match gate.push(piece) {
                        Ok(Step::More) => {}
                        Ok(Step::Send(nonce)) => assert_eq!(nonce, NONCE, "the gate tells more than its nonce"),
                        Ok(Step::Passed(..)) => panic!("a stranger passes"),
                        Ok(Step::Asked(rank, nonce)) => {
                            // The magic and the version come first, and the version may be another.
                            let own = request(&nonce, PUBLIC.name(), rank);
                            assert!(bytes[6..].starts_with(&own[6..]), "another job's request is taken");
                        }
                        Err(_) => break,
                    }
                }
            }
            _ => {
                let mut decoder = Decoder::new(usize::from(argument));
                let bytes: Vec<u8> = input.by_ref().take(usize::from(command)).collect();
                decoder.push(&bytes);
                while let Ok(Some(frame)) = decoder.next_frame() {
                    assert!(bytes.windows(frame.emit().len()).any(|window| window == frame.emit()));
                }
            }
        }
    }
    hub
}

struct Hub {
    session: Session,
    now: Duration,
    decoders: BTreeMap<Connection, Decoder>,
    opened: Connection,
    /// What the hub said last.
    last: Option<Op>,
}

impl Hub {
    fn open(&mut self) {
        self.session.opened(self.now, self.opened);
        self.decoders.insert(self.opened, Decoder::new(MAX_GREETING));
        self.opened += 1;
        self.settle();
    }

    fn close(&mut self, connection: Connection) {
        if self.decoders.remove(&connection).is_some() {
            self.session.broken(connection, "closed");
            self.settle();
        }
    }

    fn frame(&mut self, connection: Connection, rank: u32, sequence: u64, message: Message) {
        // Generation 1 most of the time: 0 only in a HELLO, where it means any.
        let generation = u32::from(!matches!(message, Message::Hello(_)));
        let bytes = Frame { generation, rank, sequence, message }.emit();
        self.bytes(connection, &bytes);
    }

    fn bytes(&mut self, connection: Connection, bytes: &[u8]) {
        let Some(decoder) = self.decoders.get_mut(&connection) else { return };
        decoder.push(bytes);
        while let Some(decoder) = self.decoders.get_mut(&connection) {
            match decoder.next_frame() {
                Ok(Some(frame)) => self.session.frame(self.now, connection, frame),
                Ok(None) => break,
                Err(error) => {
                    self.session.garbage(connection, &error);
                    self.settle();
                    self.close(connection);
                }
            }
            self.settle();
        }
    }

    fn settle(&mut self) {
        let (open, failed) = self.session.groups();
        assert!(
            open <= 8 && failed <= 8,
            "{open} gathers and {failed} that failed, of a job of at most 8 PEs with 8 keys"
        );
        for action in self.session.take_actions() {
            match action {
                Action::Send(connection, bytes) => {
                    assert!(self.decoders.contains_key(&connection), "sent to a connection that is gone");
                    self.last = Some(sent(&bytes));
                }
                Action::Greeted(connection) => {
                    if let Some(decoder) = self.decoders.get_mut(&connection) {
                        decoder.set_limit(MAX_FROM_RANK);
                    }
                }
                Action::Close(connection) => {
                    assert!(self.decoders.contains_key(&connection), "closed a connection that is gone");
                }
            }
        }
    }
}

/// Returns the operation of the one frame that `bytes` are. A frame in another version of the
/// protocol can only be a refusal.
fn sent(bytes: &[u8]) -> Op {
    let mut bytes = bytes.to_vec();
    let ours = bytes[field::VERSION] == VERSION.to_be_bytes();
    bytes[field::VERSION].copy_from_slice(&VERSION.to_be_bytes());
    let mut decoder = Decoder::new(usize::MAX);
    decoder.push(&bytes);
    let frame = decoder.next_frame().ok().flatten().filter(|_| !decoder.is_partial());
    let op = frame.expect("the hub sends frames").message.op();
    assert!(ours || op == Op::Refused, "sent {op:?} in another version of the protocol");
    op
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::super::frame::{HEADER_LEN, MAGIC, VERSION, field};
    use super::Op;

    #[test]
    fn histories_reach_every_answer() {
        let open = [0, 0];
        let hello = [3 | 1 << 3, 0];
        for (op, history) in [
            (Op::Refused, vec![4, 0]),
            (Op::Welcome, hello.to_vec()),
            (Op::Gathered, [hello, [4 | 1 << 3, 0]].concat()),
            (Op::Released, [hello, [4 | 1 << 3 | 1 << 6, 0]].concat()),
            (Op::Farewell, [hello, [4 | 1 << 3 | 2 << 6, 0]].concat()),
            (Op::Failed, [hello, [4 | 3 << 6, 0]].concat()),
            (Op::Grouped, [&hello[..], &[4 | 1 << 3, 8, 1]].concat()),
            (Op::Disbanded, [&hello[..], &[4 | 1 << 3, 8, 2]].concat()),
        ] {
            let data = [&[0][..], &open, &history].concat();
            assert_eq!(super::play(&data).last, Some(op));
        }
    }

    /// The header of another version of the protocol, and bytes that are not a header.
    #[test]
    fn another_version_is_refused_in_that_version() {
        let mut header = vec![0; HEADER_LEN];
        header[field::MAGIC].copy_from_slice(&MAGIC);
        header[field::VERSION].copy_from_slice(&(VERSION + 1).to_be_bytes());
        for (bytes, last) in [(header.clone(), Some(Op::Refused)), (vec![0; HEADER_LEN], None)] {
            let mut hub = super::play(&[0, 0, 0]);
            hub.bytes(0, &bytes);
            assert_eq!(hub.last, last);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn no_history_breaks_the_hub(data in vec(any::<u8>(), 0..400)) {
            super::frames(&data);
        }
    }
}
