//! The clock that records of the host carry, which is that of device code on the `cpu` device.

use rustix::time::{ClockId, clock_gettime};

/// Returns nanoseconds of `CLOCK_MONOTONIC`, which all processes of a machine share.
///
/// ```
/// use oxshmem_system::clock::monotonic_ns;
///
/// let before = monotonic_ns();
/// assert!(monotonic_ns() >= before);
/// ```
#[must_use]
pub fn monotonic_ns() -> u64 {
    nanoseconds(ClockId::Monotonic)
}

/// Returns nanoseconds since 1970 (`CLOCK_REALTIME`), by which clocks of machines are compared.
///
/// ```
/// assert!(oxshmem_system::clock::unix_ns() > 1_600_000_000_000_000_000);
/// ```
#[must_use]
pub fn unix_ns() -> u64 {
    nanoseconds(ClockId::Realtime)
}

fn nanoseconds(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}
