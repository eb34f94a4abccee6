//! How teams are created and destroyed: their members meet through the hub.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use bytemuck::Zeroable;

use super::choice::{self, Chooser, Shape};
use super::error::TeamError;
use super::meeting::Meeting;
use super::members::{Members, Split, own_parts};
use super::nodes::TeamNodes;
use super::rows::{self, Offer, Place};
use super::storage::Ground;
use super::table::{Entry, PREDEFINED, Team, name};
use super::unique_id::TeamUniqueId;
use crate::Result;
use crate::abi;
use crate::host::operations::Operations;
use crate::pe::Pe;

/// Teams.
impl Pe {
    /// Returns the team of all PEs, by their numbers.
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// assert_eq!(pe.team_world().n_pes(), pe.n_pes());
    /// # pe.finalize()
    /// # }
    /// ```
    #[must_use]
    pub fn team_world(&self) -> Team {
        self.predefined(abi::TEAM_WORLD)
    }

    /// Returns the team of PEs that reach each other's memory by load and store, this PE among
    /// them; on each of them the same team. Where reach is not transitive it is a part of the PEs
    /// that this one reaches.
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// assert!(pe.team_shared().n_pes() >= 1);
    /// # pe.finalize()
    /// # }
    /// ```
    #[must_use]
    pub fn team_shared(&self) -> Team {
        self.predefined(abi::TEAM_SHARED)
    }

    /// Returns the team of the PEs on this PE's node.
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// assert!(pe.team_node().n_pes() <= pe.n_pes());
    /// # pe.finalize()
    /// # }
    /// ```
    #[must_use]
    pub fn team_node(&self) -> Team {
        self.predefined(abi::TEAM_NODE)
    }

    /// Returns the team of the PEs that have the same number in their nodes' teams as this PE has
    /// in its own. Nodes that have fewer PEs have no member in it.
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// let team = pe.team_same_node_pe();
    /// assert_eq!(team.members()[team.my_pe()], pe.my_pe());
    /// # pe.finalize()
    /// # }
    /// ```
    #[must_use]
    pub fn team_same_node_pe(&self) -> Team {
        self.predefined(abi::TEAM_SAME_NODE_PE)
    }

    fn predefined(&self, handle: i32) -> Team {
        // They are there as long as the PE is.
        Team(Arc::clone(&self.teams().borrow().by_handle[&handle]))
    }

    /// Returns the team with this handle.
    ///
    /// # Errors
    /// There is none, or it was destroyed.
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// assert!(pe.team(0x4242).is_err());
    /// # pe.finalize()
    /// # }
    /// ```
    pub fn team(&self, handle: i32) -> Result<Team> {
        let found = self.teams().borrow().by_handle.get(&handle).cloned();
        Ok(Team(found.ok_or(TeamError::BadHandle { handle, me: self.my_pe() })?))
    }
}

impl Team {
    /// Makes the team of the PEs `start`, `start + stride`, ..., `size` of them, by their numbers
    /// in this team. Collective over this team. `None` on PEs that are not in the new one.
    ///
    /// # Errors
    /// PEs that do not come or disagree. A last member beyond the end of this team, or no room for
    /// another team (`OXSHMEM_MAX_TEAMS`); also at PEs that would not be in it.
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// let first = pe.team_world().split_strided(&pe, 0, 1, 1)?;
    /// assert_eq!(first.is_some(), pe.my_pe() == 0);
    /// # pe.finalize()
    /// # }
    /// ```
    pub fn split_strided(&self, pe: &Pe, start: usize, stride: usize, size: usize) -> Result<Option<Team>> {
        Ok(pe.split(self, Split::Strided { start, stride, size })?.into_iter().next())
    }

    /// Does what [`split_strided`](Self::split_strided) does, but each PE passes the numbers of its
    /// own part, so one call makes several teams, of different PEs each. `None` on PEs that are not
    /// in the part that they name. Collective over this team.
    ///
    /// # Errors
    /// Fails like [`split_strided`](Self::split_strided), or because a PE that is in the part of
    /// another one passes other numbers than that one. Numbers that do not fit this team are an
    /// error on the PE that passes them; the others get their teams.
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// let pairs = pe.n_pes() / 2;
    /// let world = pe.team_world();
    /// if pe.my_pe() < 2 * pairs {
    ///     let pair = world.split_own(&pe, pe.my_pe() / 2 * 2, 1, 2)?;
    ///     assert_eq!(pair.map(|team| team.n_pes()), Some(2));
    /// } else {
    ///     world.split_own(&pe, pe.my_pe(), 1, 1)?;
    /// }
    /// # pe.finalize()
    /// # }
    /// ```
    pub fn split_own(&self, pe: &Pe, start: usize, stride: usize, size: usize) -> Result<Option<Team>> {
        Ok(pe.split_own(self, [start, stride, size])?.into_iter().next())
    }

