//! Control segment, the first of every WQE (`struct mlx5_wqe_ctrl_seg`).

use super::{Error, Result, check_zero, get16, get32, put16, put32, segment};
use core::fmt;

mod field {
    pub const OPMOD_IDX_OPCODE: usize = 0;
    pub const QPN_DS: usize = 4;
    pub const SIGNATURE: usize = 8;
    pub const DCI_STREAM_CHANNEL_ID: usize = 9;
    pub const FM_CE_SE: usize = 11;
    pub const IMM: usize = 12;
}

segment!("ctrl", 16);

/// `MLX5_WQE_CTRL_CQ_UPDATE`: write a CQE when the WQE is done.
pub const CQ_UPDATE: u8 = 0x08;
/// `MLX5_WQE_CTRL_SOLICITED`: raise a solicited event at the responder.
pub const SOLICITED: u8 = 0x02;

/// Opcodes of a send queue (`MLX5_OPCODE_*`); those that this crate knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Opcode {
    /// Nothing is done; a CQE may be requested.
    Nop = 0x00,
    /// Write to remote memory.
    RdmaWrite = 0x08,
    /// Read from remote memory.
    RdmaRead = 0x10,
    /// 8-byte compare and swap.
    AtomicCs = 0x11,
    /// 8-byte fetch and add.
    AtomicFa = 0x12,
    /// Masked compare and swap.
    AtomicMaskedCs = 0x14,
    /// Masked fetch and add.
    AtomicMaskedFa = 0x15,
    /// Read local memory and drop it (`MLX5_OPCODE_DUMP` of the Linux driver,
    /// include/linux/mlx5/device.h).
    Dump = 0x23,
}

impl Opcode {
    /// Returns the opcode with this number, if known.
    pub const fn from_u8(value: u8) -> Option<Self> {
        Some(match value {
            0x00 => Self::Nop,
            0x08 => Self::RdmaWrite,
            0x10 => Self::RdmaRead,
            0x11 => Self::AtomicCs,
            0x12 => Self::AtomicFa,
            0x14 => Self::AtomicMaskedCs,
            0x15 => Self::AtomicMaskedFa,
            0x23 => Self::Dump,
            _ => return None,
        })
    }
}

/// Fence mode, bits 7:5 of `fm_ce_se` (`MLX5_FENCE_MODE_*`, include/linux/mlx5/qp.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum Fence {
    /// No fence.
    #[default]
    None = 0,
    /// Start when local operations posted before are complete (UCX PR 11399).
    InitiatorSmall = 1,
    /// Start when reads and atomics posted before are complete (the fence indicator of the
    /// InfiniBand specification; `IBV_SEND_FENCE`).
    Fence = 2,
    /// Start when everything posted before is complete: a round trip (UCX PR 8583).
    StrongOrdering = 3,
    /// Small fence and fence (`MLX5_WQE_CTRL_FENCE`).
    SmallAndFence = 4,
}

impl Fence {
    /// Returns the mode as bits of `fm_ce_se`.
    pub const fn bits(self) -> u8 {
        (self as u8) << 5
    }

    const fn from_bits(bits: u8) -> Option<Self> {
        Some(match bits {
            0 => Self::None,
            1 => Self::InitiatorSmall,
            2 => Self::Fence,
            3 => Self::StrongOrdering,
            4 => Self::SmallAndFence,
            _ => return None,
        })
    }
}

impl<T: AsRef<[u8]>> Segment<T> {
    /// Returns the opcode modifier.
    #[inline]
    pub fn opmod(&self) -> u8 {
        self.bytes()[field::OPMOD_IDX_OPCODE]
    }

    /// Returns the 16-bit index of the WQE's first block.
    #[inline]
    pub fn index(&self) -> u16 {
        get16(self.bytes(), field::OPMOD_IDX_OPCODE + 1)
    }

    /// Returns the opcode.
    #[inline]
    pub fn opcode(&self) -> u8 {
        self.bytes()[field::OPMOD_IDX_OPCODE + 3]
    }

    /// Returns the 24-bit QP number.
    #[inline]
    pub fn qpn(&self) -> u32 {
        get32(self.bytes(), field::QPN_DS) >> 8
    }

    /// Returns the last byte of `qpn_ds`: two reserved bits and the size in 16-byte units.
    #[inline]
    pub fn ds_byte(&self) -> u8 {
        self.bytes()[field::QPN_DS + 3]
    }

    /// Returns the signature byte.
    #[inline]
    pub fn signature(&self) -> u8 {
        self.bytes()[field::SIGNATURE]
    }

