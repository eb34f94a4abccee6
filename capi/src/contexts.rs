//! Contexts for C.

use std::ffi::{c_int, c_long};

use api::abi;
use api::config::Rails;
use api::{ContextOptions, Pe, Sharing};

use crate::error::Failure;
use crate::with_pe;

/// `oxshmem_ctx_t`: the bytes of [`abi::Context`].
#[repr(C)]
#[derive(Debug, Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
pub struct RawContext {
    words: [u64; 6],
}

/// `oxshmemx_ctx_config_t`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct RawConfig {
    count: c_int,
    sharing: c_int,
    depth: c_int,
    card: c_int,
    rails: c_int,
}

/// Options of `oxshmem_ctx_create`.
mod options {
    use std::ffi::c_long;

    pub const SERIALIZED: c_long = 1;
    pub const PRIVATE: c_long = 2;
    pub const NOSTORE: c_long = 4;
}

/// Creates contexts and writes them to `to`, one after another.
///
/// # Safety
/// Null, or room for as many as the options say.
unsafe fn create(own: &Pe, team: i32, options: &ContextOptions, to: *mut RawContext) -> Result<(), Failure> {
    if to.is_null() {
        return Err(Failure::invalid("the pointer to contexts is null".into()));
    }
    let made = own.team(team)?.create_contexts(own, options)?;
    for (index, context) in made.as_device_has_them().0.iter().enumerate() {
        // SAFETY: the caller's promise.
        unsafe { to.add(index).write(bytemuck::cast(*context)) };
    }
    Ok(())
}

/// Returns what the options of OpenSHMEM mean.
fn options_of(bits: c_long) -> Result<ContextOptions, Failure> {
    let known = options::SERIALIZED | options::PRIVATE | options::NOSTORE;
    if bits & !known != 0 {
        return Err(Failure::invalid(format!(
            "options {bits:#x} of a context; they are OXSHMEM_CTX_SERIALIZED (1), _PRIVATE (2) and _NOSTORE (4)"
        )));
    }
    let alone = bits & (options::SERIALIZED | options::PRIVATE) != 0;
    Ok(ContextOptions::new(if alone { Sharing::Thread } else { Sharing::Device }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn oxshmem_ctx_create(options: c_long, ctx: *mut RawContext) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { oxshmem_team_create_ctx(abi::TEAM_WORLD, options, ctx) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn oxshmem_team_create_ctx(team: i32, options: c_long, ctx: *mut RawContext) -> c_int {
    with_pe(|own| {
        // SAFETY: the caller's promise: null, or room for one.
        unsafe { create(own, team, &options_of(options)?, ctx) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn oxshmemx_team_create_ctxs(team: i32, config: *const RawConfig, ctxs: *mut RawContext) -> c_int {
    with_pe(|own| {
        // SAFETY: null, or a configuration.
        let config = unsafe { config.as_ref() }.ok_or_else(|| Failure::invalid("config is null".into()))?;
        let sharing = match config.sharing {
            0 => Sharing::Thread,
            1 => Sharing::Warp,
            2 => Sharing::Block,
            3 => Sharing::Device,
            other => {
                return Err(Failure::invalid(format!(
                    "sharing {other} is invalid; use OXSHMEMX_CTX_THREAD (0) to OXSHMEMX_CTX_DEVICE (3)"
                )));
            }
        };
        let rails = match config.rails {
            0 => Rails::Auto,
            1 => Rails::Direct,
            2 => Rails::Push,
            other => {
                return Err(Failure::invalid(format!(
                    "rails {other} is invalid; use OXSHMEMX_CTX_RAILS_AUTO (0), _DIRECT (1) or _PUSH (2)"
                )));
            }
        };
        let count = usize::try_from(config.count).unwrap_or_default();
        let mut options = ContextOptions::new(sharing).count(count).rails(rails);
        if config.depth != 0 {
            options = options.depth(u32::try_from(config.depth).unwrap_or_default());
        }
        if config.card != -1 {
            options = options.card(u32::try_from(config.card).unwrap_or(u32::MAX));
        }
        // SAFETY: the caller's promise: null, or room for `count`.
        unsafe { create(own, team, &options, ctxs) }
    })
}

/// Returns the number of a context's set.
fn set_of(ctx: RawContext) -> u32 {
    bytemuck::cast::<RawContext, abi::Context>(ctx).set
}

#[unsafe(no_mangle)]
unsafe extern "C" fn oxshmemx_ctx_device_array(ctx: RawContext, array: *mut *const RawContext) -> c_int {
    with_pe(|own| {
        // SAFETY: null, or room for a pointer.
        let array = unsafe { array.as_mut() }.ok_or_else(|| Failure::invalid("array is null".into()))?;
        let contexts = own.contexts_of(set_of(ctx))?;
        *array = contexts.as_device_has_them().1 as *const RawContext;
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn oxshmemx_ctx_number(ctx: RawContext, first: *mut c_int) -> c_int {
    with_pe(|own| {
        // SAFETY: null, or room for a number.
        let first = unsafe { first.as_mut() }.ok_or_else(|| Failure::invalid("first is null".into()))?;
        *first = own.contexts_of(set_of(ctx))?.numbers(own)?.start.cast_signed();
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn oxshmem_ctx_destroy(ctx: RawContext) -> c_int {
    with_pe(|own| Ok(own.contexts_of(set_of(ctx))?.destroy(own)?))
}
