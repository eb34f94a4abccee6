//! The launcher's program: output, input, signals, exit status.

#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

fn oxrun(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_oxrun"));
    command.args(args).stdin(Stdio::null());
    // Tests in the background of a script ignore some of them, and what they start would too.
    let heed = || {
        for signal in [libc::SIGINT, libc::SIGQUIT, libc::SIGHUP] {
            // SAFETY: the call is async-signal-safe, and names no handler.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
        Ok(())
    };
    // SAFETY: what runs between fork and exec is async-signal-safe.
    unsafe { command.pre_exec(heed) };
    command
}

fn run(args: &[&str]) -> Output {
    oxrun(args).output().unwrap()
}

fn sorted(bytes: &[u8]) -> Vec<String> {
    let mut lines: Vec<_> = String::from_utf8(bytes.to_vec()).unwrap().lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

/// Starts a job with its output in a pipe.
fn start(args: &[&str]) -> (Child, BufReader<std::process::ChildStdout>) {
    let mut child = oxrun(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    (child, output)
}

fn lines(output: &mut impl BufRead, count: usize) -> Vec<String> {
    let mut lines: Vec<_> = output.lines().take(count).map(Result::unwrap).collect();
    lines.sort();
    lines
}

fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

fn is_alive(pid: &str) -> bool {
    let stat = std::fs::read_to_string(Path::new("/proc").join(pid).join("stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

#[test]
fn lines_have_prefixes_on_their_own_stream() {
    let output = run(&["-n", "2", "sh", "-c", "echo out; echo err >&2; printf partial"]);
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(sorted(&output.stdout), ["[PE 0] out", "[PE 0] partial", "[PE 1] out", "[PE 1] partial"]);
    assert_eq!(sorted(&output.stderr), ["[PE 0] err", "[PE 1] err"]);
    let output = run(&["-n", "1", "--no-prefix", "sh", "-c", "printf 'a\\377\\nb'"]);
    assert_eq!(output.stdout, b"a\xff\nb\n");
}

#[test]
fn the_status_is_that_of_the_pe_that_failed() {
    for (script, code, report) in [
        ("[ $OXSHMEM_RANK = 0 ] || exit 42", 42, "oxrun: PE 1 exited with status 42"),
        ("[ $OXSHMEM_RANK = 0 ] || kill -SEGV $$", 139, "oxrun: PE 1 was killed by SIGSEGV"),
    ] {
        let output = run(&["-n", "2", "sh", "-c", script]);
        assert_eq!(output.status.code(), Some(code));
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(stderr.lines().any(|line| line.starts_with(report)), "{stderr}");
    }
}

#[test]
fn the_program_keeps_its_own_options() {
    let output = run(&["-n", "1", "echo", "-n", "3", "--timeout", "x"]);
    assert_eq!(output.stdout, b"[PE 0] 3 --timeout x\n");
    let output = run(&["-n", "1", "--", "echo", "--", "-x"]);
    assert_eq!(output.stdout, b"[PE 0] -- -x\n");
}

#[test]
fn wrong_use_is_told() {
    for (args, code, words) in [
        (&["-n", "2", "/no/such/program"][..], 127, "cannot start '/no/such/program'"),
        (&["-n", "2", "/etc/passwd"], 126, "cannot start '/etc/passwd'"),
        (&["-n", "2"], 2, "<PROGRAM>"),
        (&["true"], 2, "--npes <N>"),
        (&["-n", "x", "true"], 2, "invalid digit"),
        (&["-n", "0", "true"], 2, "a job cannot have 0 PEs; give a number from 1 to 4096"),
        (&["-n", "4097", "true"], 2, "a job cannot have 4097 PEs; give a number from 1 to 4096"),
        (&["-n", "1", "--timeout", "soon", "true"], 2, "expected seconds"),
        (&["-n", "2", "--nodes", "5", "true"], 2, "2 PEs cannot be on 5 nodes; give at most as many nodes as PEs"),
    ] {
        let output = run(args);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{args:?}: {stderr}");
        assert!(stderr.contains(words), "{args:?}: {stderr}");
    }
    let output = oxrun(&["-n", "1", "true"]).env("OXSHMEM_DEVISE", "cpu").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8(output.stderr).unwrap().contains("did you mean OXSHMEM_DEVICE?"));
}

#[test]
fn a_job_ends_when_its_time_is_over() {
    let output = run(&["-n", "2", "--timeout", "0.3", "--grace", "0.1", "sleep", "1000"]);
    assert_eq!(output.status.code(), Some(124));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("the time of 0.3 s is over and PEs 0 and 1 are still running"), "{stderr}");
}

#[test]
fn input_goes_to_pe_0_alone() {
    let mut child = oxrun(&["-n", "2", "cat"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let text: Vec<u8> = (0..50_000).flat_map(|number: u32| format!("{number}\n").into_bytes()).collect();
    let mut stdin = child.stdin.take().unwrap();
    let copy = text.clone();
    let writer = std::thread::spawn(move || stdin.write_all(&copy).unwrap());
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    assert_eq!(output.status.code(), Some(0));
    let expected: Vec<u8> =
        text.split_inclusive(|b| *b == b'\n').flat_map(|line| [b"[PE 0] ", line].concat()).collect();
    assert!(output.stdout == expected);
    // A PE that does not read its input does not hold up the job.
    let mut child = oxrun(&["-n", "1", "true"]).stdin(Stdio::piped()).spawn().unwrap();
    let stdin = child.stdin.take().unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    drop(stdin);
}

#[test]
fn signals_reach_every_pe() {
    for (sent, name) in [
        (Signal::USR1, "USR1"),
        (Signal::USR2, "USR2"),
        (Signal::TERM, "TERM"),
        (Signal::HUP, "HUP"),
        (Signal::QUIT, "QUIT"),
    ] {
        let script = format!("trap 'echo got; exit 0' {name}; echo ready; while :; do sleep 0.05; done");
        let (mut child, mut output) = start(&["-n", "2", "sh", "-c", &script]);
        assert_eq!(lines(&mut output, 2), ["[PE 0] ready", "[PE 1] ready"]);
        signal(&child, sent);
        assert_eq!(lines(&mut output, 2), ["[PE 0] got", "[PE 1] got"]);
        assert_eq!(child.wait().unwrap().code(), Some(0), "{name}");
    }
}

/// Returns the launcher's command by way of `env` with this option, or says why there is none.
fn by_env(option: &str, args: &[&str]) -> Option<Command> {
    if !Command::new("env").args([option, "true"]).status().is_ok_and(|status| status.success()) {
        println!("skipped: env does not know {option}");
        return None;
    }
    // `timeout` ends a launcher that does not end. It takes SIGCHLD for itself, so it is the outer
    // one.
    let mut command = Command::new("timeout");
    command.args(["-k", "1", "60", "env", option, env!("CARGO_BIN_EXE_oxrun")]).args(args).stdin(Stdio::null());
    Some(command)
}

#[test]
fn a_job_ends_where_the_ends_of_children_are_ignored() {
    let Some(mut command) = by_env("--ignore-signal=CHLD", &["-n", "2", "sh", "-c", "exit $OXSHMEM_RANK"]) else {
        return;
    };
    let output = command.output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("oxrun: PE 1 exited with status 1"), "{stderr}");
}

#[test]
fn signals_that_are_ignored_stay_so() {
    // The PEs signal the launcher, which is their parent, and run on.
    let script = "kill -HUP $PPID; kill -INT $PPID; grep SigIgn /proc/self/status";
    let Some(mut command) = by_env("--ignore-signal=HUP,INT", &["-n", "1", "--no-prefix", "sh", "-c", script]) else {
        return;
    };
    let output = command.output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && stderr.is_empty(), "{}: {stderr}", output.status);
    let ignored = String::from_utf8_lossy(&output.stdout);
    let ignored = ignored.strip_prefix("SigIgn:").and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap();
    assert_eq!(ignored & 0b11, 0b11, "{ignored:#x}");
}

#[test]
fn an_interrupt_ends_the_job_with_its_status() {
    let (mut child, mut output) = start(&["-n", "2", "sh", "-c", "echo ready; exec sleep 1000"]);
    lines(&mut output, 2);
    signal(&child, Signal::INT);
    assert_eq!(child.wait().unwrap().code(), Some(130));
}

#[test]
fn a_second_interrupt_kills() {
    let script = "trap '' INT TERM; echo ready; while :; do sleep 0.05; done";
    let (mut child, mut output) = start(&["-n", "2", "--grace", "1000", "sh", "-c", script]);
    lines(&mut output, 2);
    let mut reports = BufReader::new(child.stderr.take().unwrap());
    signal(&child, Signal::INT);
    assert_eq!(lines(&mut reports, 1), ["oxrun: SIGINT passed on to the PEs"]);
    signal(&child, Signal::INT);
    assert_eq!(child.wait().unwrap().code(), Some(137));
}

#[test]
fn pes_die_with_the_launcher() {
    let (mut child, mut output) = start(&["-n", "3", "sh", "-c", "echo $$; exec sleep 1000"]);
    let pids: Vec<_> = lines(&mut output, 3).iter().map(|line| line[7..].to_owned()).collect();
    assert!(pids.iter().all(|pid| is_alive(pid)));
    child.kill().unwrap();
    child.wait().unwrap();
    let until = Instant::now() + Duration::from_secs(20);
    while pids.iter().any(|pid| is_alive(pid)) {
        assert!(Instant::now() < until, "PEs {pids:?} outlive the launcher");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_reader_that_goes_away_ends_the_job_as_it_would_end_the_program() {
    let (mut child, mut output) = start(&["-n", "2", "yes"]);
    lines(&mut output, 1);
    drop(output);
    assert_eq!(child.wait().unwrap().code(), Some(128 + 13));
}

#[test]
fn output_that_cannot_be_written_is_an_error() {
    let full = || std::fs::File::options().write(true).open("/dev/full").unwrap();
    // The job goes on, and everything else that it writes is passed on.
    let script = "echo out; sleep 0.2; echo out; echo $OXSHMEM_RANK >&2";
    let output = oxrun(&["-n", "2", "--no-prefix", "sh", "-c", script]).stdout(full()).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(125), "{text}");
    let told: Vec<_> = text.lines().filter(|line| line.contains("standard output cannot be written")).collect();
    assert!(told.len() == 1 && told[0].contains("No space left on device"), "{text}");
    assert!(["0", "1"].iter().all(|rank| text.lines().any(|line| line == *rank)), "{text}");

    let output = oxrun(&["-n", "2", "sh", "-c", "echo out; echo err >&2"]).stderr(full()).output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    assert_eq!(sorted(&output.stdout), ["[PE 0] out", "[PE 1] out"]);

    // A PE that fails is what matters more.
    let output = oxrun(&["-n", "1", "sh", "-c", "echo out; exit 42"]).stdout(full()).output().unwrap();
    assert_eq!(output.status.code(), Some(42));
}

#[test]
fn a_limit_on_files_is_named_with_its_remedy() {
    let output = run(&["-n", "2", "sh", "-c", "[ $OXSHMEM_RANK = 0 ] || kill -XFSZ $$"]);
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("PE 1 was killed by SIGXFSZ") && text.contains("ulimit -f"), "{text}");
    let few = format!("ulimit -n 12; exec {} -n 4 true", env!("CARGO_BIN_EXE_oxrun"));
    let output = Command::new("sh").args(["-c", &few]).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(125), "{text}");
    assert!(
        text.contains("no free file descriptor") && text.contains("of the 12 that") && text.contains("ulimit -n"),
        "{text}"
    );
}

#[test]
fn a_slow_reader_gets_everything() {
    let (mut child, mut output) = start(&["-n", "2", "--no-prefix", "seq", "1", "400000"]);
    // The launcher's buffers fill up meanwhile.
    std::thread::sleep(Duration::from_millis(200));
    let mut text = String::new();
    output.read_to_string(&mut text).unwrap();
    assert_eq!(text.lines().count(), 800_000);
    assert_eq!(text.lines().map(|line| line.parse::<u64>().unwrap()).sum::<u64>(), 2 * 400_000 * 400_001 / 2);
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_job_inside_a_job_is_one_of_its_own() {
    let inner = format!("{} -n 2 sh -c 'echo $OXSHMEM_RANK of $OXSHMEM_NPES'", env!("CARGO_BIN_EXE_oxrun"));
    let output = run(&["-n", "1", "sh", "-c", &inner]);
    assert_eq!(sorted(&output.stdout), ["[PE 0] [PE 0] 0 of 2", "[PE 0] [PE 1] 1 of 2"]);
}

/// Runs this job on hosts that are all this machine.
fn on_hosts(hosts: &str, args: &[&str]) -> Output {
    run(&[&["--launcher", "sh tests/remote_shell.sh", "--hosts", hosts], args].concat())
}

fn errors_of(output: Output) -> String {
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn hosts_run_their_share_with_variables_folder_and_prefixes() {
    let output = on_hosts("a:2,b", &["sh", "-c", "echo $HOST $OXSHMEM_RANK/$OXSHMEM_NPES $(pwd); echo err >&2"]);
    let here = std::env::current_dir().unwrap().display().to_string();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(
        sorted(&output.stdout),
        [format!("[PE 0] a 0/3 {here}"), format!("[PE 1] a 1/3 {here}"), format!("[PE 2] b 2/3 {here}")]
    );
    let errors = sorted(&output.stderr);
    assert_eq!(errors[..3], ["[PE 0] err", "[PE 1] err", "[PE 2] err"]);
    assert_eq!(errors[3..], ["oxrun: a: Welcome to a", "oxrun: b: Welcome to b"]);
    // Odd words arrive as they are.
    let output = on_hosts("a,b", &["-n", "2", "--no-prefix", "printf", "%s\\n", "it's $HOST \"`\"", ""]);
    assert_eq!(sorted(&output.stdout), ["", "", "it's $HOST \"`\"", "it's $HOST \"`\""]);
}

#[test]
fn a_pe_that_fails_on_a_host_ends_the_job_with_its_status() {
    let output = on_hosts("a,b", &["-n", "4", "sh", "-c", "[ $OXSHMEM_RANK != 2 ] || exit 7; exec sleep 300"]);
    assert_eq!(output.status.code(), Some(7));
    let errors = errors_of(output);
    assert!(errors.contains("oxrun: PE 2 on b exited with status 7; ending the others"), "{errors}");
    let output = on_hosts("a,b", &["--timeout", "0.5", "sleep", "300"]);
    assert_eq!(output.status.code(), Some(124));
}

#[test]
fn a_host_that_cannot_be_reached_is_named_and_ends_the_job() {
    let output = on_hosts("a,nowhere:2", &["sleep", "300"]);
    assert_eq!(output.status.code(), Some(255));
    let errors = errors_of(output);
    assert!(errors.contains("oxrun: nowhere: no route to nowhere"), "{errors}");
    let lost = "oxrun: the host nowhere is lost, with PEs 1 and 2: its remote shell exited with status 255";
    assert!(errors.contains(lost), "{errors}");
    let output = on_hosts("a,b", &["/no/such/program"]);
    assert_eq!(output.status.code(), Some(127));
    assert!(errors_of(output).contains("oxrun: a: cannot start '/no/such/program'"));
}

#[test]
fn hosts_that_are_none_are_refused() {
    for (args, text) in [
        (vec!["--hosts", "a,,b", "true"], "'a,,b' names no hosts"),
        (vec!["--hosts=-oProxyCommand=x", "true"], "names no hosts"),
        (vec!["--hosts", "a:2,b:2", "-n", "5", "true"], "the hosts take 4 PEs, and the job has 5 PEs"),
        (vec!["--hosts", "a", "--launcher", " ", "true"], "the remote shell is an empty command"),
        (vec!["--launcher", "ssh", "-n", "1", "true"], "--hosts"),
    ] {
        let output = run(&args);
        let status = output.status.code();
        let errors = errors_of(output);
        assert!(status == Some(2) && errors.contains(text), "{args:?}: {status:?} {errors}");
    }
}

#[test]
fn input_goes_to_pe_0_of_the_first_host_whole() {
    let shell = "sh tests/remote_shell.sh";
    let mut child = oxrun(&["--launcher", shell, "--hosts", "a,b", "--no-prefix", "sh", "-c", "cat | wc -c"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    // More than pipes and queues hold.
    input.write_all(&vec![b'x'; 3_000_000]).unwrap();
    drop(input);
    assert_eq!(sorted(&child.wait_with_output().unwrap().stdout), ["0", "3000000"]);
}

#[test]
fn a_long_line_of_a_pe_on_a_host_is_cut_into_lines_of_that_pe() {
    let output = on_hosts("a", &["-n", "1", "sh", "-c", "head -c 70000 /dev/zero | tr '\\0' y; echo"]);
    assert_eq!(output.status.code(), Some(0));
    let lines = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<_> = lines.lines().map(|line| line.strip_prefix("[PE 0] ").unwrap().len()).collect();
    assert_eq!(lines, [64 << 10, 70000 - (64 << 10)]);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(!errors.contains("unknown line"), "{errors}");
}

#[test]
fn output_of_hosts_waits_for_the_reader_of_a_pipe_that_does_not_block() {
    let (mut read, write) = std::io::pipe().unwrap();
    rustix::io::ioctl_fionbio(&write, true).unwrap();
    let mut command = oxrun(&["--launcher", "sh tests/remote_shell.sh", "--hosts", "a", "--no-prefix"]);
    let mut child = command.args(["-n", "1", "seq", "1", "100000"]).stdout(write).spawn().unwrap();
    // The command has the writing end too.
    drop(command);
    // The pipe fills up meanwhile.
    std::thread::sleep(Duration::from_millis(300));
    let mut text = String::new();
    read.read_to_string(&mut text).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_eq!(text.lines().map(|line| line.parse::<u64>().unwrap()).sum::<u64>(), 100_000 * 100_001 / 2);
}

#[test]
fn pes_on_hosts_die_with_the_launcher() {
    let shell = "sh tests/remote_shell.sh";
    let (mut child, mut output) =
        start(&["--launcher", shell, "--hosts", "a,b", "--no-prefix", "sh", "-c", "echo $$; exec sleep 300"]);
    let pids = lines(&mut output, 2);
    assert!(pids.iter().all(|pid| is_alive(pid)));
    child.kill().unwrap();
    child.wait().unwrap();
    let begin = Instant::now();
    while pids.iter().any(|pid| is_alive(pid)) {
        assert!(begin.elapsed() < Duration::from_secs(30), "{pids:?} are still alive");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn only_oxrun_speaks_to_oxrun_of_a_host() {
    let mut child = oxrun(&["--node"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    let said = String::from_utf8(output.stdout).unwrap();
    let begin = "\noxrun-node 1\nr oxrun of this host cannot start its PEs: the launcher sent an order of ";
    assert!(said.starts_with(begin), "{said}");
    let alone = String::from_utf8(run(&["--node"]).stdout).unwrap();
    assert!(alone.contains("the launcher has closed the connection"), "{alone}");
}

#[test]
fn orders_that_come_with_the_start_are_obeyed_at_once() {
    let frame = |kind: u8, rest: &[u8]| [&[kind], &(rest.len() as u32).to_le_bytes()[..], rest].concat();
    let folder = std::env::current_dir().unwrap().display().to_string();
    let folder = folder.as_str();
    // Where PEs meet, the job, PEs, the first, how many, the grace time, where and what to start.
    let job = "00112233445566778899aabbccddeeff";
    let start = ["127.0.0.1:1", job, "1", "0", "1", "1000", folder, "cat", "0"];
    let start: String = start.iter().flat_map(|word| [*word, "\0"]).collect();
    let orders = [frame(b's', start.as_bytes()), frame(b'i', b"hello\n"), frame(b'i', b"")].concat();
    let mut child = oxrun(&["--node"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(&orders).unwrap();
    // Nothing follows. A node that hears nothing kills its PEs in the end.
    let output = child.wait_with_output().unwrap();
    drop(stdin);
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("\no 0 hello\n") && said.contains("\nx 0 exited 0\n"), "{said}");
}

#[test]
fn the_man_page_and_completions_are_those_of_its_arguments() {
    let share = Path::new(env!("CARGO_TARGET_TMPDIR")).join("oxrun-share");
    let output = run(&["--generate", share.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let page = std::fs::read_to_string(share.join("man/man1/oxrun.1")).unwrap();
    assert!(page.contains("\\-\\-hosts") && !page.contains("\\-\\-node\\fR"), "{page}");
    assert!(share.join("bash-completion/completions/oxrun").is_file());
    let output = run(&["--generate"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("--generate has 0 arguments"));
}
