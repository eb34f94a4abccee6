//! Rails, and by which way the payload of a put goes from a GPU to the card that sends it.
//!
//! In a rail-optimised cluster card *i* of every node hangs on leaf switch *i*, a *rail*. What goes
//! from one rail to another crosses the spine. NCCL 2.12 introduced PXN for that: a GPU first moves
//! the payload to a GPU of its node whose card is on the destination's rail
//! (<https://developer.nvidia.com/blog/doubling-all2all-performance-with-nvidia-collective-communication-library-2-12/>).
//!
//! One table decides for all transports: [`fetch`] where the card is given, and
//! [`Topology::routes`] for each rail. It is about what topology says is best; which ways a
//! transport can go is for the transport to say.

use std::fmt;

use super::assignment::Family;
use super::choice::{Card, DeviceChoice};
use super::error::TopologyError;
use super::machine::{DeviceEntry, Distance, Place, PortEntry, Topology};

/// The rail of a card: its number among the cards of its node that PEs may use, in the order of
/// their names or in that of the list in `OXSHMEM_HCA_DEVICES`. Nodes with equally many such cards
/// are taken to be cabled alike.
///
/// ```
/// use oxshmem_hca::topology::Rail;
///
/// assert_eq!(Rail { number: 3, of: 8 }.to_string(), "rail 3 of 8");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rail {
    /// Its number, from 0.
    pub number: u32,
    /// The cards of its node.
    pub of: u32,
}

impl Rail {
    /// Returns whether two cards are on one rail; nothing if their nodes have different numbers of
    /// cards, so that it cannot be told.
    ///
    /// ```
    /// use oxshmem_hca::topology::Rail;
    ///
    /// let card = Rail { number: 3, of: 8 };
    /// assert_eq!(card.is_same(Rail { number: 3, of: 8 }), Some(true));
    /// assert_eq!(card.is_same(Rail { number: 0, of: 8 }), Some(false));
    /// assert_eq!(card.is_same(Rail { number: 3, of: 4 }), None);
    /// ```
    #[must_use]
    pub fn is_same(self, other: Self) -> Option<bool> {
        (self.of == other.of).then_some(self.number == other.number)
    }
}

impl fmt::Display for Rail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rail {} of {}", self.number, self.of)
    }
}

/// What the data between a GPU and a card passes beyond PCIe switches.
///
/// ```
/// use oxshmem_hca::topology::{Crossing, Distance};
///
/// assert_eq!(Crossing::from(Distance::Bridges(3)), Crossing::None);
/// assert_eq!(Crossing::from(Distance::System).name(), "sockets");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Crossing {
    /// Nothing: both are below one port of the CPU.
    None,
    /// The root complex of a CPU.
    Root,
    /// Two root complexes, and the link between the CPU's sockets.
    Sockets,
    /// It cannot be told.
    Unknown,
}

impl From<Distance> for Crossing {
    fn from(distance: Distance) -> Self {
        match distance {
            Distance::Bridges(_) => Self::None,
            Distance::HostBridge | Distance::Node => Self::Root,
            Distance::System => Self::Sockets,
            Distance::Unknown => Self::Unknown,
        }
    }
}

impl Crossing {
    /// Returns its name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Root => "root",
            Self::Sockets => "sockets",
            Self::Unknown => "unknown",
        }
    }
}

/// By which way the payload of a put gets to the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// The card nearest to the source reads the payload where it is, and sends it on its own rail.
    Direct,
    /// The payload is copied to host memory, from which that card reads it.
    Staged,
    /// The card of the destination's rail sends.
    Push {
        /// The name of that card is in [`Route::card`]; here is where it reads the payload.
        through: Through,
    },
}

impl Way {
    /// Returns whether the card of the destination's rail reads a payload where it is, and is near
    /// to it: pushing then takes no copy.
    ///
    /// ```
    /// use oxshmem_hca::topology::{Through, Way};
    ///
    /// assert!(Way::Push { through: Through::Source }.reads_in_place());
    /// assert!(!Way::Push { through: Through::Host }.reads_in_place());
    /// assert!(!Way::Direct.reads_in_place());
    /// ```
    #[must_use]
    pub fn reads_in_place(self) -> bool {
        self == Self::Push { through: Through::Source }
    }
}

