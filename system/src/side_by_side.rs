//! Calls that wait, made by several threads at a time.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{Builder, scope};

/// The fewest items for each thread: starting one takes about as long as a command.
const FEWEST: usize = 16;

/// Calls `work` with each item, on up to `most` threads where there are many, and returns the
/// results in the order of the items.
///
/// # Errors
/// Returns the error of the first item, in their order, whose call fails. Threads begin no further
/// call then; what the others have returned is dropped.
pub fn side_by_side<T, R, E>(items: &[T], most: usize, work: impl Fn(&T) -> Result<R, E> + Sync) -> Result<Vec<R>, E>
where
    T: Sync,
    R: Send,
    E: Send,
{
    let next = AtomicUsize::new(0);
    let failed = AtomicBool::new(false);
    let run = || {
        let mut done = Vec::new();
        // An item is always worked on once its number is taken, so all items before one that fails
        // are.
        while !failed.load(Ordering::Relaxed) {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(index) else { break };
            let result = work(item);
            if result.is_err() {
                failed.store(true, Ordering::Relaxed);
            }
            done.push((index, result));
        }
        done
    };
    let threads = (items.len() / FEWEST).min(most).max(1);
    let mut all = scope(|scope| {
        // Where the system gives no more threads, those that there are do the work.
        let start = |_| Builder::new().name("oxshmem-set-up".into()).spawn_scoped(scope, run).ok();
        let others: Vec<_> = (1..threads).map_while(start).collect();
        let mut all = run();
        for thread in others {
            match thread.join() {
                Ok(done) => all.extend(done),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        all
    });
    all.sort_unstable_by_key(|(index, _)| *index);
    all.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::{Barrier, Mutex};
    use std::thread::{ThreadId, current};

    use super::*;

    const MOST: usize = 16;

    #[test]
    fn results_have_the_order_of_the_items() {
        for count in [0, 1, 15, 16, 33, 1000] {
            let items: Vec<usize> = (0..count).collect();
            let result: Result<Vec<usize>, ()> = side_by_side(&items, MOST, |item| Ok(item * 2));
            assert_eq!(result, Ok(items.iter().map(|item| item * 2).collect()));
        }
    }

    #[test]
    fn many_items_are_worked_on_by_several_threads_at_a_time_and_few_by_one() {
        let threads = |count: usize, meet: &Barrier| {
            let seen: Mutex<HashSet<ThreadId>> = Mutex::default();
            let result: Result<Vec<()>, ()> = side_by_side(&vec![(); count], MOST, |()| {
                // No thread returns before all of them are here.
                if seen.lock().is_ok_and(|mut seen| seen.insert(current().id())) {
                    meet.wait();
                }
                Ok(())
            });
            assert!(result.is_ok());
            seen.lock().map_or(0, |seen| seen.len())
        };
        assert_eq!(threads(MOST * FEWEST, &Barrier::new(MOST)), MOST);
        assert_eq!(threads(2 * FEWEST - 1, &Barrier::new(1)), 1);
    }

    #[test]
    fn the_first_item_that_fails_is_reported_and_no_further_one_begun() {
        for first in [0, 7, 300, 999] {
            let items: Vec<usize> = (0..1000).collect();
            let begun = AtomicUsize::new(0);
            let result: Result<Vec<()>, usize> = side_by_side(&items, MOST, |item| {
                begun.fetch_add(1, Ordering::Relaxed);
                if *item >= first { Err(*item) } else { Ok(()) }
            });
            assert_eq!(result, Err(first));
            // Each thread fails once at most.
            assert!(begun.load(Ordering::Relaxed) <= first + MOST);
        }
    }
}
