//! Communication contexts: queue pairs apart from those that all threads of a GPU share.

mod create;
mod error;
mod options;
mod set;
mod table;

pub use error::ContextError;
pub use options::{ContextOptions, Sharing};
pub use set::{Context, ContextArray, Contexts};
pub(crate) use table::ContextTable;
