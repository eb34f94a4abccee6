//! What the crates of OxSHMEM share of the host, and what belongs to none of them.
//!
//! * [`fdpass`]: file descriptors over abstract unix sockets.
//! * [`idle`]: how threads wait for work.
//! * [`mixing`]: numbers that look random, and depend on their input alone.
//! * [`store_fence`]: order between stores to memory and to registers of devices.

mod error;
pub mod fdpass;
pub mod idle;
pub mod mixing;
pub mod store_fence;

pub use error::{Error, NoDescriptor, Result};
