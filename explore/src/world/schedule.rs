//! The scheduler: what may happen next, what does, and which threads wait.

use std::fmt::Write as _;

use oxshmem_system::mixing::scramble;

use super::{Action, Status, Thread, World};
use crate::interface::TIMEOUT_NS;
use crate::memory::Level;
use crate::policy::Class;

impl Thread {
    /// Returns whether it is a device thread that spins, and has seen nothing new the last time.
    fn waits(&self) -> bool {
        self.proxy.is_none()
            && match self.status {
                Status::Paused { .. } => true,
                Status::Ready => self.fruitless > 0,
                _ => false,
            }
    }
}

impl World {
    /// Executes what is not a thread's until it is a thread's turn. None: the execution is over.
    pub(super) fn next_thread(&mut self) -> Option<usize> {
        loop {
            if self.failure.is_some() || self.pruned {
                return None;
            }
            if self.steps >= u64::from(self.program.most_steps) {
                let states = self.where_all_are();
                self.fail(format!(
                    "no end after {} steps: threads keep each other from terminating: {states}",
                    self.steps
                ));
                return None;
            }
            self.collect();
            if self.actions.is_empty() {
                if self.threads.iter().all(|thread| thread.status == Status::Done || thread.proxy.is_some()) {
                    self.check_end();
                    return None;
                }
                if !self.wake_all() {
                    let states = self.where_all_are();
                    self.fail(format!("deadlock: nothing can change any more, but {states}"));
                    return None;
                }
                continue;
            }
            let index = if self.actions.len() == 1 { 0 } else { self.decide()? };
            self.steps += 1;
            match self.actions[index].0 {
                Action::Thread(thread) => {
                    self.threads[thread as usize].status = Status::Ready;
                    return Some(thread.into());
                }
                Action::Drain(entry) => self.drain(entry.into()),
                Action::Look(qp) => self.look(qp.into()),
                Action::Execute(qp) => self.execute_next(qp.into()),
                Action::Complete(qp) => self.complete(qp.into()),
                Action::Land(flight) => self.land(flight.into()),
                Action::Arrive(index) => self.arrive(index.into()),
                Action::Tick => self.tick(),
            }
        }
    }

    /// Collects what may happen next.
    pub(super) fn collect(&mut self) {
        let mut actions = std::mem::take(&mut self.actions);
        actions.clear();
        for (index, thread) in self.threads.iter().enumerate() {
            let enabled = match thread.status {
                Status::Ready => true,
                Status::Paused { others } => self.changes - thread.own_changes != others,
                _ => false,
            };
            if enabled {
                actions.push((Action::Thread(index as u8), thread.priority));
            }
        }
        let exhaustive = self.policy.is_exhaustive();
        let idle =
            exhaustive && actions.is_empty() && self.qps.iter().all(|qp| !qp.look && qp.executed == qp.announced);
        for index in 0..self.entries.len() {
            // An exhaustive search lets the words of a work request leave in their order: which of
            // them is missing makes no difference to what the HCA finds out. And it lets a store
            // wait until some other process is about to look at its word, since before that it
            // makes no difference when it becomes visible.
            if self.may_drain(index)
                && !(exhaustive && (self.is_behind_in_block(index) || !(idle || self.is_wanted(index))))
            {
                actions.push((Action::Drain(index as u16), self.entries[index].priority));
            }
        }
        self.collect_hca(&mut actions);
        if self.ticks < self.program.deadlines && self.threads.iter().any(Thread::waits) {
            actions.push((Action::Tick, self.tick_priority));
        }
        self.actions = actions;
    }

    pub(super) fn decide(&mut self) -> Option<usize> {
        if self.policy.is_exhaustive() {
            if self.policy.is_new_choice() {
                let state = self.state_hash();
                if !self.policy.note_state(state) {
                    self.pruned = true;
                    return None;
                }
            }
            return Some(self.policy.choose(self.actions.len()));
        }
        let class = |action: &Action| match action {
            Action::Thread(_) => Class::Thread,
            Action::Drain(_) => Class::Drain,
            _ => Class::Hca,
        };
        let pick = self.policy.pick(self.actions.iter().map(|(action, priority)| (class(action), *priority)));
        if let Some(lowered) = self.policy.change_point(self.steps) {
            self.set_priority(self.actions[pick].0, lowered);
        }
        Some(pick)
    }

    pub(super) fn set_priority(&mut self, action: Action, priority: u64) {
        match action {
            Action::Thread(thread) => self.threads[thread as usize].priority = priority,
            Action::Drain(entry) => self.entries[entry as usize].priority = priority,
            Action::Look(qp) => self.qps[qp as usize].priorities[0] = priority,
            Action::Execute(qp) => self.qps[qp as usize].priorities[1] = priority,
            Action::Complete(qp) => self.qps[qp as usize].priorities[2] = priority,
            Action::Land(flight) => self.flights[flight as usize].priority = priority,
            Action::Arrive(index) => self.written[index as usize].priority = priority,
            Action::Tick => self.tick_priority = priority,
        }
    }

    /// Lets so much time pass that every deadline that has been set is over.
    fn tick(&mut self) {
        self.ticks += 1;
        self.time += TIMEOUT_NS + 1;
        self.changes += 1;
        self.say(|_| "the deadlines of all threads that wait pass".to_owned());
    }

