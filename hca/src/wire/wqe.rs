//! A whole work queue element: control segment and what follows it, by opcode.
//!
//! | operation | segments | `ds` |
//! |---|---|---|
//! | NOP | ctrl (the rest of its block is not read) | 1..=4 |
//! | DUMP | ctrl, data | 2 |
//! | RDMA_WRITE, RDMA_READ | ctrl, raddr, data or nothing | 3 or 2 |
//! | RDMA_WRITE inline | ctrl, raddr, inline header and payload | 2 + ceil((4 + n) / 16) |
//! | ATOMIC_FA, ATOMIC_CS | ctrl, raddr, atomic, data | 4 |
//! | MASKED_FA, 4-byte MASKED_CS | ctrl, raddr, masked atomic, data | 4 |
//! | 8-byte MASKED_CS | ctrl, raddr, masked atomic (32 bytes), data | 5 |
//!
//! A WQE starts at a 64-byte block and takes as many as it needs; in the queue it may wrap from the
//! last block to the first.

use super::ctrl::{Fence, Opcode};
use super::{
    BLOCK_BYTES, Error, MAX_WQE_BYTES, OCTOWORD_BYTES, Result, atomic, check_len, check_zero, ctrl, data, inline,
    masked_atomic, raddr,
};
use core::fmt;
use oxshmem_system::words::low8;

/// The largest inline payload that fits the longest WQE and the inline header's counter, in bytes.
pub const MAX_INLINE: usize = 63 * OCTOWORD_BYTES - 2 * OCTOWORD_BYTES - inline::HEADER_LEN;

/// A decoded WQE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wqe<'a> {
    /// Index of the first block, modulo 2^16.
    pub index: u16,
    /// 24-bit QP number.
    pub qpn: u32,
    /// Fence mode.
    pub fence: Fence,
    /// Whether a CQE is written on success.
    pub signaled: bool,
    /// Whether the responder gets a solicited event.
    pub solicited: bool,
    /// What to do.
    pub op: Op<'a>,
}

/// What a WQE does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op<'a> {
    /// Nothing. `ds` is kept because it may say more than the control segment.
    Nop {
        /// Size in 16-byte units, 1..=4.
        ds: u8,
    },
    /// Read local memory and drop it.
    Dump {
        /// What to read.
        local: data::Repr,
    },
    /// Write local memory to remote memory.
    Write {
        /// Where to.
        remote: raddr::Repr,
        /// What; `None` for a write of no bytes.
        local: Option<data::Repr>,
    },
    /// Write bytes of the WQE to remote memory.
    WriteInline {
        /// Where to.
        remote: raddr::Repr,
        /// What.
        payload: &'a [u8],
    },
    /// Read remote memory into local memory.
    Read {
        /// Where from.
        remote: raddr::Repr,
        /// Where to; `None` for a read of no bytes.
        local: Option<data::Repr>,
    },
    /// 8-byte fetch and add; the old value goes to `local`.
    AtomicFa {
        /// The word.
        remote: raddr::Repr,
        /// The addend.
        add: u64,
        /// 8 bytes for the old value.
        local: data::Repr,
    },
    /// 8-byte compare and swap; the old value goes to `local`.
    AtomicCs {
        /// The word.
        remote: raddr::Repr,
        /// What must be there.
        compare: u64,
        /// What to store.
        swap: u64,
        /// 8 bytes for the old value.
        local: data::Repr,
    },
    /// Masked fetch and add, or masked compare and swap; the old value goes to `local`.
    Masked {
        /// The word.
        remote: raddr::Repr,
        /// Operation, width and operands.
        operands: masked_atomic::Repr,
        /// The operand: as many bytes as the operation is wide.
        local: data::Repr,
    },
}

