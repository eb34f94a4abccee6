//! A job on several hosts: one `oxrun` on each, reached through a remote shell, and the hub here.
//!
//! For each host one thread reads what it says, one what its remote shell complains of, and one
//! writes its orders, so that a host that is slow or gone holds up neither the others nor the
//! deadlines, which one loop keeps.

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::dumps::Dumps;
use super::error::LaunchError;
use super::failure::{self, Course, Due, Heed, signal_group};
use super::hosts::{Hosts, Share};
use super::job::{BACKGROUND, FileLimit, OTHER_FILES, forwarded, keep_children, may_read_terminal};
use super::options::{LaunchOptions, Output};
use super::outcome::{LAUNCHER_FAILED, Outcome, PeOutcome, PeStatus};
use super::output::write_all;
use super::relay::{GREETING, HEARTBEAT, MAX_INPUT, Order, Said, Start};
use super::signals::{self, Signals};
use crate::bootstrap::{Hub, JobId, Places, start_hub};
use crate::config::{LAUNCHER_VARIABLES, MAX_NPES};
use crate::dump::text::is_of_dump;

/// How often the loop looks at deadlines and signals.
const TICK: Duration = Duration::from_millis(20);
/// How long a host may take to say that it is there.
const GREETING_LIMIT: Duration = Duration::from_secs(60);
/// How long a remote shell may take to end after its host has been told to kill everything.
const FAREWELL: Duration = Duration::from_secs(5);
/// The longest line from a host: one of a PE's, which its `oxrun` cuts at 64 KiB, with its prefix.
const MAX_LINE: u64 = (64 << 10) + 64;
/// Orders that may wait for a host that does not read.
const MAX_ORDERS: usize = 64;
/// Variables that PEs on other hosts get from here, besides those that begin with `OXSHMEM_`.
const PASSED_ON: [&str; 6] =
    ["PATH", "LD_LIBRARY_PATH", "RUST_LOG", "RUST_BACKTRACE", "CUDA_VISIBLE_DEVICES", "CUDA_MODULE_LOADING"];

/// How the hosts of a job are reached.
///
/// ```
/// use oxshmem::launch::RemoteShell;
///
/// let shell = RemoteShell::parse("ssh -p 2222");
/// assert!(shell.is_ok() && RemoteShell::parse(" ").is_err());
/// ```
#[derive(Debug, Clone)]
pub struct RemoteShell {
    /// The command and its first arguments.
    command: Vec<String>,
    /// Where `oxrun` is on the hosts; else where it is here.
    oxrun: Option<PathBuf>,
}

impl RemoteShell {
    /// Takes a command that runs another on a host: its words, then the host, then what to run,
    /// are its arguments. To `ssh` options are added so that it never waits for a password, and
    /// notices a broken connection.
    ///
    /// # Errors
    /// The command is empty.
    ///
    /// ```
    /// use oxshmem::launch::RemoteShell;
    ///
    /// assert!(RemoteShell::parse("ssh").is_ok());
    /// ```
    pub fn parse(command: &str) -> Result<Self, LaunchError> {
        let command: Vec<String> = command.split_whitespace().map(str::to_owned).collect();
        if command.is_empty() { Err(LaunchError::RemoteShell) } else { Ok(Self { command, oxrun: None }) }
    }

    /// Names the path of `oxrun` on the hosts, where it is not the same as here.
    ///
    /// ```
    /// use oxshmem::launch::RemoteShell;
    ///
    /// RemoteShell::parse("ssh")?.oxrun("/opt/oxshmem/bin/oxrun");
    /// # Ok::<(), oxshmem::Error>(())
    /// ```
    #[must_use]
    pub fn oxrun(self, path: impl Into<PathBuf>) -> Self {
        Self { oxrun: Some(path.into()), ..self }
    }

    fn command(&self, host: &str) -> Result<Command, LaunchError> {
        let oxrun = match &self.oxrun {
            Some(path) => path.clone(),
            None => std::env::current_exe().map_err(LaunchError::system("finding the path of oxrun"))?,
        };
        let mut words = self.command.iter();
        let program = words.next().ok_or(LaunchError::RemoteShell)?;
        let mut command = Command::new(program);
        command.args(words);
        if std::path::Path::new(program).file_name().is_some_and(|name| name == "ssh") {
            command.args(["-T", "-x", "-o", "BatchMode=yes", "-o", "ConnectTimeout=20"]);
            command.args(["-o", "ServerAliveInterval=10", "-o", "ServerAliveCountMax=3"]);
        }
        command.arg(host).arg(quoted(&oxrun.to_string_lossy())).arg("--node");
        Ok(command)
    }
}

