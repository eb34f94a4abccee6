//! How contexts are created and destroyed: the members of their team do it together.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use oxshmem_system::words::{const32, count32};

use super::cost::Places;
use super::error::ContextError;
use super::options::ContextOptions;
use super::set::{Contexts, Set};
use crate::Result;
use crate::abi;
use crate::bootstrap::MAX_GROUP_CONTRIBUTION;
use crate::config::Rails;
use crate::host::operations::Operations;
use crate::pe::Pe;
use crate::slab::Slab;
use crate::team::Team;
use crate::team::meeting::Meeting;
use crate::team::members::Members;
use crate::transport::TransportError;
use crate::transport::ibgda::Ibgda;

/// Phases of the members' meeting.
mod phase {
    pub const AGREE: u8 = 0;
    pub const CREATED: u8 = 1;
    pub const CONNECTED: u8 = 2;
    /// From here on: pieces of the queue pairs' numbers.
    pub const NUMBERS: u8 = 3;
}

/// Contexts.
impl Team {
    /// Creates contexts: queue pairs between the members of this team apart from those of the
    /// default context. Collective over the team; all members pass the same options.
    ///
    /// # Errors
    /// A count or a depth out of range, members that do not come or ask for something else, a card
    /// that there is not, or one that cannot create so many queue pairs, or no memory for them.
    /// Then nothing was created at any member.
    ///
    /// ```
    /// use oxshmem::{ContextOptions, Sharing};
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// let per_warp = ContextOptions::new(Sharing::Warp).count(64);
    /// let contexts = pe.team_world().create_contexts(&pe, &per_warp)?;
    /// # drop(contexts);
    /// # pe.finalize()
    /// # }
    /// ```
    pub fn create_contexts(&self, pe: &Pe, options: &ContextOptions) -> Result<Contexts> {
        self.live_handle(pe.id(), pe.my_pe())?;
        // What this PE cannot do is told to the others, which would wait for it.
        let checked = options.check();
        let what = options.to_string();
        let meeting = Meeting::of_team(self, "create contexts");
        let mine = checked.as_ref().map_or_else(|error| format!("no contexts ({error})"), |()| what.clone());
        let told = meeting.hold(pe, phase::AGREE, mine.as_bytes());
        checked?;
        for (other, theirs) in told? {
            if theirs != mine.as_bytes() {
                let theirs = String::from_utf8_lossy(&theirs).into_owned();
                return Err(ContextError::Mismatch { me: pe.my_pe(), mine: what, pe: other as usize, theirs }.into());
            }
        }
        let number = {
            let mut table = pe.contexts().borrow_mut();
            table.next += 1;
            table.next
        };
        let made = pe.make_contexts(self, options, number);
        together(pe, &meeting, phase::CREATED, &what, &made)
            .and(made)
            .and_then(|made| {
                let connected = pe.connect_contexts(self, &meeting, &made);
                together(pe, &meeting, phase::CONNECTED, &what, &connected)?;
                connected?;
                Ok(made)
            })
            .inspect_err(|_| {
                // The first error is the one to report.
                let _ = pe.ibgda().map(|ibgda| ibgda.destroy_contexts(number));
            })
            .map(|Made { set, slab, .. }| {
                let set = Arc::new(set);
                pe.contexts().borrow_mut().sets.insert(number, (Arc::clone(&set), slab));
                Contexts(set)
            })
    }
}

/// Learns whether all members have succeeded so far. An error of one is an error at all.
fn together<T>(pe: &Pe, meeting: &Meeting, phase: u8, what: &str, mine: &Result<T>) -> Result<()> {
    let problem = mine.as_ref().map_or_else(ToString::to_string, |_| String::new());
    match meeting.first_problem(pe, phase, &problem)? {
        Some((other, reason)) if other != pe.my_pe() => {
            Err(ContextError::Setup { pe: other, what: what.to_owned(), reason }.into())
        }
        _ => Ok(()),
    }
}

