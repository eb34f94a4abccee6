//! Which algorithm carries out a collective: a table by collective, reach and size, which
//! `OXSHMEM_COLLECTIVES` overrides.

use std::fmt::{self, Write as _};
use std::str::FromStr;

use crate::abi::Algorithm::{self, CopyEngines, Levels, OneShot, Packets, Push, Relay, Tree};
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
const ALGORITHMS: [(Algorithm, &str); 7] = [
    (Packets, "packets"),
    (Push, "push"),
    (Tree, "tree"),
    (OneShot, "oneshot"),
    (Levels, "levels"),
    (Relay, "relay"),
    (CopyEngines, "copy"),
];

/// The algorithm up to this many bytes.
type Step = (u64, Algorithm);
/// The same as a user, or a file, has chosen it; `None` leaves these sizes to the library.
type Chosen = (u64, Option<Algorithm>);

/// The name of what leaves sizes to the library.
const LIBRARY: &str = "library";

const ANY: u64 = u64::MAX;
const KIB: u64 = 1 << 10;

/// What is used where all members reach each other by load and store and are at most
/// [`abi::ONE_ROUND_PES`] (`near`), and elsewhere (`far`), where levels have fewer messages and
/// bytes than push but for alltoall, of which short ones leave the further blocks nothing to do.
/// Sizes are those of `Choice` in `abi.h`: the destination's for broadcast and reduce, one member's
/// part for the others. Packets are used up to what the workspace holds, whatever the table says;
/// see [`packet_limit`]. Measured on two H200s: where the two algorithms cross, in the scope of a
/// block.
const TABLE: [(Collective, &[Step], &[Step]); COLLECTIVES] = [
    //                           near                              far
    (Collective::Broadcast, &[(8 * KIB, Packets), (ANY, Push)], &[(64 * KIB, Tree), (ANY, Levels)]),
    (Collective::Collect, &[(4 * KIB, Packets), (ANY, Push)], &[(ANY, Levels)]),
    (Collective::Fcollect, &[(8 * KIB, Packets), (ANY, Push)], &[(ANY, Levels)]),
    (Collective::Alltoall, &[(8 * KIB, Packets), (ANY, Push)], &[(64 * KIB, Push), (ANY, Levels)]),
    (Collective::Alltoalls, &[(32, Packets), (ANY, Push)], &[(ANY, Levels)]),
    (Collective::Reduce, &[(8 * KIB, Packets), (ANY, Push)], &[(8 * KIB, Tree), (ANY, Levels)]),
    (Collective::Reducescatter, &[(8 * KIB, Packets), (ANY, Push)], &[(ANY, Levels)]),
];

/// Returns the bytes that a member may send to each of the `n_pes` members of a team in packets:
/// each data word of 4 bytes takes 8, and each sender has its share of the receiver's workspace.
fn packet_limit(n_pes: usize) -> u64 {
    abi::PACKET_BYTES / 2 / n_pes.max(1) as u64 / 8 * 8
}

/// Returns whether device code has the algorithm for the collective.
fn exists(collective: Collective, algorithm: Algorithm) -> bool {
    match algorithm {
        Packets | Push | Levels => true,
        Tree | Relay => matches!(collective, Collective::Broadcast | Collective::Reduce),
        OneShot => collective == Collective::Reduce,
        CopyEngines => matches!(collective, Collective::Broadcast | Collective::Fcollect | Collective::Alltoall),
    }
}

/// What of a team decides which algorithms it can use.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    /// All members reach each other by load and store, and are at most [`abi::ONE_ROUND_PES`].
    pub near: bool,
    pub n_pes: usize,
    /// Sets of members that reach each other by load and store.
    pub nodes: usize,
    /// Blocks that have room in the workspace.
    pub blocks: u32,
    /// No two members share a device.
    pub own_devices: bool,
}

impl Shape {
    /// Returns the shape of a team whose members may share devices.
    pub(crate) fn new(n_pes: usize, nodes: usize, blocks: u32) -> Self {
        Self { near: nodes == 1 && n_pes <= abi::ONE_ROUND_PES, n_pes, nodes, blocks, own_devices: false }
    }

    /// Returns whether the host can carry out a collective in levels: between several nodes, where
    /// what passes through a block's workspace has room there.
    fn has_levels(self, collective: Collective) -> bool {
        /// The least bytes of a message of sums, and of one of strided elements, that a workspace
        /// has to have room for.
        const LEAST: u64 = 128;
        const LEAST_STRIDED: u64 = 64;
        let room = abi::levels_room(self.n_pes as u64, self.blocks.into());
        let members = self.n_pes as u64;
        // Two pieces are on their way, each with what has come and what goes out.
        let has_places = |senders: u64, least: u64| room >= 4 * senders * least;
        let has_room = match collective {
            Collective::Reduce | Collective::Reducescatter => has_places((self.nodes as u64).saturating_sub(1), LEAST),
            Collective::Alltoalls => has_places(members, LEAST_STRIDED),
            // A length and a beginning of each member, and their sum.
            Collective::Collect => room >= 8 * (2 * members + 1),
            Collective::Broadcast | Collective::Fcollect | Collective::Alltoall => true,
        };
        self.nodes > 1 && has_room
    }
}