/// Returns a word for the shell on the host.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+=:@,".contains(c);
    if word.chars().all(plain) { word.to_owned() } else { format!("'{}'", word.replace('\'', "'\\''")) }
}

/// Starts the PEs on `hosts` and returns when all of them have ended, or the connections to their
/// hosts, which ends the PEs there. Each host runs `oxrun` of the same version, in a folder of the
/// same name as the current one here; its PEs get the variables that begin with `OXSHMEM_`, `PATH`,
/// `LD_LIBRARY_PATH`, `CUDA_VISIBLE_DEVICES` and a few more, and those of the options. Output is
/// passed on in whole lines.
///
/// # Errors
/// The hosts take fewer PEs than the options say; the remote shell cannot be started. What happens
/// on the hosts is in the outcome.
///
/// ```no_run
/// use oxshmem::launch::{LaunchOptions, RemoteShell, run_on};
///
/// let hosts = "node1:4,node2:4".parse()?;
/// let outcome = run_on(&LaunchOptions::new(8, "/shared/ring"), &hosts, &RemoteShell::parse("ssh")?)?;
/// assert!(outcome.is_success());
/// # Ok::<(), oxshmem::Error>(())
/// ```
pub fn run_on(options: &LaunchOptions, hosts: &Hosts, shell: &RemoteShell) -> Result<Outcome, LaunchError> {
    if options.npes == 0 || options.npes > MAX_NPES {
        return Err(LaunchError::Npes(options.npes));
    }
    let shares = hosts.divide(options.npes)?;
    keep_children()?;
    let signals = forwarded(options)?;
    let job = JobId::random()?;
    let nodes = shares.iter().flat_map(|share| std::iter::repeat_n(share.host.clone(), share.count as usize));
    let (hub, rendezvous) = start_hub(job, Some(options.npes), false, Places::ByRank(nodes.collect()))?;
    let folder = std::env::current_dir().map_err(LaunchError::system("finding the current folder"))?;
    let start = Start {
        rendezvous: rendezvous.to_string(),
        job: job.to_string(),
        npes: options.npes,
        first: 0,
        count: 0,
        grace: options.grace,
        folder: folder.into_os_string(),
        program: options.program.clone(),
        args: options.args.clone(),
        env: environment(options),
    };
    let (events, heard) = channel();
    let captured = Mutex::new((0..options.npes).map(|_| Default::default()).collect());
    let screen = Arc::new(Screen { output: options.output, captured });
    let mut job = Job {
        options,
        signals,
        hub,
        hosts: Vec::new(),
        ended: vec![None; options.npes as usize],
        taken: None,
        course: Course::new(options.grace),
        shells_end: None,
        is_over: false,
        reporter: Reporter::start().map_err(LaunchError::system("starting a thread for reports"))?,
        dumps: Dumps::default(),
        reports: Vec::new(),
    };
    // Three pipes for each host.
    let _ = FileLimit::raise(shares.len() as u64 * 4 + OTHER_FILES + u64::from(options.npes));
    for share in shares {
        let start = Start { first: share.first, count: share.count, ..start.clone() };
        let host = Host::start(shell, share, start, (job.hosts.len(), &events, &screen))?;
        job.hosts.push(host);
    }
    if options.stdin {
        job.pass_input_on();
    }
    job.watch(&heard);
    Ok(job.finish(&screen))
}

fn environment(options: &LaunchOptions) -> Vec<(OsString, OsString)> {
    let passed = |name: &OsString| {
        let name = name.to_string_lossy();
        name.starts_with(crate::config::PREFIX) && !LAUNCHER_VARIABLES.contains(&&*name) || PASSED_ON.contains(&&*name)
    };
    std::env::vars_os().filter(|(name, _)| passed(name)).chain(options.env.iter().cloned()).collect()
}

