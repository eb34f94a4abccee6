//! Collectives: every one of them in every scope, by every algorithm, with every type and operator,
//! in place and with lengths that fit nothing; and calls that do not belong together.

use std::collections::HashSet;

use bytemuck::{Pod, Zeroable};
use oxshmem::abi::{Algorithm, Call, ReduceOp, TEAM_WORLD, Team as Row, Type};
use oxshmem::{Error, FaultKind, Operations, SymmetricSlice};
use oxshmem_tests::covering::covering;

use crate::Outcome;
use crate::rig::{Extent, Rig, mix};

oxshmem::include_module!(COLLECTIVES, "collectives");

/// Mirrors `Step` of `kernels/collectives.cu`.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Step {
    pub call: u32,
    pub scope: u32,
    pub algorithm: u32,
    pub by_rounds: u32,
    pub team: i32,
    pub root: i32,
    pub kind: u32,
    pub op: u32,
    pub element: u32,
    pub result: i32,
    pub dst_stride: i64,
    pub src_stride: i64,
    pub dst: u64,
    pub src: u64,
    pub n: u64,
}

/// The contents of a result that no call has given.
pub(crate) const NOT_RUN: i32 = 0x55;
/// Added to a scope's number where a collective is begun by one call and ended by another.
pub(crate) const IN_TWO: u32 = 4;
/// What lies where nothing was written.
pub(crate) const UNTOUCHED: u8 = 0xa5;
/// Bytes before and after every buffer.
const MARGIN: u64 = 32;

const TYPES: [Type; 14] = [
    Type::Int8,
    Type::Int16,
    Type::Int32,
    Type::Int64,
    Type::Uint8,
    Type::Uint16,
    Type::Uint32,
    Type::Uint64,
    Type::Float32,
    Type::Float64,
    Type::Complex32,
    Type::Complex64,
    Type::Half,
    Type::Bfloat16,
];
const OPS: [ReduceOp; 7] =
    [ReduceOp::And, ReduceOp::Or, ReduceOp::Xor, ReduceOp::Min, ReduceOp::Max, ReduceOp::Sum, ReduceOp::Prod];

fn bytes_of(kind: Type) -> u32 {
    match kind {
        Type::Int8 | Type::Uint8 => 1,
        Type::Int16 | Type::Uint16 | Type::Half | Type::Bfloat16 => 2,
        Type::Int32 | Type::Uint32 | Type::Float32 => 4,
        Type::Int64 | Type::Uint64 | Type::Float64 | Type::Complex32 => 8,
        Type::Complex64 => 16,
    }
}

fn exists(kind: Type, op: ReduceOp) -> bool {
    let integer = (kind as u32) <= Type::Uint64 as u32;
    match op {
        ReduceOp::And | ReduceOp::Or | ReduceOp::Xor => integer,
        ReduceOp::Min | ReduceOp::Max => !matches!(kind, Type::Complex32 | Type::Complex64),
        ReduceOp::Sum => true,
        ReduceOp::Prod => !matches!(kind, Type::Half | Type::Bfloat16),
    }
}

/// A number (with an imaginary part for complex types) as `kind` stores it. All numbers here are
/// small enough for every type, or wrap as integers do.
fn encode(kind: Type, (re, im): (i64, i64)) -> Vec<u8> {
    match kind {
        Type::Float32 => (re as f32).to_le_bytes().to_vec(),
        Type::Float64 => (re as f64).to_le_bytes().to_vec(),
        Type::Complex32 => [(re as f32).to_le_bytes(), (im as f32).to_le_bytes()].concat(),
        Type::Complex64 => [(re as f64).to_le_bytes(), (im as f64).to_le_bytes()].concat(),
        Type::Bfloat16 => ((((re as f32).to_bits()) >> 16) as u16).to_le_bytes().to_vec(),
        Type::Half => half_bits(re).to_le_bytes().to_vec(),
        integer => re.to_le_bytes()[..bytes_of(integer) as usize].to_vec(),
    }
}

/// binary16 of an integer below 2048.
fn half_bits(value: i64) -> u16 {
    let sign = if value < 0 { 0x8000u16 } else { 0 };
    let size = value.unsigned_abs();
    if size == 0 {
        return sign;
    }
    let exponent = 63 - size.leading_zeros();
    let fraction = (size << 10 >> exponent) as u16 & 0x3ff;
    sign | ((exponent as u16 + 15) << 10) | fraction
}

/// Element `index` of what `member` contributes.
fn number(kind: Type, op: ReduceOp, member: u64, index: u64) -> (i64, i64) {
    let random = mix(member * 1_000_003 + index);
    let (a, b) = ((random % 41) as i64, (random >> 8) as i64 % 41);
    let signed = !matches!(kind, Type::Uint8 | Type::Uint16 | Type::Uint32 | Type::Uint64);
    match op {
        ReduceOp::Prod if matches!(kind, Type::Complex32 | Type::Complex64) => (1 + a % 2, 1 + b % 3),
        ReduceOp::Prod => (if signed { a % 2 * 3 - 1 } else { a % 3 + 1 }, 0),
        ReduceOp::Sum => (if signed { a % 21 - 10 } else { a % 21 }, b % 21 - 10),
        _ => (if signed { a - 20 } else { a }, b),
    }
}

