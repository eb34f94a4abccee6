//! What a dump of a PE shows, from the beginning of init to the end of the PE.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use super::board::Board;
use super::queues::QueuePlaces;
use super::reader::Reader;
use super::ring::RingPlace;
use super::teams;
use super::text::{self, Round, State};
use crate::abi;
use crate::bootstrap::calls::Calls;
use crate::config::Dumps;
use crate::device::Device;
use crate::fault::DeviceFault;

/// Dumps that a PE makes of deadlines: programs may go on after a deadline, any number of times.
const DEADLINES: u32 = 4;
/// How long the end of a PE waits for a dump of it.
const PATIENCE: Duration = Duration::from_secs(3);

/// A PE as dumps show it.
#[derive(Debug)]
pub(crate) struct Scene {
    when: Dumps,
    begun: Instant,
    /// What the host does and waits for.
    pub board: Board,
    member: Mutex<Member>,
    ground: Mutex<Option<Ground>>,
    deadlines: AtomicU32,
    over: AtomicBool,
    failure_noted: AtomicBool,
}

/// The PE's place in its job.
#[derive(Debug, Clone, Default)]
struct Member {
    rank: Option<u32>,
    n_pes: Option<u32>,
    calls: Arc<Calls>,
}

/// What lies on the device. All of it is mapped until [`Scene::detach`] has returned.
#[derive(Debug)]
pub(crate) struct Ground {
    pub state: abi::State,
    pub device: Arc<dyn Device>,
    pub reader: Reader,
    pub queues: Option<Arc<QueuePlaces>>,
    pub ring: Option<RingPlace>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Scene {
    /// Begins with a process that has not joined its job. `rank` and `n_pes` are what a launcher
    /// said.
    pub fn new(when: Dumps, rank: Option<u32>, n_pes: Option<u32>) -> Self {
        Self {
            when,
            begun: Instant::now(),
            board: Board::default(),
            member: Mutex::new(Member { rank, n_pes, calls: Arc::default() }),
            ground: Mutex::new(None),
            deadlines: AtomicU32::new(0),
            over: AtomicBool::new(false),
            failure_noted: AtomicBool::new(false),
        }
    }

    /// Returns when dumps are made.
    pub fn when(&self) -> Dumps {
        self.when
    }

    /// Notes that the PE has joined its job.
    pub fn joined(&self, rank: u32, n_pes: u32, calls: Arc<Calls>) {
        *lock(&self.member) = Member { rank: Some(rank), n_pes: Some(n_pes), calls };
    }

    /// Notes that init has ended.
    pub fn attach(&self, ground: Ground) {
        *lock(&self.ground) = Some(ground);
    }

    /// Returns whether init has ended. It may not wait for a dump that reads the device.
    pub fn is_attached(&self) -> bool {
        self.ground.try_lock().map_or(true, |ground| ground.is_some())
    }

    /// Has dumps leave out the device from now on: what lies there is about to go. A dump that
    /// reads it ends first. What reads it stays until the scene is dropped, because to free its
    /// memory may wait for kernels that run.
    pub fn detach(&self) {
        self.over.store(true, Ordering::Release);
        let until = Instant::now() + PATIENCE;
        while let Err(TryLockError::WouldBlock) = self.ground.try_lock() {
            if Instant::now() > until {
                return tracing::warn!("a dump reads from a device that does not respond while the PE ends");
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Returns whether the PE is about to end.
    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// Notes that the job has failed, after a dump of that was requested if one is due.
    pub fn note_failure(&self) {
        self.failure_noted.store(true, Ordering::Release);
    }

    /// Returns whether the failure of the job was noted.
    pub fn has_noted_failure(&self) -> bool {
        self.failure_noted.load(Ordering::Acquire)
    }

    /// Returns whether a dump is due at a deadline, of which only some have one.
    pub fn takes_deadline(&self) -> bool {
        self.when.deadline && self.deadlines.fetch_add(1, Ordering::Relaxed) < DEADLINES
    }

    /// Returns what the host knows by itself, as it is now.
    pub fn host_lines(&self) -> Vec<String> {
        let mut lines = self.board.describe(None);
        lines.extend(self.rendezvous());
        lines
    }

    /// Returns the lines of a dump, as they are written. `host`: what [`Scene::host_lines`]
    /// returned when the reason arose, if it is a moment ago.
    pub fn lines(&self, reason: &str, host: Option<Vec<String>>) -> Vec<String> {
        let Member { rank, n_pes, .. } = lock(&self.member).clone();
        let mut ground = lock(&self.ground);
        // Looked at with the lock held, which the end of the PE waits for.
        let mut ground = ground.as_mut().filter(|_| !self.is_over());
        let device = ground.as_ref().map(|ground| Arc::clone(&ground.device));
        let of = n_pes.map_or_else(|| "a PE".to_owned(), |n_pes| format!("a PE of {n_pes}"));
        let on = device.as_ref().map_or_else(String::new, |device| format!(" on the {} device", device.name()));
        let age = self.begun.elapsed().as_secs_f64();
        let who = format!("{of}{on}, process {}, {age:.1} s after init began", std::process::id());
        let mut lines = vec![text::begin(reason, &who)];
        match host {
            Some(before) => lines.extend(before),
            None => {
                lines.extend(self.board.describe(device.as_deref()));
                lines.extend(self.rendezvous());
            }
        }
        if let Some(ground) = &mut ground {
            lines.extend(ground.describe());
        }
        lines.push(text::end());
        lines.iter().map(|line| text::written(rank, line)).collect()
    }

    /// Returns since when the PE's thread waits, in a call of the library; `None` while it does
    /// not.
    pub fn waits_since(&self) -> Option<Instant> {
        let calls = Arc::clone(&lock(&self.member).calls);
        calls.progress().since.or_else(|| self.board.waits_since())
    }

    /// Says how far the PE's calls at the rendezvous have come.
    fn rendezvous(&self) -> Option<String> {
        let calls = Arc::clone(&lock(&self.member).calls);
        let progress = calls.progress();
        if progress.label.is_empty() {
            return None;
        }
        if !progress.of_all {
            let how = progress.since.map_or_else(
                || "has ended".to_owned(),
                |since| format!("waits since {:.1} s", since.elapsed().as_secs_f64()),
            );
            return Some(format!("a call of some PEs at the rendezvous ({}) {how}", progress.label));
        }
        let state = if progress.since.is_some() { State::Waits(Vec::new()) } else { State::Over };
        let round = Round { place: "the rendezvous".into(), round: progress.begun, call: progress.label, state };
        Some(round.to_string())
    }
}

impl Ground {
    fn describe(&mut self) -> Vec<String> {
        let Self { state, reader, queues, ring, .. } = self;
        let mut lines = teams::describe(reader, state);
        if let Some(queues) = queues {
            lines.extend(queues.describe(reader, state));
        }
        if let Some(ring) = ring {
            lines.extend(ring.describe(reader, state));
        }
        // SAFETY: the slab holds the control block.
        match unsafe { reader.read::<abi::Control>(state.control) } {
            Ok(control) => {
                if control.claimed == abi::ERROR_VALID {
                    let fault = DeviceFault::decode(&control.error, state);
                    lines.push(format!("an error that device code has recorded and no call has returned: {fault}"));
                }
                if control.abort != 0 {
                    lines.push("device code is told to end its waits".into());
                }
            }
            Err(why) => lines.push(format!("errors of device code: not read: {why}")),
        }
        lines
    }
}
