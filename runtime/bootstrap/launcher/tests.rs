#![allow(clippy::unwrap_used)]

use super::*;
use crate::config::Launcher;

type Vars<'a> = &'a [(&'a str, &'a str)];

fn found(vars: Vars<'_>) -> Finding {
    find(&vars.iter().copied().collect(), Launcher::Auto).unwrap()
}

fn error(vars: Vars<'_>) -> String {
    find(&vars.iter().copied().collect(), Launcher::Auto).unwrap_err().to_string()
}

fn ports(finding: &Finding) -> &start::PortStart {
    match &finding.start {
        Start::Ports(start) => start,
        other => panic!("{other:?}"),
    }
}

const STEP: [(&str, &str); 9] = [
    ("SLURM_JOB_ID", "12"),
    ("SLURM_STEP_ID", "3"),
    ("SLURM_PROCID", "5"),
    ("SLURM_NTASKS", "8"),
    ("SLURM_STEP_NUM_TASKS", "7"),
    ("SLURM_LOCALID", "1"),
    ("SLURM_NODEID", "3"),
    ("SLURM_STEP_TASKS_PER_NODE", "1(x2),2(x2),1"),
    ("SLURM_STEP_NODELIST", "n[3-7]"),
];
const TORCHRUN: [(&str, &str); 7] = [
    ("RANK", "3"),
    ("WORLD_SIZE", "4"),
    ("LOCAL_RANK", "1"),
    ("LOCAL_WORLD_SIZE", "2"),
    ("MASTER_ADDR", "gpu1"),
    ("MASTER_PORT", "29500"),
    ("TORCHELASTIC_RUN_ID", "none"),
];
const OPENMPI: [(&str, &str); 4] = [
    ("OMPI_COMM_WORLD_RANK", "1"),
    ("OMPI_COMM_WORLD_SIZE", "2"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
    ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
];
const PMI: [(&str, &str); 5] =
    [("PMI_FD", "7"), ("PMI_RANK", "1"), ("PMI_SIZE", "2"), ("MPI_LOCALRANKID", "1"), ("MPI_LOCALNRANKS", "2")];

const PMIX: [(&str, &str); 2] = [("PMIX_NAMESPACE", "job.7"), ("PMIX_RANK", "1")];

/// Returns `vars` with one changed; with an empty value it is absent.
fn with<'a>(vars: &[(&'a str, &'a str)], name: &'a str, value: &'a str) -> Vec<(&'a str, &'a str)> {
    let others = vars.iter().copied().filter(|(other, _)| *other != name);
    others.chain([(name, value)]).collect()
}

#[test]
fn a_process_without_a_launcher_is_alone() {
    let finding = found(&[("HOME", "/root"), ("PMI_PORT", "h:1"), ("SLURM_CPUS_ON_NODE", "4")]);
    assert!(finding.launcher == Launcher::None && matches!(finding.start, Start::Alone), "{finding:?}");
}

#[test]
fn a_step_of_slurm() {
    let finding = found(&STEP);
    assert_eq!((finding.launcher, finding.local), (Launcher::Slurm, Some(Local { rank: 1, size: 2 })));
    let start = ports(&finding);
    assert_eq!((start.rank, start.npes, start.host.as_str(), start.one_node), (5, 7, "n3", false));
    let one_node = found(&with(&STEP, "SLURM_STEP_NUM_NODES", "1"));
    assert!(ports(&one_node).one_node);
    assert!(matches!(found(&with(&with(&STEP, "SLURM_STEP_NUM_TASKS", "1"), "SLURM_PROCID", "0")).start, Start::Alone));
}

#[test]
fn shells_of_slurm_are_not_steps() {
    // What sbatch's script has with -n 8, whether or not its step has a number; and salloc's shell.
    let batch = [("SLURM_JOB_ID", "12"), ("SLURM_PROCID", "0"), ("SLURM_NTASKS", "8"), ("SLURM_LOCALID", "0")];
    for vars in [
        batch.to_vec(),
        with(&batch, "SLURM_STEP_ID", "4294967291"),
        with(&with(&batch, "SLURM_STEP_ID", "4294967290"), "SLURM_STEP_NUM_TASKS", "8"),
        vec![("SLURM_JOB_ID", "12"), ("SLURM_NTASKS", "8")],
    ] {
        let finding = found(&vars);
        assert_eq!(finding.launcher, Launcher::None, "{vars:?}");
        assert!(finding.ignored[0].contains("SLURM_JOB_ID=12 SLURM_NTASKS=8"), "{:?}", finding.ignored);
    }
}

