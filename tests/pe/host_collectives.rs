//! Collectives from the host and on streams: on teams of several shapes, of all element types.

mod long;
mod mismatches;

use std::collections::HashSet;
use std::fmt::Debug;
use std::ops::Range;

use bytemuck::Pod;
use half::{bf16, f16};
use num_complex::Complex;
use oxshmem::{
    Compare, Error, FaultKind, HeapError, Operations, Pe, ReduceOp, Reducible, Stream, SymmetricSlice, SymmetricView,
    Team, TeamError, TeamUniqueId,
};
use oxshmem_tests::covering::covering;

pub use self::long::long;
pub use self::mismatches::mismatches;
use crate::Outcome;
use crate::rig::{Extent, mix};

/// Elements of one member's part: nothing, what goes in packets, and what does not.
const LENGTHS: [usize; 6] = [0, 1, 7, 64, 1000, 9000];
/// Elements after a result that must not change.
const GUARD: usize = 3;
/// Elements before the source and before the result, one pair after the other: mostly different
/// ones, so that the two buffers are aligned differently.
const SKEWS: [(usize, usize); 5] = [(0, 0), (1, 0), (0, 1), (3, 1), (1, 2)];
/// The most elements of a skew.
const SKEW: usize = 3;

/// An element: made from a number, and combined as the host does.
trait Element: Reducible + Debug + PartialEq {
    const OPS: &'static [ReduceOp];
    /// Small numbers, so that every result is exact.
    fn make(number: u64) -> Self;
    fn combine(op: ReduceOp, a: Self, b: Self) -> Self;
}

const ALL: [ReduceOp; 7] =
    [ReduceOp::And, ReduceOp::Or, ReduceOp::Xor, ReduceOp::Min, ReduceOp::Max, ReduceOp::Sum, ReduceOp::Prod];

macro_rules! integers {
    ($($type:ty),*) => {
        $(impl Element for $type {
            const OPS: &'static [ReduceOp] = &ALL;
            fn make(number: u64) -> Self {
                mix(number) as Self
            }
            fn combine(op: ReduceOp, a: Self, b: Self) -> Self {
                match op {
                    ReduceOp::And => a & b,
                    ReduceOp::Or => a | b,
                    ReduceOp::Xor => a ^ b,
                    ReduceOp::Min => a.min(b),
                    ReduceOp::Max => a.max(b),
                    ReduceOp::Sum => a.wrapping_add(b),
                    ReduceOp::Prod => a.wrapping_mul(b),
                }
            }
        })*
    };
}
integers!(i8, i16, i32, i64, u8, u16, u32, u64);

/// What floating-point types have in common: numbers that they hold exactly.
macro_rules! floats {
    ($($type:ty, $ops:expr, $to:expr, $from:expr;)*) => {
        $(impl Element for $type {
            const OPS: &'static [ReduceOp] = &$ops;
            fn make(number: u64) -> Self {
                $to((mix(number) % 4 + 1) as f64)
            }
            fn combine(op: ReduceOp, a: Self, b: Self) -> Self {
                let (a, b): (f64, f64) = ($from(a), $from(b));
                $to(match op {
                    ReduceOp::Min => a.min(b),
                    ReduceOp::Max => a.max(b),
                    ReduceOp::Sum => a + b,
                    ReduceOp::Prod => a * b,
                    other => panic!("{other:?} of floating-point numbers"),
                })
            }
        })*
    };
}

floats! {
    f32, [ReduceOp::Min, ReduceOp::Max, ReduceOp::Sum, ReduceOp::Prod], |number: f64| number as f32, f64::from;
    f64, [ReduceOp::Min, ReduceOp::Max, ReduceOp::Sum, ReduceOp::Prod], |number: f64| number, |number: f64| number;
    f16, [ReduceOp::Min, ReduceOp::Max, ReduceOp::Sum, ReduceOp::Prod], f16::from_f64, f64::from;
    bf16, [ReduceOp::Min, ReduceOp::Max, ReduceOp::Sum, ReduceOp::Prod], bf16::from_f64, f64::from;
}

