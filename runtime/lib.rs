//! OxSHMEM: a PGAS runtime for GPUs.

pub mod device;
