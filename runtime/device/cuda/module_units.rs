//! State symbols of a module of relocatable code: each of its translation units has one, under a
//! name that nvcc made. A kernel of the unit, whose name has a known part, says where it is.

use std::ffi::{CStr, c_char, c_void};
use std::sync::Arc;

use cudarc::driver::sys::{CUfunction, CUmodule};

use super::driver::{DriverError, driver};
use super::memory::Pinned;
use super::stream::Stream;
use crate::device::error::DeviceError;

/// A part of the name of the kernel that `oxshmem/port/cuda.h` gives a unit.
const KERNEL: &str = "oxshmem_state_of_unit";

/// Returns the addresses of the state symbols of a module's units. The context must be current.
pub(super) fn states(stream: &Arc<Stream>, module: CUmodule) -> Result<Vec<u64>, DeviceError> {
    let failed = |error| {
        stream.error(
            "cannot look for the state symbols of a module, which has to be linked if it is relocatable code (nvcc -dlink -cubin)",
            error,
        )
    };
    let kernels = kernels(module).map_err(failed)?;
    if kernels.is_empty() {
        return Ok(Vec::new());
    }
    stream.check_waits()?;
    let place = Pinned::new(Arc::clone(stream), size_of::<u64>())?;
    let mut states = Vec::with_capacity(kernels.len());
    for kernel in kernels {
        let mut to = place.as_ptr();
        let mut arguments = [(&raw mut to).cast::<c_void>()];
        let (none, raw) = (std::ptr::null_mut(), stream.raw());
        // SAFETY: the kernel takes one pointer, and stores a pointer there; it ends before `place`
        // is read.
        unsafe { driver!(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, raw, arguments.as_mut_ptr(), none)) }
            .map_err(failed)?;
        stream.wait()?;
        // SAFETY: page-locked memory of this size, aligned to a page, which the kernel has written.
        states.push(unsafe { place.as_ptr().cast::<u64>().read_volatile() });
    }
    Ok(states)
}

/// Returns the kernels of a module that say where a state symbol is.
fn kernels(module: CUmodule) -> Result<Vec<CUfunction>, DriverError> {
    let mut count = 0;
    // SAFETY: writes one integer.
    unsafe { driver!(cuModuleGetFunctionCount(&raw mut count, module)) }?;
    let mut functions: Vec<CUfunction> = vec![std::ptr::null_mut(); count as usize];
    // SAFETY: there is room for as many.
    unsafe { driver!(cuModuleEnumerateFunctions(functions.as_mut_ptr(), count, module)) }?;
    let mut found = Vec::new();
    for function in functions {
        let mut name: *const c_char = std::ptr::null();
        // SAFETY: writes one pointer, to text that lives as long as the module.
        unsafe { driver!(cuFuncGetName(&raw mut name, function)) }?;
        // SAFETY: text that ends with 0.
        if !name.is_null() && unsafe { CStr::from_ptr(name) }.to_string_lossy().contains(KERNEL) {
            found.push(function);
        }
    }
    Ok(found)
}