impl Op<'_> {
    /// Returns the opcode.
    #[inline]
    pub const fn opcode(&self) -> Opcode {
        match self {
            Self::Nop { .. } => Opcode::Nop,
            Self::Dump { .. } => Opcode::Dump,
            Self::Write { .. } | Self::WriteInline { .. } => Opcode::RdmaWrite,
            Self::Read { .. } => Opcode::RdmaRead,
            Self::AtomicFa { .. } => Opcode::AtomicFa,
            Self::AtomicCs { .. } => Opcode::AtomicCs,
            Self::Masked { operands, .. } => {
                if operands.is_fetch_add() {
                    Opcode::AtomicMaskedFa
                } else {
                    Opcode::AtomicMaskedCs
                }
            }
        }
    }

    /// Returns the opcode modifier.
    #[inline]
    pub const fn opmod(&self) -> u8 {
        match self {
            Self::Masked { operands, .. } => operands.opmod(),
            _ => 0,
        }
    }

    /// Returns the size in 16-byte units.
    #[inline]
    pub const fn ds(&self) -> usize {
        match self {
            Self::Nop { ds } => *ds as usize,
            Self::Dump { .. } => 2,
            Self::Write { local, .. } | Self::Read { local, .. } => {
                if local.is_some() {
                    3
                } else {
                    2
                }
            }
            Self::WriteInline { payload, .. } => 2 + (inline::HEADER_LEN + payload.len()).div_ceil(OCTOWORD_BYTES),
            Self::AtomicFa { .. } | Self::AtomicCs { .. } => 4,
            Self::Masked { operands, .. } => 3 + operands.len() / OCTOWORD_BYTES,
        }
    }

    /// Returns the remote address segment, if the operation has one.
    pub const fn remote(&self) -> Option<raddr::Repr> {
        match self {
            Self::Nop { .. } | Self::Dump { .. } => None,
            Self::Write { remote, .. }
            | Self::WriteInline { remote, .. }
            | Self::Read { remote, .. }
            | Self::AtomicFa { remote, .. }
            | Self::AtomicCs { remote, .. }
            | Self::Masked { remote, .. } => Some(*remote),
        }
    }
}

impl<'a> Wqe<'a> {
    /// Returns a WQE without fence and solicited event.
    pub const fn new(qpn: u32, index: u16, signaled: bool, op: Op<'a>) -> Self {
        Self { index, qpn, fence: Fence::None, signaled, solicited: false, op }
    }

    /// Returns the size in blocks.
    #[inline]
    pub const fn blocks(&self) -> usize {
        (self.op.ds() * OCTOWORD_BYTES).div_ceil(BLOCK_BYTES)
    }

    /// Returns the control segment.
    #[inline]
    pub fn ctrl(&self) -> ctrl::Repr {
        ctrl::Repr {
            opcode: self.op.opcode(),
            opmod: self.op.opmod(),
            index: self.index,
            qpn: self.qpn,
            ds: low8(self.op.ds() as u64),
            fence: self.fence,
            signaled: self.signaled,
            solicited: self.solicited,
        }
    }

