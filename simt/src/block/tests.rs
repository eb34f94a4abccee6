//! Tests of blocks.

use proptest::prelude::*;

use super::*;

fn warp() -> Warp {
    let warp = Warp::new(0);
    warp.reset(u32::MAX);
    warp.ready.set(0);
    warp
}

/// Returns what a lane of `group` gets, straight from the definition.
fn expected(op: WarpOp, group: &[usize], lane: usize, values: &[u64], sources: &[u32]) -> u64 {
    match op {
        WarpOp::Sync => 0,
        WarpOp::Ballot => group.iter().filter(|&&l| values[l] != 0).map(|&l| 1 << l).sum(),
        WarpOp::Shfl => {
            let source = sources[lane] as usize;
            values[if group.contains(&source) { source } else { lane }]
        }
        WarpOp::MatchAny => group.iter().filter(|&&l| values[l] == values[lane]).map(|&l| 1 << l).sum(),
        WarpOp::RunStarts => (0..group.len())
            .filter(|&i| i == 0 || values[group[i]] != values[group[i - 1]] + u64::from(sources[group[i - 1]]))
            .map(|i| 1 << group[i])
            .sum(),
    }
}

fn any_op() -> impl Strategy<Value = WarpOp> {
    prop_oneof![
        Just(WarpOp::Sync),
        Just(WarpOp::Ballot),
        Just(WarpOp::Shfl),
        Just(WarpOp::MatchAny),
        Just(WarpOp::RunStarts)
    ]
}

proptest! {
    /// Any partition of the lanes into groups, each with an operation of its own, in any order
    /// of arrival.
    #[test]
    fn groups_complete_with_the_results_of_the_definition(
        group_of in prop::collection::vec(0usize..5, LANES),
        ops in prop::collection::vec(any_op(), 5),
        values in prop::collection::vec(0u64..3, LANES),
        sources in prop::collection::vec(0u32..32, LANES),
        order in Just((0..LANES).collect::<Vec<_>>()).prop_shuffle(),
    ) {
        let warp = warp();
        let members = |g: usize| (0..LANES).filter(|&lane| group_of[lane] == g).collect::<Vec<_>>();
        let mut arrived = [0; 5];
        for &lane in &order {
            let g = group_of[lane];
            let group = members(g);
            let mask = group.iter().fold(0, |mask, &l| mask | 1 << l);
            arrived[g] += 1;
            let last = arrived[g] == group.len();
            match warp.arrive(1 << lane, ops[g], mask, values[lane], sources[lane]) {
                Arrival::Complete(result) => {
                    prop_assert!(last);
                    prop_assert_eq!(result, expected(ops[g], &group, lane, &values, &sources));
                    for &other in group.iter().filter(|&&l| l != lane) {
                        prop_assert_eq!(warp.result(1 << other), expected(ops[g], &group, other, &values, &sources));
                    }
                    prop_assert_eq!(warp.ready.get() & mask, mask & !(1 << lane));
                }
                Arrival::Wait => prop_assert!(!last),
                Arrival::Mismatch(_) => prop_assert!(false),
            }
        }
        prop_assert_eq!((warp.groups_used.get(), warp.in_op.get()), (0, 0));
    }

    /// Lanes exit instead of arriving, in any order: the last event completes the operation for
    /// those that arrived.
    #[test]
    fn exits_complete_groups(
        exits in prop::collection::vec(any::<bool>(), LANES),
        order in Just((0..LANES).collect::<Vec<_>>()).prop_shuffle(),
    ) {
        let warp = warp();
        let stay = (0..LANES).filter(|&l| !exits[l]).fold(0u32, |mask, l| mask | 1 << l);
        let mut completed = 0u32;
        for &lane in &order {
            if exits[lane] {
                warp.exit(1 << lane);
            } else if let Arrival::Complete(votes) = warp.arrive(1 << lane, WarpOp::Ballot, u32::MAX, 1, 0) {
                prop_assert_eq!(votes, u64::from(stay));
                completed |= 1 << lane;
            }
        }
        prop_assert_eq!(completed | warp.ready.get(), stay);
        prop_assert_eq!(warp.in_op.get(), 0);
    }

    /// Lanes gather at a few places; those of one place and key are told each other, and the
    /// lowest place goes first.
    #[test]
    fn gatherers_of_one_place_go_together(
        sites in prop::collection::vec(1usize..4, LANES),
        keys in prop::collection::vec(0u64..3, LANES),
        order in Just((0..LANES).collect::<Vec<_>>()).prop_shuffle(),
    ) {
        let warp = warp();
        let mut ready = u32::MAX;
        let mut told = [0u32; LANES];
        for &lane in &order {
            ready &= !(1 << lane);
            warp.ready.set(ready);
            if let Some(group) = warp.gather(1 << lane, sites[lane], keys[lane]) {
                told[lane] = group;
                ready = warp.ready.get();
            } else {
                ready = warp.ready.get();
            }
        }
        let mut first = 0;
        while warp.gathering.get() != 0 {
            let group = warp.release_gathering();
            let site = sites[group.trailing_zeros() as usize];
            prop_assert!(site > first);
            first = site;
        }
        for lane in 0..LANES {
            let together = |l: &usize| sites[*l] == sites[lane] && keys[*l] == keys[lane];
            let group = (0..LANES).filter(together).fold(0u32, |mask, l| mask | 1 << l);
            let told = if told[lane] != 0 { told[lane] } else { warp.result(1 << lane) as u32 };
            prop_assert_eq!(told, group);
        }
    }
}

#[test]
fn a_different_operation_with_the_same_mask_is_a_mismatch() {
    let warp = warp();
    assert!(matches!(warp.arrive(1, WarpOp::Sync, 3, 0, 0), Arrival::Wait));
    assert!(matches!(warp.arrive(2, WarpOp::Shfl, 3, 0, 0), Arrival::Mismatch(WarpOp::Sync)));
}

#[test]
fn shapes_give_lanes_and_warps() {
    let mut block = Block::new();
    block.prepare(7, [3, 2, 2], [5, 7, 2], 100, 0);
    assert_eq!(block.view().block_idx, [1, 0, 1]);
    assert_eq!(block.warps().iter().map(|warp| warp.live.get().count_ones()).collect::<Vec<_>>(), [32, 32, 6]);
    assert_eq!(block.thread_idx(69), [4, 6, 1]);
    assert!((block.view().dynamic_shared as usize).is_multiple_of(128));
    block.prepare(0, [1, 1, 1], [1024, 1, 1], 0, 3);
    assert_eq!((block.live.get(), block.ready_warps.get()), (1024, u32::MAX));
    assert!(block.view().dynamic_shared.is_null());
    assert!(block.shared(2, 40, 64).addr().is_multiple_of(64));
}
