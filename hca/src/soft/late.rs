//! Writes that are acknowledged before they are visible, as a card's are: an acknowledgement says
//! that the peer's card has the data, which is then on its way across PCIe. The writes of one card
//! stay in order, whatever their QPs and peers, and a read finds those at its peer. Nothing orders
//! those of different cards (PCIe orders the requests of one function only). Where the platform
//! does not order a card's writes at all (below `CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER`), they
//! become visible in any order.
//!
//! On hardware it is the peer's card that keeps writes in order, those of all cards that write
//! there: a write that follows from another one, which a third PE was told of, never comes before
//! it. A queue for each peer would lose that order, as each card here holds back its own writes. So
//! there is one queue, and an atomic, which tells its peer something, waits for all of it.

use super::memory;
use super::state::{Engine, Late};
use oxshmem_system::mixing::scramble;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The longest time that a write takes to become visible. Where writes stay in order, each order of
/// magnitude below it, down to 2 us, is as likely as the others: races of every length are tried,
/// and a program that waits for one write after the other is not slowed down by the longest ones
/// each time. Where they do not, all times up to it are equally likely: two writes have to change
/// places by more than it takes a reader to look twice.
const LONGEST: Duration = Duration::from_millis(2);
/// The shortest time, as a part of the longest.
const SHORTEST_PART: f64 = 1e-3;
/// The longest payload that is held back.
const MOST_BYTES: usize = 1 << 20;

impl Engine {
    /// Keeps a write to memory of `peer` for later, after those that are kept already. False: it
    /// has to be carried out now, and all kept ones have been.
    ///
    /// # Safety
    /// Both ends are good for `len` bytes, `dst` until `unmap_withdrawn`.
    pub(super) unsafe fn write_late(&mut self, peer: usize, dst: *mut u8, src: *const u8, len: usize) -> bool {
        if len > MOST_BYTES {
            self.deliver_all();
            return false;
        }
        let mut payload = vec![0; len];
        // SAFETY: the caller's promise.
        unsafe { memory::copy(payload.as_mut_ptr(), src, len) };
        let part = (scramble(self.counters.wqes) % 1024) as f64 / 1024.0;
        let wait = LONGEST.mul_f64(if self.unordered_visibility { part } else { SHORTEST_PART.powf(part) });
        let until = self.now() + wait;
        self.late.push_back(Late { until, peer, dst, payload });
        true
    }

    /// Makes the writes visible whose time has come. Returns how many.
    pub(super) fn deliver_due(&mut self) -> usize {
        let mut count = 0;
        if self.unordered_visibility {
            let now = Instant::now();
            while let Some(due) = self.late.iter().position(|late| late.until <= now) {
                let late = self.late.remove(due);
                late.iter().for_each(deliver);
                count += 1;
            }
            return count;
        }
        while self.late.front().is_some_and(|first| first.until <= Instant::now()) {
            self.deliver_first();
            count += 1;
        }
        count
    }

    /// Makes the writes visible that a read at `peer` finds: those to it, and where writes stay in
    /// order those before them.
    pub(super) fn deliver_at(&mut self, peer: usize) {
        if self.unordered_visibility {
            let (found, others): (VecDeque<Late>, VecDeque<Late>) =
                std::mem::take(&mut self.late).into_iter().partition(|late| late.peer == peer);
            self.late = others;
            found.iter().for_each(deliver);
        } else if let Some(last) = self.late.iter().rposition(|late| late.peer == peer) {
            self.late.drain(..=last).for_each(|late| deliver(&late));
        }
    }

    /// Makes all writes visible.
    pub(super) fn deliver_all(&mut self) {
        while !self.late.is_empty() {
            self.deliver_first();
        }
    }

    fn deliver_first(&mut self) {
        self.late.pop_front().iter().for_each(deliver);
    }
}

/// Makes a write visible.
fn deliver(late: &Late) {
    let Late { dst, payload, .. } = late;
    // SAFETY: `dst` was checked for that many bytes; the peer's memory is unmapped only after
    // `unmap_withdrawn` has delivered all.
    unsafe { memory::copy(*dst, payload.as_ptr(), payload.len()) };
    std::sync::atomic::fence(std::sync::atomic::Ordering::Release);
}
