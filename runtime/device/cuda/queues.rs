//! What a PE has put on streams other than its own, and streams that are made beside one.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::sys::{self, CUevent, CUstream};

use super::driver::{Context, DriverError, driver};
use super::events::new_event;
use super::launched::Launched;
use super::raw_stream;

/// Streams from which on those that are idle are forgotten, at this number and at its doubles.
const MANY: usize = 64;

/// `CU_STREAM_PER_THREAD` of cuda.h: a handle that names another stream in each thread.
const PER_THREAD: usize = 2;

/// What the PE has put on one stream.
#[derive(Debug)]
pub(super) struct Queue {
    /// Destroyed with the PE's own stream: a thread that uses it has that stream.
    pub event: CUevent,
    /// [`Queues::number`].
    of: u64,
    pub launched: Launched,
    /// For work that runs beside the stream's; made when there is some. Streams do not share it:
    /// work of one would then wait for work of another.
    beside: Mutex<Option<Beside>>,
}

/// A stream beside another. It begins after `forks`, and the other goes on after `joins`.
#[derive(Debug, Clone, Copy)]
struct Beside {
    raw: CUstream,
    forks: CUevent,
    joins: CUevent,
}

// SAFETY: events and streams may be used from any thread.
unsafe impl Send for Queue {}
// SAFETY: as above.
unsafe impl Sync for Queue {}

/// A stream's handle, and the number of the thread where that says which stream is meant, or 0.
type Name = (usize, u64);

/// The streams a PE has put work on.
#[derive(Debug)]
pub(super) struct Queues {
    /// Tells the queues of this process apart.
    number: u64,
    by_name: Mutex<BTreeMap<Name, Arc<Queue>>>,
    /// Work went into a graph: it may run at any time.
    pub captured: AtomicBool,
}

/// Returns the number of the calling thread if a handle leads to its stream; `None` if the handle
/// names the same stream in all threads.
pub(super) fn thread_of(raw: CUstream) -> Option<u64> {
    (raw as usize == PER_THREAD).then(|| THREAD.with(|number| *number))
}

/// Returns the name of the stream that a handle means in this thread.
fn name(raw: CUstream) -> Name {
    (raw as usize, thread_of(raw).unwrap_or(0))
}

thread_local! {
    /// The number of this thread, from 1 on.
    static THREAD: u64 = {
        static LAST: AtomicU64 = AtomicU64::new(0);
        LAST.fetch_add(1, Ordering::Relaxed) + 1
    };
}

impl Queues {
    pub fn new() -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        let number = LAST.fetch_add(1, Ordering::Relaxed) + 1;
        Self { number, by_name: Mutex::default(), captured: AtomicBool::new(false) }
    }

    fn by_name(&self) -> MutexGuard<'_, BTreeMap<Name, Arc<Queue>>> {
        self.by_name.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn all(&self) -> Vec<Arc<Queue>> {
        self.by_name().values().map(Arc::clone).collect()
    }

    /// Returns the queue of a stream that was seen before.
    pub fn known(&self, raw: CUstream) -> Option<Arc<Queue>> {
        self.by_name().get(&name(raw)).map(Arc::clone)
    }

    /// Returns the queue of a stream, made when the stream is first seen. The context must be
    /// current.
    pub fn of(&self, context: &Context, raw: CUstream) -> Result<Arc<Queue>, DriverError> {
        let mut queues = self.by_name();
        let is_many = queues.len() >= MANY && queues.len().is_power_of_two();
        if is_many && !queues.contains_key(&name(raw)) && !self.captured.load(Ordering::Acquire) {
            forget_idle(&mut queues, context);
        }
        let queue = match queues.entry(name(raw)) {
            Entry::Occupied(queue) => queue.into_mut(),
            Entry::Vacant(place) => place.insert(Arc::new(Queue {
                event: new_event()?,
                of: self.number,
                launched: Launched::default(),
                beside: Mutex::default(),
            })),
        };
        Ok(Arc::clone(queue))
    }

    /// Returns whether work of the PE is, or may be, running on any of them. The context must be
    /// current.
    pub fn busy(&self) -> bool {
        self.captured.load(Ordering::Acquire) || self.unfinished()
    }

    /// Returns whether work that was queued has not ended. The context must be current.
    pub fn unfinished(&self) -> bool {
        self.all().iter().any(|queue| queue.has_ended() == Some(false))
    }

    /// Returns what may be running.
    pub fn launched(&self) -> BTreeSet<String> {
        self.all().iter().flat_map(|queue| queue.launched.names()).collect()
    }

    /// Gives the events and what was made beside the streams back. The context must be current.
    pub fn destroy(&self, context: &Context) {
        std::mem::take(&mut *self.by_name()).into_values().for_each(|queue| queue.destroy(context));
    }
}

