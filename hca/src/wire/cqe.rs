//! Completion queue element of 64 bytes, and its error form (`struct mlx5_cqe64`, `struct
//! mlx5_err_cqe`).
//!
//! Only what a requester of an RC QP gets: a completion, or an error. `wqe_counter` is the 16-bit
//! index of the WQE's first block.

use super::{Error, Result, get16, get32, get64, put16, put32, put64, segment};
use core::fmt;

mod field {
    pub const BYTE_CNT: usize = 44;
    pub const TIMESTAMP: usize = 48;
    pub const SOP_DROP_QPN: usize = 56;
    pub const WQE_COUNTER: usize = 60;
    pub const SIGNATURE: usize = 62;
    pub const OP_OWN: usize = 63;
    // Error form.
    pub const VENDOR_ERR_SYND: usize = 54;
    pub const SYNDROME: usize = 55;
}

segment!("cqe", 64);

/// Where the part begins that is written last, in one 8-byte store: a reader of `wqe_counter` or
/// `op_own` then finds the body complete.
pub const TAIL_OFFSET: usize = field::SOP_DROP_QPN;

/// Where the 8-byte word begins that ends with the vendor's syndrome and the syndrome, in the error
/// form.
pub const SYNDROME_WORD: usize = field::SYNDROME - 7;

/// The byte with which software fills a CQ before use. It reads as opcode [`INVALID`] and counter
/// 0xffff: nothing done yet.
pub const INITIAL_BYTE: u8 = 0xff;

/// `MLX5_CQE_REQ`: a requester's completion.
pub const REQ: u8 = 0x0;
/// `MLX5_CQE_REQ_ERR`: a requester's error.
pub const REQ_ERR: u8 = 0xd;
/// `MLX5_CQE_INVALID`: not written yet.
pub const INVALID: u8 = 0xf;

/// Why a WQE failed (`MLX5_CQE_SYNDROME_*`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Syndrome {
    /// A length is wrong for the operation or above the limit.
    LocalLength = 0x01,
    /// The WQE is malformed, or not allowed on this QP.
    LocalQpOperation = 0x02,
    /// A local key does not cover the local memory.
    LocalProtection = 0x04,
    /// The QP was in error when the WQE's turn came.
    WrFlush = 0x05,
    /// Memory window binding.
    MemoryWindowBind = 0x06,
    /// The responder answered nonsense.
    BadResponse = 0x10,
    /// Local access, at the responder.
    LocalAccess = 0x11,
    /// The responder does not accept such a request.
    RemoteInvalidRequest = 0x12,
    /// The remote key does not cover the remote memory, or lacks the right.
    RemoteAccess = 0x13,
    /// The responder could not carry out the operation.
    RemoteOperation = 0x14,
    /// No answer within the QP's retry budget.
    RetryExceeded = 0x15,
    /// Receiver not ready, retries used up.
    RnrRetryExceeded = 0x16,
    /// Remote aborted.
    RemoteAborted = 0x22,
}

impl Syndrome {
    /// Returns the syndrome with this number, if known.
    pub const fn from_u8(value: u8) -> Option<Self> {
        Some(match value {
            0x01 => Self::LocalLength,
            0x02 => Self::LocalQpOperation,
            0x04 => Self::LocalProtection,
            0x05 => Self::WrFlush,
            0x06 => Self::MemoryWindowBind,
            0x10 => Self::BadResponse,
            0x11 => Self::LocalAccess,
            0x12 => Self::RemoteInvalidRequest,
            0x13 => Self::RemoteAccess,
            0x14 => Self::RemoteOperation,
            0x15 => Self::RetryExceeded,
            0x16 => Self::RnrRetryExceeded,
            0x22 => Self::RemoteAborted,
            _ => return None,
        })
    }

    /// Returns what it says, in words.
    pub const fn text(self) -> &'static str {
        match self {
            Self::LocalLength => "local length error",
            Self::LocalQpOperation => "local QP operation error",
            Self::LocalProtection => "local protection error",
            Self::WrFlush => "work request flushed",
            Self::MemoryWindowBind => "memory window bind error",
            Self::BadResponse => "bad response error",
            Self::LocalAccess => "local access error",
            Self::RemoteInvalidRequest => "remote invalid request",
            Self::RemoteAccess => "remote access error",
            Self::RemoteOperation => "remote operation error",
            Self::RetryExceeded => "transport retry exceeded",
            Self::RnrRetryExceeded => "receiver-not-ready retry exceeded",
            Self::RemoteAborted => "remote aborted",
        }
    }
}

