//! What members of a team tell each other when they meet for a collective.

use bytemuck::checked;
use oxshmem_system::words::low32;

use super::differing::differing;
use super::kind::FaultKind;
use crate::abi::{self, Call};

/// Returns what a header of a collective says; see `Call` in `abi.h`.
pub fn call(header: u64) -> Option<&'static str> {
    Some(match checked::try_cast(low32(header) >> abi::CALL_SHIFT).ok()? {
        Call::None => return None,
        Call::Sync => "sync",
        Call::Barrier => "barrier",
        Call::Broadcast => "broadcast",
        Call::Collect => "collect",
        Call::Fcollect => "fcollect",
        Call::Alltoall => "alltoall",
        Call::Alltoalls => "alltoalls",
        Call::Reduce => "reduce",
        Call::Reducescatter => "reducescatter",
    })
}

/// Returns the fault of a member whose call differs from another one's.
pub fn mismatch(pe: i32, theirs: u64, mine: u64) -> FaultKind {
    let my_call = call(mine).unwrap_or("a collective with bad arguments");
    let ahead = ((theirs >> 32) as u32).wrapping_sub((mine >> 32) as u32).cast_signed();
    let theirs = match call(theirs) {
        _ if ahead != 0 => format!("PE {pe} is {ahead} collectives ahead"),
        None => format!("PE {pe} made a call that is refused, or that does not fit the others"),
        Some(other) if call(mine) == Some(other) => {
            let with = checked::try_cast(low32(mine) >> abi::CALL_SHIFT)
                .map_or_else(|_| "other arguments".to_owned(), |call| differing(call, low32(theirs), low32(mine)));
            format!("PE {pe} called {other} with {with}")
        }
        Some(other) => format!("PE {pe} called {other}"),
    };
    FaultKind::Mismatch { pe, theirs, mine: my_call }
}

/// Returns for which PE `pe` waited when it left a meeting, from what a member has announced.
pub fn awaited(pe: i32, announced: u64) -> Option<i32> {
    let word = low32(announced);
    let named = |at: u32| (word >> at & ((1 << abi::NAMED_PE_BITS) - 1)).cast_signed();
    let (left, awaited) = (named(0), named(abi::NAMED_PE_BITS));
    (word >> abi::CALL_SHIFT == abi::LEFT_MEETING && left == pe && awaited != pe).then_some(awaited)
}

#[cfg(test)]
mod tests {
    use super::super::DeviceFault;
    use super::*;
    use crate::abi::{ErrorCode, ErrorRecord, Op};

    #[test]
    fn a_member_that_has_left_says_for_which_pe_it_waited() {
        let left = |pe: u64, awaited: u64| 7 << 32 | u64::from(abi::LEFT_MEETING) << 28 | awaited << 12 | pe;
        let text = |announced: u64| {
            let code = ErrorCode::MemberLeft as u32;
            let record =
                ErrorRecord { code, op: Op::Barrier as u32, pe: 2, length: announced, ..ErrorRecord::default() };
            DeviceFault::decode(&record, &abi::State { my_pe: 4, n_pes: 8, ..abi::State::default() }).to_string()
        };
        assert!(text(left(2, 1)).contains("PE 2 left the collective while it waited for PE 1"), "{}", text(left(2, 1)));
        // For another reason; what another PE says of itself; and a member that has ended its part.
        for announced in [left(2, 2), left(3, 1), 0] {
            assert!(text(announced).contains("PE 2 left the collective by an error of its own"), "{}", text(announced));
        }
    }
}
