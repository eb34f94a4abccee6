//! Which algorithm carries out a collective: a table by collective, reach and size, which
//! `OXSHMEM_COLLECTIVES` overrides.

mod plans;

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

    /// Returns what of this choice, which was measured on streams, one block carries out there in
    /// teams that are `near` or not; the other sizes are left to the library. It says nothing of
    /// what several blocks are fastest with, and so nothing of kernels.
    fn of_one_block(&self, near: bool) -> Self {
        let kept = |collective, algorithm: &Algorithm| match algorithm {
            Tree => true,
            Packets => collective == Collective::Alltoalls,
            Push => !near,
            OneShot | Levels | Relay | CopyEngines => false,
        };
        let row = |(collective, steps): &(Collective, Vec<Chosen>)| {
            let beyond = steps.last().filter(|(limit, _)| *limit != ANY).map(|_| (ANY, Some(Push)));
            let left = |(limit, one): (u64, Option<Algorithm>)| (limit, one.filter(|one| kept(*collective, one)));
            let mut steps: Vec<Chosen> = steps.iter().copied().chain(beyond).map(left).collect();
            steps.dedup_by(|next, step| {
                let is_same = next.1 == step.1;
                step.0 = if is_same { next.0 } else { step.0 };
                is_same
            });
            (*collective, steps)
        };
        Self(self.0.iter().map(row).collect())
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
    /// A collect of near members: by the kernel of several blocks, which send contributions of up
    /// to `in_packets` bytes in packets.
    Collect { blocks: u32, in_packets: u64 },
}

/// The most threads of a block that is one of several: the bound of their kernel.
pub(crate) const BLOCKS_THREADS: u32 = 512;
/// Bytes that are worth a block of those that share a collective.
const BYTES_PER_BLOCK: u64 = 8 * KIB;
/// The same of those that share a collective in levels: each has messages of its own.
const BYTES_PER_LEVELS_BLOCK: u64 = 64 * KIB;
/// Blocks of a collect in levels, whatever is collected: members contribute different lengths, so
/// they could not agree on a number that depends on them.
const LEVELS_COLLECT_BLOCKS: u32 = 4;
/// The same of a collect of near members. A multiprocessor stores 42 to 46 GB/s, so as many store
/// more than NVLink carries, even between two members, where half of it goes to the PE's own
/// memory; and what is short pays for each block that meets in vain.
const COLLECT_BLOCKS: u32 = 32;
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
    /// The rows of one block, of the host or of a kernel.
    rows_of_block: [Vec<Step>; COLLECTIVES],
    /// What the user, or what was measured, says of the collective.
    overrides: [Option<Vec<Chosen>>; COLLECTIVES],
    /// [`abi::Team::chosen`].
    chosen: u32,
}

impl Chooser {
    /// Returns the choice of a team of some shape. `user` is what `OXSHMEM_COLLECTIVES` says, and
    /// `in_use` what [`Collectives::in_use`] makes of it.
    pub(crate) fn new(shape: Shape, user: &Collectives, in_use: &Collectives) -> Self {
        let of_block = user.or(&in_use.of_one_block(shape.near));
        let of_user = |collective| user.0.iter().any(|(known, _)| *known == collective);
        Self {
            shape,
            rows: NAMES.map(|(collective, _)| steps(collective, shape, in_use)),
            rows_of_block: NAMES.map(|(collective, _)| steps_of_block(collective, shape, &of_block)),
            overrides: NAMES.map(|(collective, _)| {
                in_use.0.iter().find(|(known, _)| *known == collective).map(|(_, steps)| steps.clone())
            }),
            chosen: (0..).zip(NAMES).fold(0, |bits, (index, (one, _))| bits | u32::from(of_user(one)) << index),
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

    /// Returns [`abi::Team::chosen`]: the collectives of which the user says something, as bits.
    /// Kernels take that for all sizes, also for those that are left to the library.
    pub(crate) fn chosen(&self) -> u32 {
        self.chosen
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
            if self.shape.near {
                let blocks = self.shape.blocks.min(COLLECT_BLOCKS);
                return Plan::Collect { blocks, in_packets: self.collected_in_packets() };
            }
            // What is chosen for the longest data counts, again since lengths differ.
            let longest = self.rows[collective as usize].last().map(|(_, algorithm)| *algorithm);
            let blocks = self.shape.blocks.min(LEVELS_COLLECT_BLOCKS);
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

    /// Returns up to how many bytes several blocks send contributions to a collect in packets, if
    /// they have room: one limit, since a member sends before it knows the others' lengths. Sizes
    /// that are left to the library are for packets, except for those beyond a `push`.
    fn collected_in_packets(&self) -> u64 {
        let Some(row) = &self.overrides[Collective::Collect as usize] else { return abi::BLOCKS_PACKETS };
        let mut is_pushed = false;
        row.iter().fold(0, |most, (limit, algorithm)| match algorithm {
            Some(Packets) => *limit,
            None if !is_pushed => abi::BLOCKS_PACKETS.min(*limit).max(most),
            _ => {
                is_pushed = true;
                most
            }
        })
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
mod tests;
