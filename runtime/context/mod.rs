//! Communication contexts: queue pairs apart from those that all threads of a GPU share.

mod cost;
mod create;
mod error;
mod options;
mod set;
mod sharing;
mod table;

pub use cost::ContextCost;
pub use error::ContextError;
pub use options::ContextOptions;
pub use set::{Context, ContextArray, Contexts};
pub use sharing::Sharing;
pub(crate) use table::ContextTable;
