//! Puts together what a PE, its device and its network have counted and recorded.

use std::collections::{BTreeMap, BTreeSet};

use oxshmem_system::clock::monotonic_ns;

use super::counters::{
    CallCount, CardCount, Counters, PeerCount, QpCount, RouteCount, TeamCount, Traffic, TransportCount,
};
use super::host::{Count, Subject};
use super::trace::{Origin, Recorded, Trace, clock_offset};
use crate::Result;
use crate::abi;
use crate::fault;
use crate::pe::{Path, Pe};
use crate::transport::CardPath;

/// Counters and traces.
impl Pe {
    /// Returns what was counted of this PE since init: calls, and what the network made of them, by
    /// queue pair, peer, team, transport and card. Kernels that are running are not waited for, so
    /// what they do meanwhile is counted or not.
    ///
    /// # Errors
    /// The device is lost.
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// use oxshmem::Operations;
    ///
    /// let words = pe.alloc::<u64>(4)?;
    /// pe.put(&words, &[1, 2, 3], 0)?;
    /// let counters = pe.counters()?;
    /// assert_eq!((counters.peers[0].traffic.operations, counters.peers[0].traffic.bytes), (1, 24));
    /// # pe.finalize()
    /// # }
    /// ```
    pub fn counters(&self) -> Result<Counters> {
        let calls = self.call_counts()?;
        let qps = self.network().map_or_else(|| Ok(Vec::new()), |network| network.qp_counts())?;
        let mut peers: Vec<PeerCount> = (0..self.n_pes())
            .map(|pe| PeerCount { pe, transport: self.path(pe).map_or("", name_of), traffic: Traffic::default() })
            .collect();
        let mut teams = self.team_counts()?;
        for call in &calls {
            let traffic = Traffic { operations: call.calls, bytes: call.bytes, ..Traffic::default() };
            if let Some(peer) = call.pe.filter(|_| !call.is_wait()).and_then(|pe| peers.get_mut(pe)) {
                peer.traffic += traffic;
            }
            if let Some(team) = teams.iter_mut().find(|team| Some(team.team) == call.team) {
                team.traffic += traffic;
            }
        }
        for qp in &qps {
            if let Some(peer) = peers.get_mut(qp.pe) {
                peer.traffic += qp.traffic;
            }
        }
        let mut transports: Vec<TransportCount> = Vec::new();
        for PeerCount { transport, traffic, .. } in &peers {
            match transports.iter_mut().find(|known| known.transport == *transport) {
                Some(known) => {
                    known.peers += 1;
                    known.traffic += *traffic;
                }
                None => transports.push(TransportCount { transport, peers: 1, traffic: *traffic }),
            }
        }
        let cards = self.network().map_or_else(Vec::new, |network| {
            let cards = network.providers().into_iter().enumerate();
            let of_card = cards.map(|(card, provider)| {
                let info = provider.info();
                let traffic = provider.counters().map(Traffic::from).unwrap_or_default();
                CardCount { card, device: info.device.clone(), provider: info.provider, traffic }
            });
            of_card.collect()
        });
        let routes = self.route_counts(&qps);
        let counts_device = self.device_profile().is_some();
        Ok(Counters {
            pe: self.my_pe(),
            n_pes: self.n_pes(),
            node: self.nodes().members(self.my_pe()).first().copied().unwrap_or_default(),
            counts_device,
            calls,
            peers,
            teams,
            transports,
            cards,
            qps,
            routes,
        })
    }

    /// Returns what queue pairs did, by the way between cards that they take.
    fn route_counts(&self, qps: &[QpCount]) -> Vec<RouteCount> {
        let (Some(network), me) = (self.network(), self.my_pe()) else { return Vec::new() };
        let mut routes: BTreeMap<_, (BTreeSet<usize>, RouteCount)> = BTreeMap::new();
        for qp in qps.iter().filter(|qp| qp.pe != me) {
            let way = network.rails().path(self.nodes(), (me, qp.pe), qp.card, qp.receives_only);
            let (staged, others) = qp.traffic.without_staged(qp.staged);
            let mut add = |way: CardPath, connections, traffic| {
                let (peers, count) = routes.entry(way).or_insert_with(|| (BTreeSet::new(), route(&way)));
                peers.insert(qp.pe);
                count.peers = peers.len();
                count.connections += connections;
                count.traffic += traffic;
            };
            add(way, 1, others);
            if let Some(staged) = staged {
                add(way.with_source_near(), 0, staged);
            }
        }
        routes.into_values().map(|(_, count)| count).collect()
    }

