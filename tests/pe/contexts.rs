//! Contexts: every operation through each kind, batches, and what is refused.

use oxshmem::config::Rails;
use oxshmem::{
    ContextError, ContextOptions, Error, FaultKind, HeapError, KernelArg, Operations, Path, PeId, Sharing, Team,
};

use crate::Outcome;
use crate::rig::{Rig, misses_last, mix};

oxshmem::include_module!(CONTEXTS, "contexts");

/// `kWords` in `kernels/contexts.cu`.
const WORDS: usize = 512;
/// Blocks of the grids, each with a context of its own.
const BLOCKS: u32 = 3;

/// `contexts`: through contexts of each kind, over the world and a team in another order, each
/// member sends to the next.
pub fn contexts(args: &[String]) -> Outcome {
    let rails = match args {
        [rails] => rails.parse::<Rails>()?,
        _ => Rails::Auto,
    };
    let rig = Rig::new(&CONTEXTS)?;
    let world = rig.pe.team_world();
    let mut teams = vec![world];
    if rig.n_pes() > 2 {
        // Every second PE, and the rest.
        let (row, column) = teams[0].split_2d(&rig.pe, 2)?;
        teams.extend([row, column]);
    }
    for team in &teams {
        for (sharing, threads, lanes) in
            [(Sharing::Thread, 32, 1), (Sharing::Warp, 32, 32), (Sharing::Block, 96, 96), (Sharing::Device, 64, 64)]
        {
            for batches in [0, 1] {
                exchange(&rig, team, (sharing, batches, rails), (threads, lanes))?;
            }
        }
    }
    rig.finish()
}

fn exchange(
    rig: &Rig,
    team: &Team,
    (sharing, batches, rails): (Sharing, i32, Rails),
    (threads, lanes): (u32, u32),
) -> oxshmem::Result<()> {
    let options = ContextOptions::new(sharing).count(BLOCKS as usize).depth(256).rails(rails);
    let contexts = team.create_contexts(&rig.pe, &options)?;
    assert_eq!(contexts.len(), BLOCKS as usize);
    let far = team.members().into_iter().filter(|pe| rig.pe.path(*pe) == Some(Path::Ibgda)).count();
    // Where cards do all atomics, there are some to every member.
    let each = contexts.queue_pairs() as usize / BLOCKS as usize;
    assert!([far, team.n_pes()].contains(&each), "{sharing}: {each} queue pairs of each context, {far} PEs are far");
    let words = BLOCKS as usize * WORDS;
    let (inbox, outbox, back) = (rig.pe.alloc::<u64>(words)?, rig.pe.alloc::<u64>(words)?, rig.pe.alloc::<u64>(words)?);
    let (counters, signals) = (rig.pe.alloc::<u64>(BLOCKS as usize)?, rig.pe.alloc::<u64>(BLOCKS as usize)?);
    let (me, n) = (team.my_pe() as i32, team.n_pes() as i32);
    rig.run_linear("context_fill", BLOCKS, 32, (&outbox, me))?;
    let args = (contexts.array(), &inbox, &outbox, &back, &counters, &signals, (me + 1) % n, me, batches, rig.report());
    rig.run_linear("context_exchange", BLOCKS, threads, args)?;
    rig.pe.barrier(team)?;
    if rig.pe.config().rails() == Rails::Push {
        crosses_rails(rig, team, rails)?;
    }
    let args = (&inbox, &counters, &signals, (me + n - 1) % n, lanes, rig.report());
    rig.run_linear("context_check", BLOCKS, 32, args)?;
    contexts.destroy(&rig.pe)?;
    // All teams have as many contexts at a time, and memory is freed by all PEs together.
    rig.pe.barrier_all()?;
    rig.pe.free(inbox)?;
    rig.pe.free(outbox)?;
    rig.pe.free(back)?;
    rig.pe.free(counters)?;
    rig.pe.free(signals)
}