fn combined(kind: Type, op: ReduceOp, members: u64, index: u64) -> (i64, i64) {
    let values = (0..members).map(|member| number(kind, op, member, index));
    let apply = |(a, ai): (i64, i64), (b, bi): (i64, i64)| match op {
        ReduceOp::And => (a & b, 0),
        ReduceOp::Or => (a | b, 0),
        ReduceOp::Xor => (a ^ b, 0),
        ReduceOp::Min => (a.min(b), 0),
        ReduceOp::Max => (a.max(b), 0),
        ReduceOp::Sum => (a + b, ai + bi),
        ReduceOp::Prod if matches!(kind, Type::Complex32 | Type::Complex64) => (a * b - ai * bi, a * bi + ai * b),
        ReduceOp::Prod => (a.wrapping_mul(b), 0),
    };
    values.reduce(apply).unwrap_or_default()
}

fn elements(kind: Type, range: std::ops::Range<u64>, value: impl Fn(u64) -> (i64, i64)) -> Vec<u8> {
    range.flat_map(|index| encode(kind, value(index))).collect()
}

/// A call, what it finds and what it must leave.
pub(crate) struct Case {
    name: String,
    step: Step,
    src: Vec<u8>,
    dst: Vec<u8>,
    in_place: bool,
    /// Bytes of a part, the same for all members.
    size: u64,
}

/// Two things that meet in a case, and what they are.
type Feature = (&'static str, u64, u64);

impl Case {
    /// What cases must show when not all are run.
    pub(crate) fn features(&self) -> Vec<Feature> {
        let Step { call, scope, algorithm, by_rounds, root, kind, op, element, dst_stride, .. } = self.step;
        let (call, scope, algorithm) = (u64::from(call), u64::from(scope), u64::from(2 * algorithm + by_rounds));
        // Nothing, parts of a word, a word, what lanes do at once, what fits packets, and what does
        // not.
        let size = [0, 7, 8, 64, 1024].iter().filter(|most| self.size > **most).count() as u64;
        let mut features = vec![
            ("scope and call", scope, call),
            ("scope and algorithm", scope, algorithm),
            ("scope and size", scope, size),
            ("algorithm and call", algorithm, call),
            ("algorithm and size", algorithm, size),
            ("call and size", call, size),
            ("size", self.size, 0),
            ("call and place", call, u64::from(self.in_place)),
        ];
        if call == Call::Broadcast as u64 {
            features.push(("algorithm and root", algorithm, root as u64));
        }
        if call == Call::Alltoalls as u64 {
            features.push(("element and stride", u64::from(element), dst_stride as u64));
        }
        if [Call::Reduce as u64, Call::Reducescatter as u64].contains(&call) {
            let (kind, op) = (u64::from(kind), u64::from(op));
            features.extend([
                ("type and operator", kind, op),
                ("type and call", kind, call),
                ("operator and call", op, call),
                ("operator and algorithm", op, algorithm),
            ]);
        }
        features
    }

    /// The same in a team of some PEs, after all PEs have shown what does not depend on the
    /// members.
    fn features_in_subset(&self) -> Vec<Feature> {
        let mut features = self.features();
        features.retain(|(pair, ..)| pair.starts_with("algorithm"));
        features
    }
}

/// Bytes of `member`'s data, from `offset` on.
fn data(member: u64, offset: u64, bytes: u64) -> Vec<u8> {
    (offset..offset + bytes).map(|at| mix(member << 32 | at) as u8).collect()
}

/// How a list of cases is run: everything that all of them have in common.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Way {
    pub team: i32,
    pub me: u64,
    pub n: u64,
    pub scope: u32,
    pub algorithm: Algorithm,
    pub by_rounds: bool,
}

impl Way {
    pub(crate) fn step(&self, call: Call) -> Step {
        Step {
            call: call as u32,
            scope: self.scope,
            algorithm: self.algorithm as u32,
            by_rounds: u32::from(self.by_rounds),
            team: self.team,
            element: 1,
            result: NOT_RUN,
            ..Step::zeroed()
        }
    }

    fn case(&self, call: Call, what: String, change: impl Fn(&mut Step), src: Vec<u8>, dst: Vec<u8>) -> Case {
        let mut step = self.step(call);
        change(&mut step);
        let size = step.n.wrapping_mul(u64::from(step.element));
        Case { name: format!("{call:?} {what} {self:?}"), step, src, dst, in_place: false, size }
    }

    pub(crate) fn broadcast(&self, bytes: u64, root: u64, in_place: bool) -> Case {
        let change = |step: &mut Step| (step.n, step.root) = (bytes, root as i32);
        let what = format!("of {bytes} bytes from {root}, in place {in_place}");
        let case = self.case(Call::Broadcast, what, change, data(self.me, 0, bytes), data(root, 0, bytes));
        Case { in_place, ..case }
    }