#[test]
fn a_step_of_slurm_that_cannot_be_used_is_an_error() {
    for (name, value, words) in [
        ("SLURM_STEP_NUM_TASKS", "", "SLURM_PROCID=5 is set but SLURM_STEP_NUM_TASKS is not"),
        ("SLURM_PROCID", "7", "SLURM_PROCID=7 is not below SLURM_STEP_NUM_TASKS=7"),
        ("SLURM_PROCID", "x", "SLURM_PROCID=x is not a number"),
        ("SLURM_STEP_NUM_TASKS", "70000", "SLURM_STEP_NUM_TASKS=70000 is outside its limits"),
        ("SLURM_STEP_NODELIST", "", "SLURM_STEP_NODELIST is not"),
        ("SLURM_STEP_NODELIST", "n[", "SLURM_STEP_NODELIST=n[: a bracket is not closed"),
        ("SLURM_JOB_ID", "", "SLURM_JOB_ID is not"),
    ] {
        let error = error(&with(&STEP, name, value));
        assert!(error.starts_with("launcher slurm: ") && error.contains(words), "{error}");
    }
    let elsewhere = with(&with(&STEP, "SLURM_PROCID", "0"), "SLURMD_NODENAME", "n7");
    assert!(error(&elsewhere).contains("task 0 runs on n7, not on n3"), "{}", error(&elsewhere));
}

#[test]
fn torchrun_is_believed_beside_a_local_rank_only() {
    let finding = found(&TORCHRUN);
    assert_eq!((finding.launcher, finding.local), (Launcher::Torchrun, Some(Local { rank: 1, size: 2 })));
    let start = ports(&finding);
    assert_eq!((start.rank, start.npes, start.host.as_str(), start.one_node), (3, 4, "gpu1", false));
    assert!(ports(&found(&with(&TORCHRUN, "LOCAL_WORLD_SIZE", "4"))).one_node);
    // Agents do not agree on how often they have restarted their workers.
    let restarted = with(&TORCHRUN, "TORCHELASTIC_RESTART_COUNT", "2");
    assert_eq!(ports(&found(&restarted)).credential(), start.credential());
    assert_ne!(ports(&found(&with(&TORCHRUN, "MASTER_PORT", "29501"))).credential(), start.credential());

    let nodes = found(&with(&TORCHRUN, "LOCAL_RANK", ""));
    assert_eq!(nodes.launcher, Launcher::None);
    assert_eq!(nodes.ignored, ["RANK=3 WORLD_SIZE=4 without LOCAL_RANK is not torchrun's and is ignored"]);
    assert_eq!(found(&[("LOCAL_RANK", "1")]).launcher, Launcher::None);

    for (name, value, words) in [
        ("RANK", "4", "RANK=4 is not below WORLD_SIZE=4"),
        ("RANK", "", "WORLD_SIZE=4 is set but RANK is not"),
        ("WORLD_SIZE", "", "RANK=3 is set but WORLD_SIZE is not"),
        ("MASTER_ADDR", "", "MASTER_ADDR is not"),
        ("MASTER_PORT", "http", "MASTER_PORT=http is not a number"),
    ] {
        let error = error(&with(&TORCHRUN, name, value));
        assert!(error.starts_with("launcher torchrun: ") && error.contains(words), "{error}");
    }
}

#[test]
fn open_mpi_without_pmix_is_enough_for_one_node() {
    let finding = found(&OPENMPI);
    assert_eq!((finding.launcher, ports(&finding).rank), (Launcher::Openmpi, 1));
    let error = error(&with(&OPENMPI, "OMPI_COMM_WORLD_LOCAL_SIZE", "1"));
    assert!(error.contains("several nodes") && error.contains("libpmix.so.2"), "{error}");
    let alone = with(&with(&OPENMPI, "OMPI_COMM_WORLD_SIZE", "1"), "OMPI_COMM_WORLD_RANK", "0");
    assert!(matches!(found(&alone).start, Start::Alone));
}

