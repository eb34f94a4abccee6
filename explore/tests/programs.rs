//! The device headers as they are: small programs exhaustively, all programs at random, and all
//! mutants found.

#![allow(clippy::unwrap_used)]

use std::fmt::Write as _;
use std::time::Duration;

use oxshmem_explore::explore::{self, Limit, Replay};
use oxshmem_explore::module::Recipe;
use oxshmem_explore::mutants::{MODULES, MUTANTS, NARROW};
use oxshmem_explore::world::load;

/// Every program keeps every invariant, for some steps.
#[test]
fn programs_keep_their_invariants() {
    let mut failures = String::new();
    for &file in MODULES {
        let module = load(&Recipe::plain(file, NARROW)).unwrap();
        for program in module.names() {
            let report = explore::random(&module, &program, 1, Limit::steps(500_000)).unwrap();
            println!("{file} {program}: {} executions, {} steps in {:?}", report.executions, report.steps, report.time);
            if let Some(found) = report.found {
                let _ = write!(failures, "\n{found}");
            }
        }
    }
    assert!(failures.is_empty(), "{failures}");
}

/// The smallest programs, exhaustively.
#[test]
fn smallest_programs_keep_their_invariants_in_every_execution() {
    for &file in MODULES {
        let module = load(&Recipe::plain(file, NARROW)).unwrap();
        for program in module.small_names() {
            let limit = Limit { steps: 100_000_000, time: Duration::MAX };
            let report = explore::exhaustive(&module, &program, 1 << 22, limit).unwrap();
            println!(
                "{file} {program}: {} states{}, {} executions in {:?}",
                report.states,
                if report.complete { ", which are all" } else { "" },
                report.executions,
                report.time
            );
            assert!(report.found.is_none(), "{}", report.found.unwrap());
            assert!(report.complete, "{file} {program} has more states than a search has room for");
        }
    }
}

/// Each of these mutants is found, and the same seed shows the same violation once more.
fn find_mutants(is_wanted: impl Fn(&str) -> bool) {
    let mut missed = Vec::new();
    for mutant in MUTANTS.iter().filter(|mutant| is_wanted(mutant.module)) {
        let (found, steps) = mutant.hunt(1, 60_000_000).unwrap();
        let Some(found) = found else {
            missed.push(mutant.name);
            continue;
        };
        println!("{}: {steps} steps: {}", mutant.name, found.text);
        let module = load(&mutant.recipe()).unwrap();
        let program = found.program.split(' ').next().unwrap();
        let Replay::Seed { seed, steps } = found.replay else { panic!("a random search has seeds") };
        let again = explore::replay(&module, program, &Replay::Seed { seed, steps }).unwrap().unwrap();
        assert_eq!((again.text, again.trace), (found.text, found.trace), "{}", mutant.name);
    }
    assert!(missed.is_empty(), "not found within 60 M steps: {missed:?}");
}

const IN_POSTING: &[&str] = &["posting"];
const IN_ERRORS: &[&str] = &["errors", "cards"];
const IN_CONTEXTS: &[&str] = &["contexts", "aggregates"];

#[test]
fn mutants_of_posting_are_found() {
    find_mutants(|module| IN_POSTING.contains(&module));
}

#[test]
fn mutants_of_errors_and_cards_are_found() {
    find_mutants(|module| IN_ERRORS.contains(&module));
}

#[test]
fn mutants_of_contexts_are_found() {
    find_mutants(|module| IN_CONTEXTS.contains(&module));
}

#[test]
fn mutants_of_collectives_and_the_proxy_are_found() {
    find_mutants(|module| ![IN_POSTING, IN_ERRORS, IN_CONTEXTS].concat().contains(&module));
}

/// A plain access of shared memory is reported with its place.
#[test]
fn accesses_that_bypass_the_port_layer_are_found() {
    let module = load(&Recipe::plain("bypass", NARROW)).unwrap();
    for (program, what) in [("plain_load", "heap[7] (PE 0)"), ("plain_store", "gate (PE 0)")] {
        let report = explore::random(&module, program, 1, Limit::steps(10_000)).unwrap();
        let text = report.found.unwrap().text;
        assert!(text.contains("without the port layer") && text.contains(what), "{program}: {text}");
    }
}

/// A private context that two threads use at once loses a work request.
#[test]
fn a_private_context_in_two_places_is_found() {
    let module = load(&Recipe::plain("bypass", NARROW)).unwrap();
    let report = explore::random(&module, "two_places", 1, Limit::steps(1_000_000)).unwrap();
    assert!(report.found.is_some(), "no violation in {} steps", report.steps);
}
