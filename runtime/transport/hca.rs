//! Opens the HCA, and settles together with all PEs which kind it is and what posts to it.

use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use oxshmem_hca::mlx5;
use oxshmem_hca::objects::query_caps;
use oxshmem_hca::provider::Attempt;
use oxshmem_hca::soft::{CopyMode, FaultPlan, SoftHca, SoftOptions};
use oxshmem_hca::topology::{DeviceChoice, Place, TopologyError};

use super::atomics::Atomics;
use super::error::TransportError;
use super::near::Nodes;
use super::nodes;
use super::opened::{OpenCard, Opened, check_queues, check_records, hca_error, open_card, prepare_for_device};
use super::plan::{NetworkKind, Plan};
use super::push::{self, Told};
use super::rails::{Rails, Spot};
use super::selection;
use super::selection::Chosen;
use crate::Result;
use crate::bootstrap::Bootstrap;
use crate::config::{self, Choice, Config, Hca, Network, Transport};
use crate::device::Device;
use crate::heap::PeerLinks;

/// What a PE could do, as it tells the others.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Vote {
    /// Name of the provider it has opened.
    provider: String,
    /// Whether device code can post to it.
    device_posts: bool,
    /// The cards that it has opened.
    cards: Vec<Spot>,
    /// The reason, where something is not available.
    reason: String,
}

/// Returns a number of cards, or of bytes of a provider's name, as a vote has it.
fn count8(number: usize) -> u8 {
    u8::try_from(number).unwrap_or(u8::MAX)
}

impl Vote {
    fn to_bytes(&self) -> Vec<u8> {
        let cards: Vec<u8> = self.cards.iter().flat_map(|spot| spot.to_bytes()).collect();
        [
            &[u8::from(self.device_posts) << 7 | count8(self.cards.len()), count8(self.provider.len())],
            &cards[..],
            self.provider.as_bytes(),
            self.reason.as_bytes(),
        ]
        .concat()
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (&[first, len], rest) = bytes.split_first_chunk()?;
        let (posts, cards) = (first >> 7, first & 0x7f);
        let (spots, rest) = rest.split_at_checked(usize::from(cards) * Spot::BYTES)?;
        let cards = spots.as_chunks::<{ Spot::BYTES }>().0.iter().map(Spot::from_bytes).collect::<Option<Vec<_>>>()?;
        let (provider, reason) = rest.split_at_checked(len.into())?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Some(Self { provider: text(provider), device_posts: posts != 0, cards, reason: text(reason) })
    }
}