    pub(crate) fn fcollect(&self, bytes: u64) -> Case {
        let all = (0..self.n).flat_map(|member| data(member, 0, bytes)).collect();
        let what = format!("of {bytes} bytes");
        self.case(Call::Fcollect, what, |step| step.n = bytes, data(self.me, 0, bytes), all)
    }

    /// Member i contributes `sizes(i)` bytes, which `size` stands for.
    fn collect(&self, size: u64, sizes: impl Fn(u64) -> u64) -> Case {
        let all = (0..self.n).flat_map(|member| data(member, 0, sizes(member))).collect();
        let own = sizes(self.me);
        let case = self.case(Call::Collect, format!("of {own} bytes"), |step| step.n = own, data(self.me, 0, own), all);
        Case { size, ..case }
    }

    pub(crate) fn alltoall(&self, bytes: u64) -> Case {
        let all = (0..self.n).flat_map(|member| data(member, self.me * bytes, bytes)).collect();
        let what = format!("of {bytes} bytes");
        self.case(Call::Alltoall, what, |step| step.n = bytes, data(self.me, 0, self.n * bytes), all)
    }

    fn alltoalls(&self, n: u64, element: u64, dst_stride: u64, src_stride: u64) -> Case {
        let count = n * self.n;
        let extent = |stride: u64| if count == 0 { 0 } else { ((count - 1) * stride + 1) * element };
        let mut dst = vec![UNTOUCHED; extent(dst_stride) as usize];
        for (member, i) in (0..self.n).flat_map(|member| (0..n).map(move |i| (member, i))) {
            let from = data(member, (self.me * n + i) * src_stride * element, element);
            let at = ((member * n + i) * dst_stride * element) as usize;
            dst[at..at + element as usize].copy_from_slice(&from);
        }
        let change = |step: &mut Step| {
            (step.n, step.element) = (n, element as u32);
            (step.dst_stride, step.src_stride) = (dst_stride as i64, src_stride as i64);
        };
        let what = format!("of {n} elements of {element} bytes, strides {dst_stride} and {src_stride}");
        self.case(Call::Alltoalls, what, change, data(self.me, 0, extent(src_stride)), dst)
    }

    pub(crate) fn reduce(&self, kind: Type, op: ReduceOp, n: u64, in_place: bool) -> Case {
        let change = |step: &mut Step| {
            (step.n, step.element, step.kind, step.op) = (n, bytes_of(kind), kind as u32, op as u32);
        };
        let src = elements(kind, 0..n, |index| number(kind, op, self.me, index));
        let dst = elements(kind, 0..n, |index| combined(kind, op, self.n, index));
        let what = format!("of {n} {kind:?} by {op:?}, in place {in_place}");
        Case { in_place, ..self.case(Call::Reduce, what, change, src, dst) }
    }

    pub(crate) fn reducescatter(&self, kind: Type, op: ReduceOp, n: u64) -> Case {
        let change = |step: &mut Step| {
            (step.n, step.element, step.kind, step.op) = (n, bytes_of(kind), kind as u32, op as u32);
        };
        let src = elements(kind, 0..n * self.n, |index| number(kind, op, self.me, index));
        let dst = elements(kind, self.me * n..(self.me + 1) * n, |index| combined(kind, op, self.n, index));
        self.case(Call::Reducescatter, format!("of {n} {kind:?} by {op:?}"), change, src, dst)
    }

    fn meeting(&self, call: Call) -> Case {
        self.case(call, String::new(), |_| {}, Vec::new(), Vec::new())
    }

    /// Every collective, each with a third of the lengths from nothing to more than any packet
    /// holds; with three consecutive `turn`s all collectives have had all lengths.
    pub(crate) fn third(&self, long: u64, turn: usize) -> Vec<Case> {
        let cases = self.everything(long).into_iter().enumerate();
        let mut third = vec![self.meeting(Call::Sync), self.meeting(Call::Barrier)];
        // Cases of one length are ten, and ten is one more than three times three: so the lengths
        // of a collective take turns too.
        third.extend(cases.filter(|(index, _)| (index + turn).is_multiple_of(3)).map(|(_, case)| case));
        third
    }