    /// Returns the newest calls that were recorded, of the host and of device code that was
    /// compiled with `OXSHMEM_PROFILE`; none unless `OXSHMEM_PROFILE=trace` is set. Call it when no
    /// kernel runs: one that does may overwrite records while they are read.
    ///
    /// # Errors
    /// The device is lost.
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// use oxshmem::config::Profile;
    /// use oxshmem::{Config, Operations, Pe};
    ///
    /// let wanted = Profile { trace: true, ..Profile::NONE };
    /// # let folder = std::env::temp_dir().join(format!("oxshmem-trace-{}", std::process::id()));
    /// let config = Config::builder().profile(wanted).profile_dir(folder.clone()).env().build()?;
    /// let pe = Pe::with_config(config)?;
    /// pe.barrier_all()?;
    /// assert!(pe.trace()?.calls.iter().any(|call| call.operation == "barrier"));
    /// pe.finalize()?; // writes trace-0.json to the folder
    /// # assert!(folder.join("trace-0.json").exists());
    /// # drop(std::fs::remove_dir_all(folder));
    /// # Ok(())
    /// # }
    /// ```
    pub fn trace(&self) -> Result<Trace> {
        if !self.config().profile().trace {
            return Ok(Trace::default());
        }
        let device = self.device_profile().map_or_else(|| Ok(Default::default()), |at| at.records(self.slab()))?;
        let offset = if device.kept.is_empty() { 0 } else { self.device_clock_offset()? };
        let proxy = self.network().and_then(|network| network.proxy_moments()).unwrap_or_default();
        let by_proxy = self.network().is_some_and(|network| network.proxy().is_some());
        Ok(Recorded { device, host: self.host_profile().records(), proxy, offset, by_proxy }.trace())
    }

    /// Returns what is added to times of device code to get those of `CLOCK_MONOTONIC`.
    fn device_clock_offset(&self) -> Result<i64> {
        if self.gpu().is_none() {
            // Device code on the CPU reads the same clock.
            return Ok(0);
        }
        /// The shortest of several: a launch may be delayed.
        const TRIES: u32 = 5;
        let mut best = (u64::MAX, 0);
        for _ in 0..TRIES {
            let before = monotonic_ns();
            // SAFETY: the kernel writes a word to the staging buffer.
            unsafe { self.run_host_kernel("oxshmem_host_clock", 1, &(self.staging_address()?,)) }?;
            let after = monotonic_ns();
            let device = self.staged_word()?;
            best = best.min((after - before, clock_offset(before, device, after)));
        }
        Ok(best.1)
    }

    fn call_counts(&self) -> Result<Vec<CallCount>> {
        let count = |origin, operation, (pe, team), Count { calls, bytes, nanoseconds }| CallCount {
            origin,
            operation,
            pe,
            team,
            calls,
            bytes,
            nanoseconds,
        };
        let mut all: Vec<CallCount> = Vec::new();
        for (operation, subject, counted) in self.host_profile().counts() {
            let subject = match subject {
                Subject::Own => (None, None),
                Subject::Peer(pe) => (Some(pe), None),
                Subject::Team(team) => (None, Some(team)),
            };
            all.push(count(Origin::Host, operation.name(), subject, counted));
        }
        if let Some(places) = self.device_profile() {
            let [peers, teams] = places.counts(self.slab())?;
            let name = |op| fault::operation(op).unwrap_or("operation");
            for (pe, op, counted) in peers {
                all.push(count(Origin::Device, name(op), (Some(pe as usize), None), counted));
            }
            let handles: BTreeMap<u32, i32> = self.team_rows()?.iter().map(|row| (row_of(row), row.handle)).collect();
            for (row, op, counted) in teams {
                all.push(count(Origin::Device, name(op), (None, handles.get(&row).copied()), counted));
            }
        }
        Ok(all)
    }

    fn team_counts(&self) -> Result<Vec<TeamCount>> {
        let count = |row: abi::Team| TeamCount {
            team: row.handle,
            n_pes: row.n_pes.unsigned_abs() as usize,
            meetings: meetings(row.epoch),
            traffic: Traffic::default(),
        };
        Ok(self.team_rows()?.into_iter().map(count).collect())
    }

    /// Returns the rows of the teams that exist.
    fn team_rows(&self) -> Result<Vec<abi::Team>> {
        let rows = self.team_storage().read(self.slab())?;
        Ok(rows.into_iter().filter(|row| row.handle != abi::TEAM_INVALID).collect())
    }
}

/// Returns a way on which nothing went yet.
fn route(way: &CardPath) -> RouteCount {
    RouteCount {
        card: way.card,
        leaves_node: way.leaves_node,
        receives_only: way.receives_only,
        rail: way.rails.0.map(|rail| rail.number),
        peer_rail: way.rails.1.map(|rail| rail.number),
        crosses_rails: way.crosses_rails(),
        crossing: way.crossings.0.name(),
        peer_crossing: way.crossings.1.name(),
        peers: 0,
        connections: 0,
        traffic: Traffic::default(),
    }
}

/// Returns the place of a team in the table.
fn row_of(row: &abi::Team) -> u32 {
    row.handle.cast_unsigned() & ((1 << abi::TEAM_INDEX_BITS) - 1)
}

/// Returns how many meetings there were up to an epoch: device code leaves out 0 and 1 (`meet.h`).
fn meetings(epoch: u32) -> u64 {
    u64::from(epoch.saturating_sub(2))
}

fn name_of(path: Path) -> &'static str {
    match path {
        Path::Own => "own",
        Path::LoadStore => "load_store",
        Path::Ibgda => "ibgda",
        Path::Ibrc => "ibrc",
    }
}