    /// Returns the DCI stream channel.
    #[inline]
    pub fn dci_stream_channel_id(&self) -> u16 {
        get16(self.bytes(), field::DCI_STREAM_CHANNEL_ID)
    }

    /// Returns fence mode, completion mode and solicited bit.
    #[inline]
    pub fn fm_ce_se(&self) -> u8 {
        self.bytes()[field::FM_CE_SE]
    }

    /// Returns the immediate.
    #[inline]
    pub fn imm(&self) -> u32 {
        get32(self.bytes(), field::IMM)
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Segment<T> {
    /// Sets opcode modifier, index and opcode.
    pub fn set_opmod_idx_opcode(&mut self, opmod: u8, index: u16, opcode: u8) {
        put32(
            self.bytes_mut(),
            field::OPMOD_IDX_OPCODE,
            u32::from(opmod) << 24 | u32::from(index) << 8 | u32::from(opcode),
        );
    }

    /// Sets the QP number and the size in 16-byte units.
    pub fn set_qpn_ds(&mut self, qpn: u32, ds: u8) {
        put32(self.bytes_mut(), field::QPN_DS, qpn << 8 | u32::from(ds));
    }

    /// Sets the signature byte.
    pub fn set_signature(&mut self, value: u8) {
        self.bytes_mut()[field::SIGNATURE] = value;
    }

    /// Sets the DCI stream channel.
    pub fn set_dci_stream_channel_id(&mut self, value: u16) {
        put16(self.bytes_mut(), field::DCI_STREAM_CHANNEL_ID, value);
    }

    /// Sets fence mode, completion mode and solicited bit.
    pub fn set_fm_ce_se(&mut self, value: u8) {
        self.bytes_mut()[field::FM_CE_SE] = value;
    }

    /// Sets the immediate.
    pub fn set_imm(&mut self, value: u32) {
        put32(self.bytes_mut(), field::IMM, value);
    }
}

/// A decoded control segment of a QP without signatures, streams and immediates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Repr {
    /// What to do.
    pub opcode: Opcode,
    /// Variant of the opcode.
    pub opmod: u8,
    /// Index of the WQE's first block, modulo 2^16, whatever the depth of the queue.
    pub index: u16,
    /// 24-bit QP number.
    pub qpn: u32,
    /// Size of the WQE in 16-byte units, 1..=63.
    pub ds: u8,
    /// Fence mode.
    pub fence: Fence,
    /// Whether a CQE is written on success. On error one is always written.
    pub signaled: bool,
    /// Whether the responder gets a solicited event.
    pub solicited: bool,
}

impl Repr {
    /// Decodes, refusing reserved bits and unknown values.
    #[inline]
    pub fn parse<T: AsRef<[u8]>>(segment: &Segment<T>) -> Result<Self> {
        let opcode = Opcode::from_u8(segment.opcode()).ok_or(Error {
            field: "ctrl.opmod_idx_opcode.opcode",
            value: u64::from(segment.opcode()),
            rule: "not an opcode that this HCA executes",
        })?;
        let ds = segment.ds_byte();
        if ds & 0xc0 != 0 {
            return Err(Error { field: "ctrl.qpn_ds[7:6]", value: u64::from(ds >> 6), rule: "reserved, must be zero" });
        }
        if ds == 0 {
            return Err(Error { field: "ctrl.qpn_ds.ds", value: 0, rule: "must count the control segment too" });
        }
        check_zero("ctrl.signature", u64::from(segment.signature()))?;
        check_zero("ctrl.dci_stream_channel_id", u64::from(segment.dci_stream_channel_id()))?;
        check_zero("ctrl.imm", u64::from(segment.imm()))?;
        let flags = segment.fm_ce_se();
        check_zero("ctrl.fm_ce_se[4,0]", u64::from(flags & 0x11))?;
        let fence = Fence::from_bits(flags >> 5).ok_or(Error {
            field: "ctrl.fm_ce_se.fm",
            value: u64::from(flags >> 5),
            rule: "fence modes are 0..=4",
        })?;
        let signaled = match flags & 0x0c {
            0 => false,
            CQ_UPDATE => true,
            other => {
                return Err(Error {
                    field: "ctrl.fm_ce_se.ce",
                    value: u64::from(other >> 2),
                    rule: "must be 0 (CQE on error only) or 2 (CQ_UPDATE); the CQ has no event queue",
                });
            }
        };
        Ok(Self {
            opcode,
            opmod: segment.opmod(),
            index: segment.index(),
            qpn: segment.qpn(),
            ds,
            fence,
            signaled,
            solicited: flags & SOLICITED != 0,
        })
    }

