//! Jobs that other launchers start: imitations of them, and the real ones where they are installed.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Barrier, Mutex};

use oxshmem::Config;
use oxshmem::bootstrap::Bootstrap;

/// The arguments that make this program a PE.
const PE: [&str; 5] = ["--exact", "pe", "--ignored", "--nocapture", "--test-threads=1"];

#[test]
#[ignore = "what the PEs run that other tests start"]
fn pe() {
    let rounds = std::env::var("ROUNDS").map_or(1, |rounds| rounds.parse().unwrap());
    for _ in 0..rounds {
        let config = Config::from_env().unwrap();
        config.init_log();
        let pe = match Bootstrap::connect(&config) {
            Ok(pe) => pe,
            Err(error) => {
                println!("error={error}");
                std::process::exit(3);
            }
        };
        let ranks = pe.allgather("ranks", pe.rank().to_string().as_bytes()).unwrap();
        let local = pe.node_peers().iter().position(|peer| *peer == pe.rank()).unwrap();
        let all = String::from_utf8(ranks.join(&b","[..])).unwrap();
        println!("PE {} of {}: {all}; {local} of {} here", pe.rank(), pe.size(), pe.node_peers().len());
        pe.finalize().unwrap();
        if pe.rank() == 0 && std::env::var_os("LINGERS").is_some() {
            std::thread::sleep(std::time::Duration::from_millis(500));
        }
    }
}

/// This program as a PE, without the variables of whatever started the tests.
fn command() -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(PE);
    clean(&mut command);
    command
}

