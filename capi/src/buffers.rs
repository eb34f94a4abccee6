//! Memory of the program that is registered with the network's cards, for C.

use std::ffi::{c_int, c_void};

use crate::error::Failure;
use crate::{answer, process, with_pe};

#[unsafe(no_mangle)]
unsafe extern "C" fn oxshmemx_buffer_register(address: *mut c_void, bytes: usize) -> c_int {
    // SAFETY: the caller keeps the memory until it is unregistered.
    with_pe(|own| Ok(unsafe { own.register_buffer(address, bytes) }?))
}

#[unsafe(no_mangle)]
extern "C" fn oxshmemx_buffer_unregister(address: *mut c_void) -> c_int {
    with_pe(|own| Ok(own.unregister_buffer(address)?))
}

#[unsafe(no_mangle)]
extern "C" fn oxshmemx_buffer_unregister_all() -> c_int {
    with_pe(|own| Ok(own.unregister_all_buffers()?))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn oxshmemx_buffer_register_symmetric(address: *mut c_void, bytes: usize) -> *mut c_void {
    answer(
        |_| std::ptr::null_mut(),
        || {
            let pe = process::pe();
            let own = pe.as_ref().ok_or_else(Failure::no_pe)?;
            // SAFETY: the caller keeps the memory until it is unregistered, and uses it elsewhere
            // after the call.
            let slice = unsafe { own.register_symmetric(address, bytes) }?;
            Ok(slice.address() as *mut c_void)
        },
    )
}

#[unsafe(no_mangle)]
extern "C" fn oxshmemx_buffer_unregister_symmetric(address: *mut c_void) -> c_int {
    with_pe(|own| Ok(own.unregister_symmetric_at(address as u64)?))
}