    /// Decodes a WQE whose first byte is the first of `bytes`, refusing everything that its format
    /// does not allow.
    ///
    /// `bytes` holds at least the `ds` units that the control segment announces.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self> {
        let head = ctrl::Repr::parse(&ctrl::Segment::new_checked(bytes)?)?;
        let len = usize::from(head.ds) * OCTOWORD_BYTES;
        check_len("wqe", bytes.len(), len)?;
        let bytes = &bytes[..len];
        let op = match head.opcode {
            Opcode::AtomicMaskedFa => {
                check_ds(&head, 4, "must be 4: ctrl, raddr, masked atomic, data")?;
                let operands = masked_atomic::Repr::parse_fetch_add(head.opmod, &bytes[32..])?;
                Op::Masked { remote: remote(bytes)?, operands, local: local(&bytes[48..])? }
            }
            Opcode::AtomicMaskedCs => {
                let (ds, rule) = match head.opmod {
                    masked_atomic::OPMOD_8_BYTES => (5, "must be 5: ctrl, raddr, masked atomic of 32 bytes, data"),
                    _ => (4, "must be 4: ctrl, raddr, masked atomic, data"),
                };
                check_ds(&head, ds, rule)?;
                let operands = masked_atomic::Repr::parse_compare_swap(head.opmod, &bytes[32..])?;
                let at = 32 + operands.len();
                Op::Masked { remote: remote(bytes)?, operands, local: local(&bytes[at..])? }
            }
            opcode => {
                check_zero("ctrl.opmod_idx_opcode.opmod", u64::from(head.opmod))?;
                match opcode {
                    Opcode::Nop => {
                        if head.ds > 4 {
                            return Err(wrong_ds(&head, "a NOP has one block: 1..=4"));
                        }
                        Op::Nop { ds: head.ds }
                    }
                    Opcode::Dump => {
                        check_ds(&head, 2, "must be 2: ctrl, data")?;
                        Op::Dump { local: local(&bytes[16..])? }
                    }
                    Opcode::RdmaWrite => match head.ds {
                        0 | 1 => return Err(wrong_ds(&head, "at least 2: ctrl, raddr")),
                        2 => Op::Write { remote: remote(bytes)?, local: None },
                        ds if bytes[32] & 0x80 != 0 => {
                            let payload = inline::Repr::parse(&inline::Segment::new_checked(&bytes[32..])?)?;
                            if usize::from(ds) != 2 + payload.octowords() {
                                return Err(wrong_ds(&head, "must be 2 + ceil((4 + inline byte count) / 16)"));
                            }
                            Op::WriteInline { remote: remote(bytes)?, payload: payload.payload }
                        }
                        3 => Op::Write { remote: remote(bytes)?, local: Some(local(&bytes[32..])?) },
                        _ => {
                            return Err(wrong_ds(
                                &head,
                                "2 (no data) or 3 (one data segment); gather lists are not executed",
                            ));
                        }
                    },
                    Opcode::RdmaRead => match head.ds {
                        2 => Op::Read { remote: remote(bytes)?, local: None },
                        3 => Op::Read { remote: remote(bytes)?, local: Some(local(&bytes[32..])?) },
                        _ => {
                            return Err(wrong_ds(
                                &head,
                                "2 (no data) or 3 (one data segment); scatter lists are not executed",
                            ));
                        }
                    },
                    // Only the plain 8-byte atomics are left.
                    _ => {
                        check_ds(&head, 4, "must be 4: ctrl, raddr, atomic, data")?;
                        let segment = atomic::Segment::new_unchecked(&bytes[32..48]);
                        let (remote, local) = (remote(bytes)?, local(&bytes[48..])?);
                        let decoded = if opcode == Opcode::AtomicFa {
                            atomic::Repr::parse_fetch_add(&segment)?
                        } else {
                            atomic::Repr::parse_compare_swap(&segment)?
                        };
                        match decoded {
                            atomic::Repr::FetchAdd { add } => Op::AtomicFa { remote, add, local },
                            atomic::Repr::CompareSwap { swap, compare } => {
                                Op::AtomicCs { remote, compare, swap, local }
                            }
                        }
                    }
                }
            }
        };
        Ok(Self {
            index: head.index,
            qpn: head.qpn,
            fence: head.fence,
            signaled: head.signaled,
            solicited: head.solicited,
            op,
        })
    }

    /// Encodes into `bytes`, which must hold [`blocks`](Self::blocks) whole blocks. The bytes after
    /// the last segment are set to 0. Returns the number of blocks.
    ///
    /// # Panics
    /// If `bytes` is too short, or an inline payload is longer than [`MAX_INLINE`].
    #[inline]
    pub fn emit(&self, bytes: &mut [u8]) -> usize {
        assert!(self.op.ds() * OCTOWORD_BYTES < MAX_WQE_BYTES, "a WQE of {} units; the limit is 63", self.op.ds());
        let blocks = self.blocks();
        let bytes = &mut bytes[..blocks * BLOCK_BYTES];
        // Whole blocks, whose size is known: no call for a few bytes.
        for block in bytes.as_chunks_mut::<BLOCK_BYTES>().0 {
            *block = [0; BLOCK_BYTES];
        }
        self.ctrl().emit(&mut ctrl::Segment::new_unchecked(&mut bytes[..16]));
        if let Some(remote) = self.op.remote() {
            remote.emit(&mut raddr::Segment::new_unchecked(&mut bytes[16..32]));
        }
        let put_local = |bytes: &mut [u8], at: usize, local: &data::Repr| {
            local.emit(&mut data::Segment::new_unchecked(&mut bytes[at..at + data::LEN]));
        };
        match &self.op {
            Op::Nop { .. } | Op::Write { local: None, .. } | Op::Read { local: None, .. } => {}
            Op::Dump { local } => put_local(bytes, 16, local),
            Op::Write { local: Some(local), .. } | Op::Read { local: Some(local), .. } => put_local(bytes, 32, local),
            Op::WriteInline { payload, .. } => {
                inline::Repr { payload }.emit(&mut inline::Segment::new_unchecked(&mut bytes[32..]));
            }
            Op::AtomicFa { add, local, .. } => {
                let segment = &mut atomic::Segment::new_unchecked(&mut bytes[32..48]);
                atomic::Repr::FetchAdd { add: *add }.emit(segment);
                put_local(bytes, 48, local);
            }
            Op::AtomicCs { compare, swap, local, .. } => {
                let segment = &mut atomic::Segment::new_unchecked(&mut bytes[32..48]);
                atomic::Repr::CompareSwap { swap: *swap, compare: *compare }.emit(segment);
                put_local(bytes, 48, local);
            }
            Op::Masked { operands, local, .. } => {
                operands.emit(&mut bytes[32..]);
                put_local(bytes, 32 + operands.len(), local);
            }
        }
        blocks
    }
}

