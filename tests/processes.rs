//! PEs that die. The others end with an error that names the dead one, long before any deadline,
//! and nothing is left behind.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::time::Duration;

use oxshmem::launch::PeStatus;
use oxshmem_tests::{Device, Job, Transport, stdout, transcript};

const PE: &str = env!("CARGO_BIN_EXE_conformance-pe");

/// The PE that dies, and how.
const DYING: usize = 1;

fn survivors_are_told(case: &str, device: Device, transport: Transport, npes: u32, end: PeStatus) {
    survivors_of(Job::new(PE, case, npes).on(device).transport(transport), end);
}

/// Returns what the survivors were told; nothing where the job is not possible.
fn survivors_of(job: Job, end: PeStatus) -> Vec<String> {
    // Deadlines that no test waits for: an error that comes is not theirs. The launcher does not
    // hurry survivors that share a GPU either.
    let job =
        job.grace(Duration::from_secs(60)).env("OXSHMEM_TIMEOUT", "10min").env("OXSHMEM_BOOTSTRAP_TIMEOUT", "10min");
    let mut told = Vec::new();
    if !job.is_possible() {
        return told;
    }
    let outcome = job.run();
    let text = transcript(&outcome);
    for (rank, pe) in outcome.pes.iter().enumerate() {
        if rank == DYING {
            assert_eq!(pe.status, end, "{text}");
        } else {
            assert_eq!(pe.status, PeStatus::Exited(0), "{text}");
            let printed = stdout(&outcome, rank);
            let error = printed.lines().find_map(|line| line.strip_prefix("survivor: "));
            told.push(error.unwrap_or_else(|| panic!("PE {rank} was told nothing\n{text}")).to_owned());
        }
    }
    if matches!(end, PeStatus::Killed(_)) {
        assert_eq!(outcome.failed, Some(DYING as u32), "{text}");
    }
    nothing_is_left(&text);
    told
}

/// No process of the job, no socket, no file.
fn nothing_is_left(text: &str) {
    let told = |what: &str| -> Vec<String> {
        text.lines().filter_map(|line| line.strip_prefix(what)).map(str::to_owned).collect()
    };
    let jobs = told("job ");
    let sockets = told("socket ");
    assert!(!jobs.is_empty(), "{text}");
    let bound = fs::read_to_string("/proc/net/unix").unwrap();
    for socket in &sockets {
        assert!(!bound.lines().any(|line| line.ends_with(&format!(" {socket}"))), "{socket} is left");
    }
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        if let Ok(environment) = fs::read(entry.path().join("environ")) {
            let environment = String::from_utf8_lossy(&environment);
            assert!(!environment.contains(&jobs[0]), "process {:?} is left", entry.file_name());
        }
    }
    if let Ok(files) = fs::read_dir("/dev/shm") {
        for file in files.flatten() {
            assert!(!file.file_name().to_string_lossy().contains("oxshmem"), "/dev/shm/{:?}", file.file_name());
        }
    }
}

/// Collectives by the algorithms that the library does not choose in these sizes: the survivors
/// name the dead PE, whatever they wait in.
mod dies_amid_collectives_by {
    use super::*;

    fn survivors_name_the_dead(device: Device, npes: u32, variable: &str, value: &str) {
        let job = Job::new(PE, "dies_amid_collectives", npes).on(device).env(variable, value);
        for error in survivors_of(job, KILLED) {
            // The PE, its place, and how it ended.
            let is_named = error.starts_with(&format!("PE {DYING} (")) && error.contains(") died: it ");
            assert!(is_named, "{variable}={value}: {error}");
        }
    }

    macro_rules! algorithms {
        ($($name:ident: $npes:literal, $variable:literal = $value:literal;)*) => {
            $(
                mod $name {
                    use super::*;

                    #[test]
                    fn cpu() {
                        survivors_name_the_dead(Device::Cpu, $npes, $variable, $value);
                    }

                    #[test]
                    fn cuda() {
                        survivors_name_the_dead(Device::Cuda, $npes, $variable, $value);
                    }
                }
            )*
        };
    }

