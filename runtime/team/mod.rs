//! Teams: ordered sets of PEs that do collectives together. Created and destroyed by their members,
//! through the bootstrap's hub; see `docs/teams.md`.
//!
//! Device code finds a team in a table by the row that the handle names (`abi::Team`). Members of a
//! new team agree on a row that is free at all of them, so its workspace, which lies in the heap at
//! a place that the row gives, is at the same offset everywhere.

pub(crate) mod choice;
mod create;
pub(crate) mod error;
pub(crate) mod meeting;
pub(crate) mod members;
mod nodes;
mod rows;
pub(crate) mod storage;
pub(crate) mod table;
mod tuning;
mod unique_id;

pub use choice::Collectives;
pub use error::{MissingPes, TeamError};
pub use table::Team;
pub use tuning::Tuning;
pub use unique_id::TeamUniqueId;
