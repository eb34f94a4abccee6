//! Counters.

use std::ffi::{c_char, c_int};

use api::Traffic;

use crate::error::Failure;
use crate::{given_away, peer, with_pe};

/// `oxshmem_traffic`.
#[repr(C)]
struct CTraffic {
    operations: u64,
    bytes: u64,
    messages: u64,
    message_bytes: u64,
    doorbells: u64,
    completions: u64,
    errors: u64,
}

/// What stands for a number that is not counted, `OXSHMEM_NOT_COUNTED`.
const NOT_COUNTED: u64 = u64::MAX;

impl From<Traffic> for CTraffic {
    fn from(traffic: Traffic) -> Self {
        let known = |count: Option<u64>| count.unwrap_or(NOT_COUNTED);
        Self {
            operations: traffic.operations,
            bytes: traffic.bytes,
            messages: known(traffic.messages),
            message_bytes: known(traffic.message_bytes),
            doorbells: known(traffic.doorbells),
            completions: known(traffic.completions),
            errors: known(traffic.errors),
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn oxshmem_peer_counters(pe: c_int, traffic: *mut CTraffic) -> c_int {
    with_pe(|own| {
        let pe = peer(own, pe)?;
        // SAFETY: null, or a place for the structure.
        let to = unsafe { traffic.as_mut() }.ok_or_else(|| Failure::invalid("traffic is null".to_owned()))?;
        let counters = own.counters()?;
        *to = counters.peers.get(pe).map(|count| count.traffic).unwrap_or_default().into();
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn oxshmem_counters_json(json: *mut *mut c_char) -> c_int {
    with_pe(|own| {
        // SAFETY: null, or a place for the address.
        let to = unsafe { json.as_mut() }.ok_or_else(|| Failure::invalid("json is null".to_owned()))?;
        let text = own.counters()?.to_json() + "\0";
        *to = given_away(text.as_bytes(), "cannot allocate host memory for counters")?.cast();
        Ok(())
    })
}