impl Contexts {
    /// Completes what was posted through the contexts, and destroys them. Collective over their
    /// team; no member's kernels use them any more. Their memory is kept for contexts that are
    /// created later.
    ///
    /// # Errors
    /// They were destroyed already, or belong to a PE that has been finalized. Members that do not
    /// come; or an error of an operation, and then they are destroyed all the same.
    ///
    /// ```
    /// use oxshmem::{ContextOptions, Sharing};
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// let contexts = pe.team_world().create_contexts(&pe, &ContextOptions::new(Sharing::Device))?;
    /// contexts.destroy(&pe)?;
    /// # pe.finalize()
    /// # }
    /// ```
    pub fn destroy(self, pe: &Pe) -> Result<()> {
        self.0.check(pe.id())?;
        let quiet = pe.quiet_contexts(&self.0);
        self.0.ended.store(true, Ordering::Relaxed);
        let unnumbered = pe.end_numbers(&self.0);
        // No member's queue pairs go before all members' requests have ended.
        let met = pe.meeting_of_contexts(&self.0).and_then(|meeting| meeting.hold(pe, phase::AGREE, &[]));
        pe.contexts().borrow_mut().sets.remove(&self.0.number);
        let destroyed = pe.ibgda().map_or(Ok(()), |ibgda| ibgda.destroy_contexts(self.0.number));
        quiet?;
        met?;
        unnumbered?;
        destroyed
    }

    /// Gives the contexts numbers, by which kernels find them without being passed them
    /// (`oxshmem::numbered_context` of device code), and returns those. Contexts that have numbers
    /// keep them. Numbers are this PE's; they are never used again.
    ///
    /// # Errors
    /// The contexts were destroyed, or a PE has 1024 numbered contexts already.
    ///
    /// ```
    /// use oxshmem::{ContextOptions, Sharing};
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// let made = pe.team_world().create_contexts(&pe, &ContextOptions::new(Sharing::Device).count(4))?;
    /// assert_eq!(made.numbers(&pe)?, 0..4);
    /// # pe.finalize()
    /// # }
    /// ```
    pub fn numbers(&self, pe: &Pe) -> Result<Range<u32>> {
        self.0.check(pe.id())?;
        let count = count32(self.len());
        let mut table = pe.contexts().borrow_mut();
        if let Some(first) = table.numbers.get(&self.0.number) {
            return Ok(*first..first + count);
        }
        let (first, most) = (table.numbered, abi::MAX_NUMBERED_CONTEXTS);
        if count > most - first {
            return Err(ContextError::Numbers { count: self.len(), used: first, most }.into());
        }
        // The count comes last, so that a kernel finds none that is half written.
        pe.write_numbered(first, &self.0.described)?;
        table.numbers.insert(self.0.number, first);
        table.numbered += count;
        pe.count_numbered(table.numbered)?;
        Ok(first..first + count)
    }
}

/// Contexts of this PE that the other members do not know yet.
struct Made {
    set: Set,
    slab: Arc<Slab>,
    /// What the members are told: the numbers of the queue pairs that lead to each.
    numbers: Vec<u8>,
    rows: usize,
}

/// Contexts.
impl Pe {
    /// Returns the set of contexts with this number ([`Contexts::number`]).
    ///
    /// # Errors
    /// There is none, or it was destroyed.
    ///
    /// ```
    /// use oxshmem::{ContextOptions, Sharing};
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// let made = pe.team_world().create_contexts(&pe, &ContextOptions::new(Sharing::Block).count(2))?;
    /// assert_eq!(pe.contexts_of(made.number())?.len(), 2);
    /// assert!(pe.contexts_of(4242).is_err());
    /// # pe.finalize()
    /// # }
    /// ```
    pub fn contexts_of(&self, number: u32) -> Result<Contexts> {
        let found = self.contexts().borrow().sets.get(&number).map(|(set, _)| Arc::clone(set));
        Ok(Contexts(found.ok_or(ContextError::Unknown { number })?))
    }
}

