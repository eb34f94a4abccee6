//! Teams: ordered sets of PEs that do collectives together. Created and destroyed by their members, through the bootstrap's hub; see
//! `docs/teams.md`.
//!
//! Device code finds a team in a table by the row that the handle names (`abi::Team`). Members of a new team agree on a row that is free
//! at all of them, so its workspace, which lies in the heap at a place that the row gives, is at the same offset everywhere.

pub(crate) mod choice;
mod members;
mod rows;
mod storage;
mod unique_id;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

pub use choice::Collectives;
use members::{Members, Split};
use rows::{Offer, Place, Rows};
pub(crate) use storage::TeamStorage;
pub use unique_id::TeamUniqueId;

use crate::Result;
use crate::abi;
use crate::bootstrap::{BootstrapError, Failure, FailureKind, cut, list};
use crate::pe::Pe;
use crate::transport::Reach;

/// Teams that every PE has from init to finalize: world, shared, node.
pub(crate) const PREDEFINED: usize = 3;

/// What is wrong with a team or a call that creates one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TeamError {
    /// The handle of no team, or of one that was destroyed.
    #[error("{handle:#x} is not the handle of a team of PE {me}; it may have been destroyed")]
    BadHandle {
        /// The handle.
        handle: i32,
        /// This PE.
        me: usize,
    },
    /// Numbers that do not describe a part of the team.
    #[error("{call} of a team of {n} PEs: {reason}")]
    BadSplit {
        /// The call, with its arguments.
        call: String,
        /// PEs of the team that was to be split.
        n: usize,
        /// What does not fit.
        reason: String,
    },
    /// A team that cannot be destroyed.
    #[error("{name} cannot be destroyed; it ends with finalize")]
    Predefined {
        /// The team.
        name: String,
    },
    /// The members did not all come, or called different things. Nothing was created or destroyed.
    #[error("{failure}{pes}")]
    Meeting {
        /// What the rendezvous says; its numbers of missing members are those in the team.
        failure: Failure,
        /// The PEs that are missing, where they are known.
        pes: MissingPes,
    },
    /// No row of the table of teams is free at all members.
    #[error(
        "no room for a team of {members} PEs: of {limit} teams (OXSHMEM_MAX_TEAMS) PE {pe} is in {used}, and no place is free at all members; \
         destroy teams that are not needed, or raise OXSHMEM_MAX_TEAMS"
    )]
    Exhausted {
        /// PEs of the team that was to be created.
        members: usize,
        /// The member that is in most teams.
        pe: usize,
        /// How many.
        used: usize,
        /// The limit.
        limit: usize,
    },
    /// The workspaces of teams do not fit the heap.
    #[error(
        "the workspaces of {teams} teams (OXSHMEM_MAX_TEAMS) take {bytes} bytes of the symmetric heap, which has {heap} \
         (OXSHMEM_HEAP_MAX); raise the latter or lower the former"
    )]
    NoHeap {
        /// Bytes of all workspaces.
        bytes: u64,
        /// Teams.
        teams: u64,
        /// The heap's limit.
        heap: u64,
    },
    /// A member could not set the team up; nothing was created.
    #[error("PE {pe} cannot set up the team: {reason}")]
    Setup {
        /// The member.
        pe: usize,
        /// Why.
        reason: String,
    },
    /// A reduction that is not defined.
    #[error(
        "{op:?} is not defined for {element}; and, or and xor take integers, min and max all but complex numbers, prod all but half and bfloat16"
    )]
    BadReduction {
        /// The operator.
        op: abi::ReduceOp,
        /// The element type.
        element: &'static str,
    },
}

/// PEs that did not come, for a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingPes(pub Vec<u32>);

impl std::fmt::Display for MissingPes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0.len() {
            0 => Ok(()),
            1 => write!(f, "; missing is PE {}", list(&self.0)),
            _ => write!(f, "; missing are PEs {}", list(&self.0)),
        }
    }
}

/// A team that this PE is in. Made by [`Pe::team_world`] and its like, by splitting, or from a [`TeamUniqueId`]; ended by
/// [`Pe::team_destroy`]. A team that is dropped stays until finalize, since ending one is collective; [`Pe::team`] finds it again.
#[derive(Debug)]
pub struct Team(Arc<Entry>);

/// A team in the table.
#[derive(Debug)]
struct Entry {
    place: Place,
    members: Members,
    me: usize,
    near: bool,
    algorithms: String,
    ended: AtomicBool,
    /// Calls that its members made together through the hub: the name of the next one.
    calls: AtomicU32,
}

impl Team {
    /// This PE's number in the team.
    #[must_use]
    pub fn my_pe(&self) -> usize {
        self.0.me
    }