    /// Encodes into `segment`.
    #[inline]
    pub fn emit<T: AsRef<[u8]> + AsMut<[u8]>>(&self, segment: &mut Segment<T>) {
        segment.set_opmod_idx_opcode(self.opmod, self.index, self.opcode as u8);
        segment.set_qpn_ds(self.qpn, self.ds);
        segment.set_signature(0);
        segment.set_dci_stream_channel_id(0);
        segment.set_fm_ce_se(self.fm_ce_se());
        segment.set_imm(0);
    }

    /// Returns the byte `fm_ce_se`.
    pub const fn fm_ce_se(&self) -> u8 {
        (self.fence as u8) << 5 | if self.signaled { CQ_UPDATE } else { 0 } | if self.solicited { SOLICITED } else { 0 }
    }
}

impl fmt::Display for Repr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "qp={:#x} idx={} ds={}", self.qpn, self.index, self.ds)?;
        if self.signaled {
            f.write_str(" cqe")?;
        }
        if self.solicited {
            f.write_str(" solicited")?;
        }
        match self.fence {
            Fence::None => Ok(()),
            fence => write!(f, " fence={fence:?}"),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    pub(crate) fn any_repr() -> impl Strategy<Value = Repr> {
        let opcode = (0u8..=0x23).prop_filter_map("known", Opcode::from_u8);
        let fence = (0u8..5).prop_filter_map("known", Fence::from_bits);
        (opcode, any::<u8>(), any::<u16>(), 0u32..1 << 24, 1u8..64, fence, any::<bool>(), any::<bool>()).prop_map(
            |(opcode, opmod, index, qpn, ds, fence, signaled, solicited)| Repr {
                opcode,
                opmod,
                index,
                qpn,
                ds,
                fence,
                signaled,
                solicited,
            },
        )
    }

    proptest! {
        #[test]
        fn parse_inverts_emit(repr in any_repr()) {
            let mut bytes = [0xaau8; LEN];
            repr.emit(&mut Segment::new_unchecked(&mut bytes[..]));
            prop_assert_eq!(Repr::parse(&Segment::new_checked(&bytes[..]).unwrap()).unwrap(), repr);
        }

        #[test]
        fn emit_inverts_parse(repr in any_repr(), at in 0usize..LEN * 8, flip in any::<bool>()) {
            let mut bytes = [0u8; LEN];
            repr.emit(&mut Segment::new_unchecked(&mut bytes[..]));
            if flip {
                bytes[at / 8] ^= 1 << (at % 8);
            }
            if let Ok(parsed) = Repr::parse(&Segment::new_unchecked(&bytes[..])) {
                let mut again = [0xaau8; LEN];
                parsed.emit(&mut Segment::new_unchecked(&mut again[..]));
                prop_assert_eq!(again, bytes);
            }
        }
    }

    #[test]
    fn a_wrong_field_is_named() {
        let good = Repr {
            opcode: Opcode::RdmaWrite,
            opmod: 0,
            index: 7,
            qpn: 0x41,
            ds: 3,
            fence: Fence::None,
            signaled: true,
            solicited: false,
        };
        let cases: [(usize, u8, &str); 8] = [
            (3, 0xff, "ctrl.opmod_idx_opcode.opcode"),
            (7, 0x43, "ctrl.qpn_ds[7:6]"),
            (7, 0, "ctrl.qpn_ds.ds"),
            (8, 1, "ctrl.signature"),
            (10, 1, "ctrl.dci_stream_channel_id"),
            (11, 0x01, "ctrl.fm_ce_se[4,0]"),
            (11, 0x0c, "ctrl.fm_ce_se.ce"),
            (15, 1, "ctrl.imm"),
        ];
        for (at, value, field) in cases {
            let mut bytes = [0u8; LEN];
            good.emit(&mut Segment::new_unchecked(&mut bytes[..]));
            bytes[at] = value;
            assert_eq!(Repr::parse(&Segment::new_unchecked(&bytes[..])).unwrap_err().field, field);
        }
        let mut bytes = [0u8; LEN];
        good.emit(&mut Segment::new_unchecked(&mut bytes[..]));
        bytes[11] = 0xa0;
        assert_eq!(Repr::parse(&Segment::new_unchecked(&bytes[..])).unwrap_err().field, "ctrl.fm_ce_se.fm");
        assert!(Segment::new_checked(&bytes[..15]).is_err());
    }
}
