//! The folder that `scripts/package` writes to: what is in it is never lost, unless an earlier run
//! made it.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns a new empty folder for a test.
fn scratch(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder.canonicalize().unwrap()
}

/// Runs the script in `folder`, where git finds no history: so the script ends, at the latest,
/// before it builds. Returns what it wrote to standard error.
fn package(folder: &Path, argument: &str) -> String {
    let bin = folder.join("bin");
    std::fs::create_dir_all(&bin).unwrap();
    if !bin.join("git").exists() {
        std::os::unix::fs::symlink("/bin/false", bin.join("git")).unwrap();
    }
    let path = std::env::var_os("PATH").unwrap();
    let paths = std::env::join_paths([bin].into_iter().chain(std::env::split_paths(&path))).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/package");
    let output = Command::new(script).arg(argument).current_dir(folder).env("PATH", paths).output().unwrap();
    assert!(!output.status.success());
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn a_folder_with_other_files_is_refused() {
    let folder = scratch("foreign");
    // A file of the caller's, without checksums, with those of something else, and beside packages.
    let sum = "0".repeat(64);
    let made = format!("{sum}  oxshmem-0.1.0-x86_64-linux.tar.xz\n");
    for (number, checksums) in ["", &format!("{sum}  letter.txt\n"), &made].into_iter().enumerate() {
        let out = folder.join(format!("out-{number}"));
        std::fs::create_dir(&out).unwrap();
        std::fs::write(out.join("letter.txt"), "dear").unwrap();
        if !checksums.is_empty() {
            std::fs::write(out.join("SHA256SUMS"), checksums).unwrap();
        }
        // A relative path counts from the caller's folder.
        let said = package(&folder, &format!("out-{number}"));
        assert!(said.contains(&format!("{} holds ", out.display())), "{said}");
        assert_eq!(std::fs::read_to_string(out.join("letter.txt")).unwrap(), "dear");
    }
    std::fs::write(folder.join("file"), "").unwrap();
    assert!(package(&folder, "file").contains("file is not a folder"));
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn packages_of_an_earlier_run_and_empty_folders_are_taken() {
    let folder = scratch("earlier");
    let (out, empty) = (folder.join("out"), folder.join("empty"));
    let files = ["oxshmem-0.1.0-x86_64-linux.tar.xz", "sbom.cdx.json"];
    for made in [&out, &empty] {
        std::fs::create_dir(made).unwrap();
    }
    for file in files {
        std::fs::write(out.join(file), "").unwrap();
    }
    let sums = files.map(|file| format!("{}  {file}\n", "0".repeat(64))).concat();
    std::fs::write(out.join("SHA256SUMS"), sums).unwrap();
    for argument in ["out", "empty", "absent"] {
        let said = package(&folder, argument);
        assert!(said.contains("no git history"), "{argument}: {said}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}
