//! Which experts each token goes to: chosen at random, the same on every PE for one seed.

use std::ops::Range;

use oxshmem_perftest::pattern::word;

/// A mixture of experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Routing {
    /// PEs.
    pub npes: usize,
    /// Tokens of each PE.
    pub tokens: u64,
    /// Experts of all PEs.
    pub experts: u64,
    /// Different experts of a token.
    pub top: u64,
    /// What the choice depends on.
    pub seed: u64,
}

impl Routing {
    /// Returns the experts of `pe`: all have as many, the first ones one more if they do not come
    /// out even.
    pub fn experts_of(&self, pe: usize) -> Range<u64> {
        let (npes, pe) = (self.npes as u64, pe as u64);
        let (each, more) = (self.experts / npes, self.experts % npes);
        let first = pe * each + pe.min(more);
        first..first + each + u64::from(pe < more)
    }

    /// Returns the PE of each expert.
    pub fn owners(&self) -> Vec<u32> {
        (0..self.npes).flat_map(|pe| self.experts_of(pe).map(move |_| pe as u32)).collect()
    }

    /// Returns the choices of `pe`'s tokens, `top` for each: different experts, some liked more
    /// than others, as real ones are.
    pub fn chosen(&self, pe: usize) -> Vec<u32> {
        let seed = self.seed ^ (pe as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut chosen = Vec::with_capacity((self.tokens * self.top) as usize);
        for token in 0..self.tokens {
            let begin = chosen.len();
            let mut draw = 0;
            while ((chosen.len() - begin) as u64) < self.top {
                let random = word(seed, token, draw);
                // The smaller of two: low numbers are twice as likely as the average.
                let expert = ((random >> 32) % self.experts).min((random & 0xffff_ffff) % self.experts) as u32;
                draw += 1;
                if !chosen[begin..].contains(&expert) {
                    chosen.push(expert);
                }
            }
        }
        chosen
    }

    /// Returns the most tokens that a PE can get from another.
    pub fn capacity(&self) -> u64 {
        self.tokens * self.top.min(self.experts.div_ceil(self.npes as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn choices_are_different_experts_and_fit(
            npes in 1usize..9, tokens in 1u64..40, experts in 1u64..30, top in 1u64..9, seed: u64
        ) {
            prop_assume!(top <= experts);
            let routing = Routing { npes, tokens, experts, top, seed };
            let owners = routing.owners();
            prop_assert_eq!(owners.len() as u64, experts);
            prop_assert!(owners.is_sorted());
            for pe in 0..npes {
                let chosen = routing.chosen(pe);
                prop_assert_eq!(chosen.len() as u64, tokens * top);
                let mut by_pe = vec![0; npes];
                for choice in chosen.chunks_exact(top as usize) {
                    let mut sorted = choice.to_vec();
                    sorted.sort_unstable();
                    sorted.dedup();
                    prop_assert_eq!(sorted.len(), choice.len());
                    choice.iter().for_each(|expert| by_pe[owners[*expert as usize] as usize] += 1);
                }
                prop_assert!(by_pe.iter().all(|n| *n <= routing.capacity()));
            }
        }
    }

    #[test]
    fn seeds_and_pes_choose_differently() {
        let routing = Routing { npes: 4, tokens: 50, experts: 16, top: 4, seed: 1 };
        assert_eq!(routing.chosen(0), routing.chosen(0));
        assert_ne!(routing.chosen(0), routing.chosen(1));
        assert_ne!(routing.chosen(0), Routing { seed: 2, ..routing }.chosen(0));
    }
}