    /// PEs of the team.
    #[must_use]
    pub fn n_pes(&self) -> usize {
        self.0.members.len()
    }

    /// The handle, which device code takes (`oxshmem::team_t`). The same on all members.
    #[must_use]
    pub fn handle(&self) -> i32 {
        self.0.place.handle()
    }

    /// The number in the team `other` of the PE that is `pe` here; `None` if one of the two teams has no such PE.
    #[must_use]
    pub fn translate(&self, pe: usize, other: &Team) -> Option<usize> {
        self.0.members.pe(pe).and_then(|pe| other.0.members.index_of(pe))
    }

    /// The members' numbers in the world, in the team's order.
    #[must_use]
    pub fn members(&self) -> Vec<usize> {
        self.0.members.to_vec()
    }

    /// Whether the small messages of collectives are direct stores, in one round: all members reach each other by load and store, and they
    /// are at most 64.
    #[must_use]
    pub fn is_near(&self) -> bool {
        self.0.near
    }

    /// Which algorithm each collective uses on this team up to which size, written as in `OXSHMEM_COLLECTIVES`.
    #[must_use]
    pub fn algorithms(&self) -> &str {
        &self.0.algorithms
    }

    /// The handle, unless the team was destroyed.
    pub(crate) fn live_handle(&self, pe: &Pe) -> Result<i32> {
        if self.0.ended.load(Ordering::Relaxed) {
            return Err(TeamError::BadHandle { handle: self.handle(), me: pe.my_pe() }.into());
        }
        Ok(self.handle())
    }
}

/// `the world team`, `team 0x103`.
fn name(handle: i32) -> String {
    match handle {
        abi::TEAM_WORLD => "the world team".into(),
        abi::TEAM_SHARED => "the shared team".into(),
        abi::TEAM_NODE => "the node team".into(),
        other => format!("team {other:#x}"),
    }
}

/// The teams of a PE.
#[derive(Debug)]
pub(crate) struct Teams {
    rows: Rows,
    by_handle: BTreeMap<i32, Arc<Entry>>,
    reach: Reach,
}

impl Teams {
    /// None yet but those that exist for ever, which are taken in by [`Pe::add_predefined`].
    pub(crate) fn new(max_teams: u32, reach: Reach) -> Self {
        Self { rows: Rows::new(max_teams as usize, PREDEFINED), by_handle: BTreeMap::new(), reach }
    }
}

/// Members that meet through the hub, in two phases: once to agree, once to begin.
struct Meeting {
    key: Vec<u8>,
    label: String,
    index: usize,
    size: usize,
    /// The PE numbers of the members, where they are known before.
    members: Option<Members>,
}

impl Meeting {
    fn of_team(team: &Entry, what: &str) -> Self {
        let handle = team.place.handle();
        // Teams without a common member may have the same handle, but not the same first member.
        let first = team.members.pe(0).unwrap_or_default() as u32;
        let call = team.calls.fetch_add(1, Ordering::Relaxed);
        let key = [&b"t"[..], &handle.to_be_bytes(), &first.to_be_bytes(), &call.to_be_bytes()].concat();
        Self {
            key,
            label: format!("{what} of {}", name(handle)),
            index: team.me,
            size: team.members.len(),
            members: Some(team.members.clone()),
        }
    }

    /// What all members say in a phase, by number, with their PEs.
    fn hold(&self, pe: &Pe, phase: u8, data: &[u8]) -> Result<Vec<(u32, Vec<u8>)>> {
        let key = [&self.key[..], &[phase]].concat();
        let number = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let place = (number(self.index), number(self.size));
        pe.bootstrap().gather(&key, &self.label, place, data).map_err(|error| match error {
            BootstrapError::Disbanded(failure) => {
                let missing = if failure.kind == FailureKind::Missing { &failure.ranks[..] } else { &[] };
                let pe = |index: &u32| self.members.as_ref()?.pe(*index as usize).map(|pe| pe as u32);
                let pes = MissingPes(missing.iter().filter_map(pe).collect());
                TeamError::Meeting { failure, pes }.into()
            }
            other => other.into(),
        })
    }
}

/// Teams. Calls that create or destroy one are collective: over the team that is split or destroyed, or over the members that the
/// new team will have. All of them make the same calls on a team in the same order. If one does not come within
/// `OXSHMEM_BOOTSTRAP_TIMEOUT`, or calls something else, all get an error and nothing has changed.
impl Pe {
    /// All PEs, by their numbers.
    #[must_use]
    pub fn team_world(&self) -> Team {
        self.predefined(abi::TEAM_WORLD)
    }

    /// PEs that reach each other's memory by load and store, this PE among them; on each of them the same team. Where reach is not
    /// transitive it is a part of the PEs that this one reaches.
    #[must_use]
    pub fn team_shared(&self) -> Team {
        self.predefined(abi::TEAM_SHARED)
    }