/// What `OXSHMEM_COLLECTIVES` says: for some collectives, which algorithms to use up to which size.
///
/// Written as `fcollect=push,broadcast=packets:4K/tree`: after the collective's name up to three
/// algorithms separated by `/`, with ascending sizes; only the last may be without one. `push` is
/// what is used beyond the last size. `library`, in place of an algorithm or after three, leaves
/// sizes to the library, as if nothing were said of them: `reduce=packets:16K/push:1M/library`.
/// Entries that a team cannot use are skipped for that team:
/// `packets`, `oneshot` and `copy` where not all members reach each other by load and store or they
/// are more than 64, `relay` there and between two members, `levels` where all members are of one
/// node or the workspace has no room for it, and `tree` for `reduce` of members that reach each
/// other.
///
/// ```
/// use oxshmem::{Collectives, Config};
///
/// let choice: Collectives = "fcollect=push,broadcast=packets:4K/tree".parse().unwrap();
/// let config = Config::builder().collectives(choice).build()?;
/// # drop(config);
/// # Ok::<(), oxshmem::Error>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Collectives(Vec<(Collective, Vec<Chosen>)>);

impl FromStr for Collectives {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::parse(text).ok_or_else(|| format!("'{text}': not a choice of algorithms"))
    }
}

impl Collectives {
    /// Returns what a team uses beside the table: this choice, which is the user's; then, if no
    /// multiprocessor is to move data (`sms` is 0), copy engines; then what was `measured`.
    pub(crate) fn in_use(&self, sms: u32, measured: &Self) -> Self {
        let able = NAMES.iter().filter(|(collective, _)| sms == 0 && exists(*collective, CopyEngines));
        let engines = Self(able.map(|(collective, _)| (*collective, vec![(ANY, Some(CopyEngines))])).collect());
        self.or(&engines).or(measured)
    }

    /// Returns this choice, and that of `other` for collectives of which it says nothing.
    pub(crate) fn or(&self, other: &Self) -> Self {
        let has = |collective| self.0.iter().any(|(known, _)| *known == collective);
        let more = other.0.iter().filter(|(collective, _)| !has(*collective));
        Self(self.0.iter().chain(more).cloned().collect())
    }

    /// Returns whether both say something of the same collectives, in the same order.
    pub(crate) fn is_of_same(&self, other: &Self) -> bool {
        self.0.iter().map(|(collective, _)| collective).eq(other.0.iter().map(|(collective, _)| collective))
    }

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
            let algorithms = || steps.iter().filter_map(|(_, algorithm)| *algorithm);
            let number = algorithms().count();
            if !ascending
                || !(1..=CHOICES).contains(&number)
                || !algorithms().all(|algorithm| exists(collective, algorithm))
            {
                return None;
            }
            all.0.push((collective, steps));
        }
        Some(all)
    }
}

/// Parses `packets:4K`, `push` or `library`.
fn step(text: &str) -> Option<Chosen> {
    let (name, limit) = match text.split_once(':') {
        Some((name, size)) => (name, size.parse::<ByteSize>().ok().filter(|size| size.0 < ANY)?.0),
        None => (text, ANY),
    };
    let algorithm = ALGORITHMS.iter().find(|(_, known)| *known == name).map(|(algorithm, _)| *algorithm);
    (algorithm.is_some() || name == LIBRARY).then_some((limit, algorithm))
}

impl fmt::Display for Collectives {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (collective, steps)) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { "," };
            write!(f, "{separator}{}=", name(*collective))?;
            write_steps(f, steps.iter().copied())?;
        }
        Ok(())
    }
}

fn name(collective: Collective) -> &'static str {
    NAMES.iter().find(|(known, _)| *known == collective).map_or("", |(_, name)| name)
}

fn write_steps(f: &mut impl fmt::Write, steps: impl Iterator<Item = Chosen>) -> fmt::Result {
    for (index, (limit, algorithm)) in steps.enumerate() {
        let name = ALGORITHMS.iter().find(|(known, _)| Some(*known) == algorithm).map_or(LIBRARY, |(_, name)| name);
        write!(f, "{}{name}", if index == 0 { "" } else { "/" })?;
        if limit != ANY {
            write!(f, ":{}", ByteSize(limit))?;
        }
    }
    Ok(())
}

/// Returns the steps that are chosen for a collective, with those of the library for all sizes that
/// are left to it.
fn chosen(collective: Collective, overrides: &Collectives, of_library: &[Step]) -> Vec<Step> {
    let Some((_, given)) = overrides.0.iter().find(|(known, _)| *known == collective) else {
        return of_library.to_vec();
    };
    let mut steps = Vec::new();
    let mut before = 0;
    for &(limit, algorithm) in given {
        match algorithm {
            Some(algorithm) => steps.push((limit, algorithm)),
            None => {
                let first = of_library.iter().position(|(end, _)| *end > before).unwrap_or(of_library.len());
                let last = of_library.iter().position(|(end, _)| *end >= limit).unwrap_or(of_library.len());
                let within = of_library.iter().take(last.saturating_add(1)).skip(first);
                steps.extend(within.map(|(end, algorithm)| (limit.min(*end), *algorithm)));
            }
        }
        before = limit;
    }
    steps
}

