//! The programs that are compared: started once, kept until the end, and idle while another one is
//! measured, since none does anything before it is told to.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use oxshmem::bootstrap::UniqueId;

use super::calls::Call;
use super::protocol::{Command, Reply, Way};

/// How a program is started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// This program, again.
    Ours {
        /// Its path.
        program: PathBuf,
    },
    /// What was built against NVSHMEM.
    Nvshmem {
        /// Its path.
        program: PathBuf,
        /// Variables that it needs.
        env: Vec<(String, String)>,
    },
    /// NCCL and torch's symmetric memory.
    Torch {
        /// The script.
        script: PathBuf,
    },
}

/// The first argument of ours as a PE.
pub const AS_PE: &str = "pe-of-collectives";

/// How PEs are started, whatever they are.
#[derive(Debug, Clone)]
pub struct Start {
    /// Their number.
    pub pes: u32,
    /// Bytes of the largest buffer.
    pub most: u64,
    /// Longest time of a command.
    pub timeout: Duration,
    /// Where files are kept meanwhile.
    pub folder: PathBuf,
}

impl Kind {
    /// Returns its name in messages and in names of files.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Ours { .. } => "ours",
            Self::Nvshmem { .. } => "nvshmem",
            Self::Torch { .. } => "torch",
        }
    }

    /// Returns the ways that it measures for `call`.
    pub fn ways(&self, call: Call) -> Vec<Way> {
        let all: &[Way] = match self {
            Self::Ours { .. } => &[Way::Ours],
            Self::Nvshmem { .. } => &[Way::Nvshmem],
            Self::Torch { .. } => &[Way::Nccl, Way::OneShot, Way::TwoShot, Way::SymmBarrier],
        };
        all.iter().copied().filter(|way| way.has(call)).collect()
    }

    /// Returns the command of each PE of a new job. Its arguments end with what they meet by, the
    /// PE's number, that of PEs, and the bytes of the largest buffer.
    fn commands(&self, start: &Start) -> Result<Vec<std::process::Command>, String> {
        let (mut base, meeting) = match self {
            Self::Ours { program } => {
                let mut command = std::process::Command::new(program);
                // The others are within a node, too.
                command.arg(AS_PE).env("OXSHMEM_TRANSPORT", "p2p");
                (command, UniqueId::create().map_err(|error| error.to_string())?.to_string())
            }
            Self::Nvshmem { program, env } => {
                let mut command = std::process::Command::new(program);
                let file = start.folder.join("nvshmem-id");
                // It may be there from the job before, or not.
                let _ = std::fs::remove_file(&file);
                command.envs(env.iter().cloned()).env("COMPARE_UNIQUE_ID", &file);
                (command, file.display().to_string())
            }
            Self::Torch { script } => {
                let mut command = std::process::Command::new("python3");
                // Nothing here uses multicast over the switch, which not every machine lends out.
                command
                    .arg("-u")
                    .arg(script)
                    .envs([("NCCL_NVLS_ENABLE", "0"), ("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")]);
                let file = start.folder.join("torch-store");
                // It may be there from the job before, or not.
                let _ = std::fs::remove_file(&file);
                (command, format!("file://{}", file.display()))
            }
        };
        base.arg(meeting);
        let one = |rank: u32| {
            let mut command = std::process::Command::new(base.get_program());
            command.args(base.get_args());
            command.envs(base.get_envs().filter_map(|(name, value)| Some((name, value?))));
            command.args([rank.to_string(), start.pes.to_string(), start.most.to_string()]);
            command
        };
        Ok((0..start.pes).map(one).collect())
    }
}

/// Why a command has no reply that can be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trouble {
    /// PEs have refused it, and go on.
    Refused(String),
    /// The program is gone.
    Lost(String),
}

/// A process of a program.
#[derive(Debug)]
struct Process {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    complaints: PathBuf,
}

/// Lines of what a PE complained about that are shown.
const SHOWN: usize = 12;

