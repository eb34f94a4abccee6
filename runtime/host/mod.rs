//! The host's operations: puts, gets, atomics, signals and barriers from Rust, on the same paths as a kernel's.

mod atomic;
mod collectives;
mod mem;
mod on_stream;
mod rma;
mod slice;

pub use atomic::{AtomicValue, BitwiseValue};
pub use collectives::{Bfloat16, Complex, Half, Reducible};
pub use rma::{Compare, SignalOp};
pub use slice::SymmetricSlice;
