//! Percentiles and rates.

use serde::{Deserialize, Serialize};

/// Median, 99th percentile and mean of times, in microseconds. Percentiles are by nearest rank, so
/// each is a time that did occur. The clock of some GPUs advances about once in a microsecond:
/// percentiles are differences of two of its values then, and the mean is finer than they are. No
/// values where nothing was timed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Percentiles {
    /// Median.
    pub us_p50: Option<f64>,
    /// 99th percentile.
    pub us_p99: Option<f64>,
    /// Mean; none in files of earlier releases.
    #[serde(default)]
    pub us_mean: Option<f64>,
}

impl Percentiles {
    /// Returns the statistics of times in nanoseconds.
    pub fn of(nanoseconds: &[u64]) -> Self {
        let mut sorted = nanoseconds.to_vec();
        sorted.sort_unstable();
        let at = |percent: usize| {
            let rank = (sorted.len() * percent).div_ceil(100).max(1);
            sorted.get(rank - 1).map(|ns| *ns as f64 / 1e3)
        };
        let sum = sorted.iter().map(|ns| *ns as f64 / 1e3).sum::<f64>();
        Self { us_p50: at(50), us_p99: at(99), us_mean: (!sorted.is_empty()).then(|| sum / sorted.len() as f64) }
    }
}

/// Returns the nanoseconds from the first block's begin to the last one's end; `clock` holds begin
/// and end of each block. At least 1.
pub fn elapsed(clock: &[u64]) -> u64 {
    let begin = clock.iter().step_by(2).min().copied().unwrap_or_default();
    let end = clock.iter().skip(1).step_by(2).max().copied().unwrap_or_default();
    end.saturating_sub(begin).max(1)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn percentiles_by_nearest_rank() {
        let times: Vec<u64> = (1..=100).rev().map(|n| n * 1000).collect();
        let all = |us_p50, us_p99, us_mean| Percentiles {
            us_p50: Some(us_p50),
            us_p99: Some(us_p99),
            us_mean: Some(us_mean),
        };
        assert_eq!(Percentiles::of(&times), all(50.0, 99.0, 50.5));
        assert_eq!(Percentiles::of(&[2500]), all(2.5, 2.5, 2.5));
        assert_eq!(Percentiles::of(&[1000, 3000]), all(1.0, 3.0, 2.0));
        assert_eq!(Percentiles::of(&[]), Percentiles::default());
    }

    #[test]
    fn the_mean_is_finer_than_a_coarse_clock() {
        // 1.25 us each, by a clock that advances each microsecond.
        let times: Vec<u64> = (0..100).map(|i| (i + 1) * 5 / 4 * 1000 - i * 5 / 4 * 1000).collect();
        let found = Percentiles::of(&times);
        assert_eq!((found.us_p50, found.us_mean), (Some(1.0), Some(1.25)));
    }

    #[test]
    fn a_run_lasts_from_the_first_begin_to_the_last_end() {
        assert_eq!(elapsed(&[10, 20, 5, 12, 11, 40]), 35);
        assert_eq!(elapsed(&[7, 7]), 1);
    }

    proptest! {
        #[test]
        fn percentiles_are_ordered_times_that_occurred(times in proptest::collection::vec(0u64..1 << 40, 1..300)) {
            let found = Percentiles::of(&times);
            let (median, high) = (found.us_p50.unwrap(), found.us_p99.unwrap());
            prop_assert!(median <= high);
            prop_assert!(times.iter().any(|ns| *ns as f64 / 1e3 == high));
            let below = times.iter().filter(|ns| **ns as f64 / 1e3 <= median).count();
            prop_assert!(2 * below >= times.len());
        }
    }
}
