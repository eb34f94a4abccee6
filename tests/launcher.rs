//! Launcher: real processes, and PEs of a job that die in every way.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::time::{Duration, Instant};

use oxshmem::Config;
use oxshmem::bootstrap::{Bootstrap, BootstrapError};
use oxshmem::launch::{LaunchError, LaunchOptions, Outcome, Output, PeStatus, in_job, run};

/// Returns a shell script as every PE.
fn script(npes: u32, text: &str) -> LaunchOptions {
    LaunchOptions { output: Output::Captured, ..LaunchOptions::new(npes, "/bin/sh").args(["-c", text]) }
}

/// This test program as every PE: it runs [`pe`].
fn job(npes: u32, scenario: &str) -> Outcome {
    let program = std::env::current_exe().unwrap();
    let args = ["--exact", "pe", "--ignored", "--nocapture", "--test-threads=1"];
    let options = LaunchOptions { output: Output::Captured, ..LaunchOptions::new(npes, program).args(args) };
    run(&options.env("SCENARIO", scenario).env("OXSHMEM_BOOTSTRAP_TIMEOUT", "60s")).unwrap()
}

fn stdout(outcome: &Outcome, rank: usize) -> String {
    String::from_utf8(outcome.pes[rank].stdout.clone()).unwrap()
}

/// Returns what follows `key=` in a PE's output.
fn said<'a>(text: &'a str, key: &str) -> &'a str {
    let line = text.lines().find_map(|line| line.split_once(&format!("{key}=")));
    line.unwrap_or_else(|| panic!("no {key}= in {text:?}")).1
}

