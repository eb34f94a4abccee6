//! One execution of a program: its coroutines, from their start to their end.

use corosensei::stack::DefaultStack;
use corosensei::trap::CoroutineTrapHandler;
use corosensei::{Coroutine, CoroutineResult, Yielder};

use super::{Body, End, Outcome, Status, WORLD, World};
use crate::interface::MAX_PES;
use crate::network::Qp;
use crate::policy::Policy;
use crate::{proxy, trap};

const STACK_BYTES: usize = 128 << 10;

impl World {
    /// Runs the program once.
    pub fn execute(&mut self, policy: Policy, tracing: bool) -> Outcome {
        self.reset(policy, tracing);
        WORLD.set(std::ptr::from_mut(self));
        // Calls of the device threads come back to this world through the pointer, so only it is
        // used from here on.
        let world: *mut Self = self;
        // SAFETY: `world` is `self`, and no other reference to it is used while a coroutine runs.
        unsafe { Self::run(world) };
        WORLD.set(std::ptr::null_mut());
        self.take_down();
        if self.pruned {
            return Outcome::Pruned;
        }
        match self.failure.take() {
            Some(failure) => {
                if self.tracing {
                    self.trace.push(format!("=> {}", failure.text));
                }
                Outcome::Failed(failure)
            }
            None => Outcome::Passed,
        }
    }

    fn reset(&mut self, policy: Policy, tracing: bool) {
        self.policy = policy;
        self.tracing = tracing;
        self.trace.clear();
        self.memory.reset();
        self.entries.clear();
        self.flights.clear();
        self.written.clear();
        self.operations.clear();
        self.histories.clear();
        self.last_seen.clear();
        self.changes = 0;
        self.time = 1;
        self.ticks = 0;
        self.tick_priority = self.policy.priority();
        self.has_error = [false; MAX_PES];
        self.job_over = [false; MAX_PES];
        self.steps = 0;
        self.wakes = 0;
        self.failure = None;
        self.pruned = false;
        self.fault = None;
        self.qps.clear();
        for place in &self.qp_places {
            let priorities = [self.policy.priority(), self.policy.priority(), self.policy.priority()];
            self.qps.push(Qp::new(*place, priorities));
        }
        for thread in &mut self.threads {
            thread.status = Status::Ready;
            thread.hash = 0;
            thread.own_changes = 0;
            thread.priority = self.policy.priority();
            thread.epoch = 0;
            thread.fruitless = 0;
            thread.wants = u32::MAX;
            thread.watches.clear();
            thread.watched.clear();
            thread.before.clear();
            thread.before_last.clear();
            thread.iteration_others = u64::MAX;
            thread.hash_at_pause = 0;
            thread.effects = false;
            thread.was_stale = false;
            thread.floor = 0;
            thread.trap = None;
        }
    }

    /// Runs coroutines until the execution is over.
    ///
    /// # Safety
    /// `world` is valid, and the pointer of this operating system thread.
    unsafe fn run(world: *mut Self) {
        // SAFETY: by the caller; references end before a coroutine is resumed.
        unsafe {
            let exports = (*world).module.exports();
            let mut next = (*world).next_thread();
            while let Some(index) = next {
                if (&(*world).bodies)[index].is_none() {
                    (*world).begin(index);
                }
                (*world).running = index;
                (exports.set_current)(std::ptr::from_mut(&mut *(&mut (*world).threads)[index].device));
                let body: *mut Option<Body> = &raw mut (&mut (*world).bodies)[index];
                let Some(body) = (*body).as_mut() else { break };
                match body.resume(()) {
                    CoroutineResult::Yield(()) => next = (*world).resume,
                    CoroutineResult::Return(End::Returned) => {
                        (*world).running = usize::MAX;
                        (*world).ended(index);
                        next = (*world).next_thread();
                    }
                    CoroutineResult::Return(End::Fault) => {
                        (*world).running = usize::MAX;
                        (*world).faulted(index);
                        next = None;
                    }
                }
                (*world).running = usize::MAX;
            }
        }
    }

    fn begin(&mut self, index: usize) {
        let stack = self.stacks.pop().unwrap_or_else(|| DefaultStack::new(STACK_BYTES).expect("memory for a stack"));
        let world: *mut Self = self;
        let body = self.program.body;
        let proxy = self.threads[index].proxy;
        let coroutine = Coroutine::with_stack(stack, move |yielder: &Yielder<(), ()>, ()| {
            // SAFETY: the world outlives its coroutines, and runs one at a time.
            unsafe { (&mut (*world).threads)[index].yielder = yielder };
            match (proxy, body) {
                (Some(proxy), _) => proxy::run(world, index, proxy),
                // SAFETY: this is the module's function, on a stack of its own, with the hooks set
                // up.
                (None, Some(body)) => unsafe { body() },
                (None, None) => {}
            }
            End::Returned
        });
        self.moved_on(index);
        self.threads[index].trap = Some(coroutine.trap_handler());
        self.bodies[index] = Some(coroutine);
    }

    fn take_down(&mut self) {
        for (thread, body) in self.threads.iter_mut().zip(&mut self.bodies) {
            thread.trap = None;
            if let Some(mut body) = body.take() {
                if !body.done() {
                    // SAFETY: device code and the proxy's loop own nothing that has to be dropped.
                    unsafe { body.force_reset() };
                }
                self.stacks.push(body.into_stack());
            }
        }
    }

    fn ended(&mut self, index: usize) {
        self.threads[index].status = Status::Done;
        if self.tracing {
            let who = self.who(index);
            self.trace.push(format!("{who}: returns"));
        }
        self.check_warp(index);
        self.check_converging(index);
    }

    fn faulted(&mut self, index: usize) {
        let (pc, address) = self.fault.take().unwrap_or_default();
        let place = trap::place_of(pc, self.module.path());
        let what = self.memory.describe(address);
        let who = self.who(index);
        self.fail(format!("{who} accesses {what} without the port layer, at {place}"));
    }

    /// Returns whether an address is in shared memory of the running thread's world, and the
    /// handler to leave that thread by.
    pub(crate) fn trap_of(address: u64, pc: u64) -> Option<CoroutineTrapHandler<End>> {
        let world = WORLD.get();
        if world.is_null() {
            return None;
        }
        // SAFETY: the world that runs on this operating system thread; it is inside of device code,
        // which holds no reference.
        unsafe {
            let inside = address.wrapping_sub((*world).memory.base) < (*world).reservation_bytes as u64;
            let thread = (*world).threads.as_ptr().add((*world).running);
            if !inside || (*world).running == usize::MAX {
                return None;
            }
            (*world).fault = Some((pc, address));
            (*thread).trap
        }
    }
}
