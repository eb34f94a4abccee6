//! Which rail each PE's card is on, and the best way for puts to each rail.

use std::fmt::Write as _;
use std::process::ExitCode;

use oxshmem::config::{self, Config};
use oxshmem_hca::topology::{Card, Distance, MAX_SENDERS, Place, Rail, Route, Through, Topology, Way, fetch};
use serde::Serialize;

use crate::doctor::Root;
use crate::output::show;
use crate::shares::shares;

/// The decisions of a node with a PE on each GPU.
#[derive(Debug, Serialize)]
struct Rails {
    /// How many rails there are.
    rails: usize,
    /// `OXSHMEM_RAILS`.
    setting: String,
    /// Whether such nodes push to each other, and why; null where PEs measure that at init.
    pushes: Option<bool>,
    reason: String,
    pes: Vec<PeEntry>,
}

#[derive(Debug, Serialize)]
struct PeEntry {
    pe: usize,
    place: String,
    card: String,
    /// Nothing if the PEs of the node do not share the card out.
    rail: Option<u32>,
    distance: String,
    /// By rail of the destination's card.
    routes: Vec<RouteEntry>,
}

#[derive(Debug, Serialize)]
struct RouteEntry {
    rail: u32,
    /// `direct`, `staged` or `push`.
    best: &'static str,
    /// The card that sends then.
    card: String,
    /// Where that card reads a payload that is pushed: `gpu` of `through_pe`, `host` memory near
    /// the card, or the `source` itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    through: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    through_pe: Option<usize>,
    reason: String,
    /// What is done, whether device code or the CPU proxy posts: `direct` or `staged`, by the PE's
    /// own card, `push`, by the card of the rail, or `measured`, one of these.
    taken: &'static str,
}

/// Prints the decisions. Starts nothing.
pub fn run(config: &Config, json: bool) -> ExitCode {
    match Root::new("/").machine(config).and_then(|machine| Rails::of(&machine, config)) {
        Ok(rails) => ExitCode::from(u8::from(!show(json, &rails, || rails.text()))),
        Err(error) => {
            eprintln!("oxshmem-info: {error}");
            ExitCode::FAILURE
        }
    }
}

impl Rails {
    fn of(machine: &Topology, config: &Config) -> Result<Self, String> {
        let gpus: Vec<Place> = machine.gpus().iter().map(|gpu| Place::Pci(gpu.clone())).collect();
        let places = if gpus.is_empty() { vec![Place::of_this_thread()] } else { gpus };
        let first = |cards: Result<Vec<Card>, _>| {
            let cards: Vec<Card> = cards.map_err(|error: oxshmem_hca::topology::TopologyError| error.to_string())?;
            cards.into_iter().next().ok_or_else(|| "a PE has no card".to_owned())
        };
        let cards = shares(machine, config, &places).into_iter().map(first).collect::<Result<Vec<Card>, String>>()?;
        let (family, choice) = (config.hca().family(), config.hca_devices());
        // Load and store between GPUs is tried when PEs start.
        let routes =
            machine.routes((family, choice), &places, &cards, |_, _| true).map_err(|error| error.to_string())?;
        let rails = routes.first().map_or(0, Vec::len);
        let own: Vec<_> = cards.iter().map(|card| machine.rail(family, choice, card)).collect();
        let (pushes, reason) = decide(config.rails(), &own, &routes);
        let stages = config.staging() != config::Staging::Off;
        let entry = |(pe, ((place, card), routes)): (usize, ((&Place, Card), Vec<Route>))| {
            let distance = machine.distance_to(place, &card.device);
            let taken = |route: &Route| match pushes {
                _ if own[pe] == Some(route.rail) || !own.contains(&Some(route.rail)) => Taken::Own { stages },
                Some(true) => Taken::Push,
                Some(false) => Taken::Own { stages },
                None => Taken::Measured,
            };
            PeEntry {
                pe,
                place: place.to_string(),
                rail: machine.rail(family, choice, &card).map(|rail| rail.number),
                distance: distance.to_string(),
                routes: routes
                    .into_iter()
                    .map(|route| RouteEntry::new(taken(&route), route, place, distance))
                    .collect(),
                card: card.to_string(),
            }
        };
        let setting = config.rails().to_string();
        Ok(Self {
            rails,
            setting,
            pushes,
            reason,
            pes: places.iter().zip(cards).zip(routes).enumerate().map(entry).collect(),
        })
    }

