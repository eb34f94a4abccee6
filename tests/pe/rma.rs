//! Bulk transfers: random lists of puts and gets of all kinds, whose effect on every PE's memory is
//! computed and compared.

use bytemuck::{Pod, Zeroable};
use oxshmem::{LaunchConfig, Operations};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::Outcome;
use crate::rig::{Rig, mix};

oxshmem::include_module!(RMA, "rma");

// Kinds; 2 and 3 are get and its nbi form. Scopes; 1 is the warp.
const PUT: u8 = 0;
const PUT_NBI: u8 = 1;
const IPUT: u8 = 4;
const IGET: u8 = 5;
const THREAD: u8 = 0;
const BLOCK: u8 = 2;

/// Unregistered memory of a thread, a warp and a block; as in `kernels/rma.cu`.
const ELSEWHERE: [u64; 3] = [512, 1024, 8192];

/// Mirrors `Step` of `kernels/rma.cu`.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Step {
    dst: u64,
    src: u64,
    n: u64,
    dst_stride: i32,
    src_stride: i32,
    pe: i32,
    kind: u8,
    scope: u8,
    width: u8,
    elsewhere: u8,
}

impl Step {
    fn is_put(&self) -> bool {
        matches!(self.kind, PUT | PUT_NBI | IPUT)
    }

    fn is_strided(&self) -> bool {
        matches!(self.kind, IPUT | IGET)
    }

    /// Runs of bytes that the step copies: target offset, source offset, length.
    fn runs(&self) -> Vec<(u64, u64, u64)> {
        if !self.is_strided() {
            return vec![(self.dst, self.src, self.n)];
        }
        let width = u64::from(self.width);
        let at = |base: u64, stride: i32, i: u64| base + i * u64::from(stride.unsigned_abs()) * width;
        (0..self.n).map(|i| (at(self.dst, self.dst_stride, i), at(self.src, self.src_stride, i), width)).collect()
    }
}

/// Where things are in the arena of each PE: sources, then a zone per PE that puts here, then a
/// zone for what is got.
#[derive(Debug, Clone, Copy)]
struct Arena {
    n_pes: u64,
    sources: u64,
    zone: u64,
}

impl Arena {
    fn bytes(&self) -> u64 {
        self.sources + (self.n_pes + 1) * self.zone
    }

    fn zone_of_writer(&self, pe: u64) -> u64 {
        self.sources + pe * self.zone
    }

    fn got(&self) -> u64 {
        self.zone_of_writer(self.n_pes)
    }
}

const UNTOUCHED: u8 = 0xee;

/// The first `bytes` of the sources of PE `pe`.
fn sources(pe: u64, bytes: u64) -> Vec<u8> {
    (0..bytes / 8).flat_map(|word| mix((pe << 40) | word).to_le_bytes()).collect()
}

fn length(random: &mut StdRng, scope: u8) -> u64 {
    match random.random_range(0..20) {
        0 => 0,
        1..=8 => random.random_range(1..80),
        9..=14 => random.random_range(1..1000),
        15..=17 => random.random_range(1..8000),
        18 => random.random_range(1..70_000),
        // A thread copies slowly.
        _ => random.random_range(1..if scope == THREAD { 20_000 } else { 300_000 }),
    }
}

/// The steps of PE `me` in a round: every target byte belongs to one step.
fn steps(arena: Arena, me: u64, seed: u64, count: usize) -> Vec<Step> {
    let mut random = StdRng::seed_from_u64(mix(seed) ^ me);
    // The next free byte of this PE's zone at each PE, and of its own zone for gets.
    let mut free: Vec<u64> = (0..arena.n_pes).map(|_| arena.zone_of_writer(me)).collect();
    let mut got_free = arena.got();
    let mut steps = Vec::new();
    for index in 0..count {
        let scope = random.random_range(THREAD..=BLOCK);
        let kind = random.random_range(PUT..=IGET);
        let peer = random.random_range(0..arena.n_pes);
        let width = if kind >= IPUT { 1u64 << random.random_range(0..5) } else { 1 };
        let strides = if kind >= IPUT { 1..5 } else { 1..2 };
        let (dst_stride, src_stride) = (random.random_range(strides.clone()), random.random_range(strides));
        let extent =
            |n: u64, stride: i32| if n == 0 { 0 } else { ((n - 1) * u64::from(stride.unsigned_abs()) + 1) * width };
        let mut n = if kind >= IPUT { random.random_range(0..60) } else { length(&mut random, scope) };
        if index == 0 && kind < IPUT {
            n = arena.zone / 2; // long, across chunks
        }
        let is_put = matches!(kind, PUT | PUT_NBI | IPUT);
        let mut elsewhere = random.random_bool(0.3);
        // The buffer begins up to 15 bytes in.
        let room = ELSEWHERE[usize::from(scope)] - 16;
        let local_extent = |n: u64| extent(n, if is_put { src_stride } else { dst_stride });
        if elsewhere && local_extent(n) > room {
            elsewhere = index % 2 == 0;
            while elsewhere && local_extent(n) > room {
                n /= 2;
            }
        }
        let (free, end) = if is_put {
            (&mut free[peer as usize], arena.zone_of_writer(me) + arena.zone)
        } else {
            (&mut got_free, arena.got() + arena.zone)
        };
        let dst = (*free + random.random_range(0..24)).next_multiple_of(width);
        if dst + extent(n, dst_stride) > end {
            continue;
        }
        *free = dst + extent(n, dst_stride);
        let src = random.random_range(0..arena.sources - extent(n, src_stride) - 16).next_multiple_of(width);
        let scope = if n > 100_000 && scope == THREAD { BLOCK } else { scope };
        steps.push(Step {
            dst,
            src,
            n,
            dst_stride,
            src_stride,
            pe: peer as i32,
            kind,
            scope,
            width: width as u8,
            elsewhere: elsewhere.into(),
        });
    }
    steps
}