fn clean(command: &mut Command) {
    command.env_clear().stdout(Stdio::piped()).stderr(Stdio::piped()).stdin(Stdio::null());
    for name in ["PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH"] {
        command.envs(std::env::var_os(name).map(|value| (name, value)));
    }
    // Whether this machine has munge makes no difference; scripts/cluster-test has it.
    command.env("OXSHMEM_BOOTSTRAP_TIMEOUT", "60s").env("OXSHMEM_MUNGE", "off");
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// Checks that PEs on one node have all met, `rounds` times each.
fn met(text: &str, npes: usize, rounds: usize) {
    let all: Vec<_> = (0..npes).map(|rank| rank.to_string()).collect();
    for rank in 0..npes {
        let line = format!("PE {rank} of {npes}: {}; {rank} of {npes} here", all.join(","));
        assert_eq!(text.matches(&line).count(), rounds, "{line}: {text}");
    }
}

/// Starts PEs with these variables each, and returns what they print.
fn job(npes: usize, vars: impl Fn(usize) -> Vec<(&'static str, String)>) -> Vec<Output> {
    let start = |rank| command().envs(vars(rank)).spawn().unwrap();
    let pes: Vec<Child> = (0..npes).map(start).collect();
    pes.into_iter().map(|pe| pe.wait_with_output().unwrap()).collect()
}

fn joined(outputs: &[Output]) -> String {
    outputs.iter().map(text).collect()
}

/// Which versions of PMI a launcher speaks.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Speaks {
    One,
    /// Says so to those that wish for PMI-2, as Flux does, instead of refusing.
    OneAtOnce,
    Both,
}

/// A launcher with PMI, as one thread for each PE.
struct Server {
    speaks: Speaks,
    npes: usize,
    values: Mutex<BTreeMap<String, String>>,
    fence: Barrier,
}

impl Server {
    fn serve(&self, rank: usize, stream: UnixStream) -> String {
        let mut log = String::new();
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let mut stream = stream;
        let mut two = false;
        loop {
            let mut message = String::new();
            if two {
                let mut length = [0; 6];
                if reader.read_exact(&mut length).is_err() {
                    return log;
                }
                let mut bytes = vec![0; std::str::from_utf8(&length).unwrap().trim().parse().unwrap()];
                reader.read_exact(&mut bytes).unwrap();
                message = String::from_utf8(bytes).unwrap();
            } else if reader.read_line(&mut message).unwrap_or(0) == 0 {
                return log;
            }
            let separator = if two { ';' } else { ' ' };
            let fields: BTreeMap<_, _> =
                message.trim().split(separator).filter_map(|pair| pair.split_once('=')).collect();
            let get = |name: &str| fields[name].to_owned();
            log += &format!("{} ", fields["cmd"]);
            let reply = match fields["cmd"] {
                "init" => match (fields["pmi_version"], self.speaks) {
                    ("2", Speaks::Both) => {
                        stream.write_all(b"cmd=response_to_init pmi_version=2 pmi_subversion=0 rc=0\n").unwrap();
                        two = true;
                        continue;
                    }
                    ("2", Speaks::One) => "response_to_init pmi_version=1 pmi_subversion=1 rc=-1".into(),
                    _ => "response_to_init pmi_version=1 pmi_subversion=1 rc=0".into(),
                },
                "get_maxes" => "maxes kvsname_max=256 keylen_max=64 vallen_max=1024".into(),
                "get_my_kvsname" => "my_kvsname kvsname=kvs_7".into(),
                "put" => {
                    assert!(fields["key"].len() <= 64 && fields["value"].len() < 1024);
                    self.values.lock().unwrap().insert(get("key"), get("value"));
                    "put_result rc=0 msg=success".into()
                }
                "barrier_in" => {
                    self.fence.wait();
                    "barrier_out rc=0".into()
                }
                "get" => format!("get_result rc=0 msg=success value={}", self.values.lock().unwrap()[fields["key"]]),
                "finalize" if !two => "finalize_ack rc=0".into(),
                "fullinit" => {
                    assert_eq!(fields["pmirank"], rank.to_string());
                    let npes = self.npes;
                    format!("fullinit-response;pmi-version=2;pmi-subversion=0;rank={rank};size={npes};appnum=0;rc=0")
                }
                "job-getid" => "job-getid-response;jobid=job 7;rc=0".into(),
                "kvs-put" => {
                    self.values.lock().unwrap().insert(get("key"), get("value"));
                    "kvs-put-response;rc=0".into()
                }
                "kvs-fence" => {
                    self.fence.wait();
                    "kvs-fence-response;rc=0".into()
                }
                "kvs-get" => {
                    assert_eq!(fields["jobid"], "job 7");
                    format!("kvs-get-response;rc=0;found=TRUE;value={}", self.values.lock().unwrap()[fields["key"]])
                }
                "finalize" => "finalize-response;rc=0".into(),
                other => panic!("PMI has no {other}"),
            };
            let message = if two { format!("{:6}cmd={reply};", reply.len() + 5) } else { format!("cmd={reply}\n") };
            // In two pieces, which a stream may be cut into.
            let (first, second) = message.as_bytes().split_at(message.len() / 2);
            stream.write_all(first).unwrap();
            stream.write_all(second).unwrap();
        }
    }
}

/// Starts a job through an imitation of a PMI launcher; returns what the PEs print and the requests
/// of each.
fn pmi_job(npes: usize, speaks: Speaks, rounds: usize) -> (Vec<Output>, Vec<String>) {
    let server = Arc::new(Server { speaks, npes, values: Mutex::default(), fence: Barrier::new(npes) });
    let start = |rank| {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let fd = theirs.as_raw_fd();
        let mut command = command();
        command.envs([("PMI_FD", fd.to_string()), ("PMI_RANK", format!("{rank}")), ("PMI_SIZE", npes.to_string())]);
        command.env("ROUNDS", rounds.to_string());
        // SAFETY: fcntl is async-signal-safe.
        unsafe {
            command.pre_exec(move || {
                // The PE inherits its descriptor.
                if libc::fcntl(fd, libc::F_SETFD, 0) == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
            });
        }
        let pe = command.spawn().unwrap();
        drop(theirs);
        let server = Arc::clone(&server);
        (pe, std::thread::spawn(move || server.serve(rank, ours)))
    };
    let started: Vec<_> = (0..npes).map(start).collect();
    started.into_iter().map(|(pe, thread)| (pe.wait_with_output().unwrap(), thread.join().unwrap())).unzip()
}

#[test]
fn pmi_2_carries_the_rendezvous() {
    let (outputs, requests) = pmi_job(3, Speaks::Both, 2);
    met(&joined(&outputs), 3, 2);
    assert_eq!(requests[0], "init fullinit job-getid kvs-put kvs-fence kvs-get finalize ");
    assert_eq!(requests[2], "init fullinit job-getid kvs-fence kvs-get finalize ");
}

#[test]
fn pmi_1_carries_the_rendezvous() {
    for (speaks, begin) in [(Speaks::One, "init init"), (Speaks::OneAtOnce, "init")] {
        let (outputs, requests) = pmi_job(3, speaks, 2);
        met(&joined(&outputs), 3, 2);
        assert_eq!(requests[0], format!("{begin} get_maxes get_my_kvsname put barrier_in get finalize "));
        assert_eq!(requests[1], format!("{begin} get_maxes get_my_kvsname barrier_in get finalize "));
    }
}

#[test]
fn a_pmi_that_is_closed_is_an_error() {
    let outputs = job(1, |_| vec![("PMI_FD", "200".into()), ("PMI_RANK", "0".into()), ("PMI_SIZE", "2".into())]);
    let text = joined(&outputs);
    assert!(
        text.contains("error=launcher pmi: PMI_FD=200 (PMI_RANK=0 PMI_SIZE=2): this descriptor is not open"),
        "{text}"
    );
    assert_eq!(outputs[0].status.code(), Some(3));
}

/// A number that no other run of the tests has at this time.
fn unique() -> String {
    std::process::id().to_string()
}

#[test]
fn torchrun_workers_meet_at_a_port_of_their_run() {
    let vars = |run: &'static str| {
        move |rank: usize| {
            vec![
                ("RANK", rank.to_string()),
                ("WORLD_SIZE", "3".into()),
                ("LOCAL_RANK", rank.to_string()),
                ("LOCAL_WORLD_SIZE", if run == "far" { "1".into() } else { "3".into() }),
                ("MASTER_ADDR", "localhost".into()),
                ("MASTER_PORT", "29500".into()),
                ("TORCHELASTIC_RUN_ID", format!("{run}-{}", unique())),
                ("TORCHELASTIC_RESTART_COUNT", rank.to_string()),
                ("ROUNDS", "2".into()),
            ]
        }
    };
    // With and without all workers on one node; two runs at once.
    std::thread::scope(|scope| {
        for run in ["near", "far"] {
            scope.spawn(move || met(&joined(&job(3, vars(run))), 3, 2));
        }
    });
}

