//! The nodes of a team, for collectives in two levels: sets of members that reach each other by
//! load and store.

use crate::transport::PeerAccess;

/// The nodes of a team.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TeamNodes {
    /// The members of each node by their numbers in the team, ascending.
    nodes: Vec<Vec<usize>>,
}

/// Where a member is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Seat {
    /// Its node.
    pub node: usize,
    /// Its number among the members of the node.
    pub number: usize,
}

impl TeamNodes {
    /// Returns the nodes of the team of these PEs. Every member gets the same.
    pub fn new(pes: &[usize], reach: &PeerAccess) -> Self {
        Self { nodes: reach.cliques(pes) }
    }

    /// Returns the members of each node by their numbers in the team, ascending.
    pub fn lists(&self) -> &[Vec<usize>] {
        &self.nodes
    }

    /// Returns how many nodes there are.
    pub fn count(&self) -> usize {
        self.nodes.len()
    }

    /// Returns how many members the smallest node has.
    pub fn rails(&self) -> usize {
        self.nodes.iter().map(Vec::len).min().unwrap_or_default()
    }

    /// Returns where a member is.
    pub(super) fn seat(&self, member: usize) -> Seat {
        let mut seats = self.nodes.iter().enumerate().filter_map(|(node, members)| {
            Some(Seat { node, number: members.iter().position(|other| *other == member)? })
        });
        seats.next().unwrap_or_default()
    }

    /// Returns what [`abi::Team::nodes`](crate::abi::Team::nodes) points to: where each node
    /// begins among the members, the end, and the members node by node.
    pub fn table(&self) -> Vec<i32> {
        let int = |number: usize| i32::try_from(number).unwrap_or(i32::MAX);
        let mut starts = vec![0];
        let mut members = Vec::new();
        for node in &self.nodes {
            members.extend(node.iter().copied().map(int));
            starts.push(int(members.len()));
        }
        starts.extend(members);
        starts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_found_node_by_node() {
        let nodes = TeamNodes { nodes: vec![vec![0, 3], vec![1, 2, 4]] };
        assert_eq!((nodes.count(), nodes.rails()), (2, 2));
        assert_eq!(nodes.table(), [0, 2, 5, 0, 3, 1, 2, 4]);
        assert_eq!(nodes.seat(3), Seat { node: 0, number: 1 });
        assert_eq!(nodes.seat(4), Seat { node: 1, number: 2 });
    }
}