    /// The PEs on this PE's node.
    #[must_use]
    pub fn team_node(&self) -> Team {
        self.predefined(abi::TEAM_NODE)
    }

    fn predefined(&self, handle: i32) -> Team {
        // They are there as long as the PE is.
        Team(Arc::clone(&self.teams().borrow().by_handle[&handle]))
    }

    /// The team with this handle.
    ///
    /// # Errors
    /// There is none, or it was destroyed.
    pub fn team(&self, handle: i32) -> Result<Team> {
        let found = self.teams().borrow().by_handle.get(&handle).cloned();
        Ok(Team(found.ok_or(TeamError::BadHandle { handle, me: self.my_pe() })?))
    }

    /// The team of the PEs `start`, `start + stride`, ..., `size` of them, by their numbers in `parent`. Collective over `parent`. `None`
    /// on PEs that are not in it.
    ///
    /// # Errors
    /// See [`Pe`]: PEs that do not come or disagree. A last member beyond the end of `parent`, or no room for another team
    /// (`OXSHMEM_MAX_TEAMS`); also at PEs that would not be in it.
    pub fn team_split_strided(&self, parent: &Team, start: usize, stride: usize, size: usize) -> Result<Option<Team>> {
        Ok(self.split(parent, Split::Strided { start, stride, size })?.into_iter().next())
    }

    /// Lays the PEs of `parent` out in rows of `xrange` (at most all of them; the last may be shorter), and makes a team of each row and of
    /// each column: those of this PE. Collective over `parent`.
    ///
    /// # Errors
    /// As [`team_split_strided`](Pe::team_split_strided); a range of 0. Both teams are created, or none.
    pub fn team_split_2d(&self, parent: &Team, xrange: usize) -> Result<(Team, Team)> {
        let mut teams = self.split(parent, Split::TwoD { xrange })?.into_iter();
        match (teams.next(), teams.next()) {
            (Some(row), Some(column)) => Ok((row, column)),
            // Every PE is in a row and in a column.
            _ => Err(TeamError::Setup { pe: self.my_pe(), reason: "it is in no row or no column".into() }.into()),
        }
    }

    /// An id for a team of PEs that are not all of another team. One PE gets it and passes it to the others, by whatever means the
    /// program has.
    ///
    /// # Errors
    /// The system has no randomness to give.
    pub fn team_unique_id(&self) -> Result<TeamUniqueId> {
        TeamUniqueId::random()
    }

    /// The team of the `n_pes` PEs that call this with the same id, each with another number `my_pe`, which will be its number in the
    /// team. Collective over these PEs; no other takes part.
    ///
    /// # Errors
    /// Not all of them come, two come with one number, they disagree on how many they are; no room for another team.
    pub fn team_from_unique_id(&self, id: &TeamUniqueId, my_pe: usize, n_pes: usize) -> Result<Team> {
        let key = [&b"u"[..], id.as_bytes()].concat();
        let meeting = Meeting { key, label: format!("team {id}"), index: my_pe, size: n_pes, members: None };
        let told = meeting.hold(self, 0, &self.offer())?;
        let all = (0..told.len()).collect();
        let made = self.create(&meeting, &told, &[all])?;
        let nobody = || TeamError::Setup { pe: self.my_pe(), reason: "it is no member".into() };
        Ok(made.into_iter().next().ok_or_else(nobody)?)
    }

    /// Ends a team. Collective over it. Its collectives, on streams too, must have ended at all members. What this PE has under way is
    /// completed first ([`quiet`](Pe::quiet)).
    ///
    /// # Errors
    /// See [`Pe`]; the team was destroyed already, or it is one of those that exist for ever. An error of an earlier operation is returned
    /// too, but the team has ended then.
    pub fn team_destroy(&self, team: Team) -> Result<()> {
        let handle = team.live_handle(self)?;
        let entry = team.0;
        if entry.place.row < PREDEFINED {
            return Err(TeamError::Predefined { name: name(handle) }.into());
        }
        // What is still on its way to a workspace must not arrive in that of the row's next team.
        let quiet = self.quiet();
        Meeting::of_team(&entry, "destroy").hold(self, 0, &[])?;
        self.forget(&entry)?;
        quiet
    }

    /// Takes a team out of the table.
    fn forget(&self, entry: &Entry) -> Result<()> {
        entry.ended.store(true, Ordering::Relaxed);
        let mut teams = self.teams().borrow_mut();
        teams.by_handle.remove(&entry.place.handle());
        teams.rows.release(entry.place.row);
        self.team_storage().clear_row(self.slab(), entry.place.row)
    }