    fn text(&self) -> String {
        let mut text = format!("PEs, if there is one on each GPU, and their cards on {} rails:\n", self.rails);
        // Writing to a string cannot fail.
        for PeEntry { pe, place, card, rail, distance, .. } in &self.pes {
            let rail = rail.map_or("on no rail that is known".to_owned(), |rail| format!("rail {rail}"));
            let _ = writeln!(text, "  PE {pe:<3} {place}: {card}, {rail}, {distance}");
        }
        text +=
            "\nThe best way for puts to nodes that are cabled as this one, by the rail of the destination's card:\n";
        for PeEntry { pe, routes, .. } in &self.pes {
            for RouteEntry { rail, best, card, through, through_pe, reason, .. } in routes {
                let through = match (through, through_pe) {
                    (_, Some(pe)) => format!(" through the GPU of PE {pe}"),
                    (Some("host"), _) => " through host memory".to_owned(),
                    _ => String::new(),
                };
                let _ = writeln!(text, "  PE {pe:<3} to rail {rail:<3} {best} by {card}{through}: {reason}");
            }
        }
        let staged = self.pes.iter().flat_map(|pe| &pe.routes).any(|route| route.taken == "staged");
        let taken = match self.pushes {
            Some(true) => "the card of the peer's rail sends to PEs of other nodes",
            Some(false) => "each PE's own card sends, whatever the rail",
            None => {
                "PEs measure at init whether the card of the peer's rail sends to PEs of other nodes, or each PE's own card, and \
                 `oxshmem-info paths` shows the outcome"
            }
        };
        let _ = writeln!(text, "\nThe way that is taken (OXSHMEM_RAILS={}): {taken}: {}.", self.setting, self.reason);
        if staged {
            text += "Where that card is at another NUMA node large puts are staged: those of more than 220 bytes where device code posts, \
                     and of 64K and more where the CPU proxy does, unless OXSHMEM_STAGING says another size.\n";
        }
        text
    }
}

/// Returns whether nodes with PEs whose cards are on these rails push to each other, and why;
/// nothing where PEs measure that. A PE does if it is to and can, and all do or none does.
fn decide(setting: config::Rails, own: &[Option<Rail>], routes: &[Vec<Route>]) -> (Option<bool>, String) {
    let says_so = || format!("OXSHMEM_RAILS={setting} says so");
    if setting == config::Rails::Direct {
        return (Some(false), says_so());
    }
    if let Some(pe) = own.iter().position(Option::is_none) {
        return (Some(false), format!("it is not known which rail the card of PE {pe} is on"));
    }
    let further = |pe: usize| {
        routes[pe].iter().filter(move |route| own[pe] != Some(route.rail) && own.contains(&Some(route.rail)))
    };
    let most = (0..own.len()).map(|pe| 1 + further(pe).count()).max().unwrap_or(1);
    if most == 1 {
        return (Some(false), "every PE's card is on the rail of all peers".to_owned());
    }
    if most > MAX_SENDERS {
        return (Some(false), format!("a PE would send by {most} cards, and has keys for {MAX_SENDERS}"));
    }
    if setting == config::Rails::Push {
        return (Some(true), says_so());
    }
    let afar = (0..own.len()).find_map(|pe| Some((pe, further(pe).find(|route| !route.way.reads_in_place())?)));
    match afar {
        Some((pe, Route { rail, reason, .. })) => {
            let what = format!("topology does not say whether PE {pe} should push to rail {}: {reason}", rail.number);
            (None, what)
        }
        None => (Some(true), "the cards of all rails read payloads where they are".to_owned()),
    }
}

/// What is done with puts to a rail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Taken {
    /// The PE's own card sends, after staging if that is allowed and the table says so.
    Own { stages: bool },
    /// The card of the rail sends.
    Push,
    /// One of the two.
    Measured,
}

impl RouteEntry {
    fn new(taken: Taken, route: Route, place: &Place, own: Distance) -> Self {
        let (best, through, through_pe) = match route.way {
            Way::Direct => ("direct", None, None),
            Way::Staged => ("staged", None, None),
            Way::Push { through: Through::Gpu(pe) } => ("push", Some("gpu"), Some(pe)),
            Way::Push { through: Through::Host } => ("push", Some("host"), None),
            Way::Push { through: Through::Source } => ("push", Some("source"), None),
        };
        let (fetched, _) = fetch(matches!(place, Place::Pci(_)), Some(own));
        // One table decides, whatever posts.
        let taken = match (taken, fetched) {
            (Taken::Push, _) => "push",
            (Taken::Measured, _) => "measured",
            (Taken::Own { stages: true }, Way::Staged) => "staged",
            (Taken::Own { .. }, _) => "direct",
        };
        let card = route.card.to_string();
        Self { rail: route.rail.number, best, card, through, through_pe, reason: route.reason, taken }
    }
}
