//! Arbitrary histories of connections, frames, garbage and deadlines at the bootstrap's hub.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| oxshmem::bootstrap::fuzz::frames(input));
