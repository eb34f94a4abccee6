//! The thread that makes dumps, and the signal that wakes it.
//!
//! The handler of SIGUSR2 writes to an eventfd and does nothing else; the thread reads that, and
//! makes the dump as ordinary code. The thread ends with the PE. The handler stays for the life of
//! the process, because without it a signal that comes after the end of the PE would kill the
//! process.

use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};

use super::scene::Scene;
use super::{stderr, text};

/// How long the end of a PE waits for dumps that were requested.
const PATIENCE: Duration = Duration::from_secs(3);

/// What the handler writes to, in the process that installed it.
static EVENT: AtomicI32 = AtomicI32::new(-1);
static PROCESS: AtomicI32 = AtomicI32::new(0);
static SIGNALLED: AtomicBool = AtomicBool::new(false);

static DESK: Mutex<Desk> = Mutex::new(Desk { scene: None, served: false, requests: Vec::new(), working: false });
static DONE: Condvar = Condvar::new();

/// What is to be done.
#[derive(Debug)]
struct Desk {
    /// The PE of this process, if it has one.
    scene: Option<Arc<Scene>>,
    /// The thread runs that makes dumps.
    served: bool,
    requests: Vec<Request>,
    /// The thread makes a dump.
    working: bool,
}

#[derive(Debug)]
struct Request {
    scene: Arc<Scene>,
    reason: String,
    /// What the host's side was when the reason arose.
    host: Vec<String>,
}

fn desk() -> MutexGuard<'static, Desk> {
    DESK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The PE of this process as dumps show it, until this is dropped.
#[derive(Debug)]
pub(crate) struct Watched {
    scene: Arc<Scene>,
    /// The thread that makes dumps, and what tells it to end.
    thread: Option<(JoinHandle<()>, Arc<AtomicBool>)>,
}

impl Watched {
    /// Has dumps show this PE from now on.
    pub fn new(scene: Scene) -> Self {
        let when = scene.when();
        let scene = Arc::new(scene);
        // A signal that came after the end of an earlier PE.
        SIGNALLED.store(false, Ordering::Release);
        let thread = if when.signal || when.abort { start() } else { None };
        {
            let mut desk = desk();
            desk.scene = Some(Arc::clone(&scene));
            desk.served = thread.is_some();
        }
        if thread.is_some() && when.signal {
            install_handler();
        } else if thread.is_none() && when.signal {
            tracing::debug!("no dump is made at SIGUSR2: the thread for it cannot start");
        }
        Self { scene, thread }
    }

    /// Returns the PE.
    pub fn scene(&self) -> &Arc<Scene> {
        &self.scene
    }
}

impl Watched {
    /// Waits, for a limited time, until `ready` holds and all dumps that were requested have been
    /// made.
    fn settle(ready: impl Fn() -> bool) -> MutexGuard<'static, Desk> {
        let until = Instant::now() + PATIENCE;
        let mut desk = desk();
        while !(ready() && !desk.working && desk.requests.is_empty()) && Instant::now() < until {
            let left = until.saturating_duration_since(Instant::now());
            desk = DONE.wait_timeout(desk, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        desk
    }

    /// Waits for the dump of the job's failure, for a limited time: the program may end as soon as
    /// it learns of the failure.
    pub fn settle_failure(&self) {
        drop(Self::settle(|| self.scene.has_noted_failure()));
    }

    /// Ends dumps of what lies on the device, which is about to go.
    pub fn detach(&self) {
        drop(Self::settle(|| true));
        self.scene.detach();
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let mut desk = Self::settle(|| true);
        let (gone, is_idle) = (desk.scene.take(), !desk.working);
        desk.served = false;
        drop(desk);
        // Its end may take a while, which the lock must not be held for.
        drop(gone);
        if let (Some((thread, stop)), Some(event)) = (self.thread.take(), event()) {
            stop.store(true, Ordering::Release);
            wake(event.as_raw_fd());
            // One that is held up by a reader of stderr ends when it has given that up.
            if is_idle {
                let _ = thread.join();
            }
        }
    }
}

/// Has the thread make a dump, unless the PE is about to end anyway. Does not wait.
pub(crate) fn request(scene: &Arc<Scene>, reason: String) {
    let Some(event) = event().filter(|_| !scene.is_over()) else { return };
    let host = scene.host_lines();
    let mut desk = desk();
    if desk.served {
        desk.requests.push(Request { scene: Arc::clone(scene), reason, host });
        wake(event.as_raw_fd());
    }
}

/// Notes that the job of a PE has failed, after a dump of that was requested if one is due.
pub(crate) fn note_failure(scene: &Scene) {
    // Under the lock, so that a thread that is about to wait for it does not miss it.
    let _desk = desk();
    scene.note_failure();
    DONE.notify_all();
}

/// Makes a dump of a PE, in the calling thread.
pub(crate) fn dump_now(scene: &Scene, reason: &str) {
    stderr::write(&scene.lines(reason, None));
}

/// Writes to stderr what this process's PE waits for, and the state of its queue pairs, teams and
/// streams, as SIGUSR2 makes it do (`docs/troubleshooting.md`). Any thread may call it, while
/// another one waits in a call of the library too.
///
/// It does not wait for kernels or for other PEs. What a device does not give within a second is
/// left out, and the dump says so.
///
/// ```
/// # fn main() -> oxshmem::Result<()> {
/// let pe = oxshmem::init()?;
/// oxshmem::dump();
/// pe.finalize()
/// # }
/// ```
pub fn dump() {
    let scene = desk().scene.clone();
    make(scene.as_deref(), "the program requested it", None);
}

fn make(scene: Option<&Scene>, reason: &str, host: Option<Vec<String>>) {
    match scene {
        Some(scene) => stderr::write(&scene.lines(reason, host)),
        None => {
            let who = format!("process {} has no PE now", std::process::id());
            stderr::write(&[text::begin(reason, &who), text::end()].map(|line| text::written(last_rank(), &line)));
        }
    }
}

/// Returns the rank that the launcher gave this process.
fn last_rank() -> Option<u32> {
    std::env::var("OXSHMEM_RANK").ok()?.parse().ok()
}

/// Returns what wakes the thread, and stays open as long as the process: the handler of a signal
/// may be about to write to it. `None` if the system has no room for it.
fn event() -> Option<&'static OwnedFd> {
    static EVENTFD: OnceLock<Option<OwnedFd>> = OnceLock::new();
    EVENTFD.get_or_init(|| eventfd(0, EventfdFlags::CLOEXEC).ok()).as_ref()
}

