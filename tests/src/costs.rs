//! A model of what collectives cost as PEs grow: messages, and rounds of messages in sequence.
//!
//! A message is what one PE sends another one by itself: a header, a packet of 16 bytes, a flag, or
//! a put with its signal. Where PEs reach each other by load and store, what is copied straight
//! between their buffers is not counted, only the flags after it. Rounds are the longest chain of
//! messages of which each is sent after the one before it has arrived.
//!
//! The model is checked against what is counted while collectives run (`tests/costs.rs`), and makes
//! the tables of `docs/teams.md`.

use std::fmt;
use std::str::FromStr;

use oxshmem::abi::{Algorithm, Call, PACKET_BYTES};

/// A collective, and how it is carried out.
pub type Way = (Call, Algorithm);

/// What collectives can be.
const CALLS: [Call; 9] = [
    Call::Sync,
    Call::Barrier,
    Call::Broadcast,
    Call::Collect,
    Call::Fcollect,
    Call::Alltoall,
    Call::Alltoalls,
    Call::Reduce,
    Call::Reducescatter,
];

/// Sizes that are counted, in bytes: one packet, several, and enough that messages take turns in
/// the workspace.
pub const SIZES: [u64; 4] = [8, 1024, 8192, 100_000];

/// Returns every collective by every algorithm that it has. Meetings have none, and stand there
/// with `push`.
pub fn all() -> impl Iterator<Item = Way> {
    let algorithms = [Algorithm::Packets, Algorithm::Push, Algorithm::Tree, Algorithm::OneShot];
    CALLS.into_iter().flat_map(move |call| algorithms.map(|algorithm| (call, algorithm))).filter(|(call, algorithm)| {
        match algorithm {
            Algorithm::Push => true,
            Algorithm::Packets => !is_meeting(*call),
            Algorithm::Tree => matches!(call, Call::Broadcast | Call::Reduce),
            Algorithm::OneShot => *call == Call::Reduce,
            // Kernels have none: see `levels`, and for near members `host_collectives`.
            Algorithm::Levels | Algorithm::Relay | Algorithm::CopyEngines => false,
        }
    })
}

fn is_meeting(call: Call) -> bool {
    matches!(call, Call::Sync | Call::Barrier)
}

/// What all PEs together send, and the longest chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cost {
    /// Messages of all PEs.
    pub messages: u64,
    /// Messages in sequence.
    pub rounds: u64,
}

impl Cost {
    fn and(self, messages: u64, rounds: u64) -> Self {
        Self { messages: self.messages + messages, rounds: self.rounds + rounds }
    }
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} / {}", self.messages, self.rounds)
    }
}

/// Returns the number of rounds of dissemination.
fn rounds_of(n: u64) -> u64 {
    u64::from(n.next_power_of_two().trailing_zeros())
}

/// Returns the number of whole pieces of 16 bytes.
fn pieces(bytes: u64) -> u64 {
    bytes.div_ceil(16)
}

/// Returns the room for a message in the workspace that is cut into `parts`.
fn room(parts: u64) -> u64 {
    PACKET_BYTES / 2 / parts / 16 * 16
}