/// What the threads of a host tell.
#[derive(Debug)]
enum Event {
    /// A line of the host's `oxrun`.
    Line(usize, Vec<u8>),
    /// A line that its remote shell wrote to standard error, or before `oxrun` began.
    Complaint(usize, Vec<u8>),
    /// A line of a PE's dump, which has been written here.
    Dump(u32, Vec<u8>),
    /// Nothing more comes from it.
    End(usize),
    /// A line could not be written here, to standard error if that is so.
    Lost(bool, io::Error),
}

/// What becomes of the PEs' lines. The hosts' threads write them, so that a reader that does not
/// read holds up no deadline.
#[derive(Debug)]
struct Screen {
    output: Output,
    /// By rank: what each has written to standard output and error.
    captured: Mutex<Vec<[Vec<u8>; 2]>>,
}

impl Screen {
    fn line(&self, rank: u32, error: bool, text: &[u8]) -> io::Result<()> {
        let prefix = match self.output {
            Output::Prefixed => format!("[PE {rank}] "),
            Output::Plain => String::new(),
            Output::Captured => {
                let mut captured = self.captured.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(streams) = captured.get_mut(rank as usize) {
                    streams[usize::from(error)].extend(text.iter().chain(b"\n"));
                }
                return Ok(());
            }
        };
        let line = [prefix.as_bytes(), text, b"\n"].concat();
        if error {
            return write_all(io::stderr().lock(), &line);
        }
        let mut stdout = io::stdout().lock();
        // What the program itself has written comes first.
        stdout.flush()?;
        write_all(stdout, &line)
    }
}

#[derive(Debug)]
struct Host {
    share: Share,
    child: Child,
    orders: SyncSender<Vec<u8>>,
    since: Instant,
    greeted: bool,
    told: Instant,
    ended: bool,
}

/// What the launcher itself has to say, written by a thread of its own for the same reason.
#[derive(Debug)]
struct Reporter {
    lines: Option<Sender<String>>,
    written: Receiver<()>,
}

impl Reporter {
    fn start() -> io::Result<Self> {
        let (lines, reports) = channel::<String>();
        let (done, written) = sync_channel(1);
        std::thread::Builder::new().name("oxrun-reports".into()).spawn(move || {
            for line in reports {
                // There is no other place to say that this one cannot be written to.
                let _ = write_all(io::stderr().lock(), format!("oxrun: {line}\n").as_bytes());
            }
            let _ = done.send(());
        })?;
        Ok(Self { lines: Some(lines), written })
    }

    fn line(&self, line: String) {
        if let Some(lines) = &self.lines {
            let _ = lines.send(line);
        }
    }

    /// Waits until everything is written, for as long as a reader may take.
    fn finish(&mut self) {
        self.lines = None;
        let _ = self.written.recv_timeout(FAREWELL);
    }
}

struct Job<'a> {
    options: &'a LaunchOptions,
    signals: Option<Signals>,
    hub: Hub,
    hosts: Vec<Host>,
    /// By rank.
    ended: Vec<Option<PeStatus>>,
    /// To the thread that reads standard input: PE 0 has taken what it was sent.
    taken: Option<SyncSender<()>>,
    course: Course,
    /// The hosts kill their PEs, and until then the remote shells have time to end.
    shells_end: Option<Instant>,
    /// The remote shells were killed.
    is_over: bool,
    reporter: Reporter,
    dumps: Dumps,
    reports: Vec<String>,
}

impl Host {
    fn start(
        shell: &RemoteShell,
        share: Share,
        start: Start,
        (number, events, screen): (usize, &Sender<Event>, &Arc<Screen>),
    ) -> Result<Self, LaunchError> {
        let order = Order::Start(Box::new(start)).encode().map_err(LaunchError::system("preparing the job's hosts"))?;
        let mut command = shell.command(&share.host)?;
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // SAFETY: the closure makes only async-signal-safe calls and allocates nothing.
        unsafe {
            command.pre_exec(|| {
                signals::unblock_all();
                Ok(rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?)
            });
        }
        let mut child = command.spawn().map_err(|source| LaunchError::Program {
            program: command.get_program().to_string_lossy().into_owned(),
            source: Arc::new(source),
        })?;
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let threads = || -> io::Result<_> {
            let (Some(stdin), Some(stdout), Some(stderr)) = pipes else { return Err(io::ErrorKind::BrokenPipe.into()) };
            let (orders, ordered) = sync_channel(MAX_ORDERS);
            let spawn = |what: &str, work: Box<dyn FnOnce() + Send>| {
                std::thread::Builder::new().name(format!("oxrun-{what}-{number}")).spawn(work).map(drop)
            };
            let (said, complained, screen) = (events.clone(), events.clone(), Arc::clone(screen));
            spawn("orders", Box::new(move || write_orders(stdin, &ordered)))?;
            spawn("output", Box::new(move || read_lines(stdout, number, &said, &screen)))?;
            spawn("errors", Box::new(move || read_complaints(stderr, number, &complained)))?;
            Ok(orders)
        };
        let started = threads();
        let Ok(orders) = started else {
            let _ = child.kill();
            let _ = child.wait();
            return Err(LaunchError::system(format!("watching the host {}", share.host))(
                started.err().unwrap_or_else(|| io::ErrorKind::Other.into()),
            ));
        };
        // The queue is empty yet.
        let _ = orders.try_send(order);
        let now = Instant::now();
        Ok(Self { share, child, orders, since: now, greeted: false, told: now, ended: false })
    }