/// Where listeners of IPv6 take no IPv4 unless they ask for it, two workers whose first node has an
/// address of IPv4.
const IPV6_ALONE: &str = r#"
ip link set lo up && echo 1 >/proc/sys/net/ipv6/bindv6only || exit 77
for rank in 0 1; do
    RANK=$rank LOCAL_RANK=$rank "$0" "$@" &
    pes="$pes $!"
done
for pe in $pes; do wait $pe || exit 1; done
"#;

#[test]
fn a_rendezvous_is_reached_by_ipv4_whatever_the_systems_default() {
    let mut command = Command::new("unshare");
    command.args(["--map-root-user", "--net", "sh", "-c", IPV6_ALONE]).arg(std::env::current_exe().unwrap()).args(PE);
    clean(&mut command);
    let world =
        [("WORLD_SIZE", "2"), ("LOCAL_WORLD_SIZE", "1"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "29500")];
    let output = match command.envs(world).output() {
        Ok(output) => output,
        Err(error) => return println!("skipped: unshare: {error}"),
    };
    let text = text(&output);
    if output.status.code() == Some(77) || text.contains("unshare failed") || text.contains("Operation not permitted") {
        return println!("skipped: no network namespace can be set up here: {text}");
    }
    assert!(output.status.success(), "{text}");
    met(&text, 2, 1);
}

/// The variables of a step on this machine.
fn step(id: &'static str) -> impl Fn(usize) -> Vec<(&'static str, String)> {
    move |rank| {
        vec![
            ("SLURM_JOB_ID", unique()),
            ("SLURM_STEP_ID", id.into()),
            ("SLURM_PROCID", rank.to_string()),
            ("SLURM_LOCALID", rank.to_string()),
            ("SLURM_NTASKS", "2".into()),
            ("SLURM_STEP_NUM_TASKS", "2".into()),
            ("SLURM_STEP_NODELIST", "localhost".into()),
        ]
    }
}

#[test]
fn tasks_of_a_step_meet() {
    let outputs = job(2, step("0"));
    met(&joined(&outputs), 2, 1);
    let warned = |output: &Output| {
        let text = text(output);
        text.contains("gives the job no secret") && text.contains("OXSHMEM_MUNGE=off here; run munge on all nodes")
    };
    assert!(warned(&outputs[0]) && !warned(&outputs[1]), "{outputs:?}");
}

