//! What a peer's QP and keys admit: the checks of a responder, which either end makes.
//!
//! Within a node the initiator's engine makes them, as it maps the peer's control segment; for
//! requests from other nodes the target's HCA does.

use super::control::{MkeyFacts, QpFacts, rights};
use super::failure::Failure;
use crate::port::Gid;
use crate::prm::mkey::ANY_QP;
use crate::prm::qpc::QpState;
use crate::wire::cqe::Syndrome;

/// The end that sends requests: its QP, HCA and first packet sequence number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Initiator {
    pub qpn: u32,
    pub gid: Gid,
    pub psn: u32,
}

/// Memory of the target that a request names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Target {
    pub rkey: u32,
    pub raddr: u64,
    pub len: u64,
}

#[cold]
pub(super) fn name_of(right: u32) -> &'static str {
    match right {
        rights::REMOTE_READ => "remote reads",
        rights::REMOTE_WRITE => "remote writes",
        _ => "remote atomics",
    }
}

/// Checks whether QP `qpn` of HCA `gid`, of which `facts` are known, is connected to the initiator
/// and ready. `Err` is a reason to wait.
pub(super) fn check_qp(facts: &QpFacts, qpn: u32, gid: Gid, initiator: &Initiator) -> Result<(), String> {
    let state = u8::try_from(facts.state).ok().and_then(QpState::from_u8).unwrap_or(QpState::Reset);
    let problem = if facts.qpn != qpn {
        "does not exist".to_owned()
    } else if !matches!(state, QpState::Rtr | QpState::Rts) {
        format!("is in state {}", state.name())
    } else if (facts.remote_qpn, facts.remote_gid) != (initiator.qpn, initiator.gid) {
        format!("is connected to QP {:#x} at {}", facts.remote_qpn, facts.remote_gid)
    } else if facts.rcv_psn != initiator.psn {
        format!("expects packet sequence number {:#x}, but this QP starts at {:#x}", facts.rcv_psn, initiator.psn)
    } else {
        return Ok(());
    };
    Err(format!("the peer's QP {qpn:#x} at {gid} {problem}"))
}

/// Checks whether the QP of HCA `gid` that `facts` tell of serves as many reads and atomics at a
/// time as the initiator may request.
pub(super) fn check_depth(facts: &QpFacts, gid: Gid, log_sra_max: u8) -> Result<(), Failure> {
    if u32::from(log_sra_max) <= facts.log_rra_max {
        return Ok(());
    }
    let text = format!(
        "qpc.log_sra_max is {log_sra_max}, above the log_rra_max of the peer's QP {:#x} at {gid}, {}",
        facts.qpn, facts.log_rra_max
    );
    Err(Failure::new(Syndrome::RemoteInvalidRequest, text))
}

/// Checks whether the QP with these rights accepts the operation.
#[inline]
pub(super) fn check_accepts(accepted: u32, qpn: u32, right: u32) -> Result<(), Failure> {
    if accepted & right != 0 {
        return Ok(());
    }
    let text = format!("the peer's QP {qpn:#x} does not accept {}", name_of(right));
    Err(Failure::new(Syndrome::RemoteInvalidRequest, text))
}

/// Checks whether the address of an atomic is a multiple of its width.
pub(super) fn check_alignment(raddr: u64, width: usize) -> Result<(), Failure> {
    if raddr.is_multiple_of(width as u64) {
        return Ok(());
    }
    let text = format!("raddr.raddr is {raddr:#x}, not a multiple of the atomic's {width} bytes");
    Err(Failure::new(Syndrome::RemoteInvalidRequest, text))
}

/// Checks whether the memory behind the address of an atomic is aligned to its width.
pub(super) fn check_word(raddr: u64, word: *const u8, width: usize) -> Result<(), Failure> {
    if word.addr().is_multiple_of(width) {
        return Ok(());
    }
    let text = format!("raddr.raddr {raddr:#x} is aligned, but the memory that it names is not");
    Err(Failure::new(Syndrome::RemoteInvalidRequest, text))
}

/// Returns the failure where HCA `gid` has no such key.
pub(super) fn unknown_key(rkey: u32, gid: Gid) -> Failure {
    Failure::new(Syndrome::RemoteAccess, format!("raddr.rkey {rkey:#x}: no such key at {gid}"))
}

/// Checks whether a key of HCA `gid` may be used through the QP that `qp` tells of.
pub(super) fn check_key(facts: &MkeyFacts, rkey: u32, qp: &QpFacts, gid: Gid) -> Result<(), Failure> {
    if facts.key != rkey {
        return Err(unknown_key(rkey, gid));
    }
    let text = if facts.pd != qp.pd {
        format!("raddr.rkey {rkey:#x} belongs to protection domain {} at {gid}, the peer's QP to {}", facts.pd, qp.pd)
    } else if facts.qpn != ANY_QP && facts.qpn != qp.qpn {
        format!("raddr.rkey {rkey:#x} may be used through QP {:#x} only", facts.qpn)
    } else {
        return Ok(());
    };
    Err(Failure::new(Syndrome::RemoteAccess, text))
}

/// Checks whether a key that covers `len` bytes from `start` with `allowed` rights admits the
/// access. Returns where it is from the key's start.
#[inline]
pub(super) fn check_range(allowed: u32, start: u64, len: u64, target: &Target, right: u32) -> Result<u64, Failure> {
    let rkey = target.rkey;
    if allowed & right == 0 {
        let text = format!("raddr.rkey {rkey:#x} does not allow {}", name_of(right));
        return Err(Failure::new(Syndrome::RemoteAccess, text));
    }
    let offset = target.raddr.wrapping_sub(start);
    if target.raddr < start || offset > len || target.len > len - offset {
        let text = format!(
            "raddr.raddr {:#x} + {} bytes is not within [{start:#x}, {:#x}) of rkey {rkey:#x}",
            target.raddr,
            target.len,
            u128::from(start) + u128::from(len),
        );
        return Err(Failure::new(Syndrome::RemoteAccess, text));
    }
    Ok(offset)
}