    /// Gives an order; one that finds the queue full goes to a host that does not read, which its
    /// silence or the end of the job takes care of.
    fn order(&mut self, order: &Order) {
        self.told = Instant::now();
        if let Ok(frame) = order.encode() {
            let _ = self.orders.try_send(frame);
        }
    }

    fn ranks(&self) -> std::ops::Range<u32> {
        self.share.first..self.share.first + self.share.count
    }
}

fn write_orders(mut stdin: ChildStdin, orders: &Receiver<Vec<u8>>) {
    for frame in orders {
        if stdin.write_all(&frame).and_then(|()| stdin.flush()).is_err() {
            return;
        }
    }
}

/// Returns the next line without its end, or a part of one that is too long; nothing at the end.
fn line(from: &mut impl BufRead) -> Option<Vec<u8>> {
    let mut line = Vec::new();
    match from.take(MAX_LINE).read_until(b'\n', &mut line) {
        Ok(1..) => {
            line.pop_if(|last| *last == b'\n');
            Some(line)
        }
        _ => None,
    }
}

fn read_lines(stdout: impl Read, number: usize, events: &Sender<Event>, screen: &Screen) {
    let mut stdout = BufReader::with_capacity(MAX_INPUT, stdout);
    let mut greeted = false;
    while let Some(line) = line(&mut stdout) {
        let event = match Said::parse(&line) {
            Some(Said::Line { rank, error, text }) if greeted => match screen.line(rank, error, text) {
                Ok(()) if error && is_of_dump(text) => Event::Dump(rank, text.to_vec()),
                Ok(()) => continue,
                Err(why) => Event::Lost(error, why),
            },
            _ if greeted => Event::Line(number, line),
            _ if line.is_empty() => continue,
            _ if line == GREETING => {
                greeted = true;
                Event::Line(number, line)
            }
            _ => Event::Complaint(number, line),
        };
        if events.send(event).is_err() {
            return;
        }
    }
    let _ = events.send(Event::End(number));
}

fn read_complaints(stderr: impl Read, number: usize, events: &Sender<Event>) {
    let mut stderr = BufReader::new(stderr);
    while let Some(line) = line(&mut stderr) {
        if events.send(Event::Complaint(number, line)).is_err() {
            return;
        }
    }
}

/// Reads standard input for PE 0, and waits each time until PE 0 has taken it.
fn read_input(orders: &SyncSender<Vec<u8>>, taken: &Receiver<()>) {
    let mut buffer = vec![0; MAX_INPUT];
    loop {
        // Reading would stop a process in the background of its terminal.
        if !may_read_terminal() {
            std::thread::sleep(BACKGROUND);
            continue;
        }
        let read = match io::stdin().lock().read(&mut buffer) {
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => 0,
        };
        let Ok(frame) = Order::Input(buffer[..read].to_vec()).encode() else { return };
        if orders.send(frame).is_err() || read == 0 || taken.recv().is_err() {
            return;
        }
    }
}

