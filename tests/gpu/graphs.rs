//! Collectives in CUDA graphs: launched again and again with other data, updated to other buffers
//! and sizes, and of two teams on forked streams.

use std::ptr::null_mut;

use cudarc::driver::sys::{self, CUgraph, CUgraphExec, CUstream};
use oxshmem::{OnStream, Operations, Pe, ReduceOp, Stream, SymmetricSlice, Team};

use crate::streams::works;
use crate::{Outcome, init};

/// How often a graph is launched.
const LAUNCHES: u32 = 3;
/// Elements of one member's part of what is captured by itself: 256 bytes, 80 KB and 1.2 MB.
const LENGTHS: [usize; 3] = [64, 20_000, 300_000];
/// Elements before an update and after it. No transfer has 256 KiB, from where on it is no kernel
/// in a graph: an update changes the nodes of a graph, but not their kinds.
const UPDATED: [(usize, usize); 3] = [(5000, 3001), (100, 7000), (30_000, 50_000)];

/// A collective, or a put with what completes it on all members.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Call {
    Sync,
    Barrier,
    Broadcast,
    Fcollect,
    /// Lengths differ.
    Collect,
    Alltoall,
    /// Every third element of the source, every second place of the result.
    Alltoalls,
    Reduce,
    InPlace,
    Reducescatter,
}

const CALLS: [Call; 10] = [
    Call::Sync,
    Call::Barrier,
    Call::Broadcast,
    Call::Fcollect,
    Call::Collect,
    Call::Alltoall,
    Call::Alltoalls,
    Call::Reduce,
    Call::InPlace,
    Call::Reducescatter,
];

/// What a PE contributes to element `index` in a round: each round differs.
fn value(pe: usize, round: u32, index: usize) -> u32 {
    let (pe, index) = (pe as u32 + 1, index as u32);
    index.wrapping_mul(0x9e37_79b1) ^ pe.wrapping_mul(0x85eb_ca6b) ^ round.wrapping_mul(0xc2b2_ae35)
}

/// A team, and memory for its calls of one length.
struct Bench<'a> {
    pe: &'a Pe,
    team: &'a Team,
    n: usize,
    src: SymmetricSlice<u32>,
    dst: SymmetricSlice<u32>,
}

impl<'a> Bench<'a> {
    /// Allocates, which is collective over all PEs.
    fn new(pe: &'a Pe, team: &'a Team, n: usize) -> oxshmem::Result<Self> {
        let all = n * team.n_pes();
        Ok(Self { pe, team, n, src: pe.alloc(3 * all)?, dst: pe.alloc(2 * all)? })
    }

    /// Returns the members that have the number after this PE's, and the one before.
    fn neighbours(&self) -> (usize, usize) {
        let (members, me) = (self.team.members(), self.team.my_pe());
        (members[(me + 1) % members.len()], members[(me + members.len() - 1) % members.len()])
    }

    /// Puts a call on a stream.
    fn queue(&self, on: &OnStream<'_>, call: Call) -> oxshmem::Result<()> {
        let Self { team, n, src, dst, .. } = self;
        let (n, mine) = (*n, src.view(..*n));
        match call {
            Call::Sync => {
                on.put(dst, mine, self.neighbours().0)?;
                on.quiet()?;
                on.team_sync(team)
            }
            Call::Barrier => {
                on.put(dst, mine, self.neighbours().0)?;
                on.barrier(team)
            }
            Call::Broadcast => on.broadcast(team, dst, mine, team.n_pes() - 1),
            Call::Fcollect => on.fcollect(team, dst, mine),
            Call::Collect => on.collect(team, dst, src.view(..n - team.my_pe())),
            Call::Alltoall => on.alltoall(team, dst, src, n),
            Call::Alltoalls => on.alltoalls(team, dst.view(..).step_by(2), src.view(..).step_by(3), n),
            Call::Reduce => on.reduce(team, ReduceOp::Sum, dst, mine),
            Call::InPlace => on.reduce(team, ReduceOp::Max, dst, dst.view(..n)),
            Call::Reducescatter => on.reducescatter(team, ReduceOp::Sum, dst.view(..n), src),
        }
    }

    /// Writes what this PE contributes in a round.
    fn fill(&self, call: Call, round: u32) -> oxshmem::Result<()> {
        let values = |n: usize| -> Vec<u32> { (0..n).map(|index| value(self.pe.my_pe(), round, index)).collect() };
        if call == Call::InPlace {
            self.pe.write(&self.dst, &values(self.n))
        } else {
            self.pe.write(&self.src, &values(self.src.len()))
        }
    }

