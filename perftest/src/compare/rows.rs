//! What is compared: a row has a kernel, a shape, a unit and a goal.

use std::fmt;

/// What a figure is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// 10^9 bytes of payload per second.
    GigabytesPerSecond,
    /// 10^6 calls of the API per second.
    MegaOperationsPerSecond,
    /// Microseconds per iteration.
    Microseconds,
}

impl Unit {
    /// Returns the name in tables and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::GigabytesPerSecond => "GB/s",
            Self::MegaOperationsPerSecond => "M/s",
            Self::Microseconds => "us",
        }
    }

    /// Returns whether more is better.
    pub fn is_rate(self) -> bool {
        self != Self::Microseconds
    }

    /// Returns how many times better `ours` is than `theirs`.
    pub fn ratio(self, ours: f64, theirs: f64) -> f64 {
        if self.is_rate() { ours / theirs } else { theirs / ours }
    }
}

/// What a row should reach.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Goal {
    /// At least this part of the limit that a plain kernel reaches in the same run.
    OfLimit(f64),
    /// At least this many times their rate.
    TimesTheirs(f64),
    /// At most this part of their time.
    OfTheirTime(f64),
    /// At most this, in the row's unit.
    AtMost(f64),
    /// At least this, in the row's unit.
    AtLeast(f64),
}

impl Goal {
    /// Returns whether `ours` reaches it; `None` where what it is relative to was not measured.
    pub fn is_met(self, ours: f64, theirs: Option<f64>, limit: Option<f64>) -> Option<bool> {
        match self {
            Self::OfLimit(part) => limit.map(|limit| ours >= part * limit),
            Self::TimesTheirs(times) => theirs.map(|theirs| ours >= times * theirs),
            Self::OfTheirTime(part) => theirs.map(|theirs| ours <= part * theirs),
            Self::AtMost(most) => Some(ours <= most),
            Self::AtLeast(least) => Some(ours >= least),
        }
    }

    /// Returns it as text, for a row in `unit`.
    pub fn text(self, unit: Unit) -> String {
        match self {
            Self::OfLimit(part) => format!(">= {part} of the limit"),
            Self::TimesTheirs(times) => format!(">= {times}x theirs"),
            Self::OfTheirTime(part) => format!("<= {part}x theirs"),
            Self::AtMost(most) => format!("<= {most} {}", unit.name()),
            Self::AtLeast(least) => format!(">= {least} {}", unit.name()),
        }
    }
}

/// What stands between the PEs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Path {
    /// Load and store over the GPUs' link.
    P2p,
    /// IBGDA with the null card, which takes work requests and completes them and moves nothing:
    /// the cost of posting alone.
    NullCard {
        /// QPs to the peer.
        qps: u32,
        /// Blocks of each send queue.
        depth: u32,
    },
}

/// The contexts of a row: queue pairs that its threads, warps or CTAs have for themselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Contexts {
    /// The threads that each of them is for, in the words of `compare/main.cu`: `thread`, `warp` or
    /// `block`.
    pub sharing: &'static str,
    /// Their number.
    pub count: u32,
    /// Blocks of each send queue.
    pub depth: u32,
}

