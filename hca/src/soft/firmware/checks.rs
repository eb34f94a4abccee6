//! Refusals, and the checks that several commands make.

use crate::error::Error;
use crate::prm::counter::QueryQCounterOut;
use crate::prm::qpc::QpState;
use crate::prm::{Command, CommandStatus};
use crate::soft::state::{CqState, Engine, MkeyState, PdState, Qp, UarState, UmemState};
use oxshmem_system::words::{count32, native};

/// Why a command is refused.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) status: CommandStatus,
    pub(super) bit: u32,
    pub(super) detail: String,
}

pub(super) type Outcome<T> = Result<T, Refusal>;

pub(super) fn refuse<T>(status: CommandStatus, bit: u32, detail: impl Into<String>) -> Outcome<T> {
    Err(Refusal { status, bit, detail: detail.into() })
}

/// Checks lengths and reserved bits.
pub(super) fn decode<C: Command>(input: &[u8], output: &[u8]) -> Outcome<C> {
    if input.len() < C::IN_LEN {
        let detail = format!("{} bytes of input, {} needed", input.len(), C::IN_LEN);
        return refuse(CommandStatus::BadInputLength, 0, detail);
    }
    if output.len() < C::OUT_LEN {
        let detail = format!("room for {} bytes of output, {} needed", output.len(), C::OUT_LEN);
        return refuse(CommandStatus::BadOutputLength, 0, detail);
    }
    C::decode(input).or_else(|bit| {
        refuse(CommandStatus::BadParam, count32(bit), format!("bit {bit:#x} of the input is reserved and must be 0"))
    })
}

/// Checks a range of a umem and returns where it is.
pub(super) fn within(umem: &UmemState, offset: u64, len: u64, align: u64, bit: u32, what: &str) -> Outcome<*mut u8> {
    if offset.checked_add(len).is_none_or(|end| end > umem.len) {
        let detail = format!("{what}: {len} bytes at offset {offset:#x} do not fit a umem of {} bytes", umem.len);
        return refuse(CommandStatus::BadParam, bit, detail);
    }
    let at = umem.addr.wrapping_add(native(offset));
    if !(at.addr() as u64).is_multiple_of(align) {
        let detail = format!("{what}: offset {offset:#x} is not aligned to {align} bytes in memory");
        return refuse(CommandStatus::BadParam, bit, detail);
    }
    Ok(at)
}

pub(super) fn need_write(umem: &UmemState, bit: u32, what: &str) -> Outcome<()> {
    if umem.access.local_write {
        return Ok(());
    }
    refuse(CommandStatus::BadParam, bit, format!("{what}: the umem was registered without local write"))
}

pub(super) fn check_opt_param_mask(mask: u32) -> Outcome<()> {
    if mask == 0 {
        return Ok(());
    }
    refuse(CommandStatus::BadParam, 0x80, format!("opt_param_mask {mask:#x}: no optional field is supported"))
}

pub(super) fn expect_state(qp: &Qp, state: QpState, transition: &str) -> Outcome<()> {
    if qp.state == state {
        return Ok(());
    }
    let detail = format!("QP {:#x} is in state {}, {transition} needs {}", qp.qpn, qp.state.name(), state.name());
    refuse(CommandStatus::BadQpState, 0x48, detail)
}

pub(super) fn busy(users: usize, kind: &str, number: u32, by: &str) -> Outcome<()> {
    if users == 0 {
        return Ok(());
    }
    let detail = format!("{kind} {number:#x} is used by {users} {by}; destroy them first");
    refuse(CommandStatus::ResourceBusy, 0x48, detail)
}

pub(super) fn full(what: &str, limit: usize) -> Refusal {
    Refusal { status: CommandStatus::NoResources, bit: 0, detail: format!("all {limit} {what} are in use") }
}

pub(super) fn no_memory<T>(error: &Error) -> Outcome<T> {
    refuse(CommandStatus::NoResources, 0, error.to_string())
}

impl Engine {
    pub(super) fn pd(&self, pd: u32) -> Outcome<&PdState> {
        self.pds
            .get(pd)
            .map_or_else(|| refuse(CommandStatus::BadResource, 0x48, format!("no protection domain {pd}")), Ok)
    }

    pub(super) fn uar(&self, uar: u32, bit: u32) -> Outcome<&UarState> {
        self.uars.get(uar).map_or_else(|| refuse(CommandStatus::BadResource, bit, format!("no UAR page {uar}")), Ok)
    }

    pub(super) fn umem(&self, id: u32, bit: u32) -> Outcome<&UmemState> {
        self.umems.get(&id).map_or_else(|| refuse(CommandStatus::BadResource, bit, format!("no umem {id}")), Ok)
    }

    pub(super) fn mkey(&self, index: u32) -> Outcome<&MkeyState> {
        self.mkeys
            .get(index)
            .map_or_else(|| refuse(CommandStatus::BadResource, 0x48, format!("no key with index {index:#x}")), Ok)
    }

    pub(super) fn cq(&self, cqn: u32, bit: u32) -> Outcome<&CqState> {
        self.cqs.get(cqn).map_or_else(|| refuse(CommandStatus::BadResource, bit, format!("no CQ {cqn:#x}")), Ok)
    }

    pub(super) fn qp(&self, qpn: u32) -> Outcome<&Qp> {
        match self.qps.get(qpn) {
            Some(qp) => Ok(qp),
            None => refuse(CommandStatus::BadResource, 0x48, format!("no QP {qpn:#x}")),
        }
    }

    pub(super) fn error_counter(&mut self, set: u8, bit: u32) -> Outcome<&mut QueryQCounterOut> {
        let detail = || format!("no set {set} of error counters");
        self.error_counters.get_mut(set.into()).map_or_else(|| refuse(CommandStatus::BadResource, bit, detail()), Ok)
    }

    pub(super) fn use_pd(&mut self, pd: u32, change: isize) {
        if let Some(pd) = self.pds.get_mut(pd) {
            pd.users = pd.users.saturating_add_signed(change);
        }
    }

    pub(super) fn use_uar(&mut self, uar: u32, change: isize) {
        if let Some(uar) = self.uars.get_mut(uar) {
            uar.users = uar.users.saturating_add_signed(change);
        }
    }

    pub(super) fn use_umem(&mut self, id: u32, change: isize) {
        if let Some(umem) = self.umems.get_mut(&id) {
            umem.users = umem.users.saturating_add_signed(change);
        }
    }
}
