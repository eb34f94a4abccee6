//! The choice of at most three algorithms by size from measured times.

use oxshmem::config::ByteSize;

/// Algorithms of a collective, at most (`OXSHMEM_COLLECTIVES`).
pub const STEPS: usize = 3;
/// Sizes up to this one are as good as measured when it is.
const SMALLEST: u64 = 8;
/// What a further algorithm must spare, in each size on average: less is chance, and each limit is
/// one more thing that differs between sizes.
const WORTH: f64 = 0.01;
/// What a choice must spare over the library's own, in each size on average.
const WORTH_A_ROW: f64 = 0.02;

/// Median times of a collective.
#[derive(Debug, Clone, PartialEq)]
pub struct Times {
    /// Bytes, ascending.
    pub sizes: Vec<u64>,
    /// Times of the library's own choice, for each size.
    pub library: Vec<f64>,
    /// Algorithms with their times for each size.
    pub by: Vec<(&'static str, Vec<f64>)>,
}

/// How far a choice goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// Sizes that were not measured are left to the library.
    Measured,
    /// All sizes have the one algorithm.
    All,
}

/// What was chosen.
#[derive(Debug, Clone, PartialEq)]
pub struct Choice {
    /// Algorithms in the form of `OXSHMEM_COLLECTIVES`: `packets:16K/push`.
    pub algorithms: String,
    /// How long it takes, of what the library's own choice takes: the geometric mean.
    pub share: f64,
}

impl Choice {
    /// Returns whether it is faster than the library's own choice by more than chance.
    #[must_use]
    pub fn is_worth_a_row(&self) -> bool {
        is_worth_a_row(self.share)
    }
}

/// Returns whether what takes this share of the time of the library's own choice is faster by more
/// than chance.
#[must_use]
pub fn is_worth_a_row(share: f64) -> bool {
    share < 1.0 - WORTH_A_ROW
}

/// Returns the share of `times` of `library`, of the same sizes: the geometric mean.
#[must_use]
pub fn share(times: &[f64], library: &[f64]) -> f64 {
    let logarithms = times.iter().zip(library).map(|(time, library)| (time / library).ln());
    (logarithms.sum::<f64>() / times.len().max(1) as f64).exp()
}

impl Times {
    /// Returns the fastest choice of at most [`STEPS`] algorithms, or of one that is for all sizes;
    /// `None` if nothing was measured.
    #[must_use]
    pub fn choose(&self, reach: Reach) -> Option<Choice> {
        let most = if reach == Reach::All { 1 } else { STEPS };
        let n = self.sizes.len();
        // Where an algorithm ends and the next one begins: the cuts before the last size.
        let mut best: Option<(f64, Vec<usize>)> = None;
        let mut cuts: Vec<Vec<usize>> = vec![vec![n]];
        for steps in 2..=most {
            let shorter: Vec<Vec<usize>> = cuts.iter().filter(|ends| ends.len() == steps - 1).cloned().collect();
            for ends in shorter {
                cuts.extend((1..ends[0]).map(|end| [&[end], &ends[..]].concat()));
            }
        }
        for ends in cuts.into_iter().filter(|_| n != 0) {
            let penalty = WORTH * n as f64 * (ends.len() - 1) as f64;
            let cost = self.segments(&ends).map(|(_, cost)| cost).sum::<f64>() + penalty;
            if best.as_ref().is_none_or(|(least, _)| cost < *least) {
                best = Some((cost, ends));
            }
        }
        let (_, ends) = best?;
        let mut parts: Vec<String> = Vec::new();
        if let Some(least) = self.sizes.first().filter(|least| reach == Reach::Measured && **least > SMALLEST) {
            parts.push(format!("library:{}", ByteSize(least - 1)));
        }
        let mut spent = 0.0;
        for (end, (algorithm, cost)) in ends.iter().zip(self.segments(&ends)) {
            spent += cost;
            parts.push(match self.sizes.get(*end) {
                Some(next) => format!("{algorithm}:{}", ByteSize(between(self.sizes[end - 1], *next))),
                None if reach == Reach::Measured => format!("{algorithm}:{}/library", ByteSize(self.sizes[end - 1])),
                None => algorithm.to_owned(),
            });
        }
        let library: f64 = self.library.iter().map(|time| time.ln()).sum();
        Some(Choice { algorithms: parts.join("/"), share: ((spent - library) / n as f64).exp() })
    }

