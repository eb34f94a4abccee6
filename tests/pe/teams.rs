//! Teams: how they are made, what they are, and what is refused.

use oxshmem::bootstrap::{Failure, FailureKind};
use oxshmem::{Error, FaultKind, LaunchConfig, Operations, Path, SymmetricSlice, Team, TeamError, TeamUniqueId};

use crate::Outcome;
use crate::rig::{Rig, misses_last};

oxshmem::include_module!(TEAMS, "teams");

/// How long work takes that is waited for.
const LATE_NS: u64 = 50_000_000;

/// A PE, and memory for what its kernels say.
struct Bench {
    rig: Rig,
    flags: SymmetricSlice<u32>,
    numbers: SymmetricSlice<i32>,
    id: SymmetricSlice<u8>,
}

impl Bench {
    fn new() -> oxshmem::Result<Self> {
        let rig = Rig::new(&TEAMS)?;
        let n = rig.n_pes();
        let (flags, numbers, id) = (rig.pe.alloc(n)?, rig.pe.alloc(n + 4)?, rig.pe.alloc(16)?);
        Ok(Self { rig, flags, numbers, id })
    }

    /// What device code says of a team: this PE's number, the members, and the numbers in `other`
    /// of PEs from -1 to one after the last.
    fn numbers(&self, team: i32, other: i32) -> oxshmem::Result<Vec<i32>> {
        let most = self.numbers.len();
        self.rig.run_linear("team_numbers", 1, 1, (team, other, &self.numbers, most as i32))?;
        self.rig.pe.read(self.numbers.view(..most))
    }

    fn check_translation(&self, from: &Team, to: &Team) -> Outcome {
        let target = to.members();
        let expected: Vec<Option<usize>> =
            from.members().iter().map(|pe| target.iter().position(|member| member == pe)).collect();
        let seen = self.numbers(from.handle(), to.handle())?;
        assert_eq!((seen[2], seen[3 + from.n_pes()]), (-1, -1));
        for (pe, expected) in expected.into_iter().enumerate() {
            assert_eq!(from.translate(pe, to), expected, "PE {pe} of {from:?} in {to:?}");
            assert_eq!(
                seen[3 + pe],
                expected.map_or(-1, |pe| pe as i32),
                "PE {pe} of {from:?} in {to:?}, on the device"
            );
        }
        assert_eq!(from.translate(from.n_pes(), to), None);
        Ok(())
    }

    /// The team is of these PEs, in this order, and they meet. By all of its members.
    fn check(&self, team: &Team, expected: &[usize]) -> Outcome {
        let me = expected.iter().position(|pe| *pe == self.rig.me());
        assert_eq!((team.members(), Some(team.my_pe()), team.n_pes()), (expected.to_vec(), me, expected.len()));
        assert_eq!(self.rig.pe.team(team.handle())?.members(), expected);
        let seen = self.numbers(team.handle(), team.handle())?;
        assert_eq!(seen[..2], [team.my_pe() as i32, team.n_pes() as i32]);
        let world = self.rig.pe.team_world();
        self.check_translation(team, &world)?;
        self.check_translation(&world, team)?;
        for (scope, threads) in [(0u32, 1u32), (1, 32), (2, 50)] {
            let first = ((team.handle() as u32) << 8) + scope * 16 + 1;
            let args = (team.handle(), &self.flags, first, 4u32, scope, self.rig.report());
            self.rig.run_linear("team_rounds", 1, threads, args)?;
            self.rig.pe.team_sync(team)?;
            self.rig.pe.barrier(team)?;
        }
        Ok(())
    }

    /// The PEs with the same network namespace and `OXSHMEM_NODE`. By all PEs.
    fn of_this_node(&self) -> Result<Vec<usize>, Box<dyn std::error::Error>> {
        let name = (std::fs::read_link("/proc/self/ns/net")?, std::env::var_os("OXSHMEM_NODE"));
        let mut hasher = std::hash::DefaultHasher::new();
        std::hash::Hash::hash(&name, &mut hasher);
        let mine = std::hash::Hasher::finish(&hasher);
        let (me, n) = (self.rig.me(), self.rig.n_pes());
        let names = self.rig.pe.alloc::<u64>(n)?;
        for pe in 0..n {
            self.rig.pe.put(names.view(me..), &[mine], pe)?;
        }
        self.rig.pe.barrier_all()?;
        let all = self.rig.pe.read(names.view(..n))?;
        self.rig.pe.free(names)?;
        Ok((0..n).filter(|pe| all[*pe] == mine).collect())
    }

