//! What `oxrun` on the machine of its user and `oxrun` on a host of the job say to each other,
//! through the remote shell's standard input and output.
//!
//! To the host go frames: a kind, the length of the rest in four bytes, little endian, and the
//! rest. From the host come lines, each a kind and a blank before what it says:
//!
//! | line | meaning |
//! |---|---|
//! | `oxrun-node 1` | the beginning; what the remote shell printed before is for the user |
//! | `o RANK TEXT`, `e RANK TEXT` | a line of that PE's standard output or error |
//! | `x RANK exited STATUS`, `x RANK killed SIGNAL` | that PE has ended |
//! | `i` | PE 0 has taken the input that was sent; more may follow |
//! | `r TEXT` | what the host's launcher has to say |

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::time::Duration;

use super::outcome::PeStatus;

/// The first line from a host; the number is the protocol's version.
pub(super) const GREETING: &[u8] = b"oxrun-node 1";
/// The longest frame: arguments and environment are what takes most, and the kernel limits them to
/// less than this.
const MAX_FRAME: usize = 8 << 20;
/// What PE 0 gets of standard input at a time.
pub(super) const MAX_INPUT: usize = 64 << 10;
/// How often a host hears that it is not forgotten, and after what time it ends its PEs if it does
/// not.
pub(super) const HEARTBEAT: Duration = Duration::from_secs(5);
/// See [`HEARTBEAT`].
pub(super) const SILENCE: Duration = Duration::from_secs(30);

/// What a host is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Order {
    /// The first: what to start.
    Start(Box<Start>),
    /// A part of PE 0's standard input; an empty one is its end.
    Input(Vec<u8>),
    /// Send the PEs this signal.
    Signal(i32),
    /// Send them SIGTERM, and SIGKILL after the grace time.
    Terminate,
    /// Send them SIGKILL.
    Kill,
    /// Nothing but that the connection stands.
    Heartbeat,
}

/// What a host starts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Start {
    pub rendezvous: String,
    pub job: String,
    pub npes: u32,
    pub first: u32,
    pub count: u32,
    pub grace: Duration,
    /// The folder that the PEs start in.
    pub folder: OsString,
    pub program: OsString,
    pub args: Vec<OsString>,
    pub env: Vec<(OsString, OsString)>,
}

impl Order {
    /// Returns the order as a frame.
    ///
    /// # Errors
    /// It is longer than a frame can be.
    pub fn encode(&self) -> io::Result<Vec<u8>> {
        let (kind, rest) = match self {
            Self::Start(start) => (b's', start.encode()),
            Self::Input(bytes) => (b'i', bytes.clone()),
            Self::Signal(number) => (b'g', number.to_le_bytes().to_vec()),
            Self::Terminate => (b't', Vec::new()),
            Self::Kill => (b'k', Vec::new()),
            Self::Heartbeat => (b'h', Vec::new()),
        };
        let length = u32::try_from(rest.len()).ok().filter(|_| rest.len() <= MAX_FRAME).ok_or_else(|| {
            io::Error::other(format!("arguments and variables take {} bytes; the limit is {MAX_FRAME}", rest.len()))
        })?;
        Ok([&[kind], &length.to_le_bytes()[..], &rest].concat())
    }
}

impl Start {
    /// Encodes the strings one after the other, each ended by a zero byte, which none of them can
    /// contain.
    fn encode(&self) -> Vec<u8> {
        let numbers = [self.npes, self.first, self.count, u32::try_from(self.grace.as_millis()).unwrap_or(u32::MAX)];
        let numbers = numbers.map(|number| number.to_string());
        let count = self.args.len().to_string();
        let mut strings: Vec<&OsStr> = vec![self.rendezvous.as_ref(), self.job.as_ref()];
        strings.extend(numbers.iter().map(OsStr::new));
        strings.extend([self.folder.as_os_str(), &self.program, OsStr::new(&count)]);
        strings.extend(self.args.iter().map(OsString::as_os_str));
        strings.extend(self.env.iter().flat_map(|(name, value)| [name.as_os_str(), value.as_os_str()]));
        strings.into_iter().flat_map(|string| [string.as_bytes(), b"\0"].concat()).collect()
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut strings = bytes.strip_suffix(b"\0")?.split(|byte| *byte == 0);
        let mut next = || strings.next().map(|string| OsString::from_vec(string.to_vec()));
        let text = |string: Option<OsString>| string?.into_string().ok();
        let number = |string: Option<OsString>| text(string)?.parse::<u32>().ok();
        let mut start = Self { rendezvous: text(next())?, job: text(next())?, ..Self::default() };
        start.npes = number(next())?;
        start.first = number(next())?;
        start.count = number(next())?;
        start.grace = Duration::from_millis(number(next())?.into());
        start.folder = next()?;
        start.program = next()?;
        for _ in 0..number(next())? {
            start.args.push(next()?);
        }
        while let Some(name) = next() {
            start.env.push((name, next()?));
        }
        Some(start)
    }
}

/// Orders out of the bytes that arrive.
#[derive(Debug, Default)]
pub(super) struct Orders {
    bytes: Vec<u8>,
}

