//! Collectives from the host and on streams: on teams of several shapes, of all element types.

use std::fmt::Debug;

use bytemuck::Pod;
use oxshmem::{
    Bfloat16, Complex, Error, FaultKind, Half, HeapError, Pe, ReduceOp, Reducible, Stream, SymmetricSlice, Team,
    TeamError,
};

use crate::Outcome;
use crate::rig::mix;

/// Elements of one member's part: nothing, what goes in packets, and what does not.
const LENGTHS: [usize; 6] = [0, 1, 7, 64, 1000, 9000];
/// Elements behind a result that must not change.
const GUARD: usize = 3;

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

/// The bits of a whole number from 1 to 1023 as binary16.
fn half(number: f64) -> Half {
    let whole = number as u16;
    let exponent = 15 - whole.leading_zeros() as u16;
    Half((exponent + 15) << 10 | (whole << (10 - exponent) & 0x3ff))
}

fn whole(half: Half) -> f64 {
    f64::from((half.0 & 0x3ff | 0x400) >> (25 - (half.0 >> 10)))
}

floats! {
    f32, [ReduceOp::Min, ReduceOp::Max, ReduceOp::Sum, ReduceOp::Prod], |number: f64| number as f32, f64::from;
    f64, [ReduceOp::Min, ReduceOp::Max, ReduceOp::Sum, ReduceOp::Prod], |number: f64| number, |number: f64| number;
    Half, [ReduceOp::Min, ReduceOp::Max, ReduceOp::Sum], half, whole;
    Bfloat16, [ReduceOp::Min, ReduceOp::Max, ReduceOp::Sum], |number: f64| Bfloat16(((number as f32).to_bits() >> 16) as u16),
        |number: Bfloat16| f64::from(f32::from_bits(u32::from(number.0) << 16));
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

/// A team, memory for its collectives, and how they are called.
struct Bench<'a, T> {
    pe: &'a Pe,
    team: &'a Team,
    members: Vec<usize>,
    src: SymmetricSlice<T>,
    dst: SymmetricSlice<T>,
    stream: Option<&'a Stream>,
    call: u64,
}

/// Calls a collective of the host, or the one on a stream.
macro_rules! run {
    ($bench:expr, $name:ident, $on_stream:ident ($($arg:expr),*)) => {
        match $bench.stream {
            None => $bench.pe.$name($bench.team $(, $arg)*)?,
            Some(stream) => {
                $bench.pe.$on_stream($bench.team $(, $arg)*, stream)?;
                $bench.pe.synchronize_stream(stream)?;
            }
        }
    };
}

