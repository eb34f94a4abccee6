//! Runs the device headers under a scheduler that decides about every access to shared memory, with store buffers, HCAs and
//! proxies as further processes, and checks what they do. See docs/explorer.md.

#![allow(missing_docs)]

mod hca;
pub mod interface;
mod memory;
pub mod module;
pub mod policy;
mod proxy;
mod trap;
pub mod world;

pub mod explore;
pub mod mutants;