    /// Every collective with lengths from nothing to more than any packet holds.
    fn everything(&self, long: u64) -> Vec<Case> {
        let mut cases = Vec::new();
        let n = self.n;
        for (index, bytes) in [0, 1, 4, 8, 13, 64, 250, 1000, long].into_iter().enumerate() {
            let index = index as u64;
            cases.push(self.broadcast(bytes, index % n, index % 3 == 1));
            cases.push(self.fcollect(bytes));
            cases.push(self.alltoall(bytes));
            cases.push(self.collect(bytes, |member| (bytes + 7 * member) * u64::from(member % 3 != 1)));
            cases.push(self.collect(bytes, |member| if member == 0 { bytes } else { 3 }));
            let element = 1 << (index % 5);
            cases.push(self.alltoalls(bytes / element / 4, element, 1 + index % 3, 2));
            cases.push(self.reduce(Type::Int32, ReduceOp::Sum, bytes / 4, index % 2 == 1));
            cases.push(self.reduce(Type::Uint8, ReduceOp::Xor, bytes, false));
            cases.push(self.reducescatter(Type::Float32, ReduceOp::Max, bytes / 4));
            cases.push(self.reducescatter(Type::Int16, ReduceOp::Sum, bytes / 2));
        }
        for root in 0..n {
            cases.push(self.broadcast(40, root, false));
        }
        cases
    }

    /// Every type and operator.
    pub(crate) fn reductions(&self) -> Vec<Case> {
        let kinds = TYPES.into_iter().flat_map(|kind| OPS.into_iter().map(move |op| (kind, op)));
        let kinds: Vec<(Type, ReduceOp)> = kinds.filter(|(kind, op)| exists(*kind, *op)).collect();
        let reduce =
            kinds.iter().enumerate().map(|(i, (kind, op))| self.reduce(*kind, *op, 1 + i as u64 % 9, i % 4 == 3));
        let scatter = kinds.iter().enumerate().map(|(i, (kind, op))| self.reducescatter(*kind, *op, 1 + i as u64 % 5));
        reduce.chain(scatter).collect()
    }
}

/// Symmetric memory that cases are laid out in, and the kernel's lists.
pub(crate) struct Bench {
    pub rig: Rig,
    pub arena: SymmetricSlice<u8>,
    pub steps: SymmetricSlice<Step>,
    pub saved: SymmetricSlice<u64>,
}

const ARENA: usize = 8 << 20;
/// Steps of a launch, at most.
const STEPS: usize = 200;

impl Bench {
    pub(crate) fn new() -> oxshmem::Result<Self> {
        let rig = Rig::new(&COLLECTIVES)?;
        let arena = rig.pe.alloc_aligned(ARENA, 128)?;
        let steps = rig.pe.alloc(STEPS)?;
        let saved = rig.pe.alloc_aligned(size_of::<Row>() / 8, 128)?;
        Ok(Self { rig, arena, steps, saved })
    }

    pub(crate) fn world(&self, scope: u32, algorithm: Algorithm, by_rounds: bool) -> Way {
        let (me, n) = (self.rig.me() as u64, self.rig.n_pes() as u64);
        Way { team: TEAM_WORLD, me, n, scope, algorithm, by_rounds }
    }

    /// Whether a team's members tell each other directly.
    pub(crate) fn one_round(&self, team: i32) -> oxshmem::Result<bool> {
        self.rig.run_linear("read_one_round", 1, 1, (team, &self.saved))?;
        Ok(self.rig.pe.read(self.saved.view(..1))?[0] != 0)
    }

    /// Runs cases in one launch (or a few) of one block, and compares every byte of the memory they
    /// are given.
    fn run(&self, cases: Vec<Case>) -> Outcome {
        self.run_by(cases, 0, |count| self.rig.run_linear("run_steps", 1, 50, (&self.steps, count, &self.saved)))
    }

    /// Runs cases by calls of `launch`, which is told how many of [`steps`](Self::steps) to launch;
    /// each leaves `result`.
    pub(crate) fn run_by(&self, cases: Vec<Case>, result: i32, launch: impl Fn(u32) -> oxshmem::Result<()>) -> Outcome {
        let mut left = cases;
        while !left.is_empty() {
            let mut image = vec![UNTOUCHED; 0];
            let mut placed = 0;
            // Members of collect have buffers of different lengths; all lay out the longest.
            for case in &mut left {
                let room = |bytes: usize| (bytes as u64 + 2 * MARGIN + 64).next_multiple_of(64);
                let longest = case.dst.len().max(case.src.len()) + 1024;
                if placed + 1 == STEPS || image.len() as u64 + 2 * room(longest) > ARENA as u64 {
                    break;
                }
                // Aligned to the element and no better.
                let element = u64::from(case.step.element);
                let mut place = |contents: &[u8], shift: u64| {
                    let begin = image.len() as u64 + MARGIN + shift;
                    image.resize(image.len() + room(longest) as usize, UNTOUCHED);
                    image[begin as usize..begin as usize + contents.len()].copy_from_slice(contents);
                    self.arena.address() + begin
                };
                let skew = placed as u64 % 3 * element;
                case.step.src = place(&case.src, skew % 32);
                case.step.dst =
                    if case.in_place { case.step.src } else { place(&[], (placed as u64 % 2) * element % 32) };
                placed += 1;
            }
            assert!(placed > 0, "the arena is too small for one case");
            let rest = left.split_off(placed);
            self.rig.pe.write(&self.arena, &image)?;
            // No member begins before all members of the team have filled their memory.
            let mut steps = vec![Step { call: Call::Barrier as u32, ..left[0].step }];
            steps.extend(left.iter().map(|case| case.step));
            self.rig.pe.write(&self.steps, &steps)?;
            launch(steps.len() as u32)?;
            let seen = self.rig.pe.read(self.arena.view(..image.len()))?;
            let results = self.rig.pe.read(self.steps.view(1..placed + 1))?;
            for (case, step) in left.iter().zip(results) {
                assert_eq!(step.result, result, "PE {}: {}", self.rig.me(), case.name);
                let at = (case.step.dst - self.arena.address()) as usize;
                image[at..at + case.dst.len()].copy_from_slice(&case.dst);
                let end = at + case.dst.len();
                assert!(
                    seen[at..end] == image[at..end],
                    "PE {}: {}: byte {} is wrong\n{:x?}\n{:x?}",
                    self.rig.me(),
                    case.name,
                    (at..end).position(|i| seen[i] != image[i]).unwrap_or_default(),
                    &seen[at..end.min(at + 64)],
                    &image[at..end.min(at + 64)]
                );
            }
            let wrong = (0..image.len()).find(|at| seen[*at] != image[*at]);
            if let Some(at) = wrong {
                let at_address = self.arena.address() + at as u64;
                let near = left.iter().rfind(|case| case.step.dst <= at_address || case.step.src <= at_address);
                panic!("PE {}: a byte outside dst was written, near {:?}", self.rig.me(), near.map(|case| &case.name));
            }
            left = rest;
        }
        Ok(())
    }
}

