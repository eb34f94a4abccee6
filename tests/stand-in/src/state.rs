//! Devices, open contexts, and what was made of them.

use std::collections::HashMap;
use std::ffi::c_char;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::fd::{AsRawFd, OwnedFd};
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use oxshmem::device::cpu_accelerator;
use oxshmem::device::cuda::{self, CardGpu};
use oxshmem_hca::provider::{self as hca, Gid, Provider};
use oxshmem_hca::soft::{FaultPlan, SoftHca, SoftOptions};
use oxshmem_hca::verbs::sys::ibverbs as ib;
use rustix::event::{EventfdFlags, eventfd};

use crate::devx::Pages;
use crate::lies::Lies;
use crate::{infiniband, mapping, verbs};

/// The event queue of completion vector 0.
pub(crate) const EVENT_QUEUE: u32 = 7;
/// Entries of a RoCE port's GID table: link-local and global, each as RoCE v1 and v2.
pub(crate) const GIDS: u32 = 4;
/// The upper half of global GIDs: 2001:db8::/64, for documentation.
pub(crate) const GLOBAL: u64 = 0x2001_0db8_0000_0000;

/// A device of the list; never freed, since contexts name it.
#[repr(C)]
pub(crate) struct Device {
    pub(crate) raw: ib::ibv_device,
}

// SAFETY: never written after it was made.
unsafe impl Sync for Device {}
// SAFETY: as above.
unsafe impl Send for Device {}

/// What the environment says to do wrong.
pub(crate) fn lies() -> &'static Lies {
    static LIES: OnceLock<Lies> = OnceLock::new();
    LIES.get_or_init(Lies::from_env)
}

/// The cards of this machine.
pub(crate) fn devices() -> &'static [Device] {
    static DEVICES: OnceLock<Vec<Device>> = OnceLock::new();
    DEVICES.get_or_init(|| {
        let count = match lies().number("device", "none") {
            Some(_) => 0,
            None => lies().number("device", "count").unwrap_or(1),
        };
        (0..count)
            .map(|index| {
                // SAFETY: plain data, for which zeros are a value.
                let mut raw: ib::ibv_device = unsafe { std::mem::zeroed() };
                copy_text(&mut raw.name, &format!("mlx5_{index}"));
                copy_text(&mut raw.dev_name, &format!("uverbs{index}"));
                Device { raw }
            })
            .collect()
    })
}

fn copy_text(to: &mut [c_char], text: &str) {
    for (to, from) in to.iter_mut().zip(text.bytes()) {
        *to = from as c_char;
    }
}

/// How many of a kind there are, and ever were.
#[derive(Debug, Default)]
pub(crate) struct Count {
    made: AtomicU64,
    live: AtomicI64,
}

