//! Dumps: the state of a PE's queue pairs, rings, teams, streams and waits, in words, on stderr.
//! A PE makes one at SIGUSR2, when a wait reaches its deadline, when the job fails, and when the
//! program requests it; `oxrun` reads them and points at the PE that did not come.
//!
//! [`scene`] is what a dump shows, [`watcher`] the thread that makes dumps, [`text`] the lines that
//! `oxrun` reads.

pub(crate) mod board;
pub(crate) mod queues;
pub(crate) mod reader;
pub(crate) mod ring;
pub(crate) mod scene;
mod stderr;
mod teams;
pub(crate) mod text;
pub(crate) mod watcher;

pub use watcher::dump;
