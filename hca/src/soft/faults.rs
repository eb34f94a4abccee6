//! Faults on demand: [`FaultPlan`] says what goes wrong, how often, and with which seed.
//!
//! Decisions depend on the seed, the QP's place in the order of creation and the WQE's index alone,
//! not on time or on what other QPs do. So the same posts meet the same faults in every run.

use crate::wire::cqe::Syndrome;
use oxshmem_system::mixing::mix;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// How long a delay is when a plan asks for late visibility and names no `delay`.
const DEFAULT_DELAY: Duration = Duration::from_micros(100);

/// What goes wrong in a software HCA. The default is nothing.
///
/// Parsed from a comma-separated list:
///
/// | item | effect |
/// |---|---|
/// | `seed=N` | seed of all decisions, default 0 |
/// | `delay=TIME` | each WQE starts up to TIME late; other QPs go on meanwhile. TIME is a number with `ns`, `us`, `ms` or `s` |
/// | `slow=TIME@qpN` | each WQE of the N-th created QP (from 0) starts TIME late; `qp*` is every QP. May be repeated |
/// | `reorder=P` | with probability P a WQE lets others pass: its QP sits out a while. Order within a QP is kept |
/// | `visibility` | the payload of a write becomes visible as late as RC permits (just before the next WQE of the QP runs or its own CQE is written, up to `delay` later), its bytes in any order |
/// | `sources=TIME` | a write of memory starts TIME after its doorbell, and fails if its source has changed meanwhile |
/// | `lost-doorbell=P` | with probability P a doorbell is lost; the doorbell record brings it to light a little later |
/// | `error=SYNDROME@qpN:INDEX` | the first WQE of the N-th created QP (from 0) whose block index is at least INDEX fails with SYNDROME; `qp*` is every QP. May be repeated |
/// | `die-after=N` | the HCA dies after N work requests |
///
/// An aligned payload of 1, 2, 4 or 8 bytes is still stored at once: a flag is never torn.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct FaultPlan {
    /// Seed of all decisions.
    pub seed: u64,
    /// Longest delay before a WQE starts.
    pub delay: Duration,
    /// QPs whose WQEs all start late.
    pub slow: Vec<SlowQp>,
    /// Probability that a WQE lets other QPs pass.
    pub reorder: f64,
    /// Whether payloads become visible late.
    pub visibility: bool,
    /// How long the sources of writes are watched before these start.
    pub sources: Duration,
    /// Probability that a doorbell is lost.
    pub lost_doorbell: f64,
    /// Errors to inject.
    pub errors: Vec<InjectedError>,
    /// Work requests after which the HCA dies.
    pub die_after: Option<u64>,
}

/// A QP whose WQEs start late.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlowQp {
    /// How late.
    pub time: Duration,
    /// Which QP, counted from 0 in order of creation; `None` is every QP.
    pub qp: Option<u64>,
}

/// An error to inject.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InjectedError {
    /// What the CQE says.
    pub syndrome: Syndrome,
    /// Which QP, counted from 0 in order of creation; `None` is every QP.
    pub qp: Option<u64>,
    /// The first WQE that starts at this block index or later fails.
    pub index: u64,
}

/// A fault plan that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("fault `{item}`: {rule}")]
pub struct ParseFaultError {
    /// The part that is wrong.
    pub item: String,
    /// What is allowed.
    pub rule: &'static str,
}

const KEYS: &str = "known are seed=N, delay=TIME, slow=TIME@qpN, reorder=P, visibility, sources=TIME, lost-doorbell=P, error=SYNDROME@qpN:INDEX, die-after=N";

impl FromStr for FaultPlan {
    type Err = ParseFaultError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut plan = Self::default();
        for item in text.split(',').map(str::trim).filter(|item| !item.is_empty()) {
            let wrong = |rule| ParseFaultError { item: item.to_owned(), rule };
            let (key, value) = item.split_once('=').map_or((item, None), |(key, value)| (key, Some(value)));
            let need = |rule| value.ok_or_else(|| wrong(rule));
            match key {
                "seed" => {
                    const RULE: &str = "the seed is a number, as in seed=7";
                    plan.seed = number(need(RULE)?).ok_or_else(|| wrong(RULE))?;
                }
                "delay" | "sources" => {
                    const RULE: &str = "a number with ns, us, ms or s, at most 10s, as in delay=200us";
                    let time = duration(need(RULE)?).ok_or_else(|| wrong(RULE))?;
                    *(if key == "delay" { &mut plan.delay } else { &mut plan.sources }) = time;
                }
                "slow" => {
                    const RULE: &str = "a time of at most 10s and a QP, as in slow=20ms@qp3 or slow=1ms@qp*";
                    plan.slow.push(slow(need(RULE)?).ok_or_else(|| wrong(RULE))?);
                }
                "reorder" | "lost-doorbell" => {
                    const RULE: &str = "a probability between 0 and 1, as in reorder=0.5";
                    let value = probability(need(RULE)?).ok_or_else(|| wrong(RULE))?;
                    *(if key == "reorder" { &mut plan.reorder } else { &mut plan.lost_doorbell }) = value;
                }
                "visibility" if value.is_none() => plan.visibility = true,
                "visibility" => return Err(wrong("takes no value")),
                "error" => {
                    const RULE: &str =
                        "a syndrome, a QP and a block index, as in error=0x13@qp3:100 or error=0x04@qp*:0";
                    plan.errors.push(injected(need(RULE)?).ok_or_else(|| wrong(RULE))?);
                }
                "die-after" => {
                    const RULE: &str = "a number of work requests, as in die-after=5000";
                    plan.die_after = Some(number(need(RULE)?).ok_or_else(|| wrong(RULE))?);
                }
                _ => return Err(wrong(KEYS)),
            }
        }
        Ok(plan)
    }
}