impl fmt::Display for Syndrome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({:#04x})", self.text(), *self as u8)
    }
}

impl<T: AsRef<[u8]>> Segment<T> {
    /// Returns the bytes moved.
    pub fn byte_cnt(&self) -> u32 {
        get32(self.bytes(), field::BYTE_CNT)
    }

    /// Returns the time stamp. Not part of the error form.
    pub fn timestamp(&self) -> u64 {
        get64(self.bytes(), field::TIMESTAMP)
    }

    /// Returns the vendor's syndrome. Only in the error form.
    pub fn vendor_err_synd(&self) -> u8 {
        self.bytes()[field::VENDOR_ERR_SYND]
    }

    /// Returns the syndrome. Only in the error form.
    pub fn syndrome(&self) -> u8 {
        self.bytes()[field::SYNDROME]
    }

    /// Returns the opcode of the WQE.
    pub fn wqe_opcode(&self) -> u8 {
        self.bytes()[field::SOP_DROP_QPN]
    }

    /// Returns the QP number.
    pub fn qpn(&self) -> u32 {
        get32(self.bytes(), field::SOP_DROP_QPN) & 0xff_ffff
    }

    /// Returns the index of the WQE's first block.
    pub fn wqe_counter(&self) -> u16 {
        get16(self.bytes(), field::WQE_COUNTER)
    }

    /// Returns the signature.
    pub fn signature(&self) -> u8 {
        self.bytes()[field::SIGNATURE]
    }

    /// Returns opcode, format, solicited bit and owner.
    pub fn op_own(&self) -> u8 {
        self.bytes()[field::OP_OWN]
    }

    /// Returns the CQE's opcode.
    pub fn opcode(&self) -> u8 {
        self.op_own() >> 4
    }

    /// Returns the owner bit.
    pub fn owner(&self) -> bool {
        self.op_own() & 1 != 0
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Segment<T> {
    /// Sets the bytes moved.
    pub fn set_byte_cnt(&mut self, value: u32) {
        put32(self.bytes_mut(), field::BYTE_CNT, value);
    }

    /// Sets the time stamp.
    pub fn set_timestamp(&mut self, value: u64) {
        put64(self.bytes_mut(), field::TIMESTAMP, value);
    }

    /// Sets both syndromes.
    pub fn set_syndromes(&mut self, vendor: u8, syndrome: u8) {
        self.bytes_mut()[field::VENDOR_ERR_SYND] = vendor;
        self.bytes_mut()[field::SYNDROME] = syndrome;
    }

    /// Sets the opcode of the WQE and the QP number.
    pub fn set_sop_drop_qpn(&mut self, opcode: u8, qpn: u32) {
        put32(self.bytes_mut(), field::SOP_DROP_QPN, u32::from(opcode) << 24 | qpn & 0xff_ffff);
    }

    /// Sets the index of the WQE's first block.
    pub fn set_wqe_counter(&mut self, value: u16) {
        put16(self.bytes_mut(), field::WQE_COUNTER, value);
    }

    /// Sets opcode and owner.
    pub fn set_op_own(&mut self, opcode: u8, owner: bool) {
        self.bytes_mut()[field::OP_OWN] = opcode << 4 | u8::from(owner);
    }
}

/// A decoded CQE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Repr {
    /// Opcode of the WQE.
    pub wqe_opcode: u8,
    /// QP number.
    pub qpn: u32,
    /// 16-bit index of the WQE's first block.
    pub wqe_counter: u16,
    /// Owner bit: flips each time the queue wraps.
    pub owner: bool,
    /// What happened.
    pub status: Status,
}

/// The part in which completions and errors differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// Done.
    Done {
        /// Bytes moved.
        byte_cnt: u32,
        /// Free-running time stamp.
        timestamp: u64,
    },
    /// Failed.
    Error {
        /// `MLX5_CQE_SYNDROME_*`, see [`Syndrome`].
        syndrome: u8,
        /// Detail known to the vendor.
        vendor_syndrome: u8,
    },
}