/// What creating contexts takes of a PE.
impl Pe {
    /// Has kernels find no context of the set by a number any more.
    fn end_numbers(&self, set: &Set) -> Result<()> {
        match self.contexts().borrow_mut().numbers.remove(&set.number) {
            Some(first) => self.write_numbered(first, &vec![abi::Context::default(); set.options.count]),
            None => Ok(()),
        }
    }

    fn make_contexts(&self, team: &Team, options: &ContextOptions, number: u32) -> Result<Made> {
        let members = team.set_of_members();
        let (rows, columns) = (count32(members.len()), count32(options.count));
        let ibgda = self.ibgda();
        let cards = ibgda.map_or(Ok(vec![0; options.count]), |ibgda| ibgda.cards_of_contexts(columns, options.card))?;
        let direct = self.are_contexts_direct(options.rails)?;
        let posts_to = |pe: usize| ibgda.is_some_and(|ibgda| self.posts_to(ibgda, pe));
        let pes = (0..rows).zip(members.to_vec());
        let peers: Vec<(u32, u32)> = pes.filter(|(_, pe)| posts_to(*pe)).map(|(row, pe)| (row, count32(pe))).collect();

        let listed = matches!(members, Members::List(_));
        let Places { layout, array, list, queues } = Places::new(options, (rows, peers), listed);
        let slab = match ibgda {
            Some(ibgda) => ibgda.memory_for_contexts(self.shared_device(), &layout, self.slab())?,
            None => Arc::new(Slab::new(Arc::clone(self.shared_device()), &layout, false)?),
        };

        let mut described = Vec::with_capacity(options.count);
        let (start, stride) = match members {
            Members::Strided { start, stride, .. } => (*start, *stride),
            Members::List(_) => (0, 0),
        };
        for (column, card) in (0u64..).zip(&cards) {
            let (qps, used) = queues.as_ref().map_or((0, 0), |queues| {
                let (qps, used) = queues.places();
                (
                    slab.address(qps) + column * size_of::<abi::Qp>() as u64,
                    slab.address(used) + column * queues.words_of_column() * 8,
                )
            });
            described.push(abi::Context {
                qps,
                used,
                members: if listed { slab.address(list) } else { 0 },
                start: self.peer(start),
                stride: self.peer(stride),
                n_pes: rows.cast_signed(),
                how: options.sharing.how()
                    | if direct { abi::CONTEXT_DIRECT } else { 0 }
                    | card << abi::CONTEXT_CARD_SHIFT,
                qp_bytes: columns * const32(size_of::<abi::Qp>()),
                set: number,
            });
        }
        slab.write_all(array, &described)?;
        if listed {
            slab.write_all(list, &members.to_vec().into_iter().map(|pe| self.peer(pe)).collect::<Vec<i32>>())?;
        }
        let queue_pairs = queues.as_ref().map_or(0, |queues| u64::from(queues.count()));
        let numbers = match (ibgda, queues) {
            (Some(ibgda), Some(queues)) => {
                ibgda.create_contexts((number, direct), (self.device(), &slab), queues, cards)?
            }
            _ => Vec::new(),
        };
        let set = Set {
            pe: self.id(),
            number,
            options: options.clone(),
            described,
            array: slab.address(array),
            queue_pairs,
            bytes: layout.bytes(),
            team: team.handle(),
            ended: AtomicBool::new(false),
        };
        Ok(Made { set, slab, numbers, rows: rows as usize })
    }