#[test]
fn programs_of_one_step_in_sequence_have_each_a_rendezvous_of_their_own() {
    // Where rank 0 of the first program lingers, its rendezvous is there when the second program's
    // others come.
    let start = |rank: usize| {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", r#"LINGERS=1 "$0" "$@" && exec "$0" "$@""#]).arg(std::env::current_exe().unwrap()).args(PE);
        clean(&mut command);
        command.envs(step("8")(rank)).spawn().unwrap()
    };
    let pes: Vec<Child> = (0..2).map(start).collect();
    let outputs: Vec<Output> = pes.into_iter().map(|pe| pe.wait_with_output().unwrap()).collect();
    met(&joined(&outputs), 2, 2);
    assert!(outputs.iter().all(|output| output.status.success()), "{outputs:?}");
}

#[test]
fn a_secret_file_keeps_out_those_without_it() {
    use std::os::unix::fs::PermissionsExt;
    let path = |name: &str| std::env::temp_dir().join(format!("oxshmem-launchers-{name}-{}", unique()));
    for (name, mode) in [("one", 0o600), ("other", 0o600), ("open", 0o644)] {
        std::fs::write(path(name), name.repeat(16)).unwrap();
        std::fs::set_permissions(path(name), PermissionsExt::from_mode(mode)).unwrap();
    }
    let with = |id: &'static str, names: [&'static str; 2]| {
        let outputs = job(2, |rank| {
            let mut variables = step(id)(rank);
            variables.push(("OXSHMEM_BOOTSTRAP_TIMEOUT", "3s".into()));
            variables.push(("OXSHMEM_SECRET_FILE", path(names[rank]).display().to_string()));
            variables
        });
        joined(&outputs)
    };
    let text = with("5", ["one", "one"]);
    met(&text, 2, 1);
    assert!(!text.contains("no secret"), "{text}");
    let text = with("6", ["one", "other"]);
    assert!(text.contains("it does not accept the proof that this PE knows the secret of job"), "{text}");
    assert!(text.contains("PE 1 of 2 did not join the job"), "{text}");
    let text = with("7", ["open", "open"]);
    assert!(text.contains("its mode is 0644, so others can read it; run chmod 0600"), "{text}");
    for name in ["one", "other", "open"] {
        std::fs::remove_file(path(name)).unwrap();
    }
}

#[test]
fn a_batch_script_is_a_job_of_one() {
    let text = joined(&job(1, |_| {
        vec![("SLURM_JOB_ID", "1".into()), ("SLURM_PROCID", "0".into()), ("SLURM_NTASKS", "4".into())]
    }));
    met(&text, 1, 1);
}

#[test]
fn a_task_that_never_comes_is_named() {
    let outputs = job(1, |rank| [step("1")(rank), vec![("OXSHMEM_BOOTSTRAP_TIMEOUT", "500ms".into())]].concat());
    let text = joined(&outputs);
    assert!(text.contains("PE 1 of 2 did not join the job"), "{text}");
}

/// Runs a job under an installed launcher; `None` and the reason in the output where it is absent.
fn installed(launcher: &str, arguments: &[&str]) -> Option<Output> {
    let mut command = Command::new(launcher);
    clean(&mut command);
    // Which launcher was found is logged.
    command.env("OXSHMEM_LOG", "info").args(arguments).arg(std::env::current_exe().unwrap()).args(PE);
    match command.output() {
        Ok(output) => Some(output),
        Err(error) => {
            println!("skipped: {launcher} cannot be started: {error}");
            None
        }
    }
}

#[test]
fn under_mpichs_mpiexec() {
    for arguments in [&["-n", "3"][..], &["-n", "1"]] {
        let Some(output) = installed("mpiexec.hydra", arguments) else { return };
        assert!(output.status.success(), "{}", text(&output));
        met(&text(&output), arguments[1].parse().unwrap(), 1);
        assert!(arguments[1] == "1" || text(&output).contains("pmi: PE 0 of 3"), "{}", text(&output));
    }
}

#[test]
fn under_open_mpis_mpirun() {
    for npes in ["3", "1"] {
        let arguments = ["--allow-run-as-root", "--oversubscribe", "-n", npes];
        let Some(output) = installed("mpirun.openmpi", &arguments) else { return };
        assert!(output.status.success(), "{}", text(&output));
        met(&text(&output), npes.parse().unwrap(), 1);
        assert!(npes == "1" || text(&output).contains("pmix: PE 0 of 3"), "{}", text(&output));
    }
}
