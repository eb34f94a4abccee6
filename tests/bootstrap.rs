//! Bootstrap: PEs as threads of this process, over real sockets.

#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::channel;
use std::time::Duration;

use oxshmem::Config;
use oxshmem::bootstrap::{
    Bootstrap, BootstrapError, Failure, FailureKind, Hub, HubOptions, JobId, MAX_CONTRIBUTION, MAX_GROUP_CONTRIBUTION,
    MAX_LABEL, Rendezvous, UniqueId,
};

/// Long enough that only a hang reaches it.
const PATIENT: Duration = Duration::from_secs(60);
/// For tests that wait for it to pass.
const SHORT: Duration = Duration::from_secs(1);

/// Threads as ranks open in one process what otherwise many share, so the limit on open files must
/// allow `files` more.
fn allow_files(files: u64) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_some_and(|current| current < files) {
        assert!(limit.maximum.is_none_or(|most| most >= files), "this test needs {files} open files, see ulimit -Hn");
        setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }).unwrap();
    }
}

fn hub(npes: u32) -> Hub {
    Hub::start(HubOptions::local(npes).unwrap()).unwrap()
}

fn config_at(address: SocketAddr, job: JobId, rank: u32, npes: u32, timeout: Duration) -> Config {
    Config::builder()
        .rendezvous(address.to_string().parse::<Rendezvous>().unwrap())
        .job(job)
        .rank(rank)
        .npes(npes)
        .bootstrap_timeout(timeout)
        .meeting_timeout(timeout)
        .build()
        .unwrap()
}

fn config(hub: &Hub, rank: u32, npes: u32, timeout: Duration) -> Config {
    config_at(hub.address(), hub.job_id(), rank, npes, timeout)
}

