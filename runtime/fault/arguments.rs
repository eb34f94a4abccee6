//! Arguments that device code refuses.

use std::fmt;

use bytemuck::checked;
use oxshmem_system::words::low32;

use crate::abi::{self, Op};

/// Which element types each operator of a reduction takes.
pub const TYPES_OF_OPERATORS: &str =
    "and, or and xor take integers, min and max all types except complex numbers, sum and prod every type";

/// Returns which argument of an operation is wrong, and which values are allowed. Device code
/// reports one such argument of each operation; `alltoalls` has two, which differ in their values.
pub fn bad_argument(op: u32, value: i64) -> String {
    match checked::try_cast(op) {
        Ok(Op::Broadcast) => format!("root {value} is not a member: members are 0 to the team's size less 1"),
        Ok(Op::Reduce | Op::Reducescatter) => bad_reduction(value.cast_unsigned()),
        Ok(Op::Alltoalls) if value >= 1 => format!("elements of {value} bytes: use 1, 2, 4, 8 or 16 bytes"),
        Ok(Op::Alltoalls | Op::Iput | Op::Iget) => format!("stride {value}: strides are 1 element or more"),
        Ok(Op::Signal | Op::PutSignal) => {
            format!("signal operator {value} is neither SIGNAL_SET (9) nor SIGNAL_ADD (10)")
        }
        Ok(Op::WaitUntil | Op::SignalWait) => {
            format!("comparison {value} does not exist: use CMP_EQ (0) to CMP_GE (5)")
        }
        _ => format!("argument {value} is not allowed"),
    }
}

fn bad_reduction(kinds: u64) -> String {
    let (element, op) = (low32(kinds >> 32), low32(kinds));
    let name = |word: &dyn fmt::Debug| format!("{word:?}").to_lowercase();
    match (checked::try_cast::<_, abi::Type>(element), checked::try_cast::<_, abi::ReduceOp>(op)) {
        (Ok(element), Ok(op)) => format!("{} is not defined for {}: {TYPES_OF_OPERATORS}", name(&op), name(&element)),
        (Err(_), _) => format!("element type {element} does not exist: use one of `Type` in oxshmem/abi.h"),
        (_, Err(_)) => format!("operator {op} does not exist: use one of `ReduceOp` in oxshmem/abi.h"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::DeviceFault;
    use super::*;
    use crate::abi::{ErrorCode, ErrorRecord};

    #[test]
    fn a_bad_argument_is_named_with_what_is_allowed() {
        let reduction = |element: u64, op: u64| element << 32 | op;
        for (op, length, expected) in [
            (Op::Broadcast, u64::MAX, "root -1 is not a member"),
            (Op::Iput, 0, "stride 0: strides are 1 element or more"),
            (Op::Alltoalls, u64::MAX - 1, "stride -2: strides are"),
            (Op::Alltoalls, 3, "elements of 3 bytes: use 1, 2, 4, 8 or 16"),
            (Op::PutSignal, 8, "signal operator 8 is neither SIGNAL_SET (9)"),
            (Op::WaitUntil, 6, "comparison 6 does not exist"),
            (
                Op::Reduce,
                reduction(abi::Type::Float32 as u64, abi::ReduceOp::Xor as u64),
                "xor is not defined for float32",
            ),
            (Op::Reduce, reduction(15, 0), "element type 15 does not exist"),
            (Op::Reducescatter, reduction(0, 77), "operator 77 does not exist"),
        ] {
            let record =
                ErrorRecord { code: ErrorCode::BadArgument as u32, op: op as u32, length, ..ErrorRecord::default() };
            let fault = DeviceFault::decode(&record, &abi::State { my_pe: 1, n_pes: 2, ..abi::State::default() });
            assert!(fault.to_string().contains(expected), "{expected:?} is missing in {fault}");
        }
    }
}
