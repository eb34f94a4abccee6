//! The commands of NVIDIA's programming reference manual (PRM) that set up IBGDA, as DevX carries
//! them.
//!
//! One file per object. A command's input and output are structures of bit fields; the offsets are
//! those of rdma-core's `providers/mlx5/mlx5_ifc.h`, with the umem fields and the CQ context, which
//! that file leaves out, from DPDK's `drivers/common/mlx5/mlx5_prm.h` and Linux's
//! `include/linux/mlx5/mlx5_ifc.h`. Only fields that are used have a name here; every other bit is
//! reserved and must be 0.

mod command;
pub(crate) mod layout;

pub mod caps;
pub mod counter;
pub mod cq;
pub mod dump;
pub mod lag;
pub mod mkey;
pub mod pd;
pub mod qp;
pub mod qpc;
pub mod uar;

use layout::Layout;
use oxshmem_system::words::{low8, low32};

/// Command opcodes (`MLX5_CMD_OP_*`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u16)]
#[allow(missing_docs)] // the names are the PRM's
pub enum Opcode {
    QueryHcaCap = 0x100,
    CreateMkey = 0x200,
    DestroyMkey = 0x202,
    CreateCq = 0x400,
    DestroyCq = 0x401,
    QueryCq = 0x402,
    CreateQp = 0x500,
    DestroyQp = 0x501,
    Rst2InitQp = 0x502,
    Init2RtrQp = 0x503,
    Rtr2RtsQp = 0x504,
    ToErrQp = 0x507,
    ToRstQp = 0x50a,
    QueryQp = 0x50b,
    AllocQCounter = 0x771,
    DeallocQCounter = 0x772,
    QueryQCounter = 0x773,
    AllocPd = 0x800,
    DeallocPd = 0x801,
    AllocUar = 0x802,
    DeallocUar = 0x803,
    QueryLag = 0x842,
}

impl Opcode {
    const ALL: [Self; 22] = [
        Self::QueryHcaCap,
        Self::CreateMkey,
        Self::DestroyMkey,
        Self::CreateCq,
        Self::DestroyCq,
        Self::QueryCq,
        Self::CreateQp,
        Self::DestroyQp,
        Self::Rst2InitQp,
        Self::Init2RtrQp,
        Self::Rtr2RtsQp,
        Self::ToErrQp,
        Self::ToRstQp,
        Self::QueryQp,
        Self::AllocQCounter,
        Self::DeallocQCounter,
        Self::QueryQCounter,
        Self::AllocPd,
        Self::DeallocPd,
        Self::AllocUar,
        Self::DeallocUar,
        Self::QueryLag,
    ];

    /// Returns the opcode with this number, if known.
    pub fn from_u16(value: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|opcode| *opcode as u16 == value)
    }

    /// Returns the opcode in a command's input, if it is long enough and known.
    pub fn of(input: &[u8]) -> Option<Self> {
        let bytes = input.get(..2)?;
        Self::from_u16(u16::from_be_bytes([bytes[0], bytes[1]]))
    }

    /// Returns the PRM's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::QueryHcaCap => "QUERY_HCA_CAP",
            Self::CreateMkey => "CREATE_MKEY",
            Self::DestroyMkey => "DESTROY_MKEY",
            Self::CreateCq => "CREATE_CQ",
            Self::DestroyCq => "DESTROY_CQ",
            Self::QueryCq => "QUERY_CQ",
            Self::CreateQp => "CREATE_QP",
            Self::DestroyQp => "DESTROY_QP",
            Self::Rst2InitQp => "RST2INIT_QP",
            Self::Init2RtrQp => "INIT2RTR_QP",
            Self::Rtr2RtsQp => "RTR2RTS_QP",
            Self::ToErrQp => "2ERR_QP",
            Self::ToRstQp => "2RST_QP",
            Self::QueryQp => "QUERY_QP",
            Self::AllocQCounter => "ALLOC_Q_COUNTER",
            Self::DeallocQCounter => "DEALLOC_Q_COUNTER",
            Self::QueryQCounter => "QUERY_Q_COUNTER",
            Self::AllocPd => "ALLOC_PD",
            Self::DeallocPd => "DEALLOC_PD",
            Self::AllocUar => "ALLOC_UAR",
            Self::DeallocUar => "DEALLOC_UAR",
            Self::QueryLag => "QUERY_LAG",
        }
    }
}

