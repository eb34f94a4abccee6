//! The check mode, `OXSHMEM_CHECK`: finds calls that differ, buffers that are reused too early, and
//! waits that nothing can satisfy. `docs/debugging.md` says what each finds and what not.
//!
//! * `calls`: [`Pe::check_call`](crate::Pe), in the collective calls of the host.
//! * `buffers`: in the software HCA (`hca/src/soft/sources.rs`).
//! * [`waits`]: a thread of each PE.

pub(crate) mod calls;
pub(crate) mod waits;