/// Returns whether a process exists and is not a zombie.
fn is_alive(pid: &str) -> bool {
    let stat = std::fs::read_to_string(Path::new("/proc").join(pid.trim()).join("stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

/// Returns whether a process ends that was killed: the kernel does that when it gets to it.
fn ends(pid: &str) -> bool {
    let until = Instant::now() + Duration::from_secs(30);
    while is_alive(pid) {
        if Instant::now() > until {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}

#[test]
#[ignore = "what the PEs run that other tests start"]
fn pe() {
    assert!(in_job());
    let join = || Bootstrap::connect(&Config::from_env().unwrap()).unwrap();
    // Waits for the end of the job as a PE would, shows the error, and ends with status 3.
    let fail = |pe: &Bootstrap| -> ! {
        match pe.barrier("never").unwrap_err() {
            BootstrapError::Failed(failure) => println!("failure={failure}"),
            other => println!("failure=unexpected: {other}"),
        }
        std::process::exit(3)
    };
    let kill_myself =
        || rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL).unwrap();
    match std::env::var("SCENARIO").unwrap().as_str() {
        "twice" => {
            for _ in 0..2 {
                let pe = join();
                let pids = pe.allgather("pids", std::process::id().to_string().as_bytes()).unwrap();
                println!("pids={}", String::from_utf8(pids.join(&b","[..])).unwrap());
                println!("node={:?}", pe.node_peers());
                pe.finalize().unwrap();
            }
        }
        "killed" => {
            let pe = join();
            pe.barrier("start").unwrap();
            if pe.rank() == 1 {
                kill_myself();
            }
            fail(&pe)
        }
        "exits" => {
            let pe = join();
            pe.barrier("start").unwrap();
            if pe.rank() == 2 {
                std::process::exit(0);
            }
            fail(&pe)
        }
        "panics" => {
            let pe = join();
            pe.barrier("start").unwrap();
            assert_ne!(pe.rank(), 1, "on purpose");
            fail(&pe)
        }
        "aborts" => {
            let pe = join();
            pe.barrier("start").unwrap();
            if pe.rank() == 1 {
                pe.abort("no more disk");
                // The others end first; the launcher must still name this one.
                std::thread::sleep(Duration::from_millis(300));
                std::process::exit(7);
            }
            fail(&pe)
        }
        "stays away" => {
            if Config::from_env().unwrap().rank() == Some(1) {
                std::process::exit(0);
            }
            match Bootstrap::connect(&Config::from_env().unwrap()).unwrap_err() {
                BootstrapError::Failed(failure) => println!("failure={failure}"),
                other => println!("failure=unexpected: {other}"),
            }
            std::process::exit(3)
        }
        other => panic!("no scenario {other}"),
    }
}

#[test]
fn processes_meet_twice_in_one_job() {
    let outcome = job(3, "twice");
    assert!(outcome.is_success(), "{outcome:?}");
    let pids = said(&stdout(&outcome, 0), "pids").to_owned();
    assert_eq!(pids.split(',').count(), 3);
    for rank in 0..3 {
        let text = stdout(&outcome, rank);
        assert_eq!(text.matches(&format!("pids={pids}")).count(), 2, "{text}");
        assert_eq!(said(&text, "node"), "[0, 1, 2]");
    }
}

#[test]
fn new_processes_meet_in_a_job_where_others_have_finalized() {
    let exe = std::env::current_exe().unwrap();
    let text = "\"$0\" --exact pe --ignored --nocapture && \"$0\" --exact pe --ignored --nocapture";
    let outcome = run(&script(2, text).args([exe]).env("SCENARIO", "twice")).unwrap();
    assert!(outcome.is_success(), "{outcome:?}");
    assert_eq!(stdout(&outcome, 1).matches("pids=").count(), 4);
}

#[test]
fn a_killed_pe_is_named_to_the_others_and_by_the_launcher() {
    let outcome = job(3, "killed");
    assert_eq!(outcome.pes[1].status, PeStatus::Killed(9));
    assert_eq!((outcome.failed, outcome.exit_code()), (Some(1), 137));
    for rank in [0, 2] {
        let text = stdout(&outcome, rank);
        let failure = said(&text, "failure");
        assert!(failure.starts_with("PE 1 (process ") && failure.contains("died"), "{failure}");
        assert_eq!(outcome.pes[rank].status, PeStatus::Exited(3));
    }
    assert!(outcome.reports[0].starts_with("PE 1 was killed by SIGKILL"), "{:?}", outcome.reports);
}

#[test]
fn a_pe_that_exits_without_finalize_is_named() {
    let outcome = job(3, "exits");
    for rank in [0, 1] {
        assert!(said(&stdout(&outcome, rank), "failure").starts_with("PE 2 (process "), "{outcome:?}");
    }
    assert_eq!(outcome.exit_code(), 3);
}

#[test]
fn a_panic_ends_the_job() {
    let outcome = job(2, "panics");
    assert_eq!(said(&stdout(&outcome, 0), "failure"), "PE 1 aborted the job: it panicked");
    assert_eq!((outcome.failed, outcome.exit_code()), (Some(1), 101));
}

#[test]
fn the_pe_that_aborted_is_named_though_others_end_first() {
    let outcome = job(3, "aborts");
    for rank in [0, 2] {
        assert_eq!(said(&stdout(&outcome, rank), "failure"), "PE 1 aborted the job: no more disk");
    }
    assert_eq!((outcome.failed, outcome.exit_code()), (Some(1), 7));
    assert!(outcome.reports[0].starts_with("PE 1 exited with status 7"), "{:?}", outcome.reports);
}

#[test]
fn a_pe_that_never_joins_does_not_keep_the_others_waiting() {
    let outcome = job(2, "stays away");
    let failure = said(&stdout(&outcome, 0), "failure").to_owned();
    assert_eq!(failure, "PE 1 exited with status 0 before it joined the job");
}

#[test]
fn output_is_captured_byte_for_byte() {
    let outcome = run(&script(3, "printf 'a\\000\\377%s' $OXSHMEM_RANK; echo x$VALUE-$1 >&2")
        .args(["zero", "one"])
        .env("VALUE", "v"));
    let outcome = outcome.unwrap();
    assert!(outcome.is_success());
    for (rank, pe) in outcome.pes.iter().enumerate() {
        assert_eq!(pe.stdout, [b"a\x00\xff", rank.to_string().as_bytes()].concat());
        assert_eq!(pe.stderr, b"xv-one\n");
    }
}

#[test]
fn every_pe_has_its_place_and_no_input() {
    assert!(!in_job());
    let outcome =
        run(&script(4, "echo rank=$OXSHMEM_RANK of=$OXSHMEM_NPES; cat; env -u OXSHMEM_CUDA | grep -c ^OXSHMEM_"))
            .unwrap();
    for rank in 0..4 {
        assert_eq!(stdout(&outcome, rank), format!("rank={rank} of=4\n4\n"));
    }
}

#[test]
fn much_output_of_many_pes_is_complete() {
    let outcome = run(&script(64, "seq 1 20000")).unwrap();
    let expected: String = (1..=20000).map(|number| format!("{number}\n")).collect();
    assert!(outcome.is_success());
    assert!(outcome.pes.iter().all(|pe| pe.stdout == expected.as_bytes()));
}

#[test]
fn the_first_failing_pe_decides_and_the_others_are_ended() {
    let ready = std::env::temp_dir().join(format!("oxshmem-launcher-ready-{}", std::process::id()));
    let mut options = script(
        3,
        "if [ $OXSHMEM_RANK = 2 ]; then while ! [ -e \"$0-0\" -a -e \"$0-1\" ]; do sleep 0.01; done; exit 42; fi
         echo pid=$$; : > \"$0-$OXSHMEM_RANK\"; exec sleep 1000",
    )
    .args([&ready]);
    options.grace = Duration::from_millis(100);
    let outcome = run(&options).unwrap();
    for rank in 0..2 {
        std::fs::remove_file(format!("{}-{rank}", ready.display())).unwrap();
    }
    assert_eq!((outcome.failed, outcome.exit_code(), outcome.timed_out), (Some(2), 42, false));
    assert_eq!(outcome.reports, ["PE 2 exited with status 42; ending the others"]);
    for rank in [0, 1] {
        assert_eq!(outcome.pes[rank].status, PeStatus::Killed(15));
        assert!(!is_alive(said(&stdout(&outcome, rank), "pid")));
    }
}

#[test]
fn a_pe_that_ignores_sigterm_is_killed() {
    let ready = std::env::temp_dir().join(format!("oxshmem-launcher-{}", std::process::id()));
    let mut options = script(
        2,
        "if [ $OXSHMEM_RANK = 0 ]; then trap '' TERM; : > \"$0\"; while :; do sleep 1; done; fi
         while [ ! -e \"$0\" ]; do sleep 0.01; done; exit 1",
    )
    .args([&ready]);
    options.grace = Duration::from_millis(100);
    let outcome = run(&options).unwrap();
    std::fs::remove_file(&ready).unwrap();
    assert_eq!(outcome.pes[0].status, PeStatus::Killed(9));
    assert_eq!(outcome.exit_code(), 1);
    assert_eq!(outcome.reports[1], "PE 0 is still running 0.1 s after SIGTERM; killing");
}

#[test]
fn a_job_ends_when_its_time_is_over() {
    let mut options = script(2, "echo pid=$$; if [ $OXSHMEM_RANK = 0 ]; then exit 0; fi; sleep 1000");
    options.timeout = Some(Duration::from_secs(4));
    options.grace = Duration::from_millis(100);
    let outcome = run(&options).unwrap();
    assert_eq!((outcome.timed_out, outcome.exit_code()), (true, 124));
    assert_eq!(outcome.pes[0].status, PeStatus::Exited(0));
    assert_eq!(outcome.reports, ["the time of 4 s is over and PE 1 is still running; ending the job"]);
    assert!(!is_alive(said(&stdout(&outcome, 1), "pid")));
}

#[test]
fn what_pes_have_started_ends_with_them() {
    for then in ["exit 0", "exit 5", "kill -9 $$"] {
        let text =
            format!("sleep 1000 & echo pid=$!; (trap '' TERM; while :; do sleep 1; done) & echo stubborn=$!; {then}");
        let mut options = script(2, &text);
        options.grace = Duration::from_millis(100);
        let outcome = run(&options).unwrap();
        for rank in 0..2 {
            let text = stdout(&outcome, rank);
            assert!(ends(said(&text, "pid")) && ends(said(&text, "stubborn")), "{then}: {text}");
        }
    }
}

#[test]
fn what_cannot_be_started_is_an_error() {
    let error = run(&LaunchOptions::new(2, "/no/such/program")).unwrap_err();
    assert!(matches!(error, LaunchError::Program { .. }) && error.exit_code() == 127);
    assert!(error.to_string().starts_with("cannot start '/no/such/program': No such file"), "{error}");
    let error = run(&LaunchOptions::new(1, "/etc/passwd")).unwrap_err();
    assert!(matches!(error, LaunchError::Program { .. }) && error.exit_code() == 126, "{error}");
    for npes in [0, 4097] {
        let error = run(&LaunchOptions::new(npes, "true")).unwrap_err();
        assert_eq!(error.to_string(), format!("a job cannot have {npes} PEs; give a number from 1 to 4096 (oxrun -n)"));
    }
}