#[inline]
fn remote(bytes: &[u8]) -> Result<raddr::Repr> {
    raddr::Repr::parse(&raddr::Segment::new_checked(&bytes[16..])?)
}

#[inline]
fn local(bytes: &[u8]) -> Result<data::Repr> {
    data::Repr::parse(&data::Segment::new_checked(bytes)?)
}

fn wrong_ds(head: &ctrl::Repr, rule: &'static str) -> Error {
    Error { field: "ctrl.qpn_ds.ds", value: u64::from(head.ds), rule }
}

#[inline]
fn check_ds(head: &ctrl::Repr, ds: u8, rule: &'static str) -> Result<()> {
    if head.ds == ds { Ok(()) } else { Err(wrong_ds(head, rule)) }
}

impl fmt::Display for Wqe<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match &self.op {
            Op::Nop { .. } => "NOP",
            Op::Dump { .. } => "DUMP",
            Op::Write { .. } => "RDMA_WRITE",
            Op::WriteInline { .. } => "RDMA_WRITE(inline)",
            Op::Read { .. } => "RDMA_READ",
            Op::AtomicFa { .. } => "ATOMIC_FA",
            Op::AtomicCs { .. } => "ATOMIC_CS",
            Op::Masked { operands, .. } => {
                if operands.is_fetch_add() {
                    "MASKED_FA"
                } else {
                    "MASKED_CS"
                }
            }
        };
        write!(f, "{name} {}", self.ctrl())?;
        if let Some(remote) = self.op.remote() {
            write!(f, " {remote}")?;
        }
        match &self.op {
            Op::Nop { .. } => Ok(()),
            Op::Write { local: None, .. } | Op::Read { local: None, .. } => f.write_str(" len=0"),
            Op::Dump { local } | Op::Write { local: Some(local), .. } | Op::Read { local: Some(local), .. } => {
                write!(f, " {local}")
            }
            Op::WriteInline { payload, .. } => write!(f, " {}", inline::Repr { payload }),
            Op::AtomicFa { add, local, .. } => write!(f, " {} {local}", atomic::Repr::FetchAdd { add: *add }),
            Op::AtomicCs { compare, swap, local, .. } => {
                write!(f, " {} {local}", atomic::Repr::CompareSwap { swap: *swap, compare: *compare })
            }
            Op::Masked { operands, local, .. } => write!(f, " {operands} {local}"),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_data() -> impl Strategy<Value = data::Repr> {
        (0u32..1 << 31, any::<u32>(), any::<u64>()).prop_map(|(byte_count, lkey, addr)| data::Repr {
            byte_count,
            lkey,
            addr,
        })
    }

    fn any_raddr() -> impl Strategy<Value = raddr::Repr> {
        (any::<u64>(), any::<u32>()).prop_map(|(raddr, rkey)| raddr::Repr { raddr, rkey })
    }

    fn any_masked() -> impl Strategy<Value = masked_atomic::Repr> {
        prop_oneof![
            any::<(u32, u32)>().prop_map(|(add, boundary)| masked_atomic::Repr::FetchAdd4 { add, boundary }),
            any::<(u64, u64)>().prop_map(|(add, boundary)| masked_atomic::Repr::FetchAdd8 { add, boundary }),
            any::<(u32, u32, u32, u32)>().prop_map(|(swap, compare, swap_mask, compare_mask)| {
                masked_atomic::Repr::CompareSwap4 { swap, compare, swap_mask, compare_mask }
            }),
            any::<(u64, u64, u64, u64)>().prop_map(|(swap, compare, swap_mask, compare_mask)| {
                masked_atomic::Repr::CompareSwap8 { swap, compare, swap_mask, compare_mask }
            }),
        ]
    }

    /// Returns all operations; the payload of inline writes is borrowed from the caller.
    fn any_op(payload: &[u8]) -> impl Strategy<Value = Op<'_>> {
        prop_oneof![
            (1u8..=4).prop_map(|ds| Op::Nop { ds }),
            any_data().prop_map(|local| Op::Dump { local }),
            (any_raddr(), proptest::option::of(any_data())).prop_map(|(remote, local)| Op::Write { remote, local }),
            (any_raddr(), 0..=payload.len())
                .prop_map(|(remote, len)| Op::WriteInline { remote, payload: &payload[..len] }),
            (any_raddr(), proptest::option::of(any_data())).prop_map(|(remote, local)| Op::Read { remote, local }),
            (any_raddr(), any::<u64>(), any_data()).prop_map(|(remote, add, local)| Op::AtomicFa {
                remote,
                add,
                local
            }),
            (any_raddr(), any::<u64>(), any::<u64>(), any_data())
                .prop_map(|(remote, compare, swap, local)| Op::AtomicCs { remote, compare, swap, local }),
            (any_raddr(), any_masked(), any_data()).prop_map(|(remote, operands, local)| Op::Masked {
                remote,
                operands,
                local
            }),
        ]
    }

    static PAYLOAD: [u8; MAX_INLINE] = {
        let mut bytes = [0; MAX_INLINE];
        let mut i = 0;
        while i < MAX_INLINE {
            bytes[i] = (i * 7 + 3) as u8;
            i += 1;
        }
        bytes
    };

    proptest! {
        #[test]
        fn parse_inverts_emit(op in any_op(&PAYLOAD), index in any::<u16>(), qpn in 0u32..1 << 24, signaled in any::<bool>()) {
            let wqe = Wqe::new(qpn, index, signaled, op);
            let mut bytes = [0xaau8; MAX_WQE_BYTES];
            let blocks = wqe.emit(&mut bytes);
            prop_assert_eq!(blocks, wqe.blocks());
            prop_assert_eq!(Wqe::parse(&bytes).unwrap(), wqe);
        }

        #[test]
        fn emit_inverts_parse(op in any_op(&PAYLOAD), at in 0usize..MAX_WQE_BYTES * 8, bits in 0usize..4) {
            let mut bytes = [0u8; MAX_WQE_BYTES];
            let len = Wqe::new(0x40, 3, true, op).op.ds() * 16;
            Wqe::new(0x40, 3, true, op).emit(&mut bytes);
            for i in 0..bits {
                let at = (at + i * 37) % (len * 8);
                bytes[at / 8] ^= 1 << (at % 8);
            }
            if let Ok(parsed) = Wqe::parse(&bytes) {
                let mut again = [0xaau8; MAX_WQE_BYTES];
                parsed.emit(&mut again);
                // Bytes after an inline payload or in a NOP are not part of the format.
                let meant = match parsed.op {
                    Op::WriteInline { payload, .. } => 36 + payload.len(),
                    Op::Nop { .. } => 16,
                    _ => parsed.op.ds() * 16,
                };
                prop_assert_eq!(&again[..meant], &bytes[..meant]);
            }
        }

        #[test]
        fn any_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..MAX_WQE_BYTES)) {
            let _ = Wqe::parse(&bytes);
        }
    }

    #[test]
    fn sizes() {
        let remote = raddr::Repr { raddr: 0, rkey: 0 };
        let inline = |n: usize| Op::WriteInline { remote, payload: &PAYLOAD[..n] };
        assert_eq!(Wqe::new(0, 0, false, inline(28)).blocks(), 1);
        assert_eq!(Wqe::new(0, 0, false, inline(29)).blocks(), 2);
        assert_eq!(Wqe::new(0, 0, false, inline(256)).blocks(), 5);
        assert_eq!(Wqe::new(0, 0, false, inline(MAX_INLINE)).op.ds(), 63);
    }

    #[test]
    fn wrong_sizes_are_named() {
        let local = data::Repr { byte_count: 8, lkey: 0, addr: 0 };
        let remote = raddr::Repr { raddr: 0, rkey: 0 };
        let ops = [
            Op::Dump { local },
            Op::Read { remote, local: Some(local) },
            Op::Write { remote, local: Some(local) },
            Op::WriteInline { remote, payload: &PAYLOAD[..8] },
            Op::AtomicFa { remote, add: 1, local },
            Op::Masked {
                remote,
                operands: masked_atomic::Repr::CompareSwap8 { swap: 0, compare: 0, swap_mask: 0, compare_mask: 0 },
                local,
            },
        ];
        for op in ops {
            let mut bytes = [0u8; MAX_WQE_BYTES];
            let wqe = Wqe::new(1, 0, false, op);
            wqe.emit(&mut bytes);
            bytes[7] = wqe.op.ds() as u8 + 2;
            assert_eq!(Wqe::parse(&bytes).unwrap_err().field, "ctrl.qpn_ds.ds", "{wqe}");
        }
    }
}
