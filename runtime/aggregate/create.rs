//! How aggregating contexts are created and destroyed: the members of their team do it together.

use std::mem::offset_of;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use oxshmem_system::words::count32;

use super::error::AggregateError;
use super::lost::explain;
use super::options::AggregateOptions;
use super::places::{Link, Seats};
use super::service::{Service, Takeover, Work};
use super::set::{Aggregate, Set};
use super::table::Live;
use crate::Result;
use crate::abi;
use crate::context::{ContextOptions, Contexts, Sharing};
use crate::heap::error::HeapError;
use crate::identity::PeId;
use crate::kernel::args::KernelArg;
use crate::memory::MemoryKind;
use crate::pe::Pe;
use crate::slab::{Layout, Slab};
use crate::slice::SymmetricSlice;
use crate::team::Team;
use crate::team::meeting::Meeting;

/// Phases of the members' meeting.
mod phase {
    pub const AGREE: u8 = 0;
    pub const CREATED: u8 = 1;
}

/// What depends on the team.
impl AggregateOptions {
    /// Returns how many words of symmetric memory a context with these options takes, for
    /// [`Team::create_aggregate`]. The same at all PEs of the team; the others allocate as many.
    ///
    /// # Errors
    /// Options out of range.
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// let words = oxshmem::AggregateOptions::new().words(&pe.team_world())?;
    /// assert!(words > 0);
    /// # pe.finalize()
    /// # }
    /// ```
    pub fn words(&self, team: &Team) -> Result<usize, AggregateError> {
        self.check()?;
        let seats = Seats::new(team.nodes().lists(), team.my_pe(), self.capacity());
        // The memory begins on a line of its own, and the program's allocation need not.
        let bytes = seats.bytes() + abi::LINE_BYTES;
        Ok(usize::try_from(bytes / 8).unwrap_or(usize::MAX))
    }

    /// Refuses a team or a heap that records cannot name.
    fn check_job(&self, pe: &Pe, team: &Team) -> Result<(), AggregateError> {
        self.check()?;
        let most = abi::AGGREGATE_MOST_PES_PER_NODE as usize;
        if let Some(members) = team.nodes().lists().iter().map(Vec::len).find(|members| *members > most) {
            return Err(AggregateError::Node { members, most });
        }
        if !pe.shares_atomics() {
            return Err(AggregateError::NoAtomics);
        }
        let (heap, most) = (pe.config().heap_max().0, 1 << abi::AGGREGATE_HEAP_BITS);
        if heap > most {
            return Err(AggregateError::Heap { heap, most });
        }
        Ok(())
    }
}

/// Aggregating contexts.
impl Team {
    /// Creates an aggregating context, with its rings in `memory`, of which
    /// [`AggregateOptions::words`] tells the size. Collective over the team; all members pass the
    /// same memory and options. The memory is the context's until it is destroyed.
    ///
    /// What the members of a node *s* send to node *d* (nodes are sets of members that reach each
    /// other by load and store, and are numbered from 0) gathers at the member of *s* with the
    /// number *d* modulo the size of *s* in its node, and is applied by the member of *d* with the
    /// number *s* modulo the size of *d*.
    ///
    /// # Errors
    /// Options out of range; memory that is too short, stale or in use; a node with more than 128
    /// members, or a heap that may grow beyond 256 GiB; members that do not come or ask for
    /// something else; no room for the context's queue pairs or its service. Then nothing was
    /// created at any member.
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// let (world, options) = (pe.team_world(), oxshmem::AggregateOptions::new());
    /// let memory = pe.alloc::<u64>(options.words(&world)?)?;
    /// let context = world.create_aggregate(&pe, &memory, &options)?;
    /// # context.destroy(&pe)?;
    /// # pe.finalize()
    /// # }
    /// ```
    pub fn create_aggregate(
        &self,
        pe: &Pe,
        memory: &SymmetricSlice<u64>,
        options: &AggregateOptions,
    ) -> Result<Aggregate> {
        self.live_handle(pe.id(), pe.my_pe())?;
        let place = memory.whole(pe.id()).map(|allocation| (allocation.offset(), memory.len()));
        self.aggregate_in(pe, place.map_err(Into::into), options)
    }

