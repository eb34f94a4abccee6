//! The ring's slots: what device code writes and the proxy reads. Mirrors
//! `device-kernels/include/oxshmem/detail/ibrc/ring.h`; a test compares the two through the `cpu`
//! device.
//!
//! A slot is eight words of 64 bits, and every word is written in every lap. The lowest bit of each
//! word is the lap's tag, which flips from lap to lap. Word 0 is the header; it keeps the lowest
//! bits that the tags of words 1 to 7 displace.
//!
//! | word | bits | meaning |
//! |---|---|---|
//! | 0 | 0 | tag |
//! | | 1..8 | the lowest bits of words 1 to 7 |
//! | | 8..12 | operation, see [`code`] |
//! | | 12 | ordered: nothing of it is visible before what was posted earlier |
//! | | 13 | fetch: the result goes to a landing slot |
//! | | 14 | operand of an atomic: 0 four bytes, 1 eight |
//! | | 16..32 | peer |
//! | | 32..64 | rkey, big-endian as in the key tables |
//! | 1 | 0..48 | address at the peer, an offset in its heap |
//! | | 48..56 | bytes of an inline payload |
//! | | 56..62 | queue: which of the queue pairs to the peer |
//! | 2..8 | | inline payload, 48 bytes |
//! | 2 | | transfer: local address; atomic: addend or new value |
//! | 3 | | transfer: lkey, big-endian, in the low half and bytes in the high half; atomic: boundary or expected value |
//! | 4, 5 | | masked compare-and-swap: swap mask, compare mask |
//! | 6 | | with fetch: landing slot in the low half, its lap in the high half |
use oxshmem_system::words::{low32, native};

use crate::work::{Atomic, Local, PAYLOAD_BYTES, Payload, Remote, Transfer, Width};

/// 64-bit words of a slot.
pub const WORDS: usize = 8;
/// Bytes of a slot.
pub const SLOT_BYTES: usize = WORDS * 8;
/// The most PEs that a header can name.
pub const MAX_PES: u32 = 1 << 16;
/// The most queue pairs to a peer that a header can name.
pub const MAX_QUEUES: u32 = 1 << 6;

/// A slot's words.
pub type Slot = [u64; WORDS];

/// Operations, as the header has them.
pub mod code {
    /// RDMA WRITE from registered memory.
    pub const WRITE: u64 = 1;
    /// RDMA WRITE of bytes in the slot.
    pub const WRITE_INLINE: u64 = 2;
    /// RDMA READ.
    pub const READ: u64 = 3;
    /// Fetch-and-add of eight bytes.
    pub const FETCH_ADD: u64 = 4;
    /// Compare-and-swap of eight bytes.
    pub const COMPARE_SWAP: u64 = 5;
    /// Fetch-and-add with a field boundary.
    pub const MASKED_FETCH_ADD: u64 = 6;
    /// Compare-and-swap with masks.
    pub const MASKED_COMPARE_SWAP: u64 = 7;
    /// No work: the next request to each peer on this queue is ordered.
    pub const FENCE: u64 = 8;
    /// No work of the program's: makes what was written before it visible to all PEs.
    pub const FLUSH: u64 = 9;
}

const ORDERED: u64 = 1 << 12;
const FETCH: u64 = 1 << 13;
const EIGHT: u64 = 1 << 14;
const PE_SHIFT: u32 = 16;
const KEY_SHIFT: u32 = 32;
// In word 1.
const ADDRESS_MASK: u64 = (1 << 48) - 1;
const LENGTH_SHIFT: u32 = 48;
const QUEUE_SHIFT: u32 = 56;

/// Returns the tag of index `index` in a ring of `1 << log_depth` slots. Fresh memory is zero, and
/// the first lap's tag is one.
#[must_use]
pub fn tag(index: u64, log_depth: u32) -> u64 {
    (index >> log_depth).wrapping_add(1) & 1
}

