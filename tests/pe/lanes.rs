//! Scalar puts and gets by converged lanes: every pattern of targets, compared by value; adjacent
//! ones must combine.

use bytemuck::{Pod, Zeroable};
use oxshmem::{Operations, Path, SymmetricSlice};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::Outcome;
use crate::rig::{Rig, mix};

oxshmem::include_module!(LANES, "lanes");

/// Mirrors `Target` of `kernels/lanes.cu`.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Target {
    offset: u64,
    pe: i32,
    value: u32,
}

const NOBODY: Target = Target { offset: 0, pe: -1, value: 0 };

/// Bytes of a pattern's zone; every PE has its own at every PE.
const ZONE: u64 = 8192;

/// The patterns: from the lane and its warp, the element to put to and the PE; `None`: the lane
/// does not take part.
type Pattern = fn(lane: u64, warp: u64, n_pes: u64, random: &mut StdRng) -> Option<(u64, u64)>;

const PATTERNS: &[(&str, Pattern)] = &[
    ("all adjacent", |lane, warp, n, _| Some((warp * 32 + lane, (warp + 1) % n))),
    ("one lane", |lane, warp, n, _| (lane == 7).then_some((warp, n - 1))),
    ("odd lanes, adjacent", |lane, warp, n, _| (lane % 2 == 1).then_some((warp * 32 + lane / 2, warp % n))),
    ("odd lanes, every other element", |lane, warp, n, _| {
        (lane % 2 == 1).then_some((warp * 32 + lane, (warp + 1) % n))
    }),
    ("gaps", |lane, warp, n, _| Some((warp * 64 + lane + lane / 5 * 3, (warp + 1) % n))),
    ("strided", |lane, warp, n, _| Some((warp * 128 + lane * 3, (warp + 2) % n))),
    ("descending", |lane, warp, n, _| Some((warp * 32 + 31 - lane, (warp + 1) % n))),
    ("pairs swapped", |lane, warp, n, _| Some((warp * 32 + (lane ^ 1), (warp + 1) % n))),
    ("PEs in turn, adjacent at each", |lane, warp, n, _| Some((warp * 32 + lane / n, lane % n))),
    ("halves to two PEs", |lane, warp, n, _| Some((warp * 32 + lane, (warp + lane / 16) % n))),
    ("runs of 3 to PEs in turn", |lane, warp, n, _| Some((warp * 32 + lane, lane / 3 % n))),
    ("low lanes only", |lane, warp, n, _| (lane < 5).then_some((warp * 8 + lane, (warp + 1) % n))),
    ("high lanes only", |lane, warp, n, _| (lane > 27).then(|| (warp * 8 + lane - 28, (warp + 1) % n))),
    ("random lanes and PEs", |lane, warp, n, random| {
        random.random_bool(0.6).then(|| (warp * 32 + lane, random.random_range(0..n)))
    }),
    ("random permutation", |lane, warp, n, _| Some((warp * 32 + (lane * 13 + 5) % 32, (warp + 1) % n))),
    ("a repeated element", |lane, warp, n, _| Some((warp * 32 + lane.min(20), (warp + 1) % n))),
    ("all to one element", |_, warp, n, _| Some((warp, (warp + 1) % n))),
    ("adjacent, twice", |lane, warp, n, _| Some((warp * 16 + lane % 16, (warp + 1) % n))),
];

/// The patterns are repeated so that one repetition's zones straddle a chunk border.
struct Layout {
    n_pes: u64,
    first: u64,
}

impl Layout {
    fn zone(&self, pattern: u64, writer: u64) -> u64 {
        self.first + (pattern * self.n_pes + writer) * ZONE
    }
}

