//! The crate of `docs/your-own-crate.md`, built from the page outside the workspace, as a user does
//! it.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use oxshmem::launch::{self, LaunchOptions};

const PAGE: &str = include_str!("../docs/your-own-crate.md");

/// The checkout, which the page's `Cargo.toml` names by a path that a user replaces.
const CHECKOUT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// A folder outside the workspace, which goes away with the test.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        let path = std::env::temp_dir().join(format!("oxshmem-own-crate-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.0.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    /// Builds without a network, in the target folder of the workspace and with its profile of
    /// dependencies: those that are built already, and compiled device code, serve here too.
    fn build(&self) -> Output {
        Command::new(env!("CARGO"))
            .args(["build", "--offline", "--quiet"])
            .current_dir(&self.0)
            .env("CARGO_TARGET_DIR", target())
            .env("CARGO_PROFILE_DEV_DEBUG", "none")
            .env("CARGO_PROFILE_DEV_STRIP", "debuginfo")
            .env("CARGO_INCREMENTAL", "0")
            .env("OXSHMEM_CUDA", "0")
            // The tests' own flags and folders are not those of the crate.
            .env_remove("CARGO_MANIFEST_DIR")
            .output()
            .unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The target folder of the workspace, in which cargo keeps `tmp` for tests.
fn target() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap()
}

/// Files of the page: each is the code block after a comment with its name.
fn files() -> Vec<(&'static str, &'static str)> {
    PAGE.split("<!-- file: ")
        .skip(1)
        .map(|rest| {
            let (name, rest) = rest.split_once(" -->\n```").unwrap();
            let code = rest.split_once('\n').unwrap().1.split_once("\n```").unwrap().0;
            (name, code)
        })
        .collect()
}

#[test]
fn the_page_s_crate_builds_and_runs() {
    let folder = Folder::new();
    let names: Vec<&str> = files().iter().map(|(name, _)| *name).collect();
    assert_eq!(names, ["Cargo.toml", "build.rs", "kernels/sum.cu", "src/main.rs"]);
    for (name, code) in files() {
        folder.write(name, &format!("{}\n", code.replace("/path/to/oxshmem", CHECKOUT)));
    }
    // The versions of the workspace, which are on this machine.
    std::fs::copy(Path::new(CHECKOUT).join("Cargo.lock"), folder.0.join("Cargo.lock")).unwrap();
    let built = folder.build();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));

    for transport in ["p2p", "ibgda", "ibrc"] {
        let mut options = LaunchOptions::new(3, target().join("debug/sum"));
        options.output = launch::Output::Captured;
        let options = options.env("OXSHMEM_DEVICE", "cpu").env("OXSHMEM_TRANSPORT", transport);
        let outcome = launch::run(&options).unwrap();
        assert!(outcome.is_success(), "{transport}: {outcome:?}");
        // What the kernel prints is there when `synchronize` returns, before what the host prints
        // then.
        let said = String::from_utf8_lossy(&outcome.pes[0].stdout);
        let shown: Vec<&str> = PAGE.lines().filter_map(|line| line.strip_prefix("[PE 0] ")).collect();
        assert_eq!(said.lines().collect::<Vec<_>>(), shown, "{transport}");
        assert!(outcome.pes[1..].iter().all(|pe| pe.stdout.is_empty()));
    }

    // Plain shared memory is refused with the name of what to write instead.
    let kernel =
        files()[2].1.replace("OXSHMEM_SHARED(uint64_t, part, [kThreads]);", "__shared__ uint64_t part[kThreads];");
    assert!(kernel.contains("__shared__"));
    folder.write("kernels/sum.cu", &kernel);
    let refused = folder.build();
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(
        !refused.status.success() && said.contains("declare shared memory with OXSHMEM_SHARED(type, name, [n])"),
        "{said}"
    );
    // And so is shared memory of the launch's size.
    folder.write(
        "kernels/sum.cu",
        &kernel.replace("__shared__ uint64_t part[kThreads];", "extern __shared__ uint64_t part[];"),
    );
    let refused = folder.build();
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && said.contains("OXSHMEM_DYNAMIC_SHARED(type, name)"), "{said}");
}