/// Puts the tag into every word and the displaced bits into the header: what is stored. `words[0]`
/// has its low eight bits clear.
#[must_use]
pub fn seal(words: Slot, tag: u64) -> Slot {
    let mut displaced = 0;
    let mut sealed = words;
    for (number, word) in sealed.iter_mut().enumerate().skip(1) {
        displaced |= (*word & 1) << number;
        *word = *word & !1 | tag;
    }
    sealed[0] = words[0] | displaced | tag;
    sealed
}

/// Returns the words before [`seal`].
#[must_use]
#[inline]
pub fn unseal(sealed: Slot) -> Slot {
    let mut words = sealed;
    for (number, word) in words.iter_mut().enumerate().skip(1) {
        *word = *word & !1 | sealed[0] >> number & 1;
    }
    words[0] &= !0xff;
    words
}

/// A landing slot and the lap in which it is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Landing {
    /// Number of the slot.
    pub slot: u32,
    /// How often it was used before.
    pub lap: u32,
}

/// What a descriptor asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    /// Move bytes; no thread waits for this one by name.
    Transfer(Transfer),
    /// Read into a landing slot, and tell.
    Fetch {
        /// To here.
        landing: Landing,
        /// How many bytes.
        bytes: u32,
        /// From there.
        source: Remote,
    },
    /// An atomic.
    Atomic {
        /// What it does.
        operands: Atomic,
        /// The width of the operand.
        width: Width,
        /// The landing slot that receives the old value.
        landing: Option<Landing>,
        /// The word.
        target: Remote,
    },
    /// Order on this queue, to all peers.
    Fence,
    /// A read through each queue pair that was written through since the last one. When it is done,
    /// what was written is visible to every PE, whichever way that has learned of it.
    Flush,
}

/// A descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Descriptor {
    /// The peer.
    pub pe: u32,
    /// Which of the queue pairs to it.
    pub queue: u32,
    /// Whether it stays after everything posted earlier.
    pub ordered: bool,
    /// What it asks for.
    pub request: Request,
}

/// A slot that no device code writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a descriptor with header {header:#018x} {rule}")]
pub struct Malformed {
    /// Word 0 without tag bits.
    pub header: u64,
    /// What is wrong.
    pub rule: &'static str,
}

impl Descriptor {
    /// Decodes the words of a slot, which [`unseal`] has restored.
    ///
    /// # Errors
    /// Not an operation, or operands that do not fit it.
    #[inline(always)]
    pub fn decode(words: &Slot) -> Result<Self, Malformed> {
        let header = words[0];
        let wrong = |rule| Malformed { header, rule };
        let remote = Remote { address: words[1] & ADDRESS_MASK, key: u32::from_be((header >> KEY_SHIFT) as u32) };
        let bytes = (words[3] >> 32) as u32;
        let local = Local { address: words[2], length: bytes, key: u32::from_be(low32(words[3])) };
        let landing = Landing { slot: low32(words[6]), lap: (words[6] >> 32) as u32 };
        let fetch = header & FETCH != 0;
        let width = if header & EIGHT != 0 { Width::Eight } else { Width::Four };
        let atomic = |operands| {
            if !remote.address.is_multiple_of(u64::from(width.bytes())) {
                return Err(wrong("has an atomic to an unaligned address"));
            }
            Ok(Request::Atomic { operands, width, landing: fetch.then_some(landing), target: remote })
        };
        let request = match header >> 8 & 0xf {
            code::WRITE => Request::Transfer(Transfer::Write { source: local, target: remote }),
            code::WRITE_INLINE => {
                let length = native(words[1] >> LENGTH_SHIFT & 0xff);
                if length > PAYLOAD_BYTES {
                    return Err(wrong("has more payload than a slot"));
                }
                let mut payload = [0; PAYLOAD_BYTES];
                for (to, word) in payload.chunks_exact_mut(8).zip(&words[2..]) {
                    to.copy_from_slice(&word.to_le_bytes());
                }
                let payload = Payload::new(payload, length);
                Request::Transfer(Transfer::WriteInline { payload, target: remote })
            }
            code::READ if fetch => Request::Fetch { landing, bytes, source: remote },
            code::READ => Request::Transfer(Transfer::Read { target: local, source: remote }),
            code::FETCH_ADD => atomic(Atomic::Add { value: words[2], boundary: 0 })?,
            code::MASKED_FETCH_ADD => atomic(Atomic::Add { value: words[2], boundary: words[3] })?,
            code::COMPARE_SWAP => atomic(Atomic::compare_swap(words[3], words[2]))?,
            code::MASKED_COMPARE_SWAP => atomic(Atomic::CompareSwap {
                swap: words[2],
                compare: words[3],
                swap_mask: words[4],
                compare_mask: words[5],
            })?,
            code::FENCE => Request::Fence,
            code::FLUSH => Request::Flush,
            _ => return Err(wrong("has no known operation")),
        };
        Ok(Self {
            pe: low32(header >> PE_SHIFT) & (MAX_PES - 1),
            queue: low32(words[1] >> QUEUE_SHIFT) & (MAX_QUEUES - 1),
            ordered: header & ORDERED != 0,
            request,
        })
    }

