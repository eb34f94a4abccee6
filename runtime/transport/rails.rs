//! Where the cards of all PEs are, by which of them each PE sends, and which way goes between two.

use std::collections::BTreeMap;

use oxshmem_hca::topology::{Crossing, MAX_SENDERS, Rail};
use oxshmem_system::words::{count32, low16};

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

/// The way between a card of this PE and the card of a peer that its queue pairs lead to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CardPath {
    /// This PE's card, by its number.
    pub card: u32,
    /// Whether the peer is on another node.
    pub leaves_node: bool,
    /// Whether the peer sends by it, and this PE does not.
    pub receives_only: bool,
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

    /// Returns the same way for payloads that the card reads in memory near it.
    pub(crate) fn with_source_near(self) -> Self {
        Self { crossings: (Crossing::None, self.crossings.1), ..self }
    }
}

/// Where the cards of all PEs are, and by which of its cards each PE sends to each other one.
///
/// Queue pair *i* of those to a peer leads to card *i* modulo their number of the peer's own cards,
/// its *target*. Without pushing it is on the sender's own card of the same number, and both PEs
/// post to it. With pushing it is on the card of the sender's node that is on the target's rail.
/// Where that is another card than the sender's own, or the peer's for what it sends, the two PEs
/// have two queue pairs for each one: each PE posts to one and is the target of the other.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Rails {
    /// By PE: its own cards, as many for each. Empty with the kernel's verbs, whose PEs do not
    /// tell.
    spots: Vec<Vec<Spot>>,
    pushing: Option<Pushing>,
}

/// What each PE knows of how all push.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pushing {
    nodes: Nodes,
    /// By PE: the rails of its cards, its own first and then the further ones that it sends by,
    /// ascending.
    lists: Vec<Vec<u32>>,
    /// This PE's further cards.
    further: Vec<Spot>,
}

impl Pushing {
    /// Returns the rails of a PE's further cards.
    pub(super) fn further_rails(&self, rails: &Rails, pe: usize) -> &[u32] {
        &self.lists[pe][rails.spots[pe].len()..]
    }

    /// Returns whether no PE has a further card: each sends by its own, on every rail that there
    /// is.
    pub(super) fn is_needless(&self, rails: &Rails) -> bool {
        (0..self.lists.len()).all(|pe| self.further_rails(rails, pe).is_empty())
    }
}