impl Orders {
    /// Takes what was read.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Returns the next order, if all of it is there.
    ///
    /// # Errors
    /// The bytes are no orders, in words.
    pub fn next(&mut self) -> Result<Option<Order>, String> {
        let Some((&[kind, ref length @ ..], rest)) = self.bytes.split_first_chunk::<5>() else { return Ok(None) };
        let length = u32::from_le_bytes(*length) as usize;
        if length > MAX_FRAME {
            return Err(format!("an order of {length} bytes; the limit is {MAX_FRAME}"));
        }
        let Some(rest) = rest.get(..length) else { return Ok(None) };
        let order = match (kind, rest) {
            (b's', rest) => Start::decode(rest).map(|start| Order::Start(Box::new(start))),
            (b'i', rest) => Some(Order::Input(rest.to_vec())),
            (b'g', &[a, b, c, d]) => Some(Order::Signal(i32::from_le_bytes([a, b, c, d]))),
            (b't', []) => Some(Order::Terminate),
            (b'k', []) => Some(Order::Kill),
            (b'h', []) => Some(Order::Heartbeat),
            _ => None,
        };
        let order = order.ok_or_else(|| format!("an order of kind {kind:#04x} with {length} bytes, which is none"))?;
        self.bytes.drain(..5 + length);
        Ok(Some(order))
    }
}

/// What a host says.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Said<'a> {
    Line { rank: u32, error: bool, text: &'a [u8] },
    Ended { rank: u32, status: PeStatus },
    InputTaken,
    Report(&'a [u8]),
}

impl<'a> Said<'a> {
    /// Reads one line from a host.
    pub fn parse(line: &'a [u8]) -> Option<Self> {
        let (kind, rest) = line.split_first()?;
        if *kind == b'i' && rest.is_empty() {
            return Some(Self::InputTaken);
        }
        let rest = rest.strip_prefix(b" ")?;
        if *kind == b'r' {
            return Some(Self::Report(rest));
        }
        let end = rest.iter().position(|byte| *byte == b' ')?;
        let rank = std::str::from_utf8(&rest[..end]).ok()?.parse().ok()?;
        let rest = &rest[end + 1..];
        match kind {
            b'o' | b'e' => Some(Self::Line { rank, error: *kind == b'e', text: rest }),
            b'x' => {
                let (how, number) = std::str::from_utf8(rest).ok()?.split_once(' ')?;
                let number = number.parse().ok()?;
                let status = match how {
                    "exited" => PeStatus::Exited(number),
                    "killed" => PeStatus::Killed(number),
                    _ => return None,
                };
                Some(Self::Ended { rank, status })
            }
            _ => None,
        }
    }
}

/// Returns the line that says how a PE ended, without its kind.
pub(super) fn ended(rank: u32, status: PeStatus) -> String {
    match status {
        PeStatus::Exited(status) => format!("{rank} exited {status}"),
        PeStatus::Killed(signal) => format!("{rank} killed {signal}"),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn start() -> Start {
        Start {
            rendezvous: "10.0.0.1:4000,[fe80::1]:4000".into(),
            job: "00112233445566778899aabbccddeeff".into(),
            npes: 8,
            first: 4,
            count: 2,
            grace: Duration::from_millis(2500),
            folder: "/tmp/a folder".into(),
            program: "ring".into(),
            args: vec!["".into(), OsString::from_vec(b"\xff \"'$".to_vec())],
            env: vec![("OXSHMEM_LOG".into(), "".into()), ("A".into(), "b=c\nd".into())],
        }
    }

    #[test]
    fn orders_read_back_whole_and_in_pieces() {
        let orders = [
            Order::Start(Box::new(start())),
            Order::Start(Box::new(Start { args: Vec::new(), env: Vec::new(), ..start() })),
            Order::Input(b"\0\n".to_vec()),
            Order::Input(Vec::new()),
            Order::Signal(10),
            Order::Terminate,
            Order::Kill,
            Order::Heartbeat,
        ];
        let bytes: Vec<u8> = orders.iter().flat_map(|order| order.encode().unwrap()).collect();
        for piece in [1, 7, bytes.len()] {
            let mut decoder = Orders::default();
            let mut read = Vec::new();
            for piece in bytes.chunks(piece) {
                decoder.push(piece);
                while let Some(order) = decoder.next().unwrap() {
                    read.push(order);
                }
            }
            assert_eq!(read, orders);
        }
    }

    #[test]
    fn garbage_is_no_order() {
        for bytes in [b"q\0\0\0\0".as_slice(), b"s\x02\0\0\0a\0", b"g\x01\0\0\0a", b"i\xff\xff\xff\xff"] {
            let mut decoder = Orders::default();
            decoder.push(bytes);
            decoder.next().unwrap_err();
        }
        let long = Start { args: vec!["x".repeat(MAX_FRAME).into()], ..start() };
        assert!(Order::Start(Box::new(long)).encode().unwrap_err().to_string().contains("the limit is"));
    }

    #[test]
    fn lines_read_back() {
        assert_eq!(Said::parse(b"o 12 a b"), Some(Said::Line { rank: 12, error: false, text: b"a b" }));
        assert_eq!(Said::parse(b"e 0 "), Some(Said::Line { rank: 0, error: true, text: b"" }));
        assert_eq!(Said::parse(b"i"), Some(Said::InputTaken));
        assert_eq!(Said::parse(b"r text"), Some(Said::Report(b"text")));
        for status in [PeStatus::Exited(3), PeStatus::Killed(9)] {
            let line = format!("x {}", ended(7, status));
            assert_eq!(Said::parse(line.as_bytes()), Some(Said::Ended { rank: 7, status }));
        }
        for line in [b"".as_slice(), b"o", b"o 1", b"o x y", b"x 1 ate 3", b"q 1 2", b"i ", b"Welcome to node 7"] {
            assert_eq!(Said::parse(line), None);
        }
    }
}
