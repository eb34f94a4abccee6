//! Whether PEs push: send to PEs of other nodes by the cards that are on those PEs' rails.
//!
//! Every PE decides by itself whether it is to push and can, tells the others, and all push or none
//! does: where PEs push, the two ends of a queue pair are on other cards than where they do not.

use oxshmem_hca::provider::Attempt;

use super::error::TransportError;
use super::measure::{self, Measured};
use super::opened::{Opened, open_card};
use super::plan::{NetworkKind, Plan};
use super::rails::Pushing;
use super::selection::{self, OnNode, OnRail};
use crate::Result;
use crate::bootstrap::Bootstrap;
use crate::config::{self, Config, Hca};
use crate::device::Device;
use crate::heap::PeerLinks;

/// What a PE tells the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stance {
    setting: config::Rails,
    /// Whether it is to push and can.
    pushes: bool,
    /// Whether it does so only if measuring says that it is worth it.
    measures: bool,
}

/// What the PEs have told, all together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Told {
    /// The first PE that does not push, if one does not.
    pub other: Option<usize>,
    /// Whether some PE is to measure, and it depends on that.
    pub is_open: bool,
}

/// The settings, in the order of the numbers that PEs tell each other.
const SETTINGS: [config::Rails; 3] = [config::Rails::Auto, config::Rails::Direct, config::Rails::Push];

impl Stance {
    /// How many bits PEs tell each other.
    const BITS: u32 = 4;

    /// Returns that of a PE that does not push.
    pub(super) fn direct(config: &Config) -> Self {
        Self { setting: config.rails(), pushes: false, measures: false }
    }

    pub(super) fn bits(self) -> u8 {
        let code = (0u8..).zip(SETTINGS).find(|(_, known)| *known == self.setting).map_or(0, |(code, _)| code);
        code | u8::from(self.pushes) << 2 | u8::from(self.measures) << 3
    }

    pub(super) fn from_bits(bits: u8) -> Option<Self> {
        let setting = *SETTINGS.get(usize::from(bits & 3))?;
        let (pushes, measures) = (bits >> 2 & 1 != 0, bits >> 3 & 1 != 0);
        (bits >> Self::BITS == 0).then_some(Self { setting, pushes, measures })
    }

    /// Returns what follows from what all have told, the same on every PE.
    ///
    /// # Errors
    /// PEs with different settings of `OXSHMEM_RAILS`.
    /// Or they tell what cannot be read.
    pub(super) fn settle(self, told: &[u8]) -> std::result::Result<Told, TransportError> {
        let (mut other, mut measures) = (None, false);
        for (pe, bits) in told.iter().enumerate() {
            let theirs = Self::from_bits(*bits).ok_or(TransportError::Address { pe })?;
            if theirs.setting != self.setting {
                return Err(TransportError::RailsDiffer { mine: self.setting, pe, theirs: theirs.setting });
            }
            other = other.or((!theirs.pushes).then_some(pe));
            measures |= theirs.measures;
        }
        Ok(Told { other, is_open: measures && other.is_none() })
    }
}

/// Refuses to push by cards whose rails PEs do not tell each other.
pub(super) fn check(config: &Config) -> Result<()> {
    match (config.rails(), config.hca()) {
        (config::Rails::Push, Hca::Verbs { .. }) => Err(TransportError::NotAvailable {
            name: "OXSHMEM_RAILS=push with the kernel's verbs (OXSHMEM_HCA=verbs), which drive one card,",
            remedy: "use OXSHMEM_HCA=mlx5 or OXSHMEM_RAILS=direct",
        }
        .into()),
        _ => Ok(()),
    }
}

/// What a PE is ready for.
#[derive(Debug)]
pub(super) enum Outcome {
    /// It has opened the further cards that it sends by.
    Ready {
        pushing: Pushing,
        /// Those of them that topology does not decide about, by their numbers.
        undecided: Vec<usize>,
        /// Why it pushes.
        reason: String,
    },
    /// It sends by its own cards.
    Direct {
        reason: String,
        /// Whether that is worth a line.
        is_news: bool,
    },
}