    /// Lays the PEs of this team out in rows of `xrange` (at most all of them; the last may be
    /// shorter), and makes a team of each row and of each column: those of this PE. Collective over
    /// this team.
    ///
    /// # Errors
    /// Fails like [`split_strided`](Self::split_strided), or because the range is 0. Both teams are
    /// created, or none.
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// let (row, column) = pe.team_world().split_2d(&pe, 4)?;
    /// assert!(row.n_pes() <= 4 && column.n_pes() >= 1);
    /// # pe.finalize()
    /// # }
    /// ```
    pub fn split_2d(&self, pe: &Pe, xrange: usize) -> Result<(Team, Team)> {
        let mut teams = pe.split(self, Split::TwoD { xrange })?.into_iter();
        match (teams.next(), teams.next()) {
            (Some(row), Some(column)) => Ok((row, column)),
            // Every PE is in a row and in a column.
            _ => Err(TeamError::Setup { pe: pe.my_pe(), reason: "it is in no row or no column".into() }.into()),
        }
    }

    /// Makes the team of the `n_pes` PEs that call this with the same id, each with another number
    /// `my_pe`, which will be its number in the team. Collective over these PEs; no other takes
    /// part.
    ///
    /// # Errors
    /// Not all of them come, two come with one number, they disagree on how many they are; no room
    /// for another team.
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// use oxshmem::{Team, TeamUniqueId};
    /// let id = TeamUniqueId::create()?; // one PE does, and tells the others
    /// let team = Team::from_unique_id(&pe, &id, 0, 1)?;
    /// assert_eq!(team.members(), [pe.my_pe()]);
    /// # pe.finalize()
    /// # }
    /// ```
    pub fn from_unique_id(pe: &Pe, id: &TeamUniqueId, my_pe: usize, n_pes: usize) -> Result<Team> {
        let key = [&b"u"[..], id.as_bytes()].concat();
        let meeting = Meeting { key, label: format!("team {id}"), index: my_pe, size: n_pes, members: None };
        let told = meeting.hold(pe, 0, &pe.offer())?;
        let all = (0..told.len()).collect();
        let made = pe.create(&meeting, &told, &[all])?;
        let absent = || TeamError::Setup { pe: pe.my_pe(), reason: "it is not a member".into() };
        Ok(made.into_iter().next().ok_or_else(absent)?)
    }

    /// Ends the team. Collective over it. What this PE has under way is completed first
    /// ([`quiet`](Operations::quiet)); on a stream that has collectives of the team, everything
    /// that this PE has put there. Kernels of the program that use the team must have ended, and
    /// graphs that have collectives of it may not be launched any more.
    ///
    /// # Errors
    /// PEs that do not come; the team was destroyed already, or it is one of those that exist
    /// forever, or it has an aggregating context; or such a stream of a member goes on
    /// (`OXSHMEM_TIMEOUT`), which is [`TeamError::Busy`] on all members. Nothing has changed then,
    /// and [`Pe::team`] returns the team again. An error of an earlier operation is returned too,
    /// but the team has ended then.
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// let (row, column) = pe.team_world().split_2d(&pe, 2)?;
    /// row.destroy(&pe)?;
    /// column.destroy(&pe)?;
    /// assert!(pe.team_world().destroy(&pe).is_err());
    /// # pe.finalize()
    /// # }
    /// ```
    pub fn destroy(self, pe: &Pe) -> Result<()> {
        let handle = self.live_handle(pe.id(), pe.my_pe())?;
        let entry = self.0;
        if entry.place.row < PREDEFINED {
            return Err(TeamError::Predefined { name: name(handle) }.into());
        }
        if let Some(number) = pe.aggregates().borrow().of_team(handle) {
            return Err(TeamError::Aggregates { name: name(handle), number }.into());
        }
        // What is still on its way to a workspace must not arrive in that of the row's next team.
        let goes_on = pe.wait_for_team(handle)?.unwrap_or_default();
        let quiet = if goes_on.is_empty() { pe.quiet() } else { Ok(()) };
        if let Some((member, reason)) = Meeting::of_entry(&entry, "destroy").first_problem(pe, 0, &goes_on)? {
            quiet.unwrap_or_else(|error| pe.report_later(error));
            return Err(TeamError::Busy { team: name(handle), pe: member, reason }.into());
        }
        pe.forget(&entry)?;
        quiet
    }
}

/// Takes the numbers that a member splits a team by from the front of what it has said.
fn take_split(said: &mut Vec<u8>) -> Split {
    let rest = said.split_off(said.len().min(size_of::<[u64; 3]>()));
    let front = std::mem::replace(said, rest);
    let mut words = front.as_chunks::<8>().0.iter().map(|word| u64::from_be_bytes(*word));
    let mut next = || words.next().and_then(|word| usize::try_from(word).ok()).unwrap_or_default();
    Split::Strided { start: next(), stride: next(), size: next() }
}

/// What creating teams takes of a PE.
impl Pe {
    /// Takes a team out of the table.
    fn forget(&self, entry: &Entry) -> Result<()> {
        entry.ended.store(true, Ordering::Relaxed);
        let mut teams = self.teams().borrow_mut();
        teams.by_handle.remove(&entry.place.handle());
        teams.rows.release(entry.place.row);
        self.team_storage().clear_row(self.slab(), entry.place.row)
    }

