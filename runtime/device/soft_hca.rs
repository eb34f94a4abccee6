//! The software HCA's kernel.

crate::include_module!(pub(super) SOFT_HCA, "soft_hca");
/// The kernel that executes send queues.
pub(super) const SOFT_HCA_KERNEL: &str = "oxshmem_soft_hca";
/// The kernel that executes atomics of other nodes; one thread, with the address of a batch.
pub(super) const SOFT_HCA_ATOMICS: &str = "oxshmem_soft_hca_atomics";
