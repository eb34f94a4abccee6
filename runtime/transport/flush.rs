//! Whether quiet reads through the cards after what it has written. An acknowledgement says that
//! the peer's card has a write, not that the peer's memory does: it may still be on its way across
//! PCIe. The card's own later writes come after it, and its reads find it. So a PE that learns of
//! the write through the same card finds the data, and one that learns of it in another way may
//! not: from another card, or by load and store from a PE of its node.

use crate::config::Flush;

/// What is known of a job's network.
#[derive(Debug, Clone, Copy)]
pub(super) struct Known {
    /// Cards of each PE.
    pub cards: u32,
    /// Whether PEs send by the cards of several rails.
    pub pushes: bool,
    /// Whether a completion says that all PEs can see what was written.
    pub visible_completions: bool,
    /// Whether some PEs reach each other by load and store.
    pub shares_memory: bool,
}

/// Returns whether quiet reads through each queue pair that was written through.
pub(super) fn on_quiet(choice: Flush, known: Known) -> bool {
    match choice {
        Flush::Always => true,
        Flush::Never => false,
        Flush::Auto => !known.visible_completions && (known.cards > 1 || known.pushes || known.shares_memory),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quiet_reads_where_a_pe_may_learn_of_a_write_in_another_way_than_through_its_card() {
        for (cards, pushes, visible_completions, shares_memory, reads) in [
            (1, false, false, false, false),
            (1, false, false, true, true),
            (2, false, false, false, true),
            (1, true, false, false, true),
            (2, true, true, true, false),
            (1, false, true, true, false),
        ] {
            let known = Known { cards, pushes, visible_completions, shares_memory };
            assert_eq!(on_quiet(Flush::Auto, known), reads, "{known:?}");
            assert!(on_quiet(Flush::Always, known) && !on_quiet(Flush::Never, known));
        }
    }
}
