//! What device code reports: the first error of a launch, decoded.

use std::fmt;

use bytemuck::checked;
use oxshmem_hca::wire::cqe::Syndrome;
use oxshmem_system::words::low32;

pub(crate) use self::arguments::TYPES_OF_OPERATORS;
use self::arguments::bad_argument;
pub use self::kind::{FaultKind, Unmet};
pub(crate) use self::members::call;
use self::members::{awaited, mismatch};
use crate::abi::{self, ErrorCode, ErrorRecord, Op};

mod arguments;
mod differing;
mod kind;
mod members;

/// An error that device code recorded. Operations that were refused had no effect; those issued
/// before are complete or reported.
///
/// ```
/// # fn main() -> oxshmem::Result<()> {
/// # let pe = oxshmem::init()?;
/// use oxshmem::{DeviceFault, Error, FaultKind, Operations};
///
/// let words = pe.alloc::<u64>(1)?;
/// let error = pe.put(&words, &[1], 99).unwrap_err();
/// let Error::Fault(fault) = error else { panic!("{error}") };
/// let fault: DeviceFault = *fault;
/// assert_eq!((fault.me, fault.kind), (0, FaultKind::PeOutOfRange { pe: 99, last: 0 }));
/// # pe.finalize()
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("PE {me}, {place}: {operation}{team}: {kind}", place = Place(*block, *thread), team = OnTeam(*team))]
pub struct DeviceFault {
    /// The PE whose kernel it was.
    pub me: i32,
    /// The operation.
    pub operation: &'static str,
    /// The team whose collective it was, by its handle.
    pub team: Option<i32>,
    /// Block index of the thread.
    pub block: [u32; 3],
    /// Thread index in the block.
    pub thread: [u32; 3],
    /// What happened.
    pub kind: FaultKind,
}

struct Place([u32; 3], [u32; 3]);

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ([bx, by, bz], [tx, ty, tz]) = (self.0, self.1);
        write!(f, "block ({bx}, {by}, {bz}), thread ({tx}, {ty}, {tz})")
    }
}

/// Names a team in an error.
struct OnTeam(Option<i32>);

impl fmt::Display for OnTeam {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => Ok(()),
            Some(abi::TEAM_WORLD) => f.write_str(" of the world team"),
            Some(abi::TEAM_SHARED) => f.write_str(" of the shared team"),
            Some(abi::TEAM_NODE) => f.write_str(" of the node team"),
            Some(abi::TEAM_SAME_NODE_PE) => f.write_str(" of the team of PEs with the same number in their nodes"),
            Some(handle) => write!(f, " of team {handle:#x}"),
        }
    }
}

/// What errors call a wait for a slot of a staging ring.
pub(crate) const STAGING: &str = "waiting for a slot of a staging ring";

/// Returns what errors call an operation; `None` if this runtime does not know it.
pub(crate) fn operation(op: u32) -> Option<&'static str> {
    Some(match checked::try_cast(op).ok()? {
        Op::None => "operation",
        Op::Put => "put",
        Op::Get => "get",
        Op::P => "p",
        Op::G => "g",
        Op::Iput => "iput",
        Op::Iget => "iget",
        Op::Atomic => "atomic",
        Op::Signal => "signal_op",
        Op::PutSignal => "put_signal",
        Op::WaitUntil => "wait_until",
        Op::SignalWait => "signal_wait_until",
        Op::Quiet => "quiet",
        Op::Fence => "fence",
        Op::Barrier => "barrier",
        Op::Sync => "sync",
        Op::QueueSpace => "waiting for room in a send queue",
        Op::Staging => STAGING,
        Op::Landing => "waiting for a landing slot",
        Op::Ptr => "ptr",
        Op::Broadcast => "broadcast",
        Op::Collect => "collect",
        Op::Fcollect => "fcollect",
        Op::Alltoall => "alltoall",
        Op::Alltoalls => "alltoalls",
        Op::Reduce => "reduce",
        Op::Reducescatter => "reducescatter",
    })
}

/// Returns the opcode's name. Opcodes and syndromes are named as in rdma-core's mlx5dv.h.
fn opcode(opcode: u64) -> String {
    match opcode {
        0x08 => "RDMA WRITE".into(),
        0x10 => "RDMA READ".into(),
        0x11 => "ATOMIC CS".into(),
        0x12 => "ATOMIC FA".into(),
        0x14 => "MASKED CS".into(),
        0x15 => "MASKED FA".into(),
        other => format!("opcode {other:#x}"),
    }
}