/// Returns what a team uses; packets are not limited by the workspace yet.
fn steps(collective: Collective, shape: Shape, overrides: &Collectives) -> Vec<Step> {
    let near = shape.near;
    let table = TABLE.iter().find(|(known, ..)| *known == collective);
    let of_library = table.map_or(&[][..], |(_, near_steps, far_steps)| if near { *near_steps } else { *far_steps });
    let mut steps: Vec<Step> = Vec::new();
    for (limit, algorithm) in &chosen(collective, overrides, of_library) {
        match algorithm {
            Packets | OneShot | CopyEngines if !near => {}
            Relay if !near || shape.n_pes < 3 => {}
            // It leaves data in the places of packets, which could look like packets.
            Tree if near && collective == Collective::Reduce => {}
            Levels if !shape.has_levels(collective) => {}
            _ => steps.push((*limit, *algorithm)),
        }
    }
    // Beyond the last is push, so that at the end says nothing.
    if steps.last().is_none_or(|(limit, _)| *limit != ANY) {
        steps.push((ANY, Push));
    }
    steps
}

/// Returns the same for a group of threads, which has the workspace of one block: up to that it
/// sends packets, even where the host's blocks relay them.
fn steps_of_block(collective: Collective, shape: Shape, overrides: &Collectives) -> Vec<Step> {
    let mut within: Vec<Step> = Vec::new();
    for (limit, algorithm) in steps(collective, shape, overrides).into_iter().chain([(ANY, Push)]) {
        let algorithm = if algorithm == Relay { Packets } else { algorithm };
        let limit = if algorithm == Packets { limit.min(packet_limit(shape.n_pes)) } else { limit };
        // What is left of packets may be nothing beyond the step before.
        if within.last().is_none_or(|(before, _)| *before < limit) {
            within.push((limit, algorithm));
        }
    }
    within
}

/// Returns an entry of a row in device code, which does by push what the host does in levels or by
/// copy engines.
fn choice((up_to_bytes, algorithm): Step) -> Choice {
    let algorithm = if matches!(algorithm, Levels | CopyEngines) { Push } else { algorithm };
    Choice { up_to_bytes, algorithm: algorithm as u32, reserved0: 0 }
}

/// Returns what a team uses, as `OXSHMEM_COLLECTIVES` would say it.
pub(crate) fn describe(shape: Shape, overrides: &Collectives) -> String {
    let mut text = String::new();
    for (index, (collective, name)) in NAMES.iter().enumerate() {
        // Writing to a string does not fail.
        let _ = write!(text, "{}{name}=", if index == 0 { "" } else { "," });
        let steps = steps_of_block(*collective, shape, overrides);
        let _ = write_steps(&mut text, steps.into_iter().map(|(limit, algorithm)| (limit, Some(algorithm))));
    }
    text
}

/// How the host has a collective carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Plan {
    /// By the kernel of one block, which chooses the algorithm itself.
    OneBlock,
    /// By the kernel of several blocks: their number, and the algorithm.
    Blocks(u32, Algorithm),
    /// By the kernel of several blocks in two levels: their number.
    Levels(u32),
    /// By copy engines, between meetings.
    Copies,
}

/// The most threads of a block that is one of several: the bound of their kernel.
pub(crate) const BLOCKS_THREADS: u32 = 512;
/// Bytes that are worth a block of those that share a collective.
const BYTES_PER_BLOCK: u64 = 8 * KIB;
/// The same of those that share a collective in levels: each has messages of its own.
const BYTES_PER_LEVELS_BLOCK: u64 = 64 * KIB;
/// Blocks of a collect in levels, whatever is collected: members contribute different lengths, so
/// they could not agree on a number that depends on them.
const COLLECT_BLOCKS: u32 = 4;
/// Bytes of a member's message to another one that are worth a block of those that send packets.
const PACKETS_PER_BLOCK: u64 = 2 * KIB;
/// Bytes of a piece, of which shares have a whole number.
const PIECE: u64 = 16;
/// From how many bytes on a broadcast is long, between two members and between more, and the most
/// blocks that share it then. The others load from the root, and more blocks get less through:
/// between two H100s 256 MiB take 743 us with 16 blocks, 795 with 64, and 16 MiB take as long with
/// either.
const LONG_BROADCAST: [u64; 2] = [16 << 20, abi::LONG_BROADCAST];
const LONG_BROADCAST_BLOCKS: u32 = abi::LONG_BROADCAST_LANES / BLOCKS_THREADS;
/// From this many bytes on, of those that one member sends, members with devices of their own leave
/// an fcollect or an alltoall, and two members a broadcast, to copy engines, which get more through
/// a link than multiprocessors. H200s, in us, multiprocessors in parentheses: between two a
/// broadcast of 32 MiB takes 104 (99), of 128 MiB 364 (373) and of 1 GiB 2742 (2894), and an
/// fcollect of as much of each member 109 (104), 373 (383) and 2786 (2999); between four an
/// alltoall of 8 MiB to each member 93 (83), of 32 MiB 302 (309), and of 512 MiB 4173 (4717). In a
/// broadcast to several each of them passes its part on when it has all of that: between four 512
/// MiB take 2686 (1629). More than four were not measured. Copies to several members follow each
/// other, so each of them has to be long.
const COPIED_FROM: u64 = 96 << 20;
const COPIED_TO_EACH: u64 = 32 << 20;

