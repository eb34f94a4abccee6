//! The host API from C and C++, on the `cpu` device.

#![allow(clippy::unwrap_used)]

mod common;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Compiles `programs/host.c` in this language, into a folder of this name.
fn program(name: &str, compiler: &str, standard: &str, language: &str) -> PathBuf {
    compile("host.c", &common::scratch(name).join("host"), compiler, &[standard, "-x", language])
}

fn compile(source: &str, path: &Path, compiler: &str, options: &[&str]) -> PathBuf {
    let library = common::library();
    common::succeeds(
        Command::new(compiler)
            .args(options)
            .args(["-Wall", "-Wextra", "-Wpedantic", "-Werror"])
            .arg(common::manifest().join("tests/programs").join(source))
            .arg("-I")
            .arg(common::manifest().join("../device-kernels/include"))
            .arg("-L")
            .arg(&library)
            .args(["-loxshmem", &format!("-Wl,-rpath,{}", library.display()), "-o"])
            .arg(path),
    );
    path.to_path_buf()
}

fn passes(program: &Path, transport: &str, npes: u32) {
    let variables = [("OXSHMEM_DEVICE", "cpu"), ("OXSHMEM_TRANSPORT", transport), ("OXSHMEM_TIMEOUT", "300ms")];
    common::job(program, &[], npes, &variables);
}

#[test]
fn from_c() {
    let program = program("c", "cc", "-std=c99", "c");
    for (transport, npes) in [("p2p", 1), ("p2p", 3), ("ibgda", 2)] {
        passes(&program, transport, npes);
    }
    common::job(&program, &[OsStr::new("alone")], 1, &[("OXSHMEM_DEVICE", "cpu")]);
}

/// Contexts choose by which cards PEs send: where the PEs push, and where the CPU proxy pushes for
/// them. `host.c` checks where they do not push.
#[test]
fn contexts_choose_their_rails() {
    let program = program("c-rails", "cc", "-std=c99", "c");
    let machine = common::manifest().join("../tests/machines/one-switch.txt");
    let machine = machine.to_str().unwrap();
    for (network, argument) in [("ibgda", "pushes"), ("ibrc", "pushes-by-proxy")] {
        let variables = [
            ("OXSHMEM_DEVICE", "cpu"),
            ("OXSHMEM_HCA", "soft"),
            ("OXSHMEM_NETWORK", network),
            ("OXSHMEM_RAILS", "push"),
            ("OXSHMEM_TOPOLOGY", machine),
        ];
        common::job_on_nodes(&program, &[OsStr::new(argument)], (4, 2), &variables);
    }
}

#[test]
fn from_cxx() {
    passes(&program("c++", "c++", "-std=c++17", "c++"), "p2p", 2);
}

/// A thread opens a library and ends the job while another one waits in a call. Otherwise that
/// waits until the kernel is stopped, which is another error.
#[test]
fn a_job_is_ended_while_a_call_waits() {
    let path = common::scratch("ends").join("ends");
    let program = compile("ends.c", &path, "cc", &["-std=gnu11", "-pthread"]);
    let variables = [("OXSHMEM_DEVICE", "cpu"), ("OXSHMEM_TIMEOUT", "1h"), ("OXSHMEM_KERNEL_TIMEOUT", "30s")];
    common::succeeds(Command::new(program).envs(variables));
}

/// What host.h says in numbers is what the library has.
#[test]
fn the_header_has_the_version_of_the_library() {
    let header = std::fs::read_to_string(common::manifest().join("../device-kernels/include/oxshmem/host.h")).unwrap();
    for (name, value) in [
        ("MAJOR", env!("CARGO_PKG_VERSION_MAJOR")),
        ("MINOR", env!("CARGO_PKG_VERSION_MINOR")),
        ("PATCH", env!("CARGO_PKG_VERSION_PATCH")),
    ] {
        assert!(header.contains(&format!("OXSHMEM_{name}_VERSION = {value},")), "{name} {value}");
    }
}
