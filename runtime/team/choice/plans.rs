//! What collectives on streams are carried out by, in sizes and blocks, as text.

use std::fmt::Write as _;

use super::{
    ANY, Algorithm, CHOICES, Chooser, Collective, CopyEngines, Levels, NAMES, PIECE, Packets, Plan, Push, Size,
    write_steps,
};
use crate::abi;

/// From this size to the next power of two that many sizes are looked at, and so on. What the
/// library decides by lies further apart; between two sizes a limit is found exactly.
const SIZES: u64 = 64;
/// The largest size that is looked at.
const LARGEST: u64 = 1 << 40;

/// How one size is carried out: by which algorithm, and by how many blocks, of which copy engines
/// have none.
type Way = (Algorithm, Option<u32>);

/// Sizes up to a limit that one algorithm carries out, with the fewest and the most blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stretch {
    up_to: u64,
    algorithm: Algorithm,
    blocks: Option<(u32, u32)>,
}

impl Stretch {
    fn new(up_to: u64, (algorithm, blocks): Way) -> Self {
        Self { up_to, algorithm, blocks: blocks.map(|blocks| (blocks, blocks)) }
    }

    /// Returns whether a larger size is carried out alike: by one algorithm, and by no fewer
    /// blocks.
    fn goes_on_with(&self, (algorithm, blocks): Way) -> bool {
        self.algorithm == algorithm && self.blocks.map(|(_, most)| most) <= blocks
    }
}

impl Chooser {
    /// Returns how the host has a collective of that many bytes carried out.
    fn way(&self, collective: Collective, bytes: u64) -> Way {
        let parts = match collective {
            Collective::Broadcast | Collective::Reduce => 1,
            _ => self.shape.n_pes as u64,
        };
        match self.plan(Size { divisible: Some((collective, bytes)), total: bytes.saturating_mul(parts) }) {
            Plan::OneBlock => {
                let row = &self.rows_of_block[collective as usize];
                let fitting = row.iter().take(CHOICES).find(|(limit, _)| bytes <= *limit);
                let algorithm = fitting.map_or(Push, |(_, algorithm)| *algorithm);
                (if matches!(algorithm, Levels | CopyEngines) { Push } else { algorithm }, Some(1))
            }
            Plan::Blocks(blocks, algorithm) => (algorithm, Some(blocks)),
            Plan::Levels(blocks) => (Levels, Some(blocks)),
            Plan::Copies => (CopyEngines, None),
            Plan::Collect { blocks, in_packets } => {
                // Half of what a block sends is flags, and the size takes a piece.
                let room = (u64::from(abi::block_share(self.shape.n_pes)) / 2).saturating_sub(PIECE);
                (if bytes <= in_packets.min(room * u64::from(blocks)) { Packets } else { Push }, Some(blocks))
            }
        }
    }

    /// Returns the sizes at which a collective's algorithm changes, or at which it takes fewer
    /// blocks.
    fn stretches(&self, collective: Collective) -> Vec<Stretch> {
        let octaves = (3..LARGEST.ilog2()).map(|power| 1_u64 << power);
        let sizes = octaves.flat_map(|size| (0..SIZES).map(move |part| size + size * part / SIZES));
        let of_row = self.rows[collective as usize].iter().chain(&self.rows_of_block[collective as usize]);
        let limits = of_row.flat_map(|(limit, _)| [*limit, limit.saturating_add(1)]);
        let mut sizes: Vec<u64> = sizes.chain(limits.filter(|limit| *limit < LARGEST)).chain([LARGEST]).collect();
        sizes.sort_unstable();
        let mut last = Stretch::new(0, self.way(collective, 0));
        let mut all = Vec::new();
        for size in sizes {
            let mut way = self.way(collective, size);
            if !last.goes_on_with(way) {
                // The first size that is not carried out like the one before.
                let (mut before, mut after) = (last.up_to, size);
                while after - before > 1 {
                    let middle = before + (after - before) / 2;
                    let between = self.way(collective, middle);
                    if last.goes_on_with(between) {
                        before = middle;
                        last.blocks = last.blocks.zip(between.1).map(|((fewest, _), blocks)| (fewest, blocks));
                    } else {
                        (after, way) = (middle, between);
                    }
                }
                all.push(Stretch { up_to: before, ..last });
                last = Stretch::new(after, way);
                way = self.way(collective, size);
            }
            last.blocks = last.blocks.zip(way.1).map(|((fewest, _), blocks)| (fewest, blocks));
            last.up_to = size;
        }
        all.push(Stretch { up_to: ANY, ..last });
        all
    }

