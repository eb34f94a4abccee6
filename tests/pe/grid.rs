//! Calls in grid scope: every collective by every algorithm and in teams, put and get, calls that
//! do not belong together, and grids of which a block does not call.

use oxshmem::abi::{self, Algorithm, Call, ReduceOp, TEAM_WORLD, Team as Row, Type};
use oxshmem::{Error, FaultKind, LaunchConfig, Operations};

use crate::Outcome;
use crate::collectives::{Bench, Case, IN_TWO, NOT_RUN, Step, UNTOUCHED, Way};
use crate::rig::{Extent, Rig};

oxshmem::include_module!(GRID, "grid");

/// The scope's number in a step.
const SCOPE: u32 = 3;
/// No block is absent.
const NONE: u32 = u32::MAX;

/// How the blocks of a grid carry out collectives.
#[derive(Debug, Clone, Copy)]
struct Shape {
    blocks: u32,
    threads: u32,
    /// Whether the algorithm is what the user has chosen; otherwise the library may take another.
    chosen: bool,
}

impl Bench {
    /// Runs cases of one way by grids.
    fn run_in_grid(&self, way: Way, shape: Shape, cases: Vec<Case>) -> Outcome {
        self.with_row(way, shape, || {
            self.run_by(cases, NOT_RUN + shape.blocks as i32, |count| {
                self.rig.run("run_steps_in_grid", config(shape), (&self.steps, count, NONE))
            })
        })
    }

    /// Calls `run` while the team's row says what `way` and `shape` say.
    fn with_row(&self, way: Way, shape: Shape, run: impl FnOnce() -> Outcome) -> Outcome {
        let chosen = if shape.chosen { u32::MAX } else { 0 };
        let args = (way.team, way.algorithm as u32, u32::from(way.by_rounds), chosen, &self.saved);
        self.rig.run_linear("take_row", 1, 1, args)?;
        run()?;
        self.rig.run_linear("give_row", 1, 1, (way.team, &self.saved))?;
        Ok(())
    }
}

fn config(shape: Shape) -> LaunchConfig {
    LaunchConfig::linear(shape.blocks, shape.threads).cooperative()
}