impl Way {
    /// Returns whether the payload is copied to memory near the card before that reads it.
    ///
    /// ```
    /// use oxshmem_hca::topology::{Through, Way};
    ///
    /// assert!(Way::Staged.is_staged() && Way::Push { through: Through::Host }.is_staged());
    /// assert!(!Way::Direct.is_staged() && !Way::Push { through: Through::Source }.is_staged());
    /// ```
    #[must_use]
    pub fn is_staged(self) -> bool {
        matches!(self, Self::Staged | Self::Push { through: Through::Gpu(_) | Through::Host })
    }
}

/// Where the card of the destination's rail reads a payload that was pushed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Through {
    /// In the memory of the GPU of this PE, by its number among the places.
    Gpu(usize),
    /// In host memory near the card.
    Host,
    /// Where it is: in host memory already.
    Source,
}

/// The best way for puts of a PE to PEs whose card is on some rail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// The destination's rail.
    pub rail: Rail,
    /// The card that sends, if the best way is taken.
    pub card: Card,
    /// The way.
    pub way: Way,
    /// Why, in some words.
    pub reason: String,
}

/// Returns whether a card reads a payload directly or after it was staged, and why: the part of the
/// table for a card that is given. `is_gpu` says whether the payload is in the memory of a GPU;
/// `distance` is that between the GPU and the card, nothing where there is no card.
///
/// A card's read of GPU memory crosses the whole tree twice, as a request and as completions, which
/// is what suffers most where two root complexes lie between; stores to memory near the card go one
/// way.
///
/// ```
/// use oxshmem_hca::topology::{Distance, Way, fetch};
///
/// assert_eq!(fetch(true, Some(Distance::Bridges(3))), (Way::Direct, "the card is 3 PCIe bridges apart".to_owned()));
/// assert_eq!(fetch(true, Some(Distance::System)).0, Way::Staged);
/// assert_eq!(fetch(false, Some(Distance::System)).0, Way::Direct);
/// ```
#[must_use]
pub fn fetch(is_gpu: bool, distance: Option<Distance>) -> (Way, String) {
    match distance {
        _ if !is_gpu => (Way::Direct, "they are in host memory".to_owned()),
        None => (Way::Direct, "there is no card".to_owned()),
        Some(distance @ Distance::System) => (Way::Staged, format!("the card is {distance}")),
        Some(distance) => (Way::Direct, format!("the card is {distance}")),
    }
}

impl Topology {
    /// Returns the rail of a card. Nothing if the PEs of the node may not use it, or the machine
    /// does not have it.
    #[must_use]
    pub fn rail(&self, family: Family, choice: &DeviceChoice, card: &Card) -> Option<Rail> {
        let candidates = self.candidates(family, choice).ok()?;
        let is_it = |(device, port): &(&DeviceEntry, &PortEntry)| {
            device.name == card.device && card.port.is_none_or(|number| number == port.number)
        };
        let number = candidates.iter().position(is_it)?;
        Some(rail(number, candidates.len()))
    }

    /// Returns the card that is on a rail of this machine, by the rail's number; nothing if PEs may
    /// use none that is.
    #[must_use]
    pub fn card_on(&self, family: Family, choice: &DeviceChoice, number: u32) -> Option<Card> {
        let candidates = self.candidates(family, choice).ok()?;
        let (device, port) = candidates.get(usize::try_from(number).ok()?)?;
        Some(Card { device: device.name.clone(), port: Some(port.number) })
    }

