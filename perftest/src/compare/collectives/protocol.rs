//! The lines by which the driver and the programs talk.
//!
//! Every PE of a program says `{"library":...}` when it is ready. Then the driver writes the same
//! command to all PEs, and each replies with one line; what else a PE prints is passed over, since
//! libraries print, too.
//!
//! * `prepare WAY CALL PART COUNT` makes COUNT calls with parts of PART bytes ready to be timed, as
//!   a CUDA graph where there are GPUs, and checks the data that they leave:
//!   `{"ready":true,"graph":true}`.
//! * `run WAY` makes the calls that were prepared last for this way, twice, and times the second
//!   time: `{"ns":...}`, of all of them.
//!
//! A command that fails at a PE has the reply `{"error":...}`, and the next one is read. A PE ends
//! at the end of its standard input.

use serde::{Deserialize, Serialize};

use super::calls::Call;

/// One way to make a call: a library, and an algorithm of it if the user of that library chooses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Way {
    /// OxSHMEM on a stream.
    Ours,
    /// NVSHMEM on a stream.
    Nvshmem,
    /// NCCL, through torch.
    Nccl,
    /// torch's symmetric memory: every PE reads the data of all.
    OneShot,
    /// torch's symmetric memory: every PE adds its part, and the parts are gathered.
    TwoShot,
    /// torch's symmetric memory: its barrier.
    SymmBarrier,
}

impl Way {
    /// All of them, in the order in which they take turns.
    pub const ALL: [Self; 6] = [Self::Ours, Self::Nvshmem, Self::Nccl, Self::OneShot, Self::TwoShot, Self::SymmBarrier];

    /// Returns the name in lines, JSON and plots.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ours => "ours",
            Self::Nvshmem => "nvshmem",
            Self::Nccl => "nccl",
            Self::OneShot => "symm_one_shot",
            Self::TwoShot => "symm_two_shot",
            Self::SymmBarrier => "symm_barrier",
        }
    }

    /// Returns whether it can make the call.
    pub fn has(self, call: Call) -> bool {
        let name = call.name;
        let meets = matches!(name, "barrier" | "sync");
        match self {
            Self::Ours | Self::Nvshmem => true,
            Self::Nccl => !meets,
            Self::OneShot | Self::TwoShot => matches!(name, "reduce" | "reduce_bf16"),
            Self::SymmBarrier => meets,
        }
    }
}

/// What the driver asks of a PE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// Make calls ready.
    Prepare {
        /// By what.
        way: Way,
        /// Which.
        call: Call,
        /// Bytes of a part.
        part: u64,
        /// How many calls.
        count: u64,
    },
    /// Time the calls that are ready.
    Run {
        /// By what.
        way: Way,
    },
}

impl Command {
    /// Returns its line.
    pub fn line(self) -> String {
        match self {
            Self::Prepare { way, call, part, count } => {
                format!("prepare {} {} {part} {count}", way.name(), call.name)
            }
            Self::Run { way } => format!("run {}", way.name()),
        }
    }

    /// Returns the command of a line; `None` if it is none.
    pub fn parse(line: &str) -> Option<Self> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let way = |name: &str| Way::ALL.into_iter().find(|way| way.name() == name);
        match words.as_slice() {
            ["prepare", name, call, part, count] => Some(Self::Prepare {
                way: way(name)?,
                call: Call::named(call)?,
                part: part.parse().ok()?,
                count: count.parse().ok()?,
            }),
            ["run", name] => Some(Self::Run { way: way(name)? }),
            _ => None,
        }
    }
}

/// What a PE replies.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Reply {
    /// It is ready for commands.
    Library {
        /// Name and version of the library, or of all that it can measure.
        library: String,
    },
    /// Calls are ready.
    Ready {
        /// True.
        ready: bool,
        /// Whether they are a CUDA graph.
        graph: bool,
    },
    /// Calls were made.
    Time {
        /// Nanoseconds of all of them.
        ns: f64,
    },
    /// The command has failed.
    Error {
        /// Why.
        error: String,
    },
}

impl Reply {
    /// Returns its line.
    pub fn line(&self) -> String {
        // Strings and finite numbers become JSON.
        serde_json::to_string(self).unwrap_or_else(|error| format!("{{\"error\":\"{error}\"}}"))
    }

    /// Returns the reply of a line; `None` if it is none.
    pub fn parse(line: &str) -> Option<Self> {
        serde_json::from_str(line).ok()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::calls::CALLS;
    use super::*;

    #[test]
    fn commands_and_replies_can_be_read_back() {
        for way in Way::ALL {
            for call in CALLS {
                for command in [Command::Prepare { way, call, part: 1 << 30, count: 7 }, Command::Run { way }] {
                    assert_eq!(Command::parse(&command.line()), Some(command));
                }
            }
        }
        for line in ["", "run", "run theirs", "prepare ours reduce 8", "prepare ours nonsense 8 1", "run ours now"] {
            assert_eq!(Command::parse(line), None, "{line}");
        }
        let replies = [
            Reply::Library { library: "A 1".to_owned() },
            Reply::Ready { ready: true, graph: false },
            Reply::Time { ns: 1.5 },
            Reply::Error { error: "no \"luck\"".to_owned() },
        ];
        for reply in replies {
            assert_eq!(Reply::parse(&reply.line()), Some(reply));
        }
        assert_eq!(Reply::parse("NCCL version 2.27"), None);
    }

    #[test]
    fn every_call_can_be_compared_with_something() {
        for call in CALLS {
            assert!(Way::Ours.has(call) && Way::ALL[1..].iter().any(|way| way.has(call)), "{}", call.name);
        }
        assert!(!Way::Nccl.has(Call::named("barrier").unwrap()));
    }
}
