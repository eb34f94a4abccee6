//! The CPU path of OxSHMEM (IBRC): a ring of descriptors from device code, and an engine that posts them.
//!
//! * [`work`]: work requests, completions, and the [`Backend`](work::Backend) that carries them.

pub mod work;
