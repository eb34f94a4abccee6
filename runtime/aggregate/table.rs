//! The aggregating contexts of a PE.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use super::service::Service;
use super::set::Set;
use crate::context::Contexts;
use crate::device::{Aside, Device};
use crate::modules::AGGREGATE;

/// Aggregating contexts that were created and not destroyed, by their numbers.
#[derive(Debug, Default)]
pub(crate) struct AggregateTable {
    pub(super) next: u32,
    pub(super) live: BTreeMap<u32, Live>,
    /// What serves all contexts while the program's kernels leave no room, once it was made.
    aside: Option<Arc<dyn Aside>>,
}

/// What a live context keeps. Dropped in this order: first the thread that launches kernels on the
/// memory.
#[derive(Debug)]
pub(super) struct Live {
    pub service: Service,
    pub set: Arc<Set>,
    /// Where members of the PE's own node are reached.
    pub beside: Contexts,
}

impl AggregateTable {
    /// Returns what serves contexts while the program's kernels leave the service no room. `None`
    /// where it needs none, or where none can be made, which the log says.
    pub(super) fn aside(&mut self, device: &dyn Device) -> Option<Arc<dyn Aside>> {
        if self.aside.is_none() {
            self.aside = device.aside(&AGGREGATE).unwrap_or_else(|error| {
                tracing::warn!(
                    %error,
                    "aggregating contexts are served only while the program's kernels leave room on the GPU for a block of 32 threads; a \
                     grid that occupies all of it until its records are applied ends at its deadline"
                );
                None
            });
        }
        self.aside.clone()
    }

    /// Ends all services. What kernels use of the contexts stays.
    pub(crate) fn stop(&mut self) {
        self.live.values_mut().for_each(|live| live.service.stop());
    }

    /// Returns the number of a context over the team with this handle, if there is one.
    pub(crate) fn of_team(&self, handle: i32) -> Option<u32> {
        self.live.values().find(|live| live.set.team == handle).map(|live| live.set.number)
    }

    /// Returns the number of a context with rings at some of these addresses, if there is one.
    pub(crate) fn overlapping(&self, range: &Range<u64>) -> Option<u32> {
        let overlaps = |memory: &Range<u64>| memory.start < range.end && range.start < memory.end;
        self.live.values().find(|live| overlaps(&live.set.memory)).map(|live| live.set.number)
    }
}
