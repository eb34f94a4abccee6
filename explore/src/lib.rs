//! Runs the device headers under a scheduler that decides about every access to shared memory, with
//! store buffers, HCAs and proxies as further processes, and checks what they do. See
//! docs/explorer.md.

mod errors;
pub mod explore;
mod hca;
mod interface;
mod memory;
pub mod module;
pub mod mutants;
mod network;
pub mod policy;
mod proxy;
mod trap;
pub mod world;