/// Forgets streams that nothing names any more and whose work has ended: programs may make a stream
/// for each piece of work, or a thread. The context must be current.
fn forget_idle(queues: &mut BTreeMap<Name, Arc<Queue>>, context: &Context) {
    queues.retain(|_, queue| {
        let is_idle = Arc::strong_count(queue) == 1 && queue.has_ended() == Some(true);
        if is_idle {
            queue.destroy(context);
        }
        !is_idle
    });
}

fn destroy_event(event: CUevent) {
    // SAFETY: no thread waits for it any more.
    if let Err(error) = unsafe { driver!(cuEventDestroy_v2(event)) } {
        tracing::debug!(%error, "cannot destroy an event");
    }
}

impl Queue {
    /// Returns whether what the PE has put there has ended; `None` if the driver does not say. The
    /// context must be current.
    pub fn has_ended(&self) -> Option<bool> {
        // SAFETY: the event lives as long as `self`.
        raw_stream::ended(unsafe { sys::cuEventQuery(self.event) })
    }

    /// Gives the event and what was made beside the stream back. The context must be current, and
    /// nothing uses them any more.
    fn destroy(&self, context: &Context) {
        destroy_event(self.event);
        if let Some(beside) = self.beside().take() {
            raw_stream::destroy(context, beside.raw);
            destroy_event(beside.forks);
            destroy_event(beside.joins);
        }
    }

    fn beside(&self) -> MutexGuard<'_, Option<Beside>> {
        self.beside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues `work` on `raw`, this queue's stream, and `beside` on another stream, which begins
    /// when the earlier work of `raw` has ended. What is queued on `raw` later begins when both
    /// have ended. If `raw` is being captured, the other stream joins the capture until that ends,
    /// and what is queued here becomes two branches of the graph. The context must be current, and
    /// the thread's captures relaxed.
    ///
    /// # Safety
    /// `raw` exists.
    pub unsafe fn fork(
        &self,
        context: &Context,
        raw: CUstream,
        beside: impl FnOnce(CUstream) -> Result<(), DriverError>,
        work: impl FnOnce() -> Result<(), DriverError>,
    ) -> Result<(), DriverError> {
        let mut made = self.beside();
        let Beside { raw: other, forks, joins } = match *made {
            Some(made) => made,
            None => *made.insert(Beside::new(context)?),
        };
        // SAFETY: the events and the other stream live as long as the PE's stream; the rest is the
        // caller's promise.
        unsafe {
            driver!(cuEventRecord(forks, raw))?;
            driver!(cuStreamWaitEvent(other, forks, 0))?;
        }
        // What was queued beside is waited for, no matter what else is refused.
        let queued = beside(other).and_then(|()| work());
        // SAFETY: as above.
        let joined =
            unsafe { driver!(cuEventRecord(joins, other)).and_then(|()| driver!(cuStreamWaitEvent(raw, joins, 0))) };
        queued.and(joined)
    }

    /// Returns whether it is one of `queues`.
    pub fn is_of(&self, queues: &Queues) -> bool {
        self.of == queues.number
    }
}

impl Beside {
    /// Makes the stream and its events. The context must be current.
    fn new(context: &Context) -> Result<Self, DriverError> {
        let forks = new_event()?;
        let joins = new_event().inspect_err(|_| destroy_event(forks))?;
        let raw = raw_stream::create(context).inspect_err(|_| {
            destroy_event(forks);
            destroy_event(joins);
        })?;
        Ok(Self { raw, forks, joins })
    }
}