/// Runs `body` in one thread for each of `ranks`, and returns what each returned.
fn on_ranks<T: Send>(
    hub: &Hub,
    npes: u32,
    ranks: impl IntoIterator<Item = u32>,
    timeout: Duration,
    body: impl Fn(Result<Bootstrap, BootstrapError>) -> T + Sync,
) -> Vec<T> {
    let body = &body;
    std::thread::scope(|scope| {
        let start = |rank| {
            let config = config(hub, rank, npes, timeout);
            scope.spawn(move || body(Bootstrap::connect(&config)))
        };
        let threads: Vec<_> = ranks.into_iter().map(start).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn on_all<T: Send>(npes: u32, timeout: Duration, body: impl Fn(&Bootstrap) -> T + Sync) -> Vec<T> {
    on_ranks(&hub(npes), npes, 0..npes, timeout, |bootstrap| body(&bootstrap.unwrap()))
}

fn failure<T: std::fmt::Debug>(result: Result<T, BootstrapError>) -> Failure {
    match result {
        Err(BootstrapError::Failed(failure)) => failure,
        other => panic!("expected a failure of the job, got {other:?}"),
    }
}

#[test]
fn sixty_four_ranks_exchange_contributions_of_different_lengths() {
    on_all(64, PATIENT, |pe| {
        for round in 0..5usize {
            let mine = vec![pe.rank() as u8; pe.rank() as usize * round];
            let all = pe.allgather("lengths", &mine).unwrap();
            assert_eq!(all.len(), 64);
            for (rank, part) in all.iter().enumerate() {
                assert_eq!(*part, vec![rank as u8; rank * round]);
            }
            pe.barrier("round").unwrap();
        }
        assert_eq!(pe.size(), 64);
        assert_eq!(pe.node_peers(), (0..64).collect::<Vec<_>>());
        assert!(pe.peers().iter().all(|peer| peer.pid == std::process::id()));
        pe.finalize().unwrap();
        pe.finalize().unwrap();
        assert!(matches!(pe.barrier("late"), Err(BootstrapError::Finalized("barrier"))));
    });
}

#[test]
fn a_thousand_ranks_meet() {
    let npes = 1024;
    allow_files(4096);
    on_all(npes, PATIENT * 5, |pe| {
        let all = pe.allgather("ranks", &pe.rank().to_be_bytes()).unwrap();
        assert!((0..npes).zip(&all).all(|(rank, part)| *part == rank.to_be_bytes()));
        pe.finalize().unwrap();
    });
}

#[test]
fn a_megabyte_from_each_rank_arrives() {
    on_all(8, PATIENT, |pe| {
        let mine = vec![pe.rank() as u8 ^ 0x5a; 1 << 20];
        let all = pe.allgather("bulk", &mine).unwrap();
        assert!((0..8u8).zip(&all).all(|(rank, part)| *part == vec![rank ^ 0x5a; 1 << 20]));
        pe.finalize().unwrap();
    });
}

#[test]
fn a_job_of_one_needs_no_sockets() {
    let pe = Bootstrap::connect(&Config::default()).unwrap();
    assert_eq!((pe.rank(), pe.size(), pe.node_peers()), (0, 1, vec![0]));
    assert_eq!(pe.allgather("x", b"abc").unwrap(), [b"abc"]);
    pe.barrier("x").unwrap();
    pe.abort("enough");
    assert_eq!(failure(pe.barrier("x")).message, "PE 0 aborted the job: enough");
    assert_eq!(failure(pe.finalize()).kind, FailureKind::Aborted);
    pe.finalize().unwrap();
    assert!(matches!(pe.allgather("x", b""), Err(BootstrapError::Finalized("allgather"))));
}

#[test]
fn a_job_initialises_again_after_finalize() {
    let hub = hub(4);
    for round in 0..3 {
        on_ranks(&hub, 4, 0..4, PATIENT, |pe| {
            let pe = pe.unwrap();
            assert_eq!(pe.allgather("round", &[round]).unwrap(), vec![vec![round]; 4]);
            pe.finalize().unwrap();
        });
    }
    assert_eq!(hub.failure(), None);
}

#[test]
fn ranks_that_do_not_join_are_named_to_those_that_did() {
    for result in on_ranks(&hub(4), 4, [0, 2], SHORT, |pe| pe.map(|_| ())) {
        let failure = failure(result);
        assert_eq!((failure.kind, &failure.ranks[..]), (FailureKind::Missing, &[1, 3][..]));
        assert_eq!(failure.message, "PEs 1 and 3 of 4 did not join the job within 1 s");
    }
}

#[test]
fn a_rank_that_does_not_arrive_is_named_with_the_collective() {
    let (done, wait) = channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let failures = on_all(3, Duration::from_secs(2), |pe| {
        if pe.rank() == 1 {
            // Joined, alive, and somewhere else.
            let _ = wait.lock().unwrap().recv_timeout(PATIENT);
            failure(pe.barrier("never"))
        } else {
            let failure = failure(pe.allgather("exchange of QP addresses", b"x"));
            let _ = done.send(());
            failure
        }
    });
    for failure in failures {
        assert_eq!((failure.kind, &failure.ranks[..]), (FailureKind::Missing, &[1][..]));
        let start = "PE 1 of 3 did not arrive within 2 s at allgather 1 (exchange of QP addresses), which PE ";
        assert!(failure.message.starts_with(start), "{failure}");
    }
}

#[test]
fn a_lost_pe_interrupts_those_that_wait_and_those_that_do_not() {
    let failures = on_all(4, PATIENT, |pe| {
        let (told, tell) = channel();
        pe.on_failure(Box::new(move |failure| told.send(failure.clone()).unwrap()));
        pe.barrier("start").unwrap();
        match pe.rank() {
            3 => {
                pe.abort("disk full");
                failure(pe.barrier("x"))
            }
            2 => tell.recv_timeout(PATIENT).unwrap(),
            _ => {
                let failure = failure(pe.barrier("never"));
                assert_eq!(tell.recv_timeout(PATIENT).unwrap(), failure);
                // A late registration is told at once.
                let (told, tell) = channel();
                pe.on_failure(Box::new(move |failure| told.send(failure.clone()).unwrap()));
                assert_eq!(tell.try_recv().unwrap(), failure);
                assert_eq!(pe.failure(), Some(failure.clone()));
                failure
            }
        }
    });
    for failure in failures {
        assert_eq!((failure.kind, &failure.ranks[..]), (FailureKind::Aborted, &[3][..]));
        assert_eq!(failure.message, "PE 3 aborted the job: disk full");
    }
}

#[test]
fn dropping_without_finalize_ends_the_job() {
    let hub = hub(2);
    let results = on_ranks(&hub, 2, 0..2, PATIENT, |pe| {
        let pe = pe.unwrap();
        if pe.rank() == 1 { Ok(()) } else { pe.barrier("x") }
    });
    let failure = failure(results.into_iter().next().unwrap());
    assert_eq!(failure.message, "PE 1 aborted the job: it ended without finalize");
    assert_eq!(hub.failure(), Some(failure.clone()));
    // The job stays failed.
    let late = Bootstrap::connect(&config(&hub, 0, 2, PATIENT));
    assert_eq!(self::failure(late), failure);
}

#[test]
fn pes_that_disagree_are_told_both_sides() {
    let failures = on_all(2, PATIENT, |pe| {
        if pe.rank() == 0 { failure(pe.barrier("heap is ready")) } else { failure(pe.allgather("QP addresses", b"")) }
    });
    assert_eq!(failures[0], failures[1]);
    assert_eq!(failures[0].kind, FailureKind::Mismatch);
    for words in ["PE 0 entered barrier 1 (heap is ready)", "PE 1 entered allgather 1 (QP addresses)"] {
        assert!(failures[0].message.contains(words), "{}", failures[0]);
    }
    let failures =
        on_all(2, PATIENT, |pe| if pe.rank() == 0 { failure(pe.finalize()) } else { failure(pe.barrier("more")) });
    assert!(failures[0].message.contains("PE 0 entered finalize (collective 1)"), "{}", failures[0]);
}

#[test]
fn some_of_the_ranks_gather_beside_the_others() {
    on_all(6, PATIENT, |pe| {
        let rank = pe.rank();
        // Even and odd ranks, the highest first; several times.
        for round in 0..20u8 {
            let key = [b'a' + (rank % 2) as u8];
            let parts = pe.gather(&key, "halves", (2 - rank / 2, 3), &vec![round; rank as usize]).unwrap();
            let ranks = [4, 2, 0].map(|even| even + rank % 2);
            assert_eq!(parts, ranks.map(|rank| (rank, vec![round; rank as usize])));
        }
        // Those that are not in it do not wait.
        if rank < 2 {
            pe.barrier("all").unwrap();
        } else {
            assert_eq!(pe.gather(b"rest", "rest", (rank - 2, 4), b"").unwrap().len(), 4);
            pe.barrier("all").unwrap();
        }
        pe.finalize().unwrap();
    });
}

#[test]
fn a_gather_that_fails_leaves_the_job_as_it_was() {
    let together = std::sync::Barrier::new(3);
    on_all(3, SHORT, |pe| {
        let disbanded = |result| match result {
            Err(BootstrapError::Disbanded(failure)) => failure,
            other => panic!("{other:?}"),
        };
        let rank = pe.rank();
        if rank < 2 {
            let failure: Failure = disbanded(pe.gather(b"a", "absence", (rank, 3), b"x"));
            assert_eq!((failure.kind, &failure.ranks[..]), (FailureKind::Missing, &[2][..]));
            assert!(failure.message.starts_with("member 2 of 3 did not arrive within 1 s at absence"), "{failure}");
        }
        together.wait();
        let failure = disbanded(pe.gather(b"b", "numbers", (rank / 2, 3), b""));
        assert_eq!(failure.kind, FailureKind::Mismatch);
        assert!(failure.message.ends_with("both enter numbers as member 0 of 3"), "{failure}");
        let long = vec![0; MAX_GROUP_CONTRIBUTION + 1];
        assert!(matches!(pe.gather(b"c", "long", (rank, 3), &long), Err(BootstrapError::TooLong { .. })));
        assert!(matches!(pe.gather(&long, "long", (rank, 3), b""), Err(BootstrapError::TooLong { .. })));
        assert_eq!(pe.gather(b"c", "again", (rank, 3), &long[1..]).unwrap().len(), 3);
        pe.finalize().unwrap();
        assert!(matches!(pe.gather(b"c", "late", (0, 1), b""), Err(BootstrapError::Finalized("gather"))));
    });
    let alone = Bootstrap::connect(&Config::default()).unwrap();
    assert_eq!(alone.gather(b"x", "alone", (0, 1), b"mine").unwrap(), [(0, b"mine".to_vec())]);
    let error = alone.gather(b"x", "alone", (0, 2), b"").unwrap_err().to_string();
    assert_eq!(error, "PE 0 says that alone has 2 members, in a job of 1");
}

#[test]
fn the_death_of_any_pe_ends_a_gather() {
    let failures = on_all(3, PATIENT, |pe| match pe.rank() {
        2 => {
            pe.abort("it had enough");
            failure(pe.barrier("x"))
        }
        rank => failure(pe.gather(b"a", "pair", (rank, 3), b"")),
    });
    assert!(failures.iter().all(|failure| failure.message == "PE 2 aborted the job: it had enough"), "{failures:?}");
}

#[test]
fn arguments_above_their_limits_leave_the_job_as_it_was() {
    on_all(2, PATIENT, |pe| {
        let long = "x".repeat(MAX_LABEL + 1);
        assert!(matches!(pe.barrier(&long), Err(BootstrapError::TooLong { limit: MAX_LABEL, .. })));
        assert!(matches!(pe.allgather(&long, b""), Err(BootstrapError::TooLong { .. })));
        let error = pe.allgather("big", &vec![0; MAX_CONTRIBUTION + 1]).unwrap_err();
        assert_eq!(error.to_string(), "contribution to allgather (big) of 16777217 bytes, the limit is 16777216");
        pe.barrier(&long[1..]).unwrap();
        pe.finalize().unwrap();
    });
}

#[test]
fn strangers_on_the_port_do_not_disturb_the_job() {
    allow_files(4096);
    let hub = hub(2);
    let mut http = TcpStream::connect(hub.address()).unwrap();
    http.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    http.set_read_timeout(Some(PATIENT)).unwrap();
    assert!(matches!(http.read_to_end(&mut answer), Ok(0)), "the hub said {answer:?}");
    // More silent ones than the hub keeps, and one that never finishes its frame.
    let silent: Vec<_> = (0..300).map(|_| TcpStream::connect(hub.address()).unwrap()).collect();
    (&silent[0]).write_all(b"OXSB\x00\x02").unwrap();
    on_ranks(&hub, 2, 0..2, PATIENT, |pe| {
        let pe = pe.unwrap();
        pe.barrier("x").unwrap();
        // While the job runs, too.
        let mut garbage = TcpStream::connect(hub.address()).unwrap();
        garbage.write_all(&[0xff; 100]).unwrap();
        pe.barrier("y").unwrap();
        pe.finalize().unwrap();
    });
    assert_eq!(hub.failure(), None);
}

#[test]
fn a_stranger_sees_a_random_number_and_nothing_else() {
    let hub = hub(2);
    let read = |opening: &[u8]| {
        let mut stranger = TcpStream::connect(hub.address()).unwrap();
        stranger.set_read_timeout(Some(PATIENT)).unwrap();
        stranger.write_all(opening).unwrap();
        let mut said = Vec::new();
        // A reset instead of an end says nothing either.
        let _ = stranger.read_to_end(&mut said);
        said
    };
    // A version of no PE's build, a nonce, and a proof that is none; the proof must come later than
    // the hub's nonce, so together they are out of order.
    let opening = [&b"OXSB\x00\x63\xff\x00"[..], &[1; 32]].concat();
    assert_eq!(read(&[&opening[..], &[2; 32]].concat()), b"");
    let mut stranger = TcpStream::connect(hub.address()).unwrap();
    stranger.set_read_timeout(Some(PATIENT)).unwrap();
    stranger.write_all(&opening).unwrap();
    let mut nonce = [0; 32];
    stranger.read_exact(&mut nonce).unwrap();
    assert!(!nonce.starts_with(b"OXSB"));
    stranger.write_all(&[2; 32]).unwrap();
    let mut said = Vec::new();
    let _ = stranger.read_to_end(&mut said);
    assert_eq!(said, b"");
    // A PE of version 3 begins with the job's secret: one that guesses it is told nothing.
    let mut old = vec![0; 28 + 16];
    old[..7].copy_from_slice(b"OXSB\x00\x03\x01");
    assert_eq!(read(&old), b"");
    assert_eq!(hub.failure(), None);
}

#[test]
fn a_pe_does_not_join_a_hub_that_proves_nothing() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let heard = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut bytes = [0; 40];
        stream.read_exact(&mut bytes).unwrap();
        stream.write_all(&[5; 32]).unwrap();
        stream.read_exact(&mut bytes[..32]).unwrap();
        // The PE's own proof, sent back.
        stream.write_all(&bytes[..32]).unwrap();
        drop(listener);
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
        rest
    });
    let error = Bootstrap::connect(&config_at(address, JobId::random().unwrap(), 0, 2, PATIENT)).unwrap_err();
    assert!(matches!(error, BootstrapError::Refused { .. }), "{error}");
    assert!(error.to_string().contains("it does not prove that it knows the secret of job"), "{error}");
    assert_eq!(heard.join().unwrap(), b"", "the PE names itself");
}

