//! The teams of a PE, as the host knows them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use super::choice::{Chooser, Plan, Size};
use super::error::TeamError;
use super::members::Members;
use super::nodes::TeamNodes;
use super::rows::{Place, Rows};
use super::tuning::Tuning;
use crate::Result;
use crate::abi;
use crate::identity::PeId;
use crate::transport::PeerAccess;

/// Teams that every PE has from init to finalize: world, shared, node, same number in the node.
pub(super) const PREDEFINED: usize = 4;

/// A team that this PE is in: an ordered set of PEs that do collectives together.
///
/// [`Pe::team_world`](crate::Pe::team_world), [`team_node`](crate::Pe::team_node),
/// [`team_shared`](crate::Pe::team_shared) and
/// [`team_same_node_pe`](crate::Pe::team_same_node_pe) exist forever; others are made by splitting
/// ([`split_strided`](Self::split_strided), [`split_own`](Self::split_own),
/// [`split_2d`](Self::split_2d)) or from a [`TeamUniqueId`](crate::TeamUniqueId), and ended by
/// [`destroy`](Self::destroy). Collectives are [`Operations`](crate::Operations) that take a team.
///
/// Calls that create or destroy a team are collective: over the team that is split or destroyed, or
/// over the members that the new team will have. All of them make the same calls on a team in the
/// same order. If one does not come within `OXSHMEM_MEETING_TIMEOUT`, or calls something else,
/// all get an error and nothing has changed.
///
/// # Errors
/// A team that was destroyed, or of a PE that has been finalized, is refused by every call.
///
/// # Threads and drop
/// `Send` and `Sync`: it is a name, and everything is done through the PE. A team that is dropped
/// stays until finalize, since ending one is collective; [`Pe::team`](crate::Pe::team) finds it
/// again.
///
/// ```
/// use oxshmem::Operations;
/// # fn main() -> oxshmem::Result<()> {
/// # let pe = oxshmem::init()?;
/// let world: oxshmem::Team = pe.team_world();
/// if let Some(even) = world.split_strided(&pe, 0, 2, world.n_pes().div_ceil(2))? {
///     pe.barrier(&even)?;
///     even.destroy(&pe)?;
/// }
/// # pe.finalize()
/// # }
/// ```
#[derive(Debug)]
pub struct Team(pub(super) Arc<Entry>);

/// A team in the table.
#[derive(Debug)]
pub(super) struct Entry {
    pub pe: PeId,
    pub place: Place,
    pub members: Members,
    pub me: usize,
    pub near: bool,
    pub nodes: TeamNodes,
    pub algorithms: String,
    pub chooser: Chooser,
    /// What the kernels that the host launches for the team are told, once device code knows it.
    pub known: abi::KnownTeam,
    pub ended: AtomicBool,
    /// Calls that its members made together through the hub: the name of the next one.
    pub calls: AtomicU32,
}

impl Team {
    /// Returns this PE's number in the team.
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// assert_eq!(pe.team_world().my_pe(), pe.my_pe());
    /// # pe.finalize()
    /// # }
    /// ```
    #[must_use]
    pub fn my_pe(&self) -> usize {
        self.0.me
    }

    /// Returns the number of PEs in the team.
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// assert_eq!(pe.team_world().n_pes(), pe.n_pes());
    /// # pe.finalize()
    /// # }
    /// ```
    #[must_use]
    pub fn n_pes(&self) -> usize {
        self.0.members.len()
    }

    /// Returns the handle, which device code takes (`oxshmem::team_t`). The same on all members.
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// assert_eq!(pe.team(pe.team_node().handle())?.handle(), pe.team_node().handle());
    /// # pe.finalize()
    /// # }
    /// ```
    #[must_use]
    pub fn handle(&self) -> i32 {
        self.0.place.handle()
    }

    /// Returns the number in the team `other` of the PE that is `pe` here; `None` if one of the two
    /// teams has no such PE.
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// assert_eq!(pe.team_world().translate(0, &pe.team_shared()), Some(0));
    /// assert_eq!(pe.team_world().translate(1000, &pe.team_shared()), None);
    /// # pe.finalize()
    /// # }
    /// ```
    #[must_use]
    pub fn translate(&self, pe: usize, other: &Team) -> Option<usize> {
        self.0.members.pe(pe).and_then(|pe| other.0.members.index_of(pe))
    }