fn targets(layout: &Layout, me: u64, blocks: u64, threads: u64, width: u64) -> Vec<Target> {
    let mut random = StdRng::seed_from_u64(me * 1000 + width);
    let mut targets = Vec::new();
    for (index, (_, pattern)) in PATTERNS.iter().enumerate() {
        for global in 0..blocks * threads {
            let (block, thread) = (global / threads, global % threads);
            let warp = block * threads.div_ceil(32) + thread / 32;
            targets.push(pattern(thread % 32, warp, layout.n_pes, &mut random).map_or(NOBODY, |(element, pe)| {
                Target {
                    offset: layout.zone(index as u64, me) + element * width,
                    pe: pe as i32,
                    value: (global + me * 10_000 + index as u64 * 1_000_000) as u32,
                }
            }));
        }
    }
    targets
}

fn low_bytes(value: u64, width: u64) -> u64 {
    if width == 8 { value } else { value & ((1 << (8 * width)) - 1) }
}

/// Compares the arena with all targets that lead here. Where several lanes put to one element, each
/// of their values is right.
fn check(rig: &Rig, layout: &Layout, arena: &SymmetricSlice<u8>, blocks: u64, threads: u64, width: u64) -> Outcome {
    let seen = rig.pe.read(arena)?;
    let mut legal: Vec<Vec<u64>> = vec![Vec::new(); arena.len()];
    for writer in 0..layout.n_pes {
        for target in targets(layout, writer, blocks, threads, width) {
            if target.pe == rig.me() as i32 {
                legal[target.offset as usize].push(low_bytes(mix(u64::from(target.value)), width));
            }
        }
    }
    let mut at = 0;
    while at < seen.len() {
        if legal[at].is_empty() {
            assert_eq!(
                seen[at],
                0,
                "PE {}: a put of width {width} touched offset {at:#x}, which none targets",
                rig.me()
            );
            at += 1;
            continue;
        }
        let mut word = [0; 8];
        word[..width as usize].copy_from_slice(&seen[at..at + width as usize]);
        let value = u64::from_le_bytes(word);
        let pattern = (at as u64 - layout.first) / (layout.n_pes * ZONE);
        assert!(
            legal[at].contains(&value),
            "PE {}: width {width}, {blocks} x {threads}, pattern `{}`, offset {at:#x}: {value:#x} is none of {:x?}",
            rig.me(),
            PATTERNS[pattern as usize].0,
            legal[at]
        );
        at += width as usize;
    }
    Ok(())
}

/// `lanes [GRIDS]`: by how many of the grids; work requests are counted with all of them.
pub fn lanes(args: &[String]) -> Outcome {
    let grids: usize = args.first().map_or(Ok(2), |text| text.parse())?;
    let rig = Rig::new(&LANES)?;
    let n_pes = rig.n_pes() as u64;
    let patterns = PATTERNS.len() as u64;
    for (blocks, threads) in [(1, 32), (2, 80)].into_iter().take(grids) {
        for width in [1, 2, 4, 8] {
            // The zones of a put begin so that the first pattern's own zone straddles the border of
            // the first chunk.
            let layout = Layout { n_pes, first: 40 };
            let bytes = (layout.zone(patterns, 0) + ZONE).next_multiple_of(1 << 20);
            let arena = rig.pe.alloc_aligned::<u8>(bytes as usize, 4096)?;
            let mine = targets(&layout, rig.me() as u64, blocks, threads, width);
            let table = rig.filled(&mine)?;
            let got = rig.pe.alloc::<u64>(mine.len())?;
            rig.run_linear(
                "put_lanes",
                blocks as u32,
                threads as u32,
                (&arena, &table, patterns as u32, width as u32),
            )?;
            rig.pe.barrier_all()?;
            check(&rig, &layout, &arena, blocks, threads, width)?;
            rig.run_linear(
                "get_lanes",
                blocks as u32,
                threads as u32,
                (&arena, &table, patterns as u32, width as u32, &got),
            )?;
            for (index, (target, got)) in mine.iter().zip(rig.pe.read(got.view(..mine.len()))?).enumerate() {
                let legal = |other: &Target| {
                    (other.offset, other.pe) == (target.offset, target.pe)
                        && low_bytes(mix(u64::from(other.value)), width) == got
                };
                let ok = if target.pe < 0 { got == 0 } else { mine.iter().any(legal) };
                assert!(ok, "PE {}: g of width {width} for {target:?} (thread {index}) gave {got:#x}", rig.me());
            }
            rig.pe.barrier_all()?;
            rig.pe.free(got)?;
            rig.pe.free(table)?;
            rig.pe.free(arena)?;
        }
    }
    across_a_chunk(&rig)?;
    let floats = rig.pe.alloc::<f32>(64)?;
    let doubles = rig.pe.alloc::<f64>(64)?;
    rig.run_linear("real_lanes", 2, 32, (&floats, &doubles, rig.report()))?;
    if grids > 1 {
        combined(&rig)?;
    }
    rig.finish()
}

