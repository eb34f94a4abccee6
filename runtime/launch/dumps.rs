//! Reads the dumps that PEs write to standard error, and points at the PEs that the others wait
//! for.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::failure::pes;
use crate::dump::text::{Round, Said, State};

/// How long PEs may take to make the dumps that a signal requests.
const SIGNALLED: Duration = Duration::from_secs(5);
/// How long the other PEs may take when one has made a dump by itself.
const UNASKED: Duration = Duration::from_secs(2);
/// Sentences that point at PEs.
const SHOWN: usize = 6;

/// The dumps of a job.
#[derive(Debug, Default)]
pub(super) struct Dumps {
    collection: Option<Collection>,
}

/// Dumps that belong together.
#[derive(Debug)]
struct Collection {
    until: Instant,
    /// PEs whose dumps were requested and have not come whole.
    expected: BTreeSet<u32>,
    /// Whether a signal requested them.
    signalled: bool,
    begun: BTreeMap<u32, Vec<Round>>,
    whole: BTreeSet<u32>,
}

impl Collection {
    fn new(limit: Duration, expected: BTreeSet<u32>, signalled: bool) -> Self {
        Self { until: Instant::now() + limit, expected, signalled, begun: BTreeMap::new(), whole: BTreeSet::new() }
    }
}

impl Dumps {
    /// Expects dumps of these PEs, which a signal requests.
    pub fn expect(&mut self, pes: impl IntoIterator<Item = u32>) {
        self.collection = Some(Collection::new(SIGNALLED, pes.into_iter().collect(), true));
    }

    /// Takes a line of a PE's standard error.
    pub fn line(&mut self, pe: u32, line: &[u8]) {
        let Some(said) = Said::read(line) else { return };
        let new = || Collection::new(UNASKED, BTreeSet::new(), false);
        let collection = self.collection.get_or_insert_with(new);
        match said {
            Said::Begins => {
                collection.begun.insert(pe, Vec::new());
            }
            Said::Round(round) => collection.begun.entry(pe).or_default().push(round),
            Said::Other => {}
            Said::Ends => {
                collection.expected.remove(&pe);
                collection.whole.insert(pe);
            }
        }
    }

    /// Returns when [`Dumps::due`] has something to say.
    pub fn next(&self) -> Option<Instant> {
        self.collection.as_ref().map(|collection| collection.until)
    }

    /// Returns what the dumps say together, once they are all there, or have had their time, or
    /// `over` says that no more can come. `runs` says which PEs have not ended.
    pub fn due(&mut self, now: Instant, over: bool, runs: impl Fn(u32) -> bool) -> Vec<String> {
        let Some(collection) = &mut self.collection else { return Vec::new() };
        collection.expected.retain(|pe| runs(*pe));
        let all = collection.signalled && collection.expected.is_empty();
        if !all && !over && now < collection.until {
            return Vec::new();
        }
        let Some(Collection { expected, signalled, begun, whole, .. }) = self.collection.take() else {
            return Vec::new();
        };
        let list = |set: &mut dyn Iterator<Item = u32>| set.collect::<Vec<u32>>();
        let mut reports = Vec::new();
        let cut_off = list(&mut begun.keys().copied().filter(|pe| !whole.contains(pe)));
        if !cut_off.is_empty() {
            reports.push(format!("the dump of {} is cut off", pes(&cut_off)));
        }
        let silent = list(&mut expected.iter().copied().filter(|pe| !begun.contains_key(pe)));
        if !silent.is_empty() {
            let limit = SIGNALLED.as_secs();
            reports.push(format!(
                "{} made no dump within {limit} s: stopped, past finalize, not a program that uses OxSHMEM, or one that takes SIGUSR2 itself",
                pes(&silent)
            ));
        }
        let absences = absences(&begun);
        if signalled && absences.is_empty() && !begun.is_empty() {
            let those = pes(&begun.keys().copied().collect::<Vec<u32>>());
            reports.push(format!("by the dumps of {those} no PE waits for one that has not come"));
        }
        reports.extend(absences);
        reports
    }
}

/// Returns sentences that say which PEs have not come to where others wait.
fn absences(dumps: &BTreeMap<u32, Vec<Round>>) -> Vec<String> {
    let mut places: Vec<&str> = Vec::new();
    for round in dumps.values().flatten() {
        if !places.contains(&round.place.as_str()) {
            places.push(&round.place);
        }
    }
    places.into_iter().filter_map(|place| absence(place, dumps)).take(SHOWN).collect()
}