    /// Lets lanes that wait for others go on alone, and spinning threads look some more times.
    /// False: that was done before.
    pub(super) fn wake_all(&mut self) -> bool {
        let lanes: Vec<usize> = (0..self.threads.len())
            .filter(|&index| matches!(self.threads[index].status, Status::Converging { .. }))
            .collect();
        if !lanes.is_empty() {
            for index in lanes {
                self.release_waiting(self.warp_of(index));
            }
            return true;
        }
        self.wakes += 1;
        if self.wakes > 3 {
            return false;
        }
        let mut any = false;
        for thread in &mut self.threads {
            if matches!(thread.status, Status::Paused { .. }) && thread.proxy.is_none() {
                thread.status = Status::Ready;
                // The number of polls that a wait makes before it looks at something else.
                thread.fruitless = 0;
                any = true;
            }
        }
        any
    }

    pub(super) fn where_all_are(&self) -> String {
        let mut text = String::new();
        for (index, thread) in self.threads.iter().enumerate() {
            if thread.proxy.is_some() {
                continue;
            }
            let what = match thread.status {
                Status::Ready => "is running",
                Status::Paused { .. } => "waits",
                Status::Converging { .. } | Status::InWarp { .. } => "waits for its warp",
                Status::Done => continue,
            };
            let _ = write!(text, "{}{} {what}", if text.is_empty() { "" } else { ", " }, self.who(index));
        }
        text
    }

    pub(super) fn state_hash(&self) -> u64 {
        let mut hash = self.memory.hash;
        for (index, thread) in self.threads.iter().enumerate() {
            let status = match thread.status {
                Status::Ready => 1,
                Status::Paused { others } => 2 + u64::from(self.changes - thread.own_changes != others),
                Status::Converging { key, .. } => 5 ^ key << 8,
                Status::InWarp { kind, .. } => 6 + (u64::from(kind) << 8),
                Status::Done => 4,
            };
            let fruitless = u64::from(thread.fruitless.min(3)) << 60;
            hash ^=
                scramble(thread.hash ^ status << 32 ^ fruitless ^ (index as u64).wrapping_mul(0x1234_5678_9abc_def1));
        }
        let mut order = 0;
        for entry in &self.entries {
            let flags =
                u64::from(entry.mask) | u64::from(entry.thread) << 8 | u64::from(entry.level == Level::Bus) << 16;
            // On the bus a store can be loaded by all threads of its PE.
            let seen_by = if entry.level == Level::Bus { u64::MAX } else { entry.seen_by };
            order = scramble(order ^ entry.value ^ u64::from(entry.word) << 32 ^ scramble(flags ^ seen_by << 20));
        }
        hash ^= order ^ u64::from(self.ticks) << 48;
        scramble(hash ^ self.hca_hash())
    }

    /// Lets a proxy wait until something has changed after the first `others` changes. `state`: all
    /// that it knows.
    pub(crate) fn proxy_waits(&mut self, index: usize, state: u64, others: u64) {
        let lowest = self.policy.lowest();
        let thread = &mut self.threads[index];
        thread.hash = state;
        thread.priority = lowest;
        thread.status = Status::Paused { others };
    }

    /// Returns a word of host memory, as the proxy loads it.
    pub(crate) fn host_load(&mut self, thread: usize, address: u64) -> u64 {
        let value = self.memory.words[self.memory.word_of(address) as usize];
        self.threads[thread].hash = scramble(self.threads[thread].hash ^ value);
        self.say(|world| {
            let shown = world.show(address, value, 8);
            format!("{} loads {}: {shown}", world.who(thread), world.memory.describe(address))
        });
        value
    }

    /// Ends an iteration of a loop that waits.
    pub(super) fn pause(&mut self, index: usize, site: u64) {
        let (changes, memory) = (self.changes, self.memory.hash);
        let most = 1 + (1 << self.program.landing_log2);
        let lowest = self.policy.lowest();
        let thread = &mut self.threads[index];
        let others = changes - thread.own_changes;
        if others == thread.iteration_others && memory == thread.iteration_memory && !thread.was_stale {
            thread.fruitless += 1;
        } else {
            thread.fruitless = 0;
        }
        // What a thread has seen in earlier turns of the same loop is forgotten. The turn before
        // the second one began somewhere before the loop; its end is what the second one looked at
        // again.
        let same = !thread.effects && thread.last_site == site && !thread.watches.is_empty();
        if same && thread.watched == thread.watches {
            thread.hash = thread.hash_at_pause;
        } else {
            if same && thread.watched.ends_with(&thread.watches) {
                thread.hash = thread.before_last[thread.watched.len() - thread.watches.len()];
            }
            thread.hash = scramble(thread.hash ^ site);
            thread.hash_at_pause = thread.hash;
        }
        std::mem::swap(&mut thread.watches, &mut thread.watched);
        thread.watches.clear();
        std::mem::swap(&mut thread.before, &mut thread.before_last);
        thread.before.clear();
        thread.last_site = site;
        thread.effects = false;
        thread.was_stale = false;
        thread.iteration_others = others;
        thread.iteration_memory = memory;
        // A thread that waits lets the others go first.
        thread.priority = lowest;
        if thread.fruitless >= most {
            thread.status = Status::Paused { others };
        }
    }
}
