//! A model of what members of a team send over the network in collectives of two levels: messages
//! and bytes. The tests compare it with what queue pairs count (`tests/levels.rs`).
//!
//! Lengths are bytes. `m` is the number of nodes, and a rail is a row of members with the same
//! number in their nodes; see `docs/teams.md`.

use std::iter::{self, Sum};
use std::ops::{Add, Range};

use oxshmem::abi::{ARRIVALS_AT, BLOCK_PACKET_BYTES, HEADERS_AT, LEVELS_BLOCKS, PACKET_BYTES};

/// What one member sends over the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sent {
    /// Bytes of data.
    pub bytes: u64,
    /// Messages with data, each of which is followed by a flag.
    pub puts: u64,
    /// Flags of 8 bytes, with data before them or not.
    pub flags: u64,
}

impl Sent {
    /// Returns a message with data; none if there is no data.
    fn put(bytes: u64) -> Self {
        if bytes == 0 { Self::default() } else { Self { bytes, puts: 1, flags: 1 } }
    }

    /// A flag without data.
    const FLAG: Self = Self { bytes: 0, puts: 0, flags: 1 };

    /// Returns the number of work requests.
    #[must_use]
    pub fn messages(self) -> u64 {
        self.puts + self.flags
    }

    /// Returns the payload bytes of these work requests.
    #[must_use]
    pub fn payload(self) -> u64 {
        self.bytes + 8 * self.flags
    }
}

impl Add for Sent {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self { bytes: self.bytes + other.bytes, puts: self.puts + other.puts, flags: self.flags + other.flags }
    }
}

impl Sum for Sent {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), Add::add)
    }
}

/// A collective in two levels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// The whole data, and the root.
    Broadcast(usize),
    /// The part of one member; others have what [`contribution`] says.
    Collect,
    /// One member's part.
    Fcollect,
    /// One pair's part.
    Alltoall,
    /// One pair's part, without the gaps.
    Alltoalls,
    /// The whole data; the destination is not the source.
    Reduce,
    /// The whole data; the destination is the source.
    ReduceInPlace,
    /// One member's result.
    Reducescatter,
}

/// Bytes of a message that does not pass through the workspace, at most.
const PIECE: u64 = 131_072;
/// Bytes that are worth a rail.
const RAIL: u64 = 4096;
/// Bytes that are worth a block.
const BLOCK: u64 = 65_536;

/// Blocks of a collect.
const COLLECT_BLOCKS: u64 = 4;

/// Returns what a member contributes to a collect of `n` elements in the measure of [`Way`]: twice
/// that, nothing, or as many.
#[must_use]
pub fn contribution(n: usize, member: usize) -> usize {
    n * [2, 0, 1][member % 3]
}

/// A team of several nodes.
#[derive(Debug, Clone)]
pub struct Nodes {
    /// The members of each node.
    pub nodes: Vec<Vec<usize>>,
    /// Blocks that a workspace has room for (`State::collective_blocks`).
    pub room_for: u64,
}

impl Nodes {
    fn members(&self) -> usize {
        self.nodes.iter().map(Vec::len).sum()
    }

    fn m(&self) -> usize {
        self.nodes.len()
    }

    /// Returns the number of members of the smallest node.
    #[must_use]
    pub fn rails(&self) -> usize {
        self.nodes.iter().map(Vec::len).min().unwrap_or_default()
    }

    /// Returns the node of a member, and its number there.
    fn seat(&self, member: usize) -> (usize, usize) {
        let found = self
            .nodes
            .iter()
            .enumerate()
            .find_map(|(node, members)| Some((node, members.iter().position(|other| *other == member)?)));
        found.expect("a member is in a node")
    }

    fn before(&self, node: usize, distance: usize) -> usize {
        (node + self.m() - distance % self.m()) % self.m()
    }

    /// Returns how many blocks carry out a collective in which a PE handles `total` bytes.
    fn blocks(&self, total: u64) -> u64 {
        (total / BLOCK).clamp(1, self.room_for.min(LEVELS_BLOCKS.into()))
    }

    /// Returns the bytes of messages that a block's workspace holds.
    fn room(&self, block: u64) -> u64 {
        let most = u64::from(LEVELS_BLOCKS);
        if block == 0 && self.room_for <= most {
            return PACKET_BYTES;
        }
        let places = if self.room_for <= most { 1 } else { (self.room_for - 1) / most };
        let arrivals = (32 * self.members() as u64).next_multiple_of(128);
        let other = ARRIVALS_AT - HEADERS_AT + arrivals;
        (places * (other + 2 * BLOCK_PACKET_BYTES) - other) / 2 / 128 * 128
    }