impl<T: Element> Bench<'_, T> {
    /// Fills the source with this call's values, and the result with others.
    fn begin(&mut self, elements: usize) -> Outcome {
        self.call += 1;
        let mine: Vec<T> = (0..elements).map(|index| value(self.call, self.pe.my_pe(), index)).collect();
        self.pe.write_local(&self.src, 0, &mine)?;
        let guards: Vec<T> = (0..self.dst.len()).map(|index| value(!self.call >> 24, 77, index)).collect();
        Ok(self.pe.write_local(&self.dst, 0, &guards)?)
    }

    /// The result is this, and what is behind it is as it was.
    fn expect(&self, what: &str, expected: &[T]) -> Outcome {
        let seen = self.pe.read_local(&self.dst, 0..expected.len() + GUARD)?;
        let guards = (expected.len()..seen.len()).map(|index| value(!self.call >> 24, 77, index));
        let whole = expected.iter().copied().chain(guards);
        for (index, (seen, expected)) in seen.iter().zip(whole).enumerate() {
            let (team, n) = (self.team.handle(), self.members.len());
            assert_eq!(*seen, expected, "{what} on team {team:#x} of {n}: element {index} of {}", T::NAME);
        }
        Ok(())
    }

    /// Data as it is.
    fn moves(&mut self, n: usize) -> Outcome {
        let (members, me) = (self.members.clone(), self.team.my_pe());
        let size = members.len();
        for root in [0, size / 2, size - 1] {
            self.begin(n)?;
            run!(self, broadcast, broadcast_on_stream(&self.dst, &self.src, n, root));
            let from = members[root];
            self.expect("broadcast", &(0..n).map(|index| value(self.call, from, index)).collect::<Vec<T>>())?;
        }
        self.begin(n)?;
        run!(self, fcollect, fcollect_on_stream(&self.dst, &self.src, n));
        let of = |pe: usize, n: usize| (0..n).map(move |index| (pe, index));
        let values = |at: Vec<(usize, usize)>| -> Vec<T> {
            at.into_iter().map(|(pe, index)| value(self.call, pe, index)).collect()
        };
        self.expect("fcollect", &values(members.iter().flat_map(|pe| of(*pe, n)).collect()))?;

        // Lengths that differ, one of them zero.
        let length = |member: usize| n * member / size;
        self.begin(n)?;
        run!(self, collect, collect_on_stream(&self.dst, &self.src, length(me)));
        let values = |at: Vec<(usize, usize)>| -> Vec<T> {
            at.into_iter().map(|(pe, index)| value(self.call, pe, index)).collect()
        };
        let all = members.iter().enumerate().flat_map(|(member, pe)| of(*pe, length(member))).collect();
        self.expect("collect", &values(all))?;

        self.begin(n * size)?;
        run!(self, alltoall, alltoall_on_stream(&self.dst, &self.src, n));
        let values = |at: Vec<(usize, usize)>| -> Vec<T> {
            at.into_iter().map(|(pe, index)| value(self.call, pe, index)).collect()
        };
        self.expect("alltoall", &values(members.iter().flat_map(|pe| (0..n).map(|i| (*pe, me * n + i))).collect()))?;

        // Every second place of the result; what lies between stays.
        self.begin(3 * n * size)?;
        run!(self, alltoalls, alltoalls_on_stream(&self.dst, &self.src, 2, 3, n));
        let mut expected: Vec<T> = Vec::new();
        for pe in &members {
            for index in 0..n {
                expected.push(value(self.call, *pe, 3 * (me * n + index)));
                expected.push(value(!self.call >> 24, 77, expected.len()));
            }
        }
        self.expect("alltoalls", &expected)
    }

    fn reductions(&mut self, op: ReduceOp, n: usize) -> Outcome {
        let (members, me) = (self.members.clone(), self.team.my_pe());
        let combined = |call: u64, index: usize| {
            let of = |pe: &usize| value::<T>(call, *pe, index);
            members.iter().skip(1).fold(of(&members[0]), |sum, pe| T::combine(op, sum, of(pe)))
        };
        self.begin(n)?;
        run!(self, reduce, reduce_on_stream(op, &self.dst, &self.src, n));
        self.expect("reduce", &(0..n).map(|index| combined(self.call, index)).collect::<Vec<T>>())?;
        // In place.
        self.begin(n)?;
        self.pe.write_local(&self.dst, 0, &self.pe.read_local(&self.src, 0..n)?)?;
        run!(self, reduce, reduce_on_stream(op, &self.dst, &self.dst, n));
        self.expect("reduce in place", &(0..n).map(|index| combined(self.call, index)).collect::<Vec<T>>())?;
        self.begin(n * members.len())?;
        run!(self, reducescatter, reducescatter_on_stream(op, &self.dst, &self.src, n));
        let expected: Vec<T> = (0..n).map(|index| combined(self.call, me * n + index)).collect();
        self.expect("reducescatter", &expected)
    }
}

fn element<T: Element>(pe: &Pe, teams: &[Team], stream: Option<&Stream>, lengths: &[usize]) -> Outcome {
    let most = lengths.iter().max().copied().unwrap_or_default();
    let room = 3 * most * pe.n_pes() + GUARD;
    let (src, dst) = (pe.alloc::<T>(room)?, pe.alloc::<T>(room)?);
    for team in teams {
        let whole = || 0..room;
        let (src, dst, members) = (src.slice(whole())?, dst.slice(whole())?, team.members());
        let mut bench = Bench { pe, team, members, src, dst, stream, call: 0 };
        for n in lengths {
            bench.moves(*n)?;
            for op in T::OPS {
                bench.reductions(*op, *n)?;
            }
        }
        // Before the memory is another team's.
        pe.barrier_all()?;
    }
    pe.free(src)?;
    Ok(pe.free(dst)?)
}