    /// Returns how the host, and streams, have collectives carried out: for each the algorithms
    /// with the sizes up to which they are used, and the fewest and the most blocks in brackets.
    pub(crate) fn describe_plans(&self) -> String {
        let mut text = String::new();
        for (index, (collective, name)) in NAMES.into_iter().enumerate() {
            // Writing to a string does not fail.
            let _ = write!(text, "{}{name}=", if index == 0 { "" } else { "," });
            for (index, Stretch { up_to, algorithm, blocks }) in self.stretches(collective).into_iter().enumerate() {
                text.push_str(if index == 0 { "" } else { "/" });
                let _ = write_steps(&mut text, [(up_to, Some(algorithm))].into_iter());
                let _ = match blocks {
                    None => Ok(()),
                    Some((fewest, most)) if fewest == most => write!(text, "[{most}]"),
                    Some((fewest, most)) => write!(text, "[{fewest}-{most}]"),
                };
            }
        }
        text
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::{Collectives, Shape};
    use super::*;

    fn chooser(shape: Shape, overrides: &str) -> Chooser {
        let user: Collectives = overrides.parse().unwrap();
        Chooser::new(shape, &user, &user.in_use(shape.blocks, &Collectives::default()))
    }

    fn plans(shape: Shape, overrides: &str) -> Vec<String> {
        let text = chooser(shape, overrides).describe_plans();
        text.split(',').map(str::to_owned).collect()
    }

    fn near(n_pes: usize) -> Shape {
        Shape { own_devices: true, ..Shape::new(n_pes, 1, 64) }
    }

    #[test]
    fn sizes_and_blocks_are_where_the_plan_changes() {
        let two = plans(near(2), "");
        assert_eq!(two[0], "broadcast=packets:512K[1-64]/push:16777215[64]/push:100663295[16]/copy");
        assert_eq!(two[2], "fcollect=packets:512K[1-64]/push:100663295[64]/copy");
        assert_eq!(two[5], "reduce=packets:512K[1-64]/oneshot:2097151[64]/push[64]");
        assert_eq!(two[1], "collect=packets:261632[32]/push[32]");
        let three = plans(near(3), "");
        assert_eq!(three[5], "reduce=packets:256K[1-64]/relay:512K[43-64]/push[64]");
        let far = plans(Shape::new(4, 2, 64), "");
        assert_eq!(far[0], "broadcast=tree:64K[1]/levels[1-8]");
        assert_eq!(far[5], "reduce=tree:8K[1]/levels[1-8]");
        // Limits of a user are exact, however close they are.
        let chosen = plans(near(2), "reduce=packets:1000/oneshot:1001/push:1M/library,broadcast=tree:5/push");
        assert_eq!(chosen[5], "reduce=packets:1000[1]/oneshot:1001[1]/push:1M[1-64]/oneshot:2097151[64]/push[64]");
        assert!(chosen[0].starts_with("broadcast=tree:5[1]/push:16777215[1-64]/"), "{}", chosen[0]);
    }

    #[test]
    fn each_size_is_as_the_stretches_say() {
        for shape in [near(2), near(4), near(8), Shape::new(8, 1, 3), Shape::new(16, 2, 64), Shape::new(100, 1, 64)] {
            let chooser = chooser(shape, "");
            for (collective, name) in NAMES {
                let all = chooser.stretches(collective);
                assert!(all.windows(2).all(|pair| pair[0].up_to < pair[1].up_to), "{name}: {all:?}");
                for size in (0..1000)
                    .chain((3..36).flat_map(|power| [-1, 0, 1, 77].map(|by| (1_u64 << power).wrapping_add_signed(by))))
                {
                    let stretch = all.iter().find(|stretch| size <= stretch.up_to).unwrap();
                    let (algorithm, blocks) = chooser.way(collective, size);
                    let is_within = match (stretch.blocks, blocks) {
                        (Some((fewest, most)), Some(blocks)) => (fewest..=most).contains(&blocks),
                        (stretch, way) => stretch.is_none() && way.is_none(),
                    };
                    assert!(stretch.algorithm == algorithm && is_within, "{name} of {size}: {stretch:?}, {blocks:?}");
                }
            }
        }
    }
}