    /// Returns how many nodes the team has: sets of members that reach each other by load and
    /// store.
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// assert!(pe.team_world().nodes_by_reach() >= 1);
    /// # pe.finalize()
    /// # }
    /// ```
    #[must_use]
    pub fn nodes_by_reach(&self) -> usize {
        self.0.nodes.count()
    }

    /// Returns the team's nodes.
    pub(crate) fn nodes(&self) -> &TeamNodes {
        &self.0.nodes
    }

    pub(crate) fn set_of_members(&self) -> &Members {
        &self.0.members
    }

    /// Returns the members' numbers in the world, in the team's order.
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// assert_eq!(pe.team_world().members(), (0..pe.n_pes()).collect::<Vec<_>>());
    /// # pe.finalize()
    /// # }
    /// ```
    #[must_use]
    pub fn members(&self) -> Vec<usize> {
        self.0.members.to_vec()
    }

    /// Returns whether the small messages of collectives are direct stores, in one round: all
    /// members reach each other by load and store, and they are at most 64.
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// assert!(pe.team_shared().is_near());
    /// # pe.finalize()
    /// # }
    /// ```
    #[must_use]
    pub fn is_near(&self) -> bool {
        self.0.near
    }

    /// Returns which algorithm each collective of one block of this team uses up to which size,
    /// within the block's part of the workspace, written as in `OXSHMEM_COLLECTIVES`. Kernels use
    /// `push` in place of `levels` and `copy`, and the library's choice in place of what the file
    /// of `OXSHMEM_TUNING` says. Calls on streams and from the host may use several blocks and
    /// other algorithms (`docs/teams.md`).
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// assert!(pe.team_world().algorithms().starts_with("broadcast="));
    /// # pe.finalize()
    /// # }
    /// ```
    #[must_use]
    pub fn algorithms(&self) -> &str {
        &self.0.algorithms
    }

    /// Returns how the host has a collective carried out.
    pub(crate) fn plan(&self, size: Size) -> Plan {
        self.0.chooser.plan(size)
    }

    /// Returns the handle, unless the team was destroyed or belongs to another PE than this one,
    /// whose number is `me`.
    pub(crate) fn live_handle(&self, pe: PeId, me: usize) -> Result<i32> {
        pe.admit(self.0.pe, &name(self.handle()), "make it again with this PE")?;
        if self.0.ended.load(Ordering::Relaxed) {
            return Err(TeamError::BadHandle { handle: self.handle(), me }.into());
        }
        Ok(self.handle())
    }

    /// Returns what a kernel of this PE, whose number is `me`, is told of the team. Fails like
    /// [`live_handle`](Self::live_handle).
    pub(crate) fn known(&self, pe: PeId, me: usize) -> Result<abi::KnownTeam> {
        self.live_handle(pe, me)?;
        Ok(self.0.known)
    }
}

/// Returns the team's name: `the world team`, `team 0x103`.
pub(crate) fn name(handle: i32) -> String {
    match handle {
        abi::TEAM_WORLD => "the world team".into(),
        abi::TEAM_SHARED => "the shared team".into(),
        abi::TEAM_NODE => "the node team".into(),
        abi::TEAM_SAME_NODE_PE => "the team of PEs with the same number in their nodes".into(),
        other => format!("team {other:#x}"),
    }
}

/// The teams of a PE.
#[derive(Debug)]
pub(crate) struct Teams {
    pub(super) rows: Rows,
    pub(super) by_handle: BTreeMap<i32, Arc<Entry>>,
    pub(super) reach: PeerAccess,
    pub(super) tuning: Tuning,
}

impl Teams {
    /// Creates the table without teams but those that exist forever, which are taken in at the end
    /// of init.
    pub(crate) fn new(max_teams: u32, reach: PeerAccess, tuning: Tuning) -> Self {
        Self { rows: Rows::new(max_teams as usize, PREDEFINED), by_handle: BTreeMap::new(), reach, tuning }
    }
}
