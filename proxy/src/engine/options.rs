//! What an engine is made for, and what it reports.

use std::cmp::Ordering;

use crate::staging::Staging;
use crate::striping::Striping;
use crate::work::Registered;

/// The most requests of a chain.
pub const CHAIN: usize = 64;
/// Compare-and-swap loops at a time.
pub const LOOPS: u32 = 256;
/// Bytes from one landing slot to the next.
pub const LANDING_BYTES: u64 = 64;
/// Landing slots that the engine itself needs: one a loop, and one for results that no thread waits
/// for.
pub const EXTRA_SLOTS: u32 = LOOPS + 1;

/// The landing slots: registered memory that the card writes results to and that this process
/// reads.
pub trait Results {
    /// Returns the first eight bytes of a slot.
    fn load(&self, slot: u32) -> u64;
    /// Replaces them.
    fn store(&mut self, slot: u32, value: u64);
}

/// What an engine is made for.
#[derive(Debug, Clone)]
pub struct EngineOptions {
    /// This PE.
    pub me: u32,
    /// Whether queue pairs lead to it as well: the last ones.
    pub own: bool,
    /// PEs of the job.
    pub n_pes: u32,
    /// Queue pairs to each peer, and the cards that they are on.
    pub striping: Striping,
    /// Descriptors that may be on their way at a time.
    pub window: usize,
    /// Landing slot 0; `length` is not used. Behind the device's `slots` there are [`EXTRA_SLOTS`]
    /// for the engine.
    pub landing: Registered,
    /// Landing slots of the device.
    pub slots: u32,
    /// Which puts are staged, if any are.
    pub staging: Option<Staging>,
}

impl EngineOptions {
    /// Returns the dense index of queue pair `queue` of those to a PE; `None` if there is none.
    ///
    /// ```
    /// use oxshmem_proxy::engine::EngineOptions;
    /// use oxshmem_proxy::striping::Striping;
    /// use oxshmem_proxy::work::Registered;
    ///
    /// let options = EngineOptions {
    ///     me: 1,
    ///     own: false,
    ///     n_pes: 3,
    ///     striping: Striping::new(4, 1),
    ///     window: 64,
    ///     landing: Registered::default(),
    ///     slots: 64,
    ///     staging: None,
    /// };
    /// assert_eq!([0, 1, 2].map(|pe| options.qp(pe, 3)), [Some(3), None, Some(7)]);
    /// assert_eq!(options.peer(7), 2);
    /// ```
    #[must_use]
    pub fn qp(&self, pe: u32, queue: u32) -> Option<u32> {
        let Self { me, own, n_pes, ref striping, .. } = *self;
        let per_peer = striping.per_peer();
        if pe >= n_pes || queue >= per_peer || (pe == me && !own) {
            return None;
        }
        let peer = match pe.cmp(&me) {
            Ordering::Less => pe,
            Ordering::Equal => n_pes - 1,
            Ordering::Greater => pe - 1,
        };
        Some(peer * per_peer + queue)
    }

    /// Returns the PE that a queue pair leads to.
    #[must_use]
    pub fn peer(&self, qp: u32) -> u32 {
        let peer = qp / self.striping.per_peer();
        if peer + 1 == self.n_pes {
            self.me
        } else if peer < self.me {
            peer
        } else {
            peer + 1
        }
    }
}

/// The word that tells device code the end of what it waits for at a landing slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Acknowledgement {
    /// The landing slot.
    pub slot: u32,
    /// See [`acknowledgement`].
    pub value: u64,
}

/// Returns what an acknowledgement says: the lap it is for, from 1, and whether the operation
/// failed.
#[must_use]
pub fn acknowledgement(lap: u32, failed: bool) -> u64 {
    (u64::from(lap) + 1) << 1 | u64::from(failed)
}

/// What failed first at a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// The peer.
    pub pe: u32,
    /// The queue pair, by dense index.
    pub qp: u32,
    /// The request's id on it.
    pub id: u64,
    /// The opcode, as in [`Operation::opcode`](crate::work::Operation::opcode).
    pub opcode: u8,
    /// The address at the peer.
    pub address: u64,
    /// The syndrome, as in [`Status::Failed`](crate::work::Status::Failed).
    pub syndrome: u32,
    /// The vendor's syndrome, as in [`Status::Failed`](crate::work::Status::Failed).
    pub vendor: u32,
}