macro_rules! complex {
    ($($type:ty),*) => {
        $(impl Element for Complex<$type> {
            const OPS: &'static [ReduceOp] = &[ReduceOp::Sum, ReduceOp::Prod];
            fn make(number: u64) -> Self {
                let part = |number| (mix(number) % 3) as $type - 1.0;
                Self { re: part(number), im: part(!number) }
            }
            fn combine(op: ReduceOp, a: Self, b: Self) -> Self {
                match op {
                    ReduceOp::Sum => Self { re: a.re + b.re, im: a.im + b.im },
                    _ => Self { re: a.re * b.re - a.im * b.im, im: a.re * b.im + a.im * b.re },
                }
            }
        })*
    };
}
complex!(f32, f64);

/// What a member contributes: element `index` of PE `pe`, in a call with this number.
fn value<T: Element>(call: u64, pe: usize, index: usize) -> T {
    T::make(call << 40 | (pe as u64) << 32 | index as u64)
}

/// Which PE has what a broadcast sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Root {
    First,
    Middle,
    Last,
}

/// A collective in one of the ways it is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Form {
    Broadcast(Root),
    Fcollect,
    /// Lengths differ, one of them is zero.
    Collect,
    Alltoall,
    /// Every third element of the source, every second place of the result.
    Alltoalls,
    Reduce(ReduceOp),
    InPlace(ReduceOp),
    Reducescatter(ReduceOp),
}

impl Form {
    /// The forms of an element with these operations.
    fn of(ops: &[ReduceOp]) -> Vec<Self> {
        let mut forms = [Root::First, Root::Middle, Root::Last].map(Self::Broadcast).to_vec();
        forms.extend([Self::Fcollect, Self::Collect, Self::Alltoall, Self::Alltoalls]);
        forms.extend(ops.iter().flat_map(|op| [Self::Reduce(*op), Self::InPlace(*op), Self::Reducescatter(*op)]));
        forms
    }

    fn op(self) -> Option<ReduceOp> {
        match self {
            Self::Reduce(op) | Self::InPlace(op) | Self::Reducescatter(op) => Some(op),
            _ => None,
        }
    }

    /// The form whatever is combined by it.
    fn with_any_op(self) -> Self {
        match self {
            Self::Reduce(_) => Self::Reduce(ReduceOp::Sum),
            Self::InPlace(_) => Self::InPlace(ReduceOp::Sum),
            Self::Reducescatter(_) => Self::Reducescatter(ReduceOp::Sum),
            other => other,
        }
    }
}

/// The calls with elements of one type.
struct Kind {
    ops: &'static [ReduceOp],
    on_stream: bool,
    /// Also with the long lengths.
    long: bool,
    run: fn(&Pe, &[Team], Option<&Stream>, &[Call]) -> Outcome,
}

const fn kind<T: Element>() -> Kind {
    Kind { ops: T::OPS, on_stream: false, long: false, run: element::<T> }
}

const KINDS: [Kind; 15] = [
    Kind { long: true, ..kind::<u64>() },
    Kind { long: true, ..kind::<f32>() },
    kind::<i8>(),
    kind::<u8>(),
    kind::<i16>(),
    kind::<u16>(),
    Kind { long: true, ..kind::<i32>() },
    kind::<u32>(),
    kind::<i64>(),
    Kind { long: true, ..kind::<f64>() },
    kind::<f16>(),
    Kind { long: true, ..kind::<bf16>() },
    kind::<Complex<f32>>(),
    kind::<Complex<f64>>(),
    Kind { on_stream: true, ..kind::<i32>() },
];

/// What [`teams`] makes.
const TEAMS: usize = 3;

/// What meets in a call: of kind, team, length, form and operation those that there are.
type Feature = (Option<usize>, Option<usize>, Option<usize>, Option<Form>, Option<ReduceOp>);

/// One call, the same on all PEs.
#[derive(Debug, Clone, Copy)]
struct Call {
    /// An index into [`KINDS`].
    kind: usize,
    /// An index into [`teams`].
    team: usize,
    form: Form,
    /// Elements of one member's part.
    n: usize,
}

