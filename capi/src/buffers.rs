//! Memory of the program that is registered with the network's cards, for C.

use std::ffi::{c_int, c_void};

use crate::with_pe;

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