/// Every collective by every algorithm, in grids of several shapes, by all PEs and by every second
/// one. Arguments: the longest length.
pub fn collectives(args: &[String]) -> Outcome {
    let long: u64 = args.first().map_or(Ok(20_000), |text| text.parse())?;
    let bench = Bench::new()?;
    let pe = &bench.rig.pe;
    let extent = Extent::of(pe)?;
    let near = bench.one_round(TEAM_WORLD)?;
    let run = |way: Way, turn: usize, shape: Shape| {
        let mut cases = way.third(long, turn);
        if turn == 0 {
            cases.extend(way.reductions());
        }
        // More than one-shot reductions combine.
        cases.push(way.reduce(Type::Float32, ReduceOp::Sum, 300_001, turn.is_multiple_of(2)));
        let what = format!("collectives of {} PEs, {shape:?}", way.n);
        bench.run_in_grid(way, shape, extent.of_list(&what, pe, cases, Case::features))
    };
    let ways = |way: Way, near: bool| {
        let algorithms = [Algorithm::Push, Algorithm::Packets, Algorithm::Tree, Algorithm::OneShot];
        algorithms.map(|algorithm| Way { algorithm, ..way }).into_iter().flat_map(move |way| {
            let by_rounds = near && matches!(way.algorithm, Algorithm::Push | Algorithm::Tree);
            [false, true]
                .into_iter()
                .filter(move |rounds| by_rounds || !rounds)
                .map(move |by_rounds| Way { by_rounds, ..way })
        })
    };
    let shapes = [(1, 64), (3, 96), (8, 33), (5, 640)];
    for (turn, way) in ways(bench.world(SCOPE, Algorithm::Push, false), near).enumerate() {
        let (blocks, threads) = shapes[turn % shapes.len()];
        run(way, turn, Shape { blocks, threads, chosen: true })?;
        if way.algorithm == Algorithm::Push {
            run(way, turn + 1, Shape { blocks: 4, threads: 64, chosen: false })?;
            let in_two = Way { scope: SCOPE + IN_TWO, ..way };
            run(in_two, turn, Shape { blocks: 4, threads: 64, chosen: true })?;
            run(in_two, turn + 1, Shape { blocks: 1, threads: 600, chosen: true })?;
        }
        if way.algorithm == Algorithm::Push && !way.by_rounds && near {
            // In so large a grid not all blocks tell that they have entered.
            let blocks = abi::GRID_WORDS + 1;
            for chosen in [true, false] {
                let cases = vec![way.reduce(Type::Int32, ReduceOp::Sum, 9000, false), way.fcollect(3000)];
                bench.run_in_grid(way, Shape { blocks, threads: 32, chosen }, cases)?;
            }
        }
        if way.algorithm == Algorithm::Push && !way.by_rounds && way.n == 2 {
            // Beyond these limits two members reduce by shares.
            let n = abi::SHARED_FROM / size_of::<f32>() as u64;
            for (blocks, n) in [(abi::SHARED_BY, n), (abi::SHARED_BY, n - 1), (abi::SHARED_BY - 1, n)] {
                let cases = vec![way.reduce(Type::Float32, ReduceOp::Sum, n, false)];
                bench.run_in_grid(way, Shape { blocks, threads: 32, chosen: false }, cases)?;
            }
        }
    }
    let world = pe.team_world();
    let second = world.split_strided(pe, 0, 2, world.n_pes().div_ceil(2))?;
    if let Some(team) = second {
        let near = bench.one_round(team.handle())?;
        let (me, n) = (team.my_pe() as u64, team.n_pes() as u64);
        let way = Way { team: team.handle(), me, n, scope: SCOPE, algorithm: Algorithm::Push, by_rounds: false };
        for (turn, way) in ways(way, near).enumerate() {
            run(way, turn + 1, Shape { blocks: 3, threads: 64, chosen: turn.is_multiple_of(2) })?;
        }
        team.destroy(pe)?;
    }
    bench.rig.finish()
}

/// Broadcasts and reductions that members pass on in packets, in grids that have room for them. The
/// heap has to be so large that 64 blocks share a collective.
pub fn relays(_: &[String]) -> Outcome {
    let bench = Bench::new()?;
    let way = bench.world(SCOPE, Algorithm::Push, false);
    let least = abi::RELAYED_FROM / (way.n - 1) + 1;
    for bytes in [least, least + 20_000] {
        let mut cases: Vec<_> = (0..way.n).map(|root| way.broadcast(bytes + root, root, root % 2 == 0)).collect();
        let n = bytes.div_ceil(size_of::<f32>() as u64);
        cases.push(way.reduce(Type::Float32, ReduceOp::Sum, n, false));
        cases.push(way.reduce(Type::Int32, ReduceOp::Max, n + 1, true));
        bench.run_in_grid(way, Shape { blocks: 64, threads: 32, chosen: false }, cases)?;
    }
    bench.rig.finish()
}

/// Reductions in grids where `OXSHMEM_TUNING` names a file that has streams reduce otherwise than
/// the library does: the team's row has the library's choice, and leaves grids theirs.
pub fn tuned(_: &[String]) -> Outcome {
    let bench = Bench::new()?;
    let way = bench.world(SCOPE, Algorithm::Push, false);
    bench.with_row(way, Shape { blocks: 1, threads: 1, chosen: false }, || {
        let row: Row = bytemuck::pod_read_unaligned(bytemuck::cast_slice(&bench.rig.pe.read(&bench.saved)?));
        let first = row.choices[abi::Collective::Reduce as usize][0];
        assert_eq!((row.chosen, first.algorithm, first.up_to_bytes), (0, Algorithm::Packets as u32, 8192));
        Ok(())
    })?;
    let shape = Shape { blocks: 4, threads: 64, chosen: false };
    let cases = [1, 1000, 4000, 40_000].map(|n| way.reduce(Type::Float32, ReduceOp::Sum, n, false));
    bench.run_by(cases.into(), NOT_RUN + shape.blocks as i32, |count| {
        bench.rig.run("run_steps_in_grid", config(shape), (&bench.steps, count, NONE))
    })?;
    bench.rig.finish()
}