impl Process {
    fn start(mut command: std::process::Command, complaints: PathBuf) -> Result<Self, String> {
        let failed = |error: std::io::Error| format!("{:?}: {error}", command.get_program());
        let errors = File::create(&complaints).map_err(failed)?;
        let program = format!("{:?}", command.get_program());
        let failed = |error: std::io::Error| format!("{program}: {error}");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(errors);
        let mut child = command.spawn().map_err(failed)?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let (sender, lines) = channel();
        if let Some(stdout) = stdout {
            // It ends with the process, or when this value is gone.
            std::thread::spawn(move || {
                for line in BufReader::new(stdout).split(b'\n').map_while(Result::ok) {
                    if sender.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                        return;
                    }
                }
            });
        }
        Ok(Self { child, stdin, lines, complaints })
    }

    /// Returns the next reply, by `deadline`; or why there is none.
    fn reply(&self, deadline: Instant) -> Result<Reply, String> {
        loop {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    if let Some(reply) = Reply::parse(&line) {
                        return Ok(reply);
                    }
                }
                Err(RecvTimeoutError::Timeout) => return Err("has not replied in time (--timeout)".to_owned()),
                Err(RecvTimeoutError::Disconnected) => return Err("has ended".to_owned()),
            }
        }
    }

    /// Returns the last lines of what it complained about.
    fn complaints(&self) -> String {
        let text = std::fs::read(&self.complaints).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        lines[lines.len().saturating_sub(SHOWN)..].join("\n")
    }
}

/// The processes of a running program.
#[derive(Debug)]
struct Job {
    processes: Vec<Process>,
    /// How long they may take to end after they were told to.
    farewell: Duration,
}