    algorithms! {
        relay: 4, "OXSHMEM_COLLECTIVES" = "broadcast=relay,reduce=relay";
        oneshot: 3, "OXSHMEM_COLLECTIVES" = "reduce=oneshot";
        copy: 2, "OXSHMEM_COLLECTIVES" = "broadcast=copy,fcollect=copy,alltoall=copy";
        copy_to_several: 3, "OXSHMEM_COLLECTIVES" = "broadcast=copy,fcollect=copy,alltoall=copy";
        no_sms: 4, "OXSHMEM_COLLECTIVES_SMS" = "0";
        one_sm: 3, "OXSHMEM_COLLECTIVES_SMS" = "1";
    }
}

/// On two nodes, where collectives have two levels.
#[test]
fn dies_amid_collectives_of_several_nodes() {
    for network in ["ibgda", "ibrc"] {
        let job = Job::new(PE, "dies_amid_collectives", 4).nodes(2).transport(Transport::Auto);
        let job = job.grace(Duration::from_secs(60)).env("OXSHMEM_NETWORK", network);
        let outcome = job.env("OXSHMEM_TIMEOUT", "10min").env("OXSHMEM_BOOTSTRAP_TIMEOUT", "10min").run();
        let text = transcript(&outcome);
        for (rank, pe) in outcome.pes.iter().enumerate() {
            let expected = if rank == DYING { KILLED } else { PeStatus::Exited(0) };
            assert_eq!(pe.status, expected, "{network}: {text}");
        }
        nothing_is_left(&text);
    }
}

/// A PE whose memory holds the staging rings of another one.
#[test]
fn dies_with_lent_rings() {
    let job = Job::new(PE, "dies_with_lent_rings", 4).nodes(2).transport(Transport::Auto);
    let job = job.grace(Duration::from_secs(60)).env("OXSHMEM_HCA", "soft").env("OXSHMEM_RAILS", "push");
    let machine = concat!(env!("CARGO_MANIFEST_DIR"), "/../hca/src/topology/fixtures/dgx-h100.txt");
    let job = job.env("OXSHMEM_TOPOLOGY", machine).env("OXSHMEM_STAGING_RING", "2K");
    let outcome = job.env("OXSHMEM_TIMEOUT", "10min").env("OXSHMEM_BOOTSTRAP_TIMEOUT", "10min").run();
    let text = transcript(&outcome);
    for (rank, pe) in outcome.pes.iter().enumerate() {
        let expected = if rank == DYING { KILLED } else { PeStatus::Exited(0) };
        assert_eq!(pe.status, expected, "{text}");
    }
    nothing_is_left(&text);
}

macro_rules! deaths {
    ($($case:ident: $end:expr;)*) => {
        $(
            mod $case {
                use super::*;

                #[test]
                fn p2p_cpu() {
                    survivors_are_told(stringify!($case), Device::Cpu, Transport::P2p, 4, $end);
                }

                #[test]
                fn ibgda_cpu() {
                    survivors_are_told(stringify!($case), Device::Cpu, Transport::Ibgda, 3, $end);
                }

                #[test]
                fn ibrc_cpu() {
                    survivors_are_told(stringify!($case), Device::Cpu, Transport::Ibrc, 3, $end);
                }

                #[test]
                fn ibrc_cuda() {
                    survivors_are_told(stringify!($case), Device::Cuda, Transport::Ibrc, 3, $end);
                }

                #[test]
                fn p2p_cuda() {
                    survivors_are_told(stringify!($case), Device::Cuda, Transport::P2p, 4, $end);
                }

                #[test]
                fn ibgda_cuda() {
                    survivors_are_told(stringify!($case), Device::Cuda, Transport::Ibgda, 3, $end);
                }
            }
        )*
    };
}

const KILLED: PeStatus = PeStatus::Killed(libc::SIGKILL);

deaths! {
    dies_in_bootstrap: KILLED;
    dies_in_kernel: KILLED;
    dies_under_load: KILLED;
    dies_in_alloc: KILLED;
    dies_in_split: KILLED;
    dies_in_barrier: KILLED;
    dies_in_collective: KILLED;
    dies_amid_collectives: KILLED;
    dies_in_finalize: KILLED;
    drops: PeStatus::Exited(0);
    drops_with_reason: PeStatus::Exited(0);
    aborts: PeStatus::Exited(0);
    aborts_beside: PeStatus::Exited(0);
}