/// Every collective by every algorithm in every scope, and every type and operator. Arguments: the
/// longest length.
pub fn collectives(args: &[String]) -> Outcome {
    let long: u64 = args.first().map_or(Ok(20_000), |text| text.parse())?;
    let bench = Bench::new()?;
    let near = bench.one_round(TEAM_WORLD)?;
    let mut ways = Vec::new();
    for scope in 0..3 {
        for algorithm in [Algorithm::Packets, Algorithm::Push, Algorithm::Tree, Algorithm::OneShot] {
            ways.push(bench.world(scope, algorithm, false));
            if near && algorithm != Algorithm::Packets {
                ways.push(bench.world(scope, algorithm, true));
            }
        }
    }
    // In two calls, which have one algorithm.
    for scope in 0..3 {
        let way = bench.world(scope + IN_TWO, Algorithm::Push, false);
        ways.push(way);
        ways.extend(near.then_some(Way { by_rounds: true, ..way }));
    }
    let extent = Extent::of(&bench.rig.pe)?;
    bench.run(extent.of_list("collectives of all PEs", &bench.rig.pe, of_world(&ways, long), Case::features))?;
    subsets(&bench, extent, long)?;
    let words = bench.rig.pe.alloc::<i32>(16)?;
    bench.rig.run_linear("typed_forms", 1, 40, (&words, bench.rig.report()))?;
    bench.rig.run_linear("empty_buffers", 1, 40, (&words, bench.rig.report()))?;
    bench.rig.finish()
}

/// Every way with its third of the lengths, and the types and operators.
fn of_world(ways: &[Way], long: u64) -> Vec<Case> {
    // Threads on their own copy slowly.
    let third = |way: &Way| way.third(if way.scope == 2 { long } else { long / 4 }, way.scope as usize);
    let mut cases: Vec<Case> = ways.iter().flat_map(third).collect();
    for (index, way) in ways.iter().filter(|way| way.scope == 2).enumerate() {
        // What combines is the same code for all algorithms.
        let reductions = way.reductions().into_iter().enumerate();
        cases.extend(reductions.filter(|(i, _)| index == 0 || (i + index).is_multiple_of(4)).map(|(_, case)| case));
    }
    cases
}

/// Teams of every second PE, of all but the first, and of each PE alone; those that share no PE are
/// busy at the same time.
fn subsets(bench: &Bench, extent: Extent, long: u64) -> Outcome {
    let pe = &bench.rig.pe;
    let (me, n) = (pe.my_pe(), pe.n_pes());
    let world = pe.team_world();
    let mut teams = Vec::new();
    let mut split = |start: usize, stride: usize, size: usize| -> Outcome {
        if size > 0 {
            teams.extend(world.split_strided(pe, start, stride, size)?);
        }
        Ok(())
    };
    split(0, 2, n.div_ceil(2))?;
    split(1, 2, n / 2)?;
    split(1, 1, n - 1)?;
    for single in 0..n {
        split(single, 1, 1)?;
    }
    for (index, team) in teams.iter().enumerate() {
        assert_eq!(team.members()[team.my_pe()], me);
        let near = bench.one_round(team.handle())?;
        let mut ways = vec![(Algorithm::Packets, false), (Algorithm::Push, false), (Algorithm::Tree, false)];
        if near {
            ways.extend([(Algorithm::Push, true), (Algorithm::Tree, true)]);
        }
        let mut cases = Vec::new();
        for (turn, (algorithm, by_rounds)) in ways.into_iter().enumerate() {
            let (number, members) = (team.my_pe() as u64, team.n_pes() as u64);
            let way = Way { team: team.handle(), me: number, n: members, scope: 2, algorithm, by_rounds };
            cases.extend(way.third(long / 4, index + turn));
        }
        // A member that is alone waits for no other.
        let extent = if team.n_pes() > 1 { extent } else { Extent::Whole };
        bench.run(extent.of_list(
            &format!("collectives of {} PEs", team.n_pes()),
            pe,
            cases,
            Case::features_in_subset,
        ))?;
    }
    for team in teams {
        team.destroy(pe)?;
    }
    Ok(())
}

