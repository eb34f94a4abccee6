//! The CPU path of OxSHMEM (IBRC): a ring of descriptors from device code, and an engine that posts them.
//!
//! * [`verbs`]: work requests on a device of the kernel's verbs.
//! * [`work`]: work requests, completions, and the [`Backend`](work::Backend) that carries them.

pub mod verbs;
pub mod work;
