//! Which algorithm carries out a collective: a table by collective, reach and size, which `OXSHMEM_COLLECTIVES` overrides.

use std::fmt::{self, Write as _};
use std::str::FromStr;

use crate::abi::Algorithm::{self, Packets, Push, Tree};
use crate::abi::{self, CHOICES, COLLECTIVES, Choice, Collective};
use crate::config::size::ByteSize;

/// Every collective that has a choice, with its name.
const NAMES: [(Collective, &str); COLLECTIVES] = [
    (Collective::Broadcast, "broadcast"),
    (Collective::Collect, "collect"),
    (Collective::Fcollect, "fcollect"),
    (Collective::Alltoall, "alltoall"),
    (Collective::Alltoalls, "alltoalls"),
    (Collective::Reduce, "reduce"),
    (Collective::Reducescatter, "reducescatter"),
];

/// Every algorithm, with its name.
const ALGORITHMS: [(Algorithm, &str); 3] = [(Packets, "packets"), (Push, "push"), (Tree, "tree")];

/// Up to so many bytes, this.
type Step = (u64, Algorithm);

const ANY: u64 = u64::MAX;
const KIB: u64 = 1 << 10;

/// What is used where all members reach each other by load and store and are at most [`abi::ONE_ROUND_PES`] (`near`), and elsewhere
/// (`far`). Sizes are those of `Choice` in `abi.h`: the destination's for broadcast and reduce, one member's part for the others.
/// Packets are used up to what the workspace holds, whatever the table says; see [`packet_limit`]. Measured on two H200s: where the two
/// algorithms cross, in the scope of a block.
const TABLE: [(Collective, &[Step], &[Step]); COLLECTIVES] = [
    //                           near                              far
    (Collective::Broadcast, &[(8 * KIB, Packets), (ANY, Push)], &[(64 * KIB, Tree), (ANY, Push)]),
    (Collective::Collect, &[(4 * KIB, Packets), (ANY, Push)], &[(ANY, Push)]),
    (Collective::Fcollect, &[(8 * KIB, Packets), (ANY, Push)], &[(ANY, Push)]),
    (Collective::Alltoall, &[(8 * KIB, Packets), (ANY, Push)], &[(ANY, Push)]),
    (Collective::Alltoalls, &[(32, Packets), (ANY, Push)], &[(ANY, Push)]),
    (Collective::Reduce, &[(8 * KIB, Packets), (ANY, Push)], &[(8 * KIB, Tree), (ANY, Push)]),
    (Collective::Reducescatter, &[(8 * KIB, Packets), (ANY, Push)], &[(ANY, Push)]),
];

/// Bytes that a member may send to each of the `n_pes` members of a team in packets: each data word of 4 bytes takes 8, and each sender
/// has its share of the receiver's workspace.
fn packet_limit(n_pes: usize) -> u64 {
    abi::PACKET_BYTES / 2 / n_pes.max(1) as u64 / 8 * 8
}

/// Whether device code has the algorithm for the collective.
fn exists(collective: Collective, algorithm: Algorithm) -> bool {
    algorithm != Tree || matches!(collective, Collective::Broadcast | Collective::Reduce)
}

/// What `OXSHMEM_COLLECTIVES` says: for some collectives, which algorithms to use up to which size.
///
/// Written as `fcollect=push,broadcast=packets:4K/tree`: after the collective's name up to three algorithms separated by `/`, with ascending
/// sizes; only the last may be without one. `push` is what is used beyond the last size. Entries that a team
/// cannot use (`packets` where not all members reach each other by load and store) are skipped for that team.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Collectives(Vec<(Collective, Vec<Step>)>);

impl FromStr for Collectives {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::parse(text).ok_or_else(|| format!("'{text}': not a choice of algorithms"))
    }
}

impl Collectives {
    fn parse(text: &str) -> Option<Self> {
        let mut all = Self::default();
        for item in text.split(',').filter(|_| !text.is_empty()) {
            let (name, steps) = item.split_once('=')?;
            let collective = NAMES.iter().find(|(_, known)| *known == name)?.0;
            if all.0.iter().any(|(other, _)| *other == collective) {
                return None;
            }
            let steps = steps.split('/').map(step).collect::<Option<Vec<_>>>()?;
            let ascending = steps.windows(2).all(|pair| pair[0].0 < pair[1].0);
            if !ascending || steps.len() > CHOICES || !steps.iter().all(|(_, algorithm)| exists(collective, *algorithm))
            {
                return None;
            }
            all.0.push((collective, steps));
        }
        Some(all)
    }
}

/// `packets:4K` or `push`.
fn step(text: &str) -> Option<Step> {
    let (name, limit) = match text.split_once(':') {
        Some((name, size)) => (name, size.parse::<ByteSize>().ok().filter(|size| size.0 < ANY)?.0),
        None => (text, ANY),
    };
    ALGORITHMS.iter().find(|(_, known)| *known == name).map(|(algorithm, _)| (limit, *algorithm))
}

impl fmt::Display for Collectives {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (collective, steps)) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { "," };
            write!(f, "{separator}{}=", name(*collective))?;
            write_steps(f, steps)?;
        }
        Ok(())
    }
}

fn name(collective: Collective) -> &'static str {
    NAMES.iter().find(|(known, _)| *known == collective).map_or("", |(_, name)| name)
}

