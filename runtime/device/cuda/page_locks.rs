//! Which pages of the host this process has page-locked for registered memory, and for how many
//! ranges. Ranges of two allocations may share a page, and the driver locks a page once.

use std::collections::BTreeMap;
use std::ops::Range;

/// Pages that were locked together.
#[derive(Debug)]
struct Locked {
    end: u64,
    /// Registered ranges that need them.
    users: usize,
}

/// Locked pages, by their first address.
#[derive(Debug)]
pub(super) struct PageLocks(BTreeMap<u64, Locked>);

impl PageLocks {
    pub const fn new() -> Self {
        Self(BTreeMap::new())
    }

    /// Locks those pages of a range that are not locked yet, by `lock`, which may leave pages that
    /// the program has locked itself alone and then returns `false`. Returns the first addresses
    /// of all that the range needs, for [`release`](Self::release).
    ///
    /// # Errors
    /// Fails if `lock` does. What it has locked before is unlocked by `unlock`.
    pub fn keep<E>(
        &mut self,
        pages: Range<u64>,
        mut lock: impl FnMut(Range<u64>) -> Result<bool, E>,
        unlock: impl FnMut(u64),
    ) -> Result<Vec<u64>, E> {
        let mut needed = Vec::new();
        let mut at = pages.start;
        while at < pages.end {
            if let Some((first, locked)) = self.0.range_mut(..=at).next_back().filter(|(_, locked)| at < locked.end) {
                locked.users += 1;
                needed.push(*first);
                at = locked.end;
                continue;
            }
            let end = self.0.range(at..pages.end).next().map_or(pages.end, |(first, _)| *first);
            match lock(at..end) {
                Ok(true) => {
                    self.0.insert(at, Locked { end, users: 1 });
                    needed.push(at);
                }
                Ok(false) => {}
                Err(error) => {
                    self.release(&needed, unlock);
                    return Err(error);
                }
            }
            at = end;
        }
        Ok(needed)
    }

    /// Unlocks, by `unlock`, pages that no range needs any more. `needed`: what
    /// [`keep`](Self::keep) returned for one range.
    pub fn release(&mut self, needed: &[u64], mut unlock: impl FnMut(u64)) {
        for first in needed {
            let Some(locked) = self.0.get_mut(first) else { continue };
            locked.users -= 1;
            if locked.users == 0 {
                self.0.remove(first);
                unlock(*first);
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    /// What the driver was told.
    #[derive(Debug, Default)]
    struct Told(RefCell<Vec<String>>);

    impl Told {
        fn lock(&self, pages: Range<u64>) -> Result<bool, String> {
            if pages.contains(&100) {
                return Err("100 is not mapped".to_owned());
            }
            self.0.borrow_mut().push(format!("lock {pages:?}"));
            Ok(true)
        }

        fn unlock(&self, first: u64) {
            self.0.borrow_mut().push(format!("unlock {first}"));
        }

        fn take(&self) -> Vec<String> {
            self.0.take()
        }
    }

    #[test]
    fn a_page_of_two_ranges_stays_locked_until_both_are_gone() {
        let (mut locks, told) = (PageLocks::new(), Told::default());
        let keep = |locks: &mut PageLocks, pages| {
            locks.keep(pages, |pages| told.lock(pages), |first| told.unlock(first)).unwrap()
        };
        let first = keep(&mut locks, 10..12);
        let within = keep(&mut locks, 11..12);
        let across = keep(&mut locks, 8..15);
        assert_eq!(told.take(), ["lock 10..12", "lock 8..10", "lock 12..15"]);
        locks.release(&first, |first| told.unlock(first));
        locks.release(&within, |first| told.unlock(first));
        assert!(told.take().is_empty());
        locks.release(&across, |first| told.unlock(first));
        assert_eq!(told.take(), ["unlock 8", "unlock 10", "unlock 12"]);
        assert!(locks.0.is_empty());
    }

    #[test]
    fn pages_that_the_program_has_locked_are_left_alone() {
        let mut locks = PageLocks::new();
        let needed = locks.keep(0..4, |_| Ok::<_, String>(false), |_| panic!("nothing was locked")).unwrap();
        locks.release(&needed, |_| panic!("nothing was locked"));
    }

    #[test]
    fn a_range_that_cannot_be_locked_leaves_the_others_as_they_were() {
        let (mut locks, told) = (PageLocks::new(), Told::default());
        let kept = locks.keep(97..99, |pages| told.lock(pages), |first| told.unlock(first)).unwrap();
        let refused = locks.keep(96..102, |pages| told.lock(pages), |first| told.unlock(first));
        assert_eq!(refused.unwrap_err(), "100 is not mapped");
        assert_eq!(told.take(), ["lock 97..99", "lock 96..97", "unlock 96"]);
        locks.release(&kept, |first| told.unlock(first));
        assert_eq!(told.take(), ["unlock 97"]);
    }
}