/// Checks what contexts have sent across rails in a job that pushes, of nodes with two PEs on two
/// rails: nothing, unless each PE sends by its own card through them and the next member is on the
/// other rail of another node.
fn crosses_rails(rig: &Rig, team: &Team, rails: Rails) -> oxshmem::Result<()> {
    let next = team.members()[(team.my_pe() + 1) % team.n_pes()];
    let is_across = rig.pe.path(next) == Some(Path::Ibgda) && next % 2 != rig.pe.my_pe() % 2;
    let counters = rig.pe.counters()?;
    let across = counters.routes.iter().filter(|route| route.leaves_node && route.crosses_rails == Some(true));
    let sent: u64 = across.filter_map(|route| route.traffic.messages).sum();
    assert_eq!(sent > 0, is_across && rails == Rails::Direct, "{rails}: {sent} messages across rails to PE {next}");
    Ok(())
}

/// `context_batches N`: puts that share doorbells, more of them than the queue holds.
pub fn batches(args: &[String]) -> Outcome {
    const EACH: u32 = 8;
    let rig = Rig::new(&CONTEXTS)?;
    let [n] = args else { return Err("context_batches N".into()) };
    let n: u32 = n.parse()?;
    let words = rig.pe.alloc::<u64>(n as usize)?;
    let peer = ((rig.me() + 1) % rig.n_pes()) as i32;
    let options = ContextOptions::new(Sharing::Thread).depth(256);
    let contexts = rig.pe.team_world().create_contexts(&rig.pe, &options)?;
    let before = rig.pe.doorbells();
    rig.run_linear("context_batches", 1, 1, (contexts.get(0)?, &words, n, EACH, peer))?;
    if let (Some(before), Some(after)) = (before, rig.pe.doorbells())
        && rig.pe.path(peer as usize) == Some(Path::Ibgda)
    {
        // Some more where the queue is full.
        let most = u64::from(n.div_ceil(EACH) + n / 128 + 1);
        assert!(after - before <= most, "{} doorbells for {n} puts, {EACH} of which share one", after - before);
    }
    rig.pe.barrier_all()?;
    rig.run_linear("context_batches_out", 1, 32, (&words, n, rig.report()))?;
    rig.pe.barrier_all()?;
    rig.run_linear("context_unflushed", 1, 1, (contexts.get(0)?, &words, peer, rig.report()))?;
    rig.pe.barrier_all()?;
    for sharing in [Sharing::Thread, Sharing::Block, Sharing::Device] {
        scopes(&rig, sharing, n, peer)?;
    }
    contexts.destroy(&rig.pe)?;
    rig.finish()
}

/// Scope objects: in a context of one thread, adjacent puts share work requests.
fn scopes(rig: &Rig, sharing: Sharing, n: u32, peer: i32) -> oxshmem::Result<()> {
    let n = n.next_multiple_of(8);
    let contexts = rig.pe.team_world().create_contexts(&rig.pe, &ContextOptions::new(sharing).depth(256))?;
    let (dst, src) = (rig.pe.alloc::<u64>(2 * n as usize + 3)?, rig.pe.alloc::<u64>(n as usize)?);
    let data: Vec<u64> = (u64::from(n)..2 * u64::from(n)).map(mix).collect();
    rig.pe.write(&src, &data)?;
    let before = rig.pe.hca_counters();
    rig.run_linear("context_scopes", 1, 1, (contexts.get(0)?, &dst, &src, n, peer))?;
    if let (Some(before), Some(after)) = (before, rig.pe.hca_counters())
        && sharing == Sharing::Thread
        && rig.pe.path(peer as usize) == Some(Path::Ibgda)
    {
        // Twice n words of which 27 share a request, and n of arrays that share one.
        let most = u64::from(2 * n / 20 + n / 16 + 8);
        let requests = after.wqes - before.wqes;
        assert!(requests <= most, "{requests} work requests for {n} words, thrice; {most} are enough");
    }
    rig.pe.barrier_all()?;
    rig.run_linear("context_scopes_out", 1, 1, (&dst, n, rig.report()))?;
    rig.pe.free(dst)?;
    rig.pe.free(src)?;
    contexts.destroy(&rig.pe)
}

