//! What the PEs of a job have counted by the way between cards, put together: by card, by rail,
//! across rails and across root complexes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde::{Deserialize, Serialize};

use crate::output::show;

/// What is asked of counters.
#[derive(Debug, clap::Args)]
pub struct Question {
    /// Files of `OXSHMEM_PROFILE=counters`, or folders that have such: those of all PEs of a job.
    #[arg(value_name = "FILE", default_value = "oxshmem-profile")]
    from: Vec<PathBuf>,
}

/// The part of a file that is needed, as PEs write it (`oxshmem::Counters`).
#[derive(Debug, Deserialize)]
struct File {
    pe: usize,
    n_pes: usize,
    node: usize,
    routes: Vec<Route>,
}

#[derive(Debug, Deserialize)]
struct Route {
    card: u32,
    leaves_node: bool,
    receives_only: bool,
    rail: Option<u32>,
    crosses_rails: Option<bool>,
    crossing: String,
    peer_crossing: String,
    connections: u64,
    messages: Option<u64>,
    message_bytes: Option<u64>,
}

/// Connections, work requests, and bytes of their payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
struct Sum {
    connections: u64,
    /// Nothing if some card does not tell it by queue pair.
    messages: Option<u64>,
    bytes: Option<u64>,
}

impl Default for Sum {
    fn default() -> Self {
        Self { connections: 0, messages: Some(0), bytes: Some(0) }
    }
}

impl Sum {
    fn add(&mut self, route: &Route) {
        self.connections += route.connections;
        self.messages = self.messages.zip(route.messages).map(|(all, more)| all + more);
        self.bytes = self.bytes.zip(route.message_bytes).map(|(all, more)| all + more);
    }

    fn text(self) -> String {
        let count = |number: Option<u64>| number.map_or("?".to_owned(), |number| number.to_string());
        format!("{:>11} {:>12} {:>16}", self.connections, count(self.messages), count(self.bytes))
    }
}

/// The node and rail of a card; one without a rail is told apart by its PE and number.
type CardKey = (usize, Option<u32>, Option<(usize, u32)>);

/// A card of a node.
#[derive(Debug, Serialize)]
struct CardSum {
    /// The first PE of its node.
    node: usize,
    /// Its rail, where that is known; a card that is on none is told apart by its PE.
    rail: Option<u32>,
    /// The PEs that drive it.
    pes: BTreeSet<usize>,
    #[serde(flatten)]
    sum: Sum,
}

/// What went from a rail to the same rail of other nodes.
#[derive(Debug, Serialize)]
struct RailSum {
    rail: u32,
    #[serde(flatten)]
    sum: Sum,
}

/// At either end of a way: where the request was posted, and at the peer.
#[derive(Debug, Default, Serialize)]
struct Ends {
    source: Sum,
    destination: Sum,
}

impl Ends {
    fn add(&mut self, route: &Route, is: impl Fn(&str) -> bool) {
        if is(&route.crossing) {
            self.source.add(route);
        }
        if is(&route.peer_crossing) {
            self.destination.add(route);
        }
    }
}

/// The report of a job. All but `within_nodes` is about what leaves a node, and all but
/// `receives_only` and `connections_per_pe` about queue pairs that requests are posted to.
#[derive(Debug, Serialize)]
struct Report {
    n_pes: usize,
    nodes: usize,
    all: Sum,
    along_rails: Sum,
    across_rails: Sum,
    /// The rail of a card is not known, or the nodes have different numbers of cards.
    unknown_rails: Sum,
    /// Through the root complex of a CPU between memory and card, or through two.
    across_root: Ends,
    /// The part of these that crosses the link between the sockets of a node, too.
    across_sockets: Ends,
    unknown_crossing: Ends,
    /// Between PEs of one node, through their cards.
    within_nodes: Sum,
    /// Queue pairs by which a peer alone sends: with `OXSHMEM_RAILS=push` the other ends of what
    /// goes to another rail.
    receives_only: u64,
    rails: Vec<RailSum>,
    cards: Vec<CardSum>,
    /// The fewest and the most that a PE has to PEs of other nodes, those that receive only too.
    connections_per_pe: (u64, u64),
}

