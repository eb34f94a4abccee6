//! What a dump says of the ring between device code and the CPU proxy.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use oxshmem_proxy::thread::Observer;

use super::reader::Reader;
use crate::abi;
use crate::fault::{self, DeviceFault};
use crate::slab::{Offset, Slab};

/// A PE's ring, and what takes its descriptors.
#[derive(Debug, Clone)]
pub(crate) struct RingPlace {
    pub slab: Arc<Slab>,
    /// An [`abi::Proxy`].
    pub at: Offset,
    pub proxy: Observer,
}

impl RingPlace {
    /// Describes the ring and the connections that are lost.
    pub fn describe(&self, reader: &mut Reader, state: &abi::State) -> Vec<String> {
        let counters = self.proxy.counters();
        // SAFETY: the slab holds the record, and is mapped while it is named here.
        let ring: abi::Proxy = match unsafe { reader.read(self.slab.address(self.at)) } {
            Ok(ring) => ring,
            Err(why) => return vec![format!("IBRC ring: not read: {why}")],
        };
        // Completed first: it is never more than was taken.
        let (completed, taken) = (word(ring.completed_word) & !abi::BROKEN, word(ring.taken_word));
        let mut line = format!(
            "IBRC ring of {}: {} descriptors posted, {taken} taken by the proxy, {completed} completed; some {} work requests posted",
            1u64 << ring.depth_log2,
            ring.head.max(taken),
            counters.requests,
        );
        if ring.taken.seen >= abi::BROKEN {
            line.push_str("; broken");
        }
        if ring.breakage.claimed == abi::ERROR_VALID {
            let _ = write!(line, "; first cause: {}", DeviceFault::decode(&ring.breakage.first, state));
        }
        let lost = self.proxy.lost().into_iter().take(16).map(|lost| {
            let reason = lost.reason.map_or_else(String::new, |reason| format!(": {reason}"));
            format!("IBRC: the connection to PE {} is lost: {}{reason}", lost.pe, fault::syndrome(lost.syndrome))
        });
        [line].into_iter().chain(lost).collect()
    }
}

/// Reads a word of the proxy's.
fn word(address: u64) -> u64 {
    // SAFETY: the ring's record names words of host memory, aligned, which live as long as the
    // network, and which all sides access by atomics.
    unsafe { AtomicU64::from_ptr(address as *mut u64) }.load(Ordering::Acquire)
}