    /// Returns what `member` sends, of `bytes` bytes in the measure of `way`.
    ///
    /// # Panics
    /// The member is in no node.
    #[must_use]
    pub fn sent(&self, way: Way, bytes: u64, member: usize) -> Sent {
        let all = self.members() as u64;
        let total = match way {
            Way::Broadcast(_) | Way::Reduce | Way::ReduceInPlace => bytes,
            Way::Collect | Way::Fcollect | Way::Alltoall | Way::Alltoalls | Way::Reducescatter => bytes * all,
        };
        let blocks = match way {
            Way::Collect => COLLECT_BLOCKS.min(self.room_for),
            _ => self.blocks(total),
        };
        let of_block = |block: u64| {
            let slice = |range: Range<u64>| part(range, blocks, block);
            self.meeting(member)
                + match way {
                    Way::Broadcast(root) => self.broadcast(bytes, member, root, slice),
                    // A length, and then the part.
                    Way::Collect => {
                        let part = contribution(bytes as usize, member) as u64;
                        self.to_each_node(iter::once(8).chain(pieces(slice(0..part), PIECE)))
                    }
                    Way::Fcollect => self.to_each_node(pieces(slice(0..bytes), PIECE)),
                    Way::Alltoall => {
                        let there = all as usize - self.nodes[self.seat(member).0].len();
                        let own = slice(0..bytes);
                        // Without data the flag travels alone.
                        let each = if own.is_empty() { Sent::FLAG } else { Sent::put(own.end - own.start) };
                        (0..there).map(|_| each).sum()
                    }
                    // To each member of another node pieces, and a flag for each of its own except
                    // the last two, which says that it has been unpacked.
                    Way::Alltoalls => {
                        let there = all as usize - self.nodes[self.seat(member).0].len();
                        let room = (self.room(block) / (4 * all)).min(PIECE) / 16 * 16;
                        let count = pieces(slice(0..bytes), room).count();
                        let each: Sent = pieces(slice(0..bytes), room).map(Sent::put).sum();
                        let flags: Sent = (2..count).map(|_| Sent::FLAG).sum();
                        (0..there).map(|_| each + flags).sum()
                    }
                    Way::Reduce | Way::ReduceInPlace => {
                        let steps = self.m() as u64 - 1;
                        let room = if way == Way::Reduce { PIECE } else { self.room(block) / (2 * steps) / 16 * 16 };
                        self.reduce(bytes, member, room, slice)
                    }
                    Way::Reducescatter => {
                        let steps = self.m() as u64 - 1;
                        self.reducescatter(member, self.room(block) / (4 * steps) / 16 * 16, slice(0..bytes))
                    }
                }
        };
        (0..blocks).map(of_block).sum()
    }

    /// Returns messages of these lengths to one member of each other node.
    fn to_each_node(&self, lengths: impl Iterator<Item = u64>) -> Sent {
        lengths.map(Sent::put).flat_map(|sent| (1..self.m()).map(move |_| sent)).sum()
    }

    /// Returns what dissemination sends: in each round a flag, over the network to members of other
    /// nodes.
    fn meeting(&self, member: usize) -> Sent {
        let all = self.members();
        let rounds = (0..).map(|round| 1usize << round).take_while(|distance| *distance < all);
        let is_far = |distance: &usize| self.seat((member + distance) % all).0 != self.seat(member).0;
        rounds.filter(is_far).map(|_| Sent::FLAG).sum()
    }

    fn rails_for(&self, bytes: u64) -> u64 {
        bytes.div_ceil(RAIL).min(self.rails() as u64)
    }

    fn broadcast(&self, bytes: u64, member: usize, root: usize, slice: impl Fn(Range<u64>) -> Range<u64>) -> Sent {
        let (rails, (node, number)) = (self.rails_for(bytes), self.seat(member));
        if number as u64 >= rails {
            return Sent::default();
        }
        let own = slice(part(0..bytes, rails, number as u64));
        let place = self.before(node, self.seat(root).0);
        let is_chain = pieces(own.clone(), PIECE).count() >= self.m();
        let children = if is_chain {
            usize::from(place + 1 < self.m())
        } else {
            // Below a node are those with one bit more, lower than its own lowest.
            let bits = (0..).map(|bit| 1usize << bit).take_while(|bit| place + bit < self.m());
            bits.filter(|bit| place & (2 * bit - 1) == 0).count()
        };
        pieces(own, PIECE).flat_map(|bytes| (0..children).map(move |_| Sent::put(bytes))).sum()
    }

    /// Returns what a reduction sends: in each half of the ring every chunk but one.
    fn reduce(&self, bytes: u64, member: usize, room: u64, slice: impl Fn(Range<u64>) -> Range<u64>) -> Sent {
        let (rails, (node, number)) = (self.rails_for(bytes), self.seat(member));
        if number as u64 >= rails {
            return Sent::default();
        }
        let own = slice(part(0..bytes, rails, number as u64));
        let chunk = |node: usize| -> Sent {
            pieces(part(own.clone(), self.m() as u64, node as u64), room).map(Sent::put).sum()
        };
        let sums = (0..self.m()).filter(|other| *other != node).map(chunk);
        let next = (node + 1) % self.m();
        let results = (0..self.m()).filter(|other| *other != next).map(chunk);
        sums.chain(results).sum()
    }