impl Rails {
    /// Takes what each PE has told, of which `cards` are in use.
    pub(super) fn new<'a>(told: impl Iterator<Item = &'a [Spot]>, cards: usize) -> Self {
        Self { spots: told.map(|of_pe| of_pe.iter().take(cards).copied().collect()).collect(), pushing: None }
    }

    /// Returns how all PEs would push: each to a PE of another node by the card of its own node
    /// that is on the rail of that PE's card.
    ///
    /// # Errors
    /// What stands in the way: a card whose rail is not known, nodes whose rails cannot be
    /// compared, or more cards for a PE than it has keys for.
    pub(super) fn plan(&self, nodes: &Nodes) -> Result<Pushing, String> {
        let rail = |pe: usize, spot: &Spot| {
            let remedy = "let all PEs use the cards of one list, or describe the machine (OXSHMEM_TOPOLOGY)";
            spot.rail.ok_or_else(|| format!("it is not known which rail the card of PE {pe} is on; {remedy}"))
        };
        let known: Vec<Vec<Rail>> = (0..)
            .zip(&self.spots)
            .map(|(pe, spots)| spots.iter().map(|spot| rail(pe, spot)).collect())
            .collect::<Result<_, _>>()?;
        let of = |pe: usize| known[pe].first().map_or(0, |rail| rail.of);
        if let Some(pe) = (0..known.len()).find(|pe| of(*pe) != of(0)) {
            return Err(format!(
                "the node of PE 0 has {} cards and that of PE {pe} has {}, so that their rails cannot be compared; name as many cards \
                 on each node (OXSHMEM_HCA_DEVICES)",
                of(0),
                of(pe)
            ));
        }
        // By rail, and by node and rail: cards.
        let mut all = BTreeMap::<u32, usize>::new();
        let mut of_node = BTreeMap::<(usize, u32), usize>::new();
        for (pe, rails) in known.iter().enumerate() {
            for Rail { number, .. } in rails {
                *all.entry(*number).or_default() += 1;
                *of_node.entry((nodes.first_of(pe), *number)).or_default() += 1;
            }
        }
        let list = |(pe, rails): (usize, &Vec<Rail>)| {
            let mut list: Vec<u32> = rails.iter().map(|rail| rail.number).collect();
            let is_elsewhere = |(rail, cards): (&u32, &usize)| {
                let here = of_node.get(&(nodes.first_of(pe), *rail)).copied().unwrap_or_default();
                (*cards > here && !list.contains(rail)).then_some(*rail)
            };
            let further: Vec<u32> = all.iter().filter_map(is_elsewhere).collect();
            list.extend(further);
            if list.len() > MAX_SENDERS {
                return Err(format!(
                    "PE {pe} would send by {} cards, and a PE has keys for {MAX_SENDERS}; name fewer (OXSHMEM_HCA_DEVICES)",
                    list.len()
                ));
            }
            Ok(list)
        };
        let lists = known.iter().enumerate().map(list).collect::<Result<_, _>>()?;
        Ok(Pushing { nodes: nodes.clone(), lists, further: Vec::new() })
    }

    /// Has all PEs push; `further` says where this PE's further cards are, in their order.
    pub(super) fn push(&mut self, pushing: Pushing, further: Vec<Spot>) {
        self.pushing = Some(Pushing { further, ..pushing });
    }

    /// Returns the rail of the first card of a PE, if it is known.
    pub(super) fn first_rail(&self, pe: usize) -> Option<Rail> {
        self.spots.get(pe)?.first()?.rail
    }

    /// Returns how many cards a PE has; nothing if PEs do not tell.
    pub(crate) fn cards_of(&self, pe: usize) -> Option<usize> {
        let own = self.spots.get(pe)?.len();
        Some(self.pushing.as_ref().and_then(|pushing| pushing.lists.get(pe)).map_or(own, Vec::len))
    }

    /// Returns whether PEs push.
    pub(crate) fn is_pushing(&self) -> bool {
        self.pushing.is_some()
    }

    /// Returns the card by which `from` sends to card `target` of `to`, by its number among all
    /// that it has.
    pub(crate) fn sender(&self, from: usize, to: usize, target: u32) -> u32 {
        let Some(Pushing { nodes, lists, .. }) = &self.pushing else { return target };
        if nodes.is_one(from, to) {
            return target;
        }
        let rail = self.spots[to].get(target as usize).and_then(|spot| spot.rail).map(|rail| rail.number);
        let card = lists[from].iter().position(|known| Some(*known) == rail);
        card.map_or(target, count32)
    }

    /// Returns the same cards where no PE pushes.
    pub(super) fn without_pushing(&self) -> Self {
        Self { spots: self.spots.clone(), pushing: None }
    }

    /// Returns whether keys for sending by `me`'s own cards have places beside those for pushing:
    /// no card of its own, found by number, is the one that it pushes to another target by.
    pub(crate) fn has_room_for_direct(&self, me: usize) -> bool {
        let targets = count32(self.spots.get(me).map_or(0, Vec::len));
        (0..self.spots.len()).all(|pe| {
            (0..targets).all(|target| {
                let sender = self.sender(me, pe, target);
                sender == target || sender >= targets
            })
        })
    }

    /// Returns whether two PEs have queue pairs of their own for each direction.
    pub(crate) fn are_apart(&self, a: usize, b: usize) -> bool {
        self.pushing.is_some()
            && (0..count32(self.spots[a].len()))
                .any(|target| self.sender(a, b, target) != target || self.sender(b, a, target) != target)
    }

    /// Returns where a card of a PE is. What lies between the further cards of other PEs and their
    /// memory is not known here.
    fn spot(&self, me: usize, pe: usize, card: u32) -> Spot {
        let own = self.spots.get(pe).map_or(&[][..], Vec::as_slice);
        if let Some(spot) = own.get(card as usize) {
            return *spot;
        }
        let Some(Pushing { lists, further, .. }) = &self.pushing else { return Spot::new(None) };
        if pe == me {
            return further.get(card as usize - own.len()).copied().unwrap_or(Spot::new(None));
        }
        let of = own.first().and_then(|spot| spot.rail).map_or(0, |rail| rail.of);
        let rail = lists.get(pe).and_then(|list| list.get(card as usize)).map(|number| Rail { number: *number, of });
        Spot { rail, crossing: Crossing::Unknown }
    }

    /// Returns the way by `card` from `me` to `pe`; or from `pe` if only that one sends.
    pub(crate) fn path(&self, nodes: &Nodes, (me, pe): (usize, usize), card: u32, receives_only: bool) -> CardPath {
        let targets = count32(self.spots.get(pe).map_or(0, Vec::len));
        let leads_to = if receives_only {
            self.sender(pe, me, card)
        } else {
            (0..targets).find(|target| self.sender(me, pe, *target) == card).unwrap_or(card)
        };
        let (own, peer) = (self.spot(me, me, card), self.spot(me, pe, leads_to));
        CardPath {
            card,
            leaves_node: !nodes.is_one(me, pe),
            receives_only,
            rails: (own.rail, peer.rail),
            crossings: (own.crossing, peer.crossing),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
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
        let path = |pe, card| rails.path(&nodes, (0, pe), card, false);
        assert_eq!((path(1, 0).leaves_node, path(1, 0).crosses_rails()), (false, Some(true)));
        assert_eq!((path(2, 0).leaves_node, path(2, 0).crosses_rails()), (true, Some(false)));
        // Another number of cards, and a card that is not in use.
        assert_eq!((path(3, 0).leaves_node, path(3, 0).crosses_rails()), (true, None));
        assert_eq!((path(2, 1).rails, path(2, 1).crosses_rails()), ((None, None), None));
        assert_eq!(Rails::default().path(&nodes, (0, 2), 0, false).crosses_rails(), None);
    }

    fn on_rails(pes: &[&[(u32, u32)]]) -> Rails {
        let spot = |rail: &(u32, u32)| Spot::new(Some(&chosen(Some(*rail), Distance::Bridges(2), true)));
        let told: Vec<Vec<Spot>> = pes.iter().map(|rails| rails.iter().map(spot).collect()).collect();
        Rails::new(told.iter().map(Vec::as_slice), pes[0].len())
    }

    /// Two nodes of three PEs, of which two share a rail: each queue pair leads along the rail of
    /// its target, and the peer's end is found where this PE's is.
    #[test]
    fn what_is_pushed_stays_on_the_rail_of_its_target() {
        let nodes = Nodes::by_name(&["a", "a", "a", "b", "b", "b"]);
        let node: [&[(u32, u32)]; 3] = [&[(0, 4)], &[(2, 4)], &[(2, 4)]];
        let mut rails = on_rails(&[node, node].concat());
        let pushing = rails.plan(&nodes).unwrap();
        let further = |pe| pushing.further_rails(&rails, pe).to_vec();
        assert_eq!((further(0), further(1), further(5)), (vec![2], vec![0], vec![0]));
        assert!(!pushing.is_needless(&rails));
        let there = Spot { rail: Some(Rail { number: 2, of: 4 }), crossing: Crossing::Root };
        rails.push(pushing, vec![there]);
        let sent = |from, to| rails.sender(from, to, 0);
        // Of PE 0: card 0 is on rail 0, card 1 on rail 2.
        assert_eq!([sent(0, 1), sent(0, 3), sent(0, 4), sent(0, 5)], [0, 0, 1, 1]);
        assert_eq!([sent(4, 0), sent(4, 1), sent(1, 4)], [1, 0, 0]);
        let apart: Vec<usize> = (1..6).filter(|pe| rails.are_apart(0, *pe)).collect();
        assert_eq!(apart, [4, 5]);
        assert!((0..6).all(|pe| rails.has_room_for_direct(pe)));
        for pe in 3..6 {
            let way = rails.path(&nodes, (0, pe), rails.sender(0, pe, 0), false);
            assert_eq!((way.leaves_node, way.crosses_rails()), (true, Some(false)), "PE {pe}");
        }
        let way = rails.path(&nodes, (0, 4), 1, false);
        assert_eq!(way.crossings, (Crossing::Root, Crossing::None));
        // PE 4 sends to PE 0 on rail 0, from a card of which only the rail is known here.
        let way = rails.path(&nodes, (0, 4), 0, true);
        assert_eq!((way.receives_only, way.crosses_rails(), way.crossings.1), (true, Some(false), Crossing::Unknown));
    }

    /// With two cards a PE, queue pairs lead to the peer's cards in turn.
    #[test]
    fn each_of_several_targets_has_its_rail() {
        let nodes = Nodes::by_name(&["a", "b"]);
        let mut rails = on_rails(&[&[(0, 4), (1, 4)], &[(1, 4), (3, 4)]]);
        let pushing = rails.plan(&nodes).unwrap();
        assert_eq!((pushing.further_rails(&rails, 0), pushing.further_rails(&rails, 1)), (&[3][..], &[0][..]));
        rails.push(pushing, Vec::new());
        assert_eq!([rails.sender(0, 1, 0), rails.sender(0, 1, 1)], [1, 2]);
        assert_eq!([rails.sender(1, 0, 0), rails.sender(1, 0, 1)], [2, 0]);
        assert!(rails.are_apart(0, 1));
        // Card 1 of PE 0 sends to card 0 of PE 1 by pushing, and to its card 1 without.
        assert!(!rails.has_room_for_direct(0) && !rails.without_pushing().are_apart(0, 1));
    }

    #[test]
    fn what_cannot_be_pushed_has_a_reason() {
        let nodes = Nodes::by_name(&["a", "b", "c"]);
        let plan = |rails: &Rails| rails.plan(&nodes).map(|pushing| pushing.lists);
        let error = plan(&on_rails(&[&[(0, 4)], &[(1, 4)], &[(0, 8)]])).unwrap_err();
        assert!(error.contains("the node of PE 0 has 4 cards and that of PE 2 has 8"), "{error}");
        let unknown = [Spot::new(None)];
        let error = plan(&Rails::new([&unknown[..]; 3].into_iter(), 1)).unwrap_err();
        assert!(error.contains("which rail the card of PE 0 is on"), "{error}");
        // Nine rails elsewhere.
        let many: Vec<Vec<(u32, u32)>> = (0..10).map(|rail| vec![(rail, 10)]).collect();
        let many: Vec<&[(u32, u32)]> = many.iter().map(Vec::as_slice).collect();
        let names: Vec<String> = (0..10).map(|node| node.to_string()).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let error = on_rails(&many).plan(&Nodes::by_name(&names)).unwrap_err();
        assert!(error.contains("PE 0 would send by 10 cards, and a PE has keys for 8"), "{error}");
        // One rail: there is nothing to push.
        let rails = on_rails(&[&[(0, 1)], &[(0, 1)]]);
        assert!(rails.plan(&Nodes::by_name(&["a", "b"])).unwrap().is_needless(&rails));
        assert_eq!((rails.sender(0, 1, 0), rails.are_apart(0, 1)), (0, false));
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
