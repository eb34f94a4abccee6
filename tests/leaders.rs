//! Jobs of several nodes, in which one PE of each node leads the others to the rendezvous: nodes
//! that are played on this machine.

#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener, UnixStream};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use oxshmem::Config;
use oxshmem::bootstrap::{Bootstrap, BootstrapError, Failure, FailureKind, Hub, HubOptions, JobId, Rendezvous};
use oxshmem::launch::{LaunchOptions, Output, PeStatus, run};
use oxshmem_system::challenge::{BYTES, Nonces, Role, prove};

/// Long enough that only a hang reaches it.
const PATIENT: Duration = Duration::from_secs(60);

fn hub(npes: u32) -> Hub {
    Hub::start(HubOptions::local(npes).unwrap()).unwrap()
}

/// A PE of the node `rank / per_node`.
fn config(hub: &Hub, rank: u32, npes: u32, node: &str, timeout: Duration) -> Config {
    Config::builder()
        .rendezvous(hub.address().to_string().parse::<Rendezvous>().unwrap())
        .job(hub.job_id())
        .rank(rank)
        .npes(npes)
        .node(node)
        .bootstrap_timeout(timeout)
        .meeting_timeout(timeout)
        .build()
        .unwrap()
}

/// Runs `body` in one thread for each of `npes` ranks on `nodes` nodes, round robin, and returns
/// what each returned.
fn on_nodes<T: Send>(
    hub: &Hub,
    (npes, nodes): (u32, u32),
    timeout: Duration,
    body: impl Fn(Result<Bootstrap, BootstrapError>) -> T + Sync,
) -> Vec<T> {
    let body = &body;
    std::thread::scope(|scope| {
        let start = |rank| {
            let config = config(hub, rank, npes, &format!("n{}", rank % nodes), timeout);
            scope.spawn(move || body(Bootstrap::connect(&config)))
        };
        let threads: Vec<_> = (0..npes).map(start).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn failure<T: std::fmt::Debug>(result: Result<T, BootstrapError>) -> Failure {
    match result {
        Err(BootstrapError::Failed(failure)) => failure,
        other => panic!("expected a failure of the job, got {other:?}"),
    }
}

/// Waits until `wanted` connections to a port of this machine are established, as the kernel lists
/// them. The threads that held those of an earlier job close them when they end; and the kernel
/// lists them in pieces, so that one may be missing or there twice while others open and close.
/// Connections too many that close soon are not found.
fn await_connections(wanted: u32, address: SocketAddr) {
    let local = format!(":{:04X}", address.port());
    let start = Instant::now();
    loop {
        let table = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
        let found: Vec<&str> = table.lines().filter(|line| is_established(line, &local)).collect();
        if found.len() == wanted as usize {
            return;
        }
        assert!(start.elapsed() < PATIENT, "{wanted} connections do not come within {PATIENT:?}: {found:#?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Whether a line of the kernel's table is of an established connection to a port.
fn is_established(line: &str, port: &str) -> bool {
    let mut columns = line.split_ascii_whitespace().skip(1);
    columns.next().is_some_and(|local| local.ends_with(port)) && columns.nth(1) == Some("01")
}

#[test]
fn leaders_pass_on_everything_and_the_hub_has_a_connection_from_each_node() {
    let (npes, nodes) = (48, 3);
    let hub = hub(npes);
    for round in 0..2u8 {
        await_connections(0, hub.address());
        on_nodes(&hub, (npes, nodes), PATIENT, |pe| {
            let pe = pe.unwrap();
            let rank = pe.rank();
            await_connections(nodes, hub.address());
            assert_eq!(pe.node_peers(), (0..npes).filter(|peer| peer % nodes == rank % nodes).collect::<Vec<_>>());
            let all = pe.allgather("lengths", &vec![rank as u8; rank as usize]).unwrap();
            assert!((0..npes).zip(&all).all(|(peer, part)| *part == vec![peer as u8; peer as usize]));
            let row: Vec<u8> = (0..npes as u8).flat_map(|to| [rank as u8, to, round]).collect();
            let column = pe.alltoall("columns", &row).unwrap();
            assert!((0..npes as u8).zip(&column).all(|(from, part)| *part == [from, rank as u8, round]));
            pe.barrier("middle").unwrap();
            // Groups of PEs of several nodes, and of one.
            for groups in [2, nodes] {
                // One group may gather before another of the step before has.
                let key = [groups as u8, (rank % groups) as u8];
                let parts = pe.gather(&key, "group", (rank / groups, npes / groups), &[round]).unwrap();
                let members: Vec<u32> = (0..npes).filter(|peer| peer % groups == rank % groups).collect();
                assert_eq!(parts, members.iter().map(|peer| (*peer, vec![round])).collect::<Vec<_>>());
            }
            pe.barrier("end").unwrap();
            pe.finalize().unwrap();
        });
    }
    assert_eq!(hub.failure(), None);
}

#[test]
fn a_megabyte_from_each_rank_goes_through_the_leaders() {
    on_nodes(&hub(8), (8, 2), PATIENT, |pe| {
        let pe = pe.unwrap();
        let all = pe.allgather("bulk", &vec![pe.rank() as u8 ^ 0x5a; 1 << 20]).unwrap();
        assert!((0..8u8).zip(&all).all(|(rank, part)| *part == vec![rank ^ 0x5a; 1 << 20]));
        pe.finalize().unwrap();
    });
}

#[test]
fn a_rank_that_does_not_arrive_is_named_through_the_leaders() {
    let (done, wait) = channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let failures = on_nodes(&hub(4), (4, 2), Duration::from_secs(2), |pe| {
        let pe = pe.unwrap();
        if pe.rank() == 3 {
            let _ = wait.lock().unwrap().recv_timeout(PATIENT);
        }
        let failure = failure(pe.allgather("never", b"x"));
        let _ = done.send(());
        failure
    });
    for failure in failures {
        assert_eq!((failure.kind, &failure.ranks[..]), (FailureKind::Missing, &[3][..]));
        assert!(failure.message.starts_with("PE 3 of 4 did not arrive within 2 s at allgather 1 (never)"), "{failure}");
    }
}

#[test]
fn an_abort_and_a_drop_reach_all_nodes() {
    for (how, words) in [(0, "PE 2 aborted the job: disk full"), (1, "PE 2 aborted the job: it ended without finalize")]
    {
        let failures = on_nodes(&hub(6), (6, 3), PATIENT, |pe| {
            let pe = pe.unwrap();
            pe.barrier("start").unwrap();
            match (pe.rank(), how) {
                (2, 0) => pe.abort("disk full"),
                (2, _) => return None,
                _ => {}
            }
            Some(failure(pe.barrier("never")))
        });
        for failure in failures.into_iter().flatten() {
            assert_eq!((failure.kind, failure.message.as_str()), (FailureKind::Aborted, words));
        }
    }
}

#[test]
fn those_that_do_not_belong_are_refused_by_the_leader_or_through_it() {
    let hub = hub(3);
    let (ready, go) = channel();
    let refused = |config: &Config| match Bootstrap::connect(config) {
        Err(BootstrapError::Refused { reason, .. }) => reason,
        other => panic!("{other:?}"),
    };
    std::thread::scope(|scope| {
        for rank in 0..2 {
            let (config, ready) = (config(&hub, rank, 3, "a", PATIENT), ready.clone());
            scope.spawn(move || {
                ready.send(()).unwrap();
                let pe = Bootstrap::connect(&config).unwrap();
                pe.barrier("x").unwrap();
                pe.finalize().unwrap();
            });
        }
        (0..2).for_each(|_| go.recv().unwrap());
        // It leads at most if it is first, and then another does after it.
        let reason = refused(&config(&hub, 2, 5, "a", PATIENT));
        assert_eq!(reason, "PE 2 says that the job has 5 PEs, the launcher says 3");
        // Once all have joined, at the leader's node and at another one.
        let last = Bootstrap::connect(&config(&hub, 2, 3, "b", PATIENT)).unwrap();
        for node in ["a", "b"] {
            let reason = refused(&config(&hub, 1, 3, node, PATIENT));
            assert!(reason.starts_with("rank 1 is taken by process"), "{reason}");
        }
        last.barrier("x").unwrap();
        last.finalize().unwrap();
    });
    assert_eq!(hub.failure(), None);
}

/// The name of a node's socket, as a PE of it finds it.
fn socket_of(job: JobId, node: &str) -> String {
    let alone = Config::builder().node(node).build().unwrap();
    let node = Bootstrap::connect(&alone).unwrap().peers()[0].node.clone();
    format!("oxshmem-lead-{}-{node}", job.name())
}

#[test]
fn strangers_at_a_leaders_socket_do_not_disturb_the_job() {
    let hub = hub(2);
    let name = socket_of(hub.job_id(), "a");
    std::thread::scope(|scope| {
        for rank in 0..2 {
            let (hub, name) = (&hub, &name);
            scope.spawn(move || {
                let pe = Bootstrap::connect(&config(hub, rank, 2, "a", PATIENT)).unwrap();
                pe.barrier("here").unwrap();
                let mut stranger = UnixStream::connect_addr(&UnixAddr::from_abstract_name(name).unwrap()).unwrap();
                stranger.set_read_timeout(Some(PATIENT)).unwrap();
                stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
                let mut said = Vec::new();
                let _ = stranger.read_to_end(&mut said);
                assert_eq!(said, b"");
                pe.barrier("still here").unwrap();
                pe.finalize().unwrap();
            });
        }
    });
    assert_eq!(hub.failure(), None);
}

#[test]
fn what_only_has_the_leaders_name_is_passed_by() {
    let hub = hub(2);
    let name = socket_of(hub.job_id(), "a");
    let squatter = UnixListener::bind_addr(&UnixAddr::from_abstract_name(name).unwrap()).unwrap();
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = squatter.accept() {
            // A nonce, and then no proof.
            let _ = stream.read_exact(&mut [0; 40]).and_then(|()| stream.write_all(&[7; 32]));
        }
    });
    std::thread::scope(|scope| {
        for rank in 0..2 {
            let hub = &hub;
            scope.spawn(move || {
                let pe = Bootstrap::connect(&config(hub, rank, 2, "a", PATIENT)).unwrap();
                pe.barrier("x").unwrap();
                pe.finalize().unwrap();
            });
        }
    });
    assert_eq!(hub.failure(), None);
}

/// Goes through the challenge as the leader of the job's PEs does, as far as the proof of the PE.
/// Returns the proof that the PE waits for.
fn challenge(stream: &mut UnixStream, job: JobId) -> [u8; BYTES] {
    stream.set_read_timeout(Some(PATIENT)).unwrap();
    let mut opening = [0; 8 + BYTES];
    stream.read_exact(&mut opening).unwrap();
    let accepting = [7; BYTES];
    stream.write_all(&accepting).unwrap();
    stream.read_exact(&mut [0; BYTES]).unwrap();
    let nonces = Nonces { connecting: std::array::from_fn(|i| opening[8 + i]), accepting };
    let digits = job.to_string();
    let secret: Vec<u8> = (0..16).map(|i| u8::from_str_radix(&digits[2 * i..2 * i + 2], 16).unwrap()).collect();
    prove(&secret, Role::Accepting, &nonces, b"rendezvous")
}

#[test]
fn a_leader_that_ends_is_not_taken_for_a_stranger() {
    let hub = hub(2);
    let (job, name) = (hub.job_id(), socket_of(hub.job_id(), "n0"));
    let listener = UnixListener::bind_addr(&UnixAddr::from_abstract_name(name).unwrap()).unwrap();
    // The leader of the PEs that were here before: it accepts a PE, and ends.
    let ending = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = challenge(&mut stream, job);
        drop(listener);
    });
    on_nodes(&hub, (2, 1), PATIENT, |pe| {
        let pe = pe.unwrap();
        pe.barrier("both are here").unwrap();
        await_connections(1, hub.address());
        pe.barrier("both have looked").unwrap();
        pe.finalize().unwrap();
    });
    ending.join().unwrap();
    assert_eq!(hub.failure(), None);
}

#[test]
fn a_leader_of_another_version_is_an_error_at_once() {
    let hub = hub(2);
    let (job, name) = (hub.job_id(), socket_of(hub.job_id(), "a"));
    let listener = UnixListener::bind_addr(&UnixAddr::from_abstract_name(name).unwrap()).unwrap();
    let newer = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let proof = challenge(&mut stream, job);
        let mut header = [0; 28];
        header[..6].copy_from_slice(b"OXSB\x00\x63");
        stream.write_all(&[&proof[..], &header].concat()).unwrap();
        // Until the PE has read it.
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let error = Bootstrap::connect(&config(&hub, 1, 2, "a", PATIENT)).unwrap_err();
    let BootstrapError::Refused { reason, .. } = &error else { panic!("{error}") };
    assert!(reason.contains("version 99 of the bootstrap protocol"), "{reason}");
    newer.join().unwrap();
}

#[test]
fn a_leader_without_descriptors_says_so() {
    let program = std::env::current_exe().unwrap();
    let limited = r#"ulimit -n 24 && exec "$0" "$@""#;
    let args = ["-c", limited, program.to_str().unwrap()];
    let test = ["--exact", "pe", "--ignored", "--nocapture", "--test-threads=1"];
    let options = LaunchOptions { output: Output::Captured, nodes: 2, ..LaunchOptions::new(64, "/bin/sh") };
    let outcome = run(&options.args(args.into_iter().chain(test)).env("VICTIM", "64")).unwrap();
    assert!(outcome.failed.is_some());
    let text: String = outcome.pes.iter().map(|pe| String::from_utf8_lossy(&pe.stderr).into_owned()).collect();
    for words in [
        "aborted the job: it leads the PEs of its node to the rendezvous, has let in ",
        "its limit of 24 open files is reached; raise it (ulimit -n)",
    ] {
        assert!(text.contains(words), "{text}");
    }
}

#[test]
fn without_a_rendezvous_each_pe_of_a_node_names_it() {
    let address = {
        let hub = hub(3);
        hub.address()
    };
    let job = JobId::random().unwrap();
    std::thread::scope(|scope| {
        for rank in 0..3 {
            scope.spawn(move || {
                let config = Config::builder()
                    .rendezvous(address.to_string().parse::<Rendezvous>().unwrap())
                    .job(job)
                    .rank(rank)
                    .npes(3)
                    .node("a")
                    .bootstrap_timeout(Duration::from_millis(300))
                    .build()
                    .unwrap();
                let error = Bootstrap::connect(&config).unwrap_err();
                assert!(matches!(&error, BootstrapError::Unreachable { .. }), "{error}");
                let text = error.to_string();
                assert!(text.contains(&address.to_string()) && text.contains("refused"), "{text}");
            });
        }
    });
}

#[test]
#[ignore = "what the PEs run that other tests start"]
fn pe() {
    let victim: u32 = std::env::var("VICTIM").unwrap().parse().unwrap();
    let pe = Bootstrap::connect(&Config::from_env().unwrap()).unwrap();
    pe.barrier("start").unwrap();
    if pe.rank() == victim {
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL).unwrap();
    }
    println!("job={}", pe.job_name());
    match pe.barrier("never").unwrap_err() {
        BootstrapError::Failed(failure) => println!("failure={:?} {failure}", failure.ranks),
        other => println!("failure=unexpected: {other}"),
    }
    std::process::exit(3)
}

#[test]
fn the_death_of_a_leader_is_that_of_its_pe() {
    let program = std::env::current_exe().unwrap();
    // Each in turn, so each node's leader is among them.
    for victim in 0..4usize {
        let args = ["--exact", "pe", "--ignored", "--nocapture", "--test-threads=1"];
        let options =
            LaunchOptions { output: Output::Captured, nodes: 2, ..LaunchOptions::new(4, &program).args(args) };
        let outcome = run(&options.env("VICTIM", victim.to_string())).unwrap();
        assert_eq!((outcome.failed, outcome.pes[victim].status), (Some(victim as u32), PeStatus::Killed(9)));
        for rank in (0..4).filter(|rank| *rank != victim) {
            let text = String::from_utf8_lossy(&outcome.pes[rank].stdout).into_owned();
            assert!(text.contains(&format!("failure=[{victim}] PE {victim} (process ")), "PE {rank}: {text}");
            assert!(text.contains("died: it"), "PE {rank}: {text}");
        }
        // Nothing is left that the next job would have to remove.
        let text = String::from_utf8_lossy(&outcome.pes[(victim + 1) % 4].stdout).into_owned();
        let (_, job) = text.split_once("job=").unwrap();
        let sockets = std::fs::read_to_string("/proc/net/unix").unwrap();
        assert!(!sockets.contains(job.lines().next().unwrap()), "{sockets}");
    }
}
