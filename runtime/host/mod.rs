//! The host's operations: puts, gets, atomics, signals, barriers and collectives from Rust, on the
//! same paths as a kernel's.

pub(crate) mod atomic;
pub mod by_address;
pub(crate) mod collectives;
mod copies;
pub(crate) mod issuer;
pub(crate) mod operations;
pub(crate) mod sides;
mod transfer;
