//! Configuration: every `OXSHMEM_*` environment variable, parsed once into one typed [`Config`].
//!
//! One table ([`VARIABLES`]) drives parsing, the errors and `docs/environment.md`. A variable that
//! starts with `OXSHMEM_` and is not in the table is an error, so a typing mistake cannot silently
//! leave a default in force.

mod builder;
mod check;
mod choices;
mod error;
mod foreign;
mod services;
pub(crate) mod size;
mod table;
#[cfg(test)]
mod tests;
mod value;

pub use choices::{
    Atomics, Checks, Device, Doorbell, DoorbellRecord, Dumps, Flush, Hca, Launcher, Munge, Network, Profile, Rails,
    Registration, SoftEngine, Staging, Transport,
};
pub use error::{ConfigError, Origin};
pub use size::ByteSize;
pub use table::{Config, ConfigBuilder, LAUNCHER_VARIABLES, MAX_NPES, PREFIX, VARIABLES, Variable};
pub use value::{Choice, LogFilter};
