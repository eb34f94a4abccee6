//! Which RDMA device is near which GPU or CPU, and which of them each PE of a node uses.

mod assignment;
mod choice;
mod description;
mod error;
mod machine;
mod rails;
#[cfg(test)]
mod sysfs_tree;

pub use assignment::{Assignment, Family};
pub use choice::{Card, DeviceChoice, MAX_CARDS, MAX_SENDERS, Who};
pub use error::TopologyError;
pub(crate) use machine::device_names;
pub use machine::{DeviceEntry, Distance, Place, PortEntry, Topology};
pub use rails::{Crossing, Rail, Route, Through, Way, fetch};