/// One row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Row {
    /// Identifies it in JSON; no spaces.
    pub name: &'static str,
    /// For people.
    pub title: &'static str,
    /// In `compare/kernels.h`.
    pub kernel: &'static str,
    /// CTAs.
    pub ctas: u32,
    /// Threads per CTA.
    pub threads: u32,
    /// Payload of one iteration, over all CTAs.
    pub bytes: u64,
    /// Calls of the API in one iteration, over all threads.
    pub operations: u64,
    /// Words from one element of `p` to the next; for `moe` tokens of each PE.
    pub stride: u64,
    /// Iterations walk over the other PE's memory: this many bytes further each time,
    pub step: u64,
    /// and from the start again after this many, a power of two. With one, all work in the same
    /// place.
    pub steps: u64,
    /// Iterations that are not timed.
    pub warmup: u64,
    /// Iterations that are.
    pub iters: u64,
    /// What its figure is in.
    pub unit: Unit,
    /// What stands between the PEs.
    pub path: Path,
    /// The contexts that its kernel posts to, if it does not post to the default context.
    pub contexts: Option<Contexts>,
    /// The row with the same shape and a plain kernel, or with what the null card does by itself.
    pub limit: Option<&'static str>,
    /// What it should reach.
    pub goal: Option<Goal>,
    /// The PEs that the goal is for, where it depends on their number.
    pub goal_pes: Option<u32>,
    /// Their figure where their library is not run here. Each was measured before this program
    /// existed, with the public device API of NVSHMEM 3.4.5 on one H200: queues, doorbells and CQs
    /// in GPU memory, a null card like ours, one QP per CTA. Theirs had 1024 blocks, its default;
    /// for `p` not combined also 8192, which stands where it was faster and the row does not ask
    /// for 1024. Ours has its default of 8192 unless the row says otherwise.
    pub reference: Option<f64>,
}

impl Row {
    /// Returns its figure, from the time of all timed iterations.
    pub fn figure(&self, nanoseconds: u64) -> f64 {
        let ns = nanoseconds as f64;
        let iters = self.iters as f64;
        match self.unit {
            Unit::GigabytesPerSecond => self.bytes as f64 * iters / ns,
            Unit::MegaOperationsPerSecond => self.operations as f64 * iters * 1e3 / ns,
            Unit::Microseconds => ns / iters / 1e3,
        }
    }

    /// Returns whether a kernel carries it out. Other rows are calls of the host, which it queues
    /// on a stream, or by which it joins the job.
    pub fn has_kernel(&self) -> bool {
        !self.kernel.starts_with("stream_") && self.kernel != "init"
    }

    /// Returns whether it is a plain kernel's or the null card's, and so a limit.
    pub fn is_limit(&self) -> bool {
        ["link_", "word_fence", "flag_", "null_card"].iter().any(|start| self.kernel.starts_with(start))
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.title)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::compare::table::find;

    #[test]
    fn figures_follow_from_times() {
        let put = find("put_bw_block_1").unwrap();
        // 32 MiB each millisecond.
        assert!((put.figure(put.iters * 1_000_000) - 33.554_432).abs() < 1e-9);
        let ping_pong = find("signal_ping_pong").unwrap();
        assert!((ping_pong.figure(ping_pong.iters * 1250) - 1.25).abs() < 1e-9);
        let post = find("post_p_8").unwrap();
        // 8192 puts each microsecond.
        assert!((post.figure(post.iters * 1000) - 8192.0).abs() < 1e-9);
    }

    #[test]
    fn goals_are_met_or_not_or_unknown() {
        let met = |goal: Goal, ours| goal.is_met(ours, Some(100.0), Some(200.0));
        for (goal, good, bad) in [
            (Goal::OfLimit(0.98), 197.0, 195.0),
            (Goal::TimesTheirs(2.5), 251.0, 249.0),
            (Goal::OfTheirTime(0.5), 49.0, 51.0),
            (Goal::AtMost(1.3), 1.3, 1.31),
            (Goal::AtLeast(2.5), 2.5, 2.49),
        ] {
            assert_eq!((met(goal, good), met(goal, bad)), (Some(true), Some(false)), "{goal:?}");
        }
        assert_eq!(Goal::OfLimit(0.98).is_met(1.0, Some(1.0), None), None);
        assert_eq!(Goal::TimesTheirs(2.0).is_met(1.0, None, Some(1.0)), None);
        assert_eq!(Goal::OfTheirTime(2.0).is_met(1.0, None, Some(1.0)), None);
        assert_eq!(Goal::AtMost(1.3).is_met(1.0, None, None), Some(true));
    }

    #[test]
    fn a_ratio_above_one_is_better() {
        assert!(Unit::GigabytesPerSecond.ratio(2.0, 1.0) > 1.0);
        assert!(Unit::Microseconds.ratio(1.0, 2.0) > 1.0);
    }
}