impl Count {
    pub(crate) fn made(&self) {
        self.made.fetch_add(1, Ordering::Relaxed);
        self.live.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn gone(&self) {
        self.live.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What was made of a context.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) domains: Count,
    pub(crate) regions: Count,
    pub(crate) umems: Count,
    pub(crate) pages: Count,
    pub(crate) cqs: Count,
    pub(crate) qps: Count,
    pub(crate) error_counters: Count,
    pub(crate) others: Count,
    pub(crate) handles: Count,
    /// Queue pairs that leave by each port of a bond.
    pub(crate) bond: [Count; 4],
    /// Calls that give the card a command, by which its driver may work too.
    commands: AtomicU64,
    /// Bytes of all umems.
    pub(crate) umem_bytes: AtomicU64,
}

impl Counts {
    fn all(&self) -> [(&'static str, &Count); 9] {
        [
            ("domains", &self.domains),
            ("regions", &self.regions),
            ("umems", &self.umems),
            ("pages", &self.pages),
            ("cqs", &self.cqs),
            ("qps", &self.qps),
            ("error_counters", &self.error_counters),
            ("others", &self.others),
            ("handles", &self.handles),
        ]
    }

    /// Everything that was not given back.
    pub(crate) fn live(&self) -> i64 {
        self.all().iter().map(|(_, count)| count.live.load(Ordering::Relaxed)).sum()
    }

    /// A line: process, what is left, what was made, and what was executed.
    fn report(&self, executed: hca::Counters) -> String {
        let made = self.all().map(|(name, count)| format!("{name}={}", count.made.load(Ordering::Relaxed)));
        let hca::Counters { wqes, doorbells, strong, .. } = executed;
        let bond = self.bond.each_ref().map(|count| count.made.load(Ordering::Relaxed).to_string()).join("+");
        let executed = format!("wqes={wqes} doorbells={doorbells} strong={strong} bond={bond}");
        let (pid, live, open) = (std::process::id(), self.live(), OPEN.load(Ordering::Relaxed));
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let taken = format!("commands={} umem_bytes={}", count(&self.commands), count(&self.umem_bytes));
        format!(
            "pid={pid} live={live} open={open} {} {taken} {executed}
",
            made.join(" ")
        )
    }
}

/// Contexts of this process that are open.
static OPEN: AtomicI64 = AtomicI64::new(0);

/// An open context.
#[repr(C)]
pub(crate) struct Context {
    /// What programs see the end of.
    raw: ib::verbs_context,
    /// Which card of the list it is.
    pub(crate) card: u16,
    pub(crate) hca: Arc<SoftHca>,
    /// What moves its data, if the process works on a GPU; otherwise a thread of the CPU does.
    pub(crate) gpu: Option<CardGpu>,
    /// What its port is, if it is on InfiniBand.
    pub(crate) infiniband: Option<infiniband::Port>,
    pub(crate) counts: Counts,
    pub(crate) pages: Mutex<Pages>,
    /// The page size of each umem.
    pub(crate) umem_pages: Mutex<HashMap<u32, u64>>,
    pub(crate) gone: Arc<AtomicBool>,
    events: Arc<OwnedFd>,
    watcher: Mutex<Option<(Arc<AtomicBool>, JoinHandle<()>)>>,
}

impl Context {
    /// Opens a card, whose GID is new; its address is the program's handle.
    pub(crate) fn open(device: *mut ib::ibv_device) -> Result<*mut ib::ibv_context, i32> {
        let mut faults = lies().number("vanish", "wqe").map_or_else(String::new, |count| format!("die-after={count}"));
        if let Some((syndrome, block)) = lies().place("wqe", "error") {
            faults = format!("{faults},error={syndrome:#x}@qp0:{block}");
        }
        let faults = FaultPlan::from_str(&faults).map_err(|_| libc::EINVAL)?;
        let traced = lies().number("report", "trace").is_some();
        let gpu = CardGpu::of_process().map_err(|error| say(&format!("no card: {error}"), libc::ENODEV))?;
        let accelerator = match &gpu {
            Some(gpu) => Some(gpu.accelerator()),
            None if lies().number("device", "kernel").is_some() => {
                Some(cpu_accelerator().map_err(|error| say(&error.to_string(), libc::ENOMEM))?)
            }
            None => None,
        };
        // One card's writes and flags stay in order, so that PEs that reach all others through one
        // card cannot tell.
        let late_visibility = lies().number("device", "late").is_none_or(|late| late != 0);
        // The platform of the GPU does not order a card's writes.
        let unordered_visibility = lies().number("device", "unordered").is_some_and(|unordered| unordered != 0);
        let watched = faults.die_after.is_some() || accelerator.is_some();
        let options = || {
            let (faults, accelerator) = (faults.clone(), accelerator.clone());
            let options = SoftOptions {
                faults,
                accelerator,
                card_doorbells: true,
                late_visibility,
                unordered_visibility,
                ..SoftOptions::default()
            };
            if traced { options.traced() } else { options }
        };
        let card = devices().iter().position(|known| std::ptr::eq(&raw const known.raw, device));
        let card = card.and_then(|card| u16::try_from(card).ok()).ok_or(libc::ENODEV)?;
        let (hca, infiniband) = match infiniband::open(card, options) {
            Some(opened) => opened.map(|(hca, port)| (hca, Some(port)))?,
            None => (SoftHca::open(options()).map_err(|error| say(&error.to_string(), libc::ENOMEM))?, None),
        };
        let events = eventfd(0, EventfdFlags::CLOEXEC).map_err(|errno| errno.raw_os_error())?;
        let events = Arc::new(events);
        let gone = Arc::new(AtomicBool::new(false));
        // SAFETY: numbers, pointers and functions that may be absent, for which zeros are a value.
        let mut raw: ib::verbs_context = unsafe { std::mem::zeroed() };
        raw.sz = size_of::<ib::verbs_context>();
        raw.query_port = Some(verbs::query_port);
        raw.context.device = device;
        raw.context.cmd_fd = -1;
        raw.context.async_fd = events.as_raw_fd();
        raw.context.num_comp_vectors = 1;
        raw.context.abi_compat = std::ptr::without_provenance_mut(usize::MAX);
        let (counts, pages, umem_pages, watcher) = Default::default();
        let context =
            Box::new(Self { raw, card, hca, gpu, infiniband, counts, pages, umem_pages, gone, events, watcher });
        if watched && let Ok(mut watcher) = context.watcher.lock() {
            *watcher = Some(context.watch());
        }
        let context = Box::into_raw(context);
        OPEN.fetch_add(1, Ordering::Relaxed);
        // SAFETY: just made.
        Ok(unsafe { &raw mut (*context).raw.context })
    }

