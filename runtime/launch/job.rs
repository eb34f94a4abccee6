//! The PEs of a job on this machine, from the start of the first to the end of the last: the whole
//! job, or the share of it that the launcher on another machine has ordered.

use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Resource, Rlimit, Signal, WaitId, WaitIdOptions};

use oxshmem_system::words::count32;

use super::dumps::Dumps;
use super::error::LaunchError;
use super::failure::{self, Course, Due, Heed, signal_group};
use super::options::{LaunchOptions, Output};
use super::outcome::{LAUNCHER_FAILED, Outcome, PeOutcome, PeStatus};
use super::output::{Heard, Sink, Source, Target};
use super::relay::{self, Order, Orders, SILENCE};
use super::signals::{self, Signals};
use super::takers;
use crate::bootstrap::{Hub, HubOptions};
use crate::config::{LAUNCHER_VARIABLES, MAX_NPES};

/// Starts the PEs and returns when all of them have ended; by then no process of theirs is left. A
/// process that ignores SIGCHLD does so no longer, since the kernel keeps no child's status for it.
///
/// # Errors
/// The job could not be started, or not be watched any more; PEs that did run have been killed.
///
/// ```
/// use oxshmem::launch::{LaunchOptions, run};
///
/// let outcome = run(&LaunchOptions::new(3, "true"))?;
/// assert_eq!(outcome.pes.len(), 3);
/// # Ok::<(), oxshmem::Error>(())
/// ```
pub fn run(options: &LaunchOptions) -> Result<Outcome, LaunchError> {
    if options.npes == 0 || options.npes > MAX_NPES {
        return Err(LaunchError::Npes(options.npes));
    }
    if options.nodes > options.npes {
        return Err(LaunchError::Nodes { nodes: options.nodes, npes: options.npes });
    }
    keep_children()?;
    let signals = forwarded(options)?;
    let hub = Hub::start(HubOptions::local(options.npes)?)?;
    let place = Place {
        rendezvous: hub.address().to_string(),
        job: hub.job_id().to_string(),
        npes: options.npes,
        first: 0,
        count: options.npes,
    };
    drive(Job::new(options, place, signals, Some(hub)))
}

/// Starts the PEs of this host as the launcher on another machine orders, by its orders on standard
/// input, and tells it on standard output what becomes of them. Returns when all have ended.
///
/// # Errors
/// They could not be started, or not be watched any more; those that did run have been killed.
pub(super) fn run_share(options: &LaunchOptions, place: Place, orders: Orders) -> Result<(), LaunchError> {
    let mut job = Job::new(options, place, None, None);
    job.orders = Some(Control { orders, heard: Instant::now() });
    // The launcher says which PE failed, of whatever host.
    job.course.reported = true;
    drive(job).map(drop)
}

/// Has the kernel keep how the PEs end.
pub(super) fn keep_children() -> Result<(), LaunchError> {
    signals::keep_children().map_err(LaunchError::system("no longer ignoring the ends of child processes (SIGCHLD)"))
}

/// Blocks the signals that the options want forwarded.
pub(super) fn forwarded(options: &LaunchOptions) -> Result<Option<Signals>, LaunchError> {
    let signals = options.forward_signals.then(Signals::block).transpose();
    signals.map_err(LaunchError::system("blocking signals to forward them"))
}

/// What a job's PEs need to find each other, and which of them this process starts.
#[derive(Debug, Clone)]
pub(super) struct Place {
    pub rendezvous: String,
    pub job: String,
    /// PEs of the job.
    pub npes: u32,
    /// The first PE of this host, and how many it has.
    pub first: u32,
    pub count: u32,
}

fn drive(mut job: Job<'_>) -> Result<Outcome, LaunchError> {
    let limit = FileLimit::raise(u64::from(job.place.count) * FILES_PER_PE + OTHER_FILES);
    for rank in 0..job.place.count {
        job.start(rank, limit)?;
    }
    job.watch()?;
    Ok(job.finish())
}

/// Orders from the launcher on another machine.
#[derive(Debug)]
struct Control {
    orders: Orders,
    /// When the last bytes came.
    heard: Instant,
}