    /// Returns the fastest algorithm of each segment, and the sum of the logarithms of its times.
    fn segments<'a>(&'a self, ends: &'a [usize]) -> impl Iterator<Item = (&'static str, f64)> + 'a {
        ends.iter().enumerate().map(|(index, end)| {
            let first = if index == 0 { 0 } else { ends[index - 1] };
            // Packets beyond the workspace's room are push, so after another algorithm they are
            // none.
            let possible = self.by.iter().filter(move |(algorithm, _)| index == 0 || *algorithm != "packets");
            let costs = possible
                .map(|(algorithm, times)| (*algorithm, times[first..*end].iter().map(|time| time.ln()).sum::<f64>()));
            costs.min_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or(("push", f64::INFINITY))
        })
    }
}

/// Returns the size up to which what was best for `below` is used, where something else was for
/// `above`: the power of two below their geometric mean, or `below` itself.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // between two sizes
fn between(below: u64, above: u64) -> u64 {
    let mean = (below as f64 * above as f64).sqrt() as u64;
    below.max(1 << mean.max(1).ilog2())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn times(library: &[f64], by: &[(&'static str, &[f64])]) -> Times {
        Times {
            sizes: (0..library.len()).map(|index| 8 << (2 * index)).collect(),
            library: library.to_vec(),
            by: by.iter().map(|(name, times)| (*name, times.to_vec())).collect(),
        }
    }

    #[test]
    fn each_size_gets_what_was_fastest() {
        let times = times(
            &[4.0; 6],
            &[
                ("packets", &[1.0, 1.0, 3.0, 9.0, 20.0, 90.0]),
                ("oneshot", &[3.0, 3.0, 2.0, 2.0, 8.0, 40.0]),
                ("push", &[5.0, 5.0, 5.0, 5.0, 5.0, 5.0]),
            ],
        );
        let choice = times.choose(Reach::Measured).unwrap();
        assert_eq!(choice.algorithms, "packets:64/oneshot:1K/push:8K/library");
        let expected = (1.0f64 * 1.0 * 2.0 * 2.0 * 5.0 * 5.0 / 4f64.powi(6)).powf(1.0 / 6.0);
        assert!((choice.share - expected).abs() < 1e-9 && choice.is_worth_a_row());
    }

    #[test]
    fn what_chance_may_have_done_is_no_step() {
        let near = times(&[2.0; 4], &[("push", &[2.0, 2.0, 2.0, 2.0]), ("tree", &[1.99, 2.1, 1.99, 2.1])]);
        let choice = near.choose(Reach::Measured).unwrap();
        assert_eq!((choice.algorithms.as_str(), choice.is_worth_a_row()), ("push:512/library", false));
    }

    #[test]
    fn packets_come_first_or_not_at_all() {
        let by: [(&'static str, &[f64]); 2] = [("packets", &[2.0, 2.0, 0.9]), ("push", &[1.0, 1.0, 1.0])];
        assert_eq!(times(&[2.0; 3], &by).choose(Reach::Measured).unwrap().algorithms, "push:128/library");
    }

    #[test]
    fn three_steps_are_the_most() {
        let fast = |index: usize| -> Vec<f64> { (0..4).map(|size| if size == index { 1.0 } else { 2.0 }).collect() };
        let all: Vec<(&str, Vec<f64>)> = ["a", "b", "c", "d"].into_iter().zip((0..4).map(fast)).collect();
        let by: Vec<(&'static str, &[f64])> = all.iter().map(|(name, times)| (*name, &times[..])).collect();
        let steps = |reach| times(&[2.0; 4], &by).choose(reach).unwrap().algorithms.split('/').count();
        // The last is what leaves sizes to the library.
        assert_eq!([Reach::All, Reach::Measured].map(steps), [1, STEPS + 1]);
    }

    #[test]
    fn sizes_that_were_not_measured_are_the_librarys() {
        let measured = Times { sizes: vec![16384, 65536], library: vec![2.0; 2], by: vec![("push", vec![1.0; 2])] };
        assert_eq!(measured.choose(Reach::Measured).unwrap().algorithms, "library:16383/push:64K/library");
        assert_eq!(measured.choose(Reach::All).unwrap().algorithms, "push");
    }

    #[test]
    fn a_second_measurement_has_to_win_as_well() {
        assert!((share(&[1.0, 4.0], &[2.0, 2.0]) - 1.0).abs() < 1e-12);
        assert!(is_worth_a_row(share(&[1.9; 3], &[2.0; 3])) && !is_worth_a_row(share(&[1.97; 3], &[2.0; 3])));
    }

    #[test]
    fn one_size_and_none() {
        assert_eq!(times(&[1.0], &[("push", &[0.5])]).choose(Reach::Measured).unwrap().algorithms, "push:8/library");
        assert_eq!(times(&[], &[("push", &[])]).choose(Reach::Measured), None);
        assert_eq!([between(8, 32), between(24, 48), between(8, 9), between(0, 8)], [16, 32, 8, 1]);
    }
}
