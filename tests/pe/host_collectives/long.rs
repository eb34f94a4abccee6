//! Long collectives: by several blocks on streams of the program, of several teams at once, and the
//! same bits from call to call.

use super::*;

/// Elements of one member's part: what goes in packets of several blocks, and what does not.
const LONG: [usize; 2] = [9000, 100_000];

/// `host_collectives_long`.
pub fn long(_: &[String]) -> Outcome {
    let pe = oxshmem::init()?;
    let teams = teams(&pe)?;
    let stream = pe.create_stream()?;
    use Form::{Alltoall, Alltoalls, Broadcast, Collect, Fcollect, InPlace, Reduce, Reducescatter};
    use ReduceOp::{Max, Min, Prod, Sum, Xor};
    element::<i32>(&pe, &teams, Some(&stream), &calls(&[Reduce(Min), InPlace(Max), Reducescatter(Sum), Reduce(Xor)]))?;
    element::<f64>(&pe, &teams, Some(&stream), &calls(&[Reduce(Max), InPlace(Sum), Reducescatter(Min), Fcollect]))?;
    let halves = [Reduce(Sum), InPlace(Min), Reducescatter(Prod), Broadcast(Root::Middle)];
    element::<bf16>(&pe, &teams, Some(&stream), &calls(&halves))?;
    // Skewed by single bytes.
    let moves = [Broadcast(Root::Last), Fcollect, Collect, Alltoall, Alltoalls];
    element::<u8>(&pe, &teams, Some(&stream), &calls(&moves))?;
    at_once(&pe, &teams)?;
    for team in &teams {
        same_bits(&pe, team, &stream)?;
    }
    Ok(pe.finalize()?)
}

/// Returns these forms in every length: the short ones on all teams, the long ones on those of all
/// PEs.
fn calls(forms: &[Form]) -> Vec<Call> {
    let mut calls = Vec::new();
    for (team, n) in (0..TEAMS).flat_map(|team| LONG.map(|n| (team, n))) {
        if n == LONG[0] || team != 1 {
            calls.extend(forms.iter().map(|form| Call { kind: 0, team, form: *form, n }));
        }
    }
    calls
}

/// Two teams of all PEs make long calls on two streams at the same time, while a third team makes
/// some on the PE's own stream.
fn at_once(pe: &Pe, teams: &[Team]) -> Outcome {
    const ROUNDS: usize = 4;
    const N: usize = 40_000;
    let streams = [pe.create_stream()?, pe.create_stream()?];
    let (large, half) = ([&teams[0], &teams[2]], &teams[1]);
    let n = pe.n_pes();
    let start = |pe: usize, team: usize| -> Vec<u64> { (0..N).map(|index| value(team as u64, pe, index)).collect() };
    let (sums, parts) = (pe.alloc::<u64>(2 * N)?, pe.alloc::<u64>(2 * N)?);
    let (mine, greatest) = (pe.alloc::<u64>(N)?, pe.alloc::<u64>(N)?);
    pe.write(&sums, &[start(pe.my_pe(), 0), start(pe.my_pe(), 1)].concat())?;
    pe.write(&mine, &start(pe.my_pe(), 2))?;
    let (each, room) = (N / n, |index: usize| index * N..(index + 1) * N);
    for _ in 0..ROUNDS {
        for (index, (team, stream)) in large.into_iter().zip(&streams).enumerate() {
            let (sums, parts) = (sums.view(room(index)), parts.view(room(index)));
            pe.on(stream).reduce(team, ReduceOp::Sum, &sums, &sums)?;
            pe.on(stream).alltoall(team, &parts, &sums, each)?;
        }
        pe.reduce(half, ReduceOp::Max, &greatest, &mine)?;
    }
    streams.iter().try_for_each(|stream| pe.on(stream).synchronize())?;
    for (index, team) in large.into_iter().enumerate() {
        let all: Vec<Vec<u64>> = (0..n).map(|pe| start(pe, index)).collect();
        let factor = (1..ROUNDS).fold(1u64, |factor, _| factor.wrapping_mul(n as u64));
        let sum = |at: usize| all.iter().fold(0u64, |sum, of| sum.wrapping_add(of[at])).wrapping_mul(factor);
        let expected: Vec<u64> = (0..N).map(sum).collect();
        assert!(pe.read(sums.view(room(index)))? == expected, "sums of team {:#x}", team.handle());
        let own = &expected[team.my_pe() * each..][..each];
        let seen = pe.read(parts.view(room(index)).view(..n * each))?;
        assert!(seen.chunks(each).all(|part| part == own), "alltoall of team {:#x}", team.handle());
    }
    let all: Vec<Vec<u64>> = half.members().into_iter().map(|pe| start(pe, 2)).collect();
    let expected: Vec<u64> = (0..N).map(|at| all.iter().map(|of| of[at]).max().unwrap_or_default()).collect();
    assert!(pe.read(&greatest)? == expected, "the greatest values of team {:#x}", half.handle());
    // No PE frees what another one may still look at.
    pe.barrier_all()?;
    [sums, parts, mine, greatest].into_iter().try_for_each(|slice| pe.free(slice))?;
    Ok(())
}