    /// An id that PE 0 got. By all PEs.
    fn shared_id(&self) -> Result<TeamUniqueId, Box<dyn std::error::Error>> {
        if self.rig.me() == 0 {
            let id = TeamUniqueId::create()?;
            for pe in 0..self.rig.n_pes() {
                self.rig.pe.put(&self.id, id.as_bytes(), pe)?;
            }
        }
        self.rig.pe.barrier_all()?;
        let bytes = self.rig.pe.read(self.id.view(..16))?;
        let id = TeamUniqueId::from_bytes(bytes.try_into().unwrap());
        assert_eq!(id.to_string().parse::<TeamUniqueId>()?, id);
        // Before PE 0 gets another one.
        self.rig.pe.barrier_all()?;
        Ok(id)
    }
}

pub fn teams(_: &[String]) -> Outcome {
    let bench = Bench::new()?;
    let pe = &bench.rig.pe;
    let (me, n) = (pe.my_pe(), pe.n_pes());
    let world = pe.team_world();
    let all: Vec<usize> = (0..n).collect();
    bench.check(&world, &all)?;
    bench.check(&pe.team_node(), &bench.of_this_node()?)?;
    let shared = pe.team_shared();
    for member in shared.members() {
        assert!(matches!(pe.path(member), Some(Path::Own | Path::LoadStore)), "PE {member} is not within reach");
    }
    bench.check(&shared, &shared.members())?;
    assert!(shared.is_near());
    assert_eq!(world.is_near(), (0..n).all(|pe| shared.members().contains(&pe)));
    assert_eq!(
        [world.handle(), shared.handle(), pe.team_node().handle(), pe.team_same_node_pe().handle()],
        [0, 1, 2, 3]
    );

    // Every start and some strides, each as long as it gets.
    for start in 0..n {
        for stride in [1, 2, 3] {
            let size = (n - start).div_ceil(stride);
            let expected: Vec<usize> = (start..n).step_by(stride).collect();
            let team = world.split_strided(pe, start, stride, size)?;
            assert_eq!(team.is_some(), expected.contains(&me), "split_strided({start}, {stride}, {size})");
            if let Some(team) = team {
                bench.check(&team, &expected)?;
                bench.check_translation(&team, &shared)?;
                team.destroy(pe)?;
            }
        }
    }

    // A part of a part, with its parent in use at the same time.
    let odd: Vec<usize> = (1..n).step_by(2).collect();
    if let Some(odd_team) = world.split_strided(pe, 1.min(n - 1), 2, odd.len().max(1))?
        && n > 1
    {
        let last = odd[odd.len() - 1];
        if let Some(inner) = odd_team.split_strided(pe, odd.len() - 1, 1, 1)? {
            bench.check(&inner, &[last])?;
            bench.check_translation(&inner, &odd_team)?;
            bench.check_translation(&odd_team, &inner)?;
        }
        bench.check(&odd_team, &odd)?;
    }

    own_parts(&bench)?;
    for xrange in [1, 2, 3, n, n + 5] {
        let (row, column) = world.split_2d(pe, xrange)?;
        let width = xrange.min(n);
        let first = me / width * width;
        bench.check(&row, &(first..n.min(first + width)).collect::<Vec<_>>())?;
        bench.check(&column, &(me % width..n).step_by(width).collect::<Vec<_>>())?;
        bench.check_translation(&row, &column)?;
        row.destroy(pe)?;
        column.destroy(pe)?;
    }
    sets(&bench)?;
    bench.rig.pe.barrier_all()?;
    bench.rig.finish()
}

