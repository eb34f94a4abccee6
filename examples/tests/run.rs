//! Every example runs on several PEs and over every transport, and checks its results itself.

#![allow(clippy::unwrap_used)]

use std::process::Command;
use std::time::Duration;

use oxshmem::launch::{LaunchOptions, Output, run};

/// Runs `program` on the `cpu` device over each transport. Every PE succeeds, and prints the line
/// that `line` returns for it.
fn runs(program: &str, n_pes: &[u32], line: impl Fn(usize, usize) -> String) {
    for &n_pes in n_pes {
        for transport in ["p2p", "ibgda", "ibrc"] {
            let mut options =
                LaunchOptions::new(n_pes, program).env("OXSHMEM_DEVICE", "cpu").env("OXSHMEM_TRANSPORT", transport);
            options.output = Output::Captured;
            options.timeout = Some(Duration::from_secs(60));
            let outcome = run(&options).unwrap();
            assert!(outcome.is_success(), "{n_pes} PEs, {transport}: {outcome:?}");
            for (pe, ended) in outcome.pes.iter().enumerate() {
                let expected = line(pe, n_pes as usize) + "\n";
                assert_eq!(str::from_utf8(&ended.stdout).unwrap(), expected, "PE {pe} of {n_pes}, {transport}");
            }
        }
    }
    // Without a launcher a program is a job of one PE.
    let alone = Command::new(program).env("OXSHMEM_DEVICE", "cpu").output().unwrap();
    assert!(alone.status.success(), "{alone:?}");
    assert_eq!(String::from_utf8(alone.stdout).unwrap(), line(0, 1) + "\n");
}

#[test]
fn put_signal() {
    runs(env!("CARGO_BIN_EXE_01-put-signal"), &[2, 3], |pe, n_pes| {
        format!("PE {pe}: 20 messages of 1000 words arrived from PE {}", (pe + n_pes - 1) % n_pes)
    });
}

#[test]
fn jacobi() {
    runs(env!("CARGO_BIN_EXE_02-jacobi"), &[2, 3], |pe, n_pes| {
        format!("PE {pe}: rows {} to {} are right after 50 steps", pe * 61 / n_pes, (pe + 1) * 61 / n_pes - 1)
    });
}

#[test]
fn alltoall() {
    runs(env!("CARGO_BIN_EXE_03-alltoall"), &[2, 3], |pe, n_pes| {
        format!("PE {pe}: a matrix of {n} by {n} was transposed and back", n = 24 * n_pes)
    });
}

#[test]
fn team_reduce() {
    runs(env!("CARGO_BIN_EXE_04-team-reduce"), &[2, 4, 5], |pe, n_pes| {
        let row: Vec<usize> = (pe / 2 * 2..n_pes.min(pe / 2 * 2 + 2)).collect();
        let column: Vec<usize> = (pe % 2..n_pes).step_by(2).collect();
        format!("PE {pe}: row {row:?} and column {column:?} agree")
    });
}

#[test]
fn cudarc_says_why_it_is_skipped() {
    runs(env!("CARGO_BIN_EXE_05-cudarc"), &[2], |pe, _| {
        format!("PE {pe}: skipped: this PE is on the `cpu` device, and cudarc needs a GPU")
    });
}

#[test]
fn training() {
    runs(env!("CARGO_BIN_EXE_06-training"), &[2, 3, 5], |pe, n_pes| {
        let (first, last) = (pe * 96 / n_pes, (pe + 1) * 96 / n_pes - 1);
        format!("PE {pe}: samples {first} to {last} have made the weights that one PE makes in 20 steps")
    });
}

/// Where there is no GPU, or no kernels for GPUs in this build, the example says so, and its line
/// is this test's reason.
#[test]
fn cudarc_on_gpus() {
    let mut options = LaunchOptions::new(2, env!("CARGO_BIN_EXE_05-cudarc")).env("OXSHMEM_DEVICE", "auto");
    options.output = Output::Captured;
    options.timeout = Some(Duration::from_secs(60));
    let outcome = run(&options).unwrap();
    assert!(outcome.is_success(), "{outcome:?}");
    for (pe, ended) in outcome.pes.iter().enumerate() {
        let said = str::from_utf8(&ended.stdout).unwrap();
        if said.starts_with(&format!("PE {pe}: skipped: ")) {
            print!("{said}");
        } else {
            assert_eq!(said, format!("PE {pe}: cudarc and OxSHMEM moved 4096 numbers\n"));
        }
    }
}