impl Job<'_> {
    fn pass_input_on(&mut self) {
        let Some(orders) = self.hosts.first().map(|host| host.orders.clone()) else { return };
        let (taken, heard) = sync_channel(1);
        self.taken = Some(taken);
        let thread = std::thread::Builder::new().name("oxrun-input".into());
        if let Err(error) = thread.spawn(move || read_input(&orders, &heard)) {
            self.report(format!("standard input is not passed on to PE 0: {error}"));
        }
    }

    /// Keeps the deadlines and takes what the hosts tell, until nothing more comes from any.
    fn watch(&mut self, events: &Receiver<Event>) {
        let deadline = self.options.timeout.map(|timeout| Instant::now() + timeout);
        // Hosts whose remote shells were killed are not waited for: what reads from them may wait
        // for a reader that does not read.
        while !self.hosts.iter().all(|host| host.ended) && !self.is_over {
            if let Ok(event) = events.recv_timeout(TICK) {
                self.take(event);
                // Deadlines can wait until what is there has been taken.
                while let Ok(event) = events.try_recv() {
                    self.take(event);
                }
            }
            self.forward_signals();
            self.advance(deadline);
        }
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Line(number, line) => match Said::parse(&line) {
                Some(Said::Ended { rank, status }) if self.hosts[number].ranks().contains(&rank) => {
                    self.pe_ended(rank, status);
                }
                Some(Said::InputTaken) => {
                    if let Some(taken) = &self.taken {
                        let _ = taken.try_send(());
                    }
                }
                Some(Said::Report(text)) => {
                    let text = String::from_utf8_lossy(text);
                    self.report(format!("{}: {text}", self.hosts[number].share.host));
                }
                _ if line == GREETING => self.hosts[number].greeted = true,
                _ => {
                    let host = &self.hosts[number].share.host;
                    self.report(format!("{host}: its oxrun sent an unknown line '{}'", line.escape_ascii()));
                }
            },
            Event::Complaint(number, line) => {
                let text = String::from_utf8_lossy(&line);
                self.report(format!("{}: {}", self.hosts[number].share.host, text.trim_end()));
            }
            Event::Dump(rank, line) => self.dumps.line(rank, &line),
            Event::End(number) => self.host_ended(number),
            Event::Lost(error, why) => self.lost(error, &why),
        }
    }

    fn pe_ended(&mut self, rank: u32, status: PeStatus) {
        let place = &mut self.ended[rank as usize];
        if place.is_some() {
            return;
        }
        *place = Some(status);
        self.hub.exited(rank, &status.to_string());
        if rank == 0 {
            self.taken = None;
        }
        self.course.ended(rank, status);
        self.report_failure(false);
    }

    /// Notes that the connection to a host has ended, and with it, whatever it was, the PEs there.
    fn host_ended(&mut self, number: usize) {
        let host = &mut self.hosts[number];
        host.ended = true;
        let status = wait(&mut host.child);
        let missing: Vec<u32> = host.ranks().filter(|rank| self.ended[*rank as usize].is_none()).collect();
        if missing.is_empty() {
            return;
        }
        let pes = failure::pes(&missing);
        let host = self.hosts[number].share.host.clone();
        if !self.course.was_ended() {
            self.report(format!("the host {host} is lost, with {pes}: its remote shell {status}"));
            self.course.reported = true;
        }
        let status = if status.is_success() { PeStatus::Exited(LAUNCHER_FAILED.into()) } else { status };
        for rank in missing {
            self.pe_ended(rank, status);
        }
    }

    fn lost(&mut self, error: bool, why: &io::Error) {
        if why.kind() == io::ErrorKind::BrokenPipe {
            // What a program without a launcher in between would learn by SIGPIPE.
            if self.course.may_go_on() {
                self.terminate();
            }
        } else if let Some(report) = self.course.lost_output(if error { "error" } else { "output" }, why) {
            self.report(report);
        }
    }

    fn tell_all(&mut self, order: &Order) {
        self.hosts.iter_mut().filter(|host| !host.ended).for_each(|host| host.order(order));
    }

    fn terminate(&mut self) {
        self.tell_all(&Order::Terminate);
        // The hosts kill after the grace time by themselves.
        self.course.terminated(FAREWELL);
    }

    fn kill(&mut self) {
        self.tell_all(&Order::Kill);
        self.course.killed();
        self.shells_end = Some(Instant::now() + FAREWELL);
    }

    fn advance(&mut self, deadline: Option<Instant>) {
        self.report_dumps(false);
        let now = Instant::now();
        for host in self.hosts.iter_mut().filter(|host| !host.ended && host.told + HEARTBEAT <= now) {
            host.order(&Order::Heartbeat);
        }
        let late = |host: &Host| !host.ended && !host.greeted && host.since + GREETING_LIMIT <= now;
        for number in (0..self.hosts.len()).filter(|number| late(&self.hosts[*number])).collect::<Vec<_>>() {
            let limit = GREETING_LIMIT.as_secs();
            let host = self.hosts[number].share.host.clone();
            self.report(format!("{host}: its oxrun did not start within {limit} s; its remote shell is killed"));
            signal_group(&self.hosts[number].child, Signal::KILL);
            self.hosts[number].since = now;
        }
        match self.course.due(now, deadline) {
            Some(Due::Job) => {
                let running: Vec<u32> =
                    (0..).zip(&self.ended).filter(|(_, end)| end.is_none()).map(|(pe, _)| pe).collect();
                let report = self.course.time_is_over(self.options.timeout.unwrap_or_default(), &running);
                self.report(report);
                self.terminate();
            }
            Some(Due::Grace) => {
                self.report_failure(true);
                self.terminate();
            }
            Some(Due::Terminated) => self.kill(),
            None => {}
        }
        if self.shells_end.is_some_and(|until| until <= now) {
            self.hosts.iter().filter(|host| !host.ended).for_each(|host| signal_group(&host.child, Signal::KILL));
            self.is_over = true;
        }
    }

    /// Says which PE failed, once it is known how; `now` says what is known.
    fn report_failure(&mut self, now: bool) {
        let Self { course, hub, ended, hosts, .. } = self;
        if let Some((rank, status)) = course.verdict(now, Some(hub), |rank| ended[rank as usize]) {
            let host = hosts.iter().find(|host| host.ranks().contains(&rank));
            let host = host.map(|host| host.share.host.clone()).unwrap_or_default();
            let then = if ended.iter().any(Option::is_none) { "; ending the others" } else { "" };
            self.report(format!("PE {rank} on {host} {status}{then}"));
        }
    }

    fn report(&mut self, text: String) {
        if self.options.output != Output::Captured {
            self.reporter.line(text.clone());
        }
        self.reports.push(text);
    }

    fn forward_signals(&mut self) {
        while let Some(number) = self.signals.as_ref().and_then(Signals::next) {
            let heed = self.course.heed(number);
            if let Heed::Kill(report) = heed {
                self.report(report);
                self.kill();
                return;
            }
            if number == libc::SIGUSR2 {
                let running = (0..).zip(&self.ended).filter(|(_, end)| end.is_none()).map(|(pe, _)| pe);
                self.dumps.expect(running);
            }
            self.tell_all(&Order::Signal(number));
            if let Heed::End(report) = heed {
                self.report(report);
            }
        }
    }

    /// Says what the PEs' dumps say together, once that is known. `over`: no more can come.
    fn report_dumps(&mut self, over: bool) {
        let ended = &self.ended;
        let runs = |rank: u32| ended.get(rank as usize).is_some_and(Option::is_none);
        for report in self.dumps.due(Instant::now(), over, runs) {
            self.report(report);
        }
    }

    fn finish(mut self, screen: &Screen) -> Outcome {
        self.report_dumps(true);
        self.report_failure(true);
        self.reporter.finish();
        let failed = self.course.culprit(Some(&self.hub), |rank| self.ended[rank as usize]);
        let captured = std::mem::take(&mut *screen.captured.lock().unwrap_or_else(PoisonError::into_inner));
        let pes = self.ended.iter().zip(captured).map(|(status, [stdout, stderr])| PeOutcome {
            status: status.unwrap_or(PeStatus::Killed(libc::SIGKILL)),
            stdout,
            stderr,
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
        for host in self.hosts.iter_mut().filter(|host| !host.ended) {
            signal_group(&host.child, Signal::KILL);
            let _ = host.child.wait();
        }
    }
}

/// Waits for a remote shell whose output has ended, and kills it if it does not end.
fn wait(child: &mut Child) -> PeStatus {
    let until = Instant::now() + FAREWELL;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => {
                return status.code().map_or_else(|| PeStatus::Killed(status.signal().unwrap_or(0)), PeStatus::Exited);
            }
            Ok(None) if Instant::now() < until => std::thread::sleep(TICK),
            _ => {
                signal_group(child, Signal::KILL);
                let _ = child.wait();
                return PeStatus::Killed(libc::SIGKILL);
            }
        }
    }
}