impl Call {
    /// Every type and operation with every length on every team.
    fn all(lengths: &[usize]) -> Vec<Self> {
        let mut calls = Vec::new();
        for (kind, Kind { ops, long, .. }) in KINDS.iter().enumerate() {
            let lengths = &lengths[..if *long { lengths.len() } else { lengths.len().min(4) }];
            for (team, n) in (0..TEAMS).flat_map(|team| lengths.iter().map(move |n| (team, *n))) {
                calls.extend(Form::of(ops).into_iter().map(|form| Self { kind, team, form, n }));
            }
        }
        calls
    }

    /// What calls must show when not all are made: every two things together; and every form with
    /// every length on every team, which is what an algorithm is chosen by.
    fn features(&self) -> Vec<Feature> {
        let (kind, team, n) = (Some(self.kind), Some(self.team), Some(self.n));
        let form = Some(self.form.with_any_op());
        let mut features = vec![
            (None, team, n, form, None),
            (kind, team, None, None, None),
            (kind, None, n, None, None),
            (kind, None, None, form, None),
        ];
        if let Some(op) = self.form.op() {
            let op = Some(op);
            features.extend([
                (kind, None, None, None, op),
                (None, team, None, None, op),
                (None, None, n, None, op),
                (None, None, None, form, op),
            ]);
        }
        features
    }
}

/// A team, memory for its collectives, and how they are called.
struct Bench<'a, T> {
    pe: &'a Pe,
    team: &'a Team,
    members: Vec<usize>,
    src: SymmetricView<'a, T>,
    dst: SymmetricView<'a, T>,
    stream: Option<&'a Stream>,
    calls: u64,
}

/// Calls a collective of the host, or the one on a stream.
macro_rules! run {
    ($bench:expr, $name:ident($($arg:expr),*)) => {
        match $bench.stream {
            None => $bench.pe.$name($bench.team $(, $arg)*)?,
            Some(stream) => {
                $bench.pe.on(stream).$name($bench.team $(, $arg)*)?;
                $bench.pe.on(stream).synchronize()?;
            }
        }
    };
}