    /// Returns the best way for each PE of a node, by PE, to each rail of nodes that are cabled as
    /// this one is. `places` says where the PEs work, and `cards` which card is the first of each.
    /// `reaches` says whether the first PE stores to the memory of the second.
    ///
    /// # The table
    /// | the source's card, and the destination's rail | way |
    /// |---|---|
    /// | the same rail, the card at another NUMA node than the GPU | staged |
    /// | the same rail, otherwise; or the machine has one card | direct |
    /// | another rail, the payload in host memory | push: the card of that rail reads it there |
    /// | another rail, the source's GPU below one port of the CPU with the card of that rail too | push: the card of that rail reads it there |
    /// | another rail, the GPU of a PE within reach below one port of the CPU with the card of that rail | push through that GPU's memory |
    /// | another rail, no such GPU | push through host memory |
    /// | another rail, and the tree shows no PCIe switch at all | as on the same rail: topology does not decide |
    ///
    /// # Errors
    /// No card can be used.
    pub fn routes(
        &self,
        (family, choice): (Family, &DeviceChoice),
        places: &[Place],
        cards: &[Card],
        reaches: impl Fn(usize, usize) -> bool,
    ) -> Result<Vec<Vec<Route>>, TopologyError> {
        let candidates = self.candidates(family, choice)?;
        let far: Vec<Vec<Distance>> = places
            .iter()
            .map(|place| candidates.iter().map(|(device, _)| self.distance(place, device)).collect())
            .collect();
        let shows_switches = far.iter().flatten().any(|distance| matches!(distance, Distance::Bridges(_)));
        let each = places.iter().zip(cards).enumerate().map(|(pe, (place, card))| {
            let own = self.rail(family, choice, card);
            let distance = self.distance_to(place, &card.device);
            let (fetched, fetching) = fetch(is_gpu(place), Some(distance));
            let to_rail = |(number, (device, port)): (usize, &(&DeviceEntry, &PortEntry))| {
                let sender = Card { device: device.name.clone(), port: Some(port.number) };
                let rail = rail(number, candidates.len());
                let stay = |reason: String| Route { rail, card: card.clone(), way: fetched, reason };
                if candidates.len() == 1 {
                    return stay(format!("the node has one card; {fetching}"));
                }
                if own == Some(rail) {
                    return stay(format!("the nearest card is on this rail; {fetching}"));
                }
                let push = |through, reason| Route { rail, card: sender.clone(), way: Way::Push { through }, reason };
                if !is_gpu(place) {
                    return push(Through::Source, "every card of the node reads host memory".to_owned());
                }
                if let near @ Distance::Bridges(_) = far[pe][number] {
                    return push(Through::Source, format!("the card of this rail is {near}, too"));
                }
                // Nearest first; among equals those whose own card it is.
                let key = |near: usize| (far[near][number], cards.get(near) != Some(&sender));
                let within: Vec<usize> = (0..places.len()).filter(|near| *near != pe && reaches(pe, *near)).collect();
                let best = within.iter().map(|near| key(*near)).min();
                if let Some((to_card @ Distance::Bridges(_), _)) = best {
                    let equals: Vec<usize> = within.into_iter().filter(|near| Some(key(*near)) == best).collect();
                    // Sources are spread over them.
                    let near = equals[pe % equals.len()];
                    return push(
                        Through::Gpu(near),
                        format!("the card of this rail is {to_card} from the GPU of PE {near} of the node"),
                    );
                }
                if shows_switches || distance == Distance::System {
                    let reason = "no GPU within reach is below one port of the CPU with the card of this rail";
                    return push(Through::Host, reason.to_owned());
                }
                stay(format!(
                    "the tree shows no PCIe switch, so which GPU is near the card of this rail is unknown (OXSHMEM_TOPOLOGY can \
                     describe the machine); {fetching}"
                ))
            };
            candidates.iter().enumerate().map(to_rail).collect()
        });
        Ok(each.collect())
    }
}

fn rail(number: usize, of: usize) -> Rail {
    let number32 = |number| u32::try_from(number).unwrap_or(u32::MAX);
    Rail { number: number32(number), of: number32(of) }
}

