//! Queue pairs that are spread over several cards.

use crate::work::{Backend, Capabilities, Completion, PollError, PostError, WorkRequest};

/// How the queue pairs of a PE are spread over its cards: number `i` of those to each peer is on
/// card `i % cards`, at both ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Striping {
    per_peer: u32,
    cards: u32,
}

impl Striping {
    /// Spreads `per_peer` queue pairs to each peer, at least one, over `cards` cards, at least one
    /// and at most `per_peer`.
    #[must_use]
    pub fn new(per_peer: u32, cards: u32) -> Self {
        let per_peer = per_peer.max(1);
        Self { per_peer, cards: cards.clamp(1, per_peer) }
    }

    /// Queue pairs to each peer.
    #[must_use]
    pub fn per_peer(&self) -> u32 {
        self.per_peer
    }

    /// Cards.
    #[must_use]
    pub fn cards(&self) -> u32 {
        self.cards
    }

    /// Queue pairs to each peer that are on a card.
    #[must_use]
    pub fn on(&self, card: u32) -> u32 {
        self.per_peer.saturating_sub(card).div_ceil(self.cards)
    }

    /// Returns the card of a queue pair, by dense index.
    #[must_use]
    #[inline]
    pub fn card(&self, qp: u32) -> u32 {
        if self.cards == 1 { 0 } else { qp % self.per_peer % self.cards }
    }

    /// Returns the card of a queue pair, and its dense index among those on that card.
    #[must_use]
    #[inline]
    pub fn place(&self, qp: u32) -> (u32, u32) {
        let card = self.card(qp);
        (card, qp / self.per_peer * self.on(card) + qp % self.per_peer / self.cards)
    }

    /// Returns the queue pair with dense index `index` among those on `card`.
    #[must_use]
    #[inline]
    pub fn queue_pair(&self, card: u32, index: u32) -> u32 {
        let on = self.on(card).max(1);
        index / on * self.per_peer + index % on * self.cards + card
    }
}

/// Returns the backends of cards, in order and as many as `striping` says, as one; `None` of
/// another number.
#[must_use]
pub fn striped(striping: Striping, mut cards: Vec<Box<dyn Backend>>) -> Option<Box<dyn Backend>> {
    if cards.len() != striping.cards as usize {
        return None;
    }
    if cards.len() == 1 {
        return cards.pop();
    }
    let capabilities = cards.iter().map(|card| *card.capabilities()).reduce(Capabilities::both)?;
    Some(Box::new(Striped { striping, cards, capabilities, seen: Vec::new() }))
}

struct Striped {
    striping: Striping,
    cards: Vec<Box<dyn Backend>>,
    capabilities: Capabilities,
    /// Completions of one card.
    seen: Vec<Completion>,
}

impl Backend for Striped {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn post(&mut self, qp: u32, requests: &[WorkRequest]) -> Result<(), PostError> {
        let (card, index) = self.striping.place(qp);
        self.cards[card as usize].post(index, requests)
    }

    fn announce(&self) {
        self.cards.iter().for_each(|card| card.announce());
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) -> Result<(), PollError> {
        for (number, card) in (0u32..).zip(&mut self.cards) {
            card.poll(&mut self.seen)?;
            let striping = self.striping;
            let as_one = |seen: Completion| Completion { qp: striping.queue_pair(number, seen.qp), ..seen };
            completions.extend(self.seen.drain(..).map(as_one));
        }
        Ok(())
    }

    fn status(&self) -> String {
        let each = self.cards.iter().enumerate().map(|(number, card)| format!("card {number}: {}", card.status()));
        each.collect::<Vec<_>>().join("; ")
    }

    fn explain(&self, qp: u32) -> Option<String> {
        let (card, index) = self.striping.place(qp);
        self.cards[card as usize].explain(index)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn queue_pairs_to_a_peer_take_turns() {
        let striping = Striping::new(5, 2);
        let places: Vec<_> = (0..10).map(|qp| striping.place(qp)).collect();
        assert_eq!((striping.on(0), striping.on(1)), (3, 2));
        assert_eq!(places[..5], [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2)]);
        assert_eq!(places[5..], [(0, 3), (1, 2), (0, 4), (1, 3), (0, 5)]);
        // There are no more cards than queue pairs to a peer.
        assert_eq!((Striping::new(2, 4).cards(), Striping::new(0, 0).cards()), (2, 1));
    }

    proptest! {
        #[test]
        fn each_queue_pair_has_a_place_of_its_own(per_peer in 1u32..12, cards in 1u32..5, peers in 1u32..6) {
            let striping = Striping::new(per_peer, cards);
            let mut seen = vec![Vec::new(); striping.cards() as usize];
            for qp in 0..peers * per_peer {
                let (card, index) = striping.place(qp);
                prop_assert_eq!(card, striping.card(qp));
                prop_assert_eq!(striping.queue_pair(card, index), qp);
                seen[card as usize].push(index);
            }
            for (card, indices) in (0u32..).zip(seen) {
                // Dense, and in order.
                prop_assert_eq!(indices, (0..peers * striping.on(card)).collect::<Vec<_>>());
            }
        }
    }
}
