//! Dumps: what PEs say of what they wait for, and what `oxrun` makes of it.

#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use oxshmem::{Compare, Operations, Pe, ReduceOp};
use rustix::process::{Pid, Signal, kill_process};

/// The arguments that make this program a PE.
const PE: [&str; 5] = ["--exact", "pe", "--ignored", "--nocapture", "--test-threads=1"];

#[test]
#[ignore = "what the PEs run that other tests start"]
fn pe() {
    let case = std::env::var("CASE").unwrap();
    if case == "own_handler" {
        return own_handler();
    }
    if case == "absent_from_init" && std::env::var("OXSHMEM_RANK").unwrap() == "0" {
        println!("ready");
        wait_for_input();
        return;
    }
    if case == "absent_from_init" {
        println!("ready");
    }
    let pe = oxshmem::init().unwrap();
    match case.as_str() {
        "absent_from_init" => return,
        "absent_from_barrier" => absent_from_barrier(&pe),
        "absent_from_reduce" => absent_from_reduce(&pe),
        "absent_from_rendezvous" => absent_from_rendezvous(&pe),
        "by_itself" => by_itself(&pe),
        "broken" => broken(&pe),
        other => panic!("no case {other}"),
    }
    pe.finalize().unwrap();
}

fn wait_for_input() {
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

/// PE 0 does not come to a barrier before its input ends; then it dies, if it is to.
fn absent_from_barrier(pe: &Pe) {
    pe.barrier_all().unwrap();
    println!("ready");
    if pe.my_pe() == 0 {
        wait_for_input();
        if std::env::var_os("DIES").is_some() {
            kill_process(rustix::process::getpid(), Signal::KILL).unwrap();
        }
    }
    if let Err(error) = pe.barrier_all() {
        println!("error={error}");
        // As programs end that found an error, with the PE in place.
        std::process::exit(3);
    }
}

/// PE 0 does not come to a reduction by several blocks, which follows another one.
fn absent_from_reduce(pe: &Pe) {
    let words = pe.alloc::<u64>(1 << 16).unwrap();
    pe.reduce(&pe.team_world(), ReduceOp::Sum, &words, &words).unwrap();
    println!("ready");
    if pe.my_pe() == 0 {
        wait_for_input();
    }
    if pe.reduce(&pe.team_world(), ReduceOp::Sum, &words, &words).is_err() {
        std::process::exit(3);
    }
}

/// PE 0 does not come to an allocation, which all PEs make through the rendezvous.
fn absent_from_rendezvous(pe: &Pe) {
    println!("ready");
    if pe.my_pe() == 0 {
        wait_for_input();
    }
    pe.alloc::<u64>(1).unwrap();
}

/// Has a dump made by another thread while there is work on the queues.
fn by_itself(pe: &Pe) {
    let stream = pe.create_stream().unwrap();
    let words = pe.alloc::<u64>(64).unwrap();
    let flag = pe.alloc::<u64>(1).unwrap();
    let peer = (pe.my_pe() + 1) % pe.n_pes();
    pe.put(&words, &[7; 64], peer).unwrap();
    // A wait that ends with a signal of this PE itself.
    pe.on(&stream).signal_wait_until(flag.signal(0), Compare::Eq, 1).unwrap();
    std::thread::scope(|scope| scope.spawn(oxshmem::dump).join().unwrap());
    pe.signal(flag.signal(0).set(1), pe.my_pe()).unwrap();
    pe.on(&stream).synchronize().unwrap();
}

/// Makes an operation fail that posts to the network, and then has a dump made.
fn broken(pe: &Pe) {
    let words = pe.alloc::<u64>(1).unwrap();
    let peer = (pe.my_pe() + 1) % pe.n_pes();
    let error = pe.put(&words, &[1], peer).and_then(|()| pe.quiet()).unwrap_err();
    println!("error={error}");
    oxshmem::dump();
    // No connection is left by which PEs could meet.
    std::process::exit(0);
}

/// A program that handles the signal keeps its handler.
fn own_handler() {
    static SEEN: AtomicU32 = AtomicU32::new(0);
    extern "C" fn handler(_: libc::c_int) {
        SEEN.fetch_add(1, Ordering::Relaxed);
    }
    let handler = handler as extern "C" fn(libc::c_int) as libc::sighandler_t;
    // SAFETY: the handler makes one atomic operation.
    unsafe { libc::signal(libc::SIGUSR2, handler) };
    let pe = oxshmem::init().unwrap();
    // SAFETY: the signal has a handler.
    unsafe { libc::raise(libc::SIGUSR2) };
    println!("seen={}", SEEN.load(Ordering::Relaxed));
    pe.finalize().unwrap();
}

/// A job whose output is read as it comes.
struct Job {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    errors: BufReader<ChildStderr>,
    /// What was read of the errors.
    seen: String,
}

impl Job {
    /// Starts PEs of a case.
    fn start(case: &str, launcher: &[&str], variables: &[(&str, &str)]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_oxrun"));
        command.args(["--timeout", "300"]).args(launcher).arg(std::env::current_exe().unwrap()).args(PE);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let usual = [
            ("OXSHMEM_DEVICE", "cpu"),
            ("OXSHMEM_HEAP_MAX", "256M"),
            ("OXSHMEM_HEAP_CHUNK", "1M"),
            ("OXSHMEM_TIMEOUT", "200s"),
            ("OXSHMEM_BOOTSTRAP_TIMEOUT", "200s"),
        ];
        command.env("CASE", case).envs(usual).envs(variables.iter().copied());
        let mut child = command.spawn().unwrap();
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().unwrap());
        let errors = BufReader::new(child.stderr.take().unwrap());
        Self { child, input, output, errors, seen: String::new() }
    }

    /// Waits until so many PEs have printed a line that ends like this.
    fn wait_for(&mut self, what: &str, count: usize) {
        let mut line = String::new();
        for _ in 0..count {
            loop {
                line.clear();
                assert_ne!(self.output.read_line(&mut line).unwrap(), 0, "{}", self.seen);
                if line.trim_end().ends_with(what) {
                    break;
                }
            }
        }
    }

    fn request_dumps(&self) {
        kill_process(Pid::from_child(&self.child), Signal::USR2).unwrap();
    }

    /// Reads errors until one of the launcher's own lines is there that begins like this.
    fn report(&mut self, begin: &str) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(self.errors.read_line(&mut line).unwrap(), 0, "no line '{begin}': {}", self.seen);
            self.seen.push_str(&line);
            if line.strip_prefix("oxrun: ").is_some_and(|line| line.starts_with(begin)) {
                return line.trim_end().to_owned();
            }
        }
    }

    /// Requests dumps until the launcher points at a PE: the others may not wait for it yet.
    fn pointer(&mut self) -> String {
        loop {
            self.request_dumps();
            let mut line = String::new();
            while !line.starts_with("oxrun: ") {
                line.clear();
                assert_ne!(self.errors.read_line(&mut line).unwrap(), 0, "{}", self.seen);
                self.seen.push_str(&line);
            }
            // Both of the others wait.
            if line.contains("PEs 1 and 2 wait") {
                return line.trim_end().to_owned();
            }
        }
    }

    /// Ends PE 0's input, and returns how the job ends and all that it wrote to standard error.
    fn end(mut self) -> (ExitStatus, String) {
        drop(self.input.take());
        let output = std::thread::spawn(move || {
            let mut rest = String::new();
            self.output.read_to_string(&mut rest).unwrap();
            rest
        });
        self.errors.read_to_string(&mut self.seen).unwrap();
        let status = self.child.wait().unwrap();
        (status, self.seen + &output.join().unwrap())
    }
}

