//! `oxshmem-tune` from the outside: the file that it writes is what PEs use, and wrong files and
//! arguments are errors that say what to do.
#![allow(clippy::unwrap_used)]

mod common;

use std::fs;

use oxshmem::Tuning;

use common::{File, run, text};

const TUNE: &str = env!("CARGO_BIN_EXE_oxshmem-tune");
const LATENCY: &str = env!("CARGO_BIN_EXE_shmem_collective_latency");

/// Measures on the cpu device, and returns the file and what was said.
fn tune(args: &str) -> (File, String) {
    let file = File::new("txt");
    let line = format!("{args} -o {}", file.path().display());
    let output = run(TUNE, &line, &[("OXSHMEM_DEVICE", "cpu"), ("OXSHMEM_HEAP_MAX", "64M")]);
    let said = text(&output.stderr);
    assert!(output.status.success(), "{args}: {said}");
    assert!(text(&output.stdout).contains("set OXSHMEM_TUNING"), "{args}");
    (file, said)
}

/// What a row may have, whatever was fastest: the collectives that were measured, on such a team.
fn check(file: &File, nodes: u32, npes: u32, collectives: &[&str]) {
    let tuning = Tuning::load(file.path()).unwrap();
    for line in tuning.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        assert_eq!(words[..2], [nodes.to_string(), npes.to_string()], "{line}");
        assert!(collectives.contains(&words[2]), "{line}");
        // What was not measured is left to the library.
        assert!(words[3].ends_with("/library"), "{line}");
    }
    // Each is there, as a row or as a remark.
    let all = fs::read_to_string(file.path()).unwrap();
    for collective in collectives {
        let words = format!("{nodes} {npes} {collective}");
        let lines = all.lines().filter(|line| line.trim_start_matches("# ").starts_with(&words));
        assert_eq!(lines.count(), 1, "{words} in {all}");
    }
}

#[test]
fn near_teams_are_measured_with_progress() {
    let (file, said) = tune("-n 2 -e 2K -i 3 --collective reduce --collective fcollect --collective collect");
    check(&file, 1, 2, &["reduce", "fcollect", "collect"]);
    for step in ["[1/8] 2 PEs on one node, the library's choice", "[2/8] 2 PEs on one node, packets", "[6/8]"] {
        assert!(said.contains(step), "{said}");
    }
}

#[test]
fn teams_of_several_nodes_are_measured() {
    let (file, said) = tune("-n 4 --nodes 2 -b 16K -e 64K -i 2 --collective reduce --collective alltoall");
    check(&file, 2, 4, &["reduce", "alltoall"]);
    assert!(said.contains("4 PEs on 2 nodes, levels"), "{said}");
}

/// The file decides, and `OXSHMEM_COLLECTIVES` goes before it, as the log says.
#[test]
fn pes_use_the_file() {
    let file = File::new("txt");
    fs::write(file.path(), "oxshmem-tuning 1\n1 2 broadcast packets:1K/tree:2K\n1 2 fcollect push\n").unwrap();
    let path = file.path().display().to_string();
    let log = ("OXSHMEM_LOG", "oxshmem::team=debug");
    let measured = |more: &[(&str, &str)]| {
        let env = [&[("OXSHMEM_DEVICE", "cpu"), ("OXSHMEM_TUNING", &path[..]), log], more].concat();
        let output = run(LATENCY, "--on stream -b 8 -e 8K -n 5 --collective broadcast --collective fcollect", &env);
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stderr)
    };
    let said = measured(&[]);
    assert!(said.contains("broadcast=packets:1K/tree:2K/push") && said.contains("fcollect=push"), "{said}");
    let said = measured(&[("OXSHMEM_COLLECTIVES", "broadcast=push")]);
    assert!(said.contains("broadcast=push") && said.contains("fcollect=push") && !said.contains("tree:2K"), "{said}");
}

#[test]
fn a_wrong_file_is_an_error_that_names_file_line_value_and_remedy() {
    let file = File::new("txt");
    let path = file.path().display().to_string();
    for (content, said) in [
        ("oxshmem-tuning 1\n# a comment\n1 2 reduce pockets\n", "line 3: 'reduce pockets': expected a collective"),
        ("oxshmem-tuning 1\n1 x reduce push\n", "line 2: PEs 'x': expected a number from 1 to 4096"),
        ("#!/bin/sh\nexit\n", "line 2: 'exit': expected 'oxshmem-tuning 1' before anything else; measure anew"),
    ] {
        fs::write(file.path(), content).unwrap();
        let output = run(LATENCY, "--on stream -e 8", &[("OXSHMEM_DEVICE", "cpu"), ("OXSHMEM_TUNING", &path)]);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert!(error.contains(&format!("OXSHMEM_TUNING={path}: {said}")), "{error}");
    }
    let output = run(LATENCY, "-e 8", &[("OXSHMEM_DEVICE", "cpu"), ("OXSHMEM_TUNING", "/no/such/file")]);
    let error = text(&output.stderr);
    assert!(
        error.contains("OXSHMEM_TUNING=/no/such/file: ") && error.contains("make the file with oxshmem-tune"),
        "{error}"
    );
}

#[test]
fn wrong_arguments_are_refused_with_the_reason() {
    for (args, reason) in [
        ("-n 2 --nodes 3", "--nodes 3: a team of 2 PEs"),
        ("--collective barrier", "--collective barrier: it has one algorithm"),
        ("-b 64 -e 8", "larger than --max"),
        ("-n 1", "1 is not in 2..=64"),
    ] {
        let output = run(TUNE, args, &[("OXSHMEM_DEVICE", "cpu")]);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args}: {error}");
        assert!(error.contains(reason), "{args}: {error}");
    }
    let output = run(TUNE, "-n 2 -e 8 -i 1 --collective reduce -o /no/such/folder/file", &[("OXSHMEM_DEVICE", "cpu")]);
    let error = text(&output.stderr);
    assert!(output.status.code() == Some(2) && error.contains("the folder /no/such/folder does not exist"), "{error}");
    let output = run(TUNE, "-n 2 -e 8", &[("OXSHMEM_DEVICE", "cpu"), ("OXSHMEM_COLLECTIVES_SMS", "0")]);
    let error = text(&output.stderr);
    assert!(output.status.code() == Some(2) && error.contains("OXSHMEM_COLLECTIVES_SMS is 0"), "{error}");
}
