//! Translation units of a CUDA-runtime program: each has a state symbol of its own
//! (`oxshmem/port/unit.h`), which is filled when there is a PE. Units come and go with the
//! libraries that hold them.

use std::ffi::{CStr, c_char, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};

use api::device::DeviceError;
use api::device::cpu::ModuleError;
use api::{Pe, abi};

use crate::error::Failure;
use crate::process;

/// `oxshmem_unit`.
#[repr(C)]
#[derive(Debug)]
pub struct RawUnit {
    abi_version: u32,
    state_bytes: u32,
    name: *const c_char,
    locate: unsafe extern "C" fn(address: *mut *mut c_void, bytes: *mut usize) -> *const c_char,
}

/// A unit that is in memory.
#[derive(Debug)]
struct Unit {
    raw: *const RawUnit,
    /// It has the present PE's state.
    filled: bool,
}

// SAFETY: what a unit points to is static, and never written after it was registered.
unsafe impl Send for Unit {}

static UNITS: Mutex<Vec<Unit>> = Mutex::new(Vec::new());

fn units() -> MutexGuard<'static, Vec<Unit>> {
    UNITS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes a unit in; gives it the PE's state if there is a PE.
///
/// # Safety
/// `raw` stays what it is until it is unregistered.
pub(crate) unsafe fn register(raw: *const RawUnit) -> Result<(), Failure> {
    let pe = process::pe();
    let mut unit = Unit { raw, filled: false };
    let filled = pe.as_ref().map_or(Ok(()), |pe| fill(pe, &mut unit));
    units().push(unit);
    if let Err(failure) = &filled {
        // A constructor has no caller that it could report an error to.
        tracing::error!(error = failure.text(), "kernels of a library that was loaded after init cannot be used");
    }
    filled
}

pub(crate) fn unregister(raw: *const RawUnit) {
    units().retain(|unit| unit.raw != raw);
}

/// Gives every unit the PE's state.
pub(crate) fn install(pe: &Pe) -> Result<(), Failure> {
    units().iter_mut().try_for_each(|unit| fill(pe, unit))
}

/// Forgets the units of a PE that is gone.
pub(crate) fn forget() {
    units().iter_mut().for_each(|unit| unit.filled = false);
}

fn fill(pe: &Pe, unit: &mut Unit) -> Result<(), Failure> {
    if unit.filled {
        return Ok(());
    }
    // SAFETY: it is registered, so it is there; `name` is static text.
    let (raw, name) = unsafe { (&*unit.raw, CStr::from_ptr((*unit.raw).name)) };
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
    unsafe { pe.register_unit(&name, locate) }?;
    unit.filled = true;
    Ok(())
}
