//! Shorter lists of cases, for PEs that share a GPU: those that show every feature once.

use std::collections::HashSet;
use std::hash::Hash;

/// Returns whether two of the items are equal.
pub fn has_equal<T: Hash + Eq>(items: &[T]) -> bool {
    let mut seen = HashSet::new();
    !items.iter().all(|item| seen.insert(item))
}

/// Returns few of the items, in their order, that together show every feature that any of them
/// shows. They are visited in strides through the list, so that neighbours differ in all respects,
/// and those are taken first that show the most features not seen before.
#[must_use]
pub fn covering<T, F: Hash + Eq>(items: Vec<T>, features: impl Fn(&T) -> Vec<F>) -> Vec<T> {
    let n = items.len();
    let features: Vec<Vec<F>> = items.iter().map(features).collect();
    // Near the golden section, and prime to the length, so that every item is visited.
    let step = (n * 618 / 1000..).find(|step| gcd(*step, n) == 1).unwrap_or(1);
    let mut seen = HashSet::new();
    let mut chosen = vec![false; n];
    for least in (1..=features.iter().map(Vec::len).max().unwrap_or_default()).rev() {
        for at in (0..n).map(|index| index * step % n) {
            let new: Vec<&F> = features[at].iter().filter(|feature| !seen.contains(feature)).collect();
            if new.len() >= least {
                seen.extend(new);
                chosen[at] = true;
            }
        }
    }
    items.into_iter().zip(chosen).filter_map(|(item, chosen)| chosen.then_some(item)).collect()
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_feature_is_shown(items in proptest::collection::vec((0u8..9, 0u8..9, 0u8..9), 0..300)) {
            let pairs = |&(a, b, c): &(u8, u8, u8)| vec![(0, a, b), (1, a, c), (2, b, c)];
            let all: HashSet<_> = items.iter().flat_map(pairs).collect();
            let few = covering(items.clone(), pairs);
            let shown: HashSet<_> = few.iter().flat_map(pairs).collect();
            prop_assert_eq!(&shown, &all);
            // One after the other, each once and in order.
            let mut rest = items.iter();
            prop_assert!(few.iter().all(|item| rest.any(|other| item == other)));
        }
    }

    #[test]
    fn pairs_take_fewer_items_than_products() {
        let items: Vec<[u32; 4]> = (0..625).map(|i| [i % 5, i / 5 % 5, i / 25 % 5, i / 125]).collect();
        let pairs = |item: &[u32; 4]| {
            let pair = |(a, b): (usize, usize)| (a, b, item[a], item[b]);
            [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)].map(pair).to_vec()
        };
        // 25 are the fewest that can do.
        let few = covering(items, pairs);
        assert!((25..60).contains(&few.len()), "{}", few.len());
    }

    #[test]
    fn a_gpu_is_shared_when_two_pes_say_the_same() {
        assert!(has_equal(&["0000:1b:00.0", "0000:4e:00.0", "0000:1b:00.0"]));
        assert!(!has_equal(&["0000:1b:00.0", "0000:4e:00.0"]));
        assert!(!has_equal::<&str>(&[]));
    }
}
