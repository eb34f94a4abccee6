//! Programs that are compiled and started by an MPI.

use std::path::Path;
use std::process::Command;

/// An MPI's compiler, the language that it is given, and what starts processes.
pub struct Mpi {
    pub compiler: &'static str,
    pub language: &'static str,
    pub launcher: &'static [&'static str],
}

const OPEN_MPI: &[&str] = &["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe"];
const MPICH: &[&str] = &["mpiexec.hydra"];
pub const MPICH_C: Mpi = Mpi { compiler: "mpicc.mpich", language: "c", launcher: MPICH };
pub const MPICH_CXX: Mpi = Mpi { compiler: "mpicxx.mpich", language: "c++", launcher: MPICH };
pub const OPEN_MPI_C: Mpi = Mpi { compiler: "mpicc.openmpi", language: "c", launcher: OPEN_MPI };
pub const OPEN_MPI_CXX: Mpi = Mpi { compiler: "mpicxx.openmpi", language: "c++", launcher: OPEN_MPI };

impl Mpi {
    /// Returns whether this MPI is installed, and prints what is missing if it is not.
    pub fn is_installed(&self) -> bool {
        for needed in [self.compiler, self.launcher[0]] {
            if Command::new(needed).arg("--version").output().is_err() {
                println!(
                    "skipped: {needed} is not installed (Debian's libmpich-dev, mpich, libopenmpi-dev, openmpi-bin)"
                );
                return false;
            }
        }
        let header =
            Command::new(self.compiler).args(["-x", self.language, "-include", "mpi.h", "-E", "/dev/null"]).output();
        let found = header.is_ok_and(|output| output.status.success());
        if !found {
            println!("skipped: {} finds no mpi.h (Debian's libmpich-dev, libopenmpi-dev)", self.compiler);
        }
        found
    }

    /// Compiles a source of one file.
    pub fn compile(&self, source: &Path, include: &Path, (library, name): (&Path, &str), program: &Path) {
        super::succeeds(
            Command::new(self.compiler)
                .args(["-Wall", "-Wextra", "-x", self.language])
                .arg(source)
                .arg("-I")
                .arg(include)
                .arg("-L")
                .arg(library)
                .args([&format!("-l{name}"), &format!("-Wl,-rpath,{}", library.display()), "-o"])
                .arg(program),
        );
    }

    /// Runs a program as three processes on the `cpu` device, with these variables; returns what
    /// they print.
    pub fn run(&self, program: &Path, variables: &[(&str, &str)]) -> String {
        super::succeeds(
            Command::new(self.launcher[0])
                .args(&self.launcher[1..])
                .args(["-n", "3"])
                .arg(program)
                .env("OXSHMEM_DEVICE", "cpu")
                .env("OXSHMEM_HEAP_MAX", "64M")
                .env("OXSHMEM_HEAP_CHUNK", "2M")
                .envs(variables.iter().copied()),
        )
    }
}