impl Drop for Job {
    fn drop(&mut self) {
        self.processes.iter_mut().for_each(|process| drop(process.stdin.take()));
        let deadline = Instant::now() + self.farewell;
        for process in &mut self.processes {
            while !matches!(process.child.try_wait(), Ok(Some(_))) {
                if Instant::now() >= deadline {
                    // One that has ended meanwhile needs neither.
                    let _ = process.child.kill();
                    let _ = process.child.wait();
                    break;
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
}

/// A program that is compared.
#[derive(Debug)]
pub struct Side {
    /// How it is started.
    pub kind: Kind,
    /// What its PEs have said that they measure.
    pub library: Option<String>,
    job: Option<Job>,
    started: u32,
}

/// How often a program is started: again after it has ended in the middle, but not without end.
const STARTS: u32 = 4;

impl Side {
    /// Returns a program that is not started yet.
    pub fn new(kind: Kind) -> Self {
        Self { kind, library: None, job: None, started: 0 }
    }

    /// Returns whether it can still be used.
    pub fn is_usable(&self) -> bool {
        self.job.is_some() || self.started < STARTS
    }

    /// Starts it, unless it runs.
    ///
    /// # Errors
    /// It cannot be started, or a PE has not become ready.
    pub fn start(&mut self, start: &Start) -> Result<(), String> {
        if self.job.is_some() {
            return Ok(());
        }
        self.started += 1;
        let mut job = Job { processes: Vec::new(), farewell: Duration::from_secs(10) };
        for (rank, command) in self.kind.commands(start)?.into_iter().enumerate() {
            let complaints = start.folder.join(format!("{}-{rank}.err", self.kind.name()));
            job.processes.push(Process::start(command, complaints)?);
        }
        self.job = Some(job);
        let replies = self.replies(start.timeout).map_err(|trouble| match trouble {
            Trouble::Refused(text) | Trouble::Lost(text) => text,
        });
        let said = replies.and_then(|replies| match replies.into_iter().next() {
            Some(Reply::Library { library }) => Ok(library),
            other => Err(format!("began with {other:?} instead of what it measures")),
        });
        match said {
            Ok(library) => self.library = Some(library),
            Err(text) => {
                self.job = None;
                return Err(text);
            }
        }
        Ok(())
    }

    /// Gives a command to all PEs, and returns their replies.
    ///
    /// # Errors
    /// A PE refuses it; or one is gone, which ends the others.
    pub fn command(&mut self, command: Command, timeout: Duration) -> Result<Vec<Reply>, Trouble> {
        let line = command.line();
        for process in self.job.iter_mut().flat_map(|job| &mut job.processes) {
            // One that is gone is noticed by its missing reply.
            let _ = process.stdin.as_mut().map(|stdin| writeln!(stdin, "{line}").and_then(|()| stdin.flush()));
        }
        self.replies(timeout)
    }

    fn replies(&mut self, timeout: Duration) -> Result<Vec<Reply>, Trouble> {
        let deadline = Instant::now() + timeout;
        let Some(job) = &mut self.job else { return Err(Trouble::Lost("it does not run".to_owned())) };
        let replies: Vec<Result<Reply, String>> = job.processes.iter().map(|process| process.reply(deadline)).collect();
        if replies.iter().any(Result::is_err) {
            let told = replies.iter().zip(&job.processes).enumerate().filter_map(|(rank, (reply, process))| {
                let reason = reply.as_ref().err()?;
                Some(format!("PE {rank} {reason}: {}", process.complaints()))
            });
            let text = told.collect::<Vec<_>>().join("; ");
            job.farewell = Duration::ZERO;
            self.job = None;
            return Err(Trouble::Lost(text));
        }
        let replies: Vec<Reply> = replies.into_iter().flatten().collect();
        let refused = replies.iter().enumerate().filter_map(|(rank, reply)| match reply {
            Reply::Error { error } => Some(format!("PE {rank}: {error}")),
            _ => None,
        });
        let refused: Vec<String> = refused.collect();
        if refused.is_empty() { Ok(replies) } else { Err(Trouble::Refused(refused.join("; "))) }
    }
}

/// Returns why the python of this machine cannot measure NCCL, or nothing if it can.
pub fn without_torch() -> Option<String> {
    let script = "import torch, sys; sys.exit(0 if torch.cuda.is_available() and torch.distributed.is_nccl_available() else 'torch has no NCCL or sees no GPU')";
    match std::process::Command::new("python3").args(["-c", script]).output() {
        Ok(output) if output.status.success() => None,
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stderr);
            Some(text.lines().last().unwrap_or("python3 cannot import torch").to_owned())
        }
        Err(error) => Some(format!("python3: {error}")),
    }
}

/// Writes the script that measures NCCL and symmetric memory into `folder`.
///
/// # Errors
/// The file cannot be written.
pub fn torch(folder: &Path) -> Result<Kind, String> {
    let script = folder.join("collectives.py");
    std::fs::write(&script, include_str!("../../../compare/collectives.py"))
        .map_err(|error| format!("{}: {error}", script.display()))?;
    Ok(Kind::Torch { script })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(super) mod tests {
    use super::super::calls::CALLS;
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// A program that replies as a shell script says; its folder goes away with it.
    pub struct Script(pub Start, PathBuf);

    impl Script {
        pub fn new(name: &str, text: &str) -> Self {
            let folder = std::env::temp_dir().join(format!("oxshmem-collectives-{}-{name}", std::process::id()));
            std::fs::create_dir_all(&folder).unwrap();
            let path = folder.join("program");
            std::fs::write(&path, format!("#!/bin/sh\n{text}")).unwrap();
            std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
            let start = Start { pes: 2, most: 1 << 20, timeout: Duration::from_secs(20), folder };
            Self(start, path)
        }

        pub fn side(&self) -> Side {
            let env = vec![("GREETING".to_owned(), "hello".to_owned())];
            Side::new(Kind::Nvshmem { program: self.1.clone(), env })
        }
    }

    impl Drop for Script {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0.folder);
        }
    }

    /// PE r needs 1000 (r + 1) ns, for each call that BROKEN does not name.
    pub const HONEST: &str = r#"
[ "$GREETING" = hello ] && [ ! -e "$1" ] && [ "$3 $4" = "2 1048576" ] || exit 3
echo 'a library says something'
echo '{"library":"Fake 1.0"}'
while read -r what way call part count; do
    case $what:$call in
        prepare:$BROKEN) echo '{"error":"no luck"}' ;;
        prepare:$DEADLY) echo 'it was too much' >&2; exit 1 ;;
        prepare:*) echo '{"ready":true,"graph":true}' ;;
        *) echo "{\"ns\":$((1000 * ($2 + 1)))}" ;;
    esac
