//! Signals as a file descriptor, and as words.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};

/// Signals that the launcher passes on, unless this process ignores them.
const FORWARDED: [i32; 6] = [libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGHUP, libc::SIGUSR1, libc::SIGUSR2];

/// The forwarded signals, blocked in the calling thread and readable from a descriptor until this
/// is dropped.
#[derive(Debug)]
pub struct Signals {
    fd: OwnedFd,
    before: SigSet,
}

#[derive(Clone, Copy)]
struct SigSet(libc::sigset_t);

impl std::fmt::Debug for SigSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SigSet")
    }
}

impl Signals {
    /// Blocks those that this process does not ignore. Threads that are started from here on
    /// inherit that; those that exist already do not, so this belongs at a program's start.
    ///
    /// The kernel keeps a blocked signal even if the process ignores it, so blocking one would undo
    /// what `nohup` has done, or a script for a job in the background. The PEs inherit what is
    /// ignored.
    pub fn block() -> io::Result<Self> {
        let mut forwarded = Vec::with_capacity(FORWARDED.len());
        for signal in FORWARDED {
            if action(signal)?.sa_sigaction != libc::SIG_IGN {
                forwarded.push(signal);
            }
        }
        let mut set = MaybeUninit::<libc::sigset_t>::uninit();
        let mut before = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: both are valid places; sigemptyset and pthread_sigmask initialise them before
        // they are read.
        let (fd, before) = unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            for signal in forwarded {
                libc::sigaddset(set.as_mut_ptr(), signal);
            }
            let error = libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), before.as_mut_ptr());
            if error != 0 {
                return Err(io::Error::from_raw_os_error(error));
            }
            (libc::signalfd(-1, set.as_ptr(), libc::SFD_CLOEXEC | libc::SFD_NONBLOCK), SigSet(before.assume_init()))
        };
        if fd < 0 {
            let error = io::Error::last_os_error();
            restore(&before);
            return Err(error);
        }
        // SAFETY: signalfd gave us this descriptor.
        Ok(Self { fd: unsafe { OwnedFd::from_raw_fd(fd) }, before })
    }

    /// Returns a descriptor that is readable when a signal is there.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Returns the next signal's number.
    pub fn next(&self) -> Option<i32> {
        let mut info = [0; size_of::<libc::signalfd_siginfo>()];
        let read = rustix::io::read(&self.fd, &mut info).ok()?;
        // `ssi_signo` is the first field.
        (read == info.len()).then(|| i32::from_ne_bytes([info[0], info[1], info[2], info[3]]))
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        restore(&self.before);
    }
}

fn restore(before: &SigSet) {
    // SAFETY: the set is one that pthread_sigmask wrote.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before.0, std::ptr::null_mut()) };
}

/// Has the kernel keep the status of this process's children until it is read. A process that
/// ignores SIGCHLD, as it may have inherited, does so no longer; a handler stays.
pub fn keep_children() -> io::Result<()> {
    let mut found = action(libc::SIGCHLD)?;
    let ignored = found.sa_sigaction == libc::SIG_IGN;
    if !ignored && found.sa_flags & libc::SA_NOCLDWAIT == 0 {
        return Ok(());
    }
    if ignored {
        found.sa_sigaction = libc::SIG_DFL;
    }
    found.sa_flags &= !libc::SA_NOCLDWAIT;
    // SAFETY: the action is the one that the process had, or the default one, and outlives the
    // call.
    match unsafe { libc::sigaction(libc::SIGCHLD, &raw const found, std::ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns what this process does when it gets a signal.
fn action(signal: i32) -> io::Result<libc::sigaction> {
    let mut found = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: the call changes nothing, and writes the action to a valid place.
    match unsafe { libc::sigaction(signal, std::ptr::null(), found.as_mut_ptr()) } {
        // SAFETY: an action of zeros is a valid one, and the call has replaced it.
        0 => Ok(unsafe { found.assume_init() }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Unblocks everything. Async-signal-safe, for use between fork and exec.
pub fn unblock_all() {
    let mut none = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigemptyset initialises the set before it is used.
    unsafe {
        libc::sigemptyset(none.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, none.as_ptr(), std::ptr::null_mut());
    }
}

/// Returns the signal's name: `SIGKILL` for 9; a real-time signal only has its number.
pub fn name(signal: i32) -> String {
    let known = match signal {
        libc::SIGHUP => "SIGHUP",
        libc::SIGINT => "SIGINT",
        libc::SIGQUIT => "SIGQUIT",
        libc::SIGILL => "SIGILL",
        libc::SIGTRAP => "SIGTRAP",
        libc::SIGABRT => "SIGABRT",
        libc::SIGBUS => "SIGBUS",
        libc::SIGFPE => "SIGFPE",
        libc::SIGKILL => "SIGKILL",
        libc::SIGUSR1 => "SIGUSR1",
        libc::SIGSEGV => "SIGSEGV",
        libc::SIGUSR2 => "SIGUSR2",
        libc::SIGPIPE => "SIGPIPE",
        libc::SIGALRM => "SIGALRM",
        libc::SIGTERM => "SIGTERM",
        libc::SIGXCPU => "SIGXCPU",
        libc::SIGXFSZ => "SIGXFSZ",
        libc::SIGSYS => "SIGSYS",
        _ => return format!("signal {signal}"),
    };
    known.to_owned()
}