/// Returns what a collective of `n` PEs costs, the PEs being `near` (they reach each other by load
/// and store, and are at most 64) or not. `bytes` are those of the table of algorithms: of the
/// destination for broadcast and reduce, of one PE's part for the others; a multiple of 8. `None`:
/// the algorithm cannot be used so.
#[must_use]
pub fn cost((call, algorithm): Way, near: bool, n: u64, bytes: u64) -> Option<Cost> {
    let pairs = n * (n - 1);
    if algorithm == Algorithm::Packets {
        // A contribution to collect travels after its size.
        let sized = u64::from(call == Call::Collect);
        let fits = near && bytes + 16 * sized <= packet_room(n);
        let senders = if call == Call::Broadcast { n - 1 } else { pairs };
        return fits.then(|| Cost { messages: pairs + senders * (pieces(bytes) + sized), rounds: u64::from(n > 1) });
    }
    let meeting = if near {
        Cost { messages: pairs, rounds: u64::from(n > 1) }
    } else {
        Cost { messages: n * rounds_of(n), rounds: rounds_of(n) }
    };
    if n == 1 {
        return Some(meeting);
    }
    Some(match (call, algorithm) {
        (Call::None, _) => return None,
        (Call::Sync | Call::Barrier, _) => meeting,
        (Call::Broadcast, Algorithm::Tree) => {
            // The tree is as deep as the number below n with the most bits.
            let depth = (0..n).map(u64::count_ones).max().unwrap_or_default();
            meeting.and((n - 1) * bytes.div_ceil(65536), u64::from(depth))
        }
        (Call::Reduce, Algorithm::Tree) => {
            let power = 1u64 << n.ilog2();
            let (doublings, folded) = (u64::from(n.ilog2()), n - power);
            // The longest way leads from a member that is folded in to the number opposite, and
            // there to another one that is.
            let ends = u64::from(folded != 0) + u64::from(folded > power / 2);
            let turns = bytes.div_ceil(room(2 * (doublings + 1)));
            let each = power * doublings + 2 * folded;
            meeting.and(turns * each, turns * (doublings + ends))
        }
        // The sizes travel first: as packets beside the headers, or as messages of their own.
        // After packets, which order nothing, the members meet once more before they store.
        (Call::Collect, _) if near => meeting.and(3 * pairs, 2),
        (Call::Collect, _) => meeting.and(pairs + pairs, 2),
        // The others read, and say so to the root.
        (Call::Broadcast, _) if near => meeting.and(n - 1, 1),
        // The root sends each its part and its own one, and they send theirs on.
        (Call::Broadcast, _) => meeting.and(2 * (n - 1) + (n - 1) * (n - 2), 1 + u64::from(n > 2)),
        (_, _) if near => meeting.and(pairs, 1),
        (Call::Alltoalls, _) => meeting.and(pairs * (bytes / 8 + 1), 1),
        (Call::Fcollect | Call::Alltoall, _) => meeting.and(pairs, 1),
        // Each share comes from all others in turns, and goes to all others, or a flag does that
        // says that it has been used.
        (Call::Reduce | Call::Reducescatter, _) => {
            let each = if call == Call::Reduce { pieces(bytes).div_ceil(n) * 16 } else { bytes };
            let share = |member: u64| match call {
                Call::Reduce => bytes.saturating_sub(each * member).min(each),
                _ => bytes,
            };
            let turns = |member: u64| share(member).div_ceil(room(n));
            meeting.and((0..n).map(|member| 2 * (n - 1) * turns(member)).sum(), turns(0) + 1)
        }
    })
}

/// Returns the bytes that a member can send to each other one in packets.
fn packet_room(n: u64) -> u64 {
    PACKET_BYTES / n / 32 * 32 / 2
}

/// What one PE has counted, as a line of text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counted {
    /// The collective.
    pub call: Call,
    /// How it was carried out.
    pub algorithm: Algorithm,
    /// Its size, as in [`cost`].
    pub bytes: u64,
    /// Whether the PEs are near.
    pub near: bool,
    /// Messages that the PE has sent.
    pub messages: u64,
    /// The longest chain of messages that has ended at it.
    pub rounds: u64,
}

impl fmt::Display for Counted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { call, algorithm, bytes, near, messages, rounds } = *self;
        write!(f, "counted {} {} {bytes} {} {messages} {rounds}", call as u32, algorithm as u32, u8::from(near))
    }
}

