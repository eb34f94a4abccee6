//! Chains of work requests.

use std::fmt;
use std::ptr;

use super::sys;
use oxshmem_system::words::native;

/// Registered memory of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Its address under the key.
    pub address: u64,
    /// Bytes.
    pub length: u32,
    /// The lkey.
    pub key: u32,
}

/// Registered memory of the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Target {
    /// Its address under the key.
    pub address: u64,
    /// The rkey.
    pub key: u32,
}

/// What a work request does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SendOperation<'a> {
    /// RDMA WRITE from here to there.
    Write(Segment, Target),
    /// RDMA WRITE of these bytes, which are copied when the request is posted.
    WriteInline(&'a [u8], Target),
    /// RDMA READ to here from there.
    Read(Segment, Target),
    /// Adds to the 8 bytes there, and writes here what they were.
    FetchAdd {
        /// What is added.
        add: u64,
        /// 8 bytes for what was there before.
        result: Segment,
        /// The word; its address is a multiple of 8.
        target: Target,
    },
    /// Replaces the 8 bytes there if they equal `compare`, and writes here what they were.
    CompareSwap {
        /// What is expected.
        compare: u64,
        /// The new value.
        swap: u64,
        /// 8 bytes for what was there before.
        result: Segment,
        /// The word; its address is a multiple of 8.
        target: Target,
    },
}

/// A work request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SendRequest<'a> {
    /// What its completion is known by.
    pub id: u64,
    /// What it does.
    pub operation: SendOperation<'a>,
    /// Whether its success is reported; a failure always is.
    pub signaled: bool,
    /// It waits for reads and atomics before it on its queue pair.
    pub fence: bool,
}

/// Work requests that are posted by one call. It keeps its memory between uses.
#[derive(Default)]
pub struct SendChain {
    requests: Vec<sys::ibv_send_wr>,
    segments: Vec<sys::ibv_sge>,
    /// Bytes of inline writes. The segment of such a request holds an offset in here until the
    /// chain is posted.
    payload: Vec<u8>,
}

impl fmt::Debug for SendChain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendChain").field("requests", &self.requests.len()).finish_non_exhaustive()
    }
}

// SAFETY: between calls its pointers point nowhere.
unsafe impl Send for SendChain {}

impl SendChain {
    /// Returns how many requests it has.
    #[must_use]
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// Returns whether it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Forgets all requests.
    pub fn clear(&mut self) {
        self.requests.clear();
        self.segments.clear();
        self.payload.clear();
    }

    /// Appends a request.
    pub fn push(&mut self, request: &SendRequest<'_>) {
        // SAFETY: plain data, for which zeros are a value.
        let mut wr: sys::ibv_send_wr = unsafe { std::mem::zeroed() };
        wr.wr_id = request.id;
        wr.num_sge = 1;
        if request.signaled {
            wr.send_flags |= sys::IBV_SEND_SIGNALED;
        }
        if request.fence {
            wr.send_flags |= sys::IBV_SEND_FENCE;
        }
        let rdma = |target: Target| sys::ibv_send_wr__bindgen_ty_2 {
            rdma: sys::ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { remote_addr: target.address, rkey: target.key },
        };
        let atomic = |compare_add, swap, target: Target| sys::ibv_send_wr__bindgen_ty_2 {
            atomic: sys::ibv_send_wr__bindgen_ty_2__bindgen_ty_2 {
                remote_addr: target.address,
                compare_add,
                swap,
                rkey: target.key,
            },
        };
        let segment = match request.operation {
            SendOperation::Write(source, target) => {
                (wr.opcode, wr.wr) = (sys::IBV_WR_RDMA_WRITE, rdma(target));
                source
            }
            SendOperation::WriteInline(bytes, target) => {
                (wr.opcode, wr.wr) = (sys::IBV_WR_RDMA_WRITE, rdma(target));
                wr.send_flags |= sys::IBV_SEND_INLINE;
                let address = self.payload.len() as u64;
                self.payload.extend_from_slice(bytes);
                Segment { address, length: u32::try_from(bytes.len()).unwrap_or(u32::MAX), key: 0 }
            }
            SendOperation::Read(into, source) => {
                (wr.opcode, wr.wr) = (sys::IBV_WR_RDMA_READ, rdma(source));
                into
            }
            SendOperation::FetchAdd { add, result, target } => {
                (wr.opcode, wr.wr) = (sys::IBV_WR_ATOMIC_FETCH_AND_ADD, atomic(add, 0, target));
                result
            }
            SendOperation::CompareSwap { compare, swap, result, target } => {
                (wr.opcode, wr.wr) = (sys::IBV_WR_ATOMIC_CMP_AND_SWP, atomic(compare, swap, target));
                result
            }
        };
        self.requests.push(wr);
        self.segments.push(sys::ibv_sge { addr: segment.address, length: segment.length, lkey: segment.key });
    }

