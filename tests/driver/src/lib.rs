//! A stand-in for the CUDA driver: `libcuda.so.1` with the functions that OxSHMEM calls, for tests
//! of what the host does with streams, events, modules and memory where there is no GPU.
//!
//! There is one GPU, of sm_80, so no build has modules for it that say that their kernels may be
//! launched early. Its memory is the host's, in files without names, so PEs of several processes
//! map each other's. Copies, fills and stores are done when they are queued, and kernels do
//! nothing. Modules are PTX, which says what their kernels are called and take.
//!
//! A program that uses a stream or an event that is gone is ended, with the name of the call, and
//! so is one that asks whether a stream which is being captured has ended.
//!
//! # What tests tell it
//! Programs find these functions in the library that is loaded:
//!
//! * `stand_in_hold(stream, held)`: what is recorded on a stream while it is held has not ended
//!   until the stream is let go.
//! * `stand_in_capture(stream, captures)`: a capture of the stream begins or ends. Other streams
//!   are forked from it and joined to it by events, as the driver has it.
//! * `stand_in_calls()`: a line for each copy, store, launch, wait and record since the last call
//!   of this function, as `copy 8 on 0x100010`. What is on no stream has lines, too: `load` for a
//!   module, `allocate` for memory, `grow` for room for larger stacks of kernels, and `look` for a
//!   call by which the host finds out whether work has ended. The caller frees the text, a
//!   `CString` of Rust.

mod devices;
mod memory;
mod modules;
mod state;
mod streams;

/// The names that programs load it by.
pub const LIBRARIES: [&str; 2] = ["libcuda.so", "libcuda.so.1"];
