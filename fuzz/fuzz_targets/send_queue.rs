//! Arbitrary bytes as the send queue of the software HCA.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| oxshmem_hca::soft::fuzz::run_send_queue(input));