/// Splits in which each PE names its own part: rows, columns, and parts that some PEs are in.
fn own_parts(bench: &Bench) -> Outcome {
    let pe = &bench.rig.pe;
    let (me, n, world) = (pe.my_pe(), pe.n_pes(), pe.team_world());
    for width in [1, 2, 3, n] {
        let first = me / width * width;
        let row: Vec<usize> = (first..n.min(first + width)).collect();
        let column: Vec<usize> = (me % width..n).step_by(width).collect();
        let row_team = world.split_own(pe, first, 1, row.len())?.unwrap();
        bench.check(&row_team, &row)?;
        let column_team = world.split_own(pe, me % width, width, column.len())?.unwrap();
        bench.check(&column_team, &column)?;
        bench.check_translation(&row_team, &column_team)?;
        // A part of a part, whose numbers are those in the parent: this PE alone.
        let alone = row_team.split_own(pe, me - first, 1, 1)?.unwrap();
        bench.check(&alone, &[me])?;
        for team in [alone, column_team, row_team] {
            team.destroy(pe)?;
        }
    }
    // All name one part, as for `split_strided`, which PE 0 is not in.
    let rest = world.split_own(pe, 1.min(n - 1), 1, (n - 1).max(1))?;
    assert_eq!(rest.is_some(), n == 1 || me > 0);
    if let Some(rest) = rest {
        bench.check(&rest, &(1.min(n - 1)..n).collect::<Vec<_>>())?;
        rest.destroy(pe)?;
    }
    // Each names another one, so there is no team; and a PE whose numbers do not fit learns that.
    assert!(n == 1 || world.split_own(pe, (me + 1) % n, 1, 1)?.is_none());
    let odd_one = world.split_own(pe, 0, 1, if me + 1 == n { n + 1 } else { (n - 1).max(1) });
    if me + 1 == n {
        let text = team_error(odd_one).to_string();
        assert!(text.contains(&format!("size {}) of a team of {n} PEs", n + 1)), "{text}");
    } else {
        let others = odd_one?.unwrap();
        bench.check(&others, &(0..n - 1).collect::<Vec<_>>())?;
        others.destroy(pe)?;
    }
    Ok(())
}

/// Teams of any PEs, in any order.
fn sets(bench: &Bench) -> Outcome {
    let pe = &bench.rig.pe;
    let (me, n) = (pe.my_pe(), pe.n_pes());
    // Backwards, and parts of that.
    let backwards: Vec<usize> = (0..n).rev().collect();
    let team = Team::from_unique_id(pe, &bench.shared_id()?, n - 1 - me, n)?;
    bench.check(&team, &backwards)?;
    bench.check_translation(&team, &pe.team_shared())?;
    let half: Vec<usize> = backwards.iter().copied().step_by(2).collect();
    if let Some(part) = team.split_strided(pe, 0, 2, half.len())? {
        bench.check(&part, &half)?;
        part.destroy(pe)?;
    }
    let (row, column) = team.split_2d(pe, 2)?;
    let first = (n - 1 - me) / 2 * 2;
    bench.check(&row, &backwards[first..n.min(first + 2)])?;
    bench.check(&column, &backwards.iter().copied().skip((n - 1 - me) % 2).step_by(2).collect::<Vec<_>>())?;

    // Two at the same time that know nothing of each other, turned by one: unevenly spaced from
    // three members on.
    let (id, other) = (bench.shared_id()?, bench.shared_id()?);
    let mut members: Vec<usize> = (me % 2..n).step_by(2).collect();
    members.rotate_left(1);
    let index = members.iter().position(|pe| *pe == me).unwrap();
    let turned = Team::from_unique_id(pe, if me.is_multiple_of(2) { &id } else { &other }, index, members.len())?;
    bench.check(&turned, &members)?;
    bench.check_translation(&turned, &team)?;
    bench.check_translation(&team, &turned)?;
    // With the same id again, also while the first team exists.
    let again = Team::from_unique_id(pe, if me.is_multiple_of(2) { &id } else { &other }, index, members.len())?;
    bench.check(&again, &members)?;
    turned.destroy(pe)?;
    bench.check(&again, &members)?;
    // A team of one PE, which needs no id to be shared.
    let alone = Team::from_unique_id(pe, &TeamUniqueId::create()?, 0, 1)?;
    bench.check(&alone, &[me])
}

