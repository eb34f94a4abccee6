//! Where the cards of all PEs are, and which way goes between two of them.

use oxshmem_hca::topology::{Crossing, Rail};
use oxshmem_system::words::low16;

use super::near::Nodes;
use super::selection::Chosen;

/// Where a card of a PE is, as the other PEs learn it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Spot {
    rail: Option<Rail>,
    crossing: Crossing,
}

/// The most cards of a machine that are told apart.
const MOST_RAILS: u32 = 127;

/// What data between a card and memory can cross, in the order of the numbers that PEs tell each
/// other.
const CROSSINGS: [Crossing; 4] = [Crossing::None, Crossing::Root, Crossing::Sockets, Crossing::Unknown];

impl Spot {
    /// Bytes that PEs tell each other of each card: two bits of what is crossed, and seven each of
    /// the rail's number and of how many there are.
    pub(super) const BYTES: usize = 2;

    /// Takes what a PE has chosen; nothing is known of what is no card.
    pub(super) fn new(chosen: Option<&Chosen>) -> Self {
        chosen.map_or(Self { rail: None, crossing: Crossing::Unknown }, |chosen| Self {
            // More cards in a machine are not told apart.
            rail: chosen.rail.filter(|rail| rail.of <= MOST_RAILS),
            // Host memory is at every card, behind the CPU.
            crossing: if chosen.is_gpu() { Crossing::from(chosen.distance) } else { Crossing::None },
        })
    }

    pub(super) fn to_bytes(self) -> [u8; Self::BYTES] {
        let (number, of) = self.rail.map_or((0, 0), |rail| (rail.number, rail.of));
        let crossing = (0u32..).zip(CROSSINGS).find(|(_, known)| *known == self.crossing).map_or(0, |(code, _)| code);
        low16(u64::from(crossing << 14 | of << 7 | number)).to_le_bytes()
    }

    pub(super) fn from_bytes(bytes: &[u8; Self::BYTES]) -> Option<Self> {
        let word = u16::from_le_bytes(*bytes);
        let crossing = *CROSSINGS.get(usize::from(word >> 14))?;
        let (number, of) = (word & 0x7f, word >> 7 & 0x7f);
        let rail = match (number, of) {
            (0, 0) => None,
            _ if number < of => Some(Rail { number: number.into(), of: of.into() }),
            _ => return None,
        };
        Some(Self { rail, crossing })
    }
}

/// The way from a card of this PE to the card of a peer that its queue pairs lead to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CardPath {
    /// This PE's card, by its number.
    pub card: u32,
    /// Whether the peer is on another node.
    pub leaves_node: bool,
    /// The rails of the two cards, where they are known.
    pub rails: (Option<Rail>, Option<Rail>),
    /// What data passes between card and memory, here and there.
    pub crossings: (Crossing, Crossing),
}

impl CardPath {
    /// Returns whether it leads from one rail to another; nothing if that is not known.
    pub(crate) fn crosses_rails(&self) -> Option<bool> {
        let (own, peer) = self.rails;
        own?.is_same(peer?).map(|same| !same)
    }
}

/// Where the cards of all PEs are; empty with the kernel's verbs, whose PEs do not tell.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Rails(Vec<Vec<Spot>>);

impl Rails {
    /// Takes what each PE has told, of which `cards` are in use.
    pub(super) fn new<'a>(told: impl Iterator<Item = &'a [Spot]>, cards: usize) -> Self {
        Self(told.map(|of_pe| of_pe.iter().take(cards).copied().collect()).collect())
    }

    /// Returns the way by `card` from `me` to `pe`.
    pub(crate) fn path(&self, nodes: &Nodes, me: usize, pe: usize, card: u32) -> CardPath {
        let spot = |pe: usize| {
            let found = self.0.get(pe).and_then(|of_pe| of_pe.get(card as usize)).copied();
            found.unwrap_or_else(|| Spot::new(None))
        };
        let (own, peer) = (spot(me), spot(pe));
        CardPath {
            card,
            leaves_node: !nodes.is_one(me, pe),
            rails: (own.rail, peer.rail),
            crossings: (own.crossing, peer.crossing),
        }
    }
}

#[cfg(test)]
mod tests {
    use oxshmem_hca::topology::{Card, Distance, Place};
    use proptest::prelude::*;

    use super::*;

    fn chosen(rail: Option<(u32, u32)>, distance: Distance, is_gpu: bool) -> Chosen {
        let card = Card { device: "mlx5_0".into(), port: None };
        let place = if is_gpu { Place::Pci("0000:1b:00.0".into()) } else { Place::Node(0) };
        Chosen { card, distance, place, rail: rail.map(|(number, of)| Rail { number, of }) }
    }

    #[test]
    fn what_is_told_of_a_card_arrives() {
        for (rail, distance, is_gpu) in [
            (Some((0, 1)), Distance::Bridges(3), true),
            (Some((7, 8)), Distance::Node, true),
            (Some((126, 127)), Distance::System, true),
            (None, Distance::Unknown, true),
            (Some((3, 4)), Distance::System, false),
        ] {
            let spot = Spot::new(Some(&chosen(rail, distance, is_gpu)));
            assert_eq!(Spot::from_bytes(&spot.to_bytes()), Some(spot));
            assert_eq!(spot.rail, rail.map(|(number, of)| Rail { number, of }));
            assert_eq!(spot.crossing, if is_gpu { Crossing::from(distance) } else { Crossing::None });
        }
        // Seven bits do not tell these.
        assert_eq!(Spot::new(Some(&chosen(Some((3, 128)), Distance::Node, true))).rail, None);
    }

    #[test]
    fn paths_cross_rails_where_nodes_are_alike() {
        let spots = |rails: &[(u32, u32)]| -> Vec<Spot> {
            rails.iter().map(|rail| Spot::new(Some(&chosen(Some(*rail), Distance::Bridges(2), true)))).collect()
        };
        let told = [spots(&[(0, 4), (1, 4)]), spots(&[(1, 4), (2, 4)]), spots(&[(0, 4), (3, 4)]), spots(&[(0, 2)])];
        let rails = Rails::new(told.iter().map(Vec::as_slice), 1);
        let nodes = Nodes::by_name(&["a", "a", "b", "c"]);
        let path = |pe, card| rails.path(&nodes, 0, pe, card);
        assert_eq!((path(1, 0).leaves_node, path(1, 0).crosses_rails()), (false, Some(true)));
        assert_eq!((path(2, 0).leaves_node, path(2, 0).crosses_rails()), (true, Some(false)));
        // Another number of cards, and a card that is not in use.
        assert_eq!((path(3, 0).leaves_node, path(3, 0).crosses_rails()), (true, None));
        assert_eq!((path(2, 1).rails, path(2, 1).crosses_rails()), ((None, None), None));
        assert_eq!(Rails::default().path(&nodes, 0, 2, 0).crosses_rails(), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_spot_or_not(bytes: [u8; Spot::BYTES]) {
            if let Some(spot) = Spot::from_bytes(&bytes) {
                prop_assert_eq!(spot.to_bytes(), bytes);
            }
        }
    }
}
