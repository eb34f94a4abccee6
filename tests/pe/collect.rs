//! `collect` from the host and on streams, whose members contribute different lengths: short ones,
//! which one block sends, long ones, which several share, and both; and calls that fail.

use std::fmt::Debug;

use bytemuck::Pod;
use oxshmem::{Error, FaultKind, Operations, Pe, Stream, SymmetricSlice, Team};

use crate::Outcome;
use crate::rig::mix;

/// Elements after a result that must not change.
const GUARD: usize = 5;

/// What members contribute, by their number in a team of `n`.
type Length = fn(usize, usize) -> usize;

/// Contributions in elements: nothing, of one member alone, a block's and one more, what goes in
/// packets of several blocks, and more than that.
const LENGTHS: [Length; 10] = [
    |_, _| 0,
    |member, n| usize::from(member + 1 == n),
    |member, _| member % 2,
    |member, _| 3 * member + 1,
    |member, _| 511 + member,
    |member, _| 2048 + member,
    |member, _| if member == 0 { 7000 } else { 1 },
    |member, n| 9001 * (n - 1 - member),
    |member, n| if member + 1 == n { 100_000 } else { 3 * member },
    |member, _| 60_000 + 13 * member,
];
/// The longest contribution.
const LONGEST: usize = 100_000;

/// An element from a number.
trait Element: Pod + Debug + PartialEq {
    fn make(number: u64) -> Self;
}
impl Element for u8 {
    fn make(number: u64) -> Self {
        mix(number) as Self
    }
}
impl Element for u32 {
    fn make(number: u64) -> Self {
        mix(number) as Self
    }
}
impl Element for u64 {
    fn make(number: u64) -> Self {
        mix(number)
    }
}

/// Element `index` of what `pe` contributes to a call.
fn value<T: Element>(call: u64, pe: usize, index: usize) -> T {
    T::make(call << 48 | (pe as u64) << 40 | index as u64)
}

/// A team, memory for its calls, and the stream that they are put on.
struct Bench<'a, T> {
    pe: &'a Pe,
    team: &'a Team,
    src: &'a SymmetricSlice<T>,
    dst: &'a SymmetricSlice<T>,
    stream: &'a Stream,
    calls: u64,
}

impl<T: Element> Bench<'_, T> {
    /// Makes a call, `shift` elements into the source and `to` into the destination. Its result
    /// must be right, and what lies around it as it was.
    fn call(&mut self, length: Length, (shift, to): (usize, usize), on_stream: bool) -> Outcome {
        let (pe, team) = (self.pe, self.team);
        let (me, members) = (team.my_pe(), team.members());
        let of = |member| length(member, members.len());
        self.calls += 1;
        let call = self.calls;
        let mine: Vec<T> = (0..of(me)).map(|index| value(call, members[me], index)).collect();
        pe.write(self.src.view(shift..shift + mine.len()), &mine)?;
        let contributed = |(member, other): (usize, &usize)| {
            let other = *other;
            (0..of(member)).map(move |index| value(call, other, index))
        };
        let all: Vec<T> = members.iter().enumerate().flat_map(contributed).collect();
        let guard = |count: usize| vec![T::make(!call); count];
        pe.write(self.dst.view(..to + all.len() + GUARD), &guard(to + all.len() + GUARD))?;
        let (dst, src) = (self.dst.view(to..), self.src.view(shift..shift + mine.len()));
        if on_stream {
            pe.on(self.stream).collect(team, dst, src)?;
            pe.on(self.stream).synchronize()?;
        } else {
            pe.collect(team, dst, src)?;
        }
        let seen = pe.read(self.dst.view(..to + all.len() + GUARD))?;
        let expected = [guard(to), all, guard(GUARD)].concat();
        let wrong = (0..seen.len()).find(|at| seen[*at] != expected[*at]);
        if let Some(at) = wrong {
            panic!("PE {}: {at} of {} of call {call}: {:?}, not {:?}", pe.my_pe(), seen.len(), seen[at], expected[at]);
        }
        Ok(())
    }
}

/// Makes all calls with elements of one type on some teams.
fn element<T: Element>(pe: &Pe, teams: &[&Team], stream: &Stream) -> Outcome {
    let room = LONGEST * pe.n_pes() * 2 + GUARD + 8;
    for team in teams {
        // Each team has its own memory, since a slower PE may not be done with the team before.
        let (src, dst) = (pe.alloc::<T>(LONGEST + 8)?, pe.alloc::<T>(room)?);
        let mut bench = Bench { pe, team, src: &src, dst: &dst, stream, calls: 0 };
        for (turn, length) in LENGTHS.into_iter().enumerate() {
            // Aligned to 16 bytes, and to the element.
            for (shift, to) in [(0, 0), (turn % 3, 1 + turn % 5)] {
                bench.call(length, (shift, to), turn % 2 == 0)?;
            }
        }
        pe.free(src)?;
        pe.free(dst)?;
    }
    Ok(())
}

