//! What contexts take of a PE.

use oxshmem_system::words::count32;

use super::error::ContextError;
use super::options::ContextOptions;
use super::sharing::Sharing;
use crate::abi;
use crate::config::MAX_NPES;
use crate::memory::MemoryKind;
use crate::slab::{Layout, Offset};
use crate::transport::queues::{QueueLayout, Shape};

const MOST_MEMBERS: usize = MAX_NPES as usize;

/// What contexts take at a PE: [`ContextOptions::cost`].
///
/// ```
/// use oxshmem::{ContextOptions, Sharing};
///
/// let cost = ContextOptions::new(Sharing::Thread).cost(2, 1)?;
/// assert_eq!(cost.queue_pairs, 1);
/// # Ok::<(), oxshmem::ContextError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContextCost {
    /// Queue pairs of the PE's cards.
    pub queue_pairs: u64,
    /// Bytes in the memory of the device.
    pub bytes: u64,
}

impl ContextOptions {
    /// Returns what contexts made with these options take at each PE of a team of `members`, of
    /// which `far` have queue pairs: those that are not reached by load and store, or all where
    /// cards do all atomics. It starts nothing.
    ///
    /// # Errors
    /// A count or a depth out of range; more members than a job has PEs at most; more that are far
    /// than there are members.
    ///
    /// ```
    /// use oxshmem::{ContextOptions, Sharing};
    ///
    /// // A context for each of 132 blocks, in a job of 4 nodes of 8 PEs.
    /// let cost = ContextOptions::new(Sharing::Block).count(132).cost(32, 24)?;
    /// assert_eq!(cost.queue_pairs, 132 * 24);
    /// assert!(cost.bytes > cost.queue_pairs * 68 * (1024 + 128));
    /// # Ok::<(), oxshmem::ContextError>(())
    /// ```
    pub fn cost(&self, members: usize, far: usize) -> Result<ContextCost, ContextError> {
        self.check()?;
        if !(1..=MOST_MEMBERS).contains(&members) || far > members {
            return Err(ContextError::Members { members, far, most: MOST_MEMBERS });
        }
        let peers = (0..count32(far)).map(|row| (row, row)).collect();
        let places = Places::new(self, (count32(members), peers), false);
        Ok(ContextCost {
            queue_pairs: places.queues.as_ref().map_or(0, |queues| u64::from(queues.count())),
            bytes: places.layout.bytes(),
        })
    }
}

/// Where the contexts of a call are in the memory of the device.
pub(super) struct Places {
    pub layout: Layout,
    /// The contexts themselves.
    pub array: Offset,
    /// The members' numbers in the job, where these are listed.
    pub list: Offset,
    /// None where no member has queue pairs.
    pub queues: Option<QueueLayout>,
}

impl Places {
    /// Lays out contexts of a team with `rows` members, of which `peers` have queue pairs.
    pub fn new(options: &ContextOptions, (rows, peers): (u32, Vec<(u32, u32)>), listed: bool) -> Self {
        let mut layout = Layout::default();
        let array = layout.array(MemoryKind::Records, options.count as u64, size_of::<abi::Context>() as u64);
        let list = layout.array(MemoryKind::Records, if listed { u64::from(rows) } else { 0 }, 4);
        let forgotten_by_host = options.sharing == Sharing::Device && !options.served;
        let columns = count32(options.count);
        let shape = Shape { rows, peers, columns, depth: options.depth, apart: true, forgotten_by_host };
        let queues = (!shape.peers.is_empty()).then(|| QueueLayout::new(&mut layout, shape));
        Self { layout, array, list, queues }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_pair_takes_what_the_documentation_says() {
        for depth in [256u32, 1024, 16384] {
            let of = |far| ContextOptions::new(Sharing::Thread).depth(depth).cost(64, far).unwrap().bytes;
            let each = (of(64) - of(32)) / 32;
            let landing = u64::from((depth / 8).clamp(64, 256));
            let without = size_of::<abi::Qp>() as u64;
            assert_eq!(without, 640);
            assert_eq!(each + without, 68 * u64::from(depth) + 68 * landing + 1152, "depth {depth}");
        }
    }

    /// Kernels of a service post at any time, also while the host finds that no other kernel runs.
    #[test]
    fn the_host_forgets_what_was_used_where_it_launches_all_that_posts() {
        let forgets = |options: &ContextOptions| {
            let places = Places::new(options, (2, vec![(1, 1)]), false);
            places.queues.unwrap().forgotten_by_host()
        };
        assert!(forgets(&ContextOptions::new(Sharing::Device)));
        assert!(!forgets(&ContextOptions::new(Sharing::Device).served()));
        assert!(!forgets(&ContextOptions::new(Sharing::Block)));
    }

    #[test]
    fn what_cannot_be_made_has_no_cost() {
        let options = ContextOptions::new(Sharing::Warp);
        assert_eq!(options.cost(8, 0).unwrap().queue_pairs, 0);
        let error = options.cost(2, 3).unwrap_err().to_string();
        assert!(error.contains("3 of 2 members"), "{error}");
        let error = options.cost(MOST_MEMBERS + 1, 1).unwrap_err().to_string();
        assert!(error.contains("1 of 4097 members"), "{error}");
        assert!(options.count(0).cost(2, 1).is_err());
    }
}
