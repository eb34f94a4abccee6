//! The firmware: parses commands, refuses what the PRM refuses, and creates, changes and destroys
//! objects.
//!
//! A refusal has a status of the PRM and a syndrome. The syndrome of the software HCA is
//! [`SYNDROME_BASE`] plus the bit offset, in the command's input, of the field that is wrong, so it
//! can be found in `mlx5_ifc.h`.

mod capabilities;
mod checks;
mod commands;
mod memory;
mod objects;
mod queues;

pub use commands::SYNDROME_BASE;
pub(super) use objects::{Object, Purpose, remote_gid};