impl<T: Element> Bench<'_, T> {
    /// Fills the source, that many elements, with the next call's values, and the result and what
    /// surrounds it with others.
    fn begin(&mut self, source: usize, result: usize) -> Outcome {
        self.calls += 1;
        let (before_src, before_dst) = self.skew();
        let mine: Vec<T> = (0..source).map(|index| self.value(self.pe.my_pe(), index)).collect();
        self.pe.write(self.src.view(before_src..), &mine)?;
        let guards: Vec<T> = (0..before_dst + result + GUARD).map(|index| self.guard(index)).collect();
        Ok(self.pe.write(&self.dst, &guards)?)
    }

    /// Returns how many elements come before the source and before the result of this call. Each
    /// team and each size of element begins with another skew, so that a form meets several.
    fn skew(&self) -> (usize, usize) {
        SKEWS[self.calls as usize % SKEWS.len()]
    }

    /// What PE `pe` contributes to this call.
    fn value(&self, pe: usize, index: usize) -> T {
        value(self.calls, pe, index)
    }

    /// What lies in the room of the result before this call.
    fn guard(&self, index: usize) -> T {
        value(!self.calls >> 24, 77, index)
    }

    /// What all members contribute, combined.
    fn combined(&self, op: ReduceOp, index: usize) -> T {
        let values = self.members.iter().map(|pe| self.value(*pe, index));
        values.reduce(|sum, value| T::combine(op, sum, value)).expect("a team has members")
    }

    /// Makes a call; its result must be right, and what follows it as it was.
    fn call(&mut self, form: Form, n: usize) -> Outcome {
        let (members, me, size) = (self.members.clone(), self.team.my_pe(), self.members.len());
        let from_all = |bench: &Self, range: &dyn Fn(usize) -> Range<usize>| -> Vec<T> {
            let of = |(member, pe)| range(member).map(move |index| bench.value(pe, index));
            members.iter().copied().enumerate().flat_map(of).collect()
        };
        let all = n * size;
        let (source, result) = match form {
            Form::Broadcast(_) | Form::Reduce(_) | Form::InPlace(_) => (n, n),
            Form::Fcollect | Form::Collect => (n, all),
            Form::Alltoall => (all, all),
            Form::Alltoalls => (3 * all, 2 * all),
            Form::Reducescatter(_) => (all, n),
        };
        self.begin(source, result)?;
        let (before_src, before_dst) = self.skew();
        let (src, dst) = (self.src.view(before_src..), self.dst.view(before_dst..));
        let expected: Vec<T> = match form {
            Form::Broadcast(root) => {
                let root = match root {
                    Root::First => 0,
                    Root::Middle => size / 2,
                    Root::Last => size - 1,
                };
                run!(self, broadcast(&dst, src.view(..n), root));
                (0..n).map(|index| self.value(members[root], index)).collect()
            }
            Form::Fcollect => {
                run!(self, fcollect(&dst, src.view(..n)));
                from_all(self, &|_| 0..n)
            }
            Form::Collect => {
                let length = |member: usize| n * member / size;
                run!(self, collect(&dst, src.view(..length(me))));
                from_all(self, &|member| 0..length(member))
            }
            Form::Alltoall => {
                run!(self, alltoall(&dst, &src, n));
                from_all(self, &|_| me * n..(me + 1) * n)
            }
            Form::Alltoalls => {
                run!(self, alltoalls(dst.clone().step_by(2), src.clone().step_by(3), n));
                // What lies between stays.
                let elements = members.iter().flat_map(|pe| (me * n..(me + 1) * n).map(|index| (*pe, 3 * index)));
                let places = elements.enumerate();
                places
                    .flat_map(|(at, (pe, index))| [self.value(pe, index), self.guard(before_dst + 2 * at + 1)])
                    .collect()
            }
            Form::Reduce(op) => {
                run!(self, reduce(op, &dst, src.view(..n)));
                (0..n).map(|index| self.combined(op, index)).collect()
            }
            Form::InPlace(op) => {
                self.pe.write(&dst, &self.pe.read(src.view(..n))?)?;
                run!(self, reduce(op, &dst, dst.view(..n)));
                (0..n).map(|index| self.combined(op, index)).collect()
            }
            Form::Reducescatter(op) => {
                run!(self, reducescatter(op, dst.view(..n), &src));
                (me * n..(me + 1) * n).map(|index| self.combined(op, index)).collect()
            }
        };
        let seen = self.pe.read(self.dst.view(..before_dst + expected.len() + GUARD))?;
        let guards = |range: Range<usize>| range.map(|index| self.guard(index));
        let after = guards(before_dst + expected.len()..seen.len());
        let room = guards(0..before_dst).chain(expected.iter().copied()).chain(after);
        let team = self.team.handle();
        for (index, (seen, expected)) in seen.iter().zip(room).enumerate() {
            assert_eq!(
                *seen,
                expected,
                "{form:?} of {n} {} on team {team:#x} of {size}, skewed by {:?}: element {index} - {before_dst}",
                T::NAME,
                self.skew()
            );
        }
        Ok(())
    }
}

/// Makes calls with elements of one type, team after team.
fn element<T: Element>(pe: &Pe, teams: &[Team], stream: Option<&Stream>, calls: &[Call]) -> Outcome {
    let most = calls.iter().map(|call| call.n).max().unwrap_or_default();
    let apart = if calls.iter().any(|call| call.form == Form::Alltoalls) { 3 } else { 1 };
    let room = apart * most * pe.n_pes() + GUARD + SKEW;
    // Each team has its own, since a slower PE may not be done with the team before.
    let (src, dst) = (pe.alloc::<T>(teams.len() * room)?, pe.alloc::<T>(teams.len() * room)?);
    for (index, team) in teams.iter().enumerate() {
        let own = || index * room..(index + 1) * room;
        let (src, dst, members) = (src.view(own()), dst.view(own()), team.members());
        let mut bench = Bench { pe, team, members, src, dst, stream, calls: (index + size_of::<T>()) as u64 };
        calls.iter().filter(|call| call.team == index).try_for_each(|call| bench.call(call.form, call.n))?;
    }
    pe.free(src)?;
    Ok(pe.free(dst)?)
}