fn is_gpu(place: &Place) -> bool {
    matches!(place, Place::Pci(_))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::sysfs_tree::FIXTURES;
    use super::*;

    fn machine(name: &str) -> Topology {
        let (_, text) = FIXTURES.iter().find(|(known, _)| *known == name).unwrap();
        Topology::parse(text).unwrap()
    }

    fn places(topology: &Topology) -> Vec<Place> {
        topology.gpus().iter().map(|gpu| Place::Pci(gpu.clone())).collect()
    }

    /// Returns the table of a node with PEs at these places: a line for each PE, a word for each
    /// rail.
    fn table(topology: &Topology, list: &str, places: &[Place], reaches: bool) -> Vec<String> {
        let choice: DeviceChoice = list.parse().unwrap();
        let assigned = topology.assign(Family::Mlx5, &choice, Some(1), places).unwrap();
        let cards: Vec<Card> = assigned.iter().map(|of_one| of_one[0].card()).collect();
        let routes = topology.routes((Family::Mlx5, &choice), places, &cards, |_, _| reaches).unwrap();
        let word = |route: &Route| match route.way {
            Way::Direct if route.reason.contains("unknown") => "?".to_owned(),
            Way::Direct => "direct".to_owned(),
            Way::Staged => "staged".to_owned(),
            Way::Push { through: Through::Gpu(pe) } => format!("gpu{pe}"),
            Way::Push { through: Through::Host } => "host".to_owned(),
            Way::Push { through: Through::Source } => "there".to_owned(),
        };
        routes.iter().map(|of_pe| of_pe.iter().map(word).collect::<Vec<_>>().join(" ")).collect()
    }

    /// Returns the published matrix, by GPU and card, with PIX and PXB below one port of the CPU.
    fn matrix(topology: &Topology) -> Vec<String> {
        let class = |distance: Distance| match distance {
            Distance::Bridges(_) => "P",
            Distance::HostBridge => "PHB",
            Distance::Node => "NODE",
            Distance::System => "SYS",
            Distance::Unknown => "?",
        };
        let row = |place: Place| {
            let of_cards = topology.devices().iter().map(|device| class(topology.distance(&place, device)));
            of_cards.collect::<Vec<_>>().join(" ")
        };
        places(topology).into_iter().map(row).collect()
    }

    /// What `nvidia-smi topo -m` printed on these machines, with P for PIX and PXB.
    #[test]
    fn trees_have_the_distances_that_were_published() {
        // github.com/deepseek-ai/DeepEP/issues/137.
        let h20 = [
            "P NODE SYS SYS SYS",
            "NODE NODE SYS SYS SYS",
            "NODE P SYS SYS SYS",
            "NODE NODE SYS SYS SYS",
            "SYS SYS P NODE NODE",
            "SYS SYS NODE NODE NODE",
            "SYS SYS NODE NODE P",
            "SYS SYS NODE NODE NODE",
        ];
        assert_eq!(matrix(&machine("h20-two-sockets")), h20);
        // github.com/bytedance/flux/issues/14: the cards that are PXB from GPUs 0 to 7 of a DGX
        // H100. It prints SYS for all others, also at the same socket, so only P is compared.
        let near: Vec<Vec<usize>> = matrix(&machine("dgx-h100"))
            .iter()
            .map(|row| row.split(' ').enumerate().filter(|(_, class)| *class == "P").map(|(card, _)| card).collect())
            .collect();
        assert_eq!(near, [[0], [3], [4], [5], [6], [9], [10], [11]]);
    }

    #[test]
    fn on_a_dgx_h100_each_rail_has_its_gpu() {
        let topology = machine("dgx-h100");
        let places = places(&topology);
        let expected = |pe: usize| {
            let word = |rail| if rail == pe { "direct".to_owned() } else { format!("gpu{rail}") };
            (0..8).map(word).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(table(&topology, "", &places, true), (0..8).map(expected).collect::<Vec<_>>());
        // Without NVLink or peer access it goes through host memory.
        assert_eq!(table(&topology, "", &places, false)[1], "host direct host host host host host host");
        // PEs on two of the GPUs alone: the others are not there to lend memory.
        assert_eq!(table(&topology, "", &places[3..5], true)[0], "host host host direct gpu1 host host host");
    }

    #[test]
    fn on_a_dgx_a100_the_second_card_of_the_switch_reads_where_the_payload_is() {
        let topology = machine("dgx-a100");
        let table = table(&topology, "", &places(&topology), true);
        assert_eq!(table[0], "direct there gpu2 gpu3 gpu4 gpu5 gpu6 gpu7");
        assert_eq!(table[1], "there direct gpu2 gpu3 gpu4 gpu5 gpu6 gpu7");
        assert_eq!(table[6], "gpu0 gpu1 gpu2 gpu3 gpu4 gpu5 direct there");
    }

    #[test]
    fn two_gpus_that_share_a_card_share_out_the_sources_of_others() {
        let topology = machine("hgx-4-cards");
        let places = places(&topology);
        let got = table(&topology, "", &places, true);
        assert_eq!(got[..3], ["direct gpu2 gpu4 gpu6", "direct gpu3 gpu5 gpu7", "gpu0 direct gpu4 gpu6"]);
        // Without the card of their switch the first two GPUs have only far ones.
        let far = table(&topology, "^mlx5_0", &places, true);
        assert_eq!(far[..2], ["staged gpu4 gpu6", "gpu3 staged gpu7"]);
        assert_eq!(far[2], "direct gpu4 gpu6");
    }

    #[test]
    fn on_two_sockets_gpus_without_a_near_card_push_as_well() {
        let topology = machine("h20-two-sockets");
        let got = table(&topology, "", &places(&topology), true);
        // mlx5_3 is at no GPU's switch.
        assert_eq!(got[0], "direct gpu2 gpu4 host gpu6");
        assert_eq!(got[1], "direct gpu2 gpu4 host gpu6");
        assert_eq!(got[5], "gpu0 gpu2 gpu4 direct gpu6");
        assert_eq!(got[6], "gpu0 gpu2 gpu4 host direct");
    }

    #[test]
    fn one_card_is_on_every_rail_and_a_flat_tree_does_not_decide() {
        let topology = machine("single-card");
        assert_eq!(table(&topology, "", &places(&topology), true), ["direct", "direct"]);
        let topology = machine("vm-flat");
        assert_eq!(table(&topology, "", &places(&topology), true)[1], "? direct ? ?");
        // A workstation: nothing lies between the cards and the CPU.
        let topology = machine("single-socket");
        assert_eq!(table(&topology, "", &places(&topology), true), ["direct ?", "? direct", "direct ?"]);
    }

    #[test]
    fn the_cards_of_all_rails_read_host_memory() {
        let topology = machine("dgx-h100");
        let got = table(&topology, "", &[Place::Node(1), Place::Anywhere], true);
        assert_eq!(got[0], "there there there there direct there there there");
        assert_eq!(got[1], "direct there there there there there there there");
    }

    #[test]
    fn rails_follow_the_order_of_a_list_and_name_the_card() {
        let topology = machine("dgx-h100");
        let card = |name: &str| Card { device: name.to_owned(), port: None };
        let rail = |list: &str, name: &str| topology.rail(Family::Mlx5, &list.parse().unwrap(), &card(name));
        assert_eq!(rail("", "mlx5_3"), Some(Rail { number: 1, of: 8 }));
        assert_eq!(rail("mlx5_5,mlx5_3", "mlx5_3"), Some(Rail { number: 1, of: 2 }));
        assert_eq!(rail("mlx5_3,mlx5_5", "mlx5_3"), Some(Rail { number: 0, of: 2 }));
        for number in 0..8 {
            let found = topology.card_on(Family::Mlx5, &DeviceChoice::Any, number).unwrap();
            assert_eq!(topology.rail(Family::Mlx5, &DeviceChoice::Any, &found), Some(Rail { number, of: 8 }));
        }
        assert_eq!(topology.card_on(Family::Mlx5, &DeviceChoice::Any, 8), None);
        // A card for storage, and one that is not there.
        assert_eq!((rail("", "mlx5_1"), rail("", "mlx5_99")), (None, None));
        let places = places(&topology);
        let cards = [card("mlx5_0")];
        let routes = topology.routes((Family::Mlx5, &DeviceChoice::Any), &places[..1], &cards, |_, _| true).unwrap();
        assert_eq!(routes[0][1].card.to_string(), "mlx5_3/1");
        assert_eq!(routes[0][0].reason, "the nearest card is on this rail; the card is 3 PCIe bridges apart");
    }
}