/// Returns the lines of the newest whole dump of a PE.
fn dump_of(pe: usize, text: &str) -> Vec<String> {
    let prefix = format!("[PE {pe}] oxshmem: dump of PE {pe}: ");
    let lines: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix(prefix.as_str())).collect();
    let end = lines.iter().rposition(|line| *line == "ends").unwrap_or_else(|| panic!("no dump of PE {pe}: {text}"));
    let begin = lines[..end].iter().rposition(|line| line.starts_with("begins: ")).unwrap();
    lines[begin..=end].iter().map(|line| (*line).to_owned()).collect()
}

fn has(dump: &[String], begin: &str, part: &str) {
    assert!(dump.iter().any(|line| line.starts_with(begin) && line.contains(part)), "{begin} ... {part}: {dump:#?}");
}

#[test]
fn a_signal_shows_all_pes_and_points_at_the_one_that_did_not_come() {
    let shell = "sh tests/remote_shell.sh";
    for (launcher, transport, network) in [
        (&["-n", "3"][..], "p2p", None),
        (&["-n", "3"], "ibgda", Some("QPs: ")),
        (&["-n", "3"], "ibrc", Some("IBRC ring of ")),
        (&["--launcher", shell, "--hosts", "a:2,b:1"], "p2p", None),
    ] {
        let mut job = Job::start("absent_from_barrier", launcher, &[("OXSHMEM_TRANSPORT", transport)]);
        job.wait_for("ready", 3);
        job.pointer();
        // Now that PEs 1 and 2 wait, PE 0's own dump shows it too.
        let line = job.pointer();
        assert!(line.starts_with("oxrun: PE 0 has not come to round 2 ("), "{line}");
        assert!(line.ends_with(") of the world team (PEs 0 to 2); PEs 1 and 2 wait for it"), "{line}");
        let (status, text) = job.end();
        assert!(status.success(), "{text}");
        // Messages over the network may still be on their way.
        let seen = if network.is_none() { "awaited in the next one by PE 1, PE 2" } else { "" };
        has(&dump_of(0, &text), "the world team (PEs 0 to 2): round 1 (", seen);
        for pe in [1, 2] {
            let dump = dump_of(pe, &text);
            has(&dump, "begins: SIGUSR2; a PE of 3 on the cpu device, process ", "");
            has(&dump, "the host waits for the PE's own stream since ", " s");
            has(&dump, "the PE's own stream: 1 put there", "not all of it has ended");
            has(&dump, "the world team (PEs 0 to 2): round 2 (", "waits for PE");
            if let Some(network) = network {
                has(&dump, network, "");
            }
        }
    }
}

