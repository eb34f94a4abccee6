//! How long set-up of a PE takes in large jobs, with the time that commands take on a card: on the
//! stand-in for rdma-core, one process, whose peers are played. What does not depend on time is
//! tested in `tests/mlx5/size.rs`.

use std::path::Path;

use oxshmem_tests::set_up::{Simulated, Taken};

/// Microseconds, as ConnectX cards take for most commands.
const COMMAND_US: [u32; 2] = [0, 150];

fn main() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("set-up");
    if let Err(error) = oxshmem_stand_in::install(&folder, &[]) {
        panic!("{}: {error}", folder.display());
    }
    for transport in ["ibgda", "ibrc"] {
        for time in COMMAND_US {
            println!("\n{transport}, {time} us for each command\n\n{}", Taken::COLUMNS);
            for pes in [64, 256, 512, 1024] {
                let job = Simulated {
                    program: Path::new(env!("CARGO_BIN_EXE_conformance-pe")),
                    library_path: folder.clone().into(),
                    report: &folder.join("report"),
                    pes,
                    transport,
                    variables: &[],
                    lies: &format!("device:command-us={time}"),
                };
                println!("{}", job.measure());
            }
        }
    }
}