/// How large a collective of the host is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Size {
    /// The collective, if several blocks can carry it out, and its bytes in the measure of
    /// [`TABLE`].
    pub divisible: Option<(Collective, u64)>,
    /// Bytes that one PE handles in all.
    pub total: u64,
}

/// What a team's collectives are chosen by on the host.
#[derive(Debug, Clone)]
pub(crate) struct Chooser {
    shape: Shape,
    rows: [Vec<Step>; COLLECTIVES],
    rows_of_block: [Vec<Step>; COLLECTIVES],
    /// What the user, or what was measured, says of the collective.
    overrides: [Option<Vec<Chosen>>; COLLECTIVES],
}

impl Chooser {
    pub(crate) fn new(shape: Shape, overrides: &Collectives) -> Self {
        Self {
            shape,
            rows: NAMES.map(|(collective, _)| steps(collective, shape, overrides)),
            rows_of_block: NAMES.map(|(collective, _)| steps_of_block(collective, shape, overrides)),
            overrides: NAMES.map(|(collective, _)| {
                overrides.0.iter().find(|(known, _)| *known == collective).map(|(_, steps)| steps.clone())
            }),
        }
    }

    /// Returns the rows of [`abi::Team::choices`].
    pub(crate) fn choices(&self) -> [[Choice; CHOICES]; COLLECTIVES] {
        // What is beyond a row's steps is push.
        let mut rows = [[choice((ANY, Push)); CHOICES]; COLLECTIVES];
        for (row, steps) in rows.iter_mut().zip(&self.rows_of_block) {
            for (entry, step) in row.iter_mut().zip(steps) {
                *entry = choice(*step);
            }
        }
        rows
    }

    /// Returns [`abi::Team::chosen`]: the collectives of which something is said, as bits. Kernels
    /// take that for all sizes, also for those that are left to the library.
    pub(crate) fn chosen(&self) -> u32 {
        (0..).zip(&self.overrides).fold(0, |bits, (index, row)| bits | u32::from(row.is_some()) << index)
    }

    /// Returns whether the library chooses for a collective of that many bytes.
    fn is_free(&self, collective: Collective, bytes: u64) -> bool {
        let Some(row) = &self.overrides[collective as usize] else { return true };
        row.iter().find(|(limit, _)| bytes <= *limit).is_some_and(|(_, algorithm)| algorithm.is_none())
    }

    /// Returns how a collective is carried out: the same on all members, whatever their addresses.
    pub(crate) fn plan(&self, size: Size) -> Plan {
        let Some((collective, bytes)) = size.divisible else { return Plan::OneBlock };
        if collective == Collective::Collect {
            // What is chosen for the longest data counts, again since lengths differ.
            let longest = self.rows[collective as usize].last().map(|(_, algorithm)| *algorithm);
            let blocks = self.shape.blocks.min(COLLECT_BLOCKS);
            return if longest == Some(Levels) { Plan::Levels(blocks) } else { Plan::OneBlock };
        }
        let sliced = self.packet_blocks(collective, bytes);
        let has_room = sliced.is_some() || bytes <= packet_limit(self.shape.n_pes);
        let mut steps = self.rows[collective as usize].iter().filter(|(limit, _)| bytes <= *limit);
        let relayed = self.relay_blocks(collective, bytes);
        let fitting = steps.find(|(_, algorithm)| match algorithm {
            Packets => has_room,
            Relay => relayed.is_some(),
            _ => true,
        });
        let algorithm = fitting.map_or(Push, |(_, algorithm)| *algorithm);
        let shared = |each: u64, most: u32| u32::try_from(size.total / each).unwrap_or(u32::MAX).clamp(1, most);
        if algorithm == Levels {
            return Plan::Levels(shared(BYTES_PER_LEVELS_BLOCK, self.shape.blocks.min(abi::LEVELS_BLOCKS)));
        }
        if !self.shape.near {
            return Plan::OneBlock;
        }
        let free = self.is_free(collective, bytes);
        if algorithm == CopyEngines || (free && self.leaves_to_engines(collective, bytes)) {
            return Plan::Copies;
        }
        let long = LONG_BROADCAST[usize::from(self.shape.n_pes > 2)];
        let goes_by_few = collective == Collective::Broadcast && bytes >= long;
        let most = if goes_by_few { LONG_BROADCAST_BLOCKS.min(self.shape.blocks) } else { self.shape.blocks };
        let shared = shared(BYTES_PER_BLOCK, most);
        let is_long = bytes >= abi::SHARED_FROM && self.shape.blocks >= abi::SHARED_BY;
        let one_shot = free && collective == Collective::Reduce && self.shape.n_pes == 2 && !is_long;
        let sent = self.sent(bytes);
        let relays = algorithm == Relay || free && sent > abi::RELAYED_FROM && bytes <= abi::BLOCKS_PACKETS;
        if let Some(blocks) = relayed.filter(|_| relays) {
            return Plan::Blocks(blocks, Relay);
        }
        match (algorithm, sliced) {
            (Packets, Some(blocks)) => Plan::Blocks(blocks, Packets),
            (Push, Some(blocks)) if free && bytes <= abi::BLOCKS_PACKETS => Plan::Blocks(blocks, Packets),
            (Push, _) if one_shot => Plan::Blocks(shared, OneShot),
            (Push | OneShot, _) => Plan::Blocks(shared, algorithm),
            (Packets | Tree | Levels | Relay | CopyEngines, _) => Plan::OneBlock,
        }
    }

