//! docs/performance.md, docs/notes/figures.md and their plots are what the baselines give, and the
//! comparison's driver refuses what it cannot do.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::Command;

use oxshmem_perftest::compare::docs;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

#[test]
fn the_pages_are_what_the_command_makes() {
    let files = docs::files(root()).unwrap();
    for (path, text) in &files {
        let found = std::fs::read_to_string(path).unwrap_or_default();
        assert!(found == *text, "{} is not what the baselines give; run `make performance-docs`", path.display());
    }
    assert_eq!(
        docs::strays(root(), &files).unwrap(),
        [] as [&Path; 0],
        "plots without a baseline; run `make performance-docs`"
    );
}

#[test]
fn the_command_writes_the_pages() {
    let folder = std::env::temp_dir().join(format!("oxshmem-performance-{}", std::process::id()));
    for file in docs::files(root())
        .unwrap()
        .iter()
        .map(|(path, _)| path)
        .chain([&root().join(docs::BASELINES).join("README.md")])
    {
        let copy = folder.join(file.strip_prefix(root()).unwrap());
        std::fs::create_dir_all(copy.parent().unwrap()).unwrap();
        std::fs::copy(file, copy).unwrap();
    }
    let pages = [docs::PAGE, docs::FIGURES].map(|page| folder.join(page));
    for page in &pages {
        let text = std::fs::read_to_string(page).unwrap();
        let (before, _) = text.split_once("<!-- made by").unwrap();
        let emptied = format!(
            "{before}<!-- made by `make performance-docs`: begin --><!-- made by `make performance-docs`: end -->"
        );
        std::fs::write(page, emptied).unwrap();
    }
    std::fs::create_dir_all(folder.join(docs::PLOTS)).unwrap();
    let stray = folder.join(docs::PLOTS).join("stray.svg");
    std::fs::write(&stray, "").unwrap();

    let status = Command::new(env!("CARGO_BIN_EXE_performance_docs")).arg(&folder).status().unwrap();
    assert!(status.success());
    for page in &pages {
        assert!(std::fs::read_to_string(page).unwrap().contains("Nothing has been measured on GPUs yet"), "{page:?}");
    }
    assert!(!stray.exists());

    std::fs::write(folder.join(docs::BASELINES).join("odd.jsonl"), "nonsense\n").unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_performance_docs")).arg(&folder).output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && error.contains("odd.jsonl: line 1"), "{error}");
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn the_driver_says_what_is_missing() {
    let run = |args: &[&str]| Command::new(env!("CARGO_BIN_EXE_compare")).args(args).output().unwrap();
    let output = run(&["--ours", "/nonexistent/ours"]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && error.contains("/nonexistent/ours is missing"), "{error}");
    let output = run(&["--only", "nonsense"]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && error.contains("--list"), "{error}");
    if !Path::new("/dev/nvidiactl").exists() {
        let output = run(&["--ours", "/bin/true"]);
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && error.contains("the driver shows no GPU"), "{error}");
    } else {
        println!("skipped: no GPU: this machine has an NVIDIA driver");
    }
    let output = run(&["--list"]);
    let out = String::from_utf8(output.stdout).unwrap();
    assert!(
        output.status.success() && out.contains("put_bw_block_32") && out.contains(">= 0.98 of the limit"),
        "{out}"
    );
}