/// The world, its two halves, and all PEs backwards.
fn teams(pe: &Pe) -> Result<Vec<Team>, Box<dyn std::error::Error>> {
    let (me, n, world) = (pe.my_pe(), pe.n_pes(), pe.team_world());
    let id = pe.alloc::<u8>(16)?;
    if me == 0 {
        let unique = TeamUniqueId::create()?;
        (0..n).try_for_each(|to| pe.put(&id, unique.as_bytes(), to))?;
    }
    pe.barrier_all()?;
    let bytes: [u8; 16] = pe.read(id.view(..16))?.try_into().unwrap();
    let backwards = Team::from_unique_id(pe, &TeamUniqueId::from_bytes(bytes), n - 1 - me, n)?;
    let (_, halves) = world.split_2d(pe, 2)?;
    pe.free(id)?;
    Ok(vec![world, halves, backwards])
}

/// Every collective of the host. Arguments: the longest length.
pub fn collectives(args: &[String]) -> Outcome {
    let pe = oxshmem::init()?;
    let teams = teams(&pe)?;
    let most: usize = args.first().map_or(Ok(usize::MAX), |text| text.parse())?;
    let lengths: Vec<usize> = LENGTHS.into_iter().filter(|n| *n <= most).collect();
    let extent = Extent::of(&pe)?;
    let calls = extent.of_list("host_collectives", &pe, Call::all(&lengths), Call::features);
    let stream = pe.create_stream()?;
    for (index, Kind { on_stream, run, .. }) in KINDS.iter().enumerate() {
        let calls: Vec<Call> = calls.iter().filter(|call| call.kind == index).copied().collect();
        run(&pe, &teams, on_stream.then_some(&stream), &calls)?;
    }
    order(&pe, &teams, &stream, if extent == Extent::Whole { 20 } else { 5 })?;
    Ok(pe.finalize()?)
}

/// What is put on a stream is done in order, and streams with different teams do not wait for each
/// other.
fn order(pe: &Pe, teams: &[Team], first: &Stream, rounds: usize) -> Outcome {
    let (world, half) = (&teams[0], &teams[1]);
    let second = pe.create_stream()?;
    let (sums, others) = (pe.filled_with(1u64)?, pe.filled_with(1u64)?);
    for _ in 0..rounds {
        pe.on(first).reduce(world, ReduceOp::Sum, &sums, sums.view(..1))?;
        pe.on(&second).team_sync(half)?;
        pe.on(&second).reduce(half, ReduceOp::Max, &others, others.view(..1))?;
        pe.on(first).barrier(world)?;
    }
    pe.on(&second).synchronize()?;
    pe.on(first).synchronize()?;
    let expected = (0..rounds).fold(1u64, |sum, _| sum.wrapping_mul(pe.n_pes() as u64));
    assert_eq!((pe.read(sums.view(..1))?[0], pe.read(others.view(..1))?[0]), (expected, 1));
    Ok(())
}

trait Filled {
    fn filled_with<T: Pod>(&self, value: T) -> oxshmem::Result<SymmetricSlice<T>>;
}

impl Filled for Pe {
    fn filled_with<T: Pod>(&self, value: T) -> oxshmem::Result<SymmetricSlice<T>> {
        let slice = self.alloc(1)?;
        self.write(&slice, &[value])?;
        self.barrier_all()?;
        Ok(slice)
    }
}