#[test]
fn those_that_do_not_belong_are_refused_and_the_job_goes_on() {
    let hub = hub(2);
    let refused = |config: &Config| match Bootstrap::connect(config) {
        Err(BootstrapError::Refused { reason, .. }) => reason,
        other => panic!("{other:?}"),
    };
    let (ready, go) = channel();
    std::thread::scope(|scope| {
        let first = config(&hub, 0, 2, PATIENT);
        let thread = scope.spawn(move || {
            let pe = Bootstrap::connect(&first).unwrap();
            ready.send(()).unwrap();
            pe.barrier("x").unwrap();
            pe.finalize().unwrap();
        });
        let other = JobId::random().unwrap();
        let reason = refused(&config_at(hub.address(), other, 1, 2, PATIENT));
        let other = other.name();
        let words = "it does not accept the proof that this PE knows the secret of job";
        assert_eq!(reason, format!("{words} {other}; it may serve another job"));
        let reason = refused(&config(&hub, 1, 5, PATIENT));
        assert_eq!(reason, "PE 1 says that the job has 5 PEs, the launcher says 2");
        let second = Bootstrap::connect(&config(&hub, 1, 2, PATIENT)).unwrap();
        go.recv_timeout(PATIENT).unwrap();
        let reason = refused(&config(&hub, 0, 2, PATIENT));
        assert!(reason.starts_with("rank 0 is taken by process "), "{reason}");
        second.barrier("x").unwrap();
        second.finalize().unwrap();
        thread.join().unwrap();
    });
    assert_eq!(hub.failure(), None);
}

