//! Where idle proxies nap, and how they are woken. Device code on the CPU wakes them when it has
//! written a descriptor. A GPU cannot wake a thread, so there naps are short; the host wakes the
//! proxy when it launches a kernel.

use oxshmem_system::idle::Parking;

/// The proxies of this process.
pub(crate) static PROXIES: Parking = Parking::new();

/// Wakes the proxies of this process that nap. Call it after a descriptor was written.
#[inline]
pub fn wake_sleepers() {
    PROXIES.announce();
}