/// One member's wrong call is an error on all of them at once, names that member, writes nothing,
/// and the team goes on. With deadlines that no test waits for.
pub fn refused(_: &[String]) -> Outcome {
    const WRONG: usize = 1;
    let pe = oxshmem::init()?;
    let (me, n, world) = (pe.my_pe(), pe.n_pes(), pe.team_world());
    let (src, dst) = (pe.alloc::<u32>(64 * n)?, pe.alloc::<u32>(64 * n)?);
    let is_wrong = me == WRONG;
    let short = if is_wrong { src.view(..3) } else { src.view(..64) };
    let told = |result: oxshmem::Result<()>, operation: &str| {
        let Err(Error::Fault(fault)) = result else { panic!("{operation}: {result:?}") };
        assert!(matches!(fault.kind, FaultKind::Mismatch { .. }), "{fault}");
        assert_eq!((fault.operation, fault.team), (operation, Some(0)), "{fault}");
        assert!(n > 2 || fault.to_string().contains(&format!("PE {}", 1 - me)), "{fault}");
    };
    let goes_on = || -> Outcome {
        pe.write(&src, &[me as u32])?;
        pe.fcollect(&world, &dst, src.view(..1))?;
        assert_eq!(pe.read(dst.view(..n))?, (0..n as u32).collect::<Vec<_>>());
        pe.write(&dst, &vec![0; 64 * n])?;
        Ok(pe.barrier(&world)?)
    };
    // What only the wrong one can see.
    let calls: [(&str, &dyn Fn() -> oxshmem::Result<()>); 5] = [
        ("broadcast", &|| pe.broadcast(&world, &dst, short.view(..64), 0)),
        ("fcollect", &|| pe.fcollect(&world, &dst, short.view(..64))),
        ("collect", &|| pe.collect(&world, &dst, short.view(..64))),
        ("reduce", &|| pe.reduce(&world, ReduceOp::Sum, &dst, short.view(..64))),
        ("alltoall", &|| pe.alltoall(&world, &dst, if is_wrong { short.clone() } else { src.view(..) }, 64)),
    ];
    for (operation, call) in calls {
        let result = call();
        if is_wrong {
            let refused = matches!(
                result,
                Err(Error::Heap(
                    HeapError::OutOfRange { last: 64, len: 3, .. } | HeapError::TooShort { side: "src", .. }
                ))
            );
            assert!(refused, "{operation}: {result:?}");
        } else {
            told(result, operation);
        }
        assert_eq!(pe.read(dst.view(..64 * n))?, vec![0; 64 * n], "{operation}");
        goes_on()?;
    }
    // Calls that do not belong together.
    let size = if is_wrong { 2 } else { 3 };
    told(pe.fcollect(&world, &dst, src.view(..size)), "fcollect");
    told(pe.broadcast(&world, &dst, src.view(..3), usize::from(is_wrong)), "broadcast");
    let op = if is_wrong { ReduceOp::Max } else { ReduceOp::Min };
    told(pe.reduce(&world, op, &dst, src.view(..3)), "reduce");
    if is_wrong {
        told(pe.alltoall(&world, &dst, &src, 2), "alltoall");
    } else {
        told(pe.barrier(&world), "barrier");
    }
    goes_on()?;
    // Sizes for which members use different numbers of blocks.
    let (long_src, long_dst) = (pe.alloc::<u64>(9000 * n)?, pe.alloc::<u64>(9000 * n)?);
    for few in [1, 100, 3000, 8999] {
        let size = if is_wrong { few } else { 9000 };
        told(pe.fcollect(&world, &long_dst, long_src.view(..size)), "fcollect");
        told(pe.alltoall(&world, &long_dst, &long_src, size), "alltoall");
        told(pe.reduce(&world, ReduceOp::Sum, &long_dst, long_src.view(..size)), "reduce");
        assert_eq!(pe.read(&long_dst)?, vec![0; 9000 * n]);
        goes_on()?;
    }
    // What is wrong everywhere.
    let result = pe.broadcast(&world, &dst, src.view(..3), n);
    assert!(matches!(&result, Err(Error::Fault(fault)) if fault.operation == "broadcast"), "{result:?}");
    goes_on()?;
    let floats = pe.alloc::<f64>(4)?;
    let error = pe.reduce(&world, ReduceOp::Xor, &floats, floats.view(..4)).unwrap_err();
    assert!(matches!(error, Error::Team(TeamError::BadReduction { op: ReduceOp::Xor, element: "f64" })), "{error:?}");
    let stream = pe.create_stream()?;
    let queued = pe.on(&stream).fcollect(&world, &dst, short.view(..64));
    let ended = pe.on(&stream).synchronize();
    assert_eq!((queued.is_err(), ended.is_err()), (is_wrong, true), "{queued:?} {ended:?}");
    goes_on()?;
    Ok(pe.finalize()?)
}

