//! Arbitrary bytes as frames of the fabric between nodes.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| oxshmem_hca::soft::fuzz::run_fabric(input));
