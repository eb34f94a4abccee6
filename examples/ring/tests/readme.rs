//! The README's example is this crate: the same text, and it runs.

#![allow(clippy::unwrap_used)]

use std::process::Command;
use std::time::Duration;

use oxshmem::launch::{LaunchOptions, Output, run};

const README: &str = include_str!("../../../README.md");

/// Returns the first fenced block of `language` that follows `heading`.
fn block<'a>(heading: &str, language: &str) -> &'a str {
    let section = README.split_once(heading).unwrap_or_else(|| panic!("README has no {heading:?}")).1;
    let fence = format!("```{language}\n");
    section
        .split_once(&fence)
        .unwrap_or_else(|| panic!("no {language} block under {heading:?}"))
        .1
        .split_once("```")
        .unwrap()
        .0
}

#[test]
fn the_readme_shows_this_crate() {
    assert_eq!(block("## A program", "cpp"), include_str!("../kernels/ring.cu"));
    assert_eq!(block("## A program", "rust"), include_str!("../src/main.rs"));
    assert_eq!(block("## A program", "rust,build"), include_str!("../build.rs"));
}

#[test]
fn the_ring_closes_on_every_transport() {
    for transport in ["p2p", "ibgda", "ibrc"] {
        let mut options = LaunchOptions::new(3, env!("CARGO_BIN_EXE_ring")).env("OXSHMEM_TRANSPORT", transport);
        options.output = Output::Captured;
        options.timeout = Some(Duration::from_secs(60));
        let outcome = run(&options).unwrap();
        assert!(outcome.is_success(), "{transport}: {outcome:?}");
        let lines: Vec<&str> = outcome.pes.iter().map(|pe| str::from_utf8(&pe.stdout).unwrap()).collect();
        assert_eq!(lines, ["PE 0 of 3 got 2\n", "PE 1 of 3 got 0\n", "PE 2 of 3 got 1\n"], "{transport}");
    }
}

#[test]
fn without_a_launcher_the_ring_has_one_pe() {
    let output = Command::new(env!("CARGO_BIN_EXE_ring")).output().unwrap();
    assert!(output.status.success());
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "PE 0 of 1 got 0\n");
}