/// All lengths, as bytes and as words, of all PEs and of every second one.
pub fn lengths(_: &[String]) -> Outcome {
    let pe = oxshmem::init()?;
    let world = pe.team_world();
    let (_, columns) = world.split_2d(&pe, 2)?;
    let stream = pe.create_stream()?;
    element::<u8>(&pe, &[&world], &stream)?;
    element::<u32>(&pe, &[&world, &columns], &stream)?;
    element::<u64>(&pe, &[&world], &stream)?;
    in_order(&pe, &world, &stream)?;
    Ok(pe.finalize()?)
}

/// Calls in a row on a stream, each of which appends to what it finds: no call begins before the
/// one before it has ended on its PE.
fn in_order(pe: &Pe, world: &Team, stream: &Stream) -> Outcome {
    const CALLS: usize = 4;
    let (me, n) = (pe.my_pe(), pe.n_pes());
    let buffers: Vec<_> =
        (0..=CALLS).map(|_| pe.alloc::<u32>(n.pow(CALLS as u32 + 1) * 9)).collect::<Result<_, _>>()?;
    let length = |member: usize| member + 3;
    pe.write(buffers[0].view(..length(me)), &vec![me as u32; length(me)])?;
    let mut expected: Vec<u32> = (0..n).flat_map(|member| vec![member as u32; length(member)]).collect();
    pe.on(stream).collect(world, &buffers[1], buffers[0].view(..length(me)))?;
    for call in 1..CALLS {
        pe.on(stream).collect(world, &buffers[call + 1], buffers[call].view(..expected.len()))?;
        expected = expected.repeat(n);
    }
    pe.on(stream).synchronize()?;
    assert_eq!(pe.read(buffers[CALLS].view(..expected.len()))?, expected);
    buffers.into_iter().try_for_each(|buffer| pe.free(buffer))?;
    Ok(())
}

/// Calls that fail on all members, after which the team goes on; and a member that comes late. Run
/// with a short `OXSHMEM_TIMEOUT`.
pub fn errors(_: &[String]) -> Outcome {
    const WRONG: usize = 1;
    let pe = oxshmem::init()?;
    let (me, n, world) = (pe.my_pe(), pe.n_pes(), pe.team_world());
    let (src, dst) = (pe.alloc::<u32>(LONGEST)?, pe.alloc::<u32>(LONGEST * n)?);
    let untouched = vec![7u32; LONGEST * n];
    let fault = |result: oxshmem::Result<()>, what: &str| match result {
        Err(Error::Fault(fault)) => *fault,
        other => panic!("PE {me}: {what}: {other:?}"),
    };
    let length = |member: usize| 20_000 * member + 3;
    let goes_on = || -> Outcome {
        pe.write(src.view(..length(me)), &vec![me as u32; length(me)])?;
        pe.collect(&world, &dst, src.view(..length(me)))?;
        let expected: Vec<u32> = (0..n).flat_map(|member| vec![member as u32; length(member)]).collect();
        assert_eq!(pe.read(dst.view(..expected.len()))?, expected);
        Ok(pe.barrier(&world)?)
    };
    pe.write(&dst, &untouched)?;
    // What all contribute together reaches into the source: each member finds that out when it
    // knows the lengths.
    for size in [2, 600, 30_000] {
        let (to, from) = (dst.view(..size), dst.view(size..2 * size));
        let fault = fault(pe.collect(&world, to, from), "overlap");
        assert!(matches!(fault.kind, FaultKind::Overlap { .. }), "{fault}");
        assert_eq!((fault.operation, fault.team), ("collect", Some(0)), "{fault}");
        assert!(pe.read(&dst)? == untouched, "a call that failed has written something");
        pe.barrier(&world)?;
    }
    goes_on()?;
    // Another call of one member.
    let result =
        if me == WRONG { pe.fcollect(&world, &dst, src.view(..9)) } else { pe.collect(&world, &dst, src.view(..9)) };
    let differs = fault(result, "another call");
    assert!(matches!(differs.kind, FaultKind::Mismatch { .. }), "{differs}");
    goes_on()?;
    // A member that comes when the others have given up. What they had for it may be there or not.
    let team = world.split_strided(&pe, 0, 1, n)?.unwrap();
    for size in [1, 50_000] {
        let call = || pe.collect(&team, &dst, src.view(..if me == 0 { size } else { 2 }));
        if me == WRONG {
            let _ = pe.alloc::<u8>(1)?;
            if let Err(error) = call() {
                assert!(matches!(&error, Error::Fault(fault) if fault.operation == "collect"), "{error}");
            }
        } else {
            let late = fault(call(), "a member is missing");
            let FaultKind::Timeout { pe: missing, .. } = late.kind else { panic!("{late}") };
            assert_eq!((missing, late.operation), (WRONG as i32, "collect"), "{late}");
            let _ = pe.alloc::<u8>(1)?;
        }
        let _ = pe.alloc::<u8>(1)?;
        call()?;
    }
    team.destroy(&pe)?;
    goes_on()?;
    Ok(pe.finalize()?)
}