    /// Returns how many bytes a member sends to all others that has so many for each.
    fn sent(&self, bytes: u64) -> u64 {
        bytes.saturating_mul(self.shape.n_pes as u64 - 1)
    }

    /// Returns whether copy engines are faster.
    fn leaves_to_engines(&self, collective: Collective, bytes: u64) -> bool {
        let Shape { n_pes, own_devices, .. } = self.shape;
        let gains = match collective {
            Collective::Broadcast => n_pes == 2,
            Collective::Fcollect | Collective::Alltoall => true,
            _ => false,
        };
        gains && own_devices && bytes >= COPIED_TO_EACH && self.sent(bytes) >= COPIED_FROM
    }

    /// Returns how many blocks send so many bytes in packets, if they have room for them.
    fn packet_blocks(&self, collective: Collective, bytes: u64) -> Option<u32> {
        // Half of what a block sends is flags.
        let room = u64::from(abi::block_share(self.shape.n_pes)) / 2;
        let most = self.shape.blocks;
        let fits = room != 0 && collective != Collective::Alltoalls && bytes <= room * u64::from(most);
        let blocks = |each: u64| u32::try_from(bytes.div_ceil(each)).unwrap_or(u32::MAX).clamp(1, most);
        fits.then(|| blocks(PACKETS_PER_BLOCK.min(room)))
    }

