//! Calls of device threads. Each lets the scheduler decide before the access, and executes it when
//! it is this thread's turn.

use std::ffi::{CStr, c_char};
use std::sync::Arc;

use oxshmem_system::mixing::scramble;

use super::accesses::{Store, Update};
use super::orders::{ACQUIRE, RELEASE, SYSTEM};
use super::{Status, WORLD, World};
use crate::interface::Hooks;
use crate::module::{Module, ModuleError, Recipe};

/// The calls that modules make.
static HOOKS: Hooks = Hooks {
    load: hook_load,
    load_second: hook_load_second,
    store: hook_store,
    update: hook_update,
    fence: hook_fence,
    mmio: hook_mmio,
    pause: hook_pause,
    clock: hook_clock,
    converged: hook_converged,
    warp: hook_warp,
    sync_block: hook_sync_block,
    note: hook_note,
};

/// Compiles a module, and loads it with the hooks of a world.
///
/// # Errors
/// The compiler, `patch` or the loader fails; see [`ModuleError`].
pub fn load(recipe: &Recipe) -> Result<Arc<Module>, ModuleError> {
    Module::new(recipe, &HOOKS)
}

/// Lets others run until it is this thread's turn again.
///
/// # Safety
/// Called on the stack of the world's running thread, with no reference to the world alive.
pub(crate) unsafe fn reschedule(world: *mut World) {
    // SAFETY: by the caller; references end before the coroutine is suspended.
    unsafe {
        let me = (*world).running;
        let next = (*world).next_thread();
        if next != Some(me) {
            (*world).resume = next;
            suspend(world, me);
        }
    }
}

/// Suspends for good if the execution is over.
///
/// # Safety
/// The same as in [`reschedule`].
pub(crate) unsafe fn stop_if_over(world: *mut World) {
    // SAFETY: by the caller.
    unsafe {
        if (*world).failure.is_some() {
            let me = (*world).running;
            (*world).resume = None;
            suspend(world, me);
        }
    }
}

unsafe fn suspend(world: *mut World, me: usize) {
    // SAFETY: the yielder lives on this coroutine's stack for as long as it runs.
    unsafe {
        let yielder = (&(*world).threads)[me].yielder;
        (*yielder).suspend(());
    }
}

/// Returns the world, and the thread that runs in it.
fn current() -> (*mut World, usize) {
    let world = WORLD.get();
    // SAFETY: calls come from device threads only, whose world has set the pointer.
    (world, unsafe { (*world).running })
}

unsafe extern "C" fn hook_load(address: u64, bytes: u32, order: u32, _reach: u32) -> u64 {
    let (world, me) = current();
    // SAFETY: this is the running thread of the world, and no reference is kept over `reschedule`.
    unsafe {
        (*world).about_to_access(me, address);
        reschedule(world);
        (*world).load(me, address, bytes, order)
    }
}

/// The HCA writes a CQE as a whole, and a pair of loads is one access, so the second sees the same
/// CQE as the first.
unsafe extern "C" fn hook_load_second(address: u64, bytes: u32, order: u32, reach: u32) -> u64 {
    let (world, me) = current();
    // SAFETY: as above.
    unsafe {
        if !(*world).is_of_cqe(address) {
            return hook_load(address, bytes, order, reach);
        }
        (*world).steps += 1;
        (*world).load(me, address, bytes, order)
    }
}

unsafe extern "C" fn hook_store(address: u64, bytes: u32, value: u64, order: u32, _reach: u32) {
    let (world, me) = current();
    // SAFETY: as above.
    unsafe {
        (*world).steps += 1;
        (*world).store(me, Store { address, bytes, value, release: order == RELEASE, doorbell: false });
    }
}

unsafe extern "C" fn hook_update(
    kind: u32,
    address: u64,
    bytes: u32,
    operand: u64,
    expected: u64,
    order: u32,
    reach: u32,
) -> u64 {
    let (world, me) = current();
    // SAFETY: as above.
    unsafe {
        (*world).about_to_access(me, address);
        reschedule(world);
        let old = (*world).update(me, Update { kind, address, bytes, operand, expected, order, reach });
        stop_if_over(world);
        old
    }
}