#[test]
fn no_hub_is_an_error_that_names_the_address() {
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let error = Bootstrap::connect(&config_at(address, JobId::random().unwrap(), 1, 2, SHORT)).unwrap_err();
    assert!(matches!(&error, BootstrapError::Unreachable { rank: 1, .. }), "{error}");
    let text = error.to_string();
    for words in [&address.to_string(), "within 1 s", "refused", "OXSHMEM_BOOTSTRAP_TIMEOUT"] {
        assert!(text.contains(words), "{text}");
    }
}

#[test]
fn names_without_an_address_and_addresses_without_a_route_are_errors() {
    for (address, words) in [
        ("no-such-node.invalid:4000", "the name no-such-node.invalid:4000"),
        // Addresses for documentation, which lead nowhere (RFC 5737, RFC 3849).
        ("192.0.2.1:4000", "192.0.2.1:4000: "),
        ("[2001:db8::1]:4000", "[2001:db8::1]:4000: "),
    ] {
        let config = Config::builder()
            .rendezvous(address.parse::<Rendezvous>().unwrap())
            .job(JobId::random().unwrap())
            .rank(0)
            .npes(2)
            .bootstrap_timeout(SHORT)
            .build()
            .unwrap();
        let error = Bootstrap::connect(&config).unwrap_err();
        assert!(matches!(&error, BootstrapError::Unreachable { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains(words) && text.contains("check that the launcher runs"), "{text}");
        assert_eq!(text.lines().count(), 1, "{text}");
    }
}

#[test]
#[ignore = "what a process with few descriptors runs"]
fn hub_with_few_files() {
    let hub = hub(64);
    println!("hub={} {}", hub.address(), hub.job_id());
    // Until the test that started this ends.
    let _ = std::io::stdin().read(&mut [0]);
}

#[test]
fn a_hub_without_descriptors_says_so() {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};
    let args = ["--exact", "hub_with_few_files", "--ignored", "--nocapture", "--test-threads=1"];
    let mut command = Command::new("/bin/sh");
    command.args(["-c", r#"ulimit -n 40 && exec "$0" "$@""#]).arg(std::env::current_exe().unwrap()).args(args);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let line = lines.find_map(|line| Some(line.split_once("hub=")?.1.to_owned())).unwrap();
    let (address, job) = line.split_once(' ').unwrap();
    let (address, job) = (address.parse().unwrap(), job.parse().unwrap());
    std::thread::scope(|scope| {
        let start = |rank| scope.spawn(move || Bootstrap::connect(&config_at(address, job, rank, 64, PATIENT)));
        let threads: Vec<_> = (0..64).map(start).collect();
        for thread in threads {
            let failure = failure(thread.join().unwrap());
            assert_eq!(failure.kind, FailureKind::Hub);
            for words in ["the rendezvous has let in ", " of 64 PEs", "the limit of 40 open files", "ulimit -n"] {
                assert!(failure.message.contains(words), "{failure}");
            }
        }
    });
    drop(child.stdin.take());
    child.wait().unwrap();
}

#[test]
fn a_hub_of_another_version_is_an_error_at_once() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut header = [0; 28];
        header[..6].copy_from_slice(b"OXSB\x00\x01");
        stream.write_all(&header).unwrap();
        // No further attempt would succeed.
        drop(listener);
    });
    let error = Bootstrap::connect(&config_at(address, JobId::random().unwrap(), 0, 2, PATIENT)).unwrap_err();
    let BootstrapError::Refused { reason, .. } = &error else { panic!("{error}") };
    assert!(reason.contains("version 1 of the bootstrap protocol"), "{reason}");
}