    /// Returns what the call stores at this PE in a round.
    fn expected(&self, call: Call, round: u32) -> Vec<u32> {
        let (n, members, me) = (self.n, self.team.members(), self.team.my_pe());
        let of = |pe: usize| move |index: usize| value(pe, round, index);
        let combined = |index: usize, combine: fn(u32, u32) -> u32| {
            members.iter().map(|pe| value(*pe, round, index)).reduce(combine).unwrap()
        };
        match call {
            Call::Sync | Call::Barrier => (0..n).map(of(self.neighbours().1)).collect(),
            Call::Broadcast => (0..n).map(of(members[members.len() - 1])).collect(),
            Call::Fcollect => members.iter().flat_map(|pe| (0..n).map(of(*pe))).collect(),
            Call::Collect => members.iter().enumerate().flat_map(|(member, pe)| (0..n - member).map(of(*pe))).collect(),
            Call::Alltoall => members.iter().flat_map(|pe| (me * n..(me + 1) * n).map(of(*pe))).collect(),
            Call::Alltoalls => {
                let part = |pe: &usize| (me * n..(me + 1) * n).map(|index| 3 * index).map(of(*pe));
                members.iter().flat_map(part).collect()
            }
            Call::Reduce => (0..n).map(|index| combined(index, u32::wrapping_add)).collect(),
            Call::InPlace => (0..n).map(|index| combined(index, u32::max)).collect(),
            Call::Reducescatter => (me * n..(me + 1) * n).map(|index| combined(index, u32::wrapping_add)).collect(),
        }
    }

    /// Checks what the call has stored in a round.
    fn check(&self, call: Call, round: u32, what: &str) -> Outcome {
        let mut seen = self.pe.read(&self.dst)?;
        if call == Call::Alltoalls {
            seen = seen.into_iter().step_by(2).collect();
        }
        let expected = self.expected(call, round);
        let wrong = (0..expected.len()).find(|index| seen[*index] != expected[*index]);
        if let Some(index) = wrong {
            let (seen, expected) = (seen[index], expected[index]);
            let (n, team) = (self.n, self.team.handle());
            return Err(format!(
                "{what}: {call:?} of {n} on team {team:#x}, round {round}: element {index} is {seen:#x}, not {expected:#x}"
            )
            .into());
        }
        Ok(())
    }
}

/// A stream of the program in the PE's context.
fn create(pe: &Pe) -> oxshmem::Result<(CUstream, Stream)> {
    let mut raw = null_mut();
    // SAFETY: the context of a PE; writes a handle.
    unsafe {
        works(sys::cuCtxSetCurrent(pe.gpu().unwrap().context.cast()));
        works(sys::cuStreamCreate(&raw mut raw, 1)); // not blocked by the default stream
        Ok((raw, pe.stream_from_raw(raw.cast())?))
    }
}

/// What was captured, and what the GPU runs of it.
struct Graph {
    graph: CUgraph,
    executable: CUgraphExec,
}

impl Graph {
    /// Captures what `queue` puts on a stream.
    fn capture(raw: CUstream, queue: impl FnOnce() -> oxshmem::Result<()>) -> oxshmem::Result<Self> {
        let (mut graph, mut executable) = (null_mut(), null_mut());
        // SAFETY: the stream exists; graph and executable graph are used as cuda.h says.
        unsafe {
            let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
            works(sys::cuStreamBeginCapture_v2(raw, mode));
            queue()?;
            works(sys::cuStreamEndCapture(raw, &raw mut graph));
            works(sys::cuGraphInstantiateWithFlags(&raw mut executable, graph, 0));
        }
        Ok(Self { graph, executable })
    }

    /// Has the executable graph do what another graph does.
    fn update(&self, other: &Self) {
        let mut info = sys::CUgraphExecUpdateResultInfo {
            result: sys::CUgraphExecUpdateResult::CU_GRAPH_EXEC_UPDATE_SUCCESS,
            errorNode: null_mut(),
            errorFromNode: null_mut(),
        };
        // SAFETY: both graphs exist, and the executable one is not running.
        let status = unsafe { sys::cuGraphExecUpdate_v2(self.executable, other.graph, &raw mut info) };
        assert_eq!(status, sys::CUresult::CUDA_SUCCESS, "the driver says: {:?}", info.result);
    }

    fn launch(&self, raw: CUstream) {
        // SAFETY: graph and stream exist.
        unsafe { works(sys::cuGraphLaunch(self.executable, raw)) };
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: the graph is not running: what it has stored was checked.
        unsafe {
            works(sys::cuGraphExecDestroy(self.executable));
            works(sys::cuGraphDestroy(self.graph));
        }
    }
}

