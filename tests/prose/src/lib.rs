//! Checks of the repository's own text, which `make test` runs before anything else.
//!
//! * [`idioms`] rejects idioms that read as translated, and imperatives in the documentation of
//!   functions. [`extract`] takes the prose out of the sources, and `allowed.txt` lists the
//!   legitimate uses.
//! * [`markdown`] finds links that lead nowhere, and files that pages name and the repository does
//!   not have.
//! * [`commands`] finds targets, scripts, programs and variables that do not exist, and code blocks
//!   that no test checks.
//! * [`width`] finds lines that are too long, and [`wrap`] folds the paragraphs that they are in,
//!   as `make fmt` does.
//!
//! [`tree`] lists the tracked files.

pub mod commands;
pub mod extract;
pub mod idioms;
pub mod markdown;
pub mod tree;
pub mod width;
pub mod wrap;
