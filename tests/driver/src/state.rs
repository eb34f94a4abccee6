//! What the driver knows, and what tests tell it and ask it.

use std::collections::BTreeMap;
use std::ffi::{CString, c_char, c_int};
use std::ops::Range;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use cudarc::driver::sys::{CUevent, CUstream};

/// The handle of the GPU's primary context.
pub const PRIMARY: usize = 0x1000;

/// `CU_STREAM_LEGACY` and `CU_STREAM_PER_THREAD` of cuda.h; null is the legacy stream, too.
const ALWAYS_THERE: usize = 2;

/// Bytes of a thread's stack that each kernel needs, which are more than a context has at first.
pub const STACK: usize = 1040;

#[derive(Debug)]
pub struct State {
    last: usize,
    streams: BTreeMap<usize, Stream>,
    events: BTreeMap<usize, Event>,
    /// References to the primary context.
    pub references: u32,
    /// Reserved addresses.
    pub reserved: Vec<Range<u64>>,
    /// Bytes of a thread's stack that the context has.
    pub stacks: usize,
    calls: Vec<String>,
}

#[derive(Debug, Default, Clone, Copy)]
struct Stream {
    is_gone: bool,
    held: bool,
    /// The stream whose capture it is in: itself, or one that it was forked from.
    captured_by: Option<usize>,
    /// It was forked from that one, which has not waited for it since work was put on it.
    is_apart: bool,
}

#[derive(Debug, Default, Clone, Copy)]
struct Event {
    /// The stream that it was recorded on last.
    on: Option<usize>,
    /// That was in a capture.
    is_captured: bool,
}

/// Returns the state of this process.
pub fn state() -> MutexGuard<'static, State> {
    static STATE: LazyLock<Mutex<State>> = LazyLock::new(|| {
        Mutex::new(State {
            last: 0,
            streams: BTreeMap::new(),
            events: BTreeMap::new(),
            references: 0,
            reserved: Vec::new(),
            stacks: 1024,
            calls: Vec::new(),
        })
    });
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends the process for a call that a program must not make.
fn refuse(call: &str, what: &str) -> ! {
    eprintln!("driver stand-in: {call}: {what}");
    std::process::abort();
}

impl State {
    /// Returns a handle that nothing has had before.
    pub fn handle(&mut self) -> usize {
        self.last += 16;
        0x10_0000 + self.last
    }

    pub fn create_stream(&mut self) -> usize {
        let handle = self.handle();
        self.streams.insert(handle, Stream::default());
        handle
    }

    fn stream(&mut self, call: &str, raw: CUstream) -> &mut Stream {
        let handle = raw as usize;
        let stream = self
            .streams
            .entry(handle)
            .or_insert_with(|| Stream { is_gone: handle > ALWAYS_THERE, ..Stream::default() });
        if stream.is_gone {
            refuse(call, &format!("stream {handle:#x} is gone"));
        }
        stream
    }

    pub fn destroy_stream(&mut self, raw: CUstream) {
        self.stream("cuStreamDestroy", raw).is_gone = true;
    }

    /// Returns whether what is on a stream has ended.
    pub fn has_ended(&mut self, raw: CUstream) -> bool {
        self.log("look");
        if self.captures(raw) {
            refuse("cuStreamQuery", "the stream is being captured, and that ends the capture");
        }
        !self.stream("cuStreamQuery", raw).held
    }

    /// Returns whether a stream is being captured.
    pub fn is_any_captured(&self) -> bool {
        self.streams.values().any(|stream| stream.captured_by.is_some())
    }

    pub fn captures(&mut self, raw: CUstream) -> bool {
        self.stream("cuStreamIsCapturing", raw).captured_by.is_some()
    }

    /// Begins a capture of a stream, or ends it, and with it those of streams that were forked.
    pub fn capture(&mut self, raw: CUstream, begins: bool) {
        let handle = raw as usize;
        if begins {
            self.stream("stand_in_capture", raw).captured_by = Some(handle);
            return;
        }
        for (other, stream) in self.streams.iter_mut().filter(|(_, stream)| stream.captured_by == Some(handle)) {
            if stream.is_apart {
                refuse("stand_in_capture", &format!("stream {other:#x} was forked and not joined"));
            }
            stream.captured_by = None;
        }
    }