/// `context_names`: the names of C, through a context of the program and through the default one.
pub fn names(_: &[String]) -> Outcome {
    let rig = Rig::new(&CONTEXTS)?;
    // Each PE uses words of its own at the next.
    let words = rig.pe.alloc::<u64>(256 * rig.n_pes())?;
    let peer = ((rig.me() + 1) % rig.n_pes()) as i32;
    let mine = words.view(256 * rig.me()..);
    let contexts = rig.pe.team_world().create_contexts(&rig.pe, &ContextOptions::new(Sharing::Thread))?;
    rig.run_linear("context_names", 1, 1, (contexts.get(0)?, &mine, peer, rig.report()))?;
    rig.run_linear("context_names", 1, 1, (DefaultContext([0; 48]), &mine, peer, rig.report()))?;
    rig.pe.barrier_all()?;
    contexts.destroy(&rig.pe)?;
    rig.finish()
}

/// `OXSHMEM_CTX_DEFAULT` of device code.
struct DefaultContext([u8; 48]);

impl KernelArg for DefaultContext {
    type Bytes = [u8; 48];
    fn bytes(&self, _: PeId) -> Result<[u8; 48], HeapError> {
        Ok(self.0)
    }
}

/// `context_errors`: what the host and device code refuse, after each of which the PE goes on.
pub fn errors(_: &[String]) -> Outcome {
    let rig = Rig::new(&CONTEXTS)?;
    let (world, n) = (rig.pe.team_world(), rig.n_pes());
    let words = rig.pe.alloc::<u64>(4096)?;
    let peer = ((rig.me() + 1) % n) as i32;
    let by_device = rig.pe.path(peer as usize) == Some(Path::Ibgda);
    let block = ContextOptions::new(Sharing::Block);

    let error = world.create_contexts(&rig.pe, &block.clone().count(70_000)).unwrap_err().to_string();
    assert!(error.contains("70000 contexts in one call; 1 to 65536"), "{error}");
    let error = world.create_contexts(&rig.pe, &block.clone().depth(300)).unwrap_err().to_string();
    assert!(error.contains("a send queue of 300 blocks"), "{error}");
    if by_device {
        let error = world.create_contexts(&rig.pe, &block.clone().card(9)).unwrap_err().to_string();
        assert!(error.contains("contexts request card 9"), "{error}");
    }
    let error = world.create_contexts(&rig.pe, &block.clone().rails(Rails::Push)).unwrap_err().to_string();
    assert!(error.contains("contexts cannot push"), "{error}");
    if n > 1 {
        let differs = block.clone().depth(if rig.me() == 0 { 256 } else { 512 });
        let error = world.create_contexts(&rig.pe, &differs).unwrap_err();
        assert!(matches!(error, Error::Context(ContextError::Mismatch { .. })), "{error}");
    }

    let contexts = world.create_contexts(&rig.pe, &block)?;
    let put = |context: &oxshmem::Context, pe: i32| rig.run_linear("context_put", 1, 1, (context, &words, pe));
    let context = contexts.get(0)?;
    let error = contexts.get(1).unwrap_err().to_string();
    assert!(error.contains("context 1 of a set of 1"), "{error}");
    for bad in [-1, n as i32] {
        let Error::Fault(fault) = put(&context, bad).unwrap_err() else { panic!("PE {bad}") };
        assert_eq!(fault.kind, FaultKind::MemberOutOfRange { pe: bad, last: n as u64 - 1 });
    }
    put(&context, peer)?;
    contexts.destroy(&rig.pe)?;
    let error = put(&context, peer).unwrap_err().to_string();
    assert!(error.contains("was destroyed"), "{error}");

    // By one thread, and by whole warps, which look at their addresses together.
    for (sharing, threads) in [(Sharing::Thread, 1), (Sharing::Warp, 32), (Sharing::Block, 64)] {
        let contexts = world.create_contexts(&rig.pe, &ContextOptions::new(sharing))?;
        let stray = rig.run_linear("context_stray", 1, threads, (contexts.get(0)?, peer));
        let Err(Error::Fault(fault)) = stray else { panic!("{sharing}: {stray:?}") };
        assert!(matches!(fault.kind, FaultKind::AddressOutsideHeap { .. }), "{sharing}: {fault}");
        contexts.destroy(&rig.pe)?;
    }

    // What is outstanding is completed.
    let outstanding = world.create_contexts(&rig.pe, &block)?;
    rig.run_linear("context_unquiet", 1, 1, (outstanding.get(0)?, &words, 100u32, peer))?;
    outstanding.destroy(&rig.pe)?;
    rig.pe.barrier_all()?;
    assert_eq!(rig.pe.read(words.view(..100))?, (1..=100).collect::<Vec<u64>>());

    // Members cannot meet to destroy contexts of a team that was destroyed.
    if let Some(team) = world.split_strided(&rig.pe, 0, 1, n)? {
        let orphans = team.create_contexts(&rig.pe, &block)?;
        team.destroy(&rig.pe)?;
        let error = orphans.destroy(&rig.pe).unwrap_err();
        assert!(matches!(error, Error::Team(_)), "{error}");
    }
    rig.pe.barrier_all()?;

    // Their memory serves the next ones.
    for _ in 0..3 {
        let again = world.create_contexts(&rig.pe, &block)?;
        put(&again.get(0)?, peer)?;
        again.destroy(&rig.pe)?;
    }
    rig.finish()
}

