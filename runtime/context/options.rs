//! What contexts are created with.

use std::fmt;

use super::error::ContextError;
use super::sharing::Sharing;
use crate::abi;
use crate::config::Rails;

/// How contexts are made: for which threads, how many, with which depth of queues, and on which
/// card.
///
/// A context has a queue pair to each member of its team that is not reached by load and store. In
/// the memory of the device each queue pair takes 68 bytes a block of its send queue, 1152 bytes
/// for its records, and 68 bytes for each of its landing slots: an eighth of the blocks, at least
/// 64 and at most 256. For each member without a queue pair a context takes 640 bytes.
/// [`cost`](Self::cost) returns the sums.
///
/// ```
/// use oxshmem::{ContextOptions, Sharing};
///
/// // One for each block of a grid of 132.
/// let options = ContextOptions::new(Sharing::Block).count(132).depth(1024);
/// assert_eq!(options.to_string(), "132 contexts for one block at a time, of depth 1024, on each card in turn");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContextOptions {
    pub(super) sharing: Sharing,
    pub(super) count: usize,
    pub(super) depth: u32,
    pub(super) card: Option<u32>,
    pub(super) rails: Rails,
    /// Whether a service posts to them, with kernels that the PE neither launches nor waits for.
    pub(super) served: bool,
}

impl ContextOptions {
    /// Contexts that one call creates, at most.
    pub(super) const MOST: usize = 65536;

    /// Creates options for one context for these threads, with a send queue of 1024 blocks of 64
    /// bytes.
    ///
    /// ```
    /// let options = oxshmem::ContextOptions::new(oxshmem::Sharing::Thread);
    /// assert!(options.to_string().starts_with("1 context for one thread at a time"));
    /// ```
    #[must_use]
    pub fn new(sharing: Sharing) -> Self {
        Self { sharing, count: 1, depth: 1024, card: None, rails: Rails::Auto, served: false }
    }

    /// Sets how many contexts are created, 1 to 65536.
    ///
    /// ```
    /// let options = oxshmem::ContextOptions::new(oxshmem::Sharing::Warp).count(8);
    /// assert!(options.to_string().starts_with("8 contexts"));
    /// ```
    #[must_use]
    pub fn count(self, count: usize) -> Self {
        Self { count, ..self }
    }

    /// Blocks of each send queue: a power of two from 256 to 16384. A put takes a block, or up to
    /// four if its data travels in the queue.
    ///
    /// ```
    /// let options = oxshmem::ContextOptions::new(oxshmem::Sharing::Warp).depth(256);
    /// assert!(options.to_string().contains("of depth 256"));
    /// ```
    #[must_use]
    pub fn depth(self, depth: u32) -> Self {
        Self { depth, ..self }
    }

    /// Sets the card of all contexts, here and at the peers; by default contexts are on each card
    /// in turn.
    ///
    /// ```
    /// let options = oxshmem::ContextOptions::new(oxshmem::Sharing::Warp).card(0);
    /// assert!(options.to_string().ends_with("on card 0"));
    /// ```
    #[must_use]
    pub fn card(self, card: u32) -> Self {
        Self { card: Some(card), ..self }
    }

    /// Sets by which cards the PEs send to PEs of other nodes. [`Rails::Auto`], the default, is as
    /// in the default context. Where PEs push (`OXSHMEM_RAILS`), contexts with [`Rails::Direct`]
    /// send by each PE's own card all the same, by half as many queue pairs. Contexts cannot push
    /// where PEs do not, and where the CPU proxy pushes they cannot do otherwise.
    ///
    /// ```
    /// use oxshmem::config::Rails;
    ///
    /// let options = oxshmem::ContextOptions::new(oxshmem::Sharing::Warp).rails(Rails::Direct);
    /// assert!(options.to_string().ends_with("each PE sending by its own card"));
    /// ```
    #[must_use]
    pub fn rails(self, rails: Rails) -> Self {
        Self { rails, ..self }
    }

    /// Says that a service posts to them.
    pub(crate) fn served(self) -> Self {
        Self { served: true, ..self }
    }

    pub(super) fn check(&self) -> Result<(), ContextError> {
        let (least, most) = (1 << abi::MIN_DEPTH_LOG2, 1 << abi::MAX_DEPTH_LOG2);
        if !(1..=Self::MOST).contains(&self.count) {
            return Err(ContextError::Count { count: self.count, most: Self::MOST });
        }
        if !self.depth.is_power_of_two() || !(least..=most).contains(&self.depth) {
            return Err(ContextError::Depth { depth: self.depth, least, most });
        }
        Ok(())
    }
}

impl fmt::Display for ContextOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sharing, count, depth, card, rails, served: _ } = self;
        write!(f, "{count} context{} ", if *count == 1 { "" } else { "s" })?;
        match sharing {
            Sharing::Device => f.write_str("for any threads")?,
            _ => write!(f, "for one {sharing} at a time")?,
        }
        write!(f, ", of depth {depth}, on ")?;
        match card {
            Some(card) => write!(f, "card {card}")?,
            None => f.write_str("each card in turn")?,
        }
        match rails {
            Rails::Auto => Ok(()),
            Rails::Direct => f.write_str(", each PE sending by its own card"),
            Rails::Push => f.write_str(", each PE sending by the card on the receiver's rail"),
        }
    }
}