    /// Does the same with memory that a program in another language names by its address.
    #[doc(hidden)]
    pub fn create_aggregate_at(&self, pe: &Pe, memory: (u64, usize), options: &AggregateOptions) -> Result<Aggregate> {
        self.live_handle(pe.id(), pe.my_pe())?;
        let view = pe.view_at::<u64>(memory.0, memory.1);
        let place = view.resolve(pe.id()).map(|(address, words)| (address - pe.heap_base(), words));
        self.aggregate_in(pe, place.map_err(Into::into), options)
    }

    fn aggregate_in(&self, pe: &Pe, place: Result<(u64, usize)>, options: &AggregateOptions) -> Result<Aggregate> {
        let what = options.to_string();
        let checked = place.and_then(|(offset, words)| {
            options.check_job(pe, self)?;
            let needed = options.words(self)?;
            if words < needed {
                return Err(AggregateError::Memory { given: words, needed, what: what.clone() }.into());
            }
            let offset = offset.next_multiple_of(abi::LINE_BYTES);
            let range = pe.heap_base() + offset..pe.heap_base() + offset + needed as u64 * 8;
            if let Some(number) = pe.aggregates().borrow().overlapping(&range) {
                return Err(AggregateError::InUse { number }.into());
            }
            Ok(offset)
        });
        // What this PE cannot do is told to the others, which would wait for it.
        let meeting = Meeting::of_team(self, "create an aggregating context");
        let mine = match &checked {
            Ok(offset) => format!("{what} at offset {offset:#x}"),
            Err(error) => format!("no aggregating context ({error})"),
        };
        let told = meeting.hold(pe, phase::AGREE, mine.as_bytes());
        let offset = checked?;
        for (other, theirs) in told? {
            if theirs != mine.as_bytes() {
                let theirs = String::from_utf8_lossy(&theirs).into_owned();
                return Err(AggregateError::Mismatch { me: pe.my_pe(), mine, pe: other as usize, theirs }.into());
            }
        }
        let beside = self.create_contexts(pe, &ContextOptions::new(Sharing::Device).served())?;
        let made = pe.make_aggregate(self, offset, options, &beside);
        let problem = made.as_ref().map_or_else(ToString::to_string, |_| String::new());
        let outcome = match meeting.first_problem(pe, phase::CREATED, &problem) {
            Ok(Some((other, reason))) if other != pe.my_pe() => {
                Err(AggregateError::Setup { pe: other, what, reason }.into())
            }
            Ok(_) => made,
            Err(error) => Err(error),
        };
        match outcome {
            Ok((set, service)) => {
                let set = Arc::new(set);
                let live = Live { service, set: Arc::clone(&set), beside };
                pe.aggregates().borrow_mut().live.insert(set.number, live);
                Ok(Aggregate(set))
            }
            Err(error) => {
                // The first error is the one to report.
                let _ = beside.destroy(pe);
                Err(error)
            }
        }
    }
}

impl Aggregate {
    /// Completes what was put into the context, and destroys it. Collective over its team; no
    /// member's kernels use it any more. The memory of its rings is the program's again.
    ///
    /// # Errors
    /// It was destroyed already, or belongs to a PE that has been finalized. Members that do not
    /// come; or an error of an operation, and then it is destroyed all the same. Operations of this
    /// PE that were not acknowledged are counted by [`AggregateError::Lost`].
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// # let (world, options) = (pe.team_world(), oxshmem::AggregateOptions::new());
    /// # let memory = pe.alloc::<u64>(options.words(&world)?)?;
    /// let context = world.create_aggregate(&pe, &memory, &options)?;
    /// context.destroy(&pe)?;
    /// pe.free(memory)?;
    /// # pe.finalize()
    /// # }
    /// ```
    pub fn destroy(self, pe: &Pe) -> Result<()> {
        self.0.check(pe.id())?;
        let quiet = pe.quiet_aggregate(&self.0);
        self.0.ended.store(true, Ordering::Relaxed);
        // No member's service ends before all members' operations have been applied.
        let team = pe.team(self.0.team);
        let met =
            team.and_then(|team| Meeting::of_team(&team, "destroy an aggregating context").hold(pe, phase::AGREE, &[]));
        let live = pe.aggregates().borrow_mut().live.remove(&self.0.number);
        let (served, destroyed) = live.map_or((Ok(()), Ok(())), |Live { mut service, beside, .. }| {
            // The last slice may find an error too.
            service.stop();
            (service.check(pe.my_pe()), beside.destroy(pe))
        });
        quiet?;
        met?;
        served?;
        destroyed
    }
}