// SAFETY: descriptors 1 and 2 stay open as long as the process; if the program did close them,
// writing fails.
const STDOUT: BorrowedFd<'static> = unsafe { BorrowedFd::borrow_raw(1) };
// SAFETY: as above.
const STDERR: BorrowedFd<'static> = unsafe { BorrowedFd::borrow_raw(2) };
// SAFETY: as above.
const STDIN: BorrowedFd<'static> = unsafe { BorrowedFd::borrow_raw(0) };

/// Two pipes, a pidfd, and the connection to the hub.
const FILES_PER_PE: u64 = 4;
/// What the process has open besides, with room for connections to the hub that no PE has claimed.
pub(super) const OTHER_FILES: u64 = 512;
/// How often a process in the background looks whether it has its terminal again.
pub(super) const BACKGROUND: Duration = Duration::from_millis(200);
/// Time that the output pipes may stay open after the last PE was killed with its group: a process
/// outside the group has them.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// The limit on open files as it was, if it had to be raised.
#[derive(Debug, Clone, Copy)]
pub(super) struct FileLimit(Option<Rlimit>);

impl FileLimit {
    /// Raises the soft limit if it is below `files`. The PEs get the old one back.
    pub(super) fn raise(files: u64) -> Self {
        let limit = rustix::process::getrlimit(Resource::Nofile);
        if limit.current.is_none_or(|current| current >= files) {
            return Self(None);
        }
        let current = Some(limit.maximum.map_or(files, |maximum| maximum.min(files)));
        if let Err(error) = rustix::process::setrlimit(Resource::Nofile, Rlimit { current, maximum: limit.maximum }) {
            tracing::warn!("the limit on open files cannot be raised to {current:?}: {error}");
            return Self(None);
        }
        Self(Some(limit))
    }
}

struct Pe {
    child: Child,
    pidfd: OwnedFd,
    status: Option<PeStatus>,
    /// What goes before its lines: of standard output, and of standard error.
    prefixes: [Vec<u8>; 2],
    stdout: Source,
    stderr: Source,
}

/// PE 0's input on its way.
struct Input {
    pipe: OwnedFd,
    waiting: Vec<u8>,
    /// What this process gets for it has ended.
    ended: bool,
}

/// How far the output of PEs that have all ended has come.
#[derive(Debug, Clone, Copy)]
enum Drain {
    /// Not all have ended.
    No,
    /// Their pipes may stay open until then.
    Draining(Instant),
    /// The same limit holds after everything in the groups was killed.
    LastWords(Instant),
}

#[derive(Debug, Clone, Copy)]
enum Ready {
    Signals,
    Stdin,
    Input,
    Stdout,
    Stderr,
    PeStdout(usize),
    PeStderr(usize),
    PeEnd(usize),
}

struct Job<'a> {
    options: &'a LaunchOptions,
    place: Place,
    signals: Option<Signals>,
    /// Present in a job of this machine alone.
    hub: Option<Hub>,
    /// Present in a job that another machine has started.
    orders: Option<Control>,
    /// By rank, from the first of this host on.
    pes: Vec<Pe>,
    stdout: Sink,
    stderr: Sink,
    input: Option<Input>,
    course: Course,
    drain: Drain,
    dumps: Dumps,
    reports: Vec<String>,
}

impl<'a> Job<'a> {
    fn new(options: &'a LaunchOptions, place: Place, signals: Option<Signals>, hub: Option<Hub>) -> Self {
        Self {
            options,
            place,
            signals,
            hub,
            orders: None,
            pes: Vec::new(),
            stdout: Sink::new(STDOUT),
            stderr: Sink::new(STDERR),
            input: None,
            course: Course::new(options.grace),
            drain: Drain::No,
            dumps: Dumps::default(),
            reports: Vec::new(),
        }
    }

