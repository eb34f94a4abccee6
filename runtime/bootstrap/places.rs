//! Where ranks are, for messages about those that are missing.

use std::collections::BTreeSet;

use super::text::list;

/// Nodes that a message names.
const SHOWN: usize = 4;

/// Where a launcher has put the ranks of a job, as far as it says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[doc(hidden)]
pub enum Places {
    /// It does not say, or all are on one node.
    #[default]
    Unknown,
    /// The node of each rank.
    ByRank(Vec<String>),
    /// The nodes, and not which ranks are on which.
    Nodes(Vec<String>),
}

impl Places {
    /// Returns what is known of where these ranks are: what follows their numbers, and what follows
    /// the sentence. `here` are the hosts of those that have joined.
    pub(super) fn of_missing<'a>(&self, absent: &[u32], here: impl Iterator<Item = &'a str>) -> (String, String) {
        match self {
            Self::Unknown => {
                let here: BTreeSet<&str> = here.collect();
                let here: Vec<&str> = here.into_iter().collect();
                let rest = if here.len() > 1 { format!("; PEs of {} have", names(&here)) } else { String::new() };
                (String::new(), rest)
            }
            Self::ByRank(nodes) => (on(absent, |rank| nodes.get(rank as usize).map(String::as_str)), String::new()),
            Self::Nodes(nodes) => {
                // A host may call itself by its full name, or by its short one.
                let short = |name: &str| name.split('.').next().unwrap_or_default().to_owned();
                let here: BTreeSet<String> = here.map(short).collect();
                let empty: Vec<&str> =
                    nodes.iter().map(String::as_str).filter(|node| !here.contains(&short(node))).collect();
                let rest = match empty.len() {
                    0 => String::new(),
                    // The launcher has other names for the nodes than they have for themselves.
                    all if all == nodes.len() => String::new(),
                    1 => format!("; no PE of node {} has", empty[0]),
                    _ => format!("; no PE of nodes {} has", names(&empty)),
                };
                (String::new(), rest)
            }
        }
    }
}

/// Returns ` (on a)`, or ` (1 and 3 on a, 4 on b)`, for ranks some of whose nodes are known.
pub fn on<'a>(ranks: &[u32], node: impl Fn(u32) -> Option<&'a str>) -> String {
    let mut groups: Vec<(&str, Vec<u32>)> = Vec::new();
    for (rank, name) in ranks.iter().filter_map(|rank| Some((*rank, node(*rank)?))) {
        match groups.iter_mut().find(|(other, _)| *other == name) {
            Some((_, ranks)) => ranks.push(rank),
            None => groups.push((name, vec![rank])),
        }
    }
    let more =
        if groups.len() > SHOWN { format!(", others on {} more nodes", groups.len() - SHOWN) } else { String::new() };
    match &groups[..] {
        [] => String::new(),
        [(name, all)] if all.len() == ranks.len() => format!(" (on {name})"),
        _ => {
            let parts: Vec<String> =
                groups.iter().take(SHOWN).map(|(name, ranks)| format!("{} on {name}", list(ranks))).collect();
            format!(" ({}{more})", parts.join(", "))
        }
    }
}

/// Returns `a, b and 3 more`.
fn names(all: &[&str]) -> String {
    match all.split_last() {
        _ if all.len() > SHOWN => format!("{} and {} more", all[..SHOWN].join(", "), all.len() - SHOWN),
        Some((last, rest)) if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
        _ => all.concat(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_shown_with_their_nodes() {
        let nodes = ["a", "b", "b", "c", "d", "e"];
        let node = |rank: u32| nodes.get(rank as usize).copied();
        for (ranks, text) in [
            (&[1, 2][..], " (on b)"),
            (&[0, 1, 2], " (0 on a, 1 and 2 on b)"),
            (&[0, 9], " (0 on a)"),
            (&[9], ""),
            (&[0, 1, 3, 4, 5], " (0 on a, 1 on b, 3 on c, 4 on d, others on 1 more nodes)"),
        ] {
            assert_eq!(on(ranks, node), text);
        }
    }

    #[test]
    fn nodes_without_a_pe_are_shown() {
        let nodes = Places::Nodes(["n1.example", "n2", "n3"].map(str::to_owned).into());
        let rest = |here: &[&str]| nodes.of_missing(&[0], here.iter().copied()).1;
        assert_eq!(rest(&["n1", "n2", "n3.example"]), "");
        assert_eq!(rest(&["n1", "n2"]), "; no PE of node n3 has");
        assert_eq!(rest(&["n2"]), "; no PE of nodes n1.example and n3 has");
        assert_eq!(rest(&["vm7"]), "");
        let unknown = |here: &[&str]| Places::Unknown.of_missing(&[0], here.iter().copied()).1;
        assert_eq!((unknown(&["n1", "n1"]), unknown(&["n2", "n1"])), (String::new(), "; PEs of n1 and n2 have".into()));
    }
}