unsafe extern "C" fn hook_fence(order: u32, reach: u32) {
    let (world, me) = current();
    // SAFETY: as above.
    unsafe {
        if order >= RELEASE && (*world).has_unordered(me, reach == SYSTEM) {
            reschedule(world);
            (*world).say(|world| {
                let scope = ["block", "device", "system"][reach.min(2) as usize];
                format!("{} fences ({scope})", world.who(me))
            });
            if reach != 0 {
                (*world).flush(me, reach == SYSTEM);
            }
            (*world).moved_on(me);
        } else {
            (*world).steps += 1;
            (*world).say(|world| format!("{} fences, with nothing to order", world.who(me)));
        }
        if order & ACQUIRE != 0 {
            (&mut (*world).threads)[me].floor = (*world).now();
        }
        stop_if_over(world);
    }
}

unsafe extern "C" fn hook_mmio(address: u64, value: u64) {
    let (world, me) = current();
    // SAFETY: as above.
    unsafe {
        (*world).steps += 1;
        (*world).store(me, Store { address, bytes: 8, value, release: false, doorbell: true });
    }
}

unsafe extern "C" fn hook_pause(site: u64) {
    let (world, me) = current();
    // SAFETY: as above.
    unsafe {
        (*world).pause(me, site);
        (&mut (*world).threads)[me].wants = u32::MAX;
        reschedule(world);
        (*world).moved_on(me);
    }
}

unsafe extern "C" fn hook_clock() -> u64 {
    let (world, _) = current();
    // SAFETY: as above.
    unsafe { (*world).time }
}

unsafe extern "C" fn hook_converged(site: u64, key: u64) -> u32 {
    let (world, me) = current();
    // SAFETY: as above.
    unsafe {
        let lane = (&(*world).threads)[me].device.lane;
        if (*world).program.lanes == 1 || (*world).policy.chance(4) {
            return 1 << lane;
        }
        (&mut (*world).threads)[me].status = Status::Converging { site, key };
        (*world).check_converging(me);
        reschedule(world);
        let mask = (&(*world).threads)[me].result;
        let hash = &mut (&mut (*world).threads)[me].hash;
        *hash = scramble(*hash ^ mask);
        mask as u32
    }
}

unsafe fn in_warp(kind: u32, mask: u32, value: u64, source: u32) -> u64 {
    let (world, me) = current();
    // SAFETY: as above.
    unsafe {
        (&mut (*world).threads)[me].status = Status::InWarp { kind, mask, value, source };
        (*world).check_warp(me);
        (*world).check_converging(me);
        reschedule(world);
        (&(*world).threads)[me].result
    }
}

unsafe extern "C" fn hook_warp(kind: u32, mask: u32, value: u64, source: u32) -> u64 {
    let lanes = {
        let (world, _) = current();
        // SAFETY: as above.
        unsafe { (*world).program.lanes }
    };
    let mask = if lanes >= 32 { mask } else { mask & ((1 << lanes) - 1) };
    // SAFETY: as above.
    unsafe { in_warp(kind, mask, value, source) }
}

unsafe extern "C" fn hook_sync_block(predicate: u32) -> u64 {
    let (world, _) = current();
    // SAFETY: as above.
    unsafe {
        let lanes = (*world).program.lanes;
        in_warp(5, if lanes >= 32 { u32::MAX } else { (1 << lanes) - 1 }, predicate.into(), 0)
    }
}

unsafe extern "C" fn hook_note(kind: u32, a: u64, b: u64, c: u64, d: u64) {
    let world = WORLD.get();
    // SAFETY: as above; during setup there is no thread, and only `kNoteSet` comes.
    unsafe {
        if kind == 6 {
            let address = u64::from((*world).exports().heap_at) + a * u64::from((*world).exports().heap_bytes) + b;
            let base = (*world).memory.base;
            (*world).memory.set_image(base + address, &c.to_le_bytes());
            return;
        }
        let me = (*world).running;
        match kind {
            1 => {
                let bytes = std::slice::from_raw_parts(b as *const u8, c as usize);
                (*world).announce_put(me, a, bytes, d as u32);
            }
            2 => (*world).announce_add(me, a, b, d as u32),
            3 => (&mut (*world).threads)[me].epoch += 1,
            4 => (*world).check_quiet(me, me),
            7 => (*world).check_quiet(me, a as usize),
            _ => {
                let text = CStr::from_ptr(a as *const c_char).to_string_lossy().into_owned();
                let who = (*world).who(me);
                (*world).fail(format!("{who}: {text}"));
            }
        }
        stop_if_over(world);
    }
}
