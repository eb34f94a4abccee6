//! OxSHMEM: a PGAS runtime for GPUs.

pub mod bootstrap;
pub mod config;
pub mod error;
pub mod launch;

pub use config::Config;
pub use error::{Error, Result};