#[test]
fn something_else_at_the_address_is_an_error() {
    for answer in [&b"220 mail.example.org ESMTP\r\n"[..], b""] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            let mut open = Vec::new();
            while let Ok((mut stream, _)) = listener.accept() {
                let _ = stream.write_all(answer);
                open.push(stream);
            }
        });
        let error = Bootstrap::connect(&config_at(address, JobId::random().unwrap(), 0, 2, SHORT)).unwrap_err();
        let words = "did not answer in time";
        assert!(matches!(error, BootstrapError::Unreachable { .. }) && error.to_string().contains(words), "{error}");
    }
}

#[test]
fn a_hub_that_ends_is_noticed() {
    let hub = hub(2);
    let address = hub.address().to_string();
    let hub = std::sync::Mutex::new(Some(hub));
    let configs: Vec<_> = (0..2).map(|rank| config(hub.lock().unwrap().as_ref().unwrap(), rank, 2, PATIENT)).collect();
    std::thread::scope(|scope| {
        for config in &configs {
            let (hub, address) = (&hub, &address);
            scope.spawn(move || {
                let pe = Bootstrap::connect(config).unwrap();
                if pe.rank() == 0 {
                    pe.barrier("x").unwrap();
                    drop(hub.lock().unwrap().take());
                } else {
                    pe.barrier("x").unwrap();
                }
                let failure = failure(pe.barrier("y"));
                assert_eq!(failure.kind, FailureKind::Hub);
                assert!(failure.message.contains(address), "{failure}");
            });
        }
    });
}

#[test]
fn a_unique_id_brings_processes_of_any_launcher_together() {
    let token = UniqueId::create().unwrap().to_string();
    // Again with another number of PEs: nothing fixes it but the PEs themselves.
    for npes in [3, 2] {
        std::thread::scope(|scope| {
            for rank in 0..npes {
                let token = &token;
                scope.spawn(move || {
                    let id: UniqueId = token.parse().unwrap();
                    let config = Config::builder().unique_id(&id, rank, npes).build().unwrap();
                    let pe = Bootstrap::connect(&config).unwrap();
                    assert_eq!((pe.rank(), pe.size(), pe.job_id()), (rank, npes, id.job_id()));
                    assert_eq!(pe.allgather("x", &[rank as u8]).unwrap().concat(), (0..npes as u8).collect::<Vec<_>>());
                    pe.finalize().unwrap();
                });
            }
        });
    }
}