/// Reductions of numbers whose sum depends on the order: equal on all PEs to the last bit, and the
/// next time too. Arguments: the longest length.
pub fn reproducible(args: &[String]) -> Outcome {
    let long: u64 = args.first().map_or(Ok(3000), |text| text.parse())?;
    let bench = Bench::new()?;
    let (me, n) = (bench.rig.me() as u64, bench.rig.n_pes());
    for kind in [Type::Float32, Type::Float64, Type::Half, Type::Bfloat16, Type::Complex64] {
        for algorithm in [Algorithm::Packets, Algorithm::Push, Algorithm::Tree, Algorithm::OneShot] {
            for elements in [5, long] {
                let bytes = (elements * u64::from(bytes_of(kind))) as usize;
                // Numbers of every exponent but the largest, so that no sum overflows.
                let word = |at: u64| match kind {
                    Type::Half => u64::from(mix(me << 40 | at) as u16 & 0xbbff),
                    _ => mix(me << 40 | at) & !(0x4000_4000_4000_4000 | 0x4000_0000),
                };
                let mut src: Vec<u8> = (0..elements * 2).flat_map(|at| word(at).to_le_bytes()).collect();
                if kind == Type::Half {
                    src = (0..elements).flat_map(|at| (word(at) as u16).to_le_bytes()).collect();
                }
                bench.rig.pe.write(&bench.arena, &src[..bytes])?;
                let step = |dst: usize| Step {
                    dst: bench.arena.address() + dst as u64,
                    src: bench.arena.address(),
                    n: elements,
                    kind: kind as u32,
                    op: ReduceOp::Sum as u32,
                    ..bench.world(2, algorithm, false).step(Call::Reduce)
                };
                let at = bytes.next_multiple_of(64);
                let steps = bench.rig.filled(&[step(at), step(2 * at)])?;
                bench.rig.pe.barrier_all()?;
                bench.rig.run_linear("run_steps", 1, 64, (&steps, 2u32, &bench.saved))?;
                let first = bench.rig.pe.read(bench.arena.view(at..at + bytes))?;
                let second = bench.rig.pe.read(bench.arena.view(2 * at..2 * at + bytes))?;
                assert!(first == second, "{kind:?} by {algorithm:?}: the second time differs");
                assert!(first.iter().any(|byte| *byte != 0), "{kind:?} by {algorithm:?}: nothing was summed");
                bench.rig.pe.barrier_all()?;
                for pe in 0..n {
                    let theirs = bench.rig.pe.get_vec(bench.arena.view(at..at + bytes), pe)?;
                    assert!(
                        theirs == first,
                        "{kind:?} by {algorithm:?}, {elements} elements: PE {pe} has another result"
                    );
                }
                bench.rig.pe.barrier_all()?;
                bench.rig.pe.free(steps)?;
            }
        }
    }
    bench.rig.finish()
}

/// What each PE of a bad call must report.
enum Due {
    /// This error of the PE's own call.
    Own(fn(&FaultKind) -> bool),
    /// The error that the call of this PE does not fit, or that of any other one.
    Mismatch(Option<usize>),
}