/// A run of adjacent lanes whose middle is the border of a chunk, for every width and several
/// places of the border.
fn across_a_chunk(rig: &Rig) -> Outcome {
    const CHUNK: u64 = 1 << 20;
    let memory = rig.pe.alloc_aligned::<u8>(3 * CHUNK as usize, 4096)?;
    // Allocations need not begin at a chunk, but their addresses' offsets in the heap are the same
    // on every PE.
    let base = memory.address() % CHUNK;
    let border = CHUNK - base;
    let to = ((rig.me() + 1) % rig.n_pes()) as i32;
    for width in [1u64, 2, 4, 8] {
        let shifts = [0u64, 1, 15, 16, 31, 32];
        let mine: Vec<Target> = shifts
            .iter()
            .enumerate()
            .flat_map(|(index, shift)| {
                let first = border + index as u64 * CHUNK / 4 * 4 % (2 * CHUNK) - shift * width;
                (0..32u64).map(move |lane| Target {
                    offset: first + lane * width,
                    pe: to,
                    value: (index as u64 * 100 + lane) as u32,
                })
            })
            .collect();
        // Some runs overlap, so each is put and compared on its own.
        for run in mine.chunks(32) {
            let table = rig.filled(run)?;
            rig.run_linear("put_lanes", 1, 32, (&memory, &table, 1u32, width as u32))?;
            rig.pe.barrier_all()?;
            let first = run[0].offset as usize;
            let seen = rig.pe.read(memory.view(first..first + 32 * width as usize))?;
            for (lane, target) in run.iter().enumerate() {
                let bytes = &mix(u64::from(target.value)).to_le_bytes()[..width as usize];
                assert_eq!(
                    &seen[lane * width as usize..][..width as usize],
                    bytes,
                    "width {width}, lane {lane}, {target:?}"
                );
            }
            rig.pe.barrier_all()?;
            rig.pe.free(table)?;
        }
    }
    rig.pe.free(memory)?;
    Ok(())
}

/// Over the network, a warp's adjacent puts are few work requests, and scattered ones are one each.
fn combined(rig: &Rig) -> Outcome {
    const PATTERNS: u64 = 64;
    let memory = rig.pe.alloc_aligned::<u8>(1 << 16, 4096)?;
    let to = ((rig.me() + 1) % rig.n_pes()) as i32;
    let mut requests = Vec::new();
    for stride in [4, 8] {
        let table: Vec<Target> = (0..PATTERNS * 32)
            .map(|i| Target { offset: i / 32 * 256 + i % 32 * stride, pe: to, value: i as u32 })
            .collect();
        let table = rig.filled(&table)?;
        rig.pe.barrier_all()?;
        let before = rig.pe.hca_counters();
        rig.run_linear("put_lanes", 1, 32, (&memory, &table, PATTERNS as u32, 4u32))?;
        rig.pe.quiet()?;
        if let (Some(before), Some(after)) = (before, rig.pe.hca_counters()) {
            requests.push(after.wqes - before.wqes);
        }
        rig.pe.barrier_all()?;
    }
    if let &[adjacent, scattered] = &requests[..]
        && rig.pe.path(to as usize) == Some(Path::Ibgda)
    {
        let puts = PATTERNS * 32;
        assert!(adjacent * 8 <= puts, "{puts} adjacent puts took {adjacent} work requests");
        assert!(scattered >= puts, "{puts} scattered puts took only {scattered} work requests");
    }
    Ok(())
}