pub(crate) fn syndrome(syndrome: u32) -> String {
    let name = match syndrome {
        0x01 => "local length error",
        0x02 => "local QP operation error",
        0x04 => "local protection error",
        0x05 => "work request flushed since one before it failed, and the HCA does not keep which",
        0x06 => "memory window bind error",
        0x10 => "bad response",
        0x11 => "local access error",
        0x12 => "remote invalid request",
        0x13 => "remote access error",
        0x14 => "remote operation error",
        0x15 => "transport retry counter exceeded: the peer or the link is down",
        0x16 => "receiver-not-ready retry counter exceeded",
        0x22 => "remote abort",
        _ => return format!("syndrome {syndrome:#x}"),
    };
    format!("{name} ({syndrome:#x})")
}

impl DeviceFault {
    /// Reads a record that a kernel of the PE with this state has left.
    pub(crate) fn decode(record: &ErrorRecord, state: &abi::State) -> Self {
        let abi::State { my_pe: me, n_pes, timeout_ns, heap_base, heap_bytes, .. } = *state;
        let ErrorRecord { pe, address, length, .. } = *record;
        let kind = match checked::try_cast(record.code) {
            Ok(ErrorCode::PeOutOfRange) if length != 0 => FaultKind::MemberOutOfRange { pe, last: length - 1 },
            Ok(ErrorCode::PeOutOfRange) => FaultKind::PeOutOfRange { pe, last: n_pes - 1 },
            Ok(ErrorCode::AddressOutsideHeap) => FaultKind::AddressOutsideHeap { address, bytes: length, pe },
            Ok(ErrorCode::Unaligned) => FaultKind::Unaligned { address, bytes: length, pe },
            Ok(ErrorCode::Timeout) => FaultKind::Timeout {
                timeout_ms: timeout_ns / 1_000_000,
                address,
                heap_offset: address.checked_sub(heap_base).filter(|offset| *offset < heap_bytes),
                pe,
                unmet: if record.syndrome == 0 { None } else { Unmet::decode(record) },
                lost: Vec::new(),
                ring: None,
            },
            Ok(ErrorCode::Completion) => FaultKind::Completion {
                pe,
                qpn: record.qpn,
                wqe_index: record.wqe_index,
                opcode: opcode(length),
                address,
                syndrome: syndrome(record.syndrome),
                vendor_syndrome: record.vendor_syndrome,
                cause: String::new(),
            },
            Ok(ErrorCode::NoPath) => FaultKind::NoPath { pe },
            Ok(ErrorCode::BadArgument) => {
                let value = length.cast_signed();
                FaultKind::BadArgument { value, problem: bad_argument(record.op, value), address, pe }
            }
            Ok(ErrorCode::BadTeam) => FaultKind::BadTeam { handle: low32(length).cast_signed() },
            Ok(ErrorCode::Mismatch) => mismatch(pe, length, address),
            Ok(ErrorCode::MemberLeft) => FaultKind::MemberLeft { pe, awaited: awaited(pe, length) },
            Ok(ErrorCode::QueueBroken) => FaultKind::QueueBroken { pe, qpn: (record.qpn != 0).then_some(record.qpn) },
            Ok(ErrorCode::Overlap) => FaultKind::Overlap { dst: address, src: length },
            Ok(ErrorCode::ContextInUse) => FaultKind::ContextInUse { pe, qpn: record.qpn },
            Ok(ErrorCode::ContextDestroyed) => FaultKind::ContextDestroyed { pe, qpn: record.qpn },
            Ok(ErrorCode::BadNumber) => FaultKind::BadContextNumber { number: length },
            Ok(ErrorCode::GridIncomplete) => {
                FaultKind::GridIncomplete { arrived: address, blocks: length, timeout_ms: timeout_ns / 1_000_000 }
            }
            Ok(ErrorCode::ExitRequested) => FaultKind::ExitRequested { status: low32(length).cast_signed() },
            Ok(ErrorCode::AggregateStalled) => FaultKind::AggregateStalled {
                rail: address,
                receiver: pe,
                bytes: length,
                timeout_ms: timeout_ns / 1_000_000,
            },
            Ok(ErrorCode::None) | Err(_) => FaultKind::Unknown { code: record.code },
        };
        let team = (record.team != abi::TEAM_INVALID).then_some(record.team);
        Self {
            me,
            operation: operation(record.op).unwrap_or("unknown operation"),
            team,
            block: record.block,
            thread: record.thread,
            kind,
        }
    }
}

