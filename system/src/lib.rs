//! What the crates of OxSHMEM share of the host, and what belongs to none of them.
//!
//! * [`challenge`]: proofs that both ends of a connection know a secret.
//! * [`clock`]: the time of records.
//! * [`fdpass`]: file descriptors over abstract unix sockets.
//! * [`idle`]: how threads wait for work.
//! * [`mixing`]: numbers that look random, and depend on their input alone.
//! * [`side_by_side`]: calls that wait, made by several threads at a time.
//! * [`store_fence`]: order between stores to memory and to registers of devices.
//! * [`words`]: words cut on purpose.

#![warn(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)]

pub mod challenge;
pub mod clock;
mod error;
pub mod fdpass;
pub mod idle;
pub mod mixing;
pub mod side_by_side;
pub mod store_fence;
pub mod words;

pub use error::{Error, NoDescriptor, Result};