/// Aggregating contexts.
impl Pe {
    /// Returns the aggregating context with this number ([`Aggregate::number`]).
    ///
    /// # Errors
    /// There is none, or it was destroyed.
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// assert!(pe.aggregate_of(4242).is_err());
    /// # pe.finalize()
    /// # }
    /// ```
    pub fn aggregate_of(&self, number: u32) -> Result<Aggregate> {
        let found = self.aggregates().borrow().live.get(&number).map(|live| Arc::clone(&live.set));
        Ok(Aggregate(found.ok_or(AggregateError::Unknown { number })?))
    }

    /// Completes what this PE has put into aggregating contexts.
    pub(crate) fn quiet_all_aggregates(&self) -> Result<()> {
        let sets: Vec<Arc<Set>> = self.aggregates().borrow().live.values().map(|live| Arc::clone(&live.set)).collect();
        sets.iter().try_for_each(|set| self.quiet_aggregate(set))
    }

    /// Completes what this PE has put into an aggregating context. An error says what is lost.
    fn quiet_aggregate(&self, set: &Set) -> Result<()> {
        let table = self.aggregates().borrow();
        let served = table.live.get(&set.number).map_or(Ok(()), |live| live.service.check(self.my_pe()));
        drop(table);
        // SAFETY: the kernel takes an aggregating context, which is live.
        let quiet = served.map_err(Into::into).and_then(|()| unsafe {
            self.run_aggregate_kernel("oxshmem_aggregate_quiet", 32, &(Described(set.described),))
        });
        quiet.map_err(|error| explain(set, self, error))
    }