/// What a PE contributes to element `index`: numbers of many magnitudes, so that a sum depends on
/// its order.
fn rough(pe: usize, index: usize) -> f32 {
    let number = mix((pe as u64) << 32 | index as u64);
    ((number % 2_000_001) as f32 - 1e6) * 2f32.powi((number >> 32) as i32 % 16)
}

/// Sums of `f32` by several blocks have the same bits on all members and in each call. Near members
/// add in the order of their numbers.
fn same_bits(pe: &Pe, team: &Team, stream: &Stream) -> Outcome {
    let (members, me) = (team.members(), team.my_pe());
    let (size, most) = (members.len(), LONG[LONG.len() - 1]);
    let sum = |index: usize| members.iter().map(|pe| rough(*pe, index)).reduce(|sum, value| sum + value).unwrap();
    let backwards = |index: usize| members.iter().rev().map(|pe| rough(*pe, index)).reduce(|a, b| a + b).unwrap();
    assert!(
        size < 3 || (0..100).any(|index| sum(index) != backwards(index)),
        "these sums do not depend on their order"
    );
    let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect::<Vec<u32>>();
    let (src, dst) = (pe.alloc::<f32>(most * pe.n_pes())?, pe.alloc::<f32>(2 * most)?);
    pe.write(&src, &(0..most * size).map(|index| rough(pe.my_pe(), index)).collect::<Vec<f32>>())?;
    for n in LONG {
        let mut first: Option<Vec<u32>> = None;
        for _ in 0..3 {
            let (all, scattered) = (dst.view(..n), dst.view(n..2 * n));
            pe.on(stream).reduce(team, ReduceOp::Sum, &all, src.view(..n))?;
            pe.on(stream).reducescatter(team, ReduceOp::Sum, &scattered, &src)?;
            pe.on(stream).synchronize()?;
            let seen = bits(pe.read(dst.view(..2 * n))?);
            assert!(first.as_ref().is_none_or(|first| *first == seen), "sums of {n} differ from the call before");
            first = Some(seen);
        }
        let seen = first.unwrap_or_default();
        if team.is_near() {
            let expected = (0..n).chain(me * n..(me + 1) * n).map(sum).collect();
            assert!(seen == bits(expected), "sums of {n} are not in the order of the members");
        }
        // All members have their results, and keep them until all have looked.
        pe.barrier(team)?;
        let next = pe.get_vec(dst.view(..n), members[(me + 1) % size])?;
        assert!(bits(next) == seen[..n], "sums of {n} differ between members of team {:#x}", team.handle());
        pe.barrier(team)?;
    }
    pe.free(src)?;
    Ok(pe.free(dst)?)
}