/// Opens the further cards by which this PE is to send, if it is to push.
///
/// # Errors
/// `OXSHMEM_RAILS=push`, and it cannot.
pub(super) fn prepare(
    config: &Config,
    device: &dyn Device,
    (plan, me): (&Plan, usize),
    (kind, log_depth): (NetworkKind, u32),
    opened: &mut Opened,
) -> Result<Outcome> {
    let setting = config.rails();
    let direct = |reason: &str, is_news| Ok(Outcome::Direct { reason: reason.to_owned(), is_news });
    let known = opened.cards[0].chosen.as_ref().and_then(|chosen| chosen.rail);
    if setting == config::Rails::Direct {
        return direct("OXSHMEM_RAILS=direct says so", known.is_some());
    }
    if plan.nodes.is_single() {
        return direct("all PEs are on one node", false);
    }
    let ready = ready(config, device, (plan, me), (kind, log_depth), opened);
    ready.or_else(|reason| {
        opened.keep_own();
        match setting {
            config::Rails::Push => Err(TransportError::Rails { me, reason }.into()),
            _ => Ok(Outcome::Direct { reason, is_news: known.is_some_and(|rail| rail.of > 1) }),
        }
    })
}

/// Makes the PE ready to push; the error is the reason why the PE does not push.
fn ready(
    config: &Config,
    device: &dyn Device,
    (plan, me): (&Plan, usize),
    (kind, log_depth): (NetworkKind, u32),
    opened: &mut Opened,
) -> std::result::Result<Outcome, String> {
    let pushing = opened.rails.plan(&plan.nodes)?;
    if pushing.is_needless(&opened.rails) {
        let reason = "every PE's own cards are on the rails of all peers".to_owned();
        return Ok(Outcome::Direct { reason, is_news: false });
    }
    let further = pushing.further_rails(&opened.rails, me).to_vec();
    // `plan` has seen that the rail is known, so the card is.
    let chosen = opened.cards[0].chosen.clone().ok_or("it has no card")?;
    let from = opened.cards.len();
    let members = plan.nodes.members(me);
    let node = OnNode {
        places: &opened.places,
        rails: members.iter().map(|pe| opened.rails.first_rail(*pe)).collect(),
        me: members.iter().position(|pe| *pe == me).unwrap_or_default(),
        // Where the CPU proxy posts, nothing goes through the memory of another PE's GPU.
        reached: members.iter().map(|pe| kind == NetworkKind::Ibgda && plan.is_direct(*pe)).collect(),
    };
    let mut undecided = Vec::new();
    for OnRail { chosen, way, reason } in selection::on_rails(config, &chosen, &node, &further)? {
        // Whether copies pay, or how far a card is that no tree shows, topology does not say.
        if config.rails() == config::Rails::Auto && !way.reads_in_place() {
            measure::check(config, device, opened)?;
            undecided.push(opened.cards.len());
        }
        let card = match opened.plays(&chosen) {
            Some(card) => card,
            None => {
                let opening = open_card(config, &chosen.card);
                let (card, _) = opening.map_err(|error| {
                    let rail = chosen.rail.map_or(0, |rail| rail.number);
                    format!("{} of rail {rail} cannot be used: {error}", chosen.card)
                })?;
                card.at(chosen)
            }
        };
        opened.cards.push(card.pushed(way, reason));
    }
    opened.prepare_further(config, device, (kind, log_depth), from).map_err(|error| error.to_string())?;
    let reason = match config.rails() {
        config::Rails::Auto => "the cards of all rails read payloads where they are",
        config::Rails::Direct | config::Rails::Push => "OXSHMEM_RAILS=push says so",
    };
    Ok(Outcome::Ready { pushing, undecided, reason: reason.to_owned() })
}

impl Outcome {
    /// Returns what the PE tells the others.
    pub(super) fn stance(&self, config: &Config) -> Stance {
        match self {
            Self::Ready { undecided, .. } => {
                Stance { setting: config.rails(), pushes: true, measures: !undecided.is_empty() }
            }
            Self::Direct { .. } => Stance::direct(config),
        }
    }