    /// Starts the PE at place `index` of this host.
    fn start(&mut self, index: u32, limit: FileLimit) -> Result<(), LaunchError> {
        let options = self.options;
        let rank = self.place.first + index;
        let mut command = Command::new(&options.program);
        command.args(&options.args).process_group(0).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.stdin(if rank == 0 && options.stdin { Stdio::piped() } else { Stdio::null() });
        command.envs(options.env.iter().map(|(name, value)| (name, value)));
        let Place { rendezvous, job, npes, .. } = &self.place;
        let place = [rendezvous.clone(), rank.to_string(), npes.to_string(), job.clone()];
        command.envs(LAUNCHER_VARIABLES.iter().zip(place));
        if options.nodes > 0 {
            let node = u64::from(rank) * u64::from(options.nodes) / u64::from(options.npes);
            command.env("OXSHMEM_NODE", format!("node{node}"));
        }
        let parent = rustix::process::getpid();
        // SAFETY: the closure makes only async-signal-safe calls and allocates nothing.
        unsafe {
            command.pre_exec(move || {
                signals::unblock_all();
                rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
                // The launcher may have died before that took effect.
                if rustix::process::getppid() != Some(parent) {
                    return Err(io::Error::from_raw_os_error(libc::ESRCH));
                }
                if let Some(limit) = limit.0 {
                    rustix::process::setrlimit(Resource::Nofile, limit)?;
                }
                Ok(())
            });
        }
        let mut child = command.spawn().map_err(|source| {
            let program = options.program.to_string_lossy().into_owned();
            match source.raw_os_error() {
                Some(libc::EAGAIN | libc::ENOMEM | libc::EMFILE | libc::ENFILE) => {
                    LaunchError::system(format!("starting PE {rank} of {npes}"))(source)
                }
                _ => LaunchError::Program { program, source: Arc::new(source) },
            }
        })?;
        match self.watched(rank, &mut child) {
            Ok((pidfd, stdout, stderr)) => {
                let prefixes = match options.output {
                    _ if self.orders.is_some() => [format!("o {rank} "), format!("e {rank} ")],
                    Output::Prefixed => [format!("[PE {rank}] "), format!("[PE {rank}] ")],
                    Output::Plain | Output::Captured => [String::new(), String::new()],
                };
                let prefixes = prefixes.map(String::into_bytes);
                self.pes.push(Pe { child, pidfd, status: None, prefixes, stdout, stderr });
                Ok(())
            }
            Err(error) => {
                signal_group(&child, Signal::KILL);
                let _ = child.wait();
                Err(LaunchError::system(format!("watching PE {rank}"))(error))
            }
        }
    }

    fn watched(&mut self, rank: u32, child: &mut Child) -> io::Result<(OwnedFd, Source, Source)> {
        let missing = || io::Error::from(io::ErrorKind::BrokenPipe);
        let pidfd = rustix::process::pidfd_open(pid(child), PidfdFlags::empty())?;
        let stdout = Source::new(child.stdout.take().ok_or_else(missing)?)?;
        let stderr = Source::new(child.stderr.take().ok_or_else(missing)?)?;
        if let (0, Some(pipe)) = (rank, child.stdin.take()) {
            let pipe = OwnedFd::from(pipe);
            rustix::io::ioctl_fionbio(&pipe, true)?;
            self.input = Some(Input { pipe, waiting: Vec::new(), ended: false });
        }
        Ok((pidfd, stdout, stderr))
    }

    /// Serves everything until all PEs have ended and all that they wrote is passed on.
    fn watch(&mut self) -> Result<(), LaunchError> {
        let deadline = self.options.timeout.map(|timeout| Instant::now() + timeout);
        // Those that came with the one to start; standard input does not tell of them again.
        self.obey_all();
        loop {
            self.advance(deadline);
            if self.is_over() {
                return Ok(());
            }
            for ready in self.wait(deadline).map_err(LaunchError::system("waiting for the PEs"))? {
                match ready {
                    Ready::Signals => self.forward_signals(),
                    Ready::Stdin if self.orders.is_some() => self.read_orders(),
                    Ready::Stdin => self.read_input(),
                    // Nothing waits to be written: PE 0 has closed its end.
                    Ready::Input if self.input.as_ref().is_some_and(|input| input.waiting.is_empty()) => {
                        self.input = None
                    }
                    Ready::Input => self.write_input(),
                    Ready::Stdout => {
                        self.stdout.write();
                        self.report_lost_output();
                    }
                    Ready::Stderr => {
                        self.stderr.write();
                        self.report_lost_output();
                    }
                    Ready::PeStdout(rank) => {
                        self.read(rank, false);
                    }
                    Ready::PeStderr(rank) => {
                        self.read(rank, true);
                    }
                    Ready::PeEnd(rank) => self.ended(rank),
                }
            }
        }
    }