/// What a command's output says in its first byte (`MLX5_CMD_STAT_*`, Linux:
/// include/linux/mlx5/device.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum CommandStatus {
    /// Executed.
    Ok = 0x00,
    /// The firmware failed.
    InternalError = 0x01,
    /// Unknown opcode or modifier.
    BadOp = 0x02,
    /// A field holds what it must not.
    BadParam = 0x03,
    /// The device is in a state that does not allow the command.
    BadSysState = 0x04,
    /// An object that the command names does not exist.
    BadResource = 0x05,
    /// An object is still in use.
    ResourceBusy = 0x06,
    /// Above a limit.
    Limit = 0x08,
    /// An object is in a state that does not allow the command.
    BadResourceState = 0x09,
    /// An index is out of range.
    BadIndex = 0x0a,
    /// Out of resources.
    NoResources = 0x0f,
    /// The QP is in a state that does not allow the transition.
    BadQpState = 0x10,
    /// The input is too short.
    BadInputLength = 0x50,
    /// The output is too short.
    BadOutputLength = 0x51,
}

impl CommandStatus {
    /// Returns the status with this number; unknown ones count as internal errors.
    pub const fn from_u8(value: u8) -> Self {
        match value {
            0x00 => Self::Ok,
            0x02 => Self::BadOp,
            0x03 => Self::BadParam,
            0x04 => Self::BadSysState,
            0x05 => Self::BadResource,
            0x06 => Self::ResourceBusy,
            0x08 => Self::Limit,
            0x09 => Self::BadResourceState,
            0x0a => Self::BadIndex,
            0x0f => Self::NoResources,
            0x10 => Self::BadQpState,
            0x50 => Self::BadInputLength,
            0x51 => Self::BadOutputLength,
            _ => Self::InternalError,
        }
    }

    /// Returns in words what it says.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Ok => "OK",
            Self::InternalError => "internal error",
            Self::BadOp => "bad operation",
            Self::BadParam => "bad parameter",
            Self::BadSysState => "bad system state",
            Self::BadResource => "bad resource",
            Self::ResourceBusy => "resource busy",
            Self::Limit => "limits exceeded",
            Self::BadResourceState => "bad resource state",
            Self::BadIndex => "bad index",
            Self::NoResources => "no resources",
            Self::BadQpState => "bad QP state",
            Self::BadInputLength => "bad input length",
            Self::BadOutputLength => "bad output length",
        }
    }
}

/// Returns the status and the syndrome of an output: bits 0..8 and 32..64 of each.
pub fn outcome(output: &[u8]) -> (CommandStatus, u32) {
    (CommandStatus::from_u8(low8(layout::get(output, 0, 8))), low32(layout::get(output, 0x20, 32)))
}

/// Writes status and syndrome, and zeros elsewhere.
pub(crate) fn set_outcome(output: &mut [u8], status: CommandStatus, syndrome: u32) {
    output.fill(0);
    if output.len() >= 8 {
        layout::set(output, 0, 8, status as u64);
        layout::set(output, 0x20, 32, u64::from(syndrome));
    }
}

/// A command's input. The first 16 bits are the opcode; `uid` and `op_mod` are 0 unless the
/// structure names them.
#[allow(private_bounds)]
pub trait Command: Layout {
    /// Its opcode.
    const OPCODE: Opcode;
    /// Length of the input in bytes.
    const IN_LEN: usize;
    /// Length of the output in bytes.
    const OUT_LEN: usize;
    /// What comes back.
    type Output: Layout;

    /// Returns the input's bytes.
    fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; Self::IN_LEN];
        self.write(&mut bytes, 0);
        layout::set(&mut bytes, 0, 16, u64::from(Self::OPCODE as u16));
        bytes
    }

    /// Decodes input bytes. `Err` holds the first reserved bit that is set, counted as `mlx5_ifc.h`
    /// does.
    ///
    /// The opcode and the length are the caller's business.
    fn decode(bytes: &[u8]) -> Result<Self, usize> {
        let mut rest = bytes.to_vec();
        layout::set(&mut rest, 0, 16, 0);
        match layout::reserved_bit::<Self>(&rest) {
            Some(bit) => Err(bit),
            None => Ok(Self::read(bytes, 0)),
        }
    }

    /// Decodes the output.
    fn decode_output(bytes: &[u8]) -> Self::Output {
        Self::Output::read(bytes, 0)
    }
}

/// Encodes an output with status OK.
pub(crate) fn encode_output<L: Layout>(value: &L, output: &mut [u8]) {
    output.fill(0);
    value.write(output, 0);
}

#[cfg(test)]
mod sources;

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn opcodes_are_found_by_number() {
        for opcode in Opcode::ALL {
            assert_eq!(Opcode::from_u16(opcode as u16), Some(opcode));
            assert!(!opcode.name().is_empty());
        }
        assert_eq!(Opcode::from_u16(0xffff), None);
        assert_eq!(Opcode::of(&[5]), None);
    }

    #[test]
    fn statuses_are_found_by_number() {
        for value in 0..=u8::MAX {
            let status = CommandStatus::from_u8(value);
            assert!(status as u8 == value || status == CommandStatus::InternalError);
            assert!(!status.text().is_empty());
        }
    }
}
