//! Asynchronous events of a card: a thread that notices when the card is gone.

use std::ffi::CStr;
use std::fmt;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use crate::error::{Error, Result};
use crate::verbs::Context;
use crate::verbs::sys;

/// Why the card is gone, once it is, and the subscribers to that news.
#[derive(Default)]
pub(super) struct Death {
    reason: OnceLock<String>,
    hook: Mutex<Option<Box<dyn Fn() + Send + Sync>>>,
}

impl fmt::Debug for Death {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Death").field("reason", &self.reason).finish_non_exhaustive()
    }
}

impl Death {
    fn hook(&self) -> MutexGuard<'_, Option<Box<dyn Fn() + Send + Sync>>> {
        self.hook.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that the card is gone; the first reason counts.
    pub(super) fn note(&self, device: &str, reason: String) {
        tracing::error!(device, reason, "the card is gone");
        if self.reason.set(reason).is_ok()
            && let Some(hook) = self.hook().take()
        {
            hook();
        }
    }

    pub(super) fn reason(&self) -> Option<String> {
        self.reason.get().cloned()
    }

    /// Calls `hook` when the card is gone.
    pub(super) fn when(&self, hook: Box<dyn Fn() + Send + Sync>) {
        let mut place = self.hook();
        if self.reason.get().is_some() {
            drop(place);
            hook();
        } else {
            *place = Some(hook);
        }
    }
}

/// Listens until dropped.
#[derive(Debug)]
pub(super) struct Events {
    wake: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Events {
    /// Listens to the events of `context`, and notes the reason in `death` if the card dies.
    pub(super) fn listen(context: &Arc<Context>, death: &Arc<Death>) -> Result<Self> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| Error::os("create an eventfd for the thread that listens to the card's events", errno))?;
        let wake = Arc::new(wake);
        let thread = std::thread::Builder::new()
            .name("oxshmem-events".into())
            .spawn({
                let (context, wake, death) = (Arc::clone(context), Arc::clone(&wake), Arc::clone(death));
                move || listen(&context, &wake, &death)
            })
            .map_err(|error| Error::os("start the thread that listens to the card's events", error))?;
        Ok(Self { wake, thread: Some(thread) })
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        if let Err(errno) = rustix::io::write(&*self.wake, &1u64.to_ne_bytes()) {
            tracing::warn!(%errno, "the thread that listens to the card's events could not be woken");
        }
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::warn!("the thread that listens to the card's events panicked");
        }
    }
}

fn listen(context: &Context, wake: &OwnedFd, death: &Death) {
    // SAFETY: the context is open, and owns the descriptor as long as it is.
    let events = unsafe { BorrowedFd::borrow_raw((*context.raw()).async_fd) };
    loop {
        let mut fds = [PollFd::new(wake, PollFlags::IN), PollFd::from_borrowed_fd(events, PollFlags::IN)];
        // Without a deadline: this thread has nothing else to do, and dropping `Events` wakes it.
        match poll(&mut fds, None) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(errno) => return tracing::warn!(%errno, "events of the card are not noticed any more"),
        }
        if !fds[0].revents().is_empty() {
            return;
        }
        let state = fds[1].revents();
        if !state.contains(PollFlags::IN) {
            // The kernel has closed its side.
            return death.note(context.name(), "the driver has removed it".to_owned());
        }
        let functions = context.library().functions();
        let mut event = MaybeUninit::<sys::ibv_async_event>::zeroed();
        // SAFETY: the context is open; the structure may be written. There is an event, so this
        // does not block.
        if unsafe { functions.ibv_get_async_event(context.raw(), event.as_mut_ptr()) } != 0 {
            let error = std::io::Error::last_os_error();
            if matches!(error.raw_os_error(), Some(libc::EIO | libc::ENODEV)) {
                return death.note(context.name(), format!("the driver has removed it ({error})"));
            }
            continue;
        }
        // SAFETY: the call succeeded, so it is filled in; events have to be acknowledged.
        let kind = unsafe {
            functions.ibv_ack_async_event(event.as_mut_ptr());
            event.assume_init_ref().event_type
        };
        // SAFETY: any number may be asked about; the answer is a constant.
        let text = unsafe { CStr::from_ptr(functions.ibv_event_type_str(kind)) }.to_string_lossy();
        match kind {
            sys::IBV_EVENT_DEVICE_FATAL => {
                let reason = format!("it reported \"{text}\"; the kernel's log (dmesg) says more");
                return death.note(context.name(), reason);
            }
            sys::IBV_EVENT_PORT_ERR => tracing::warn!(device = context.name(), event = %text, "the port is down"),
            _ => tracing::info!(device = context.name(), event = %text, "event of the card"),
        }
    }
}
