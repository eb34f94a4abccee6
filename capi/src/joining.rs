//! Joining and leaving a job.

use std::ffi::{CStr, c_char, c_int};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use api::bootstrap::UniqueId;
use api::{Config, JobHandle, Joined, Pe};

use crate::error::Failure;
use crate::process::pe;
use crate::stage::{Stage, set_stage, stage};
use crate::{answer, int, status, units};

/// The PE between `oxshmem_join` and `oxshmem_open`.
static JOINED: Mutex<Option<Joined>> = Mutex::new(None);

/// What ends the job of the PE while calls that have its lock wait.
static JOB: Mutex<Option<JobHandle>> = Mutex::new(None);

/// Copies of values that a call can return without waiting for other calls; -1 without a PE.
static MY_PE: AtomicI32 = AtomicI32::new(-1);
static N_PES: AtomicI32 = AtomicI32::new(-1);
static NODE_MY_PE: AtomicI32 = AtomicI32::new(-1);
static NODE_N_PES: AtomicI32 = AtomicI32::new(-1);
static GPU: AtomicI32 = AtomicI32::new(-1);

fn joined() -> MutexGuard<'static, Option<Joined>> {
    JOINED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sets what ends the job. The lock is never held while a call waits.
fn set_job(job: Option<JobHandle>) {
    *JOB.lock().unwrap_or_else(PoisonError::into_inner) = job;
}

