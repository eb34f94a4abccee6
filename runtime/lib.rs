//! OxSHMEM: a PGAS runtime for GPUs.
