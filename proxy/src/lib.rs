//! The CPU path of OxSHMEM (IBRC): a ring of descriptors from device code, and an engine that posts them.
//!
//! Empty so far: `OXSHMEM_TRANSPORT=ibrc` is refused with an error that says so.
