//! Programs that join through MPI, with each MPI that is installed.

#![allow(clippy::unwrap_used)]

mod common;

use common::mpi::{MPICH_C, MPICH_CXX, Mpi, OPEN_MPI_C};

/// Compiles `programs/mpi.c` and runs it.
fn joins(mpi: &Mpi) {
    if !mpi.is_installed() {
        return;
    }
    let program = common::scratch(mpi.compiler).join("mpi");
    let include = common::manifest().join("../device-kernels/include");
    let source = common::manifest().join("tests/programs/mpi.c");
    mpi.compile(&source, &include, (&common::library(), "oxshmem"), &program);
    let text = mpi.run(&program, &[]);
    (0..3).for_each(|rank| assert!(text.contains(&format!("PE {rank} of 3 has joined")), "{text}"));
}

#[test]
fn through_mpich() {
    joins(&MPICH_C);
}

#[test]
fn through_mpich_from_cxx() {
    joins(&MPICH_CXX);
}

#[test]
fn through_open_mpi() {
    joins(&OPEN_MPI_C);
}
