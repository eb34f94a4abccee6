//! The CPU path of OxSHMEM (IBRC): a ring of descriptors from device code, and an engine that posts
//! them.
//!
//! * [`descriptor`]: what device code writes into the ring.
//! * [`ring`]: its reading end.
//! * [`block`]: the memory that both share.
//! * [`engine`]: from descriptors to work requests, and from completions to acknowledgements;
//!   without I/O.
//! * [`staging`]: puts whose source is copied to host memory first.
//! * [`striping`]: queue pairs that are spread over several cards.
//! * [`thread`]: the thread around it; [`parking`]: how it sleeps.
//! * [`verbs`]: work requests on a device of the kernel's verbs.
//! * [`work`]: work requests, completions, and the [`Backend`](work::Backend) that carries them.
//! * [`devx`]: a backend over queue pairs that [`oxshmem_hca::objects`] sets up, such as those of
//!   the software HCA.

#![warn(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)]
#![cfg_attr(test, allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss))]

pub mod block;
pub mod descriptor;
pub mod devx;
pub mod engine;
pub mod parking;
mod prefetch;
pub mod ring;
pub mod staging;
pub mod striping;
pub mod thread;
pub mod verbs;
pub mod work;