#[test]
fn a_pmi_is_known_by_its_descriptor() {
    let finding = found(&PMI);
    assert_eq!((finding.launcher, finding.local), (Launcher::Pmi, Some(Local { rank: 1, size: 2 })));
    assert!(matches!(&finding.start, Start::Pmi(start) if start.one_node && start.fd == 7), "{finding:?}");
    assert!(matches!(found(&with(&with(&PMI, "PMI_SIZE", "1"), "PMI_RANK", "0")).start, Start::Alone));
    for (name, value, words) in [
        ("PMI_RANK", "", "PMI_FD=7 is set but PMI_RANK is not"),
        ("PMI_SIZE", "", "PMI_FD=7 is set but PMI_SIZE is not"),
        ("PMI_FD", "-1", "PMI_FD=-1 is not a number"),
        ("PMI_FD", "4000000000", "PMI_FD=4000000000 is no descriptor"),
        ("PMI_RANK", "2", "PMI_RANK=2 is not below PMI_SIZE=2"),
    ] {
        let error = error(&with(&PMI, name, value));
        assert!(error.starts_with("launcher pmi: ") && error.contains(words), "{error}");
    }
    let port = error(&[("PMI_PORT", "h:1"), ("PMI_ID", "0")]);
    assert!(port.contains("PMI_PORT=h:1 PMI_ID=0 is set and PMI_FD is not"), "{port}");
}

#[test]
fn of_two_launchers_the_nearest_is_believed() {
    let both = |first: Vars<'_>, second: Vars<'_>| found(&[first, second].concat()).launcher;
    assert_eq!(both(&STEP, &OPENMPI), Launcher::Openmpi);
    assert_eq!(both(&STEP, &PMI), Launcher::Pmi);
    assert_eq!(both(&STEP, &TORCHRUN), Launcher::Torchrun);
    assert_eq!(both(&STEP, &PMIX), Launcher::Pmix);
    assert_eq!(both(&PMI, &PMIX), Launcher::Pmix);
    assert_eq!(both(&OPENMPI, &PMIX), Launcher::Pmix);
    assert_eq!(both(&PMIX, &TORCHRUN), Launcher::Torchrun);
    assert_eq!(both(&PMI, &TORCHRUN), Launcher::Torchrun);
    // Without a run's name the variables may be those of a cloud.
    assert_eq!(both(&PMI, &with(&TORCHRUN, "TORCHELASTIC_RUN_ID", "")), Launcher::Pmi);
}

#[test]
fn a_launcher_can_be_chosen() {
    let both = [&STEP[..], &PMI[..]].concat();
    let choose = |launcher| find(&both.iter().copied().collect(), launcher);
    assert_eq!(choose(Launcher::Slurm).unwrap().launcher, Launcher::Slurm);
    assert!(matches!(choose(Launcher::None).unwrap().start, Start::Alone));
    let error = choose(Launcher::Openmpi).unwrap_err().to_string();
    assert!(error.contains("OXSHMEM_LAUNCHER=openmpi, but OMPI_COMM_WORLD_RANK is not set here"), "{error}");
}

#[test]
fn jobs_differ_in_identity_and_ports() {
    let first = found(&STEP);
    let start = ports(&first);
    let other = found(&with(&STEP, "SLURM_STEP_ID", "4"));
    let other = ports(&other);
    assert_ne!(start.credential().job(), other.credential().job());
    assert_ne!(start.ports(), other.ports());
    // Equal at every rank.
    let neighbour = found(&with(&STEP, "SLURM_PROCID", "1"));
    assert_eq!(ports(&neighbour).credential(), start.credential());
    assert_eq!(ports(&neighbour).ports(), start.ports());
    assert!(start.ports().iter().all(|port| (20_000..32_768).contains(port)));
    assert_eq!(start.ports().len(), 8);
}

#[test]
fn pmix_needs_both_of_its_variables() {
    assert_eq!(found(&PMIX).launcher, Launcher::Pmix);
    assert!(error(&PMIX[..1]).contains("PMIX_NAMESPACE=job.7 is set but PMIX_RANK is not"));
    assert!(error(&PMIX[1..]).contains("PMIX_RANK=1 is set but PMIX_NAMESPACE is not"));
    assert!(error(&with(&PMIX, "PMIX_RANK", "x")).contains("PMIX_RANK=x is not a number"));
}