    /// Makes this PE's part of an aggregating context, and starts its service.
    fn make_aggregate(
        &self,
        team: &Team,
        offset: u64,
        options: &AggregateOptions,
        beside: &Contexts,
    ) -> Result<(Set, Service)> {
        let seats = Seats::new(team.nodes().lists(), team.my_pe(), options.capacity());
        let base = self.heap_base() + offset;
        // SAFETY: the range is inside an allocation that no other context has.
        unsafe { self.device().fill(base, 0, seats.bytes()) }?;

        let (sends, receives) = (seats.sends(), seats.receives());
        let size = |bytes: usize| bytes as u64;
        let mut layout = Layout::default();
        let service = layout.array(MemoryKind::Records, 1, size(size_of::<abi::AggregateService>()));
        let members = layout.array(MemoryKind::Records, size(team.n_pes()), size(size_of::<abi::AggregateMember>()));
        let nodes = layout.array(MemoryKind::Records, seats.count().into(), size(size_of::<abi::AggregateNode>()));
        let [to, from] = [&sends, &receives]
            .map(|links| layout.array(MemoryKind::Records, size(links.len()), size(size_of::<abi::AggregateLink>())));
        let own = layout.array(MemoryKind::Records, size(seats.own_node().len()), 4);
        let slab = Slab::new(Arc::clone(self.shared_device()), &layout, false)?;

        let number = {
            let mut table = self.aggregates().borrow_mut();
            table.next += 1;
            table.next
        };
        let pe_of = |member: usize| team.set_of_members().pe(member).unwrap_or(member);
        let mut rings = Vec::new();
        let mut described_nodes = vec![abi::AggregateNode::default(); seats.count() as usize];
        for (node, route) in seats.routes().into_iter().enumerate() {
            let Some(route) = route else { continue };
            let rail = pe_of(route.rail);
            let mapped = self.mapped(base + route.ring, size(size_of::<abi::AggregateRing>()), rail);
            let unmapped = || AggregateError::Setup {
                pe: self.my_pe(),
                what: options.to_string(),
                reason: format!("the heap of PE {rail}, of its node, is not mapped"),
            };
            let at = mapped.ok_or_else(unmapped)?;
            described_nodes[node] = abi::AggregateNode {
                ring: at,
                rail: self.peer(rail),
                receiver: self.peer(pe_of(route.receiver)),
                room: options.capacity(),
                ..abi::AggregateNode::default()
            };
            rings.push((route, at, node));
        }
        let described = abi::Aggregate {
            beside: beside.as_device_has_them().0[0],
            members: slab.address(members),
            nodes: slab.address(nodes),
            n_pes: self.peer(team.n_pes()),
            n_nodes: seats.count(),
            my_node: count32(seats.node),
            my_number: count32(seats.number),
            segment_log2: options.segment_log2(),
            set: number,
        };
        let link = |link: &Link| abi::AggregateLink {
            ring: base + link.ring,
            inbox: base + link.inbox,
            peer: self.peer(link.peer),
            node: count32(link.node),
        };
        slab.write_all(members, &seats.members())?;
        slab.write_all(nodes, &described_nodes)?;
        slab.write_all(to, &sends.iter().map(link).collect::<Vec<_>>())?;
        slab.write_all(from, &receives.iter().map(link).collect::<Vec<_>>())?;
        slab.write_all(own, &seats.own_node().iter().map(|member| self.peer(*member)).collect::<Vec<i32>>())?;
        let state = abi::AggregateService {
            context: described,
            sends: slab.address(to),
            receives: slab.address(from),
            own_node: slab.address(own),
            n_sends: count32(sends.len()),
            n_receives: count32(receives.len()),
            n_own_node: count32(seats.own_node().len()),
            age_ns: u64::try_from(options.age.as_nanos()).unwrap_or(u64::MAX),
            ..abi::AggregateService::default()
        };
        slab.write(service, 0, &state)?;

        let module = self.aggregate_module()?;
        module.check(Service::KERNEL)?;
        let busy = slab.address(service) + offset_of!(abi::AggregateService, busy) as u64;
        let takeover = self.takeover(base, (&sends, &receives));
        let work =
            Work { device: Arc::clone(self.shared_device()), module, service: slab.address(service), busy, takeover };
        let served = Service::start(self.my_pe(), work)?;
        let set = Set {
            pe: self.id(),
            number,
            team: team.handle(),
            options: options.clone(),
            memory: base..base + seats.bytes(),
            described,
            slab,
            service,
            rings,
            ended: AtomicBool::new(false),
        };
        Ok((set, served))
    }

    /// Returns what serves the rings and inboxes at some offsets from `base` while the program's
    /// kernels leave no room, where the device may have none.
    fn takeover(&self, base: u64, (sends, receives): (&[Link], &[Link])) -> Option<Takeover> {
        let aside = self.aggregates().borrow_mut().aside(self.device())?;
        let sent = |link: &Link| {
            let [tail, sent] = [offset_of!(abi::AggregateRing, tail), offset_of!(abi::AggregateRing, sent)];
            [tail, sent].map(|field| base + link.ring + field as u64)
        };
        let applied = |link: &Link| {
            let [arrived, applied] =
                [offset_of!(abi::AggregateInbox, arrived), offset_of!(abi::AggregateInbox, applied)];
            [arrived, applied].map(|field| base + link.inbox + field as u64)
        };
        let positions = sends.iter().map(sent).chain(receives.iter().map(applied)).collect();
        Some(Takeover { aside, positions })
    }
}

/// The argument of a kernel that takes `oxshmem::aggregate::Context`.
struct Described(abi::Aggregate);

impl KernelArg for Described {
    type Bytes = [u8; size_of::<abi::Aggregate>()];
    fn bytes(&self, _pe: PeId) -> Result<Self::Bytes, HeapError> {
        Ok(bytemuck::cast(self.0))
    }
}