/// Hundreds of teams, one after the other: nothing grows, and no handle comes twice.
pub fn turnover(args: &[String]) -> Outcome {
    let rounds: usize = args.first().map_or(Ok(300), |text| text.parse())?;
    let bench = Bench::new()?;
    let pe = &bench.rig.pe;
    let (n, world) = (pe.n_pes(), pe.team_world());
    let allocations = pe.live_allocations();
    let mut handles = Vec::new();
    for round in 0..rounds {
        let start = round % n;
        let Some(team) = world.split_strided(pe, start, 1, n - start)? else { continue };
        let (row, column) = team.split_2d(pe, 2)?;
        for team in [&team, &row, &column] {
            assert!(!handles.contains(&team.handle()), "handle {:#x} comes again", team.handle());
            assert!(team.handle() & 0xff < 12, "of few teams at a time {:#x} is the row of one", team.handle());
            pe.team_sync(team)?;
        }
        if round % 50 == 0 {
            bench.check(&team, &(start..n).collect::<Vec<_>>())?;
        }
        for team in [team, column, row] {
            handles.push(team.handle());
            let stale = team.handle();
            team.destroy(pe)?;
            assert!(matches!(pe.team(stale), Err(Error::Team(TeamError::BadHandle { handle, .. })) if handle == stale));
        }
    }
    assert_eq!(pe.live_allocations(), allocations);
    bench.rig.pe.barrier_all()?;
    bench.rig.finish()
}

fn team_error<T: std::fmt::Debug>(result: oxshmem::Result<T>) -> TeamError {
    match result {
        Err(Error::Team(error)) => error,
        other => panic!("{other:?} is not the error that was due"),
    }
}

fn disagreement<T: std::fmt::Debug>(result: oxshmem::Result<T>) -> Failure {
    match team_error(result) {
        TeamError::Meeting { failure, .. } if failure.kind == FailureKind::Mismatch => failure,
        other => panic!("{other:?} is not a disagreement"),
    }
}