/// The world, its two halves, and all PEs backwards.
fn teams(pe: &Pe) -> Result<Vec<Team>, Box<dyn std::error::Error>> {
    let (me, n, world) = (pe.my_pe(), pe.n_pes(), pe.team_world());
    let id = pe.alloc::<u8>(16)?;
    if me == 0 {
        let unique = pe.team_unique_id()?;
        (0..n).try_for_each(|to| pe.put(&id, 0, unique.as_bytes(), to))?;
    }
    pe.barrier_all()?;
    let bytes: [u8; 16] = pe.read_local(&id, 0..16)?.try_into().unwrap();
    let backwards = pe.team_from_unique_id(&oxshmem::TeamUniqueId::from_bytes(bytes), n - 1 - me, n)?;
    let (_, halves) = pe.team_split_2d(&world, 2)?;
    pe.free(id)?;
    Ok(vec![world, halves, backwards])
}

pub fn collectives(args: &[String]) -> Outcome {
    let pe = oxshmem::init()?;
    let teams = teams(&pe)?;
    let most: usize = args.first().map_or(Ok(usize::MAX), |text| text.parse())?;
    let lengths: Vec<usize> = LENGTHS.into_iter().filter(|n| *n <= most).collect();
    element::<u64>(&pe, &teams, None, &lengths)?;
    element::<f32>(&pe, &teams, None, &lengths)?;
    let few = &lengths[..lengths.len().min(4)];
    element::<i8>(&pe, &teams, None, few)?;
    element::<u8>(&pe, &teams, None, few)?;
    element::<i16>(&pe, &teams, None, few)?;
    element::<u16>(&pe, &teams, None, few)?;
    element::<i32>(&pe, &teams, None, few)?;
    element::<u32>(&pe, &teams, None, few)?;
    element::<i64>(&pe, &teams, None, few)?;
    element::<f64>(&pe, &teams, None, few)?;
    element::<Half>(&pe, &teams, None, few)?;
    element::<Bfloat16>(&pe, &teams, None, few)?;
    element::<Complex<f32>>(&pe, &teams, None, few)?;
    element::<Complex<f64>>(&pe, &teams, None, few)?;
    let stream = pe.create_stream()?;
    element::<i32>(&pe, &teams, Some(&stream), few)?;
    order(&pe, &teams, &stream)?;
    Ok(pe.finalize()?)
}

/// What is put on a stream is done in order, and streams with different teams do not wait for each other.
fn order(pe: &Pe, teams: &[Team], first: &Stream) -> Outcome {
    const ROUNDS: usize = 20;
    let (world, half) = (&teams[0], &teams[1]);
    let second = pe.create_stream()?;
    let (sums, others) = (pe.filled_with(1u64)?, pe.filled_with(1u64)?);
    for _ in 0..ROUNDS {
        pe.reduce_on_stream(world, ReduceOp::Sum, &sums, &sums, 1, first)?;
        pe.team_sync_on_stream(half, &second)?;
        pe.reduce_on_stream(half, ReduceOp::Max, &others, &others, 1, &second)?;
        pe.barrier_on_stream(world, first)?;
    }
    pe.synchronize_stream(&second)?;
    pe.synchronize_stream(first)?;
    let expected = (0..ROUNDS).fold(1u64, |sum, _| sum.wrapping_mul(pe.n_pes() as u64));
    assert_eq!((pe.read_local(&sums, 0..1)?[0], pe.read_local(&others, 0..1)?[0]), (expected, 1));
    Ok(())
}

trait Filled {
    fn filled_with<T: Pod>(&self, value: T) -> oxshmem::Result<SymmetricSlice<T>>;
}

impl Filled for Pe {
    fn filled_with<T: Pod>(&self, value: T) -> oxshmem::Result<SymmetricSlice<T>> {
        let slice = self.alloc(1)?;
        self.write_local(&slice, 0, &[value])?;
        self.barrier_all()?;
        Ok(slice)
    }
}

