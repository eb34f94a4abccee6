//! How the scheduler decides: at random, by priorities that change a few times (PCT: Burckhardt et
//! al., "A randomized scheduler with probabilistic guarantees of finding bugs", ASPLOS 2010), or
//! exhaustively by depth-first search.

use rand::rngs::SmallRng;
use rand::{Rng, RngCore, SeedableRng};
use rustc_hash::FxHashSet;

/// What kind of process an action belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// A device thread or a proxy.
    Thread = 0,
    /// A store on its way.
    Drain = 1,
    /// A step of an HCA.
    Hca = 2,
}

#[derive(Debug, Clone)]
enum Way {
    /// Each process that can run has a weight.
    Random { weights: [u32; 3] },
    /// The process of the highest priority runs. At `points`, the running one becomes the lowest.
    Priorities { points: Vec<u64> },
    /// All choices, one after the other.
    Exhaustive(Search),
}

/// The state of a depth-first search: the choices of the current path, and the states that were
/// reached.
#[derive(Debug, Clone, Default)]
pub struct Search {
    path: Vec<(u16, u16)>,
    at: usize,
    states: FxHashSet<u64>,
    most_states: usize,
}

impl Search {
    /// Returns a search that gives up after `states` states.
    #[must_use]
    pub fn new(most_states: usize) -> Self {
        Self { most_states, ..Self::default() }
    }

    /// Goes to the next path; false if there is none.
    pub fn advance(&mut self) -> bool {
        self.at = 0;
        while let Some((taken, of)) = self.path.pop() {
            if taken + 1 < of {
                self.path.push((taken + 1, of));
                return true;
            }
        }
        false
    }

    /// States so far.
    #[must_use]
    pub fn states(&self) -> usize {
        self.states.len()
    }

    /// Returns whether more states were reached than the search has room for.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.states.len() >= self.most_states
    }

    /// Returns a search that follows a path once, without looking at states.
    #[must_use]
    pub fn of_path(path: &[u16]) -> Self {
        let path = path.iter().map(|&taken| (taken, u16::MAX)).collect();
        Self { path, at: 0, states: FxHashSet::default(), most_states: usize::MAX }
    }

    /// Returns the choices, for a message that tells them.
    #[must_use]
    pub fn path(&self) -> Vec<u16> {
        self.path.iter().map(|(taken, _)| *taken).collect()
    }
}

/// See the module's documentation.
#[derive(Debug, Clone)]
pub struct Policy {
    random: SmallRng,
    way: Way,
    next_low: u64,
    /// How much later than other processes stores move on.
    lazy_stores: u32,
}

const LOW: u64 = 1 << 20;

impl Policy {
    /// Returns a random one, all of which the seed decides. `steps`: about as many as an execution
    /// has.
    #[must_use]
    pub fn random(seed: u64, steps: u64) -> Self {
        let mut random = SmallRng::seed_from_u64(seed);
        let way = if random.random_ratio(2, 5) {
            let mut weight = || 1 << random.random_range(0u32..6);
            Way::Random { weights: [weight(), weight(), weight()] }
        } else {
            let depth = random.random_range(0..6);
            Way::Priorities { points: (0..depth).map(|_| random.random_range(0..steps.max(1))).collect() }
        };
        let lazy_stores = [0, 0, 8, 24][random.random_range(0..4)];
        Self { random, way, next_low: LOW, lazy_stores }
    }

    /// Returns one that follows a search.
    #[must_use]
    pub fn exhaustive(search: Search) -> Self {
        Self { random: SmallRng::seed_from_u64(0), way: Way::Exhaustive(search), next_low: LOW, lazy_stores: 0 }
    }

    /// Returns the search that it follows, which is taken out.
    pub fn take_search(&mut self) -> Search {
        match &mut self.way {
            Way::Exhaustive(search) => std::mem::take(search),
            _ => Search::default(),
        }
    }

    pub(crate) fn is_exhaustive(&self) -> bool {
        matches!(self.way, Way::Exhaustive(_))
    }

    pub(crate) fn is_new_choice(&self) -> bool {
        matches!(&self.way, Way::Exhaustive(search) if search.at >= search.path.len())
    }

    /// Notes a state; false if it was reached before.
    pub(crate) fn note_state(&mut self, state: u64) -> bool {
        match &mut self.way {
            Way::Exhaustive(search) if search.most_states != usize::MAX => search.states.insert(state),
            _ => true,
        }
    }

    /// Returns a priority for a new process.
    #[inline]
    pub(crate) fn priority(&mut self) -> u64 {
        self.random.next_u64() >> 1 | 1 << 40
    }

    /// Returns a priority for a store: above that of threads that wait, which would otherwise keep
    /// it from moving forever.
    #[inline]
    pub(crate) fn store_priority(&mut self) -> u64 {
        (self.random.next_u64() >> 1 | 1 << 40) >> self.lazy_stores | LOW << 1
    }

    /// Returns a priority below all others.
    #[inline]
    pub(crate) fn lowest(&mut self) -> u64 {
        self.next_low = self.next_low.saturating_sub(1);
        self.next_low
    }

    /// Returns the lowest priority, if the running process is to have it from this step on.
    #[inline]
    pub(crate) fn change_point(&mut self, step: u64) -> Option<u64> {
        match &self.way {
            Way::Priorities { points } if points.contains(&step) => Some(self.lowest()),
            _ => None,
        }
    }

    /// True once in `n` times, or both in an exhaustive search.
    #[inline]
    pub(crate) fn chance(&mut self, n: u32) -> bool {
        if self.is_exhaustive() { self.choose(2) == 1 } else { self.random.random_ratio(1, n) }
    }

    /// Returns one of `n`.
    pub(crate) fn choose(&mut self, n: usize) -> usize {
        if n == 1 {
            return 0;
        }
        match &mut self.way {
            Way::Exhaustive(search) => {
                if search.at == search.path.len() {
                    search.path.push((0, n as u16));
                }
                let (taken, of) = search.path[search.at];
                debug_assert!(of == u16::MAX || usize::from(of) == n, "an execution is repeated as it was");
                search.at += 1;
                taken.into()
            }
            _ => self.random.random_range(0..n),
        }
    }

    /// Returns which of the actions is next, given the class and priority of each.
    #[inline]
    pub(crate) fn pick(&mut self, actions: impl Iterator<Item = (Class, u64)> + Clone) -> usize {
        match &self.way {
            Way::Random { weights } => {
                let total: u32 = actions.clone().map(|(class, _)| weights[class as usize]).sum();
                let mut left = self.random.random_range(0..total);
                for (index, (class, _)) in actions.enumerate() {
                    let weight = weights[class as usize];
                    if left < weight {
                        return index;
                    }
                    left -= weight;
                }
                0
            }
            _ => actions.enumerate().max_by_key(|(_, (_, priority))| *priority).map_or(0, |(index, _)| index),
        }
    }
}
