//! The lines of a dump: what each begins with, and those that `oxrun` reads to point at a PE.

use std::fmt;

/// What every line of a dump begins with, before the PE's number and a colon.
const PREFIX: &str = "oxshmem: dump of PE ";
const BEGINS: &str = "begins: ";
const ENDS: &str = "ends";
const ROUND: &str = ": round ";

/// The most PEs that a line names.
const NAMED: usize = 64;

/// Returns the first line of a dump.
pub(crate) fn begin(reason: &str, who: &str) -> String {
    format!("{BEGINS}{reason}; {who}")
}

/// Returns the last line of a dump.
pub(crate) fn end() -> String {
    ENDS.to_owned()
}

/// Returns a line as it is written, cut to a bounded length, with its end.
pub(crate) fn written(rank: Option<u32>, line: &str) -> String {
    const LONGEST: usize = 600;
    let rank = rank.map_or_else(|| "?".to_owned(), |rank| rank.to_string());
    let line: String = line.chars().take(LONGEST).map(|c| if c.is_control() { ' ' } else { c }).collect();
    format!("{PREFIX}{rank}: {line}\n")
}

/// How far a PE has come at a place where PEs meet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Round {
    /// Where they meet: a team or the rendezvous.
    pub place: String,
    /// How many meetings this PE has entered there.
    pub round: u64,
    /// What the newest meeting is for.
    pub call: String,
    pub state: State,
}

/// How the newest meeting stands, as far as one PE can see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum State {
    /// It is over.
    Over,
    /// This PE waits, and knows these that have not come, or none by its number.
    Waits(Vec<u32>),
    /// These PEs have entered the next one and wait for this PE.
    Awaited(Vec<u32>),
}

impl fmt::Display for Round {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { place, round, call, state } = self;
        write!(f, "{place}{ROUND}{round} ({call}), ")?;
        match state {
            State::Over => f.write_str("over"),
            State::Waits(pes) if pes.is_empty() => f.write_str("waits"),
            State::Waits(pes) => write!(f, "waits for {}", named(pes)),
            State::Awaited(pes) => write!(f, "awaited in the next one by {}", named(pes)),
        }
    }
}

/// Returns `PE 1, PE 4`, of a long list only the beginning.
fn named(pes: &[u32]) -> String {
    let shown: Vec<String> = pes.iter().take(NAMED).map(|pe| format!("PE {pe}")).collect();
    let more = pes.len().saturating_sub(NAMED);
    if more == 0 { shown.join(", ") } else { format!("{} and {more} more", shown.join(", ")) }
}

/// Reads what [`named`] writes.
fn read_named(text: &str) -> Vec<u32> {
    let numbers = text.split(", ").filter_map(|pe| pe.strip_prefix("PE ")?.split(' ').next()?.parse().ok());
    numbers.collect()
}

impl Round {
    fn read(line: &str) -> Option<Self> {
        let (place, rest) = line.split_once(ROUND)?;
        let (round, rest) = rest.split_once(" (")?;
        let (call, state) = rest.rsplit_once("), ")?;
        let state = match state {
            "over" => State::Over,
            "waits" => State::Waits(Vec::new()),
            _ => match (state.strip_prefix("waits for "), state.strip_prefix("awaited in the next one by ")) {
                (Some(pes), _) => State::Waits(read_named(pes)),
                (_, Some(pes)) => State::Awaited(read_named(pes)),
                _ => return None,
            },
        };
        Some(Self { place: place.to_owned(), round: round.parse().ok()?, call: call.to_owned(), state })
    }
}

/// Returns whether a line of a PE's standard error is of a dump.
pub(crate) fn is_of_dump(line: &[u8]) -> bool {
    line.starts_with(PREFIX.as_bytes())
}

/// What a line of a PE's standard error says of its dump.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Said {
    Begins,
    Round(Round),
    /// Another line of the dump.
    Other,
    Ends,
}

impl Said {
    /// Reads a line, given without its end. `None` if it is not of a dump.
    pub fn read(line: &[u8]) -> Option<Self> {
        let line = std::str::from_utf8(line.strip_prefix(PREFIX.as_bytes())?).ok()?;
        let (_, text) = line.split_once(": ")?;
        Some(match text {
            ENDS => Self::Ends,
            _ if text.starts_with(BEGINS) => Self::Begins,
            _ => Round::read(text).map_or(Self::Other, Self::Round),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Option<Said> {
        Said::read(written(Some(7), text).trim_end().as_bytes())
    }

    #[test]
    fn lines_read_back() {
        for state in [
            State::Over,
            State::Waits(vec![]),
            State::Waits(vec![2]),
            State::Waits(vec![2, 30]),
            State::Awaited(vec![0, 1]),
        ] {
            let round = Round { place: "the world team (PEs 0 to 2)".into(), round: 4, call: "barrier".into(), state };
            assert_eq!(read(&round.to_string()), Some(Said::Round(round)));
        }
        assert_eq!(read(&begin("SIGUSR2", "of 3 PEs")), Some(Said::Begins));
        assert_eq!(read(&end()), Some(Said::Ends));
        assert_eq!(read("QPs: all idle"), Some(Said::Other));
        for other in ["", "oxshmem: PE 0: x", "dump of PE 1: ends", "oxshmem: dump of PE 3"] {
            assert_eq!(Said::read(other.as_bytes()), None);
        }
    }

    #[test]
    fn lines_are_bounded() {
        let all: Vec<u32> = (0..4096).collect();
        let state = State::Waits(all);
        let round = Round { place: "a team".into(), round: 1, call: "sync".into(), state };
        let Some(Said::Round(Round { state: State::Waits(pes), .. })) = read(&round.to_string()) else {
            panic!("{round}")
        };
        assert_eq!(pes, (0..64).collect::<Vec<u32>>());
        assert!(written(None, &"x\n".repeat(5000)).len() < 700);
    }
}