/// put and get of all lengths and alignments, their forms, the names of all types, and quiet; and
/// collectives that are begun by one call and ended by another.
pub fn transfers(_: &[String]) -> Outcome {
    const ROOM: u64 = 1 << 16;
    let rig = Rig::new(&GRID)?;
    let memory = rig.pe.alloc_aligned::<u8>(4 * ROOM as usize, 256)?;
    for (blocks, threads) in [(1, 32), (3, 64), (7, 129)] {
        let config = LaunchConfig::linear(blocks, threads).cooperative();
        for (turn, bytes) in [0, 1, 8, 255, 256, 257, 1000, 4096, 30_001, 60_000u64].into_iter().enumerate() {
            // Source and destination are aligned alike, and not.
            let (to, from) = (turn as u64 % 5, turn as u64 % 3);
            rig.run("transfers", config, (&memory, ROOM, to, from, bytes, rig.report()))?;
        }
        rig.run("strided", config, (&memory, ROOM, rig.report()))?;
        rig.run("named", config, (&memory, ROOM, rig.report()))?;
        rig.run("begun", config, (&memory, ROOM, rig.report()))?;
        for (pe, bytes, expected) in
            [(99, 1000, "PE 99 does not exist"), (0, u64::MAX, "not inside the symmetric heap")]
        {
            let fault = fault_of(rig.run("refused", config, (&memory, bytes, pe, rig.report())), expected);
            assert!(fault.to_string().contains(expected), "{fault}");
        }
    }
    rig.run("overlapped", LaunchConfig::linear(1, 96), (&memory, ROOM, rig.report()))?;
    rig.finish()
}

/// What the call of a PE whose grid or call does not fit the others', and those of the others, must
/// report.
fn fault_of(result: oxshmem::Result<()>, what: &str) -> oxshmem::DeviceFault {
    match result.expect_err(what) {
        Error::Fault(fault) => *fault,
        error => panic!("{what}: {error}"),
    }
}