/// Opens the HCA that the plan's network needs, if it needs one. Where the configuration leaves it
/// open, all PEs use ConnectX cards if each has one, and the software HCA otherwise; and the proxy
/// posts if some card cannot be posted to by device code. All PEs use as many cards as the one that
/// has fewest. Collective.
pub(crate) fn open(
    config: &Config,
    (bootstrap, links): (&Bootstrap, &PeerLinks),
    device: &dyn Device,
    plan: Plan,
) -> Result<(Plan, Option<Opened>)> {
    let Some(kind) = plan.network else { return Ok((plan, None)) };
    push::check(config)?;
    if matches!(config.hca(), Hca::Verbs { .. }) {
        return match kind {
            NetworkKind::Ibrc if config.ib_strong_ordering() => Err(TransportError::NotAvailable {
                name: "OXSHMEM_IB_STRONG_ORDERING=1 with OXSHMEM_HCA=verbs, which have no such requests,",
                remedy: "use OXSHMEM_HCA=mlx5 on a ConnectX card, or turn adaptive routing off for the service level (OXSHMEM_IB_SL)",
            }
            .into()),
            // They are opened with their own calls.
            NetworkKind::Ibrc => Ok((plan, None)),
            NetworkKind::Ibgda => Err(TransportError::NotAvailable {
                name: "OXSHMEM_HCA=verbs with work requests that device code posts (OXSHMEM_TRANSPORT=ibgda)",
                remedy: "use OXSHMEM_TRANSPORT=ibrc, or OXSHMEM_HCA=soft",
            }
            .into()),
        };
    }
    selection::check_description(config, device)?;
    let log_depth = config.send_queue_depth(bootstrap.size()).trailing_zeros();
    let Candidate { opened: mut candidate, played, places, reason } =
        candidate(config, bootstrap, &plan.nodes, device, kind)?;
    let mut vote = Vote {
        provider: candidate.as_ref().map_or("none", Opened::provider_name).to_owned(),
        device_posts: kind == NetworkKind::Ibgda,
        cards: candidate.as_ref().map_or_else(|| vec![Spot::new(played.as_ref())], Opened::spots),
        reason,
    };
    if let Some(opened) = &mut candidate
        && kind == NetworkKind::Ibgda
        && let Err(error) = prepare_for_device(config, device, opened, 0, log_depth)
    {
        if config.transport() == Transport::Ibgda || config.network() == Network::Ibgda {
            return Err(error);
        }
        vote.device_posts = false;
        vote.reason = error.to_string();
    }

    let votes = bootstrap.allgather("HCA", &vote.to_bytes())?;
    let votes =
        votes.iter().enumerate().map(|(pe, bytes)| Vote::from_bytes(bytes).ok_or(TransportError::Address { pe }));
    let votes: Vec<Vote> = votes.collect::<std::result::Result<_, _>>()?;
    let without = votes.iter().position(|vote| vote.provider == "none");
    let mut opened = match (candidate, without) {
        (Some(opened), None) => opened,
        (candidate, _) => {
            // Only where the configuration leaves it open.
            drop(candidate);
            let pe = without.unwrap_or_default();
            tracing::info!(
                "the software HCA is used: PE {pe} has no ConnectX card that it can use: {}",
                votes[pe].reason
            );
            vote.device_posts = kind == NetworkKind::Ibgda;
            soft(config, device, kind, played)?
        }
    };
    if kind == NetworkKind::Ibgda {
        check_records(config, &opened, 0)?;
    }
    if without.is_none()
        && let Some(pe) = votes.iter().position(|other| other.provider != vote.provider)
    {
        let what = format!(
            "this PE uses {}, PE {pe} uses {}; give all PEs the same OXSHMEM_HCA",
            vote.provider, votes[pe].provider
        );
        return Err(hca_error(opened.cards[0].provider.as_ref(), what));
    }
    if without.is_none() {
        let fewest = votes.iter().zip(0..).map(|(vote, pe)| (count8(vote.cards.len()), pe)).min().unwrap_or((1, 0));
        opened.keep(config, fewest);
    }
    if let Some(soft) = &opened.soft {
        nodes::check_descriptors(&plan, bootstrap)?;
        nodes::join(config, bootstrap, &plan.nodes, soft)?;
    }
    opened.rails = Rails::new(votes.iter().map(|vote| vote.cards.as_slice()), opened.cards.len());
    opened.places = places;
    let mut plan = plan;
    let mut kind = kind;
    if without.is_none()
        && kind == NetworkKind::Ibgda
        && let Some(pe) = votes.iter().position(|vote| !vote.device_posts)
    {
        tracing::warn!("the CPU proxy posts for all PEs, as device code cannot on PE {pe}: {}", votes[pe].reason);
        let reason = format!("PE {pe}: {}", votes[pe].reason);
        opened.attempts.push(Attempt { what: "work requests posted by device code".into(), outcome: Err(reason) });
        kind = NetworkKind::Ibrc;
        plan.network = Some(kind);
    }
    let here = (&plan, bootstrap.rank() as usize);
    let mut outcome = push::prepare(config, device, here, (kind, log_depth), &mut opened)?;
    let stance = outcome.stance(config);
    let told;
    (opened.atomics, told) = Atomics::agree(config, bootstrap, opened.coherent && plan.shares_atomics, stance.bits())?;
    let Told { mut other, is_open } = stance.settle(&told)?;
    if is_open {
        (outcome, other) = outcome.measure(config, (bootstrap, links), device, (&plan, kind), &opened)?;
    }
    outcome.settle(&mut opened, other);
    if kind == NetworkKind::Ibrc {
        opened.cards.iter().try_for_each(|card| check_queues(card, log_depth))?;
    }
    for attempt in &opened.attempts {
        tracing::info!(pe = bootstrap.rank(), "{attempt}");
    }
    // PE 0 has logged this for all of them.
    let what = "atomics on local memory".to_owned();
    opened.attempts.push(Attempt { what, outcome: Ok(opened.atomics.describe(config.atomics())) });
    Ok((plan, Some(opened)))
}

/// What a PE has opened before it knows what the others have.
struct Candidate {
    /// Nothing where the configuration leaves the choice open and there is no card.
    opened: Option<Opened>,
    /// The card that the software HCA counts as, if it takes the place of one.
    played: Option<Chosen>,
    /// Where each PE of the node works; empty where they have not told each other.
    places: Vec<Place>,
    /// Why there is no card.
    reason: String,
}

/// Opens what the configuration asks for; nothing, with the reason, where it leaves the choice open
/// and there is no card. Collective.
fn candidate(
    config: &Config,
    bootstrap: &Bootstrap,
    nodes: &Nodes,
    device: &dyn Device,
    kind: NetworkKind,
) -> Result<Candidate> {
    let done = |opened, places| Candidate { opened: Some(opened), played: None, places, reason: String::new() };
    if let Hca::Soft | Hca::Null = config.hca() {
        let (chosen, places) = match config.topology() {
            Some(_) => selection::locate(config, bootstrap, nodes, device)?,
            None => (Vec::new(), Vec::new()),
        };
        return Ok(done(soft(config, device, kind, chosen.into_iter().next())?, places));
    }
    let located = selection::choose(config, bootstrap, nodes, device);
    let places = located.as_ref().map_or_else(|_| Vec::new(), |(_, places)| places.clone());
    let chosen = located.map(|(chosen, _)| chosen);
    let played =
        chosen.as_ref().ok().and_then(|chosen| chosen.first()).filter(|_| config.topology().is_some()).cloned();
    match (card(config, bootstrap, chosen), config.hca()) {
        (Ok(opened), _) => Ok(done(opened, places)),
        // What the others have to say about a failure of the job is more to the point.
        (Err(error @ crate::Error::Bootstrap(_)), _) => Err(error),
        // A configuration that names several cards does not mean none.
        (Err(error), Hca::Auto) if config.hca_devices_per_pe().given().is_none_or(|count| count <= 1) => {
            if *config.hca_devices() != DeviceChoice::Any {
                tracing::warn!(
                    pe = bootstrap.rank(),
                    "none of the devices of OXSHMEM_HCA_DEVICES can be used ({error}), so the software HCA takes their place; \
                     OXSHMEM_HCA=mlx5 makes that an error"
                );
            }
            Ok(Candidate { opened: None, played, places, reason: error.to_string() })
        }
        (Err(error), Hca::Auto) => Err(error),
        (Err(crate::Error::Hca(source)), hca) => {
            Err(TransportError::Asked { hca: hca.to_string(), source: Box::new(source) }.into())
        }
        (Err(error), _) => Err(error),
    }
}

