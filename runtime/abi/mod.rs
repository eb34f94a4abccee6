//! The device ABI: what host and device code share, as `device-kernels/include/oxshmem/abi.h`
//! declares it.
//!
//! Structures, enumerations and constants are generated from that file; `tests/abi.rs` does that,
//! and compares. What follows from them is here.

#[rustfmt::skip]
#[allow(missing_docs)] // the names are those of abi.h, and what needs words has them there
#[allow(clippy::unnecessary_operation, clippy::identity_op, clippy::unreadable_literal)]
#[allow(clippy::doc_lazy_continuation, clippy::doc_markdown)]
mod bindings;

use bytemuck::Zeroable;

pub use bindings::*;

/// What is hot for one party has lines of its own: 128 bytes is what one GPU L2 access touches.
pub const LINE_BYTES: u64 = align_of::<Qp>() as u64;
/// Bytes of a WQE basic block.
pub const BLOCK_BYTES: u64 = bindings::BLOCK_BYTES as u64;
/// Bytes of a landing slot.
pub const LANDING_BYTES: u64 = bindings::LANDING_BYTES as u64;
/// Buffers outside the heap that can be registered at a time.
pub const MAX_LOCAL_REGIONS: usize = bindings::MAX_LOCAL_REGIONS as usize;
/// Bytes of payload that fit a work request of one block.
pub const INLINE_ONE_BLOCK: u32 = bindings::INLINE_ONE_BLOCK;
/// Bytes of payload that fit the longest work request which is used for puts.
pub const INLINE_MOST: u32 = bindings::INLINE_MOST;
/// Cards that a PE may send by.
pub const MAX_CARDS: usize = bindings::MAX_CARDS as usize;
/// Rows of [`Team::choices`].
pub const COLLECTIVES: usize = bindings::COLLECTIVES as usize;
/// Entries of a row of [`Team::choices`].
pub const CHOICES: usize = bindings::CHOICES as usize;
/// Members of a team that tell each other directly, at most.
pub const ONE_ROUND_PES: usize = bindings::ONE_ROUND_PES as usize;

// Crates below this one know parts of the ABI.
const _: () = assert!(MAX_CARDS == oxshmem_hca::topology::MAX_SENDERS);

macro_rules! zeroed_by_default {
    ($($type:ty),*) => {
        $(impl Default for $type {
            fn default() -> Self {
                Self::zeroed()
            }
        })*
    };
}
zeroed_by_default!(
    ErrorRecord,
    Breakage,
    Context,
    Aggregate,
    AggregateRing,
    AggregateNode,
    AggregateService,
    Control,
    Qp,
    ProxyWord,
    Proxy,
    LocalRegion,
    Choice,
    State,
    Profile
);

impl Team {
    /// Returns a row without a team.
    pub(crate) fn none() -> Self {
        Self { handle: TEAM_INVALID, ..Self::zeroed() }
    }
}

/// Returns the bytes of the workspace of a team of `n_pes` members whose collectives take at most
/// `blocks` blocks, a multiple of [`LINE_BYTES`].
#[must_use]
pub const fn team_workspace_bytes(n_pes: u64, blocks: u64) -> u64 {
    // A block that does all alone tells no other one.
    let words = if blocks > 1 { least(n_pes * GRID_WORDS as u64, GRID_WORDS_OF_ALL as u64) } else { 0 };
    grid_words_at(n_pes, blocks) + 2 * 2 * words * 8
}

/// Returns where, in the workspace of a team, [`Team::grid_words`] lie. Arguments as in
/// [`team_workspace_bytes`].
#[must_use]
pub(crate) const fn grid_words_at(n_pes: u64, blocks: u64) -> u64 {
    let rounds = 2 * ROUNDS as u64 * 8;
    let headers = 2 * ONE_ROUND_PES as u64 * 8;
    let arrivals = (2 * 2 * n_pes * 8).next_multiple_of(LINE_BYTES);
    let further = blocks.saturating_sub(1);
    let passed = if n_pes > 2 { blocks * BLOCK_PACKET_BYTES } else { 0 };
    rounds
        + headers
        + arrivals
        + 2 * packet_bytes(n_pes)
        + further * (headers + arrivals + 2 * BLOCK_PACKET_BYTES)
        + passed
}

/// Returns the epoch of a team's next meeting, as `epoch_after` in `meet.h` does: 0 and 1 are left
/// out.
#[must_use]
pub(crate) const fn epoch_after(epoch: u32) -> u32 {
    match epoch.wrapping_add(1) {
        0 | 1 => epoch.wrapping_add(3),
        next => next,
    }
}

/// Returns the bytes of the packets of one parity in the workspace of a team of `n_pes` members, as
/// `TeamView::packet_bytes` in `meet.h` does: at least two pieces of 16 bytes for each member.
const fn packet_bytes(n_pes: u64) -> u64 {
    let needed = (n_pes * 2 * 16).next_multiple_of(LINE_BYTES);
    if needed < PACKET_BYTES { PACKET_BYTES } else { needed }
}

const fn least(a: u64, b: u64) -> u64 {
    if a < b { a } else { b }
}

/// Returns the bytes of messages of one parity that the smallest block has room for, of those that
/// carry out a collective of a team of several nodes (`workspace_room` in `levels.h`). `blocks` as
/// in [`team_workspace_bytes`].
#[must_use]
pub const fn levels_room(n_pes: u64, blocks: u64) -> u64 {
    let headers = 2 * ONE_ROUND_PES as u64 * 8;
    let arrivals = (2 * 2 * n_pes * 8).next_multiple_of(LINE_BYTES);
    let most = LEVELS_BLOCKS as u64;
    let places = if blocks <= most { 1 } else { (blocks - 1) / most };
    let further = (places * (headers + arrivals + 2 * BLOCK_PACKET_BYTES) - headers - arrivals) / 2 / 128 * 128;
    // Without places for all blocks the first one has the packets of the team.
    if blocks <= 1 || (blocks <= most && further > PACKET_BYTES) { PACKET_BYTES } else { further }
}

/// Returns [`Team::packet_share`] of a team of `n_pes` members: a packet of 16 bytes of data takes
/// 32.
#[must_use]
#[allow(clippy::cast_possible_truncation)] // At most PACKET_BYTES.
pub const fn packet_share(n_pes: usize) -> u32 {
    (PACKET_BYTES / n_pes as u64 / 32 * 32) as u32
}

/// Returns [`Team::block_share`] of a team of `n_pes` members.
#[must_use]
#[allow(clippy::cast_possible_truncation)] // At most BLOCK_PACKET_BYTES.
pub const fn block_share(n_pes: usize) -> u32 {
    let senders = if n_pes > 2 { n_pes as u64 - 1 } else { 1 };
    (BLOCK_PACKET_BYTES / senders / 32 * 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_pieces_of_each_member_fit_the_packets() {
        for n_pes in [1, 2, 1023, 1024, 1025, 2048, 4095, 4096] {
            assert!(packet_bytes(n_pes) / 2 / n_pes >= 16, "{n_pes}");
        }
        assert_eq!([packet_bytes(1), packet_bytes(1024)], [PACKET_BYTES; 2]);
    }

    #[test]
    fn two_epochs_are_left_out() {
        assert_eq!([5, u32::MAX - 1, u32::MAX, 0].map(epoch_after), [6, u32::MAX, 2, 3]);
    }
}
