//! What the host does with a CUDA driver, on the stand-in for it: each test is a job whose PEs run
//! one case of `gpu-pe`. They are skipped where the modules were built without PTX, with the
//! reason.

use oxshmem::launch::PeStatus;
use oxshmem_driver_stand_in::LIBRARIES;
use oxshmem_stand_in::{built, link};
use oxshmem_tests::{ABSENT, Device, Job, Transport, scratch, stdout, transcript};

const PE: &str = env!("CARGO_BIN_EXE_gpu-pe");

/// Returns a job whose PEs find the stand-in in the place of the driver.
fn job(case: &str, npes: u32) -> Job {
    let folder = scratch(env!("CARGO_TARGET_TMPDIR")).join("driver");
    let installed = built("liboxshmem_driver_stand_in.so").and_then(|file| link(&file, &folder, &LIBRARIES));
    if let Err(error) = installed {
        panic!("{}: {error}", folder.display());
    }
    Job::new(PE, case, npes).transport(Transport::P2p).on(Device::Cuda).env("LD_LIBRARY_PATH", &folder)
}

macro_rules! cases {
    ($($name:ident: $case:literal, $npes:literal $(, $variable:literal = $value:literal)?;)*) => {
        $(#[test] fn $name() { passes(job($case, $npes)$(.env($variable, $value))?); })*
    };
}

fn passes(case: Job) {
    let probe = job("probe", 1).run();
    let said = stdout(&probe, 0);
    if probe.pes[0].status == PeStatus::Exited(ABSENT) && said.contains("no PTX") {
        println!("skipped: {said}");
        return;
    }
    assert!(probe.is_success(), "{}", transcript(&probe));
    let _ = case.passes();
}

cases! {
    a_module_that_says_so_is_launched_early: "early_on_stand_in", 1;
    an_own_part_is_copied_beside_others: "copied_on_stand_in", 2, "OXSHMEM_COLLECTIVES" = "fcollect=copy";
    a_call_that_waits_is_not_captured: "waits_on_stand_in", 1;
    collectives_launch_and_do_nothing_else_1: "collectives_on_stand_in", 1;
    collectives_launch_and_do_nothing_else_2: "collectives_on_stand_in", 2;
    calls_are_queued_and_followed_1: "queued_on_stand_in", 1;
    calls_are_queued_and_followed_2: "queued_on_stand_in", 2;
    what_is_captured_is_kernels_and_copies: "captured_on_stand_in", 1;
    work_of_a_stream_that_is_gone_is_waited_for: "held_on_stand_in", 1;
    a_pe_leaves_nothing_to_the_next: "rounds_on_stand_in", 1;
    a_gpu_that_reads_the_host_late_is_given_words: "words_on_stand_in", 1, "STAND_IN_GPU" = "reads-host";
    a_stream_that_stores_no_words_copies_them: "words_on_stand_in", 1, "STAND_IN_GPU" = "no-stores";
    a_gpu_without_either_has_kernels_for_words: "words_on_stand_in", 1, "STAND_IN_GPU" = "reads-host,no-stores";
}