/// Launches a graph of these calls in several rounds with other data, and checks each.
fn launches(pe: &Pe, raw: CUstream, graph: &Graph, calls: &[(&Bench<'_>, Call)], what: &str) -> Outcome {
    for round in 1..=LAUNCHES {
        calls.iter().try_for_each(|(bench, call)| bench.fill(*call, round))?;
        // All have filled what others put to.
        pe.barrier_all()?;
        graph.launch(raw);
        pe.synchronize_device()?;
        calls.iter().try_for_each(|(bench, call)| bench.check(*call, round, what))?;
        // All have looked at what others put to in the next round.
        pe.barrier_all()?;
    }
    Ok(())
}

/// `graphs`, by the algorithms that the settings name.
pub fn graphs() -> Outcome {
    let pe = init()?;
    let world = pe.team_world();
    let second = world.split_strided(&pe, 0, 1, pe.n_pes())?.ok_or("no team")?;
    // The modules are loaded now, not while a stream captures.
    let one = Bench::new(&pe, &second, 1)?;
    pe.reduce(&second, ReduceOp::Sum, &one.dst, one.src.view(..1))?;
    pe.fcollect(&second, &one.dst, one.src.view(..1))?;
    free(&pe, one)?;
    let (raw, stream) = create(&pe)?;
    let on = pe.on(&stream);

    // Each call by itself.
    for n in LENGTHS {
        let bench = Bench::new(&pe, &world, n)?;
        for call in CALLS {
            let graph = Graph::capture(raw, || bench.queue(&on, call))?;
            launches(&pe, raw, &graph, &[(&bench, call)], "a graph")?;
        }
        free(&pe, bench)?;
    }

    // All calls one after the other, and the same with other buffers and sizes.
    for (before, after) in UPDATED {
        let benches = |n: usize| CALLS.iter().map(|_| Bench::new(&pe, &world, n)).collect::<oxshmem::Result<Vec<_>>>();
        let (old, new) = (benches(before)?, benches(after)?);
        fn calls<'a>(benches: &'a [Bench<'a>]) -> Vec<(&'a Bench<'a>, Call)> {
            benches.iter().zip(CALLS).collect()
        }
        let capture = |benches: &[Bench<'_>]| {
            Graph::capture(raw, || calls(benches).into_iter().try_for_each(|(bench, call)| bench.queue(&on, call)))
        };
        let (graph, other) = (capture(&old)?, capture(&new)?);
        launches(&pe, raw, &graph, &calls(&old), "a graph before its update")?;
        graph.update(&other);
        launches(&pe, raw, &graph, &calls(&new), "a graph after its update")?;
        old.into_iter().chain(new).try_for_each(|bench| free(&pe, bench))?;
    }

    // Two teams on two streams, of which the second is forked from the first and joined to it.
    let (forked, beside) = create(&pe)?;
    let mut event = null_mut();
    // SAFETY: writes a handle.
    unsafe { works(sys::cuEventCreate(&raw mut event, 2)) }; // without a time
    let follow = |stream: CUstream, other: CUstream| {
        // SAFETY: streams and event exist.
        unsafe {
            works(sys::cuEventRecord(event, other));
            works(sys::cuStreamWaitEvent(stream, event, 0));
        }
    };
    for n in LENGTHS {
        let benches = [Bench::new(&pe, &world, n)?, Bench::new(&pe, &second, n)?];
        let both = [Call::Reduce, Call::Alltoall];
        let graph = Graph::capture(raw, || {
            follow(forked, raw);
            benches[0].queue(&on, both[0])?;
            benches[1].queue(&pe.on(&beside), both[1])?;
            follow(raw, forked);
            benches[0].queue(&on, Call::Barrier)?;
            benches[0].queue(&on, both[0])
        })?;
        launches(&pe, raw, &graph, &[(&benches[0], both[0]), (&benches[1], both[1])], "two teams on forked streams")?;
        drop(graph);
        benches.into_iter().try_for_each(|bench| free(&pe, bench))?;
    }
    // SAFETY: nothing uses it any more.
    unsafe { works(sys::cuEventDestroy_v2(event)) };
    second.destroy(&pe)?;
    Ok(pe.finalize()?)
}

/// Frees memory on all PEs.
fn free(pe: &Pe, bench: Bench<'_>) -> oxshmem::Result<()> {
    pe.free(bench.src)?;
    pe.free(bench.dst)
}