/// Prints the report of a job.
pub fn run(question: &Question, json: bool) -> ExitCode {
    match read(&question.from).and_then(|files| Report::of(&files)) {
        Ok(report) => ExitCode::from(u8::from(!show(json, &report, || report.text()))),
        Err(error) => {
            eprintln!("oxshmem-info: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Reads files, and those of folders.
fn read(from: &[PathBuf]) -> Result<Vec<File>, String> {
    let mut paths = Vec::new();
    for path in from {
        let failed =
            |error: std::io::Error| format!("{}: {error}; run the job with OXSHMEM_PROFILE=counters", path.display());
        if !fs::metadata(path).map_err(failed)?.is_dir() {
            paths.push(path.clone());
            continue;
        }
        let before = paths.len();
        for entry in fs::read_dir(path).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if name.starts_with("counters-") && name.ends_with(".json") {
                paths.push(path);
            }
        }
        if paths.len() == before {
            return Err(format!(
                "{} has no counters-PE.json; run the job with OXSHMEM_PROFILE=counters",
                path.display()
            ));
        }
    }
    let file = |path: &PathBuf| -> Result<File, String> { parse(path) };
    paths.iter().map(file).collect()
}

fn parse(path: &Path) -> Result<File, String> {
    let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    serde_json::from_str(&text)
        .map_err(|error| format!("{} is no file of counters of this version: {error}", path.display()))
}

impl Report {
    /// Puts the files of all PEs of a job together.
    fn of(files: &[File]) -> Result<Self, String> {
        let n_pes = files.first().map_or(0, |file| file.n_pes);
        let mut seen = BTreeSet::new();
        for File { pe, n_pes: theirs, .. } in files {
            if *theirs != n_pes {
                return Err(format!(
                    "the files are of several jobs: of {n_pes} PEs, and (PE {pe}) of {theirs}; name those of one"
                ));
            }
            if !seen.insert(*pe) {
                return Err(format!("there are two files of PE {pe}; name those of one job"));
            }
        }
        let missing: Vec<String> = (0..n_pes).filter(|pe| !seen.contains(pe)).map(|pe| pe.to_string()).collect();
        if !missing.is_empty() {
            return Err(format!("the files of these PEs of {n_pes} are missing: {}", missing.join(", ")));
        }
        let mut report = Self {
            n_pes,
            nodes: files.iter().map(|file| file.node).collect::<BTreeSet<_>>().len(),
            all: Sum::default(),
            along_rails: Sum::default(),
            across_rails: Sum::default(),
            unknown_rails: Sum::default(),
            across_root: Ends::default(),
            across_sockets: Ends::default(),
            unknown_crossing: Ends::default(),
            within_nodes: Sum::default(),
            receives_only: 0,
            rails: Vec::new(),
            cards: Vec::new(),
            connections_per_pe: (u64::MAX, 0),
        };
        let mut rails: BTreeMap<u32, Sum> = BTreeMap::new();
        let mut cards: BTreeMap<CardKey, CardSum> = BTreeMap::new();
        for File { pe, node, routes, .. } in files {
            let mut connections = 0;
            for route in routes {
                if !route.leaves_node {
                    report.within_nodes.add(route);
                    continue;
                }
                connections += route.connections;
                if route.receives_only {
                    report.receives_only += route.connections;
                    continue;
                }
                report.all.add(route);
                report.across_root.add(route, |crossing| crossing == "root" || crossing == "sockets");
                report.across_sockets.add(route, |crossing| crossing == "sockets");
                report.unknown_crossing.add(route, |crossing| crossing == "unknown");
                match (route.crosses_rails, route.rail) {
                    (Some(true), _) => report.across_rails.add(route),
                    (Some(false), Some(rail)) => {
                        report.along_rails.add(route);
                        rails.entry(rail).or_default().add(route);
                    }
                    _ => report.unknown_rails.add(route),
                }
                let key = (*node, route.rail, route.rail.is_none().then_some((*pe, route.card)));
                let none = || CardSum { node: *node, rail: route.rail, pes: BTreeSet::new(), sum: Sum::default() };
                let card = cards.entry(key).or_insert_with(none);
                card.pes.insert(*pe);
                card.sum.add(route);
            }
            let (fewest, most) = report.connections_per_pe;
            report.connections_per_pe = (fewest.min(connections), most.max(connections));
        }
        report.rails = rails.into_iter().map(|(rail, sum)| RailSum { rail, sum }).collect();
        report.cards = cards.into_values().collect();
        Ok(report)
    }

    fn text(&self) -> String {
        let mut text = format!("{} PEs on {} nodes", self.n_pes, self.nodes);
        let (fewest, most) = self.connections_per_pe;
        let range = if fewest == most { fewest.to_string() } else { format!("{fewest} to {most}") };
        // Writing to a string cannot fail.
        let _ = writeln!(text, "; connections of a PE to other nodes: {range}\n");
        let _ = writeln!(text, "{:<34} {:>11} {:>12} {:>16}", "between nodes", "connections", "messages", "bytes");
        let mut line = |name: &str, sum: Sum| {
            let _ = writeln!(text, "{name:<34} {}", sum.text());
        };
        line("all", self.all);
        line("along a rail", self.along_rails);
        line("across rails", self.across_rails);
        if self.unknown_rails.connections > 0 {
            line("rail not known", self.unknown_rails);
        }
        line("across the root complex, source", self.across_root.source);
        line("across the root complex, peer", self.across_root.destination);
        line("across sockets, source", self.across_sockets.source);
        line("across sockets, peer", self.across_sockets.destination);
        if self.receives_only > 0 {
            let receives_only = Sum { connections: self.receives_only, messages: Some(0), bytes: Some(0) };
            line("ends that receive only", receives_only);
        }
        if self.within_nodes.connections > 0 {
            line("within nodes, through cards", self.within_nodes);
        }
        for RailSum { rail, sum } in &self.rails {
            line(&format!("along rail {rail}"), *sum);
        }
        for CardSum { node, rail, pes, sum } in &self.cards {
            let pes: Vec<String> = pes.iter().map(ToString::to_string).collect();
            let card = rail.map_or("card on no known rail".to_owned(), |rail| format!("card on rail {rail}"));
            line(&format!("node of PE {node}, {card}, PE {}", pes.join(" ")), *sum);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(rail: Option<u32>, crosses_rails: Option<bool>, crossings: (&str, &str), messages: Option<u64>) -> Route {
        Route {
            card: 0,
            leaves_node: true,
            receives_only: false,
            rail,
            crosses_rails,
            crossing: crossings.0.to_owned(),
            peer_crossing: crossings.1.to_owned(),
            connections: 4,
            messages,
            message_bytes: messages.map(|messages| messages * 100),
        }
    }

    fn sum(connections: u64, messages: u64) -> Sum {
        Sum { connections, messages: Some(messages), bytes: Some(messages * 100) }
    }

    #[test]
    fn each_way_counts_where_it_goes() -> Result<(), String> {
        let receiving = Route { receives_only: true, ..route(Some(0), Some(false), ("none", "unknown"), None) };
        let within = Route { leaves_node: false, ..route(Some(0), Some(true), ("none", "none"), Some(1000)) };
        let files = [
            File { pe: 1, n_pes: 2, node: 1, routes: vec![route(None, None, ("unknown", "none"), Some(7)), within] },
            File {
                pe: 0,
                n_pes: 2,
                node: 0,
                routes: vec![
                    route(Some(0), Some(false), ("none", "root"), Some(1)),
                    route(Some(0), Some(true), ("root", "sockets"), Some(2)),
                    route(Some(3), Some(true), ("sockets", "none"), Some(3)),
                    receiving,
                ],
            },
        ];
        let report = Report::of(&files)?;
        assert_eq!((report.n_pes, report.nodes, report.connections_per_pe), (2, 2, (4, 16)));
        assert_eq!((report.all, report.within_nodes, report.receives_only), (sum(16, 13), sum(4, 1000), 4));
        assert_eq!((report.along_rails, report.across_rails, report.unknown_rails), (sum(4, 1), sum(8, 5), sum(4, 7)));
        assert_eq!((report.across_root.source, report.across_root.destination), (sum(8, 5), sum(8, 3)));
        assert_eq!((report.across_sockets.source, report.across_sockets.destination), (sum(4, 3), sum(4, 2)));
        assert_eq!((report.unknown_crossing.source, report.unknown_crossing.destination), (sum(4, 7), sum(0, 0)));
        let rails: Vec<_> = report.rails.iter().map(|rail| (rail.rail, rail.sum)).collect();
        assert_eq!(rails, [(0, sum(4, 1))]);
        let cards: Vec<_> = report.cards.iter().map(|card| (card.node, card.rail, card.sum)).collect();
        assert_eq!(cards, [(0, Some(0), sum(8, 3)), (0, Some(3), sum(4, 3)), (1, None, sum(4, 7))]);
        Ok(())
    }

    /// What one card does not count is not counted of all, and no number is shown for it.
    #[test]
    fn what_is_not_counted_is_not_zero() -> Result<(), String> {
        let routes = vec![
            route(Some(0), Some(false), ("none", "none"), Some(1)),
            route(Some(0), Some(false), ("none", "none"), None),
        ];
        let report = Report::of(&[File { pe: 0, n_pes: 1, node: 0, routes }])?;
        assert_eq!((report.all.connections, report.all.messages, report.all.bytes), (8, None, None));
        assert!(report.text().lines().any(|line| line.starts_with("all ") && line.contains('?')));
        Ok(())
    }

    #[test]
    fn files_are_of_all_pes_of_one_job() {
        let file = |pe, n_pes| File { pe, n_pes, node: 0, routes: Vec::new() };
        for (files, words) in [
            (vec![file(0, 4), file(2, 4)], "the files of these PEs of 4 are missing: 1, 3"),
            (vec![file(0, 2), file(0, 2)], "two files of PE 0"),
            (vec![file(0, 2), file(1, 3)], "several jobs: of 2 PEs, and (PE 1) of 3"),
        ] {
            assert!(Report::of(&files).is_err_and(|error| error.contains(words)), "{words}");
        }
    }
}