    fn is_over(&self) -> bool {
        let open = |pe: &Pe| pe.status.is_none() || pe.stdout.fd().is_some() || pe.stderr.fd().is_some();
        let unwritten = self.stdout.pending().is_some() || self.stderr.pending().is_some();
        // A reader that does not read holds up the end of a job, as it would that of any program;
        // but not forever once the job was to end.
        let gave_up =
            matches!(self.drain, Drain::LastWords(until) if Instant::now() >= until) && self.course.was_ended();
        !self.pes.iter().any(open) && (!unwritten || gave_up)
    }

    fn wait(&self, deadline: Option<Instant>) -> io::Result<Vec<Ready>> {
        let mut what = Vec::new();
        let mut fds: Vec<PollFd<'_>> = Vec::new();
        let mut add = |ready, fd, flags| add_fd(&mut what, &mut fds, ready, fd, flags);
        // PEs' ends come last, so that of two things that are ready the output is served first.
        add(Ready::Signals, self.signals.as_ref().map(Signals::fd), PollFlags::IN);
        // Orders are always read; of input for PE 0 there is never more than it was sent.
        add(Ready::Stdin, self.orders.as_ref().map(|_| STDIN), PollFlags::IN);
        let mut foreground = None;
        if let Some(input) = &self.input {
            let wants = self.orders.is_none() && !input.ended && input.waiting.is_empty();
            let reads = wants && may_read_terminal();
            // Nothing tells that the terminal is this process's again.
            foreground = (wants && !reads).then(|| Instant::now() + BACKGROUND);
            add(Ready::Stdin, reads.then_some(STDIN), PollFlags::IN);
            // With no flags, this still tells that PE 0 has closed its end.
            let writes = if input.waiting.is_empty() { PollFlags::empty() } else { PollFlags::OUT };
            add(Ready::Input, Some(input.pipe.as_fd()), writes);
        }
        add(Ready::Stdout, self.stdout.pending(), PollFlags::OUT);
        add(Ready::Stderr, self.stderr.pending(), PollFlags::OUT);
        for (rank, pe) in self.pes.iter().enumerate() {
            add(Ready::PeStdout(rank), pe.stdout.fd().filter(|_| !self.stdout.is_full()), PollFlags::IN);
            add(Ready::PeStderr(rank), pe.stderr.fd().filter(|_| !self.stderr.is_full()), PollFlags::IN);
        }
        for (rank, pe) in self.pes.iter().enumerate() {
            add(Ready::PeEnd(rank), pe.status.is_none().then(|| pe.pidfd.as_fd()), PollFlags::IN);
        }
        let until = match self.drain {
            Drain::No => self.course.next(deadline),
            Drain::Draining(at) | Drain::LastWords(at) => Some(at),
        };
        let silence = self.orders.as_ref().map(|control| control.heard + SILENCE);
        let until = until.into_iter().chain(silence).chain(self.dumps.next()).chain(foreground).min();
        let timeout = until.map(|until| {
            let left = until.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
            Timespec { tv_sec: left.as_secs().try_into().unwrap_or(i64::MAX), tv_nsec: left.subsec_nanos().into() }
        });
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Ok(Vec::new()),
            Err(error) => return Err(error.into()),
        }
        Ok(what.into_iter().zip(&fds).filter(|(_, fd)| !fd.revents().is_empty()).map(|(ready, _)| ready).collect())
    }

    /// Takes the next step towards the end when its time has come.
    fn advance(&mut self, deadline: Option<Instant>) {
        let now = Instant::now();
        if self.orders.as_ref().is_some_and(|control| control.heard + SILENCE <= now) {
            self.forsaken(&format!("nothing was heard for {} s from the launcher", SILENCE.as_secs()));
        }
        self.report_dumps(false);
        let grace = self.options.grace;
        match self.drain {
            Drain::No if self.pes.iter().all(|pe| pe.status.is_some()) => {
                self.report_dumps(true);
                self.report_failure(true);
                self.drain = Drain::Draining(now + grace);
            }
            Drain::No => match self.course.due(now, deadline) {
                Some(Due::Job) => {
                    let limit = self.options.timeout.unwrap_or_default();
                    let report = self.course.time_is_over(limit, &self.running());
                    self.report(report);
                    self.terminate();
                }
                Some(Due::Grace) => {
                    self.report_failure(true);
                    self.terminate();
                }
                Some(Due::Terminated) => {
                    let running = failure::are(&self.running());
                    self.report(format!("{running} still running {} s after SIGTERM; killing", grace.as_secs_f64()));
                    self.kill();
                }
                None => {}
            },
            Drain::Draining(until) if until <= now => {
                self.signal(Signal::KILL, true);
                self.drain = Drain::LastWords(now + LAST_WORDS);
            }
            Drain::LastWords(until) if until <= now => {
                for rank in 0..self.pes.len() {
                    let captured = self.options.output == Output::Captured;
                    let pe = &mut self.pes[rank];
                    let [out, err] = &pe.prefixes;
                    pe.stdout.end(target(captured, &mut self.stdout, out, None));
                    let sink = if self.orders.is_some() { &mut self.stdout } else { &mut self.stderr };
                    pe.stderr.end(target(captured, sink, err, None));
                }
                // Only the sinks are left to wait for.
                self.drain = Drain::LastWords(if self.course.was_ended() { now } else { now + LAST_WORDS });
            }
            Drain::Draining(_) | Drain::LastWords(_) => {}
        }
    }

    fn terminate(&mut self) {
        self.signal(Signal::TERM, false);
        self.course.terminated(Duration::ZERO);
    }

    fn kill(&mut self) {
        self.signal(Signal::KILL, true);
        self.course.killed();
    }

    /// Signals the groups of the PEs that run, or of all: of one that has ended, what it started
    /// may run on.
    fn signal(&self, signal: Signal, all: bool) {
        self.pes.iter().filter(|pe| all || pe.status.is_none()).for_each(|pe| signal_group(&pe.child, signal));
    }

    /// Passes a signal on that does not end the job. SIGUSR2 requests dumps.
    fn pass_signal(&mut self, signal: Signal) {
        if signal != Signal::USR2 {
            return self.signal(signal, true);
        }
        let running = self.running();
        let child = |rank: &u32| &self.pes[(rank - self.place.first) as usize].child;
        let leaders: Vec<Pid> = running.iter().map(|rank| pid(child(rank))).collect();
        let Some(sent) = takers::signal(&leaders, signal) else {
            self.dumps.expect(running);
            return self.signal(signal, true);
        };
        let split = |was_sent: bool| -> Vec<u32> {
            running.iter().zip(&sent).filter(|(_, sent)| **sent == was_sent).map(|(rank, _)| *rank).collect()
        };
        let (signalled, spared) = (split(true), split(false));
        self.dumps.expect(signalled);
        if !spared.is_empty() {
            self.report(format!(
                "SIGUSR2 is not passed on to {}, which it would kill: init has not begun there, or OXSHMEM_DUMP leaves `signal` out",
                failure::pes(&spared)
            ));
        }
    }

    /// Says what the PEs' dumps say together, once that is known. `over`: no more can come.
    fn report_dumps(&mut self, over: bool) {
        let first = self.place.first;
        let pes = &self.pes;
        let runs = |rank: u32| {
            let pe = rank.checked_sub(first).and_then(|index| pes.get(index as usize));
            pe.is_some_and(|pe| pe.status.is_none())
        };
        for report in self.dumps.due(Instant::now(), over, runs) {
            self.report(report);
        }
    }

    /// Returns the PEs that have not ended.
    fn running(&self) -> Vec<u32> {
        (self.place.first..).zip(&self.pes).filter(|(_, pe)| pe.status.is_none()).map(|(rank, _)| rank).collect()
    }

    /// Reads from a PE once; returns whether there may be more.
    fn read(&mut self, rank: usize, error: bool) -> bool {
        let captured = self.options.output == Output::Captured;
        let pe = &mut self.pes[rank];
        let [out, err] = &pe.prefixes;
        let (source, prefix) = if error { (&mut pe.stderr, err) } else { (&mut pe.stdout, out) };
        let sink = if error && self.orders.is_none() { &mut self.stderr } else { &mut self.stdout };
        if sink.is_closed() && !captured {
            // The PE learns it as it would have without a launcher in between.
            source.end(Target::Capture);
            return false;
        }
        // The launcher on another machine reads the dumps of its hosts.
        let hears = error && self.orders.is_none();
        let heard = hears.then_some(Heard { dumps: &mut self.dumps, pe: self.place.first + count32(rank) });
        source.read(target(captured, sink, prefix, heard))
    }

    /// Notes that a PE's process has ended. It stays a zombie until the job is over, so that its
    /// process group's number stays taken.
    fn ended(&mut self, rank: usize) {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
        let status = match rustix::process::waitid(WaitId::PidFd(self.pes[rank].pidfd.as_fd()), options) {
            Ok(Some(status)) => match (status.exit_status(), status.terminating_signal()) {
                (Some(status), _) => PeStatus::Exited(status),
                (None, signal) => PeStatus::Killed(signal.unwrap_or(0)),
            },
            Ok(None) | Err(rustix::io::Errno::INTR) => return,
            // The program has waited for the PE itself, for example. It has ended all the same, and
            // its pidfd stays readable.
            Err(error) => {
                self.report(format!(
                    "how PE {} ended is unknown: {error}; it counts as failed with status {LAUNCHER_FAILED}. Leave it to \
                     the launcher to wait for PEs",
                    self.place.first + count32(rank)
                ));
                PeStatus::Exited(LAUNCHER_FAILED.into())
            }
        };
        // What it wrote before comes before what is said about its end.
        for error in [false, true] {
            for _ in 0..16 {
                if !self.read(rank, error) {
                    break;
                }
            }
        }
        self.pes[rank].status = Some(status);
        let number = self.place.first + count32(rank);
        if let Some(hub) = &self.hub {
            hub.exited(number, &status.to_string());
        }
        if number == 0 {
            self.input = None;
        }
        if self.orders.is_some() {
            // The launcher decides what follows from it.
            self.stdout.line(b"x ", relay::ended(number, status).as_bytes());
            return;
        }
        self.course.ended(number, status);
        self.report_failure(false);
    }

    /// Says which PE failed, once it is known how; `now` says what is known.
    fn report_failure(&mut self, now: bool) {
        let Self { course, hub, pes, .. } = self;
        let status = |rank: u32| pes.get(rank as usize).and_then(|pe| pe.status);
        if let Some((rank, status)) = course.verdict(now, hub.as_ref(), status) {
            let then = if pes.iter().any(|pe| pe.status.is_none()) { "; ending the others" } else { "" };
            self.report(format!("PE {rank} {status}{then}"));
        }
    }

    /// Says once that output cannot be written.
    fn report_lost_output(&mut self) {
        for (stream, errno) in [("output", self.stdout.failure()), ("error", self.stderr.failure())] {
            let report = errno.and_then(|errno| self.course.lost_output(stream, &errno.into()));
            if let Some(report) = report {
                self.report(report);
            }
        }
    }

    fn report(&mut self, text: String) {
        if self.orders.is_some() {
            self.stdout.line(b"r ", text.as_bytes());
            return;
        }
        if self.options.output != Output::Captured {
            self.stderr.line(b"oxrun: ", text.as_bytes());
        }
        self.reports.push(text);
    }

    fn forward_signals(&mut self) {
        while let Some(number) = self.signals.as_ref().and_then(Signals::next) {
            let Some(signal) = Signal::from_named_raw(number) else { continue };
            match self.course.heed(number) {
                Heed::Pass => self.pass_signal(signal),
                Heed::End(report) => {
                    self.signal(signal, true);
                    self.report(report);
                }
                Heed::Kill(report) => {
                    self.report(report);
                    self.kill();
                    return;
                }
            }
        }
    }

    /// Notes that the launcher is gone, or speaks no language of ours: what it started ends.
    fn forsaken(&mut self, why: &str) {
        self.report(format!("{why}; killing the PEs of this host"));
        self.orders = None;
        // Nothing reads what these PEs have written any more.
        self.course.timed_out = true;
        self.kill();
    }

    fn read_orders(&mut self) {
        let mut buffer = [0; 64 << 10];
        let read = match rustix::io::read(STDIN, &mut buffer) {
            Ok(0) => return self.forsaken("the launcher has closed the connection"),
            Ok(read) => read,
            Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => return,
            Err(error) => return self.forsaken(&format!("the launcher cannot be heard: {error}")),
        };
        let Some(control) = &mut self.orders else { return };
        control.heard = Instant::now();
        control.orders.push(&buffer[..read]);
        self.obey_all();
    }

    /// Obeys the orders that have come.
    fn obey_all(&mut self) {
        while let Some(control) = &mut self.orders {
            match control.orders.next() {
                Ok(Some(order)) => self.obey(order),
                Ok(None) => return,
                Err(why) => self.forsaken(&format!("the launcher sent {why}")),
            }
        }
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Start(_) => self.forsaken("the launcher ordered another start"),
            Order::Heartbeat => {}
            Order::Input(bytes) => {
                match &mut self.input {
                    Some(input) if bytes.is_empty() => input.ended = true,
                    Some(input) => input.waiting.extend_from_slice(&bytes),
                    None => {}
                }
                self.write_input();
            }
            Order::Signal(number) => {
                if let Some(signal) = Signal::from_named_raw(number) {
                    self.pass_signal(signal);
                }
            }
            Order::Terminate => self.terminate(),
            Order::Kill => self.kill(),
        }
    }

    fn read_input(&mut self) {
        let Some(input) = &mut self.input else { return };
        let mut buffer = [0; 64 << 10];
        match rustix::io::read(STDIN, &mut buffer) {
            Ok(0) => input.ended = true,
            Ok(read) => input.waiting.extend_from_slice(&buffer[..read]),
            Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => {}
            Err(_) => input.ended = true,
        }
        self.write_input();
    }

    /// Gives PE 0 what it takes; closes its input when all is given, or when it has closed its end.
    fn write_input(&mut self) {
        let Some(input) = &mut self.input else { return };
        let closed = match rustix::io::write(&input.pipe, &input.waiting) {
            Ok(written) => {
                input.waiting.drain(..written);
                false
            }
            Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => false,
            Err(_) => true,
        };
        let taken = closed || input.waiting.is_empty();
        if closed || input.ended && input.waiting.is_empty() {
            self.input = None;
        }
        if taken && self.orders.is_some() {
            self.stdout.line(b"i", b"");
        }
    }

    fn finish(mut self) -> Outcome {
        let failed = self.course.culprit(self.hub.as_ref(), |rank| self.pes.get(rank as usize)?.status);
        let pes = std::mem::take(&mut self.pes);
        reap(&pes);
        let pes = pes.into_iter().map(|mut pe| {
            let _ = pe.child.wait();
            PeOutcome {
                status: pe.status.unwrap_or(PeStatus::Killed(libc::SIGKILL)),
                stdout: pe.stdout.into_captured(),
                stderr: pe.stderr.into_captured(),
            }
        });
        Outcome {
            pes: pes.collect(),
            failed,
            timed_out: self.course.timed_out,
            interrupted: self.course.interrupted,
            output_lost: self.course.output_lost,
            reports: std::mem::take(&mut self.reports),
        }
    }
}

