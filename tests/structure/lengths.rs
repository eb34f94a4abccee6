//! No file of the product is longer than [`LIMIT`] lines, except those that are listed with a
//! reason.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Lines that a file may have.
const LIMIT: usize = 800;

/// Longer files, each with the reason.
const LONGER: [(&str, &str); 4] = [
    ("hca/src/verbs/sys/ibverbs.rs", "generated from rdma-core's header"),
    ("hca/src/verbs/sys/mlx5dv.rs", "generated from rdma-core's header"),
    ("runtime/abi/bindings.rs", "generated from abi.h"),
    ("proxy/tests/engine.rs", "one table of cases of the engine on one simulated card"),
];

/// What counts as a source.
const ENDINGS: [&str; 6] = ["rs", "h", "cu", "c", "cpp", "sh"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the tests are in a folder of the workspace").to_owned()
}

/// Returns the sources that git tracks, relative to the workspace, or why they cannot be listed.
fn sources() -> Result<Vec<String>, String> {
    let output = Command::new("git").arg("-C").arg(root()).args(["ls-files", "-z"]).output();
    let output = output.map_err(|error| format!("git cannot be started: {error}"))?;
    if !output.status.success() {
        return Err(format!("git lists no files: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    let files = String::from_utf8_lossy(&output.stdout);
    let is_source =
        |path: &str| Path::new(path).extension().is_some_and(|end| ENDINGS.iter().any(|known| end == *known));
    Ok(files.split_terminator('\0').filter(|path| is_source(path)).map(str::to_owned).collect())
}

#[test]
fn files_are_short_enough() {
    let files = match sources() {
        Ok(files) => files,
        Err(reason) => return println!("skipped: {reason}"),
    };
    assert!(files.len() > 300, "only {} sources were found", files.len());
    // A file that is tracked may have been deleted and not yet committed.
    let lengths = files.iter().filter_map(|path| {
        let text = std::fs::read_to_string(root().join(path)).ok()?;
        Some((path.as_str(), text.lines().count()))
    });
    let long: Vec<(&str, usize)> = lengths.filter(|(_, lines)| *lines > LIMIT).collect();
    for (path, lines) in &long {
        let is_listed = LONGER.iter().any(|(listed, _)| listed == path);
        assert!(
            is_listed,
            "{path} has {lines} lines, the limit is {LIMIT}; divide it by ideas, or list it with a reason"
        );
    }
    for (path, reason) in LONGER {
        let is_long = long.iter().any(|(long, _)| *long == path);
        assert!(is_long, "{path} ({reason}) has no more than {LIMIT} lines: take it off the list");
    }
}