/// A member that comes late is named at the deadline; when it has made its call too, the team goes
/// on. Run with a short `OXSHMEM_TIMEOUT`.
pub fn late(_: &[String]) -> Outcome {
    const LATE: usize = 1;
    let pe = oxshmem::init()?;
    let (me, n, world) = (pe.my_pe(), pe.n_pes(), pe.team_world());
    let team = world.split_strided(&pe, 0, 1, n)?.unwrap();
    let (src, dst) = (pe.alloc::<u32>(5000)?, pe.alloc::<u32>(5000 * n)?);
    pe.write(&src, &[me as u32; 5000])?;
    for size in [1, 5000] {
        let call = || pe.fcollect(&team, &dst, src.view(..size));
        if me == LATE {
            // The others meet it here after their deadline, through the hub.
            let _ = pe.alloc::<u8>(1)?;
            // What they had for it may be there or not.
            if let Err(error) = call() {
                assert!(matches!(&error, Error::Fault(fault) if fault.operation == "fcollect"), "{error}");
            }
        } else {
            let Err(Error::Fault(fault)) = call() else { panic!("a member is missing") };
            let FaultKind::Timeout { pe: missing, .. } = fault.kind else { panic!("{fault}") };
            assert_eq!(
                (missing, fault.operation, fault.team),
                (LATE as i32, "fcollect", Some(team.handle())),
                "{fault}"
            );
            let _ = pe.alloc::<u8>(1)?;
        }
        let _ = pe.alloc::<u8>(1)?;
        call()?;
        let expected: Vec<u32> = (0..n as u32).flat_map(|pe| vec![pe; size]).collect();
        assert_eq!(pe.read(dst.view(..size * n))?, expected);
    }
    team.destroy(&pe)?;
    Ok(pe.finalize()?)
}

/// Waits until `count` members have said that they gave up a call. A wait ends by the same deadline
/// as such a call, so several waits may pass until then.
fn await_given_up(pe: &Pe, gave_up: &SymmetricSlice<u64>, count: u64) {
    const WAITS: usize = 10;
    let is_reached = |_| pe.signal_wait_until(gave_up.signal(0), Compare::Ge, count).is_ok();
    assert!((0..WAITS).any(is_reached), "{count} members have not given up");
}

/// One member waits in vain for one that is missing. The others come later, and hear from each
/// other which one that is. At least three PEs that meet in rounds. Run with a short
/// `OXSHMEM_TIMEOUT`.
pub fn missing(_: &[String]) -> Outcome {
    const MISSING: usize = 1;
    /// Waits for it in the first round.
    const FIRST: usize = 2;
    let pe = oxshmem::init()?;
    let (me, n, world) = (pe.my_pe(), pe.n_pes(), pe.team_world());
    let (src, dst) = (pe.alloc::<u64>(40_000)?, pe.alloc::<u64>(40_000)?);
    let gave_up = pe.alloc::<u64>(1)?;
    let mut turn = 0;
    let mut misses = |call: &dyn Fn() -> oxshmem::Result<()>| -> Outcome {
        turn += 1;
        if me != MISSING && me != FIRST {
            await_given_up(&pe, &gave_up, turn);
        }
        // The others meet the missing one here, through the hub.
        if me == MISSING {
            pe.alloc::<u8>(1)?;
        }
        let Err(Error::Fault(fault)) = call() else { panic!("a member is missing") };
        match fault.kind {
            FaultKind::MemberLeft { awaited, .. } => assert!(me != FIRST && awaited == Some(MISSING as i32), "{fault}"),
            FaultKind::Timeout { pe: awaited, .. } => assert!(me == FIRST && awaited == MISSING as i32, "{fault}"),
            _ => panic!("{fault}"),
        }
        if me == FIRST {
            // What it has told has arrived when the others begin.
            pe.quiet()?;
            for other in (0..n).filter(|other| *other != FIRST && *other != MISSING) {
                pe.signal(gave_up.signal(0).add(1), other)?;
            }
        }
        if me != MISSING {
            pe.alloc::<u8>(1)?;
        }
        pe.alloc::<u8>(1)?;
        Ok(call()?)
    };
    misses(&|| pe.barrier(&world))?;
    for size in [1, 40_000] {
        misses(&|| pe.reduce(&world, ReduceOp::Sum, &dst, src.view(..size)))?;
    }
    Ok(pe.finalize()?)
}