/// One member's wrong call is an error on all of them at once, names who it was, writes nothing, and the team goes on. With deadlines that
/// no test waits for.
pub fn refused(_: &[String]) -> Outcome {
    const WRONG: usize = 1;
    let pe = oxshmem::init()?;
    let (me, n, world) = (pe.my_pe(), pe.n_pes(), pe.team_world());
    let (src, dst) = (pe.alloc::<u32>(64 * n)?, pe.alloc::<u32>(64 * n)?);
    let is_wrong = me == WRONG;
    let short = if is_wrong { src.slice(0..3)? } else { src.slice(0..64)? };
    let told = |result: oxshmem::Result<()>, operation: &str| {
        let Err(Error::Fault(fault)) = result else { panic!("{operation}: {result:?}") };
        assert!(matches!(fault.kind, FaultKind::Mismatch { .. }), "{fault}");
        assert_eq!((fault.operation, fault.team), (operation, Some(0)), "{fault}");
        assert!(n > 2 || fault.to_string().contains(&format!("PE {}", 1 - me)), "{fault}");
    };
    let goes_on = || -> Outcome {
        pe.write_local(&src, 0, &[me as u32])?;
        pe.fcollect(&world, &dst, &src, 1)?;
        assert_eq!(pe.read_local(&dst, 0..n)?, (0..n as u32).collect::<Vec<_>>());
        pe.write_local(&dst, 0, &vec![0; 64 * n])?;
        Ok(pe.barrier(&world)?)
    };
    // What only the wrong one can see.
    let calls: [(&str, &dyn Fn() -> oxshmem::Result<()>); 5] = [
        ("broadcast", &|| pe.broadcast(&world, &dst, &short, 64, 0)),
        ("fcollect", &|| pe.fcollect(&world, &dst, &short, 64)),
        ("collect", &|| pe.collect(&world, &dst, &short, 64)),
        ("reduce", &|| pe.reduce(&world, ReduceOp::Sum, &dst, &short, 64)),
        ("alltoall", &|| pe.alltoall(&world, &dst, if is_wrong { &short } else { &src }, 64)),
    ];
    for (operation, call) in calls {
        let result = call();
        if is_wrong {
            assert!(matches!(result, Err(Error::Heap(HeapError::OutOfRange { .. }))), "{operation}: {result:?}");
        } else {
            told(result, operation);
        }
        assert_eq!(pe.read_local(&dst, 0..64 * n)?, vec![0; 64 * n], "{operation}");
        goes_on()?;
    }
    // Calls that do not belong together.
    let size = if is_wrong { 2 } else { 3 };
    told(pe.fcollect(&world, &dst, &src, size), "fcollect");
    told(pe.broadcast(&world, &dst, &src, 3, usize::from(is_wrong)), "broadcast");
    let op = if is_wrong { ReduceOp::Max } else { ReduceOp::Min };
    told(pe.reduce(&world, op, &dst, &src, 3), "reduce");
    if is_wrong {
        told(pe.alltoall(&world, &dst, &src, 2), "alltoall");
    } else {
        told(pe.barrier(&world), "barrier");
    }
    goes_on()?;
    // What is wrong everywhere.
    let result = pe.broadcast(&world, &dst, &src, 3, n);
    assert!(matches!(&result, Err(Error::Fault(fault)) if fault.operation == "broadcast"), "{result:?}");
    goes_on()?;
    let floats = pe.alloc::<f64>(4)?;
    let error = pe.reduce(&world, ReduceOp::Xor, &floats, &floats, 4).unwrap_err();
    assert!(matches!(error, Error::Team(TeamError::BadReduction { op: ReduceOp::Xor, element: "f64" })), "{error:?}");
    let stream = pe.create_stream()?;
    let queued = pe.fcollect_on_stream(&world, &dst, &short, 64, &stream);
    let ended = pe.synchronize_stream(&stream);
    assert_eq!((queued.is_err(), ended.is_err()), (is_wrong, true), "{queued:?} {ended:?}");
    goes_on()?;
    Ok(pe.finalize()?)
}

/// A member that comes late is named at the deadline; when it has made its call too, the team goes on. Run with a short
/// `OXSHMEM_TIMEOUT`.
pub fn late(_: &[String]) -> Outcome {
    const LATE: usize = 1;
    let pe = oxshmem::init()?;
    let (me, n, world) = (pe.my_pe(), pe.n_pes(), pe.team_world());
    let team = pe.team_split_strided(&world, 0, 1, n)?.unwrap();
    let (src, dst) = (pe.alloc::<u32>(5000)?, pe.alloc::<u32>(5000 * n)?);
    pe.write_local(&src, 0, &[me as u32; 5000])?;
    for size in [1, 5000] {
        let call = || pe.fcollect(&team, &dst, &src, size);
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
        assert_eq!(pe.read_local(&dst, 0..size * n)?, expected);
    }
    pe.team_destroy(team)?;
    Ok(pe.finalize()?)
}