/// What the arena of `me` holds when `writer` has performed its steps; `sources`: those of each PE.
fn apply(expected: &mut [u8], sources: &[Vec<u8>], me: u64, writer: u64, steps: &[Step]) {
    for step in steps {
        let peer = u64::from(step.pe.unsigned_abs());
        let (target, source) = if step.is_put() { (peer, writer) } else { (writer, peer) };
        if target != me {
            continue;
        }
        for (dst, src, n) in step.runs() {
            let source = &sources[source as usize][src as usize..][..n as usize];
            expected[dst as usize..][..n as usize].copy_from_slice(source);
        }
    }
}

/// Blocks and threads of the rounds: full warps, less than one, and some that are not a multiple of
/// 32.
const SHAPES: [(u32, u32); 5] = [(1, 32), (2, 50), (1, 1), (3, 33), (1, 256)];

pub fn rma(args: &[String]) -> Outcome {
    let rig = Rig::new(&RMA)?;
    let rounds: usize = args.first().map_or(Ok(SHAPES.len()), |text| text.parse())?;
    let (me, n_pes) = (rig.me() as u64, rig.n_pes() as u64);
    let arena = Arena { n_pes, sources: 3 << 20, zone: ((6 << 20) / (n_pes + 1)).max(900 << 10) };
    let memory = rig.pe.alloc::<u8>(arena.bytes() as usize)?;
    let sources: Vec<_> = (0..n_pes).map(|pe| sources(pe, arena.sources)).collect();
    for (round, (blocks, threads)) in SHAPES.into_iter().cycle().take(rounds).enumerate() {
        let seed = 100 + round as u64;
        let mine = steps(arena, me, seed, 160);
        let list = rig.filled(&vec![Step::zeroed(); 160])?;
        rig.pe.write(&list, &mine)?;
        let mut expected = vec![UNTOUCHED; arena.bytes() as usize];
        expected[..arena.sources as usize].copy_from_slice(&sources[me as usize]);
        rig.pe.write(&memory, &expected)?;
        for writer in 0..n_pes {
            apply(&mut expected, &sources, me, writer, &steps(arena, writer, seed, 160));
        }
        rig.pe.barrier_all()?;

        let warps = threads.div_ceil(32) as usize;
        let shared_bytes = warps * ELSEWHERE[1] as usize + ELSEWHERE[2] as usize;
        let config = LaunchConfig { shared_bytes, ..LaunchConfig::linear(blocks, threads) };
        rig.run("run_steps", config, (&memory, &list, mine.len() as u64))?;
        rig.pe.barrier_all()?;

        let seen = rig.pe.read(&memory)?;
        // Whole slices are compared in a fraction of the time.
        if seen != expected
            && let Some(at) = seen.iter().zip(&expected).position(|(seen, expected)| seen != expected)
        {
            explain(
                arena,
                me,
                seed,
                (blocks, threads),
                &Wrong { at: at as u64, seen: seen[at], expected: expected[at] },
            );
        }
        rig.pe.barrier_all()?;
        rig.pe.free(list)?;
    }
    rig.finish()
}

/// A byte that is not as it should be, and its offset.
struct Wrong {
    at: u64,
    seen: u8,
    expected: u8,
}

fn explain(arena: Arena, me: u64, seed: u64, shape: (u32, u32), wrong: &Wrong) -> ! {
    let &Wrong { at, seen, expected } = wrong;
    for writer in 0..arena.n_pes {
        for step in steps(arena, writer, seed, 160) {
            let target = if step.is_put() { u64::from(step.pe.unsigned_abs()) } else { writer };
            if target == me && step.runs().iter().any(|(dst, _, n)| (*dst..dst + n).contains(&at)) {
                panic!(
                    "PE {me}, {shape:?}, offset {at:#x}: {seen:#x} instead of {expected:#x}, by PE {writer}: {step:?}"
                );
            }
        }
    }
    panic!("PE {me}, {shape:?}, offset {at:#x}: {seen:#x} instead of {expected:#x}: no step writes there");
}