    /// Returns the first request, with every pointer set; null if there is none. Valid until the
    /// chain is changed, and to be used for one post.
    pub(super) fn link(&mut self) -> *mut sys::ibv_send_wr {
        let payload = self.payload.as_ptr();
        for (wr, segment) in self.requests.iter_mut().zip(&mut self.segments) {
            if wr.send_flags & sys::IBV_SEND_INLINE != 0 {
                // Offsets fit: they are of a vector.
                segment.addr = payload.wrapping_add(native(segment.addr)).expose_provenance() as u64;
            }
            wr.sg_list = segment;
        }
        let first = self.requests.as_mut_ptr();
        for i in 1..self.requests.len() {
            // SAFETY: both are elements of the vector.
            unsafe { (*first.add(i - 1)).next = first.add(i) };
        }
        if self.requests.is_empty() { ptr::null_mut() } else { first }
    }

    /// Returns which request a pointer into the linked chain stands for.
    pub(super) fn position(&self, wr: *const sys::ibv_send_wr) -> usize {
        self.requests.iter().position(|request| ptr::eq(request, wr)).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_links_its_requests_and_their_bytes() {
        let mut chain = SendChain::default();
        assert!(chain.link().is_null());
        let target = Target { address: 0x1000, key: 7 };
        let segment = Segment { address: 0x2000, length: 8, key: 9 };
        for round in 0..2u8 {
            chain.clear();
            let operations = [
                SendOperation::WriteInline(&[round, 1, 2], target),
                SendOperation::Write(segment, target),
                SendOperation::WriteInline(&[round, 9], target),
                SendOperation::FetchAdd { add: 5, result: segment, target },
            ];
            for (id, operation) in (0..).zip(operations) {
                chain.push(&SendRequest { id, operation, signaled: id == 3, fence: id == 2 });
            }
            let mut at = chain.link();
            let mut seen = Vec::new();
            while !at.is_null() {
                // SAFETY: the chain is linked, and each request has one segment.
                let (wr, segment) = unsafe { (&*at, &*(*at).sg_list) };
                assert_eq!(chain.position(at), seen.len());
                if wr.send_flags & sys::IBV_SEND_INLINE != 0 {
                    let bytes = ptr::with_exposed_provenance::<u8>(segment.addr as usize);
                    // SAFETY: inline segments point to the chain's bytes.
                    assert_eq!(unsafe { *bytes }, round);
                }
                seen.push((wr.wr_id, wr.opcode, wr.send_flags, segment.length));
                at = wr.next;
            }
            let (write, inline) = (sys::IBV_WR_RDMA_WRITE, sys::IBV_SEND_INLINE);
            assert_eq!(
                seen,
                [
                    (0, write, inline, 3),
                    (1, write, 0, 8),
                    (2, write, inline | sys::IBV_SEND_FENCE, 2),
                    (3, sys::IBV_WR_ATOMIC_FETCH_AND_ADD, sys::IBV_SEND_SIGNALED, 8),
                ]
            );
        }
    }
}