    /// Returns what a reduce-scatter sends: the results of the members of each other node whose
    /// numbers are the member's, modulo the rails; and a flag for each piece except the last two,
    /// which says that its sums have been combined.
    fn reducescatter(&self, member: usize, room: u64, own: Range<u64>) -> Sent {
        let (rails, (node, number)) = (self.rails(), self.seat(member));
        if number >= rails {
            return Sent::default();
        }
        let results = |node: usize| (number..self.nodes[node].len()).step_by(rails).count() as u64;
        let each: Sent = pieces(own.clone(), room).map(Sent::put).sum();
        let others = (0..self.m()).filter(|other| *other != node);
        let data: Sent = others.flat_map(|other| (0..results(other)).map(|_| each)).sum();
        let most = (0..self.m()).map(results).max().unwrap_or_default() * pieces(own, room).count() as u64;
        data + (2..most).map(|_| Sent::FLAG).sum()
    }
}

/// Returns part `index` of `parts`: whole units of 16 bytes except for the end, the last parts
/// shorter.
fn part(range: Range<u64>, parts: u64, index: u64) -> Range<u64> {
    let each = (range.end - range.start).div_ceil(16).div_ceil(parts) * 16;
    let first = (range.start + each * index).min(range.end);
    first..(first + each).min(range.end)
}

/// Returns the lengths of the pieces of a range.
fn pieces(range: Range<u64>, room: u64) -> impl Iterator<Item = u64> {
    let length = range.end - range.start;
    (0..length.div_ceil(room)).map(move |piece| (length - piece * room).min(room))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns `m` nodes of `k` members, dealt out in turn.
    fn even(m: usize, k: usize) -> Nodes {
        Nodes { nodes: (0..m).map(|node| (0..k).map(|number| node + number * m).collect()).collect(), room_for: 64 }
    }

    /// The formulas of `docs/teams.md`, for lengths that all numbers divide.
    #[test]
    fn the_documented_formulas_follow() {
        for (m, k) in [(2, 1), (2, 2), (2, 8), (3, 2), (4, 4), (5, 1), (8, 8)] {
            let (nodes, pes) = (even(m, k), m * k);
            let (m, k) = (m as u64, k as u64);
            // A multiple of what rails, blocks, chunks and units divide it into.
            let n = 16 * 8 * m * k * 4096;
            for member in 0..pes {
                let bytes = |way, n| nodes.sent(way, n, member).bytes;
                assert_eq!(bytes(Way::Reduce, n), 2 * (m - 1) * n / (m * k));
                assert_eq!(bytes(Way::ReduceInPlace, n), 2 * (m - 1) * n / (m * k));
                assert_eq!(bytes(Way::Fcollect, n), (m - 1) * n);
                // By 4 blocks, or as many as have room.
                let part = contribution(n as usize, member) as u64;
                assert_eq!(bytes(Way::Collect, n), (m - 1) * (part + 4 * 8));
                assert_eq!(bytes(Way::Reducescatter, n), (m - 1) * n);
                assert_eq!(bytes(Way::Alltoall, n), (m * k - k) * n);
                assert_eq!(bytes(Way::Alltoalls, n), (m * k - k) * n);
            }
            // A chain, in which the last node sends nothing.
            let large = n * m * 64;
            let sent: Vec<u64> = (0..pes).map(|member| nodes.sent(Way::Broadcast(0), large, member).bytes).collect();
            assert!(sent.iter().all(|bytes| *bytes == large / k || *bytes == 0));
            assert_eq!(sent.iter().sum::<u64>(), (m - 1) * large);
            // A tree, with the same sum.
            let small = 8192;
            let sum: u64 = (0..pes).map(|member| nodes.sent(Way::Broadcast(1), small, member).bytes).sum();
            assert_eq!(sum, (m - 1) * small);
        }
    }

    /// Members beyond the rails send nothing but flags, where others have their share.
    #[test]
    fn uneven_nodes_have_as_many_rails_as_the_smallest_has_members() {
        let nodes = Nodes { nodes: vec![vec![0, 1, 2], vec![3, 4]], room_for: 64 };
        assert_eq!(nodes.rails(), 2);
        let n = 1 << 20;
        let of = |way| (0..5).map(|member| nodes.sent(way, n, member).bytes).collect::<Vec<_>>();
        assert_eq!(of(Way::Reduce), [n / 2, n / 2, 0, n / 2, n / 2]);
        assert_eq!(of(Way::Fcollect), [n; 5]);
        assert_eq!(of(Way::Reducescatter), [n, n, 0, 2 * n, n]);
        assert_eq!(of(Way::Alltoall), [2 * n, 2 * n, 2 * n, 3 * n, 3 * n]);
    }

    #[test]
    fn parts_cover_what_is_divided() {
        for (length, parts) in [(0, 3), (1, 3), (17, 2), (100, 4), (1000, 7)] {
            let all: Vec<_> = (0..parts).map(|index| part(5..5 + length, parts, index)).collect();
            assert_eq!((all[0].start, all[all.len() - 1].end), (5, 5 + length));
            assert!(all.windows(2).all(|pair| pair[0].end == pair[1].start));
        }
    }
}