/// A member that is late once does not keep the members missing each other in what they call after
/// that, though nothing else lets them meet: members that give up a call say so, and the late one
/// does not wait for their data. Run with a short `OXSHMEM_TIMEOUT`.
pub fn late_once(_: &[String]) -> Outcome {
    const LATE: usize = 1;
    /// In one of these they meet again: each takes a deadline at most.
    const CALLS: u64 = 10;
    /// Elements that one block handles, and several: in packets or relayed, and more.
    const SIZES: [usize; 3] = [1, 9000, 40_000];
    const MOST: usize = SIZES[SIZES.len() - 1];
    let pe = oxshmem::init()?;
    let (me, n, world) = (pe.my_pe(), pe.n_pes(), pe.team_world());
    let (src, dst) = (pe.alloc::<u64>(MOST * n)?, pe.alloc::<u64>(MOST * n)?);
    let (gave_up, mut expected) = (pe.alloc::<u64>(1)?, 0);
    let mut missed_once = |call: &dyn Fn() -> oxshmem::Result<()>| -> Outcome {
        // Through the hub, wherever the members were before.
        pe.alloc::<u8>(1)?;
        expected += n as u64 - 1;
        if me == LATE {
            await_given_up(&pe, &gave_up, expected);
        }
        let mut results = Vec::new();
        for number in 1..=CALLS {
            pe.write(&src, &vec![number; src.len()])?;
            results.push(call());
            if number == 1 && me != LATE {
                pe.signal(gave_up.signal(0).add(1), LATE)?;
            }
        }
        for (call, result) in results.iter().enumerate() {
            let Err(error) = result else { continue };
            let Error::Fault(fault) = error else { panic!("{error:?}") };
            match fault.kind {
                FaultKind::MemberLeft { .. } | FaultKind::Mismatch { .. } => (),
                // The late one does not wait for those that have left.
                FaultKind::Timeout { .. } => assert!(me != LATE || call > 0, "{results:?}"),
                _ => panic!("{fault}"),
            }
        }
        assert!(results[0].is_err(), "{results:?}");
        assert!(results[CALLS as usize - 1].is_ok(), "{results:?}");
        Ok(())
    };
    for size in SIZES {
        missed_once(&|| pe.reduce(&world, ReduceOp::Sum, &dst, src.view(..size)))?;
        assert_eq!(pe.read(dst.view(..size))?, vec![CALLS * n as u64; size]);
        missed_once(&|| pe.alltoall(&world, &dst, &src, size))?;
        assert_eq!(pe.read(dst.view(..size * n))?, vec![CALLS; size * n]);
        missed_once(&|| pe.barrier(&world))?;
    }
    Ok(pe.finalize()?)
}

/// Checks, without a PE, that a thinned list has every type, operation, form, length and team. They
/// are counted by hand, not by what chooses them.
pub fn thinned(_args: &[String]) -> Outcome {
    for lengths in [&LENGTHS[..], &LENGTHS[..5], &LENGTHS[..4], &LENGTHS[..3]] {
        let all = Call::all(lengths);
        let few = covering(all.clone(), Call::features);
        assert!(few.len() * 9 < all.len(), "{} of {}", few.len(), all.len());
        let kinds: HashSet<usize> = few.iter().map(|call| call.kind).collect();
        assert_eq!(kinds.len(), 15);
        // Calls with eight integer types and the one on a stream, four types of floating point,
        // and complex ones.
        let ops: HashSet<_> = few.iter().filter_map(|call| Some((call.kind, call.form.op()?))).collect();
        assert_eq!(ops.len(), 9 * 7 + 4 * 4 + 2 * 2);
        let forms: HashSet<_> = few.iter().map(|call| (call.kind, call.form.with_any_op())).collect();
        assert_eq!(forms.len(), 15 * 10);
        let sizes: HashSet<_> = few.iter().map(|call| (call.form.with_any_op(), call.n, call.team)).collect();
        assert_eq!(sizes.len(), 10 * lengths.len() * TEAMS);
        let teams: HashSet<_> = few.iter().filter_map(|call| Some((call.form.op()?, call.team))).collect();
        assert_eq!(teams.len(), 7 * TEAMS);
    }
    Ok(())
}
