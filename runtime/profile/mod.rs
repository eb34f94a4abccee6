//! Profiling: counters, records of calls, and NVTX ranges.
//!
//! * [`host`]: what the host knows of its own calls. It counts always, and records or tells a tool
//!   on request.
//! * [`device`]: the memory in which device code counts and records, and its contents.
//! * [`trace`]: calls of both with what became of them; [`chrome`] writes them for Perfetto.
//! * [`counters`]: everything that is counted, put together.
//! * [`nvtx`]: the protocol of NVTX 3.

pub(crate) mod chrome;
mod collect;
pub(crate) mod counters;
pub(crate) mod device;
pub(crate) mod files;
pub(crate) mod host;
mod nvtx;
pub(crate) mod trace;

pub use counters::{
    CallCount, CardCount, Counters, PeerCount, QpCount, RouteCount, TeamCount, Traffic, TransportCount,
};
pub use trace::{Origin, Trace, TraceCall};