impl fmt::Display for FaultPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed={}", self.seed)?;
        if !self.delay.is_zero() {
            write!(f, ",delay={}ns", self.delay.as_nanos())?;
        }
        for SlowQp { time, qp } in &self.slow {
            write!(f, ",slow={}ns@{}", time.as_nanos(), qp_name(*qp))?;
        }
        if self.reorder > 0.0 {
            write!(f, ",reorder={}", self.reorder)?;
        }
        if self.visibility {
            f.write_str(",visibility")?;
        }
        if !self.sources.is_zero() {
            write!(f, ",sources={}ns", self.sources.as_nanos())?;
        }
        if self.lost_doorbell > 0.0 {
            write!(f, ",lost-doorbell={}", self.lost_doorbell)?;
        }
        for error in &self.errors {
            write!(f, ",error={:#04x}@{}:{}", error.syndrome as u8, qp_name(error.qp), error.index)?;
        }
        match self.die_after {
            Some(count) => write!(f, ",die-after={count}"),
            None => Ok(()),
        }
    }
}

fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

fn probability(text: &str) -> Option<f64> {
    text.parse().ok().filter(|value| (0.0..=1.0).contains(value))
}

fn duration(text: &str) -> Option<Duration> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "ns" => 1,
        "us" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        _ => return None,
    };
    let nanos = digits.parse::<u64>().ok()?.checked_mul(unit)?;
    (nanos <= 10_000_000_000).then(|| Duration::from_nanos(nanos))
}

/// Reads `qpN`, or `qp*`, which is every QP.
fn qp(text: &str) -> Option<Option<u64>> {
    match text.strip_prefix("qp")? {
        "*" => Some(None),
        digits => number(digits).map(Some),
    }
}

/// Writes what [`qp`] reads.
fn qp_name(qp: Option<u64>) -> String {
    qp.map_or_else(|| "qp*".to_owned(), |qp| format!("qp{qp}"))
}

fn slow(text: &str) -> Option<SlowQp> {
    let (time, place) = text.split_once('@')?;
    Some(SlowQp { time: duration(time)?, qp: qp(place)? })
}

fn injected(text: &str) -> Option<InjectedError> {
    let (syndrome, place) = text.split_once('@')?;
    let (name, index) = place.split_once(':')?;
    Some(InjectedError {
        syndrome: Syndrome::from_u8(u8::try_from(number(syndrome)?).ok()?)?,
        qp: qp(name)?,
        index: number(index)?,
    })
}

/// Separate streams of decisions.
#[derive(Debug, Clone, Copy)]
#[repr(u64)]
enum Stream {
    Delay = 1,
    Reorder = 2,
    Visibility = 3,
    Doorbell = 4,
}

impl FaultPlan {
    /// Returns whether anything goes wrong at all while WQEs execute.
    pub(super) fn is_active(&self) -> bool {
        !self.delay.is_zero()
            || !self.slow.is_empty()
            || self.reorder > 0.0
            || self.visibility
            || !self.sources.is_zero()
            || !self.errors.is_empty()
            || self.die_after.is_some()
    }

    fn draw(&self, stream: Stream, qp: u64, index: u64) -> u64 {
        mix(mix(mix(self.seed ^ (stream as u64) << 56) ^ qp) ^ index)
    }

    fn chance(&self, stream: Stream, qp: u64, index: u64, probability: f64) -> bool {
        // 53 bits, as many as a double has.
        probability > 0.0 && ((self.draw(stream, qp, index) >> 11) as f64) < probability * (1u64 << 53) as f64
    }

    fn share(&self, stream: Stream, qp: u64, index: u64, of: Duration) -> Duration {
        let nanos = u64::try_from(of.as_nanos()).unwrap_or(u64::MAX);
        Duration::from_nanos(if nanos == 0 { 0 } else { self.draw(stream, qp, index) % (nanos + 1) })
    }