/// The work request that made a queue pair fail, as its HCA remembers it.
#[derive(Debug)]
pub(crate) struct Cause {
    pub wqe_index: u64,
    /// The first words of the WQE: opcode and remote address.
    pub opcode: u8,
    pub address: u64,
    pub syndrome: u8,
    pub text: String,
}

impl DeviceFault {
    /// Returns whether device code ends all waits of the PE when it records this; see `raise` in
    /// `detail/error.h`.
    pub(crate) fn ends_waits(&self) -> bool {
        matches!(
            self.kind,
            FaultKind::Timeout { .. }
                | FaultKind::Completion { .. }
                | FaultKind::QueueBroken { .. }
                | FaultKind::GridIncomplete { .. }
                | FaultKind::AggregateStalled { .. }
                | FaultKind::ExitRequested { .. }
        )
    }

    /// Adds what the heap says about the address of a completion error: `complaint` is given the
    /// offset.
    pub(crate) fn locate(&mut self, complaint: impl Fn(u64) -> Option<String>) {
        if let FaultKind::Completion { cause, address, .. } = &mut self.kind
            && let Some(text) = complaint(*address)
        {
            let separator = if cause.is_empty() { ": " } else { "; " };
            cause.push_str(separator);
            cause.push_str(&text);
        }
    }

    /// Adds what the HCA says about a completion error.
    pub(crate) fn annotate(&mut self, text: &str) {
        if let FaultKind::Completion { cause, .. } = &mut self.kind {
            *cause = format!(": {text}");
        }
    }

    /// Returns the QP of a completion error.
    pub(crate) fn failed_qp(&self) -> Option<u32> {
        match self.kind {
            FaultKind::Completion { qpn, .. } => Some(qpn),
            _ => None,
        }
    }

    /// Returns whether the work request was flushed because one before it had failed.
    pub(crate) fn is_flushed(&self) -> bool {
        let flushed = syndrome(Syndrome::WrFlush as u32);
        matches!(&self.kind, FaultKind::Completion { syndrome: what, .. } if *what == flushed)
    }

    /// Names the first error in the place of a flush, from what the cards have counted: each
    /// syndrome with the number of its errors.
    pub(crate) fn name_first(&mut self, counted: &[(Syndrome, u32)]) {
        let FaultKind::Completion { syndrome: what, cause, .. } = &mut self.kind else { return };
        match counted {
            [] => {}
            [(only, count)] => {
                *what = syndrome(*only as u32);
                *cause = format!(
                    ": the card counted {count} such error{}; the work request named here is one that was flushed afterwards",
                    if *count == 1 { "" } else { "s" }
                );
            }
            several => {
                let each = several.iter().map(|(which, count)| format!("{count} of {}", syndrome(*which as u32)));
                *cause = format!(": the card counted {}", each.collect::<Vec<_>>().join(", "));
            }
        }
    }