impl Drop for Job<'_> {
    fn drop(&mut self) {
        reap(&self.pes);
        for pe in &mut self.pes {
            let _ = pe.child.wait();
        }
    }
}

/// Kills what is left in the PEs' groups. Their leaders have not been waited for, so the groups are
/// still theirs.
fn reap(pes: &[Pe]) {
    pes.iter().for_each(|pe| signal_group(&pe.child, Signal::KILL));
}

fn add_fd<'a>(
    what: &mut Vec<Ready>,
    fds: &mut Vec<PollFd<'a>>,
    ready: Ready,
    fd: Option<BorrowedFd<'a>>,
    flags: PollFlags,
) {
    if let Some(fd) = fd {
        what.push(ready);
        fds.push(PollFd::from_borrowed_fd(fd, flags));
    }
}

fn target<'a>(captured: bool, sink: &'a mut Sink, prefix: &'a [u8], heard: Option<Heard<'a>>) -> Target<'a> {
    if captured { Target::Capture } else { Target::Forward { sink, prefix, heard } }
}

fn pid(child: &Child) -> Pid {
    Pid::from_child(child)
}

/// Returns whether reading standard input would not stop this process: it is not a terminal, or we
/// are in its foreground.
pub(super) fn may_read_terminal() -> bool {
    // SAFETY: both calls only ask.
    !io::stdin().is_terminal() || unsafe { libc::tcgetpgrp(0) == libc::getpgrp() }
}