fn job() -> Option<JobHandle> {
    JOB.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Joins a job, and opens no device.
fn join(config: impl FnOnce() -> Result<Config, Failure>) -> Result<(), Failure> {
    let (mut place, open) = (joined(), pe());
    if place.is_some() || open.is_some() {
        return Err(api::Error::Occupied.into());
    }
    let config = config()?;
    // C programs have no subscriber of their own.
    config.init_log();
    let own = Pe::join(config)?;
    MY_PE.store(int(own.my_pe()), Ordering::Release);
    N_PES.store(int(own.n_pes()), Ordering::Release);
    NODE_MY_PE.store(int(own.node_my_pe()), Ordering::Release);
    NODE_N_PES.store(int(own.node_n_pes()), Ordering::Release);
    set_job(Some(own.job_handle()));
    *place = Some(own);
    set_stage(Stage::Joined);
    Ok(())
}

/// Opens the device of the PE that has joined, and fills the state symbols of all translation
/// units.
fn open() -> Result<(), Failure> {
    let (mut place, mut pe) = (joined(), pe());
    let own = place.take().ok_or_else(|| {
        Failure::no_pe_because(if pe.is_some() { "it is open already" } else { "call oxshmem_join first" })
    })?;
    let opened = own.open().map_err(Failure::from).and_then(|own| {
        own.make_gpu_current()?;
        if let Err(failure) = units::install(&own) {
            own.abort(&format!("PE {} cannot initialise: {}", own.my_pe(), failure.text()));
            return Err(failure);
        }
        Ok(own)
    });
    match opened {
        Ok(own) => {
            GPU.store(own.gpu().map_or(-1, |gpu| gpu.ordinal), Ordering::Release);
            *pe = Some(own);
            set_stage(Stage::Open);
            Ok(())
        }
        Err(failure) => {
            forget();
            set_job(None);
            Err(failure)
        }
    }
}

/// Forgets a PE that is gone.
fn forget() {
    for value in [&MY_PE, &N_PES, &NODE_MY_PE, &NODE_N_PES, &GPU] {
        value.store(-1, Ordering::Release);
    }
    set_stage(Stage::Absent);
    units::forget();
}

#[unsafe(no_mangle)]
extern "C" fn oxshmem_init() -> c_int {
    status(|| join(from_environment).and_then(|()| open()))
}

#[unsafe(no_mangle)]
extern "C" fn oxshmem_join() -> c_int {
    status(|| join(from_environment))
}

#[unsafe(no_mangle)]
extern "C" fn oxshmem_open() -> c_int {
    status(open)
}

fn from_environment() -> Result<Config, Failure> {
    Ok(Config::from_env().map_err(api::Error::from)?)
}

/// `oxshmem_uniqueid`.
#[repr(C)]
#[derive(Debug)]
pub struct RawUniqueId {
    text: [u8; 512],
}

/// Writes a text and zeros after it.
fn write(text: &str, to: &mut [u8]) -> Result<(), Failure> {
    if text.len() >= to.len() {
        return Err(Failure::internal(format!("the unique id has {} characters", text.len())));
    }
    to.fill(0);
    to[..text.len()].copy_from_slice(text.as_bytes());
    Ok(())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn oxshmem_get_uniqueid(id: *mut RawUniqueId) -> c_int {
    status(|| {
        // SAFETY: null, or a place for an id.
        let id = unsafe { id.as_mut() }.ok_or_else(|| Failure::invalid("id is null".into()))?;
        write(&UniqueId::create().map_err(api::Error::from)?.to_string(), &mut id.text)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn oxshmem_get_short_uniqueid(text: *mut c_char, bytes: usize) -> c_int {
    status(|| {
        crate::not_null("text", text, bytes)?;
        let id = UniqueId::create().map_err(api::Error::from)?;
        let short = id.shortened(bytes.saturating_sub(1)).ok_or_else(|| {
            Failure::invalid(format!("no address of this machine fits an id of {bytes} bytes; 96 are enough for one"))
        })?;
        // SAFETY: room for that many bytes, as the caller says.
        write(&short.to_string(), unsafe { std::slice::from_raw_parts_mut(text.cast(), bytes) })
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn oxshmem_init_with_uniqueid(id: *const RawUniqueId, pe: c_int, n_pes: c_int) -> c_int {
    // SAFETY: the caller's promise.
    status(|| join(|| unsafe { with_id(id.cast(), size_of::<RawUniqueId>(), pe, n_pes) }).and_then(|()| open()))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn oxshmem_join_with_uniqueid(text: *const c_char, pe: c_int, n_pes: c_int) -> c_int {
    status(|| {
        join(|| {
            crate::not_null("text", text, 1)?;
            // SAFETY: a text that ends with 0, as the caller says.
            unsafe { with_id(text, CStr::from_ptr(text).count_bytes(), pe, n_pes) }
        })
    })
}

/// Returns the configuration for a job with a unique id.
///
/// # Safety
/// Null, or a text of at most that many bytes, which a 0 may end.
unsafe fn with_id(id: *const c_char, bytes: usize, pe: c_int, n_pes: c_int) -> Result<Config, Failure> {
    if id.is_null() {
        return Err(Failure::invalid("id is null".into()));
    }
    // SAFETY: the caller's promise.
    let id = unsafe { std::slice::from_raw_parts(id.cast::<u8>(), bytes) };
    let end = id.iter().position(|byte| *byte == 0).unwrap_or(id.len());
    let id: UniqueId = String::from_utf8_lossy(&id[..end]).parse().map_err(Failure::invalid)?;
    let number = |name: &str, value: c_int| {
        u32::try_from(value).map_err(|_| Failure::invalid(format!("{name} is {value}; it cannot be negative")))
    };
    let (rank, npes) = (number("pe", pe)?, number("n_pes", n_pes)?);
    if rank >= npes {
        return Err(Failure::invalid(format!("pe is {rank} of n_pes {npes}; PEs count from 0 and stay below n_pes")));
    }
    let builder = Config::builder().env().unique_id(&id, rank, npes);
    Ok(builder.build().map_err(api::Error::from)?)
}

#[unsafe(no_mangle)]
extern "C" fn oxshmem_finalize() -> c_int {
    status(|| {
        let (mut place, mut open) = (joined(), pe());
        let (joined, opened) = (place.take(), open.take());
        if joined.is_some() || opened.is_some() {
            forget();
        }
        let left = match (joined, opened) {
            (None, None) => return Err(Failure::no_pe()),
            (Some(own), _) => own.leave(),
            (None, Some(own)) => own.finalize(),
        };
        // Until all PEs have come, the job can be ended.
        set_job(None);
        Ok(left?)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn oxshmem_abort(reason: *const c_char) -> c_int {
    status(|| {
        // SAFETY: null, or a text that ends with 0, as the caller says.
        let reason = (!reason.is_null()).then(|| unsafe { CStr::from_ptr(reason) }.to_string_lossy());
        let reason = reason.as_deref().unwrap_or("the program has ended the job");
        job().ok_or_else(Failure::no_pe)?.abort(reason);
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn oxshmem_exit_job(exit_status: c_int, reason: *const c_char) -> c_int {
    status(|| {
        // SAFETY: null, or a text that ends with 0, as the caller says.
        let reason = (!reason.is_null()).then(|| unsafe { CStr::from_ptr(reason) }.to_string_lossy());
        let reason = reason.as_deref().unwrap_or("the program has ended the job");
        job().ok_or_else(Failure::no_pe)?.exit_job(exit_status, reason);
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn oxshmem_exit_status(exit_status: *mut c_int) -> c_int {
    answer(
        |_| 0,
        || {
            let told = job().and_then(|job| job.exit_status());
            // SAFETY: null, or a place for a number.
            if let (Some(told), Some(to)) = (told, unsafe { exit_status.as_mut() }) {
                *to = told;
            }
            Ok(c_int::from(told.is_some()))
        },
    )
}

#[unsafe(no_mangle)]
extern "C" fn oxshmem_host_my_pe() -> c_int {
    MY_PE.load(Ordering::Acquire)
}

#[unsafe(no_mangle)]
extern "C" fn oxshmem_host_n_pes() -> c_int {
    N_PES.load(Ordering::Acquire)
}

#[unsafe(no_mangle)]
extern "C" fn oxshmem_host_node_my_pe() -> c_int {
    NODE_MY_PE.load(Ordering::Acquire)
}

#[unsafe(no_mangle)]
extern "C" fn oxshmem_host_node_n_pes() -> c_int {
    NODE_N_PES.load(Ordering::Acquire)
}

#[unsafe(no_mangle)]
extern "C" fn oxshmem_gpu() -> c_int {
    GPU.load(Ordering::Acquire)
}

#[unsafe(no_mangle)]
extern "C" fn oxshmem_stage() -> c_int {
    stage() as c_int
}