    pub fn create_event(&mut self) -> usize {
        let handle = self.handle();
        self.events.insert(handle, Event::default());
        handle
    }

    fn event(&mut self, call: &str, raw: CUevent) -> &mut Event {
        let handle = raw as usize;
        self.events.get_mut(&handle).unwrap_or_else(|| refuse(call, &format!("event {handle:#x} is gone")))
    }

    /// Ends the process if an event is gone.
    pub fn check_event(&mut self, call: &str, raw: CUevent) {
        self.event(call, raw);
    }

    pub fn destroy_event(&mut self, raw: CUevent) {
        self.check_event("cuEventDestroy", raw);
        self.events.remove(&(raw as usize));
    }

    pub fn record(&mut self, event: CUevent, stream: CUstream) {
        let is_captured = self.captures(stream);
        *self.event("cuEventRecord", event) = Event { on: Some(stream as usize), is_captured };
        self.note("record", stream);
    }

    /// Has a stream wait for an event. One that was recorded in a capture takes the stream into
    /// that capture, or joins the stream that it was recorded on.
    pub fn wait(&mut self, raw: CUstream, event: CUevent) {
        let call = "cuStreamWaitEvent";
        let Event { on, is_captured } = *self.event(call, event);
        self.note("wait", raw);
        let recorded_on = on.filter(|_| is_captured).and_then(|on| self.streams.get_mut(&on));
        let by = recorded_on.as_ref().and_then(|stream| stream.captured_by);
        if let Some(stream) = recorded_on.filter(|_| by == Some(raw as usize)) {
            stream.is_apart = false;
        }
        let stream = self.stream(call, raw);
        match (by, stream.captured_by) {
            (None, _) if is_captured => refuse(call, "the event was recorded in a capture that has ended"),
            (Some(_), None) => (stream.captured_by, stream.is_apart) = (by, true),
            (None, Some(_)) => refuse(call, "a stream in a capture waits for what is not in it"),
            (Some(by), Some(captured_by)) if by != captured_by => refuse(call, "two captures would merge"),
            _ => {}
        }
    }

    /// Returns whether what an event was recorded after has ended.
    pub fn is_complete(&mut self, event: CUevent) -> bool {
        self.log("look");
        let Event { on, is_captured } = *self.event("cuEventQuery", event);
        if is_captured {
            refuse("cuEventQuery", "the event was recorded in a capture");
        }
        !on.is_some_and(|stream| self.streams.get(&stream).is_some_and(|stream| stream.held))
    }

    /// Notes what was queued: `copy 8 on 0x100010`.
    pub fn note(&mut self, what: &str, stream: CUstream) {
        let queued = self.stream(what, stream);
        queued.is_apart = queued.captured_by.is_some_and(|by| by != stream as usize);
        self.log(&format!("{what} on {:#x}", stream as usize));
    }

    /// Makes room for stacks, for which a GPU waits until all kernels have ended.
    pub fn grow_stacks(&mut self, bytes: usize) {
        if self.stacks < bytes {
            self.log("grow");
            self.stacks = bytes;
        }
    }

    /// Notes what is on no stream.
    pub fn log(&mut self, what: &str) {
        self.calls.push(what.to_owned());
    }
}

#[unsafe(no_mangle)]
extern "C" fn stand_in_hold(stream: CUstream, held: c_int) {
    // Also of a stream that the program has destroyed.
    state().streams.entry(stream as usize).or_default().held = held != 0;
}

#[unsafe(no_mangle)]
extern "C" fn stand_in_capture(stream: CUstream, captures: c_int) {
    state().capture(stream, captures != 0);
}

#[unsafe(no_mangle)]
extern "C" fn stand_in_calls() -> *mut c_char {
    let lines = std::mem::take(&mut state().calls).join("\n");
    CString::new(lines).unwrap_or_default().into_raw()
}
