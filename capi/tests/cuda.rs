//! CUDA-runtime programs: compiled and linked wherever there is nvcc, run where there is a GPU too.

#![allow(clippy::unwrap_used)]

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;

use api::Pe;
use api::config::{Config, Device};

/// Builds what the Makefile in `folder` makes; `None` without nvcc.
fn build(folder: &str) -> Option<PathBuf> {
    let Some(nvcc) = common::nvcc() else {
        println!("skipped: no nvcc (scripts/setup installs one)");
        return None;
    };
    let scratch = common::scratch(&folder.replace(['/', '.'], "-"));
    let set = |name: &str, value: &Path| format!("{name}={}", value.display());
    common::succeeds(
        Command::new("make")
            .arg("-C")
            .arg(common::manifest().join(folder))
            .arg(set("NVCC", &nvcc))
            .arg(set("LIB", &common::library()))
            .arg(set("BUILD", &scratch)),
    );
    Some(scratch)
}

/// Returns whether there is a GPU to run on; says why not.
fn gpu() -> bool {
    let config = Config::builder().device(Device::Cuda).heap_max(64u64 << 20).build().unwrap();
    match Pe::with_config(config) {
        Ok(pe) => {
            pe.finalize().unwrap();
            true
        }
        Err(error) => {
            println!("compiled and linked, not run: {error}");
            false
        }
    }
}

const CUDA: (&str, &str) = ("OXSHMEM_DEVICE", "cuda");
const P2P: (&str, &str) = ("OXSHMEM_TRANSPORT", "p2p");

/// The example, in several translation units.
#[test]
fn ring() {
    let Some(built) = build("../examples/cxx-ring") else { return };
    if !gpu() {
        return;
    }
    for npes in 1..=4 {
        for (pe, line) in common::job(&built.join("cxx-ring"), &[], npes, &[CUDA, P2P]).iter().enumerate() {
            let previous = (pe as u32 + npes - 1) % npes;
            assert!(line.contains(&format!("got {previous}, 0 wrong")), "{line}");
        }
    }
}

/// A library with kernels that is opened before or after init.
#[test]
fn libraries() {
    let Some(built) = build("tests/programs") else { return };
    if !gpu() {
        return;
    }
    let library = built.join("libplugin.so");
    for order in ["before", "after"] {
        for npes in [1, 2] {
            let args = [library.as_os_str(), order.as_ref()];
            common::job(&built.join("plugin-main"), &args, npes, &[CUDA, P2P, ("OXSHMEM_TIMEOUT", "300ms")]);
        }
    }
}