    /// Makes the teams of a split, and returns those that this PE is in.
    fn split(&self, parent: &Team, split: Split) -> Result<Vec<Team>> {
        parent.live_handle(self.id(), self.my_pe())?;
        let meeting = Meeting::of_entry(&parent.0, &split.to_string());
        // PEs that pass other arguments are found here, so whatever follows is the same for all.
        let told = meeting.hold(self, 0, &self.offer())?;
        let parts = split.apply(told.len())?;
        self.create(&meeting, &told, &parts)
    }

    /// Makes the parts of a team whose members each name their own, and returns that which this PE
    /// is in.
    fn split_own(&self, parent: &Team, numbers: [usize; 3]) -> Result<Vec<Team>> {
        parent.live_handle(self.id(), self.my_pe())?;
        let meeting = Meeting::of_entry(&parent.0, "split_own");
        let said = numbers.map(|number| (number as u64).to_be_bytes());
        let mut told = meeting.hold(self, 0, &[said.as_flattened(), &self.offer()].concat())?;
        let calls: Vec<Split> = told.iter_mut().map(|(_, said)| take_split(said)).collect();
        let parts = own_parts(&calls).map_err(|(number, other)| TeamError::Parts {
            pe: told[number].0 as usize,
            call: calls[number].to_string(),
            other: told[other].0 as usize,
            other_call: match calls[other].apply(calls.len()) {
                Ok(_) => format!("calls {}", calls[other]),
                Err(_) => "passes numbers that fit no team".to_owned(),
            },
        })?;
        let made = self.create(&meeting, &told, &parts)?;
        // Members of a part pass what fits, and a PE in none has let the others go on.
        calls[meeting.index].apply(calls.len())?;
        Ok(made)
    }

    fn ground(&self) -> Ground<'_> {
        Ground { device: self.device(), slab: self.slab(), heap_base: self.heap_base() }
    }

    /// Returns this PE's free rows, for the others.
    fn offer(&self) -> Vec<u8> {
        self.teams().borrow().rows.offer().into_iter().flat_map(u32::to_be_bytes).collect()
    }

    /// Creates teams of some of those that met and told their offers, and returns this PE's.
    /// `parts` are the teams' members, as indices of `told`.
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
                let mut entry = self.entry(place, &members, me);
                self.team_storage().clear_workspace(&self.ground(), place.row)?;
                self.team_storage().write_row(&self.ground(), &mut entry)?;
                made.push(entry);
                Ok(())
            });
        }
        // No member begins before every member's workspace is cleared, and if one cannot clear it,
        // none begins.
        let problem = setup.map_or_else(|error: crate::Error| error.to_string(), |()| String::new());
        let outcome = meeting
            .first_problem(self, 1, &problem)
            .and_then(|found| found.map_or(Ok(()), |(pe, reason)| Err(TeamError::Setup { pe, reason }.into())));
        if let Err(error) = outcome {
            for entry in made {
                self.team_storage().clear_row(self.slab(), entry.place.row)?;
            }
            return Err(error);
        }
        Ok(made.into_iter().map(|entry| self.take_in(entry)).collect())
    }

    fn entry(&self, place: Place, pes: &[usize], me: usize) -> Entry {
        let reach = &self.teams().borrow().reach;
        let nodes = TeamNodes::new(pes, reach);
        let blocks = self.team_storage().blocks();
        let shape = Shape { own_devices: reach.have_own_devices(pes), ..Shape::new(pes.len(), nodes.count(), blocks) };
        let near = shape.near;
        let measured = self.teams().borrow().tuning.of(nodes.count(), pes.len());
        let user = self.config().collectives();
        let in_use = user.in_use(self.config().collectives_sms(), &measured);
        let algorithms = choice::describe(shape, &in_use);
        let chooser = Chooser::new(shape, user, &in_use);
        let (ended, calls) = (AtomicBool::new(false), AtomicU32::new(0));
        let (pe, members, known) = (self.id(), Members::new(pes), abi::KnownTeam::zeroed());
        Entry { pe, place, members, me, near, nodes, algorithms, chooser, known, ended, calls }
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

    /// Takes in the teams that exist forever. Their workspaces are memory that has never been used.
    pub(crate) fn add_predefined(&self) -> Result<()> {
        let me = self.my_pe();
        let shared = self.teams().borrow().reach.clique_of(me);
        let node = self.nodes().members(me);
        let same = self.nodes().with_the_number_of(me);
        for (row, pes) in [(0..self.n_pes()).collect(), shared, node, same].into_iter().enumerate() {
            let index = pes.iter().position(|pe| *pe == me).unwrap_or_default();
            let mut entry = self.entry(Place { row, generation: 0 }, &pes, index);
            self.team_storage().write_row(&self.ground(), &mut entry)?;
            self.take_in(entry);
        }
        Ok(())
    }
}