    /// Returns how many blocks relay so many bytes, if the team can and they have room for its
    /// shares.
    fn relay_blocks(&self, collective: Collective, bytes: u64) -> Option<u32> {
        let members = self.shape.n_pes as u64;
        let shares = match collective {
            Collective::Reduce => members,
            Collective::Broadcast => members.saturating_sub(1),
            _ => return None,
        };
        let can = self.shape.near && members > 2;
        can.then(|| bytes.div_ceil(PIECE).div_ceil(shares) * PIECE)
            .and_then(|share| self.packet_blocks(collective, share))
    }
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
            assert!(near.iter().all(|(_, algorithm)| *algorithm != Levels), "levels are for several nodes");
        }
        for (index, (algorithm, _)) in ALGORITHMS.iter().enumerate() {
            assert_eq!(*algorithm as usize, index);
        }
    }

    #[test]
    fn what_is_read_is_what_is_written() {
        for text in [
            "",
            "reduce=tree:8K/levels",
            "fcollect=push",
            "fcollect=push,broadcast=packets:4K/tree",
            "reduce=packets:512/tree:64K/push:1M",
            "reduce=packets:512/tree:64K/push:1M/library",
            "fcollect=library:4K/push:1M/library",
        ] {
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
            "alltoalls=tree",
            "push",
            "reduce=packets:4K/tree:4K",
            "reduce=packets/tree",
            "reduce=packets:",
            "reduce=packets:x",
            "reduce=packets:1/tree:2/push:3/tree",
            "reduce=packets:18446744073709551615",
            " reduce=push",
            "reduce=push,",
            "reduce=library",
            "reduce=library:4K/library",
            "reduce=push/library",
            "reduce=push:8K/library:4K",
        ] {
            assert!(text.parse::<Collectives>().is_err(), "{text}");
        }
    }

    #[test]
    fn several_blocks_do_what_is_worth_it() {
        let chooser = |n_pes, overrides: &str| Chooser::new(Shape::new(n_pes, 1, 64), &overrides.parse().unwrap());
        let plan = |chooser: &Chooser, collective, bytes, total| {
            chooser.plan(Size { divisible: Some((collective, bytes)), total })
        };
        let two = chooser(2, "");
        assert_eq!(plan(&two, Collective::Reduce, 8, 8), Plan::Blocks(1, Packets));
        assert_eq!(plan(&two, Collective::Reduce, 0, 0), Plan::Blocks(1, Packets));
        assert_eq!(plan(&two, Collective::Reduce, 4 * KIB, 4 * KIB), Plan::Blocks(2, Packets));
        assert_eq!(plan(&two, Collective::Reduce, 64 * KIB, 64 * KIB), Plan::Blocks(32, Packets));
        assert_eq!(plan(&two, Collective::Reduce, 128 * KIB, 128 * KIB), Plan::Blocks(64, Packets));
        assert_eq!(plan(&two, Collective::Reduce, 512 * KIB, 512 * KIB), Plan::Blocks(64, Packets));
        assert_eq!(plan(&two, Collective::Reduce, 513 * KIB, 513 * KIB), Plan::Blocks(64, OneShot));
        let mib = 1 << 20;
        assert_eq!(plan(&two, Collective::Reduce, 2 * mib - 1, 2 * mib - 1), Plan::Blocks(64, OneShot));
        assert_eq!(plan(&two, Collective::Reduce, 2 * mib, 2 * mib), Plan::Blocks(64, Push));
        assert_eq!(plan(&two, Collective::Reduce, u64::MAX, u64::MAX), Plan::Blocks(64, Push));
        let few = Chooser::new(Shape::new(2, 1, 32), &Collectives::default());
        assert_eq!(plan(&few, Collective::Reduce, 2 * mib, 2 * mib), Plan::Blocks(32, OneShot));
        let three = chooser(3, "");
        assert_eq!(plan(&three, Collective::Reduce, 256 * KIB, 256 * KIB), Plan::Blocks(64, Packets));
        assert_eq!(plan(&three, Collective::Reduce, 257 * KIB, 257 * KIB), Plan::Blocks(43, Relay));
        assert_eq!(plan(&three, Collective::Reduce, 512 * KIB, 512 * KIB), Plan::Blocks(64, Relay));
        assert_eq!(plan(&three, Collective::Reduce, mib, mib), Plan::Blocks(64, Push));
        assert_eq!(plan(&three, Collective::Broadcast, 200 * KIB, 200 * KIB), Plan::Blocks(64, Packets));
        assert_eq!(plan(&three, Collective::Broadcast, 512 * KIB, 512 * KIB), Plan::Blocks(64, Relay));
        let default = Shape::new(4, 1, crate::config::Config::default().collectives_sms());
        let four = Chooser::new(default, &Collectives::default());
        let blocks = default.blocks;
        assert_eq!(plan(&four, Collective::Broadcast, 512 * KIB, 512 * KIB), Plan::Blocks(blocks, Relay));
        let eight = chooser(8, "");
        assert_eq!(plan(&eight, Collective::Reduce, 64 * KIB, 64 * KIB), Plan::Blocks(57, Packets));
        assert_eq!(plan(&eight, Collective::Reduce, 128 * KIB, 128 * KIB), Plan::Blocks(15, Relay));
        let relay = chooser(4, "reduce=relay:1K/push,broadcast=relay");
        assert_eq!(plan(&relay, Collective::Reduce, 64, 64), Plan::Blocks(1, Relay));
        assert_eq!(plan(&relay, Collective::Reduce, 2 * KIB, 2 * KIB), Plan::Blocks(1, Push));
        assert_eq!(plan(&relay, Collective::Broadcast, 510 * KIB, 510 * KIB), Plan::Blocks(64, Relay));
        assert_eq!(plan(&relay, Collective::Broadcast, mib, mib), Plan::Blocks(64, Push));
        assert_eq!(plan(&chooser(2, "reduce=relay"), Collective::Reduce, 64, 64), Plan::Blocks(1, Push));
        let engines = chooser(2, "alltoall=packets:64/copy,fcollect=copy");
        assert_eq!(plan(&engines, Collective::Alltoall, 64, 128), Plan::Blocks(1, Packets));
        assert_eq!(plan(&engines, Collective::Alltoall, 65, 130), Plan::Copies);
        assert_eq!(plan(&engines, Collective::Fcollect, 8, 16), Plan::Copies);
        assert_eq!(plan(&three, Collective::Broadcast, 2 * mib, 2 * mib), Plan::Blocks(64, Push));
        assert_eq!(plan(&three, Collective::Broadcast, 64 * mib, 64 * mib), Plan::Blocks(16, Push));
        assert_eq!(plan(&two, Collective::Reducescatter, 513 * KIB, 1026 * KIB), Plan::Blocks(64, Push));
        assert_eq!(plan(&two, Collective::Fcollect, 129 * KIB, 258 * KIB), Plan::Blocks(64, Packets));
        assert_eq!(plan(&two, Collective::Fcollect, 512 * KIB, mib), Plan::Blocks(64, Packets));
        assert_eq!(plan(&two, Collective::Fcollect, 513 * KIB, 1026 * KIB), Plan::Blocks(64, Push));
        assert_eq!(plan(&two, Collective::Alltoalls, 4 * KIB, 16 * KIB), Plan::Blocks(2, Push));
        assert_eq!(plan(&two, Collective::Broadcast, 8 * mib, 8 * mib), Plan::Blocks(64, Push));
        assert_eq!(plan(&two, Collective::Broadcast, u64::MAX, u64::MAX), Plan::Blocks(16, Push));
        assert_eq!(plan(&two, Collective::Fcollect, 64 * mib, 128 * mib), Plan::Blocks(64, Push));
        // Copy engines are faster with what is long, if each PE has a GPU.
        let own_devices = |n_pes, overrides: &str| {
            let shape = Shape { own_devices: true, ..Shape::new(n_pes, 1, 64) };
            Chooser::new(shape, &overrides.parse().unwrap())
        };
        let apart = own_devices(2, "broadcast=push");
        for collective in [Collective::Fcollect, Collective::Alltoall] {
            assert_eq!(plan(&apart, collective, 96 * mib, 192 * mib), Plan::Copies);
            assert_eq!(plan(&apart, collective, 96 * mib - 1, 192 * mib - 2), Plan::Blocks(64, Push));
            assert_eq!(plan(&two, collective, 96 * mib, 192 * mib), Plan::Blocks(64, Push));
            assert_eq!(plan(&own_devices(4, ""), collective, 32 * mib, 128 * mib), Plan::Copies);
            assert_eq!(plan(&own_devices(8, ""), collective, 32 * mib - 1, 256 * mib - 8), Plan::Blocks(64, Push));
            assert_eq!(plan(&own_devices(1, ""), collective, 128 * mib, 128 * mib), Plan::Blocks(64, Push));
        }
        assert_eq!(plan(&apart, Collective::Reducescatter, 128 * mib, 256 * mib), Plan::Blocks(64, Push));
        assert_eq!(plan(&apart, Collective::Broadcast, 128 * mib, 128 * mib), Plan::Blocks(16, Push));
        assert_eq!(plan(&own_devices(2, ""), Collective::Broadcast, 128 * mib, 128 * mib), Plan::Copies);
        assert_eq!(plan(&own_devices(4, ""), Collective::Broadcast, 128 * mib, 128 * mib), Plan::Blocks(16, Push));
        // A block has room for 128 bytes to each of 63 other members.
        let many = chooser(64, "");
        assert_eq!(plan(&many, Collective::Fcollect, 256, 256 * 64), Plan::Blocks(2, Packets));
        assert_eq!(plan(&many, Collective::Fcollect, 8 * KIB, 512 * KIB), Plan::Blocks(64, Packets));
        assert_eq!(plan(&many, Collective::Fcollect, 8 * KIB + 1, 513 * KIB), Plan::Blocks(64, Push));
        // What the user chooses stays.
        let chosen = chooser(2, "reduce=push,fcollect=packets,broadcast=tree");
        assert_eq!(plan(&chosen, Collective::Reduce, 64, 64), Plan::Blocks(1, Push));
        assert_eq!(plan(&chosen, Collective::Reduce, 64 * KIB, 64 * KIB), Plan::Blocks(8, Push));
        assert_eq!(plan(&chosen, Collective::Fcollect, 8 * KIB, 16 * KIB), Plan::Blocks(4, Packets));
        assert_eq!(plan(&chosen, Collective::Broadcast, mib, mib), Plan::OneBlock);
        // Members of which some are reached over the network.
        let far =
            |n_pes, nodes, overrides: &str| Chooser::new(Shape::new(n_pes, nodes, 64), &overrides.parse().unwrap());
        let two_nodes = far(4, 2, "");
        assert_eq!(plan(&two_nodes, Collective::Reduce, 8 * KIB, 8 * KIB), Plan::OneBlock);
        assert_eq!(plan(&two_nodes, Collective::Reduce, 64 * KIB, 64 * KIB), Plan::Levels(1));
        assert_eq!(plan(&two_nodes, Collective::Reduce, mib, mib), Plan::Levels(8));
        assert_eq!(plan(&two_nodes, Collective::Fcollect, 8, 32), Plan::Levels(1));
        assert_eq!(plan(&two_nodes, Collective::Alltoalls, mib, mib), Plan::Levels(8));
        assert_eq!(plan(&far(1000, 2, ""), Collective::Alltoalls, mib, mib), Plan::OneBlock);
        assert_eq!(plan(&far(4, 2, "reduce=push"), Collective::Reduce, mib, mib), Plan::OneBlock);
        // Members that collect different lengths use as many blocks, and one kernel.
        assert_eq!(
            [8, mib, u64::MAX].map(|bytes| plan(&two_nodes, Collective::Collect, bytes, bytes)),
            [Plan::Levels(4); 3]
        );
        assert_eq!([8, mib].map(|bytes| plan(&two, Collective::Collect, bytes, bytes)), [Plan::OneBlock; 2]);
        let steps = |text: &str| [8, mib].map(|bytes| plan(&far(4, 2, text), Collective::Collect, bytes, bytes));
        assert_eq!(steps("collect=push:64K/levels"), [Plan::Levels(4); 2]);
        assert_eq!(steps("collect=levels:64K"), [Plan::OneBlock; 2]);
        assert_eq!(plan(&far(100_000, 2, ""), Collective::Collect, mib, mib), Plan::OneBlock);
        // Sums of 1000 nodes have no room, and one node has nothing to send.
        assert_eq!(plan(&far(1000, 1000, ""), Collective::Reduce, mib, mib), Plan::OneBlock);
        assert_eq!(plan(&far(1000, 1000, ""), Collective::Fcollect, mib, mib), Plan::Levels(8));
        assert_eq!(plan(&far(1000, 1, "reduce=levels"), Collective::Reduce, mib, mib), Plan::OneBlock);
        assert_eq!(plan(&far(2, 1, "reduce=levels"), Collective::Reduce, mib, mib), Plan::Blocks(64, Push));
    }

    #[test]
    fn sizes_that_are_left_to_the_library_are_as_without_a_choice() {
        let mib = 1u64 << 20;
        let shape = |n_pes| Shape { own_devices: true, ..Shape::new(n_pes, 1, 64) };
        let plan = |n_pes, text: &str, collective, bytes| {
            let chooser = Chooser::new(shape(n_pes), &text.parse().unwrap());
            chooser.plan(Size { divisible: Some((collective, bytes)), total: bytes })
        };
        // Copy engines, relay, one-shot, and packets of several blocks.
        for (n_pes, collective, bytes) in [
            (2, Collective::Broadcast, 128 * mib),
            (4, Collective::Alltoall, 64 * mib),
            (4, Collective::Reduce, 512 * KIB),
            (2, Collective::Reduce, mib),
            (2, Collective::Fcollect, 256 * KIB),
        ] {
            let row = |rest: &str| format!("{}=push:64K{rest}", name(collective));
            let own = plan(n_pes, "", collective, bytes);
            assert_ne!(plan(n_pes, &row("/push"), collective, bytes), own, "{n_pes} PEs, {bytes} bytes");
            assert_eq!(plan(n_pes, &row("/library"), collective, bytes), own, "{n_pes} PEs, {bytes} bytes");
            assert_eq!(plan(n_pes, &row("/library"), collective, 64), Plan::Blocks(1, Push));
        }
        let first = |bytes| plan(2, "reduce=library:4K/push", Collective::Reduce, bytes);
        assert_eq!([64, 64 * KIB].map(first), [Plan::Blocks(1, Packets), Plan::Blocks(8, Push)]);
        // Kernels have the library's steps there, too.
        let of_block = |text: &str| describe(Shape::new(2, 1, 64), &text.parse().unwrap());
        assert!(
            of_block("broadcast=packets:1K/tree:2K/library").contains("broadcast=packets:1K/tree:2K/packets:8K/push")
        );
        assert!(
            of_block("broadcast=library:2K/tree:4K/library").contains("broadcast=packets:2K/tree:4K/packets:8K/push")
        );
        assert!(of_block("broadcast=library:64K/tree").contains("broadcast=packets:8K/push:64K/tree"));
        assert!(of_block("fcollect=push:16K/library").contains("fcollect=push:16K/push"));
    }

    #[test]
    fn packets_are_used_where_they_can_be() {
        let overrides: Collectives = "broadcast=packets:1M/tree:2M,reduce=packets".parse().unwrap();
        let shape = |near: bool, n_pes| Shape::new(n_pes, if near { 1 } else { 2 }, 64);
        let row = |near, n_pes, collective: Collective| {
            let rows = Chooser::new(shape(near, n_pes), &overrides).choices();
            rows[collective as usize].map(|entry| (entry.up_to_bytes, entry.algorithm))
        };
        let (packets, push, tree) = (Packets as u32, Push as u32, Tree as u32);
        assert_eq!(row(true, 8, Collective::Broadcast), [(2048, packets), (2 << 20, tree), (ANY, push)]);
        assert_eq!(row(false, 8, Collective::Broadcast), [(2 << 20, tree), (ANY, push), (ANY, push)]);
        assert_eq!(row(true, 2, Collective::Reduce), [(8192, packets), (ANY, push), (ANY, push)]);
        assert_eq!(row(false, 2, Collective::Reduce), [(ANY, push); 3]);
        assert_eq!(row(true, 64, Collective::Fcollect)[0], (256, packets));
        // The tree of reductions is for teams that the network connects.
        assert!(describe(shape(true, 4), &"reduce=tree".parse().unwrap()).contains("reduce=push"));
        assert!(describe(shape(false, 4), &"reduce=tree".parse().unwrap()).contains("reduce=tree"));
        let late: Collectives = "reduce=packets:1K/push:64K/packets".parse().unwrap();
        let rows = Chooser::new(shape(true, 2), &late).choices();
        let reduce = rows[Collective::Reduce as usize].map(|entry| (entry.up_to_bytes, entry.algorithm));
        assert_eq!(reduce, [(1024, packets), (65536, push), (ANY, push)]);
        let text = describe(shape(false, 4), &overrides);
        assert!(text.starts_with("broadcast=tree:2M/push,collect=levels,"), "{text}");
        assert!(describe(shape(true, 4), &overrides).contains("reduce=packets:4K/push"));
    }
}