fn absence(place: &str, dumps: &BTreeMap<u32, Vec<Round>>) -> Option<String> {
    let here: BTreeMap<u32, &Round> = dumps
        .iter()
        .filter_map(|(pe, rounds)| Some((*pe, rounds.iter().find(|round| round.place == place)?)))
        .collect();
    let waits = |round: &Round| matches!(round.state, State::Waits(_));
    let newest = here.values().filter(|round| waits(round)).map(|round| round.round).max()?;
    let mut absent: BTreeSet<u32> = here.iter().filter(|(_, round)| round.round < newest).map(|(pe, _)| *pe).collect();
    let mut waiting = Vec::new();
    let mut call = "";
    for (pe, round) in &here {
        if let State::Waits(named) = &round.state
            && round.round == newest
        {
            absent.extend(named);
            waiting.push(*pe);
            call = if call.is_empty() || round.call != UNKNOWN { &round.call } else { call };
        }
    }
    // One that waits for others in turn has come.
    absent.retain(|pe| here.get(pe).is_none_or(|round| round.round < newest));
    if absent.is_empty() {
        return None;
    }
    let absent: Vec<u32> = absent.into_iter().collect();
    let (has, it) = if absent.len() == 1 { ("has", "it") } else { ("have", "them") };
    let wait = if waiting.len() == 1 { "waits" } else { "wait" };
    Some(format!(
        "{} {has} not come to round {newest} ({call}) of {place}; {} {wait} for {it}",
        pes(&absent),
        pes(&waiting)
    ))
}

/// What a dump calls a meeting whose call it does not know.
const UNKNOWN: &str = "a collective";

#[cfg(test)]
mod tests {
    use super::*;

    fn round(place: &str, round: u64, state: State) -> Round {
        Round { place: place.into(), round, call: "barrier".into(), state }
    }

    fn dumps(of: &[(u32, Round)]) -> BTreeMap<u32, Vec<Round>> {
        let mut dumps: BTreeMap<u32, Vec<Round>> = BTreeMap::new();
        of.iter().for_each(|(pe, round)| dumps.entry(*pe).or_default().push(round.clone()));
        dumps
    }

    #[test]
    fn the_pe_that_did_not_come_is_named() {
        let waits = |pe| (pe, round("the world team", 4, State::Waits(vec![2])));
        let behind = (2, round("the world team", 3, State::Awaited(vec![0, 1])));
        let found = absences(&dumps(&[waits(0), waits(1), behind]));
        assert_eq!(found, ["PE 2 has not come to round 4 (barrier) of the world team; PEs 0 and 1 wait for it"]);
        // It has made no dump.
        assert_eq!(absences(&dumps(&[waits(0), waits(1)])), found);
    }

    #[test]
    fn a_pe_that_waits_in_turn_has_come() {
        let all = [
            (0, round("a team", 4, State::Waits(vec![3]))),
            (1, round("a team", 4, State::Waits(vec![0]))),
            (3, round("a team", 4, State::Waits(vec![1, 2]))),
        ];
        let found = absences(&dumps(&all));
        assert_eq!(found, ["PE 2 has not come to round 4 (barrier) of a team; PEs 0, 1 and 3 wait for it"]);
        assert!(
            absences(&dumps(&[(0, round("a team", 4, State::Over)), (1, round("a team", 3, State::Over))])).is_empty()
        );
    }

    #[test]
    fn the_rendezvous_tells_by_the_counts_alone() {
        let all = [
            (0, round("the rendezvous", 9, State::Waits(vec![]))),
            (1, round("the rendezvous", 8, State::Over)),
            (2, round("the rendezvous", 8, State::Over)),
        ];
        let found = absences(&dumps(&all));
        assert_eq!(found, ["PEs 1 and 2 have not come to round 9 (barrier) of the rendezvous; PE 0 waits for them"]);
    }

    #[test]
    fn dumps_that_no_signal_requested_are_compared_in_silence() {
        let mut dumps = Dumps::default();
        for text in ["begins: the program requested it; a PE of 2", "the rendezvous: round 9 (alloc), over", "ends"] {
            dumps.line(0, crate::dump::text::written(Some(0), text).trim_end().as_bytes());
        }
        assert!(dumps.next().is_some() && dumps.due(Instant::now(), true, |_| true).is_empty());
        assert!(dumps.next().is_none());
    }

    #[test]
    fn a_collection_ends_with_the_last_dump_or_the_job() {
        let line = |text: &str| crate::dump::text::written(Some(0), text).trim_end().as_bytes().to_vec();
        let mut dumps = Dumps::default();
        let now = Instant::now();
        assert!(dumps.next().is_none() && dumps.due(now, true, |_| true).is_empty());
        dumps.expect([0, 1]);
        dumps.line(0, &line("begins: SIGUSR2; a PE of 2"));
        dumps.line(0, b"something else");
        dumps.line(0, &line("ends"));
        assert!(dumps.due(now, false, |_| true).is_empty());
        dumps.line(1, &line("begins: SIGUSR2; a PE of 2"));
        let found = dumps.due(now, true, |_| true);
        assert_eq!(found[0], "the dump of PE 1 is cut off");
        assert!(found[1].ends_with("no PE waits for one that has not come"), "{found:?}");
        dumps.expect([0, 1]);
        // One has ended, the other one says nothing.
        assert!(dumps.due(now, false, |pe| pe == 1).is_empty());
        let found = dumps.due(now + SIGNALLED * 2, false, |pe| pe == 1);
        assert!(found[0].starts_with("PE 1 made no dump within 5 s"), "{found:?}");
        assert!(dumps.next().is_none());
    }
}