impl FromStr for Counted {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parse = || {
            let words =
                text.strip_prefix("counted ")?.split(' ').map(str::parse).collect::<Result<Vec<u64>, _>>().ok()?;
            let [call, algorithm, bytes, near, messages, rounds] = words[..] else { return None };
            let (call, algorithm) = all().find(|way| (way.0 as u64, way.1 as u64) == (call, algorithm))?;
            Some(Self { call, algorithm, bytes, near: near != 0, messages, rounds })
        };
        parse().ok_or_else(|| format!("'{text}': nothing that a PE counts"))
    }
}

/// The numbers of PEs of the tables.
const PES: [u64; 10] = [2, 4, 8, 16, 32, 64, 128, 256, 512, 1024];

/// Returns the tables of `docs/teams.md`: `bytes` as in [`cost`].
#[must_use]
pub fn tables(bytes: u64) -> String {
    let mut text = String::new();
    for (near, title) in [(true, "Near"), (false, "Otherwise")] {
        let pes: Vec<u64> = PES.into_iter().filter(|n| !near || *n <= 64).collect();
        text += &format!("{title}, {bytes} bytes; messages / rounds by number of PEs:\n\n| |");
        text.extend(pes.iter().map(|n| format!(" {n} |")));
        text += &format!("\n|---|{}\n", "---|".repeat(pes.len()));
        for way in all() {
            let cells: Vec<Option<Cost>> = pes.iter().map(|n| cost(way, near, *n, bytes)).collect();
            // Near, trees are only for tests, and so is the one-shot algorithm elsewhere.
            let unused = if near { Algorithm::Tree } else { Algorithm::OneShot };
            if cells.iter().all(Option::is_none) || way.1 == unused {
                continue;
            }
            let (call, algorithm) = (format!("{:?}", way.0).to_lowercase(), format!("{:?}", way.1).to_lowercase());
            text += &if is_meeting(way.0) { format!("| {call} |") } else { format!("| {call}, {algorithm} |") };
            text.extend(
                cells.into_iter().map(|cell| cell.map_or_else(|| " - |".to_owned(), |cost| format!(" {cost} |"))),
            );
            text.push('\n');
        }
        text.push('\n');
    }
    text
}

/// What stands before and after the tables in the documentation.
pub const MARKS: [&str; 2] = [
    "<!-- made by `cargo bench -p oxshmem-tests --bench costs -- --write docs/teams.md`: begin -->\n",
    "<!-- end -->\n",
];

/// Returns a document with the tables as they are to be.
///
/// # Errors
/// It has no marks, or not in this order.
pub fn with_tables(document: &str) -> Result<String, String> {
    let missing = || format!("no place for the tables: the lines {MARKS:?} are missing");
    let (before, rest) = document.split_once(MARKS[0]).ok_or_else(missing)?;
    let (_, behind) = rest.split_once(MARKS[1]).ok_or_else(missing)?;
    Ok(format!("{before}{}\n{}{}{behind}", MARKS[0], tables(1024), MARKS[1]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_is_read() {
        for (call, algorithm) in all() {
            let counted = Counted { call, algorithm, bytes: 8, near: true, messages: 17, rounds: 3 };
            assert_eq!(counted.to_string().parse(), Ok(counted));
        }
        for text in
            ["", "counted", "counted 1 1 1 1 1", "counted 77 1 8 1 1 1", "counted 1 1 8 1 1 1 1", "cost 1 1 8 1 1 1"]
        {
            assert!(text.parse::<Counted>().is_err(), "{text}");
        }
    }

    #[test]
    fn dissemination_takes_the_logarithm() {
        assert_eq!([1, 2, 3, 4, 5, 8, 9, 1024].map(rounds_of), [0, 1, 2, 2, 3, 3, 4, 10]);
    }

    #[test]
    fn tables_replace_tables() {
        let document = format!("a\n{}old\n{}b\n", MARKS[0], MARKS[1]);
        let new = with_tables(&document);
        assert!(
            new.as_ref().is_ok_and(|text| text.starts_with("a\n") && text.ends_with("b\n") && !text.contains("old")),
            "{new:?}"
        );
        assert!(with_tables("nothing").is_err());
    }
}