/// Calls that are refused, by all that make them, and leave everything as it was. Run with
/// `OXSHMEM_MAX_TEAMS=6`, by at least 2 PEs.
pub fn refused(_: &[String]) -> Outcome {
    let bench = Bench::new()?;
    let pe = &bench.rig.pe;
    let (me, n) = (pe.my_pe(), pe.n_pes());
    let world = pe.team_world();

    let split = |start, stride, size| world.split_strided(pe, start, stride, size);
    for (start, stride, size, part) in [
        (0, 1, n + 1, "last member would be"),
        (n, 1, 1, "last member"),
        (0, 0, 2, "stride"),
        (0, 1, 0, "at least one"),
    ] {
        let text = team_error(split(start, stride, size)).to_string();
        assert!(text.contains(&format!("size {size}) of a team of {n} PEs")) && text.contains(part), "{text}");
    }
    assert!(matches!(team_error(world.split_2d(pe, 0)), TeamError::BadSplit { .. }));
    for team in [pe.team_world(), pe.team_shared(), pe.team_node(), pe.team_same_node_pe()] {
        assert!(matches!(team_error(team.destroy(pe)), TeamError::Predefined { .. }));
    }

    // Different arguments, and different calls.
    let failure = disagreement(split(0, 1, if me == 1 { 1 } else { n }));
    for part in [format!("size {n})"), "size 1)".into(), "PE 1".into(), "of the world team".into()] {
        assert!(failure.message.contains(&part), "{failure}");
    }
    assert!(failure.ranks.contains(&1), "{failure:?}");
    let team = split(0, 1, n)?.unwrap();
    let handle = team.handle();
    let failure = if me == 0 { disagreement(team.destroy(pe)) } else { disagreement(team.split_2d(pe, 1)) };
    let text = failure.message;
    assert!(text.contains(&format!("destroy of team {handle:#x}")) && text.contains("split_2d(xrange 1)"), "{text}");
    // A member of another PE's part that names another one.
    let error = team_error(world.split_own(pe, 0, 1, if me == 1 { 1 } else { n }));
    assert!(matches!(error, TeamError::Parts { pe: 0, other: 1, .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.contains(&format!("PE 0 calls split_strided(start 0, stride 1, size {n})")), "{text}");
    assert!(
        text.contains("and PE 1, which is a member of that, calls split_strided(start 0, stride 1, size 1)"),
        "{text}"
    );
    // It is as good as before.
    let team = pe.team(handle)?;
    bench.check(&team, &(0..n).collect::<Vec<_>>())?;

    // PE 0 is in one team more than the others, and the next that it would be in has no room.
    let alone = split(0, 1, 1)?;
    assert_eq!(alone.is_some(), me == 0);
    let error = team_error(split(0, 1, 2));
    let text = error.to_string();
    assert!(matches!(error, TeamError::Exhausted { members: 2, pe: 0, used: 6, limit: 6 }), "{error:?}");
    assert!(text.contains("OXSHMEM_MAX_TEAMS") && text.contains("PE 0 is in 6"), "{text}");
    let rest = split(1, 1, n - 1)?;
    if let Some(rest) = rest {
        bench.check(&rest, &(1..n).collect::<Vec<_>>())?;
        rest.destroy(pe)?;
    }
    // One of two new teams has room, but not both.
    assert!(matches!(team_error(world.split_2d(pe, n)), TeamError::Exhausted { .. }));
    if let Some(alone) = alone {
        alone.destroy(pe)?;
    }
    let pair = split(0, 1, 2)?;
    if let Some(pair) = pair {
        bench.check(&pair, &[0, 1])?;
        pair.destroy(pe)?;
    }

    stale(&bench, team)?;
    ids(&bench)?;
    // All of it has left no trace.
    let (row, column) = world.split_2d(pe, n)?;
    bench.check(&row, &(0..n).collect::<Vec<_>>())?;
    bench.check(&column, &[me])?;
    bench.rig.pe.barrier_all()?;
    bench.rig.finish()
}

/// A team after its end. What the type system lets through is its handle.
fn stale(bench: &Bench, team: Team) -> Outcome {
    let pe = &bench.rig.pe;
    let (handle, twin) = (team.handle(), pe.team(team.handle())?);
    team.destroy(pe)?;
    let is_bad = |error: TeamError| matches!(error, TeamError::BadHandle { handle: bad, .. } if bad == handle);
    assert!(is_bad(team_error(pe.team(handle))) && is_bad(team_error(pe.team_sync(&twin))));
    assert!(is_bad(team_error(twin.split_2d(pe, 1))) && is_bad(team_error(twin.destroy(pe))));
    // The row has another team now, whose handle is another.
    let next = pe.team_world().split_strided(pe, 0, 1, pe.n_pes())?.unwrap();
    assert_eq!(next.handle(), handle + 0x100);
    for bad in [handle, next.handle() + 0x100, -1, i32::MIN, 5, 0x1ff, i32::MAX, 0x100, 0x101] {
        assert_eq!(bench.numbers(bad, 0)?[..2], [-1, -1], "{bad:#x}");
        assert_eq!(bench.numbers(0, bad)?[3], -1, "{bad:#x}");
        let error = bench.rig.run_linear("team_sync_refused", 1, 1, (bad, &bench.numbers)).unwrap_err();
        let Error::Fault(fault) = &error else { panic!("{error:?}") };
        assert!(matches!(fault.kind, FaultKind::BadTeam { handle } if handle == bad), "{bad:#x}: {error}");
        assert_ne!(pe.read(bench.numbers.view(..1))?, [0]);
    }
    bench.check(&next, &(0..pe.n_pes()).collect::<Vec<_>>())?;
    Ok(next.destroy(pe)?)
}

/// Sets whose members do not agree.
fn ids(bench: &Bench) -> Outcome {
    let pe = &bench.rig.pe;
    let (me, n) = (pe.my_pe(), pe.n_pes());
    let failure = disagreement(Team::from_unique_id(pe, &bench.shared_id()?, me.saturating_sub(1), n));
    assert!(failure.message.contains("both enter team ") && failure.message.contains("as member 0"), "{failure}");
    let failure = disagreement(Team::from_unique_id(pe, &bench.shared_id()?, me, if me == 1 { n - 1 } else { n }));
    // It depends on which PE comes first. In a team of one, PE 1 as member 1 is wrong by itself.
    let (sizes, alone) = ([format!("has {} members", n - 1), format!("says {}", n - 1)], "PE 1 enters ");
    let named = sizes.iter().any(|size| failure.message.contains(size)) || n == 2 && failure.message.starts_with(alone);
    assert!(named && failure.message.contains("PE 1"), "{failure}");
    let failure = disagreement(Team::from_unique_id(pe, &bench.shared_id()?, me + 1, n));
    assert!(failure.message.contains(&format!("as member {n}")), "{failure}");
    let failure = disagreement(Team::from_unique_id(pe, &bench.shared_id()?, me, n + 1));
    assert!(failure.message.contains(&format!("has {} members, in a job of {n}", n + 1)), "{failure}");
    let id = bench.shared_id()?;
    let team = Team::from_unique_id(pe, &id, me, n)?;
    bench.check(&team, &(0..n).collect::<Vec<_>>())?;
    Ok(team.destroy(pe)?)
}

/// A member that does something else is named at the deadline, and told so when it comes. Run with
/// a short `OXSHMEM_MEETING_TIMEOUT`, by at least 3 PEs.
pub fn absent(_: &[String]) -> Outcome {
    let bench = Bench::new()?;
    let pe = &bench.rig.pe;
    let (world, n) = (pe.team_world(), pe.n_pes());
    let team = misses_last(&bench.rig, "split_strided(start 0", || world.split_strided(pe, 0, 1, n))?.unwrap();
    bench.check(&team, &(0..n).collect::<Vec<_>>())?;
    pe.barrier_all()?;
    bench.rig.finish()
}

/// Teams that are destroyed while a stream has work for them. Run by at least 2 PEs, with an
/// `OXSHMEM_TIMEOUT` that is short and yet longer than [`LATE_NS`].
pub fn busy(_: &[String]) -> Outcome {
    const ONE: LaunchConfig = LaunchConfig { grid: [1, 1, 1], block: [1, 1, 1], shared_bytes: 0, cooperative: false };
    let bench = Bench::new()?;
    let pe = &bench.rig.pe;
    let (me, n, last) = (pe.my_pe(), pe.n_pes(), pe.n_pes() - 1);
    let (world, word) = (pe.team_world(), pe.alloc::<u64>(1)?);
    let (hold, release_late) = (bench.rig.function("hold")?, bench.rig.function("release_late")?);
    let all: Vec<usize> = (0..n).collect();
    let make = || world.split_strided(pe, 0, 1, n).map(Option::unwrap);
    let (other, mut handle) = (pe.create_stream()?, None);
    for (turn, stream) in (1u64..).zip([pe.create_stream()?, pe.stream()]) {
        let on = pe.on(&stream);
        let held = |value: u64| {
            // SAFETY: the kernel's types.
            unsafe { hold.launch(&on, ONE, (&word, value)) }
        };

        // What ends late is waited for.
        let team = make()?;
        assert!(handle.is_none_or(|handle| team.handle() == handle + 0x100), "the row of the team before is free");
        held(turn)?;
        on.team_sync(&team)?;
        // SAFETY: as above.
        unsafe { release_late.launch(&pe.on(&other), ONE, (&word, turn, LATE_NS))? };
        team.destroy(pe)?;
        assert_eq!(pe.read(&word)?, [turn]);
        // The collective had the team that it was called with.
        on.synchronize()?;
        pe.synchronize()?;
        // Work for another team is not.
        let team = make()?;
        held(0)?;
        on.team_sync(&world)?;
        if turn != 1 {
            // But for `quiet`, which is put on the PE's own stream.
            pe.write(&word, &[0])?;
        }
        team.destroy(pe)?;
        pe.write(&word, &[0])?;
        on.synchronize()?;

        // What does not end is an error of all members, which names the one that has it.
        let team = make()?;
        on.team_sync(&team)?;
        if me == last {
            held(turn)?;
        } else {
            on.synchronize()?;
        }
        let stale = team.handle();
        let error = team_error(team.destroy(pe));
        let text = error.to_string();
        assert!(matches!(error, TeamError::Busy { pe, .. } if pe == last), "{error:?}");
        let name = if turn == 1 { "stream" } else { "the PE's own stream" };
        for part in [format!("destroy of team {stale:#x}: PE {last} "), name.into(), "the last is hold".into()] {
            assert!(text.contains(&part), "{text}: {part}");
        }
        let team = pe.team(stale)?;
        // The team is as good as before, on other streams, too.
        pe.on(&other).barrier(&team)?;
        pe.on(&other).synchronize()?;
        pe.write(&word, &[turn])?;
        on.synchronize()?;
        bench.check(&team, &all)?;
        team.destroy(pe)?;
        let next = make()?;
        assert_eq!(next.handle(), stale + 0x100);
        bench.check(&next, &all)?;
        handle = Some(next.handle());
        next.destroy(pe)?;
    }
    bench.rig.pe.barrier_all()?;
    bench.rig.finish()
}
