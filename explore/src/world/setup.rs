//! How a world is laid out for a program.

use std::ffi::{CStr, c_char, c_void};
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::{Status, Thread, WORLD, World};
use crate::interface::{DeviceThread, Kind, MAX_PES, ProxyPlace, QpPlace, STATE_BYTES, Setup};
use crate::memory::{Memory, Range};
use crate::module::{Module, ModuleError};
use crate::policy::Policy;
use crate::trap;

impl World {
    /// Lays out memory for a program of a module.
    ///
    /// # Errors
    /// There is no such program.
    ///
    /// # Panics
    /// If the system has no address space left.
    pub fn new(module: &Arc<Module>, program: &str) -> Result<Box<Self>, ModuleError> {
        let program = module.find(program)?;
        let exports = module.exports();
        let bytes = exports.shared_bytes.next_multiple_of(4096) as usize;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let reservation = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        assert!(reservation != libc::MAP_FAILED, "{bytes} bytes of address space");
        let base = reservation as u64;
        let mut world = Box::new(Self {
            module: Arc::clone(module),
            program,
            memory: Memory::new(base, exports.shared_bytes),
            reservation,
            reservation_bytes: bytes,
            constants: Vec::new(),
            states: vec![[0; STATE_BYTES / 8]; MAX_PES],
            state_of: [std::ptr::null(); MAX_PES],
            qp_places: Vec::new(),
            proxy_places: Vec::new(),
            threads: Vec::new(),
            bodies: Vec::new(),
            stacks: Vec::new(),
            block_shared: vec![0; 8192],
            entries: Vec::new(),
            qps: Vec::new(),
            flights: Vec::new(),
            written: Vec::new(),
            operations: Vec::new(),
            policy: Policy::random(0, 1000),
            actions: Vec::new(),
            changes: 0,
            time: 1,
            ticks: 0,
            tick_priority: 0,
            control_at: [0; MAX_PES],
            has_error: [false; MAX_PES],
            job_over: [false; MAX_PES],
            steps: 0,
            wakes: 0,
            resume: None,
            running: usize::MAX,
            failure: None,
            pruned: false,
            tracing: false,
            trace: Vec::new(),
            fault: None,
            histories: FxHashMap::default(),
            last_seen: FxHashMap::default(),
        });
        world.set_up(exports.constant_bytes);
        trap::install();
        Ok(world)
    }

    fn set_up(&mut self, constant_bytes: u64) {
        let setup = Setup {
            base: self.memory.base,
            states: self.states.as_mut_ptr().cast(),
            context: std::ptr::from_mut(self).cast(),
            range: setup_range,
            set: setup_set,
            qp: setup_qp,
            proxy: setup_proxy,
            state: setup_state,
        };
        WORLD.set(std::ptr::from_mut(self));
        // SAFETY: the module calls back with what the setup functions expect, and keeps nothing of
        // it.
        unsafe { (self.module.exports().setup)(self.program, &raw const setup) };
        WORLD.set(std::ptr::null_mut());
        // Constants may be read directly. All else on their pages reads as nonsense, and faults
        // when it is written. SAFETY: the pages are of our reservation, and nothing else uses them
        // yet.
        unsafe {
            let at = self.reservation.cast::<u8>();
            libc::mprotect(self.reservation, constant_bytes as usize, libc::PROT_READ | libc::PROT_WRITE);
            std::ptr::write_bytes(at, 0xa5, constant_bytes as usize);
            for (address, bytes) in &self.constants {
                let to = at.add((address - self.memory.base) as usize);
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
            }
            libc::mprotect(self.reservation, constant_bytes as usize, libc::PROT_READ);
        }
        self.memory.start();
        for pe in 0..self.program.pes {
            for block in 0..self.program.blocks[pe as usize] {
                for lane in 0..self.program.lanes {
                    self.threads.push(self.thread(pe, block, lane, None));
                }
            }
        }
        for (index, place) in self.proxy_places.iter().enumerate() {
            self.threads.push(self.thread(place.pe, 0, 0, Some(index)));
        }
        assert!(self.threads.len() <= 64, "at most 64 threads");
        self.bodies.resize_with(self.threads.len(), || None);
    }

    fn thread(&self, pe: u32, block: u32, lane: u32, proxy: Option<usize>) -> Thread {
        let device = Box::new(DeviceThread {
            shared_base: self.memory.base,
            shared_bytes: self.module.exports().shared_bytes,
            state: self.state_of[pe as usize],
            lane,
            lanes: self.program.lanes,
            block,
            blocks: self.program.blocks[pe as usize],
            block_shared: self.block_shared.as_ptr().cast_mut().cast(),
        });
        Thread {
            device,
            pe: pe as u8,
            proxy,
            status: Status::Ready,
            hash: 0,
            own_changes: 0,
            result: 0,
            priority: 0,
            epoch: 0,
            fruitless: 0,
            wants: u32::MAX,
            watches: Vec::new(),
            watched: Vec::new(),
            before: Vec::new(),
            before_last: Vec::new(),
            iteration_others: u64::MAX,
            iteration_memory: 0,
            last_site: 0,
            hash_at_pause: 0,
            effects: false,
            was_stale: false,
            floor: 0,
            yielder: std::ptr::null(),
            trap: None,
        }
    }
}

unsafe extern "C" fn setup_range(
    context: *mut c_void,
    name: *const c_char,
    kind: u32,
    owner: u32,
    address: u64,
    bytes: u32,
    count: u32,
) {
    // SAFETY: the context is the world that called the module; names are literals.
    let (world, name) = unsafe { (&mut *context.cast::<World>(), CStr::from_ptr(name)) };
    let kind = Kind::from_number(kind);
    if kind == Kind::Control {
        world.control_at[owner as usize] = address;
    }
    world.memory.name(Range {
        start: address,
        end: address + u64::from(bytes) * u64::from(count),
        name: name.to_string_lossy().into_owned(),
        kind,
        owner: owner as u8,
        piece: bytes,
        pieces: count,
    });
}

unsafe extern "C" fn setup_set(context: *mut c_void, address: u64, from: *const c_void, bytes: u64, constant: u32) {
    // SAFETY: as above; the module passes `bytes` readable bytes.
    let (world, bytes) =
        unsafe { (&mut *context.cast::<World>(), std::slice::from_raw_parts(from.cast::<u8>(), bytes as usize)) };
    world.memory.set_image(address, bytes);
    if constant != 0 {
        world.constants.push((address, bytes.to_vec()));
    }
}

unsafe extern "C" fn setup_qp(context: *mut c_void, qp: *const QpPlace) {
    // SAFETY: as above.
    let (world, qp) = unsafe { (&mut *context.cast::<World>(), *qp) };
    world.qp_places.push(qp);
}

unsafe extern "C" fn setup_proxy(context: *mut c_void, proxy: *const ProxyPlace) {
    // SAFETY: as above.
    let (world, proxy) = unsafe { (&mut *context.cast::<World>(), *proxy) };
    world.proxy_places.push(proxy);
}

unsafe extern "C" fn setup_state(context: *mut c_void, pe: u32, state: *const c_void) {
    // SAFETY: as above.
    let world = unsafe { &mut *context.cast::<World>() };
    world.state_of[pe as usize] = state;
}