/// Calls that do not belong together, or are wrong: an error on every PE, nothing written, and the
/// team goes on. At least three PEs.
pub fn collective_errors(_: &[String]) -> Outcome {
    const ODD: usize = 1;
    let bench = Bench::new()?;
    let (me, n) = (bench.rig.me(), bench.rig.n_pes());
    let at = bench.arena.address();
    let plain = |call: Call, algorithm: Algorithm, scope: u32| Step {
        dst: at + 8192,
        src: at,
        n: 48,
        dst_stride: 1,
        src_stride: 1,
        kind: Type::Uint8 as u32,
        op: ReduceOp::Sum as u32,
        ..bench.world(scope, algorithm, false).step(call)
    };
    let outside = |kind: &FaultKind| matches!(kind, FaultKind::AddressOutsideHeap { .. });
    let overlap = |kind: &FaultKind| matches!(kind, FaultKind::Overlap { .. });
    let argument = |kind: &FaultKind| matches!(kind, FaultKind::BadArgument { .. });
    type Change = fn(&mut Step);
    type IsRight = fn(&FaultKind) -> bool;
    // One PE's call differs, and this is what the error says of it.
    let differs: [(Call, Change, &str); 9] = [
        (Call::Broadcast, |step| step.call = Call::Fcollect as u32, " called "),
        (Call::Broadcast, |step| step.root = 0, " called broadcast with another root"),
        (Call::Fcollect, |step| step.n = 47, " called fcollect with another size"),
        (Call::Alltoall, |step| step.call = Call::Reduce as u32, " called "),
        (Call::Reduce, |step| step.op = ReduceOp::Max as u32, " called reduce with another operator"),
        (Call::Reduce, |step| step.kind = Type::Int8 as u32, " called reduce with another element type"),
        (Call::Reducescatter, |step| step.dst += 64, " called reducescatter with another dst"),
        (Call::Alltoalls, |step| step.src_stride = 2, " called alltoalls with another stride of src"),
        (Call::Sync, |step| step.call = Call::Collect as u32, " called "),
    ];
    // One PE's call is refused.
    let refused: [(Call, Change, IsRight); 9] = [
        (Call::Broadcast, |step| step.root = -1, argument),
        (Call::Broadcast, |step| step.root = 1000, argument),
        (Call::Fcollect, |step| step.src = 64, outside),
        (Call::Collect, |step| step.n = 1 << 40, outside),
        (Call::Alltoall, |step| step.dst = step.src + 16, overlap),
        (Call::Reduce, |step| step.dst = step.src + 1, overlap),
        (Call::Reduce, |step| step.op = 77, argument),
        (Call::Reducescatter, |step| step.n = u64::MAX, outside),
        (Call::Alltoalls, |step| step.dst_stride = 0, argument),
    ];
    for algorithm in [Algorithm::Packets, Algorithm::Push, Algorithm::Tree] {
        for scope in [0, 2, 2 + IN_TWO] {
            for (index, (call, change, said)) in differs.into_iter().enumerate() {
                let mut step = plain(call, algorithm, scope);
                step.root = 2;
                if me == ODD {
                    change(&mut step);
                }
                let due = Due::Mismatch((me != ODD).then_some(ODD));
                let text = bench.errs(&format!("differing call {index}"), step, &due)?;
                // Members that meet in rounds may hear of it from another one, and cannot compare.
                let hears = !bench.rig.pe.team_world().is_near() && text.contains("does not fit");
                assert!(text.contains(said) || hears, "{said:?} is not in {text}");
            }
            for (index, (call, change, own)) in refused.into_iter().enumerate() {
                for all in [false, true] {
                    let mut step = plain(call, algorithm, scope);
                    if me == ODD || all {
                        change(&mut step);
                    }
                    let due = if me == ODD || all { Due::Own(own) } else { Due::Mismatch(Some(ODD)) };
                    bench.errs(&format!("refused call {index}"), step, &due)?;
                }
            }
        }
    }
    // A dst without room for what all collect is found out by all.
    let base = at - at % (1 << 20);
    let behind = base + bench.rig.pe.config().heap_max().0;
    let step = Step { dst: behind - 64, ..plain(Call::Collect, Algorithm::Push, 2) };
    bench.errs("collect beyond the heap", step, &Due::Own(outside))?;
    assert!(n >= 3);
    bench.rig.finish()
}

impl Bench {
    /// Runs one step that has to fail, and one that must not. Returns the error of the first.
    fn errs(&self, what: &str, step: Step, due: &Due) -> Result<String, Box<dyn std::error::Error>> {
        let memory = vec![UNTOUCHED; 16384];
        self.rig.pe.write(&self.arena, &memory)?;
        let steps = self.rig.filled(&[step])?;
        self.rig.pe.barrier_all()?;
        let what = format!("PE {}: {what}: {step:?}", self.rig.me());
        let error = self.rig.run_linear("run_steps", 1, 64, (&steps, 1u32, &self.saved)).expect_err(&what);
        let Error::Fault(fault) = &error else { panic!("{what}: {error:?}") };
        assert_eq!(fault.team, Some(TEAM_WORLD), "{what}: {fault}");
        assert!(fault.to_string().contains("of the world team"), "{what}: {fault}");
        match (due, &fault.kind) {
            (Due::Own(is_right), kind) => assert!(is_right(kind), "{what}: {fault}"),
            (Due::Mismatch(culprit), FaultKind::Mismatch { pe, .. }) => {
                let right = *pe != self.rig.me() as i32 && culprit.is_none_or(|culprit| *pe == culprit as i32);
                assert!(right, "{what}: {fault}");
            }
            (Due::Mismatch(_), _) => panic!("{what}: {fault}"),
        }
        assert_ne!(self.rig.pe.read(steps.view(..1))?[0].result, 0, "{what}: the call says that all is well");
        self.rig.pe.barrier_all()?;
        assert!(self.rig.pe.read(self.arena.view(..memory.len()))? == memory, "{what}: something was written");
        self.rig.pe.free(steps)?;
        let way = Way { scope: step.scope, ..self.world(2, Algorithm::Packets, false) };
        self.run(vec![way.fcollect(24), way.reduce(Type::Int32, ReduceOp::Sum, 3, false)])?;
        Ok(fault.to_string())
    }
}

