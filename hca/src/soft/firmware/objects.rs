//! The objects that commands create, and what a command is used for.

use crate::port::Gid;
use crate::prm::{Command, Opcode, counter, cq, mkey, pd, qp, uar};
use oxshmem_system::words::{low8, low32};

/// An object that a command created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::soft) enum Object {
    Pd(u32),
    Uar(u32),
    Mkey(u32),
    Cq(u32),
    Qp(u32),
    QCounter(u32),
}

impl Object {
    /// Returns it as a handle.
    pub(in crate::soft) fn to_bits(self) -> u64 {
        let (kind, number) = match self {
            Self::Pd(n) => (1u64, n),
            Self::Uar(n) => (2, n),
            Self::Mkey(n) => (3, n),
            Self::Cq(n) => (4, n),
            Self::Qp(n) => (5, n),
            Self::QCounter(n) => (6, n),
        };
        kind << 32 | u64::from(number)
    }

    /// Decodes a handle.
    pub(in crate::soft) fn from_bits(bits: u64) -> Option<Self> {
        let number = low32(bits);
        Some(match bits >> 32 {
            1 => Self::Pd(number),
            2 => Self::Uar(number),
            3 => Self::Mkey(number),
            4 => Self::Cq(number),
            5 => Self::Qp(number),
            6 => Self::QCounter(number),
            _ => return None,
        })
    }

    /// Returns the command that destroys it.
    pub(in crate::soft) fn destroy_command(self) -> (Vec<u8>, usize) {
        fn bytes<C: Command>(command: C) -> (Vec<u8>, usize) {
            (command.encode(), C::OUT_LEN)
        }
        match self {
            Self::Pd(pd) => bytes(pd::DeallocPd { pd }),
            Self::Uar(uar) => bytes(uar::DeallocUar { uar }),
            Self::Mkey(mkey_index) => bytes(mkey::DestroyMkey { mkey_index }),
            Self::Cq(cqn) => bytes(cq::DestroyCq { cqn }),
            Self::Qp(qpn) => bytes(qp::DestroyQp { qpn }),
            Self::QCounter(id) => bytes(counter::DeallocQCounter { counter_set_id: low8(id.into()) }),
        }
    }
}

/// What a command is used for, which says what it may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::soft) enum Purpose {
    Create,
    Modify(Object),
    Query(Object),
    Destroy,
    General,
}

/// Returns the GID that an INIT2RTR_QP names, if `input` is one.
pub(in crate::soft) fn remote_gid(input: &[u8]) -> Option<Gid> {
    if Opcode::of(input) != Some(Opcode::Init2RtrQp) || input.len() < qp::Init2RtrQp::IN_LEN {
        return None;
    }
    let path = qp::Init2RtrQp::decode(input).ok()?.qpc.primary_address_path;
    Some(Gid::from_halves(path.rgid_hi, path.rgid_lo))
}
