//! Aggregating contexts for C.

use std::ffi::{c_int, c_long, c_void};
use std::time::Duration;

use api::abi;
use api::{Aggregate, AggregateOptions, Pe};

use crate::error::Failure;
use crate::with_pe;

/// `oxshmemx_aggregate_t`: the bytes of [`abi::Aggregate`].
#[repr(C)]
#[derive(Debug, Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
pub struct RawAggregate {
    words: [u64; 11],
}

/// `oxshmemx_aggregate_config_t`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct RawConfig {
    segment: usize,
    age_us: c_long,
}

/// Returns what a configuration means; null is the default.
///
/// # Safety
/// Null, or a configuration.
unsafe fn options_of(config: *const RawConfig) -> Result<AggregateOptions, Failure> {
    // SAFETY: the caller's promise.
    let Some(config) = (unsafe { config.as_ref() }) else { return Ok(AggregateOptions::new()) };
    let mut options = AggregateOptions::new();
    if config.segment != 0 {
        options = options.segment(config.segment as u64);
    }
    if config.age_us != -1 {
        let age = u64::try_from(config.age_us);
        let refuse = |_| Failure::invalid(format!("age_us is {}; it is at least 0, or -1 for 200", config.age_us));
        options = options.age(Duration::from_micros(age.map_err(refuse)?));
    }
    Ok(options)
}

fn find(own: &Pe, aggregate: RawAggregate) -> Result<Aggregate, Failure> {
    Ok(own.aggregate_of(bytemuck::cast::<RawAggregate, abi::Aggregate>(aggregate).set)?)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn oxshmemx_aggregate_bytes(team: i32, config: *const RawConfig, bytes: *mut usize) -> c_int {
    with_pe(|own| {
        // SAFETY: null, or room for a number.
        let bytes = unsafe { bytes.as_mut() }.ok_or_else(|| Failure::invalid("bytes is null".into()))?;
        // SAFETY: the caller's promise.
        let options = unsafe { options_of(config) }?;
        *bytes = options.words(&own.team(team)?).map_err(api::Error::from)? * size_of::<u64>();
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn oxshmemx_team_create_aggregate(
    team: i32,
    config: *const RawConfig,
    memory: *mut c_void,
    bytes: usize,
    aggregate: *mut RawAggregate,
) -> c_int {
    with_pe(|own| {
        // SAFETY: null, or room for one.
        let to = unsafe { aggregate.as_mut() }.ok_or_else(|| Failure::invalid("aggregate is null".into()))?;
        // SAFETY: the caller's promise.
        let options = unsafe { options_of(config) }?;
        let place = (memory as u64, bytes / size_of::<u64>());
        let made = own.team(team)?.create_aggregate_at(own, place, &options)?;
        *to = bytemuck::cast(*made.as_device_has_it());
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn oxshmemx_aggregate_unacknowledged(aggregate: RawAggregate, operations: *mut u64) -> c_int {
    with_pe(|own| {
        if operations.is_null() {
            return Err(Failure::invalid("operations is null".into()));
        }
        let lost = find(own, aggregate)?.unacknowledged(own)?;
        // SAFETY: the caller's promise: room for a number for each PE of the job.
        let counts = unsafe { std::slice::from_raw_parts_mut(operations, own.n_pes()) };
        counts.fill(0);
        for at in lost.by_pe {
            counts[at.pe] += at.operations;
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn oxshmemx_aggregate_destroy(aggregate: RawAggregate) -> c_int {
    with_pe(|own| Ok(find(own, aggregate)?.destroy(own)?))
}