/// A PE that does not come, and a handle of no team: the others' deadline passes, and they name the
/// PE that they waited for. Run with a short `OXSHMEM_TIMEOUT`.
pub fn collective_timeouts(_: &[String]) -> Outcome {
    const MISSING: usize = 1;
    let bench = Bench::new()?;
    let step = |team| Step {
        dst: bench.arena.address() + 8192,
        src: bench.arena.address(),
        n: 4000,
        team,
        ..bench.world(2, Algorithm::Push, false).step(Call::Fcollect)
    };
    let stale = 0x100;
    let team = if bench.rig.me() == MISSING { stale } else { TEAM_WORLD };
    let steps = bench.rig.filled(&[step(team)])?;
    bench.rig.pe.barrier_all()?;
    let error = bench.rig.run_linear("run_steps", 1, 64, (&steps, 1u32, &bench.saved)).expect_err("a PE is missing");
    let Error::Fault(fault) = &error else { panic!("{error:?}") };
    assert_eq!((fault.operation, fault.team), ("fcollect", Some(team)), "{fault}");
    match &fault.kind {
        FaultKind::BadTeam { handle } => assert_eq!((*handle, bench.rig.me()), (stale, MISSING), "{fault}"),
        FaultKind::Timeout { pe, .. } => assert_eq!(*pe, MISSING as i32, "{fault}"),
        _ => panic!("{fault}"),
    }
    bench.rig.finish()
}

/// The ways of a world of `n` PEs that reach each other directly, or do not.
fn ways(me: u64, n: u64, near: bool) -> Vec<Way> {
    let algorithms = [Algorithm::Packets, Algorithm::Push, Algorithm::Tree].into_iter();
    let ways = algorithms.flat_map(|algorithm| [(algorithm, false), (algorithm, true)]);
    let ways = ways.filter(|(algorithm, by_rounds)| !by_rounds || near && *algorithm != Algorithm::Packets);
    let ways = ways.flat_map(|(algorithm, by_rounds)| (0..3).map(move |scope| (scope, algorithm, by_rounds)));
    ways.map(|(scope, algorithm, by_rounds)| Way { team: TEAM_WORLD, me, n, scope, algorithm, by_rounds }).collect()
}

/// Checks what a thinned list has and that all members thin alike, without a PE. What it has is
/// counted by hand, not by what chooses it.
pub fn thinned(_args: &[String]) -> Outcome {
    a_thinned_list_has_every_call_way_type_and_operator();
    all_members_thin_alike();
    Ok(())
}

fn a_thinned_list_has_every_call_way_type_and_operator() {
    for (n, near) in [(2, true), (3, false), (4, true)] {
        let all = of_world(&ways(0, n, near), 6000);
        let total = all.len();
        let few = covering(all, Case::features);
        assert!(few.len() * 5 < total * 2, "{} of {total}", few.len());
        let count =
            |of: &dyn Fn(&Step) -> [u32; 2]| few.iter().map(|case| of(&case.step)).collect::<HashSet<_>>().len();
        let algorithms = if near { 5 } else { 3 };
        assert_eq!(count(&|step| [step.call, step.scope]), 9 * 3);
        assert_eq!(count(&|step| [step.call, 2 * step.algorithm + step.by_rounds]), 9 * algorithms);
        assert_eq!(count(&|step| [step.scope, 2 * step.algorithm + step.by_rounds]), 3 * algorithms);
        let reductions = |step: &Step| [Call::Reduce as u32, Call::Reducescatter as u32].contains(&step.call);
        let none = [u32::MAX; 2];
        let kinds = count(&|step| if reductions(step) { [step.kind, step.op] } else { none });
        // Eight integers with seven operators, f32 and f64 with four, 16 bits with three,
        // complex with two; and what is none.
        assert_eq!(kinds, 8 * 7 + 2 * 4 + 2 * 3 + 2 * 2 + 1);
        let sizes: HashSet<u64> = few.iter().map(|case| case.size).collect();
        assert!([0, 1, 4, 8, 13, 64, 250, 1000, 6000].iter().all(|size| sizes.contains(size)), "{sizes:?}");
    }
}

/// Otherwise members would wait for each other in different calls.
fn all_members_thin_alike() {
    let names = |me: u64| -> Vec<[u64; 5]> {
        let few = covering(of_world(&ways(me, 3, true), 6000), Case::features);
        let step = |case: &Case| {
            let Step { call, scope, algorithm, by_rounds, kind, op, .. } = case.step;
            [call, scope, 2 * algorithm + by_rounds, 100 * kind + op].map(u64::from)
        };
        few.iter()
            .map(|case| {
                let [a, b, c, d] = step(case);
                [a, b, c, d, case.size]
            })
            .collect()
    };
    assert_eq!(names(0), names(1));
    assert_eq!(names(0), names(2));
}
