//! What liboxshmem keeps over its releases (docs/versions.md): its soname, the functions that it
//! exports, and how an installation names it.

#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

const VERSION: &str = env!("CARGO_PKG_VERSION");
const MAJOR: &str = env!("CARGO_PKG_VERSION_MAJOR");

/// What a program prints.
fn printed(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}; install binutils"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn built() -> PathBuf {
    common::library().join("liboxshmem.so")
}

#[test]
fn the_soname_has_the_major_version() {
    let dynamic = printed(Command::new("readelf").arg("--dynamic").arg(built()));
    assert!(dynamic.contains(&format!("soname: [liboxshmem.so.{MAJOR}]")), "{dynamic}");
}

/// `symbols.txt` grows with a minor version; a line that goes or changes needs a major one.
/// `UPDATE_SYMBOLS=1` writes it anew.
#[test]
fn the_exported_functions_are_those_of_the_list() {
    let table = printed(Command::new("nm").args(["--dynamic", "--defined-only", "--format=posix"]).arg(built()));
    let exported: BTreeSet<&str> = table.lines().filter_map(|line| line.split(' ').next()).collect();
    let list = common::manifest().join("symbols.txt");
    if std::env::var_os("UPDATE_SYMBOLS").is_some() {
        std::fs::write(&list, exported.iter().map(|name| format!("{name}\n")).collect::<String>()).unwrap();
    }
    let text = std::fs::read_to_string(&list).unwrap();
    let listed: BTreeSet<&str> = text.lines().collect();
    let gone: Vec<_> = listed.difference(&exported).collect();
    let new: Vec<_> = exported.difference(&listed).collect();
    assert!(
        gone.is_empty() && new.is_empty(),
        "{}: no longer exported: {gone:?}, which needs a new major version; new: {new:?}, which UPDATE_SYMBOLS=1 adds",
        list.display()
    );
}

/// Every function of host.h is exported, and every function that is exported is in host.h.
#[test]
fn the_header_and_the_list_agree() {
    let header = std::fs::read_to_string(common::manifest().join("../device-kernels/include/oxshmem/host.h")).unwrap();
    // What follows are functions that the header itself has.
    let (declarations, _) = header.split_once("/* Single values").unwrap();
    let without_comments: String = declarations
        .split("/*")
        .enumerate()
        .map(|(i, part)| if i == 0 { part } else { part.split_once("*/").map_or("", |(_, after)| after) })
        .collect();
    let declared: BTreeSet<&str> = without_comments
        .split(';')
        .filter_map(|declaration| declaration.split_once('('))
        .filter_map(|(before, _)| before.rsplit([' ', '*', '\n']).next())
        .filter(|name| name.starts_with("oxshmem_") || name.starts_with("oxshmemx_"))
        .collect();
    let text = std::fs::read_to_string(common::manifest().join("symbols.txt")).unwrap();
    // Kernels of the `cpu` device call those of the executor.
    let listed: BTreeSet<&str> = text.lines().filter(|name| !name.starts_with("oxshmem_cpu_")).collect();
    let missing: Vec<_> = declared.difference(&listed).collect();
    let undeclared: Vec<_> = listed.difference(&declared).collect();
    assert!(missing.is_empty() && undeclared.is_empty(), "not exported: {missing:?}; not declared: {undeclared:?}");
}

