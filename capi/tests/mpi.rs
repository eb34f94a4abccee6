//! Programs that join through MPI, with each MPI that is installed.

#![allow(clippy::unwrap_used)]

mod common;

use std::process::Command;

/// Compiles `programs/mpi.c` with an MPI's compiler and runs it as three processes.
fn joins(compiler: &str, language: &str, launcher: &[&str]) {
    for needed in [compiler, launcher[0]] {
        if Command::new(needed).arg("--version").output().is_err() {
            return println!(
                "skipped: {needed} is not installed (Debian's libmpich-dev, mpich, libopenmpi-dev, openmpi-bin)"
            );
        }
    }
    let header = Command::new(compiler).args(["-x", language, "-include", "mpi.h", "-E", "/dev/null"]).output();
    if !header.is_ok_and(|output| output.status.success()) {
        return println!("skipped: {compiler} finds no mpi.h (Debian's libmpich-dev, libopenmpi-dev)");
    }
    let program = common::scratch(compiler).join("mpi");
    let library = common::library();
    common::succeeds(
        Command::new(compiler)
            .args(["-Wall", "-Wextra", "-x", language])
            .arg(common::manifest().join("tests/programs/mpi.c"))
            .arg("-I")
            .arg(common::manifest().join("../device-kernels/include"))
            .arg("-L")
            .arg(&library)
            .args(["-loxshmem", &format!("-Wl,-rpath,{}", library.display()), "-o"])
            .arg(&program),
    );
    let mut command = Command::new(launcher[0]);
    command.args(&launcher[1..]).args(["-n", "3"]).arg(&program).env("OXSHMEM_DEVICE", "cpu");
    for (name, value) in [("OXSHMEM_HEAP_MAX", "64M"), ("OXSHMEM_HEAP_CHUNK", "2M")] {
        command.env(name, value);
    }
    let output = command.output().unwrap();
    let text = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    assert!(output.status.success(), "{text}");
    (0..3).for_each(|rank| assert!(text.contains(&format!("PE {rank} of 3 has joined")), "{text}"));
}

#[test]
fn through_mpich() {
    joins("mpicc.mpich", "c", &["mpiexec.hydra"]);
}

#[test]
fn through_mpich_from_cxx() {
    joins("mpicxx.mpich", "c++", &["mpiexec.hydra"]);
}

#[test]
fn through_open_mpi() {
    joins("mpicc.openmpi", "c", &["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe"]);
}
