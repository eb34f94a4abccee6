//! What the tests share: where the library and the programs are, and jobs of PEs.

#![allow(dead_code)] // Each test uses a part.

pub mod mpi;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use api::launch::{self, LaunchOptions, Outcome, Output, PeStatus};

/// Returns the folder that holds the liboxshmem.so that was built with this test.
pub fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let folders = test.ancestors().skip(1).take(2);
    let found: Vec<&Path> = folders.filter(|folder| folder.join("liboxshmem.so").is_file()).collect();
    found.first().unwrap_or_else(|| panic!("no liboxshmem.so beside {}", test.display())).to_path_buf()
}

pub fn manifest() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns a folder for what a test builds.
pub fn scratch(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// Runs a command to its end, and returns its output, which is in the message if it fails.
pub fn succeeds(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    assert!(output.status.success(), "{command:?}: {}\n{text}", output.status);
    text
}

/// Returns a CUDA compiler, as the build finds one.
pub fn nvcc() -> Option<PathBuf> {
    let named = std::env::var_os("NVCC").map(PathBuf::from);
    let homes = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(std::env::var_os).map(PathBuf::from);
    let installed = homes.chain([manifest().join("../.toolchain/cuda"), PathBuf::from("/usr/local/cuda")]);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let in_path: Vec<PathBuf> = std::env::split_paths(&path).map(|folder| folder.join("nvcc")).collect();
    let all = named.into_iter().chain(installed.map(|home| home.join("bin/nvcc"))).chain(in_path);
    all.into_iter().find(|path| path.is_file())
}

/// Runs a job of PEs of a program and demands that all succeed; what they wrote to standard output.
pub fn job(program: &Path, args: &[&OsStr], npes: u32, variables: &[(&str, &str)]) -> Vec<String> {
    succeeded(&ended(program, args, npes, variables))
}

/// Runs the same on some nodes, which reach each other over the network alone.
pub fn job_on_nodes(program: &Path, args: &[&OsStr], (npes, nodes): (u32, u32), variables: &[(&str, &str)]) {
    let mut options = options(program, args, npes, variables);
    options.nodes = nodes;
    succeeded(&launch::run(&options).unwrap());
}

/// Demands that all PEs of a job succeeded; what they wrote to standard output.
fn succeeded(outcome: &Outcome) -> Vec<String> {
    let text: String =
        outcome.pes.iter().map(|pe| format!("--- {}\n{}{}", pe.status, text(&pe.stdout), text(&pe.stderr))).collect();
    assert!(!outcome.timed_out && outcome.pes.iter().all(|pe| pe.status == PeStatus::Exited(0)), "{text}");
    outcome.pes.iter().map(|pe| self::text(&pe.stdout)).collect()
}

/// Runs a job of PEs of a program; how it ended.
pub fn ended(program: &Path, args: &[impl AsRef<OsStr>], npes: u32, variables: &[(&str, &str)]) -> Outcome {
    launch::run(&options(program, args, npes, variables)).unwrap()
}

fn options(program: &Path, args: &[impl AsRef<OsStr>], npes: u32, variables: &[(&str, &str)]) -> LaunchOptions {
    let mut options = LaunchOptions::new(npes, program).args(args.iter().map(AsRef::as_ref));
    for (name, value) in [("OXSHMEM_HEAP_MAX", "64M"), ("OXSHMEM_HEAP_CHUNK", "2M")].iter().chain(variables) {
        options = options.env(name, *value);
    }
    options.output = Output::Captured;
    options.timeout = Some(Duration::from_secs(120));
    options
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
