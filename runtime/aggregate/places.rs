//! Which PE has which ring and which inbox, and where.

use oxshmem_system::words::count32;

use crate::abi;

/// The nodes of a team as one member sees them.
///
/// What node `s` sends to node `d` gathers at the member of `s` with the number `d` modulo the size
/// of `s`, and arrives at the member of `d` with the number `s` modulo the size of `d`. Rings and
/// inboxes lie at the same offsets at all members, in the order of the nodes.
#[derive(Debug, Clone)]
pub(super) struct Seats<'a> {
    nodes: &'a [Vec<usize>],
    /// Bytes of the segments of a ring.
    capacity: u64,
    pub node: usize,
    pub number: usize,
}

/// A ring of this PE, or an inbox: the offset of both in the memory, and the member at the other
/// end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Link {
    pub ring: u64,
    pub inbox: u64,
    pub peer: usize,
    pub node: usize,
}

/// The ring to another node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Route {
    pub ring: u64,
    /// The members at its ends.
    pub rail: usize,
    pub receiver: usize,
}

impl<'a> Seats<'a> {
    /// Returns the nodes as member `me` sees them, whose rings have `capacity` bytes.
    pub fn new(nodes: &'a [Vec<usize>], me: usize, capacity: u64) -> Self {
        let mut seats = nodes
            .iter()
            .enumerate()
            .filter_map(|(node, members)| Some((node, members.iter().position(|other| *other == me)?)));
        let (node, number) = seats.next().unwrap_or_default();
        Self { nodes, capacity, node, number }
    }

    /// Rings of a PE, at most, and inboxes.
    fn slots(&self) -> usize {
        let least = self.nodes.iter().map(Vec::len).min().unwrap_or(1).max(1);
        self.nodes.len().div_ceil(least)
    }

    fn ring_bytes(&self) -> u64 {
        size_of::<abi::AggregateRing>() as u64 + self.capacity
    }

    fn inbox_bytes(&self) -> u64 {
        size_of::<abi::AggregateInbox>() as u64 + self.capacity
    }

    /// Returns the bytes of symmetric memory.
    pub fn bytes(&self) -> u64 {
        self.slots() as u64 * (self.ring_bytes() + self.inbox_bytes())
    }

    fn inbox(&self, slot: usize) -> u64 {
        self.slots() as u64 * self.ring_bytes() + slot as u64 * self.inbox_bytes()
    }

    /// Returns how node `from` sends to node `to`, and the offset of the inbox.
    fn link(&self, from: usize, to: usize) -> (Route, u64) {
        let (sources, targets) = (&self.nodes[from], &self.nodes[to]);
        let ring = (to / sources.len()) as u64 * self.ring_bytes();
        let route = Route { ring, rail: sources[to % sources.len()], receiver: targets[from % targets.len()] };
        (route, self.inbox(from / targets.len()))
    }

    /// Returns the rings of this node to each node; `None` for itself.
    pub fn routes(&self) -> Vec<Option<Route>> {
        let to = |node| (node != self.node).then(|| self.link(self.node, node).0);
        (0..self.nodes.len()).map(to).collect()
    }

    /// Returns the other nodes that this PE sends to and receives from for its own.
    fn served(&self) -> impl Iterator<Item = usize> {
        let own = self.nodes[self.node].len();
        (0..self.nodes.len()).filter(move |node| *node != self.node && node % own == self.number)
    }

    /// Returns the rings of this PE.
    pub fn sends(&self) -> Vec<Link> {
        let link = |node| {
            let (Route { ring, receiver, .. }, inbox) = self.link(self.node, node);
            Link { ring, inbox, peer: receiver, node }
        };
        self.served().map(link).collect()
    }

    /// Returns the inboxes of this PE.
    pub fn receives(&self) -> Vec<Link> {
        let link = |node| {
            let (Route { ring, rail, .. }, inbox) = self.link(node, self.node);
            Link { ring, inbox, peer: rail, node }
        };
        self.served().map(link).collect()
    }

    /// Returns where each member is.
    pub fn members(&self) -> Vec<abi::AggregateMember> {
        let count = self.nodes.iter().map(Vec::len).sum();
        let mut members = vec![abi::AggregateMember { node: 0, number: 0 }; count];
        for (node, list) in (0..).zip(self.nodes) {
            for (number, member) in (0..).zip(list) {
                members[*member] = abi::AggregateMember { node, number };
            }
        }
        members
    }

    /// Returns the members of this PE's node.
    pub fn own_node(&self) -> &[usize] {
        &self.nodes[self.node]
    }

    /// Returns how many nodes there are.
    pub fn count(&self) -> u32 {
        count32(self.nodes.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every pair of nodes has one ring and one inbox, whose owners agree on both.
    #[test]
    fn both_ends_of_a_pair_of_nodes_agree() {
        let capacity = 16 * 1024;
        let cases: [&[usize]; 5] = [&[2, 2], &[1, 1, 1], &[3, 1, 2, 2], &[8, 8, 8, 8], &[2, 5, 1, 1, 1, 1, 1]];
        for sizes in cases {
            let mut next = 0..;
            let nodes: Vec<Vec<usize>> = sizes.iter().map(|size| next.by_ref().take(*size).collect()).collect();
            let all: Vec<Seats<'_>> = (0..sizes.iter().sum()).map(|me| Seats::new(&nodes, me, capacity)).collect();
            let mut pairs = 0;
            for (me, seats) in all.iter().enumerate() {
                let bytes = seats.bytes();
                let mut offsets = Vec::new();
                for send in seats.sends() {
                    let back = all[send.peer].receives();
                    let back: Vec<&Link> = back.iter().filter(|link| link.node == seats.node).collect();
                    let [back] = back[..] else { panic!("{} inboxes", back.len()) };
                    assert_eq!((back.ring, back.inbox, back.peer), (send.ring, send.inbox, me));
                    let route = all[me].routes()[send.node];
                    assert_eq!(route, Some(Route { ring: send.ring, rail: me, receiver: send.peer }));
                    offsets.push((send.ring, seats.ring_bytes()));
                    pairs += 1;
                }
                offsets.extend(seats.receives().iter().map(|link| (link.inbox, seats.inbox_bytes())));
                offsets.sort_unstable();
                for pair in offsets.windows(2) {
                    assert!(pair[0].0 + pair[0].1 <= pair[1].0, "rings and inboxes overlap");
                }
                assert!(offsets.last().is_none_or(|(at, length)| at + length <= bytes));
                let member = seats.members()[me];
                assert_eq!((member.node as usize, member.number as usize), (seats.node, seats.number));
            }
            assert_eq!(pairs, sizes.len() * (sizes.len() - 1));
        }
    }
}