    /// Measures where topology does not decide, and returns what follows from that, with the first
    /// PE that does not push, if one does not. Collective.
    ///
    /// # Errors
    /// A PE is gone, or does not reply.
    pub(super) fn measure(
        self,
        config: &Config,
        (bootstrap, links): (&Bootstrap, &PeerLinks),
        device: &dyn Device,
        on: (&Plan, NetworkKind),
        opened: &Opened,
    ) -> Result<(Self, Option<usize>)> {
        let undecided = match &self {
            Self::Ready { undecided, .. } => &undecided[..],
            Self::Direct { .. } => &[],
        };
        let measured = measure::measure(config, (bootstrap, links), device, on, opened, undecided)?;
        let pushes = measured.as_ref().is_none_or(|measured| measured.pushes);
        let told = bootstrap.allgather("whether pushing is worth it", &[u8::from(pushes)])?;
        let other = told.iter().position(|theirs| theirs != &[1]);
        let outcome = match (self, measured) {
            (Self::Ready { pushing, undecided, .. }, Some(Measured { pushes: true, figures })) => {
                Self::Ready { pushing, undecided, reason: figures }
            }
            (Self::Ready { .. }, Some(Measured { pushes: false, figures })) => {
                Self::Direct { reason: format!("{figures}; OXSHMEM_RAILS=push has them send"), is_news: true }
            }
            (outcome, _) => outcome,
        };
        Ok((outcome, other))
    }

    /// Says what is done, now that all PEs have told; `other` is the first PE that does not push.
    pub(super) fn settle(self, opened: &mut Opened, other: Option<usize>) {
        let what = "PEs of other nodes sent to by the cards on their rails".to_owned();
        let outcome = match (self, other) {
            (Self::Ready { pushing, reason, .. }, None) => {
                opened.push(pushing);
                Ok(format!("in use: {reason}"))
            }
            (Self::Ready { reason, undecided, .. }, Some(pe)) => {
                opened.keep_own();
                let figures = if undecided.is_empty() { String::new() } else { format!(" (here {reason})") };
                Err(format!("PE {pe} does not, and all do or none does; its log says why{figures}"))
            }
            (Self::Direct { reason, is_news }, _) => {
                opened.keep_own();
                if !is_news {
                    return;
                }
                Err(reason)
            }
        };
        opened.attempts.push(Attempt { what, outcome });
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use config::Rails::{Auto, Direct, Push};

    #[test]
    fn stances_arrive() {
        for setting in [Auto, Direct, Push] {
            for (pushes, measures) in [(false, false), (true, false), (true, true)] {
                let stance = Stance { setting, pushes, measures };
                assert_eq!(Stance::from_bits(stance.bits()), Some(stance));
            }
        }
        for wrong in [3, 7, 16, 255] {
            assert_eq!(Stance::from_bits(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn all_push_or_none_does_and_settings_are_alike() {
        let stance = |setting, pushes, measures| Stance { setting, pushes, measures };
        let [pushes, open, direct] = [(true, false), (true, true), (false, false)].map(|(a, b)| stance(Auto, a, b));
        let settle = |all: &[Stance]| {
            let told: Vec<u8> = all.iter().map(|stance| stance.bits()).collect();
            pushes.settle(&told)
        };
        let told = |other, is_open| Told { other, is_open };
        assert_eq!(settle(&[pushes, pushes]).unwrap(), told(None, false));
        assert_eq!(settle(&[pushes, direct, direct]).unwrap(), told(Some(1), false));
        // One that measures has all wait for that, unless one does not push anyhow.
        assert_eq!(settle(&[pushes, open]).unwrap(), told(None, true));
        assert_eq!(settle(&[open, pushes, direct]).unwrap(), told(Some(2), false));
        let error = settle(&[pushes, open, stance(Push, true, false)]).unwrap_err().to_string();
        assert!(error.contains("OXSHMEM_RAILS=auto") && error.contains("PE 2 has `push`"), "{error}");
    }

    #[test]
    fn verbs_do_not_push() {
        let config = |rails| Config::from_vars([("OXSHMEM_HCA", "verbs"), ("OXSHMEM_RAILS", rails)]).unwrap();
        assert!(check(&config("auto")).is_ok());
        let error = check(&config("push")).unwrap_err().to_string();
        assert!(error.contains("OXSHMEM_RAILS=push with the kernel's verbs"), "{error}");
    }
}