#[test]
fn a_signal_points_at_the_pe_that_did_not_come_to_the_rendezvous() {
    let mut job = Job::start("absent_from_rendezvous", &["-n", "3"], &[]);
    job.wait_for("ready", 3);
    let line = job.pointer();
    assert!(line.starts_with("oxrun: PE 0 has not come to round "), "{line}");
    assert!(line.ends_with(" of the rendezvous; PEs 1 and 2 wait for it"), "{line}");
    let (status, text) = job.end();
    assert!(status.success(), "{text}");
}

#[test]
fn a_pe_that_has_not_begun_is_not_killed_by_the_signal() {
    let mut job = Job::start("absent_from_init", &["-n", "2"], &[]);
    job.wait_for("ready", 2);
    // PE 1 says that it is ready shortly before it begins.
    loop {
        job.request_dumps();
        let line = job.report("SIGUSR2 is not passed on to ");
        if line.starts_with("oxrun: SIGUSR2 is not passed on to PE 0, which it would kill") {
            break;
        }
    }
    job.report("by the dumps of PE 1 ");
    let (_, text) = job.end();
    has(&dump_of(1, &text), "begins: SIGUSR2; a PE of 2, process ", "");
    has(&dump_of(1, &text), "the host joins its job since ", "");
}

#[test]
fn a_deadline_makes_a_dump() {
    let mut job = Job::start("absent_from_barrier", &["-n", "3"], &[("OXSHMEM_TIMEOUT", "300ms")]);
    job.wait_for("ready", 3);
    let line = job.report("PE 0 has not come");
    assert!(line.contains(" of the world team (PEs 0 to 2); "), "{line}");
    let (_, text) = job.end();
    // The other one may learn before its deadline that the job has failed.
    let begins = |pe| format!("[PE {pe}] oxshmem: dump of PE {pe}: begins: PE {pe}, block (");
    let first = text.lines().find(|line| line.starts_with(&begins(1)) || line.starts_with(&begins(2)));
    assert!(first.is_some_and(|line| line.contains("the wait did not end within 300 ms")), "{text}");
}