/// A folder for an installation, which the test removes.
fn prefix(name: &str) -> PathBuf {
    let prefix = common::scratch(&format!("versions-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&prefix);
    prefix
}

fn link(path: &Path) -> String {
    std::fs::read_link(path).unwrap_or_else(|error| panic!("{}: {error}", path.display())).display().to_string()
}

#[test]
fn an_installation_names_the_version() {
    let prefix = prefix("installed");
    let lib = prefix.join("lib");
    // An older release of this major version, as a file and links, and another major version.
    std::fs::create_dir_all(&lib).unwrap();
    for old in ["liboxshmem.so".to_owned(), format!("liboxshmem.so.{MAJOR}.0.0"), "liboxshmem.so.777".to_owned()] {
        std::fs::write(lib.join(old), "old").unwrap();
    }
    let script = common::manifest().join("../scripts/install");
    let host = prefix.join("compat/nvshmem/lib/libnvshmem_host.so.3");
    let mut earlier: Option<File> = None;
    for _ in 0..2 {
        // A CUDA_HOME without a toolkit is passed over.
        let mut install = Command::new(&script);
        install.arg(&prefix).arg("--from").arg(common::library());
        let said = common::succeeds(install.env_remove("OXSHMEM_CUDA").env("CUDA_HOME", prefix.join("absent")));
        assert!(said.contains("absent, which has no include/cuda_runtime.h"), "{said}");
        // A program that has mapped the library keeps its file, which nothing writes to.
        if let Some(file) = earlier {
            assert_eq!(file.metadata().unwrap().nlink(), 0, "{} is written over", host.display());
        }
        earlier = Some(File::open(&host).unwrap());
        assert_eq!(link(&lib.join("liboxshmem.so")), format!("liboxshmem.so.{MAJOR}"));
        assert_eq!(link(&lib.join(format!("liboxshmem.so.{MAJOR}"))), format!("liboxshmem.so.{VERSION}"));
        assert!(lib.join(format!("liboxshmem.so.{VERSION}")).is_file());
        assert!(!lib.join(format!("liboxshmem.so.{MAJOR}.0.0")).exists() && lib.join("liboxshmem.so.777").exists());
    }
    let read = |file: &str| std::fs::read_to_string(lib.join(file)).unwrap();
    let cmake = read("cmake/OxSHMEM/OxSHMEMConfig.cmake");
    assert!(cmake.contains(&format!("/lib/liboxshmem.so.{VERSION}\"")), "{cmake}");
    assert!(cmake.contains(&format!("IMPORTED_SONAME \"liboxshmem.so.{MAJOR}\"")), "{cmake}");
    let version = read("cmake/OxSHMEM/OxSHMEMConfigVersion.cmake");
    assert!(version.contains(&format!("PACKAGE_VERSION \"{VERSION}\"")) && !version.contains('@'), "{version}");
    assert!(read("pkgconfig/oxshmem.pc").contains(&format!("\nVersion: {VERSION}\n")));

    // A program of the installation finds the library by its soname, and where there is another
    // major version alone, the loader names what is missing.
    let program = prefix.join("host");
    common::succeeds(
        Command::new("cc")
            .args(["-std=c99", "-x", "c"])
            .arg(common::manifest().join("tests/programs/host.c"))
            .arg("-I")
            .arg(prefix.join("include"))
            .arg("-L")
            .arg(&lib)
            .args(["-loxshmem", "-Wl,-rpath,$ORIGIN/lib", "-o"])
            .arg(&program),
    );
    // Without the path that cargo gives to tests.
    let mut alone = Command::new(&program);
    alone.arg("alone").env("OXSHMEM_DEVICE", "cpu").env_remove("LD_LIBRARY_PATH");
    let mut alone = || alone.output().unwrap();
    assert!(alone().status.success(), "{}", String::from_utf8_lossy(&alone().stderr));
    std::fs::remove_file(lib.join(format!("liboxshmem.so.{MAJOR}"))).unwrap();
    let said = String::from_utf8_lossy(&alone().stderr).into_owned();
    assert!(said.contains(&format!("liboxshmem.so.{MAJOR}")), "{said}");
    std::fs::remove_dir_all(&prefix).unwrap();
}

#[test]
fn a_prefix_that_cannot_be_written_is_refused_at_once() {
    let prefix = prefix("refused");
    std::fs::create_dir_all(&prefix).unwrap();
    std::fs::write(prefix.join("bin"), "a file, in which there can be no program").unwrap();
    let script = common::manifest().join("../scripts/install");
    let from = common::library().canonicalize().unwrap();
    // A file stands in the way, because root may write in any folder.
    for refused in [prefix.clone(), prefix.join("bin/below")] {
        let output = Command::new(&script).arg(&refused).arg("--from").arg(&from).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        let remedy = format!("sudo scripts/install {} --from {}", refused.display(), from.display());
        assert!(!output.status.success() && said.contains(&remedy), "{said}");
        assert!(!prefix.join("include").exists());
    }
    std::fs::remove_dir_all(&prefix).unwrap();
}
