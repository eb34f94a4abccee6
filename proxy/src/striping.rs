//! Queue pairs that are spread over several cards.

use std::sync::Arc;

use oxshmem_system::words::count32;

use crate::work::{Backend, Capabilities, Completion, PollError, PostError, WorkRequest};

/// How the queue pairs of a PE are spread over its cards: number `i` of those to each peer leads to
/// the peer's card `i % targets`, and is on the card of this PE that has the same number, or that
/// the PE pushes to the peer's card by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Striping {
    per_peer: u32,
    targets: u32,
    pushed: Option<Arc<Pushed>>,
}

/// Places of queue pairs where cards of other rails send too.
#[derive(Debug, PartialEq, Eq)]
struct Pushed {
    /// By queue pair: its card, and its dense index among those on that card.
    places: Vec<(u32, u32)>,
    /// By card: its queue pairs.
    on: Vec<Vec<u32>>,
}

impl Striping {
    /// Spreads `per_peer` queue pairs to each peer, at least one, over `cards` cards, at least one
    /// and at most `per_peer`.
    #[must_use]
    pub fn new(per_peer: u32, cards: u32) -> Self {
        let per_peer = per_peer.max(1);
        Self { per_peer, targets: cards.clamp(1, per_peer), pushed: None }
    }

    /// Puts each queue pair, by dense index, on the card of this PE that `senders` says for it; the
    /// PE has `cards` of them. Queue pairs lead to the same cards of the peers as before.
    ///
    /// ```
    /// use oxshmem_proxy::striping::Striping;
    ///
    /// // Two queue pairs to each of two peers, the second on another rail than this PE.
    /// let striping = Striping::new(2, 1).push(2, [0, 0, 1, 1]);
    /// assert_eq!((striping.cards(), striping.card(1), striping.card(2)), (2, 0, 1));
    /// assert_eq!((striping.target(2), striping.place(3)), (0, (1, 1)));
    /// ```
    #[must_use]
    pub fn push(self, cards: u32, senders: impl IntoIterator<Item = u32>) -> Self {
        let mut on = vec![Vec::new(); cards as usize];
        let place = |(qp, card): (u32, u32)| {
            let on_card: &mut Vec<u32> = &mut on[card as usize];
            on_card.push(qp);
            (card, count32(on_card.len() - 1))
        };
        let places = (0..).zip(senders).map(place).collect();
        Self { pushed: Some(Arc::new(Pushed { places, on })), ..self }
    }

    /// Returns the number of queue pairs to each peer.
    #[must_use]
    pub fn per_peer(&self) -> u32 {
        self.per_peer
    }

    /// Returns the number of cards of each PE that its peers send to.
    #[must_use]
    pub fn targets(&self) -> u32 {
        self.targets
    }

    /// Returns the number of cards of this PE.
    #[must_use]
    pub fn cards(&self) -> u32 {
        self.pushed.as_ref().map_or(self.targets, |pushed| count32(pushed.on.len()))
    }

    /// Returns how many queue pairs to `peers` peers are on a card.
    #[must_use]
    pub fn on(&self, card: u32, peers: u32) -> u32 {
        match &self.pushed {
            Some(pushed) => pushed.on.get(card as usize).map_or(0, |on| count32(on.len())),
            None => peers * self.row(card),
        }
    }

    /// Returns the number of queue pairs of each peer that are on a card, where none is pushed.
    fn row(&self, card: u32) -> u32 {
        self.per_peer.saturating_sub(card).div_ceil(self.targets)
    }

    /// Returns the card of the peer that a queue pair leads to, by dense index.
    #[must_use]
    #[inline]
    pub fn target(&self, qp: u32) -> u32 {
        if self.targets == 1 { 0 } else { qp % self.per_peer % self.targets }
    }

    /// Returns the card of a queue pair, by dense index.
    #[must_use]
    #[inline]
    pub fn card(&self, qp: u32) -> u32 {
        match &self.pushed {
            Some(pushed) => pushed.places[qp as usize].0,
            None => self.target(qp),
        }
    }

    /// Returns the card of a queue pair, and its dense index among those on that card.
    #[must_use]
    #[inline]
    pub fn place(&self, qp: u32) -> (u32, u32) {
        if let Some(pushed) = &self.pushed {
            return pushed.places[qp as usize];
        }
        let card = self.target(qp);
        (card, qp / self.per_peer * self.row(card) + qp % self.per_peer / self.targets)
    }

    /// Returns the queue pair with dense index `index` among those on `card`.
    #[must_use]
    #[inline]
    pub fn queue_pair(&self, card: u32, index: u32) -> u32 {
        if let Some(pushed) = &self.pushed {
            return pushed.on[card as usize][index as usize];
        }
        let on = self.row(card).max(1);
        index / on * self.per_peer + index % on * self.targets + card
    }
}

/// Returns the backends of cards, in order and as many as `striping` says, as one; `None` of
/// another number.
#[must_use]
pub fn striped(striping: Striping, mut cards: Vec<Box<dyn Backend>>) -> Option<Box<dyn Backend>> {
    if cards.len() != striping.cards() as usize {
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
            let striping = &self.striping;
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
        assert_eq!((striping.on(0, 1), striping.on(1, 1)), (3, 2));
        assert_eq!(places[..5], [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2)]);
        assert_eq!(places[5..], [(0, 3), (1, 2), (0, 4), (1, 3), (0, 5)]);
        // There are no more cards than queue pairs to a peer.
        assert_eq!((Striping::new(2, 4).cards(), Striping::new(0, 0).cards()), (2, 1));
    }

    fn check(striping: &Striping, peers: u32) -> Result<(), TestCaseError> {
        let mut seen = vec![Vec::new(); striping.cards() as usize];
        for qp in 0..peers * striping.per_peer() {
            let (card, index) = striping.place(qp);
            prop_assert_eq!(card, striping.card(qp));
            prop_assert_eq!(striping.queue_pair(card, index), qp);
            seen[card as usize].push(index);
        }
        for (card, indices) in (0u32..).zip(seen) {
            // Dense, and in order.
            prop_assert_eq!(indices, (0..striping.on(card, peers)).collect::<Vec<_>>());
        }
        Ok(())
    }

    proptest! {
        #[test]
        fn each_queue_pair_has_a_place_of_its_own(per_peer in 1u32..12, cards in 1u32..5, peers in 1u32..6) {
            let striping = Striping::new(per_peer, cards);
            check(&striping, peers)?;
        }

        #[test]
        fn so_has_each_that_is_pushed(
            per_peer in 1u32..6,
            targets in 1u32..3,
            senders in prop::collection::vec(0u32..8, 1..40),
        ) {
            let peers = count32(senders.len()) / per_peer;
            let senders = senders.into_iter().take((peers * per_peer) as usize);
            let striping = Striping::new(per_peer, targets).push(8, senders.clone());
            prop_assert_eq!(striping.cards(), 8);
            for (qp, sender) in (0..).zip(senders) {
                prop_assert_eq!(striping.card(qp), sender);
                prop_assert_eq!(striping.target(qp), Striping::new(per_peer, targets).card(qp));
            }
            check(&striping, peers)?;
        }
    }
}
