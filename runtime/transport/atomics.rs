//! What does atomics on memory that GPUs load and store too: the GPU of the PE that calls, or the
//! target's card.
//!
//! A card reads, changes and writes a word without the GPU noticing, unless the platform has PCIe
//! atomics that both use. Linux's driver says of no ConnectX that its atomics are atomic with those
//! of the host (`mlx5_ib_query_device` sets `IB_ATOMIC_HCA` or `IB_ATOMIC_NONE`).

use super::error::TransportError;
use crate::Result;
use crate::abi;
use crate::bootstrap::Bootstrap;
use crate::config::{self, Config};

/// What does atomics. The same on all PEs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Atomics {
    /// Whether all cards' atomics are atomic with those of CPUs, GPUs and other cards, and those of
    /// GPUs with each other.
    coherent: bool,
    /// Whether cards do all of them, even where memory can be loaded and stored.
    pub by_card: bool,
}

impl Atomics {
    /// Agrees on it with all PEs; `coherent` says what this PE's cards and links between GPUs are.
    /// Returns what each PE has passed as `further`, of seven bits, as well. Collective.
    ///
    /// # Errors
    /// PEs with different settings of `OXSHMEM_ATOMICS`.
    pub(super) fn agree(
        config: &Config,
        bootstrap: &Bootstrap,
        coherent: bool,
        further: u8,
    ) -> Result<(Self, Vec<u8>)> {
        let mode = config.atomics();
        let told = bootstrap.allgather("atomics", &[u8::from(coherent) | further << 1, mode as u8])?;
        let agreed = Self::settle(mode, &told)?;
        if bootstrap.rank() == 0 {
            tracing::info!("atomics: {}", agreed.describe(mode));
        }
        Ok((agreed, told.iter().map(|theirs| theirs[0] >> 1).collect()))
    }

    fn settle(mode: config::Atomics, told: &[Vec<u8>]) -> Result<Self, TransportError> {
        let mut coherent = true;
        for (pe, theirs) in told.iter().enumerate() {
            let &[first, other] = theirs.as_slice() else { return Err(TransportError::Address { pe }) };
            if other != mode as u8 {
                return Err(TransportError::Atomics { mine: mode, pe });
            }
            coherent &= first & 1 == 1;
        }
        let by_card = match mode {
            config::Atomics::Auto => !coherent,
            config::Atomics::Gpu => false,
            config::Atomics::Card => true,
        };
        Ok(Self { coherent, by_card })
    }

    /// Returns whether a word that atomics of GPUs and of cards change at a time is an error: they
    /// may not be atomic with each other, or the program says that it does without.
    pub(crate) fn are_watched(self, mode: config::Atomics) -> bool {
        !self.coherent || mode == config::Atomics::Gpu
    }

    /// Returns what is in effect, in a line.
    pub(super) fn describe(self, mode: config::Atomics) -> String {
        match (self.coherent, self.by_card) {
            (true, false) => format!("those of cards and GPUs are atomic with each other (OXSHMEM_ATOMICS={mode})"),
            (true, true) => format!(
                "all of them by cards (OXSHMEM_ATOMICS={mode}), although those of GPUs are atomic with them; OXSHMEM_ATOMICS=auto is faster"
            ),
            (false, true) => format!(
                "all of them by cards, which are not atomic with GPUs, or as GPUs are not with each other (OXSHMEM_ATOMICS={mode}); OXSHMEM_ATOMICS=gpu is faster for programs \
                 in which no word is a target of both load/store peers and peers over the network"
            ),
            (false, false) => format!(
                "by the GPU on its own memory and that of load/store peers, by cards on that of others (OXSHMEM_ATOMICS={mode}); a word \
                 that is a target of both loses updates"
            ),
        }
    }

    /// Returns whether the first card, of this number of them, does all atomics on a PE's memory.
    pub(super) fn on_first_card(self, cards: u32) -> bool {
        !self.coherent && cards > 1
    }

    /// Tells device code, which drives so many cards.
    pub(super) fn tell(self, cards: u32, state: &mut abi::State) {
        state.atomics_by_network = u32::from(self.by_card);
        state.atomics_on_first_card = u32::from(self.on_first_card(cards));
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use config::Atomics::{Auto, Card, Gpu};

    fn told(modes: &[(bool, config::Atomics)]) -> Vec<Vec<u8>> {
        modes.iter().map(|(coherent, mode)| vec![u8::from(*coherent), *mode as u8]).collect()
    }

    #[test]
    fn one_card_that_is_not_coherent_decides_for_all() {
        for (mode, by_card) in [(Auto, true), (Card, true), (Gpu, false)] {
            let settled = Atomics::settle(mode, &told(&[(true, mode); 2])).unwrap();
            assert_eq!((settled.by_card, settled.are_watched(mode)), (mode == Card, mode == Gpu));
            assert!(settled.describe(mode).contains(&format!("OXSHMEM_ATOMICS={mode}")));
            let settled = Atomics::settle(mode, &told(&[(true, mode), (false, mode)])).unwrap();
            assert_eq!((settled.by_card, settled.coherent), (by_card, false));
            assert!(settled.are_watched(mode));
            assert!(settled.describe(mode).contains(&format!("OXSHMEM_ATOMICS={mode}")));
        }
    }

    #[test]
    fn several_cards_leave_atomics_to_the_first() {
        let mut state = abi::State::default();
        let settled = Atomics::settle(Gpu, &told(&[(false, Gpu)])).unwrap();
        settled.tell(2, &mut state);
        assert_eq!((state.atomics_by_network, state.atomics_on_first_card), (0, 1));
        settled.tell(1, &mut state);
        assert_eq!((state.atomics_by_network, state.atomics_on_first_card), (0, 0));
        Atomics::settle(Auto, &told(&[(true, Auto)])).unwrap().tell(2, &mut state);
        assert_eq!((state.atomics_by_network, state.atomics_on_first_card), (0, 0));
    }

    #[test]
    fn settings_that_differ_are_refused() {
        let error = Atomics::settle(Auto, &told(&[(true, Auto), (true, Gpu)])).unwrap_err();
        assert!(error.to_string().contains("OXSHMEM_ATOMICS=auto") && error.to_string().contains("PE 1"), "{error}");
        let error = Atomics::settle(Auto, &[vec![]]).unwrap_err();
        assert!(matches!(error, TransportError::Address { pe: 0 }));
    }
}