/// Opens the cards that fall to this PE.
fn card(config: &Config, bootstrap: &Bootstrap, chosen: Result<Vec<Chosen>>) -> Result<Opened> {
    // What is missing altogether says more than that nothing could be chosen.
    mlx5::check_libraries()?;
    // One that was not requested is not missed.
    let is_asked =
        config.hca_devices_per_pe() != Choice::Auto || matches!(config.hca_devices(), DeviceChoice::Mapping(_));
    let mut opened: Option<Opened> = None;
    for chosen in chosen? {
        match (open_card(config, &chosen.card), &mut opened) {
            (Ok((open, coherent)), found) => {
                let info = open.provider.info();
                tracing::info!(pe = bootstrap.rank(), device = info.device, port = info.port.number, gid = %info.port.gid, "ConnectX card");
                let open = open.at(chosen);
                match found {
                    Some(found) => found.add(open, coherent),
                    None => *found = Some(Opened::new(open, coherent)),
                }
            }
            (Err(error), Some(found)) if !is_asked => {
                let what = format!("{} as a further card", chosen.card);
                found.attempts.push(Attempt { what, outcome: Err(error.to_string()) });
            }
            (Err(error), _) => return Err(error),
        }
    }
    opened.ok_or_else(|| TopologyError::NoDevice.into())
}

/// How long `OXSHMEM_CHECK=buffers` has the software HCA watch the source of a put.
const SOURCES_WATCHED: Duration = Duration::from_millis(2);

/// Opens the software HCA, in the place of a card if one is given.
fn soft(config: &Config, device: &dyn Device, kind: NetworkKind, played: Option<Chosen>) -> Result<Opened> {
    let mut faults = FaultPlan::from_str(config.soft_faults()).map_err(TransportError::Faults)?;
    if config.checks().buffers && faults.sources.is_zero() && device.gpu().is_none() {
        faults.sources = SOURCES_WATCHED;
    }
    let null = *config.hca() == Hca::Null;
    let reachable = device.gpu().is_none();
    let kernel = match config.soft_engine() {
        config::SoftEngine::Auto => null || !reachable,
        config::SoftEngine::Kernel | config::SoftEngine::Copy => true,
        config::SoftEngine::Thread if reachable => false,
        config::SoftEngine::Thread => {
            return Err(TransportError::NotAvailable {
                name: "OXSHMEM_SOFT_ENGINE=thread on the `cuda` device, whose queues the CPU cannot reach,",
                remedy: "use auto, kernel or copy",
            }
            .into());
        }
    };
    let accelerator = kernel.then(|| device.accelerator()).transpose()?;
    let host_doorbells = kernel && kind == NetworkKind::Ibrc;
    let copying = match config.soft_engine() {
        config::SoftEngine::Auto | config::SoftEngine::Thread => CopyMode::WhenNeeded,
        config::SoftEngine::Kernel => CopyMode::Never,
        config::SoftEngine::Copy => CopyMode::Always,
    };
    let options = SoftOptions { faults, accelerator, host_doorbells, null, copying, ..SoftOptions::default() };
    let options = if config.soft_trace() { options.traced() } else { options };
    let hca = SoftHca::open(options)?;
    let (general, atomic) = query_caps(hca.as_ref())?;
    let (card, coherent) = OpenCard::new(Arc::<SoftHca>::clone(&hca), &general, &atomic)?;
    let card = OpenCard { chosen: played, ..card };
    Ok(Opened::of_soft(hca, card, coherent))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn votes_survive(
            provider in "[a-z0-9]{0,8}",
            device_posts: bool,
            cards in proptest::collection::vec((any::<[u8; Spot::BYTES]>()).prop_filter_map("a spot", |bytes| Spot::from_bytes(&bytes)), 0..5),
            reason in ".{0,80}",
        ) {
            let vote = Vote { provider, device_posts, cards, reason };
            prop_assert_eq!(Vote::from_bytes(&vote.to_bytes()), Some(vote));
        }

        #[test]
        fn any_bytes_are_a_vote_or_not(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            let _ = Vote::from_bytes(&bytes);
        }
    }
}