done
"#;

    fn prepare(name: &str) -> Command {
        Command::Prepare { way: Way::Nvshmem, call: Call::named(name).unwrap(), part: 8, count: 1 }
    }

    #[test]
    fn every_pe_replies_and_refusals_name_them() {
        let script = Script::new("honest", &format!("BROKEN=reduce DEADLY=none{HONEST}"));
        let (mut side, timeout) = (script.side(), script.0.timeout);
        side.start(&script.0).unwrap();
        assert_eq!(side.library.as_deref(), Some("Fake 1.0"));
        assert_eq!(side.command(prepare("sync"), timeout).unwrap().len(), 2);
        let times = side.command(Command::Run { way: Way::Nvshmem }, timeout).unwrap();
        assert_eq!(times, [Reply::Time { ns: 1000.0 }, Reply::Time { ns: 2000.0 }]);
        let refused = side.command(prepare("reduce"), timeout).unwrap_err();
        assert_eq!(refused, Trouble::Refused("PE 0: no luck; PE 1: no luck".to_owned()));
        assert!(side.command(prepare("sync"), timeout).is_ok());
    }

    #[test]
    fn a_program_that_ends_is_told_with_what_it_said_and_started_again() {
        let script = Script::new("deadly", &format!("BROKEN=none DEADLY=reduce{HONEST}"));
        let (mut side, timeout) = (script.side(), script.0.timeout);
        for start in 1..=STARTS {
            assert!(side.is_usable(), "{start}");
            side.start(&script.0).unwrap();
            let lost = side.command(prepare("reduce"), timeout).unwrap_err();
            let Trouble::Lost(text) = lost else { panic!("{lost:?}") };
            assert!(text.contains("PE 0 has ended: it was too much"), "{text}");
        }
        assert!(!side.is_usable());
    }

    #[test]
    fn a_program_that_hangs_or_says_nothing_is_ended() {
        let hanging = Script::new("hanging", "exec sleep 1000");
        let start = Start { timeout: Duration::from_millis(100), ..hanging.0.clone() };
        let error = hanging.side().start(&start).unwrap_err();
        assert!(error.contains("PE 0 has not replied in time"), "{error}");
        let silent = Script::new("silent", "echo dead >&2; exit 7");
        let error = silent.side().start(&silent.0).unwrap_err();
        assert!(error.contains("has ended: dead"), "{error}");
    }

    #[test]
    fn programs_measure_what_they_have() {
        let torch = Kind::Torch { script: "s".into() };
        let names = |call: Call| torch.ways(call).iter().map(|way| way.name()).collect::<Vec<_>>();
        assert_eq!(names(CALLS[0]), ["nccl"]);
        assert_eq!(names(Call::named("reduce").unwrap()), ["nccl", "symm_one_shot", "symm_two_shot"]);
        assert_eq!(names(Call::named("sync").unwrap()), ["symm_barrier"]);
        let start = Start { pes: 3, most: 64, timeout: Duration::ZERO, folder: "f".into() };
        let commands = Kind::Ours { program: "p".into() }.commands(&start).unwrap();
        let last: Vec<String> = commands[2].get_args().map(|arg| arg.to_string_lossy().into_owned()).collect();
        assert!(last[0] == AS_PE && last[1].starts_with("oxshmem1:") && last[2..] == ["2", "3", "64"], "{last:?}");
        let commands = torch.commands(&start).unwrap();
        assert!(commands[0].get_envs().any(|(name, _)| name == "TORCH_SYMM_MEM_DISABLE_MULTICAST"));
    }
}