impl Repr {
    /// Decodes. `Ok(None)` if the entry has not been written yet.
    pub fn parse<T: AsRef<[u8]>>(segment: &Segment<T>) -> Result<Option<Self>> {
        let status = match segment.opcode() {
            REQ => Status::Done { byte_cnt: segment.byte_cnt(), timestamp: segment.timestamp() },
            REQ_ERR => Status::Error { syndrome: segment.syndrome(), vendor_syndrome: segment.vendor_err_synd() },
            INVALID => return Ok(None),
            other => {
                return Err(Error {
                    field: "cqe.op_own.opcode",
                    value: u64::from(other),
                    rule: "a requester gets 0x0 (completion) or 0xd (error)",
                });
            }
        };
        Ok(Some(Self {
            wqe_opcode: segment.wqe_opcode(),
            qpn: segment.qpn(),
            wqe_counter: segment.wqe_counter(),
            owner: segment.owner(),
            status,
        }))
    }

    /// Encodes all 64 bytes.
    pub fn emit<T: AsRef<[u8]> + AsMut<[u8]>>(&self, segment: &mut Segment<T>) {
        segment.bytes_mut()[..LEN].fill(0);
        let opcode = match self.status {
            Status::Done { byte_cnt, timestamp } => {
                segment.set_byte_cnt(byte_cnt);
                segment.set_timestamp(timestamp);
                REQ
            }
            Status::Error { syndrome, vendor_syndrome } => {
                segment.set_syndromes(vendor_syndrome, syndrome);
                REQ_ERR
            }
        };
        segment.set_sop_drop_qpn(self.wqe_opcode, self.qpn);
        segment.set_wqe_counter(self.wqe_counter);
        segment.set_op_own(opcode, self.owner);
    }
}

impl fmt::Display for Repr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "qp={:#x} idx={} opcode={:#04x} owner={}",
            self.qpn,
            self.wqe_counter,
            self.wqe_opcode,
            u8::from(self.owner)
        )?;
        match self.status {
            Status::Done { byte_cnt, .. } => write!(f, " ok len={byte_cnt}"),
            Status::Error { syndrome, vendor_syndrome } => {
                let text = Syndrome::from_u8(syndrome).map_or("unknown", Syndrome::text);
                write!(f, " error={syndrome:#04x} ({text}) vendor={vendor_syndrome:#04x}")
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_status() -> impl Strategy<Value = Status> {
        prop_oneof![
            (any::<u32>(), any::<u64>()).prop_map(|(byte_cnt, timestamp)| Status::Done { byte_cnt, timestamp }),
            (any::<u8>(), any::<u8>())
                .prop_map(|(syndrome, vendor_syndrome)| Status::Error { syndrome, vendor_syndrome }),
        ]
    }

    proptest! {
        #[test]
        fn parse_inverts_emit(
            wqe_opcode in any::<u8>(), qpn in 0u32..1 << 24, wqe_counter in any::<u16>(), owner in any::<bool>(),
            status in any_status(),
        ) {
            let repr = Repr { wqe_opcode, qpn, wqe_counter, owner, status };
            let mut bytes = [0xaau8; LEN];
            repr.emit(&mut Segment::new_unchecked(&mut bytes[..]));
            prop_assert_eq!(Repr::parse(&Segment::new_checked(&bytes[..]).unwrap()).unwrap(), Some(repr));
        }
    }

    #[test]
    fn a_fresh_entry_says_nothing() {
        let bytes = [INITIAL_BYTE; LEN];
        let segment = Segment::new_checked(&bytes[..]).unwrap();
        assert_eq!(Repr::parse(&segment).unwrap(), None);
        assert_eq!(segment.wqe_counter(), 0xffff);
    }

    #[test]
    fn other_opcodes_are_refused() {
        let mut bytes = [0u8; LEN];
        bytes[63] = 0x20;
        assert!(Repr::parse(&Segment::new_checked(&bytes[..]).unwrap()).is_err());
    }
}
