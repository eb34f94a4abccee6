//! Aggregating contexts: small puts, signals and atomics of all PEs of a node that leave together.

mod create;
mod error;
mod lost;
mod options;
mod places;
mod service;
mod set;
mod table;

pub use error::{AggregateError, Lost, LostAt};
pub use options::AggregateOptions;
pub use set::{Aggregate, AggregateCounters};
pub(crate) use table::AggregateTable;