fn write_steps(f: &mut impl fmt::Write, steps: &[Step]) -> fmt::Result {
    for (index, (limit, algorithm)) in steps.iter().enumerate() {
        let name = ALGORITHMS.iter().find(|(known, _)| known == algorithm).map_or("", |(_, name)| name);
        write!(f, "{}{name}", if index == 0 { "" } else { "/" })?;
        if *limit != ANY {
            write!(f, ":{}", ByteSize(*limit))?;
        }
    }
    Ok(())
}

/// What a team of `n_pes` members uses.
fn steps(collective: Collective, near: bool, n_pes: usize, overrides: &Collectives) -> Vec<Step> {
    let given = overrides.0.iter().find(|(known, _)| *known == collective).map(|(_, steps)| &steps[..]);
    let table = TABLE.iter().find(|(known, ..)| *known == collective);
    let chosen = given.or(table.map(|(_, near_steps, far_steps)| if near { *near_steps } else { *far_steps }));
    let mut steps: Vec<Step> = Vec::new();
    for (limit, algorithm) in chosen.unwrap_or_default() {
        match algorithm {
            Packets if !near => {}
            Packets => steps.push(((*limit).min(packet_limit(n_pes)), Packets)),
            _ => steps.push((*limit, *algorithm)),
        }
    }
    // Beyond the last is push, so that at the end says nothing.
    if steps.last().is_none_or(|(limit, _)| *limit != ANY) {
        steps.push((ANY, Push));
    }
    steps
}

/// The rows of [`abi::Team::choices`] for a team of `n_pes` members; `near` if it is [`abi::Team::one_round`].
pub(crate) fn choices(near: bool, n_pes: usize, overrides: &Collectives) -> [[Choice; CHOICES]; COLLECTIVES] {
    // What is beyond a row's steps is push.
    let mut rows = [[choice((ANY, Push)); CHOICES]; COLLECTIVES];
    for (collective, _) in NAMES {
        let row = &mut rows[collective as usize];
        for (entry, step) in row.iter_mut().zip(steps(collective, near, n_pes, overrides)) {
            *entry = choice(step);
        }
    }
    rows
}

fn choice((up_to_bytes, algorithm): Step) -> Choice {
    Choice { up_to_bytes, algorithm: algorithm as u32, reserved0: 0 }
}

/// What a team of `n_pes` members uses, as `OXSHMEM_COLLECTIVES` would say it.
pub(crate) fn describe(near: bool, n_pes: usize, overrides: &Collectives) -> String {
    let mut text = String::new();
    for (index, (collective, name)) in NAMES.iter().enumerate() {
        // Writing to a string does not fail.
        let _ = write!(text, "{}{name}=", if index == 0 { "" } else { "," });
        let _ = write_steps(&mut text, &steps(*collective, near, n_pes, overrides));
    }
    text
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_order_and_names_what_exists() {
        for (index, (collective, near, far)) in TABLE.iter().enumerate() {
            assert_eq!(*collective as usize, index);
            assert_eq!(NAMES[index].0, *collective);
            for steps in [near, far] {
                assert!(steps.windows(2).all(|pair| pair[0].0 < pair[1].0) && steps.last().unwrap().0 == ANY);
                assert!(steps.len() <= CHOICES && steps.iter().all(|(_, algorithm)| exists(*collective, *algorithm)));
            }
            assert!(far.iter().all(|(_, algorithm)| *algorithm != Packets), "packets need load and store");
        }
        for (index, (algorithm, _)) in ALGORITHMS.iter().enumerate() {
            assert_eq!(*algorithm as usize, index);
        }
    }

    #[test]
    fn what_is_read_is_what_is_written() {
        for text in
            ["", "fcollect=push", "fcollect=push,broadcast=packets:4K/tree", "reduce=packets:512/tree:64K/push:1M"]
        {
            assert_eq!(text.parse::<Collectives>().unwrap().to_string(), text);
        }
        for text in [
            ",",
            "fcollect",
            "fcollect=",
            "fcollect=put",
            "gather=push",
            "fcollect=push,fcollect=push",
            "fcollect=tree",
            "push",
            "reduce=packets:4K/tree:4K",
            "reduce=packets/tree",
            "reduce=packets:",
            "reduce=packets:x",
            "reduce=packets:1/tree:2/push:3/tree",
            "reduce=packets:18446744073709551615",
            " reduce=push",
            "reduce=push,",
        ] {
            assert!(text.parse::<Collectives>().is_err(), "{text}");
        }
    }

    #[test]
    fn packets_are_used_where_they_can_be() {
        let overrides: Collectives = "broadcast=packets:1M/tree:2M,reduce=packets".parse().unwrap();
        let row = |near, n_pes, collective: Collective| {
            choices(near, n_pes, &overrides)[collective as usize].map(|entry| (entry.up_to_bytes, entry.algorithm))
        };
        let (packets, push, tree) = (Packets as u32, Push as u32, Tree as u32);
        assert_eq!(row(true, 8, Collective::Broadcast), [(2048, packets), (2 << 20, tree), (ANY, push)]);
        assert_eq!(row(false, 8, Collective::Broadcast), [(2 << 20, tree), (ANY, push), (ANY, push)]);
        assert_eq!(row(true, 2, Collective::Reduce), [(8192, packets), (ANY, push), (ANY, push)]);
        assert_eq!(row(false, 2, Collective::Reduce), [(ANY, push); 3]);
        assert_eq!(row(true, 64, Collective::Fcollect)[0], (256, packets));
        let text = describe(false, 4, &overrides);
        assert!(text.starts_with("broadcast=tree:2M/push,collect=push,"), "{text}");
        assert!(describe(true, 4, &overrides).contains("reduce=packets:4K/push"));
    }
}