/// Calls that do not belong together: an error on every PE, nothing written, and the team goes on.
/// Run with a short `OXSHMEM_TIMEOUT`.
pub fn errors(_: &[String]) -> Outcome {
    const ODD: usize = 1;
    const LONG: u64 = 100_000;
    let bench = Bench::new()?;
    let me = bench.rig.me();
    let is_odd = me == ODD;
    let near = bench.one_round(TEAM_WORLD)?;
    let at = bench.arena.address();
    let way = bench.world(SCOPE, Algorithm::Push, false);
    let shape = Shape { blocks: 3, threads: 64, chosen: true };
    let reduce = Step {
        dst: at + (1 << 20),
        src: at,
        n: LONG,
        kind: Type::Uint8 as u32,
        op: ReduceOp::Sum as u32,
        ..way.step(Call::Reduce)
    };
    let fails = |what: &str, shape: Shape, absent: u32, step: Step| {
        let memory = vec![UNTOUCHED; 2 << 20];
        bench.rig.pe.write(&bench.arena, &memory)?;
        bench.rig.pe.write(&bench.steps, &[step])?;
        bench.rig.pe.barrier_all()?;
        let result = bench.rig.run("run_steps_in_grid", config(shape), (&bench.steps, 1u32, absent));
        let fault = fault_of(result, &format!("PE {me}: {what}"));
        assert_eq!(fault.team, Some(step.team), "{what}: {fault}");
        assert_eq!(
            bench.rig.pe.read(bench.steps.view(..1))?[0].result,
            NOT_RUN,
            "{what}: a call says that all is well"
        );
        bench.rig.pe.barrier_all()?;
        assert!(bench.rig.pe.read(bench.arena.view(..memory.len()))? == memory, "{what}: something was written");
        Ok::<_, Box<dyn std::error::Error>>(fault)
    };
    let mismatch = |what: &str, fault: &oxshmem::DeviceFault| match fault.kind {
        FaultKind::Mismatch { pe, .. } => assert!(pe != me as i32 && (is_odd || pe == ODD as i32), "{what}: {fault}"),
        _ => panic!("{what}: {fault}"),
    };
    let good =
        || bench.run_in_grid(way, shape, vec![way.reduce(Type::Int32, ReduceOp::Sum, 9000, false), way.fcollect(30)]);

    bench.with_row(way, shape, || {
        // A block that does not call.
        let call = Step { dst: at + 8192, src: at, n: 40, ..reduce };
        let in_two = |call: Step| Step { scope: SCOPE + IN_TWO, ..call };
        let calls = [
            ("a short call", call),
            ("a long call", reduce),
            ("a short call in two", in_two(call)),
            ("a long call in two", in_two(reduce)),
            ("a collect", Step { dst: at + (1 << 20), src: at, n: LONG, ..way.step(Call::Collect) }),
            ("sync", way.step(Call::Sync)),
        ];
        for (what, call) in calls {
            let fault = fails(what, shape, if is_odd { 2 } else { NONE }, call)?;
            match fault.kind {
                FaultKind::GridIncomplete { arrived, blocks, .. } => {
                    assert_eq!((is_odd, arrived, blocks), (true, 2, 3), "{what}: {fault}");
                    assert!(fault.to_string().contains("only 2 of the grid's 3 blocks"), "{fault}");
                }
                // The others' deadline may pass as early; and members that meet in rounds may have
                // waited for another one that itself waits.
                FaultKind::Timeout { pe, .. } => assert!(!is_odd && (!near || pe == ODD as i32), "{what}: {fault}"),
                // They may hear that first.
                FaultKind::MemberLeft { pe, .. } => assert!(!is_odd && pe != me as i32, "{what}: {fault}"),
                _ => mismatch(what, &fault),
            }
        }
        if near {
            // Grids of different sizes, and a block on its own.
            for blocks in [1, 2, 4] {
                let what = format!("{blocks} blocks on one PE");
                let fault = fails(&what, Shape { blocks: if is_odd { blocks } else { 3 }, ..shape }, NONE, reduce)?;
                mismatch(&what, &fault);
            }
        }
        let other = Step { n: if is_odd { LONG - 1 } else { LONG }, ..reduce };
        mismatch("another size", &fails("another size", shape, NONE, other)?);
        mismatch("another size in two", &fails("another size in two", shape, NONE, in_two(other))?);
        let other = Step { op: if is_odd { 77 } else { reduce.op }, ..reduce };
        let fault = fails("no operator", shape, NONE, other)?;
        if is_odd {
            assert!(matches!(fault.kind, FaultKind::BadArgument { .. }), "{fault}");
        } else {
            mismatch("no operator", &fault);
        }
        let other = Step { src: if is_odd { reduce.dst + 1 } else { at }, ..reduce };
        let fault = fails("overlap", shape, NONE, other)?;
        if is_odd {
            assert!(matches!(fault.kind, FaultKind::Overlap { .. }), "{fault}");
        } else {
            mismatch("overlap", &fault);
        }
        let stale = Step { team: 0x300, ..reduce };
        let fault = fails("no team", shape, NONE, stale)?;
        assert!(matches!(fault.kind, FaultKind::BadTeam { handle: 0x300 }), "{fault}");
        Ok(())
    })?;
    good()?;
    bench.rig.finish()
}