    /// The context behind a program's handle.
    ///
    /// # Safety
    /// The handle came from [`open`](Self::open) and was not closed.
    pub(crate) unsafe fn of<'a>(handle: *mut ib::ibv_context) -> &'a Self {
        let skip = std::mem::offset_of!(Self, raw) + std::mem::offset_of!(ib::verbs_context, context);
        // SAFETY: the handle points to that field.
        unsafe { &*handle.byte_sub(skip).cast::<Self>() }
    }

    /// Closes it, and writes the report if one was requested.
    ///
    /// # Safety
    /// The conditions of [`of`](Self::of); the handle is used no more.
    pub(crate) unsafe fn close(handle: *mut ib::ibv_context) {
        // SAFETY: the caller's promise.
        let own = std::ptr::from_ref(unsafe { Self::of(handle) }).cast_mut();
        // SAFETY: it was a box.
        let context = unsafe { Box::from_raw(own) };
        OPEN.fetch_sub(1, Ordering::Relaxed);
        if let Some((stop, thread)) = context.watcher.lock().ok().and_then(|mut watcher| watcher.take()) {
            stop.store(true, Ordering::Relaxed);
            let _ = thread.join();
        }
        if let Some(path) = lies().text("report", "file")
            && let Ok(mut file) = OpenOptions::new().append(true).create(true).open(path)
        {
            // One write: other processes append to it too.
            let _ = file.write_all(context.counts.report(context.hca.counters().unwrap_or_default()).as_bytes());
        }
    }

    /// Returns the file that memory of this process maps, so that peers can reach it; if there is
    /// none, the card alone does.
    pub(crate) fn behind(&self, address: usize, len: usize) -> Result<Option<mapping::Backing>, i32> {
        let Some(gpu) = &self.gpu else {
            return if mapping::is_mapped(address, len) {
                Ok(mapping::behind(address, len))
            } else {
                Err(libc::EFAULT)
            };
        };
        match gpu.behind(address as u64, len as u64) {
            Ok(cuda::Backing::Device(file)) => Ok(file.map(|(fd, offset)| mapping::Backing { fd, offset })),
            Ok(cuda::Backing::Host) => Ok(None),
            Ok(cuda::Backing::Unknown) => Err(say(
                &format!("{len} bytes at {address:#x}: a GPU moves the data, and does not reach them"),
                libc::EFAULT,
            )),
            Err(error) => Err(say(&format!("{len} bytes at {address:#x}: {error}"), libc::EFAULT)),
        }
    }