#[test]
fn a_dump_says_which_pe_a_reduction_waits_for() {
    let mut job = Job::start("absent_from_reduce", &["-n", "3"], &[("OXSHMEM_TIMEOUT", "300ms")]);
    job.wait_for("ready", 3);
    let line = job.report("PE 0 has not come");
    assert!(line.contains(" (reduce) of the world team (PEs 0 to 2)"), "{line}");
    job.end();
}

#[test]
fn dumps_are_left_out_on_request() {
    let variables = [("OXSHMEM_TIMEOUT", "300ms"), ("OXSHMEM_DUMP", "none")];
    let job = Job::start("absent_from_barrier", &["-n", "2"], &variables);
    let (_, text) = job.end();
    assert!(!text.contains("oxshmem: dump of"), "{text}");
}

#[test]
fn a_dump_while_a_pe_dies_ends() {
    let mut job = Job::start("absent_from_barrier", &["-n", "3"], &[("DIES", "1")]);
    job.wait_for("ready", 3);
    let pointed = job.pointer();
    assert!(pointed.starts_with("oxrun: PE 0 has not come"), "{pointed}");
    // Dumps are on their way while PE 0 dies, and the others learn of it.
    job.request_dumps();
    let (status, text) = job.end();
    assert_eq!(status.code(), Some(137), "{text}");
    assert!(text.contains("oxrun: PE 0 was killed by SIGKILL"), "{text}");
    for pe in [1, 2] {
        let count = |what: &str| text.matches(&format!("[PE {pe}] oxshmem: dump of PE {pe}: {what}")).count();
        // A PE ends once it has made a dump of what ended its call.
        assert_eq!(count("begins: the job has failed: PE 0"), 1, "{text}");
        assert!(count("begins: ") >= 2 && count("ends") == count("begins: "), "{text}");
    }
}

#[test]
fn a_program_makes_a_dump_of_its_queues_and_streams() {
    for (transport, begin, part) in [
        ("p2p", "a stream of the program: 1 put there", "not all of it has ended"),
        ("ibgda", "QPs: ", " are broken"),
        ("ibrc", "IBRC ring of ", " work requests posted"),
    ] {
        let job = Job::start("by_itself", &["-n", "2"], &[("OXSHMEM_TRANSPORT", transport)]);
        let (status, text) = job.end();
        assert!(status.success(), "{text}");
        for pe in [0, 1] {
            let dump = dump_of(pe, &text);
            has(&dump, "begins: the program requested it; a PE of 2", "");
            has(&dump, begin, part);
        }
    }
}

#[test]
fn the_first_cause_of_a_broken_queue_is_shown() {
    for (transport, begin) in [("ibgda", "QP 0x"), ("ibrc", "IBRC: the connection to PE ")] {
        let variables = [("OXSHMEM_TRANSPORT", transport), ("OXSHMEM_SOFT_FAULTS", "error=0x13@qp*:0")];
        let job = Job::start("broken", &["-n", "2"], &variables);
        let (_, text) = job.end();
        // The PE that ends first may end the other one's wait before that one's request has failed.
        let begins = [0, 1].map(|pe| format!("[PE {pe}] oxshmem: dump of PE {pe}: {begin}"));
        let shows = |line: &str| {
            begins.iter().any(|begin| line.starts_with(begin.as_str())) && line.contains("remote access error (0x13)")
        };
        assert!(text.lines().any(shows), "{text}");
    }
}

#[test]
fn a_program_keeps_its_own_handler() {
    let mut job = Job::start("own_handler", &["-n", "1"], &[("OXSHMEM_LOG", "debug")]);
    job.wait_for("seen=1", 1);
    let (status, text) = job.end();
    assert!(status.success() && !text.contains("oxshmem: dump of"), "{text}");
}
