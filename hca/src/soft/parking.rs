//! Where idle engines nap, and how a doorbell wakes them: a store to a register of the software HCA raises no interrupt.

use crate::idle::Parking;

/// The engines of this process.
pub(super) static ENGINES: Parking = Parking::new();

/// Tell the software HCAs of this process that a doorbell register was written. Call it after the store.
///
/// A doorbell without this call is not lost; it is noticed some milliseconds later.
#[inline]
pub fn doorbell_rung() {
    ENGINES.announce();
}
