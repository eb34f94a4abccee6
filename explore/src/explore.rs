//! Explorations: many executions of a program.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::module::{Module, ModuleError};
use crate::policy::{Policy, Search};
use crate::world::{Outcome, World};

/// How long an exploration goes on.
#[derive(Debug, Clone, Copy)]
pub struct Limit {
    /// Steps of all executions together.
    pub steps: u64,
    /// Time.
    pub time: Duration,
}

impl Limit {
    /// Returns a number of steps.
    #[must_use]
    pub fn steps(steps: u64) -> Self {
        Self { steps, time: Duration::MAX }
    }
}

/// How a violation can be seen again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Replay {
    /// The seed of a random execution, and the length it was made for.
    Seed {
        /// The seed.
        seed: u64,
        /// The length.
        steps: u64,
    },
    /// The choices of an exhaustive search.
    Path(Vec<u16>),
}

impl std::fmt::Display for Replay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Seed { seed, steps } => write!(f, "--seed {seed} --replay {steps}"),
            Self::Path(path) => write!(f, "after {} choices of an exhaustive search", path.len()),
        }
    }
}

/// A violation that was found.
#[derive(Debug, Clone)]
pub struct Found {
    /// The module and program.
    pub program: String,
    /// How to see it again.
    pub replay: Replay,
    /// The invariant that was violated.
    pub text: String,
    /// The execution, in words.
    pub trace: Vec<String>,
}

impl std::fmt::Display for Found {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "{}: {}", self.program, self.replay)?;
        for line in &self.trace {
            writeln!(f, "  {line}")?;
        }
        Ok(())
    }
}

/// What an exploration did.
#[derive(Debug, Clone)]
pub struct Report {
    /// Executions.
    pub executions: u64,
    /// Steps of all of them.
    pub steps: u64,
    /// States, of an exhaustive search.
    pub states: usize,
    /// Whether an exhaustive search has seen everything.
    pub complete: bool,
    /// The first violation.
    pub found: Option<Found>,
    /// How long it took.
    pub time: Duration,
}

fn policy_of(replay: &Replay) -> Policy {
    match replay {
        Replay::Seed { seed, steps } => Policy::random(*seed, *steps),
        Replay::Path(path) => Policy::exhaustive(Search::of_path(path)),
    }
}

fn told(world: &World, replay: Replay, text: String) -> Found {
    let program = format!("{} of {}", world.name(), world.module().recipe().name());
    Found { program, replay, text, trace: world.trace().to_vec() }
}

/// Executes what has failed once more, to tell it.
fn found(world: &mut World, replay: Replay, text: String) -> Found {
    world.execute(policy_of(&replay), true);
    told(world, replay, text)
}

/// Explores a program at random, with seeds from `seed` on.
///
/// # Errors
/// There is no such program.
pub fn random(module: &Arc<Module>, program: &str, seed: u64, limit: Limit) -> Result<Report, ModuleError> {
    let mut world = World::new(module, program)?;
    let begun = Instant::now();
    let mut report = Report { executions: 0, steps: 0, states: 0, complete: false, found: None, time: Duration::ZERO };
    let mut expected = 300;
    let mut next = seed;
    while report.steps < limit.steps && (!report.executions.is_multiple_of(64) || begun.elapsed() < limit.time) {
        let outcome = world.execute(Policy::random(next, expected), false);
        report.executions += 1;
        report.steps += world.steps();
        if let Outcome::Failed(failure) = outcome {
            report.found = Some(found(&mut world, Replay::Seed { seed: next, steps: expected }, failure.text));
            break;
        }
        // The first execution tells how long they are. What comes later must not depend on it, or a
        // seed alone would not do.
        if report.executions == 1 {
            expected = world.steps();
        }
        next = next.wrapping_add(1);
    }
    report.time = begun.elapsed();
    Ok(report)
}

/// Executes a program once more as it was executed before, and tells what it does.
///
/// # Errors
/// There is no such program.
pub fn replay(module: &Arc<Module>, program: &str, replay: &Replay) -> Result<Option<Found>, ModuleError> {
    let mut world = World::new(module, program)?;
    let policy = policy_of(replay);
    let Outcome::Failed(failure) = world.execute(policy, true) else { return Ok(None) };
    Ok(Some(told(&world, replay.clone(), failure.text)))
}

/// Explores all executions of a program.
///
/// # Errors
/// There is no such program.
pub fn exhaustive(
    module: &Arc<Module>,
    program: &str,
    most_states: usize,
    limit: Limit,
) -> Result<Report, ModuleError> {
    let mut world = World::new(module, program)?;
    let begun = Instant::now();
    let mut report = Report { executions: 0, steps: 0, states: 0, complete: false, found: None, time: Duration::ZERO };
    let mut search = Search::new(most_states);
    loop {
        let outcome = world.execute(Policy::exhaustive(search), false);
        search = world.policy().take_search();
        report.executions += 1;
        report.steps += world.steps();
        if let Outcome::Failed(failure) = outcome {
            report.found = Some(found(&mut world, Replay::Path(search.path()), failure.text));
            break;
        }
        if !search.advance() {
            report.complete = true;
            break;
        }
        if search.is_full() || report.steps >= limit.steps || begun.elapsed() >= limit.time {
            break;
        }
    }
    report.states = search.states();
    report.time = begun.elapsed();
    Ok(report)
}