    /// Tells the members the numbers of the queue pairs, and connects to theirs.
    fn connect_contexts(&self, team: &Team, meeting: &Meeting, made: &Made) -> Result<()> {
        let Some(ibgda) = self.ibgda() else { return Ok(()) };
        let share = made.set.options.count * ibgda.bytes_of_context(self.are_contexts_direct(made.set.options.rails)?);
        // A member that is reached by load and store has no queue pairs, and tells zeros.
        let mine = if made.numbers.is_empty() { vec![0; made.rows * share] } else { made.numbers.clone() };
        let told = if team.handle() == abi::TEAM_WORLD {
            self.bootstrap().alltoall("contexts", &mine)?
        } else {
            let mut rows = vec![Vec::new(); made.rows];
            for (piece, part) in (phase::NUMBERS..).zip(mine.chunks(MAX_GROUP_CONTRIBUTION)) {
                let told = meeting.hold(self, piece, part)?;
                rows.iter_mut().zip(told).for_each(|(row, (_, theirs))| row.extend(theirs));
            }
            let own = team.my_pe() * share..(team.my_pe() + 1) * share;
            rows.into_iter().map(|row| row.get(own.clone()).unwrap_or_default().to_vec()).collect()
        };
        ibgda.connect_contexts(self.config(), made.set.number, &told)?;
        self.prepare_contexts(ibgda, made.set.number, team)
    }

    /// Returns whether contexts with this choice send by each PE's own cards although PEs push.
    ///
    /// # Errors
    /// They cannot have what was chosen. Without a network no PE pushes.
    fn are_contexts_direct(&self, chosen: Rails) -> Result<bool> {
        match self.network() {
            Some(network) => network.are_contexts_direct(chosen),
            None if chosen == Rails::Push => Err(TransportError::ContextsPush.into()),
            None => Ok(false),
        }
    }

    /// Returns whether contexts have queue pairs to a PE: it is not reached by load and store, or
    /// cards do all atomics.
    fn posts_to(&self, ibgda: &Ibgda, pe: usize) -> bool {
        ibgda.atomics().by_card || !self.is_direct(pe)
    }

    /// Makes the cards ready for the keys of the members' heaps.
    fn prepare_contexts(&self, ibgda: &Ibgda, number: u32, team: &Team) -> Result<()> {
        for pe in team.members().into_iter().filter(|pe| self.posts_to(ibgda, *pe)) {
            let rkeys = self.remote_keys(pe)?;
            ibgda.prepare_contexts(number, count32(pe), &rkeys)?;
        }
        Ok(())
    }

    /// Completes what was posted through the contexts of a set, by a kernel. Without queue pairs of
    /// their own it went where that of the default context goes.
    fn quiet_contexts(&self, set: &Set) -> Result<()> {
        if set.queue_pairs == 0 {
            return self.quiet();
        }
        // SAFETY: the kernel takes the array of the set, which the table keeps, and its length.
        unsafe { self.run_host_kernel("oxshmem_host_quiet_contexts", 256, &(set.array, count32(set.options.count))) }
    }

    /// Queues the completion of what was posted through contexts that have numbers: kernels find
    /// them without the program's host code, so quiet, fence and barriers of the PE include them.
    pub(crate) fn queue_quiet_of_numbered(&self, stream: &crate::device::Stream) -> Result<()> {
        let count = self.contexts().borrow().numbered;
        if count == 0 || self.network().is_none() {
            return Ok(());
        }
        // SAFETY: the kernel takes the PE's table of numbered contexts and how many are in it. A
        // context that was destroyed is zeros there, which stand for the default context.
        unsafe { self.queue_host_kernel(stream, "oxshmem_host_quiet_contexts", 256, (self.numbered_table(), count)) }
    }

    /// Completes what was posted through any context that has queue pairs.
    pub(crate) fn quiet_all_contexts(&self) -> Result<()> {
        let sets: Vec<Arc<Set>> = self.contexts().borrow().sets.values().map(|(set, _)| Arc::clone(set)).collect();
        sets.iter().filter(|set| set.queue_pairs > 0).try_for_each(|set| self.quiet_contexts(set))
    }

    fn meeting_of_contexts(&self, set: &Set) -> Result<Meeting> {
        Ok(Meeting::of_team(&self.team(set.team)?, "destroy contexts"))
    }
}
