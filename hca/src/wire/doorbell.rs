//! The 8-byte value stored to a doorbell register in a UAR page.
//!
//! It is the start of a control segment. libmlx5 stores that of the last WQE: opmod, index, opcode;
//! QP number, ds. Software that knows only its producer index may store `{be32(index << 8),
//! be32(qpn << 8)}`. The HCA takes QP number and producer index from it; the doorbell record is for
//! recovery, when a doorbell was lost (DOCA GPUNetIO; rdma-core writes both for every post). A card
//! is not obliged to look at the record alone. Registers start at [`FIRST_REGISTER`] of a page; the
//! size of one is `1 << log_bf_reg_size`, and two alternate buffers make the stride (rdma-core:
//! `MLX5_BF_OFFSET`, `MLX5_DB_BLUEFLAME_BUFFER_SIZE`).

use super::{Result, check_zero, get16, get32, put32, segment};
use core::fmt;

mod field {
    pub const OPMOD_IDX_OPCODE: usize = 0;
    pub const QPN_DS: usize = 4;
}

/// Offset of the first register in a UAR page (`MLX5_BF_OFFSET`).
pub const FIRST_REGISTER: usize = 0x800;

/// Offset in a UAR page of the register for QPs without a doorbell record
/// ([`SendDbrMode::NoDbrExt`](crate::prm::qpc::SendDbrMode::NoDbrExt)): rdma-core,
/// `tests/mlx5_base.py`, `DB_BF_DBR_LESS_BUF_OFFSET`; DOCA GPUNetIO, `src/doca_verbs_uar.cpp`.
/// There is one in a page, which any number of QPs share.
pub const WITHOUT_RECORD: usize = 0x600;

segment!("doorbell", 8);

impl<T: AsRef<[u8]>> Segment<T> {
    /// Returns the opcode modifier.
    pub fn opmod(&self) -> u8 {
        self.bytes()[field::OPMOD_IDX_OPCODE]
    }

    /// Returns the index.
    pub fn index(&self) -> u16 {
        get16(self.bytes(), field::OPMOD_IDX_OPCODE + 1)
    }

    /// Returns the opcode.
    pub fn opcode(&self) -> u8 {
        self.bytes()[field::OPMOD_IDX_OPCODE + 3]
    }

    /// Returns the QP number.
    pub fn qpn(&self) -> u32 {
        get32(self.bytes(), field::QPN_DS) >> 8
    }

    /// Returns the byte after the QP number.
    pub fn ds_byte(&self) -> u8 {
        self.bytes()[field::QPN_DS + 3]
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

    /// Sets the QP number and the byte after it.
    pub fn set_qpn_ds(&mut self, qpn: u32, ds: u8) {
        put32(self.bytes_mut(), field::QPN_DS, qpn << 8 | u32::from(ds));
    }
}

/// A decoded doorbell value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Repr {
    /// Opcode modifier of the last WQE, or 0.
    pub opmod: u8,
    /// Index of the last WQE, or the producer index.
    pub index: u16,
    /// Opcode of the last WQE, or 0.
    pub opcode: u8,
    /// 24-bit QP number.
    pub qpn: u32,
    /// Size of the last WQE in 16-byte units, or 0.
    pub ds: u8,
}

impl Repr {
    /// Returns the value that names only the producer index.
    pub const fn producer(index: u16, qpn: u32) -> Self {
        Self { opmod: 0, index, opcode: 0, qpn, ds: 0 }
    }

    /// Returns the producer index that it names, modulo 2^16: of a QP without a doorbell record all
    /// that the card learns. Software rings either with its producer index (DOCA GPUNetIO,
    /// `doca_gpu_dev_verbs_submit_db_no_dbr`), and then `ds` is 0, or with the start of its last
    /// WQE (rdma-core, `tests/mlx5_base.py`, `post_send`), which ends `ds` units of 16 bytes
    /// further.
    pub fn producer_index(&self) -> u16 {
        self.index.wrapping_add(u16::from(self.ds.div_ceil(4)))
    }

    /// Decodes, refusing reserved bits.
    pub fn parse<T: AsRef<[u8]>>(segment: &Segment<T>) -> Result<Self> {
        check_zero("doorbell.qpn_ds[7:6]", u64::from(segment.ds_byte() >> 6))?;
        Ok(Self {
            opmod: segment.opmod(),
            index: segment.index(),
            opcode: segment.opcode(),
            qpn: segment.qpn(),
            ds: segment.ds_byte(),
        })
    }

    /// Encodes into `segment`.
    #[inline]
    pub fn emit<T: AsRef<[u8]> + AsMut<[u8]>>(&self, segment: &mut Segment<T>) {
        segment.set_opmod_idx_opcode(self.opmod, self.index, self.opcode);
        segment.set_qpn_ds(self.qpn, self.ds);
    }

    /// Returns the register's value as a host integer whose memory image is the wire format.
    #[inline]
    pub fn to_register(&self) -> u64 {
        let mut bytes = [0u8; LEN];
        self.emit(&mut Segment::new_unchecked(&mut bytes[..]));
        u64::from_ne_bytes(bytes)
    }

    /// Decodes a register's value.
    pub fn from_register(value: u64) -> Result<Self> {
        Self::parse(&Segment::new_unchecked(value.to_ne_bytes()))
    }
}

impl fmt::Display for Repr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "qp={:#x} idx={}", self.qpn, self.index)?;
        if self.ds != 0 {
            write!(f, " opcode={:#04x} ds={}", self.opcode, self.ds)?;
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn both_ways(value in any::<u64>()) {
            match Repr::from_register(value) {
                Ok(repr) => prop_assert_eq!(repr.to_register(), value),
                Err(_) => prop_assert!(value.to_ne_bytes()[7] >= 0x40),
            }
        }
    }

    #[test]
    fn both_forms_name_the_producer_index() {
        let of_wqe = |index, ds| Repr { opmod: 0, index, opcode: 8, qpn: 0x40, ds };
        assert_eq!(Repr::producer(7, 0x40).producer_index(), 7);
        assert_eq!(of_wqe(7, 4).producer_index(), 8);
        assert_eq!(of_wqe(0xffff, 5).producer_index(), 1);
    }

    #[test]
    fn producer_form() {
        let bytes = Repr::producer(0x1234, 0xabcdef).to_register().to_ne_bytes();
        assert_eq!(bytes, [0, 0x12, 0x34, 0, 0xab, 0xcd, 0xef, 0]);
    }
}