    /// Counts a command, and takes the time that the firmware takes for one.
    pub(crate) fn take_command(&self) {
        self.counts.commands.fetch_add(1, Ordering::Relaxed);
        let Some(time) = lies().number("device", "command-us") else { return };
        // Threads are woken when they ask for it, not up to 50 us later.
        thread_local!(static PROMPT: () = {
            // SAFETY: a number for this thread.
            unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
        });
        PROMPT.with(|()| std::thread::sleep(Duration::from_micros(time)));
    }

    /// Says by an event that the card is gone, once it is.
    fn watch(&self) -> (Arc<AtomicBool>, JoinHandle<()>) {
        let stop = Arc::new(AtomicBool::new(false));
        let (hca, gone, events) = (Arc::clone(&self.hca), Arc::clone(&self.gone), Arc::clone(&self.events));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                if let Some(reason) = hca.dead() {
                    say(&format!("the card is gone: {reason}"), 0);
                    return vanish(&gone, &events);
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        (stop, thread)
    }

    /// The card is gone.
    pub(crate) fn vanish(&self) {
        self.hca.kill();
        vanish(&self.gone, &self.events);
    }

    /// Whether a call fails now, and with what: because it is told to, or because the card is gone.
    pub(crate) fn refuses(&self, call: &str) -> Option<i32> {
        if self.gone.load(Ordering::Relaxed) {
            return Some(libc::EIO);
        }
        lie_about(call)
    }

    /// Entry `index` of the port's GID table, and its kind.
    pub(crate) fn gid(&self, index: u32) -> Option<(Gid, u32)> {
        if let Some(port) = self.infiniband {
            return Some((port.gid(index)?, ib::IBV_GID_TYPE_IB));
        }
        let (prefix, low) = self.hca.info().port.gid.halves();
        let prefix = if index < 2 { prefix } else { GLOBAL };
        let kind = if index.is_multiple_of(2) { ib::IBV_GID_TYPE_ROCE_V1 } else { ib::IBV_GID_TYPE_ROCE_V2 };
        (index < GIDS).then_some((Gid::from_halves(prefix, low), kind))
    }

    /// The GID by which the software HCA knows the card that others know by `gid`.
    pub(crate) fn own_gid(&self, gid: Gid) -> Gid {
        Gid::from_halves(self.hca.info().port.gid.halves().0, gid.halves().1)
    }
}

fn vanish(gone: &AtomicBool, events: &OwnedFd) {
    if !gone.swap(true, Ordering::Relaxed) {
        let _ = rustix::io::write(events, &1u64.to_ne_bytes());
    }
}

/// The errno with which a function is told to fail.
pub(crate) fn lie_about(call: &str) -> Option<i32> {
    // A call without a name is none: it is asked whether the card is gone.
    let any = if call.is_empty() { None } else { lies().occurs("errno", "any") };
    if any.is_some() {
        say(&format!("{call} fails"), 0);
    }
    any.or_else(|| lies().occurs("errno", call)).and_then(|errno| i32::try_from(errno).ok())
}

/// The hardware address of the card with this GID: the software HCA derives it so (a locally
/// administered one).
pub(crate) fn mac_of(gid: Gid) -> [u8; 6] {
    let low = gid.halves().1.to_be_bytes();
    [low[2] & 0xfc | 2, low[3], low[4], low[5], low[6], low[7]]
}

/// Explains an errno, which is all that the interface has room for.
pub(crate) fn say(what: &str, errno: i32) -> i32 {
    eprintln!("stand-in: {what}");
    errno
}

/// Sets `errno`, and returns null.
pub(crate) fn null<T>(errno: i32) -> *mut T {
    // SAFETY: the thread's own errno.
    unsafe { *libc::__errno_location() = errno };
    std::ptr::null_mut()
}
