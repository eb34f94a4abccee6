//! The contexts of a PE.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::set::Set;
use crate::slab::Slab;

/// Sets of contexts that were created and not destroyed, by their numbers.
#[derive(Debug, Default)]
pub(crate) struct ContextTable {
    pub next: u32,
    /// Each with the memory that the device finds it in.
    pub sets: BTreeMap<u32, (Arc<Set>, Arc<Slab>)>,
}
