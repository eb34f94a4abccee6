//! Pauses between a PE's attempts to reach its job.

use std::time::Duration;

use oxshmem_system::mixing::mix;

/// The first pause at most. With less time than this left, another attempt is of no use.
const FIRST: Duration = Duration::from_millis(50);
/// Every pause at most.
const LONGEST: Duration = Duration::from_secs(1);

/// The pauses of one PE. They grow, so that a job whose PE 0 is late does not flood its node and
/// the servers of names, and differ between PEs, so that these do not come all at once.
#[derive(Debug)]
pub struct Pauses {
    rank: u32,
    round: u32,
}

impl Pauses {
    /// Returns the pauses of the PE with this rank, from the first on.
    pub fn of(rank: u32) -> Self {
        Self { rank, round: 0 }
    }

    /// Returns the next pause of a PE that has `left` until its deadline, at most half of that;
    /// none if it should give up.
    pub fn next(&mut self, left: Duration) -> Option<Duration> {
        if left <= FIRST {
            return None;
        }
        let most = FIRST.saturating_mul(1 << self.round.min(16)).min(LONGEST);
        let state = u64::from(self.rank) << 32 | u64::from(self.round);
        let part = u32::try_from(mix(state) % 1024).unwrap_or_default();
        self.round = self.round.saturating_add(1);
        // Between half of it and all.
        let pause = most / 2 + most / 2048 * part;
        Some(pause.min(left / 2))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_limit_and_differ_between_pes() {
        let all = |rank| {
            let mut pauses = Pauses::of(rank);
            (0..100).map(|_| pauses.next(Duration::MAX).unwrap()).collect::<Vec<_>>()
        };
        let first = all(0);
        for (round, pause) in (0..).zip(&first) {
            let most = FIRST.saturating_mul(1 << round.min(10)).min(LONGEST);
            assert!(*pause >= most / 2 && *pause <= most, "{round}: {pause:?}");
        }
        assert_ne!(first, all(1));
    }

    #[test]
    fn a_deadline_is_not_passed_in_a_pause() {
        let mut pauses = Pauses::of(7);
        for _ in 0..20 {
            pauses.next(Duration::MAX);
        }
        let mut left = Duration::from_secs(1);
        while let Some(pause) = pauses.next(left) {
            assert!(pause <= left / 2, "{pause:?} of {left:?}");
            left -= pause;
        }
        assert!(left <= FIRST && !left.is_zero());
    }
}
