//! Translation units of a CUDA-runtime program: each has a state symbol of its own
//! (`oxshmem/port/unit.h`), which is filled when there is a PE. Units come and go with the
//! libraries that hold them.

use std::ffi::{CStr, c_char, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use api::device::DeviceError;
use api::device::cpu::ModuleError;
use api::{Pe, abi};

use crate::error::Failure;

/// `oxshmem_unit`.
#[repr(C)]
#[derive(Debug)]
pub struct RawUnit {
    abi_version: u32,
    state_bytes: u32,
    name: *const c_char,
    locate: unsafe extern "C" fn(address: *mut *mut c_void, bytes: *mut usize) -> *const c_char,
}

/// How far a unit is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// It waits for the state of a PE.
    Pending,
    /// A thread gives it the state.
    InWork,
    /// It has the present PE's state, or cannot have it.
    Done,
}

/// A unit that is in memory.
#[derive(Debug)]
struct Unit {
    raw: *const RawUnit,
    state: State,
}

// SAFETY: what a unit points to is static, and never written after it was registered.
unsafe impl Send for Unit {}

/// The units. The CUDA runtime is never called with the lock held: it may wait for the loader's
/// lock, and the thread that has that may be about to register a unit.
static UNITS: Mutex<Vec<Unit>> = Mutex::new(Vec::new());
/// A unit is no longer in work.
static ENDED: Condvar = Condvar::new();
/// A copy of whether a unit is pending, for calls that end.
static PENDING: AtomicBool = AtomicBool::new(false);

/// How long the end of a unit waits for the thread that gives it the state.
const PATIENCE: Duration = Duration::from_secs(10);

fn units() -> MutexGuard<'static, Vec<Unit>> {
    UNITS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes a unit in, which waits for the state of a PE.
///
/// # Safety
/// `raw` stays what it is until it is unregistered.
pub(crate) unsafe fn add(raw: *const RawUnit) {
    units().push(Unit { raw, state: State::Pending });
    PENDING.store(true, Ordering::Release);
}

/// Forgets a unit, which is gone when this has returned.
pub(crate) fn unregister(raw: *const RawUnit) {
    let in_work = |units: &mut Vec<Unit>| units.iter().any(|unit| unit.raw == raw && unit.state == State::InWork);
    let (mut units, waited) =
        ENDED.wait_timeout_while(units(), PATIENCE, in_work).unwrap_or_else(PoisonError::into_inner);
    if waited.timed_out() {
        tracing::error!("a library is unloaded while the CUDA runtime looks for a symbol of it");
    }
    units.retain(|unit| unit.raw != raw);
}

/// Returns whether units wait for the state of a PE.
pub(crate) fn are_pending() -> bool {
    PENDING.load(Ordering::Acquire)
}

/// Gives every unit that waits for it the PE's state; the first error. The caller has the PE's
/// lock.
pub(crate) fn install(pe: &Pe) -> Result<(), Failure> {
    let mut installed = Ok(());
    while let Some(raw) = take_pending() {
        let filled = fill(pe, raw);
        for unit in units().iter_mut().filter(|unit| unit.raw == raw) {
            unit.state = State::Done;
        }
        ENDED.notify_all();
        if let Err(failure) = &filled {
            // A constructor has no caller that it could report an error to.
            tracing::error!(error = failure.text(), "kernels of a translation unit cannot be used");
        }
        installed = installed.and(filled);
    }
    installed
}

/// Returns a unit that waits for the state of a PE, which is in work now.
fn take_pending() -> Option<*const RawUnit> {
    let mut units = units();
    let pending = units.iter_mut().find(|unit| unit.state == State::Pending);
    if pending.is_none() {
        PENDING.store(false, Ordering::Release);
    }
    pending.map(|unit| {
        unit.state = State::InWork;
        unit.raw
    })
}

/// Forgets the state of a PE that is gone. The caller has the PE's lock.
pub(crate) fn forget() {
    let mut units = units();
    units.iter_mut().for_each(|unit| unit.state = State::Pending);
    PENDING.store(!units.is_empty(), Ordering::Release);
}

fn fill(pe: &Pe, raw: *const RawUnit) -> Result<(), Failure> {
    // SAFETY: it is in work, so it stays registered; `name` is static text.
    let (raw, name) = unsafe { (&*raw, CStr::from_ptr((*raw).name)) };
    let name = name.to_string_lossy();
    let runtime_bytes = u32::try_from(size_of::<abi::State>()).unwrap_or(u32::MAX);
    if (raw.abi_version, raw.state_bytes) != (abi::ABI_VERSION, runtime_bytes) {
        let source = ModuleError::AbiVersion {
            module: raw.abi_version,
            module_bytes: raw.state_bytes,
            runtime: abi::ABI_VERSION,
            runtime_bytes,
        };
        return Err(api::Error::from(DeviceError::Module { module: name.into_owned(), source }).into());
    }
    let locate = || {
        let (mut address, mut bytes) = (std::ptr::null_mut(), 0);
        // SAFETY: the function of a registered unit; it writes the two values and returns null or a
        // static text.
        let problem = unsafe {
            let problem = (raw.locate)(&raw mut address, &raw mut bytes);
            if problem.is_null() { None } else { Some(CStr::from_ptr(problem).to_string_lossy().into_owned()) }
        };
        problem.map_or(Ok((address as u64, bytes)), Err)
    };
    // SAFETY: the symbol is there as long as the unit's code, and no kernel of the unit runs yet:
    // without the state it would be of no use.
    Ok(unsafe { pe.register_unit(&name, locate) }?)
}