    /// The teams of a split that this PE is in.
    fn split(&self, parent: &Team, split: Split) -> Result<Vec<Team>> {
        parent.live_handle(self)?;
        let meeting = Meeting::of_team(&parent.0, &split.to_string());
        // PEs that pass other arguments are found here, so whatever follows is the same for all.
        let told = meeting.hold(self, 0, &self.offer())?;
        let parts = split.apply(told.len())?;
        self.create(&meeting, &told, &parts)
    }

    /// This PE's free rows, for the others.
    fn offer(&self) -> Vec<u8> {
        self.teams().borrow().rows.offer().into_iter().flat_map(u32::to_be_bytes).collect()
    }

    /// Creates teams of some of those that met and told their offers, and answers this PE's. `parts` are the teams' members, as indices of
    /// `told`.
    fn create(&self, meeting: &Meeting, told: &[(u32, Vec<u8>)], parts: &[Vec<usize>]) -> Result<Vec<Team>> {
        let parse = |offer: &Vec<u8>| offer.as_chunks::<4>().0.iter().map(|word| u32::from_be_bytes(*word)).collect();
        let offers: Vec<Offer> = told.iter().map(|(_, offer)| parse(offer)).collect();
        let pe = |index: usize| told[index].0 as usize;
        let places = rows::agree(&offers, parts).map_err(|part| {
            let used = |index: &usize| offers[*index].iter().filter(|generation| **generation == 0).count();
            let fullest = parts[part].iter().max_by_key(|index| used(index)).copied().unwrap_or_default();
            let (used, limit) = (used(&fullest), offers[fullest].len());
            TeamError::Exhausted { members: parts[part].len(), pe: pe(fullest), used, limit }
        })?;
        let mut made = Vec::new();
        let mut setup = Ok(());
        for (place, part) in places.into_iter().zip(parts) {
            let Some(me) = part.iter().position(|index| pe(*index) == self.my_pe()) else { continue };
            let members: Vec<usize> = part.iter().map(|index| pe(*index)).collect();
            setup = setup.and_then(|()| {
                let entry = self.entry(place, &members, me);
                self.team_storage().clear_workspace(self, place.row)?;
                self.team_storage().write_row(self, &entry)?;
                made.push(entry);
                Ok(())
            });
        }
        // Nobody begins before everybody's workspace is cleared, and if one cannot, none does.
        let problem = setup.map_or_else(|error: crate::Error| error.to_string(), |()| String::new());
        let outcome = meeting.hold(self, 1, cut(&problem, 1024).as_bytes()).and_then(|told| {
            match told.into_iter().find(|(_, problem)| !problem.is_empty()) {
                None => Ok(()),
                Some((pe, problem)) => {
                    let reason = String::from_utf8_lossy(&problem).into_owned();
                    Err(TeamError::Setup { pe: pe as usize, reason }.into())
                }
            }
        });
        if let Err(error) = outcome {
            for entry in made {
                self.team_storage().clear_row(self.slab(), entry.place.row)?;
            }
            return Err(error);
        }
        Ok(made.into_iter().map(|entry| self.take_in(entry)).collect())
    }

    fn entry(&self, place: Place, pes: &[usize], me: usize) -> Entry {
        let near = pes.len() <= abi::ONE_ROUND_PES && self.teams().borrow().reach.is_clique(pes);
        let algorithms = choice::describe(near, pes.len(), self.config().collectives());
        let (ended, calls) = (AtomicBool::new(false), AtomicU32::new(0));
        Entry { place, members: Members::new(pes), me, near, algorithms, ended, calls }
    }

    fn take_in(&self, entry: Entry) -> Team {
        let handle = entry.place.handle();
        tracing::debug!(pe = self.my_pe(), n_pes = entry.members.len(), "{}: {}", name(handle), entry.algorithms);
        let mut teams = self.teams().borrow_mut();
        teams.rows.take(entry.place);
        let entry = Arc::new(entry);
        teams.by_handle.insert(handle, Arc::clone(&entry));
        Team(entry)
    }

    /// Takes in the teams that exist for ever. Their workspaces are memory that nobody has used.
    pub(crate) fn add_predefined(&self) -> Result<()> {
        let me = self.my_pe();
        let shared = self.teams().borrow().reach.clique_of(me);
        let node = self.bootstrap().node_peers().into_iter().map(|pe| pe as usize).collect();
        for (row, pes) in [(0..self.n_pes()).collect(), shared, node].into_iter().enumerate() {
            let index = pes.iter().position(|pe| *pe == me).unwrap_or_default();
            let entry = self.entry(Place { row, generation: 0 }, &pes, index);
            self.team_storage().write_row(self, &entry)?;
            self.take_in(entry);
        }
        Ok(())
    }
}