    /// Returns the words that [`decode`](Self::decode) reads: what device code writes, in Rust, for
    /// tests and benches.
    #[must_use]
    pub fn encode(&self) -> Slot {
        let mut words = [0; WORDS];
        let mut header = u64::from(self.pe) << PE_SHIFT;
        if self.ordered {
            header |= ORDERED;
        }
        let mut land = |words: &mut Slot, landing: Option<Landing>| {
            if let Some(landing) = landing {
                header |= FETCH;
                words[6] = u64::from(landing.lap) << 32 | u64::from(landing.slot);
            }
        };
        let mut remote = Remote::default();
        let transfer = |words: &mut Slot, local: Local| {
            words[2] = local.address;
            words[3] = u64::from(local.length) << 32 | u64::from(local.key.to_be());
        };
        let code = match self.request {
            Request::Transfer(Transfer::Write { source, target }) => {
                transfer(&mut words, source);
                remote = target;
                code::WRITE
            }
            Request::Transfer(Transfer::WriteInline { payload, target }) => {
                remote = target;
                for (word, chunk) in words[2..].iter_mut().zip(payload.as_slice().chunks(8)) {
                    let mut bytes = [0; 8];
                    bytes[..chunk.len()].copy_from_slice(chunk);
                    *word = u64::from_le_bytes(bytes);
                }
                words[1] = (payload.as_slice().len() as u64) << LENGTH_SHIFT;
                code::WRITE_INLINE
            }
            Request::Transfer(Transfer::Read { target, source }) => {
                transfer(&mut words, target);
                remote = source;
                code::READ
            }
            Request::Fetch { landing, bytes, source } => {
                words[3] = u64::from(bytes) << 32;
                land(&mut words, Some(landing));
                remote = source;
                code::READ
            }
            Request::Atomic { operands, width, landing, target } => {
                land(&mut words, landing);
                if width == Width::Eight {
                    header |= EIGHT;
                }
                remote = target;
                match operands {
                    Atomic::Add { value, boundary } => {
                        words[2] = value;
                        words[3] = boundary;
                        if boundary == 0 && width == Width::Eight { code::FETCH_ADD } else { code::MASKED_FETCH_ADD }
                    }
                    Atomic::CompareSwap { swap, compare, swap_mask, compare_mask } => {
                        words[2] = swap;
                        words[3] = compare;
                        words[4] = swap_mask;
                        words[5] = compare_mask;
                        let plain = swap_mask & compare_mask == u64::MAX;
                        if plain { code::COMPARE_SWAP } else { code::MASKED_COMPARE_SWAP }
                    }
                }
            }
            Request::Fence => code::FENCE,
            Request::Flush => code::FLUSH,
        };
        words[0] = header | code << 8 | u64::from(remote.key.to_be()) << KEY_SHIFT;
        words[1] |= u64::from(self.queue) << QUEUE_SHIFT | remote.address & ADDRESS_MASK;
        words
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_remote() -> impl Strategy<Value = Remote> {
        (0u64..1 << 45, any::<u32>()).prop_map(|(address, key)| Remote { address: address * 8, key })
    }

    fn any_local() -> impl Strategy<Value = Local> {
        (any::<u64>(), any::<u32>(), any::<u32>()).prop_map(|(address, length, key)| Local { address, length, key })
    }

    fn any_landing() -> impl Strategy<Value = Landing> {
        (any::<u32>(), any::<u32>()).prop_map(|(slot, lap)| Landing { slot, lap })
    }

    pub(crate) fn any_operands() -> impl Strategy<Value = Atomic> {
        prop_oneof![
            (any::<u64>(), prop_oneof![Just(0), Just(u64::MAX), any::<u64>()])
                .prop_map(|(value, boundary)| Atomic::Add { value, boundary }),
            (any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>()).prop_map(
                |(swap, compare, swap_mask, compare_mask)| Atomic::CompareSwap {
                    swap,
                    compare,
                    swap_mask,
                    compare_mask
                }
            ),
            (any::<u64>(), any::<u64>()).prop_map(|(swap, compare)| Atomic::compare_swap(compare, swap)),
        ]
    }

    fn any_request() -> impl Strategy<Value = Request> {
        let width = prop_oneof![Just(Width::Four), Just(Width::Eight)];
        prop_oneof![
            (any_local(), any_remote())
                .prop_map(|(source, target)| Request::Transfer(Transfer::Write { source, target })),
            (proptest::collection::vec(any::<u8>(), 0..=PAYLOAD_BYTES), any_remote()).prop_map(|(bytes, target)| {
                let mut all = [0; PAYLOAD_BYTES];
                all[..bytes.len()].copy_from_slice(&bytes);
                let payload = Payload::new(all, bytes.len());
                Request::Transfer(Transfer::WriteInline { payload, target })
            }),
            (any_local(), any_remote())
                .prop_map(|(target, source)| Request::Transfer(Transfer::Read { target, source })),
            (any_landing(), any::<u32>(), any_remote()).prop_map(|(landing, bytes, source)| Request::Fetch {
                landing,
                bytes,
                source
            }),
            (any_operands(), width, proptest::option::of(any_landing()), any_remote())
                .prop_map(|(operands, width, landing, target)| Request::Atomic { operands, width, landing, target }),
            Just(Request::Fence),
            Just(Request::Flush),
        ]
    }

    pub(crate) fn any_descriptor() -> impl Strategy<Value = Descriptor> {
        (0..MAX_PES, 0..MAX_QUEUES, any::<bool>(), any_request()).prop_map(|(pe, queue, ordered, request)| Descriptor {
            pe,
            queue,
            ordered,
            request,
        })
    }

    proptest! {
        #[test]
        fn decode_inverts_encode(descriptor in any_descriptor()) {
            let words = descriptor.encode();
            prop_assert_eq!(words[0] & 0xff, 0);
            prop_assert_eq!(Descriptor::decode(&words).unwrap(), descriptor);
        }

        #[test]
        fn seals_hide_nothing(words in any::<Slot>(), tag in 0u64..2) {
            let mut words = words;
            words[0] &= !0xff;
            let sealed = seal(words, tag);
            prop_assert!(sealed.iter().all(|word| word & 1 == tag));
            prop_assert_eq!(unseal(sealed), words);
        }

        #[test]
        fn any_words_decode_or_not(words in any::<Slot>()) {
            let _ = Descriptor::decode(&words);
        }
    }

    #[test]
    fn tags_flip_from_lap_to_lap() {
        assert_eq!([0, 7, 8, 15, 16].map(|index| tag(index, 3)), [1, 1, 0, 0, 1]);
        assert_eq!(tag(u64::MAX, 3), 0);
    }
}