/// Starts the thread.
fn start() -> Option<(JoinHandle<()>, Arc<AtomicBool>)> {
    let event = event()?;
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let thread = std::thread::Builder::new().name("oxshmem-dump".into());
    Some((thread.spawn(move || watch(event, &stopped)).ok()?, stop))
}

fn wake(event: i32) {
    let one = 1u64.to_ne_bytes();
    // SAFETY: writes eight bytes from a place that lives until then. Fails only when the thread has
    // 2^64 events to read, and then it is awake.
    unsafe { libc::write(event, one.as_ptr().cast(), one.len()) };
}

fn watch(event: &OwnedFd, stop: &AtomicBool) {
    block_other_signals();
    let mut count = [0; 8];
    loop {
        match rustix::io::read(event, &mut count) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(_) => return,
        }
        loop {
            let (requests, scene) = {
                let mut desk = desk();
                let requests = std::mem::take(&mut desk.requests);
                let signalled = SIGNALLED.swap(false, Ordering::AcqRel);
                desk.working = signalled || !requests.is_empty();
                if !desk.working {
                    DONE.notify_all();
                    break;
                }
                (requests, signalled.then(|| desk.scene.clone()))
            };
            for Request { scene, reason, host } in requests {
                make(Some(&scene), &reason, Some(host));
            }
            if let Some(scene) = scene {
                make(scene.as_deref(), "SIGUSR2", None);
            }
        }
        if stop.load(Ordering::Acquire) {
            return;
        }
    }
}

/// Leaves the program's signals to its own threads. SIGUSR2 stays: where all other threads block
/// it, this one takes it.
fn block_other_signals() {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigfillset initialises the set before it is used.
    unsafe {
        libc::sigfillset(set.as_mut_ptr());
        libc::sigdelset(set.as_mut_ptr(), libc::SIGUSR2);
        libc::pthread_sigmask(libc::SIG_SETMASK, set.as_ptr(), std::ptr::null_mut());
    }
}

/// Handles SIGUSR2. Makes async-signal-safe calls alone.
extern "C" fn on_signal(_: libc::c_int) {
    // SAFETY: all of these calls are async-signal-safe, and errno is a place of this thread.
    unsafe {
        let errno = libc::__errno_location();
        let before = *errno;
        // A child that was forked shares the descriptor, and has no thread that makes dumps.
        if libc::getpid() == PROCESS.load(Ordering::Relaxed) {
            SIGNALLED.store(true, Ordering::Release);
            wake(EVENT.load(Ordering::Relaxed));
        }
        *errno = before;
    }
}

/// Installs the handler, unless the program takes SIGUSR2 itself: by a handler, by ignoring it, or
/// by blocking it for a thread that waits for it.
fn install_handler() {
    let Some(event) = event() else { return };
    let theirs = || tracing::debug!("no dump is made at SIGUSR2: the program handles, ignores or blocks this signal");
    // SAFETY: the structures are initialised before they are read, and the handler is
    // async-signal-safe.
    let failed = unsafe {
        let mut blocked = MaybeUninit::<libc::sigset_t>::zeroed().assume_init();
        libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &raw mut blocked);
        let mut before = MaybeUninit::<libc::sigaction>::zeroed().assume_init();
        libc::sigaction(libc::SIGUSR2, std::ptr::null(), &raw mut before);
        let own = on_signal as extern "C" fn(libc::c_int) as libc::sighandler_t;
        // A child that was forked inherits the handler, and has its own process number.
        if before.sa_sigaction != own
            && (before.sa_sigaction != libc::SIG_DFL || libc::sigismember(&raw const blocked, libc::SIGUSR2) == 1)
        {
            return theirs();
        }
        EVENT.store(event.as_raw_fd(), Ordering::Relaxed);
        PROCESS.store(libc::getpid(), Ordering::Relaxed);
        let mut handler = MaybeUninit::<libc::sigaction>::zeroed().assume_init();
        handler.sa_sigaction = own;
        // Device code on the CPU runs on small stacks.
        handler.sa_flags = libc::SA_RESTART | libc::SA_ONSTACK;
        libc::sigemptyset(&raw mut handler.sa_mask);
        libc::sigaction(libc::SIGUSR2, &raw const handler, std::ptr::null_mut()) != 0
    };
    if failed {
        tracing::debug!(error = %std::io::Error::last_os_error(), "no dump is made at SIGUSR2: it cannot be handled");
    }
}