/// `context_absent`: the last PE does not take part, which the others learn at the deadline. Run
/// with a short `OXSHMEM_MEETING_TIMEOUT`.
pub fn absent(_: &[String]) -> Outcome {
    let rig = Rig::new(&CONTEXTS)?;
    let world = rig.pe.team_world();
    misses_last(&rig, "create contexts", || world.create_contexts(&rig.pe, &ContextOptions::new(Sharing::Block)))?
        .destroy(&rig.pe)?;
    rig.finish()
}

/// `context_in_use`: a context of one thread that several use at once, or that posts beside a batch
/// of it. Where that is looked for, on the `cpu` device, and work requests are posted.
pub fn in_use(_: &[String]) -> Outcome {
    let rig = Rig::new(&CONTEXTS)?;
    let words = rig.pe.alloc::<u64>(4096)?;
    let peer = ((rig.me() + 1) % rig.n_pes()) as i32;
    let world = rig.pe.team_world();
    let crowd = |sharing| -> oxshmem::Result<()> {
        let contexts = world.create_contexts(&rig.pe, &ContextOptions::new(sharing))?;
        let ran = rig.run_linear("context_crowd", 1, 64, (contexts.get(0)?, &words, 20u32, peer));
        let destroyed = contexts.destroy(&rig.pe);
        ran.and(destroyed)
    };
    for sharing in [Sharing::Thread, Sharing::Warp] {
        let Error::Fault(fault) = crowd(sharing).unwrap_err() else { panic!("{sharing}") };
        assert!(matches!(fault.kind, FaultKind::ContextInUse { .. }), "{sharing}: {fault}");
    }
    for sharing in [Sharing::Block, Sharing::Device] {
        crowd(sharing)?;
    }
    let contexts = world.create_contexts(&rig.pe, &ContextOptions::new(Sharing::Thread))?;
    let beside = rig.run_linear("context_beside_batch", 1, 1, (contexts.get(0)?, &words, peer));
    let Err(Error::Fault(fault)) = beside else { panic!("{beside:?}") };
    assert!(matches!(fault.kind, FaultKind::ContextInUse { .. }), "{fault}");
    contexts.destroy(&rig.pe)?;
    rig.pe.barrier_all()?;
    rig.finish()
}
