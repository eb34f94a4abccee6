//! The software HCA's kernel.

crate::include_module!(pub(super) SOFT_HCA, "soft_hca");
/// Its only kernel.
pub(super) const SOFT_HCA_KERNEL: &str = "oxshmem_soft_hca";
