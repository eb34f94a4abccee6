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
    /// The first number of the contexts of each set that have numbers.
    pub numbers: BTreeMap<u32, u32>,
    /// Numbers that were ever given.
    pub numbered: u32,
}