    /// Returns how long WQE `index` of the `qp`-th QP waits before it starts.
    pub(super) fn delay(&self, qp: u64, index: u64) -> Duration {
        let slow = self.slow.iter().filter(|slow| slow.qp.is_none_or(|n| n == qp)).map(|slow| slow.time);
        self.share(Stream::Delay, qp, index, self.delay) + slow.sum::<Duration>()
    }

    /// Returns how many passes of the engine the WQE sits out.
    pub(super) fn passes(&self, qp: u64, index: u64) -> u32 {
        if self.chance(Stream::Reorder, qp, index, self.reorder) {
            1 + (self.draw(Stream::Reorder, qp, !index) % 256) as u32
        } else {
            0
        }
    }

    /// Returns how long the WQE's payload stays invisible, and a seed for the order of its bytes.
    pub(super) fn visibility(&self, qp: u64, index: u64) -> Option<(Duration, u64)> {
        self.visibility.then(|| {
            let limit = if self.delay.is_zero() { DEFAULT_DELAY } else { self.delay };
            let late = self.share(Stream::Visibility, qp, index, limit);
            (late, self.draw(Stream::Visibility, qp, !index))
        })
    }

    /// Returns whether the `count`-th doorbell of the `qp`-th QP is lost.
    pub(super) fn loses_doorbell(&self, qp: u64, count: u64) -> bool {
        self.chance(Stream::Doorbell, qp, count, self.lost_doorbell)
    }

    /// Returns the error to inject into the WQE that starts at block `index` of the `qp`-th QP.
    pub(super) fn error(&self, qp: u64, index: u64) -> Option<Syndrome> {
        let meant = |error: &&InjectedError| error.qp.is_none_or(|n| n == qp) && index >= error.index;
        self.errors.iter().find(meant).map(|error| error.syndrome)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_reads_back() {
        let text = "seed=7,delay=200us,slow=20ms@qp0,slow=1us@qp*,reorder=0.5,visibility,sources=2ms,lost-doorbell=0.1,error=0x13@qp3:100,error=4@qp*:0x10,die-after=5000";
        let plan: FaultPlan = text.parse().unwrap();
        assert_eq!(plan.delay, Duration::from_micros(200));
        assert_eq!(plan.slow[0], SlowQp { time: Duration::from_millis(20), qp: Some(0) });
        assert_eq!(plan.slow[1].qp, None);
        assert_eq!(plan.errors[0], InjectedError { syndrome: Syndrome::RemoteAccess, qp: Some(3), index: 100 });
        assert_eq!(plan.errors[1], InjectedError { syndrome: Syndrome::LocalProtection, qp: None, index: 16 });
        assert_eq!(plan.to_string().parse::<FaultPlan>().unwrap(), plan);
        assert_eq!("".parse::<FaultPlan>().unwrap(), FaultPlan::default());
        assert_eq!(FaultPlan::default().to_string().parse::<FaultPlan>().unwrap(), FaultPlan::default());
    }

    #[test]
    fn wrong_items_are_named() {
        for text in [
            "reordr=0.5",
            "reorder",
            "reorder=1.5",
            "reorder=NaN",
            "delay=200",
            "delay=11s",
            "slow=20ms",
            "slow=20@qp1",
            "slow=20ms@1",
            "seed=x",
            "visibility=1",
            "error=0x13",
            "error=0x99@qp1:0",
            "error=0x13@1:0",
            "die-after=-1",
        ] {
            let error = format!("seed=1,{text}").parse::<FaultPlan>().unwrap_err();
            assert_eq!(error.item, text);
        }
    }

    #[test]
    fn decisions_follow_seed_and_place() {
        let plan: FaultPlan = "seed=3,delay=1ms,reorder=0.5,visibility,lost-doorbell=0.25".parse().unwrap();
        let again = plan.clone();
        let other = FaultPlan { seed: 4, ..plan.clone() };
        let all = |plan: &FaultPlan| -> Vec<_> {
            (0..1000)
                .map(|i| (plan.delay(1, i), plan.passes(1, i), plan.visibility(1, i), plan.loses_doorbell(1, i)))
                .collect()
        };
        assert_eq!(all(&plan), all(&again));
        assert_ne!(all(&plan), all(&other));
        let lost = (0..10_000).filter(|i| plan.loses_doorbell(2, *i)).count();
        assert!((2000..3000).contains(&lost), "{lost} of 10000 at probability 0.25");
        assert!((0..1000).all(|i| plan.delay(0, i) <= plan.delay));
        let slow: FaultPlan = "seed=3,slow=20ms@qp1".parse().unwrap();
        assert!((0..1000).all(|i| slow.delay(1, i) == Duration::from_millis(20) && slow.delay(0, i).is_zero()));
        let sure = FaultPlan { lost_doorbell: 1.0, ..FaultPlan::default() };
        assert!((0..1000).all(|i| sure.loses_doorbell(0, i)));
    }
}
