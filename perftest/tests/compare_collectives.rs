//! The comparison of collectives with itself alone: our side, on the `cpu` device, as the driver
//! starts and asks it.
#![allow(clippy::unwrap_used)]

mod common;

use std::process::Output;

use oxshmem_perftest::compare::collectives::calls::CALLS;
use oxshmem_perftest::compare::collectives::report::Row;

use common::{File, run, text};

fn compare(args: &str) -> Output {
    let env = [("OXSHMEM_DEVICE", "cpu"), ("OXSHMEM_TIMEOUT", "60s"), ("OXSHMEM_HEAP_MAX", "64M")];
    run(env!("CARGO_BIN_EXE_compare"), &format!("--collectives {args}"), &env)
}

#[test]
fn every_call_of_ours_is_checked_and_timed() {
    for pes in ["2", "3"] {
        let (json, plot) = (File::new("jsonl"), File::new("svg"));
        let files = format!("--json {} --plot {}", json.path().display(), plot.path().display());
        let output = compare(&format!("--pes {pes} --repetitions 2 --max 2K {files}"));
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success() && err.is_empty(), "{pes} PEs: {out}{err}");
        assert!(out.contains("only ours is measured") && out.contains("OxSHMEM 0."), "{out}");
        let rows: Vec<Row> = json.read().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        for call in CALLS {
            let sizes: Vec<u64> = rows.iter().filter(|row| row.call == call.name).map(|row| row.bytes).collect();
            assert!(sizes.is_sorted() && !sizes.is_empty(), "{}: {sizes:?}", call.name);
            assert_eq!(sizes == [0], call.name == "barrier" || call.name == "sync", "{}: {sizes:?}", call.name);
        }
        for row in &rows {
            let ours = &row.figures["ours"];
            assert!(ours.us > 0.0 && !ours.graph && ours.range.0 <= ours.us && ours.us <= ours.range.1, "{row:?}");
            assert_eq!((row.ratio, row.figures.len(), row.setting.pes.to_string().as_str()), (None, 1, pes));
        }
        let svg = plot.read();
        assert!(svg.contains("reducescatter") && svg.contains("bus bandwidth"));
    }
}

#[test]
fn what_cannot_be_compared_is_refused() {
    for (args, reason) in [
        ("--only nonsense", "no call's name contains that"),
        ("--pes 9", "at most 8"),
        ("--min 12", "multiples of 8"),
        ("--min 4K --max 1K", "larger than --max"),
        ("--without-records", "cannot be used with"),
    ] {
        let output = compare(args);
        assert!(!output.status.success() && text(&output.stderr).contains(reason), "{args}: {}", text(&output.stderr));
    }
    let list = compare("--list --only reduce");
    assert_eq!(text(&list.stdout), "reduce\nreduce_bf16\nreducescatter\n");
}