    /// Names the work request that failed first. Device code may have seen one that was flushed
    /// after it.
    pub(crate) fn explain(&mut self, why: Cause) {
        if let FaultKind::Completion { wqe_index, opcode: name, address, syndrome: what, cause, .. } = &mut self.kind {
            *wqe_index = why.wqe_index;
            *name = opcode(why.opcode.into());
            *address = why.address;
            *what = syndrome(why.syndrome.into());
            *cause = format!(": {}", why.text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_completion_error_names_peer_queue_pair_address_and_syndrome() {
        let record = ErrorRecord {
            code: 5,
            op: 12,
            pe: 3,
            qpn: 0x41,
            wqe_index: 70_001,
            address: 0x1000,
            length: 8,
            syndrome: 0x13,
            vendor_syndrome: 0x88,
            block: [1, 0, 0],
            thread: [31, 0, 0],
            team: abi::TEAM_INVALID,
            reserved0: 0,
        };
        let text =
            DeviceFault::decode(&record, &abi::State { my_pe: 2, n_pes: 4, ..abi::State::default() }).to_string();
        for part in [
            "PE 2",
            "block (1, 0, 0), thread (31, 0, 0)",
            "quiet",
            "RDMA WRITE to PE 3",
            "QP 0x41",
            "WQE 70001",
            "0x1000",
            "remote access error (0x13)",
            "0x88",
        ] {
            assert!(text.contains(part), "{part:?} is missing in {text:?}");
        }
    }

    #[test]
    fn a_wait_names_the_variable_and_what_it_saw() {
        let state = abi::State {
            my_pe: 1,
            n_pes: 2,
            timeout_ns: 3_000_000_000,
            heap_base: 0x7000_0000,
            heap_bytes: 1 << 20,
            ..abi::State::default()
        };
        let record = |syndrome, seen, wanted, variables| ErrorRecord {
            code: 4,
            op: 11,
            pe: 1,
            address: 0x7000_1040,
            length: wanted,
            wqe_index: seen,
            syndrome,
            vendor_syndrome: variables,
            team: abi::TEAM_INVALID,
            ..ErrorRecord::default()
        };
        let text = |record: &ErrorRecord| DeviceFault::decode(record, &state).to_string();
        let signal = text(&record(8 << 8, 3, u64::MAX, 1));
        assert!(
            signal.contains(
                "the wait did not end within 3000 ms: the variable of 8 bytes at heap offset 0x1040 is 3 and has to become equal to \
                 18446744073709551615;"
            ),
            "{signal}"
        );
        assert!(signal.contains("OXSHMEM_TIMEOUT") && !signal.contains("for PE 1") && !signal.contains("0x70001040"));
        let signed = text(&record(1 << 16 | 4 << 8 | 5, 0xffff_fffe, -1i64 as u64, 7));
        assert!(
            signed.contains("none of 7 variables") && signed.contains("is -2 and has to become at least -1"),
            "{signed}"
        );
        // Other waits name the PE that they are for.
        let other = text(&ErrorRecord { pe: 0, address: 0x10, ..record(0, 0, 0, 0) });
        assert!(other.contains("the wait did not end within 3000 ms, waiting at address 0x10 for PE 0;"), "{other}");
    }

    #[test]
    fn calls_that_do_not_fit_name_team_collective_and_pe() {
        let decode = |theirs: u64, mine: u64| {
            let record = ErrorRecord {
                code: 9,
                op: 21,
                pe: 1,
                address: mine,
                length: theirs,
                team: 0x105,
                ..ErrorRecord::default()
            };
            DeviceFault::decode(&record, &abi::State { n_pes: 4, ..abi::State::default() }).to_string()
        };
        let mine = 7 << 32 | 5 << 28 | 99;
        for (theirs, part) in [
            (7 << 32 | 3 << 28 | 99, "PE 1 called broadcast"),
            (7 << 32 | 5 << 28 | 98, "PE 1 called fcollect with another size"),
            (7 << 32 | 1, "PE 1 made a call that is refused"),
            (9 << 32 | 5 << 28 | 99, "PE 1 is 2 collectives ahead"),
        ] {
            let text = decode(theirs, mine);
            assert!(text.contains("fcollect of team 0x105") && text.contains(part), "{text}");
        }
    }

    #[test]
    fn codes_of_another_version_are_shown_as_they_are() {
        let record = ErrorRecord { code: 99, op: 99, team: abi::TEAM_INVALID, ..ErrorRecord::default() };
        assert!(
            DeviceFault::decode(&record, &abi::State::default())
                .to_string()
                .contains("unknown operation: unknown error code 99")
        );
    }

    #[test]
    fn a_flush_is_replaced_by_what_the_card_counted() {
        let flushed = || {
            let record = ErrorRecord { code: 5, syndrome: 5, pe: 1, ..ErrorRecord::default() };
            let fault = DeviceFault::decode(&record, &abi::State { n_pes: 2, ..abi::State::default() });
            assert!(fault.is_flushed());
            fault
        };
        let named = |counted: &[(Syndrome, u32)]| {
            let mut fault = flushed();
            fault.name_first(counted);
            (fault.is_flushed(), fault.to_string())
        };
        let (is_flushed, text) = named(&[(Syndrome::RemoteAccess, 1)]);
        assert!(!is_flushed && text.contains("with remote access error (0x13)"), "{text}");
        assert!(text.contains(": the card counted 1 such error; the work request named here"), "{text}");
        let (is_flushed, text) = named(&[(Syndrome::RemoteAccess, 2), (Syndrome::LocalProtection, 1)]);
        assert!(
            is_flushed && text.contains("counted 2 of remote access error (0x13), 1 of local protection"),
            "{text}"
        );
        assert_eq!(named(&[]).1, flushed().to_string());
    }
}
