//! Stacks of coroutines: pooled, guarded, and given back to the system when they are not needed.
//!
//! Stacks are cut from large mappings. Below each one lies a guard page. Linux 6.13 has guards that
//! cost nothing (MADV_GUARD_INSTALL, linux/mman.h); before, a guard is a PROT_NONE page, which
//! costs two of the process's vm.max_map_count mappings, so once a quarter of those is used only
//! every 32nd stack has one, and a canary word at the end of the others is checked at each
//! suspension and at a thread's end.

use std::io;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use corosensei::stack::{Stack, StackPointer};

/// Stacks of one mapping.
const STACKS_PER_SEGMENT: usize = 512;

/// Stacks that keep their memory when an idle executor trims: enough for one block of any size.
const KEPT_STACKS: usize = 1024;

/// In the fallback, one stack in this many has a guard page once mappings are scarce.
const SPARSE_GUARDS: usize = 32;

/// The tops of neighbouring stacks are shifted against each other, or they would all compete for
/// the same cache sets. The shifts stay below half a page, so that a thread with small frames still
/// touches one page only.
const STAGGER_STEP: usize = 192;
const STAGGER_RANGE: usize = 2048;

/// include/uapi/asm-generic/mman-common.h, since Linux 6.13.
const MADV_GUARD_INSTALL: libc::c_int = 102;

/// How stacks are guarded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Guards {
    /// MADV_GUARD_INSTALL.
    Light,
    /// PROT_NONE pages, as many as there are mappings for; the number is how many this process may
    /// have.
    Mapped { limit: usize },
}

/// PROT_NONE guards of all pools of this process.
static MAPPED_GUARDS: AtomicUsize = AtomicUsize::new(0);

/// One stack. It lies in a mapping of the pool it came from and must not outlive it.
#[derive(Debug)]
pub(super) struct PooledStack {
    /// Lowest byte: the first of the guard page.
    limit: usize,
    top: NonZeroUsize,
    index: u32,
    has_canary: bool,
}

// SAFETY: `limit..top` is mapped memory that nothing else uses, at least MIN_STACK_SIZE long
// (StackPool::new checks), aligned to 16, with a guard page or a canary at its end.
unsafe impl Stack for PooledStack {
    fn base(&self) -> StackPointer {
        self.top
    }

    fn limit(&self) -> StackPointer {
        // A mapping never starts at address 0.
        NonZeroUsize::new(self.limit).unwrap_or(NonZeroUsize::MIN)
    }
}

/// A word at the end of a stack without a guard page; an overflow of the stack overwrites it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Canary(*mut u64);

impl Canary {
    const VALUE: u64 = 0x6f78_7368_6d65_6d21;

    fn set(self) {
        // SAFETY: the word is in the mapping of a stack that nothing runs on.
        unsafe { self.0.write_volatile(Self::VALUE) };
    }

    /// Returns whether nothing has overwritten it.
    #[inline]
    pub(super) fn is_alive(self) -> bool {
        // SAFETY: the word is in the mapping of a stack, which the pool keeps while threads use it.
        unsafe { self.0.read_volatile() == Self::VALUE }
    }
}

impl PooledStack {
    /// Returns the addresses of the guard page.
    pub(super) fn guard(&self) -> Range<usize> {
        self.limit..self.limit + page_bytes()
    }

    /// Returns what stands in for the guard page, if there is none.
    pub(super) fn canary(&self) -> Option<Canary> {
        // The lowest word above the page where a guard would be.
        self.has_canary.then(|| Canary(self.guard().end as *mut u64))
    }
}

/// The stacks of one worker.
#[derive(Debug)]
pub(super) struct StackPool {
    segments: Vec<Segment>,
    free: Vec<u32>,
    /// Bytes from one stack to the next, guard page included.
    stride: usize,
    guards: Guards,
    /// A stack beyond the kept ones was in use since the last trim.
    stretched: bool,
}

#[derive(Debug)]
struct Segment {
    start: usize,
    bytes: usize,
    mapped_guards: usize,
}

impl StackPool {
    /// Returns a pool of stacks of `stack_bytes`, guard page included.
    pub(super) fn new(stack_bytes: usize, guards: Guards) -> Self {
        Self { segments: Vec::new(), free: Vec::new(), stride: round_up(stack_bytes), guards, stretched: false }
    }

    /// Returns the number of bytes a thread can use.
    pub(super) fn usable_bytes(&self) -> usize {
        self.stride - page_bytes() - STAGGER_RANGE
    }

    /// Returns whether some stacks have canaries, to be checked when a thread is suspended.
    pub(super) fn has_canaries(&self) -> bool {
        self.guards != Guards::Light
    }

    /// Takes a stack: the one that was given back last, whose memory is warm.
    #[inline]
    pub(super) fn take(&mut self) -> io::Result<PooledStack> {
        let index = match self.free.pop() {
            Some(index) => index,
            None => self.grow()?,
        };
        self.stretched |= index as usize >= KEPT_STACKS;
        Ok(self.stack(index))
    }

    /// Gives a stack back. Nothing may run on it any more.
    #[inline]
    pub(super) fn give(&mut self, stack: PooledStack) {
        self.free.push(stack.index);
    }

    fn stack(&self, index: u32) -> PooledStack {
        let segment = &self.segments[index as usize / STACKS_PER_SEGMENT];
        let limit = segment.start + index as usize % STACKS_PER_SEGMENT * self.stride;
        let shift = index as usize * STAGGER_STEP % STAGGER_RANGE;
        let top = limit + self.stride - shift;
        let has_canary = !self.is_guarded(segment, index);
        let stack = PooledStack { limit, top: NonZeroUsize::new(top).unwrap_or(NonZeroUsize::MAX), index, has_canary };
        if let Some(canary) = stack.canary() {
            canary.set();
        }
        stack
    }

    fn is_guarded(&self, segment: &Segment, index: u32) -> bool {
        let every = match self.guards {
            Guards::Light => 1,
            Guards::Mapped { .. } => STACKS_PER_SEGMENT.checked_div(segment.mapped_guards).unwrap_or(usize::MAX),
        };
        every != usize::MAX && (index as usize).is_multiple_of(every)
    }

    #[cold]
    fn grow(&mut self) -> io::Result<u32> {
        let index_of = |segment: usize| u32::try_from(segment * STACKS_PER_SEGMENT).map_err(io::Error::other);
        let (first, end) = (index_of(self.segments.len())?, index_of(self.segments.len() + 1)?);
        let bytes = STACKS_PER_SEGMENT * self.stride;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_STACK;
        // SAFETY: a new mapping at an address of the system's choice.
        let start =
            unsafe { libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let mut segment = Segment { start: start as usize, bytes, mapped_guards: 0 };
        // A huge page would make a mostly empty group of stacks resident. Kernels without huge
        // pages refuse, which is as good. SAFETY: the range is the new mapping.
        unsafe { libc::madvise(start, bytes, libc::MADV_NOHUGEPAGE) };
        self.install_guards(&mut segment)?;
        self.segments.push(segment);
        // The lowest index goes out first.
        self.free.extend((first + 1..end).rev());
        Ok(first)
    }

    fn install_guards(&mut self, segment: &mut Segment) -> io::Result<()> {
        let Guards::Mapped { limit } = self.guards else {
            for i in 0..STACKS_PER_SEGMENT {
                let page = (segment.start + i * self.stride) as *mut libc::c_void;
                // SAFETY: the page is in the new mapping, which holds no data yet.
                if unsafe { libc::madvise(page, page_bytes(), MADV_GUARD_INSTALL) } != 0 {
                    return Err(io::Error::last_os_error());
                }
            }
            return Ok(());
        };
        let used = MAPPED_GUARDS.load(Ordering::Relaxed);
        let every = if used + STACKS_PER_SEGMENT <= limit { 1 } else { SPARSE_GUARDS };
        for i in (0..STACKS_PER_SEGMENT).step_by(every) {
            let page = (segment.start + i * self.stride) as *mut libc::c_void;
            // SAFETY: as above.
            if unsafe { libc::mprotect(page, page_bytes(), libc::PROT_NONE) } != 0 {
                return Err(io::Error::last_os_error());
            }
            segment.mapped_guards += 1;
            MAPPED_GUARDS.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Returns whether [`Self::trim`] has something to give back.
    pub(super) fn wants_trim(&self) -> bool {
        self.stretched
    }

    /// Gives the memory of all stacks but the first few back to the system. Guards stay. No stack
    /// may be in use.
    pub(super) fn trim(&mut self) {
        for segment in self.segments.iter().skip(KEPT_STACKS / STACKS_PER_SEGMENT) {
            // SAFETY: no coroutine lives on these stacks, so their content is dead.
            unsafe { libc::madvise(segment.start as *mut libc::c_void, segment.bytes, libc::MADV_DONTNEED) };
        }
        // The kept stacks go out first again.
        self.free.sort_unstable_by(|a, b| b.cmp(a));
        self.stretched = false;
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        MAPPED_GUARDS.fetch_sub(self.mapped_guards, Ordering::Relaxed);
        // SAFETY: the mapping is the segment's own, and no coroutine outlives the pool.
        unsafe { libc::munmap(self.start as *mut libc::c_void, self.bytes) };
    }
}

/// Returns the best guards this system has.
pub(super) fn best_guards() -> Guards {
    static BEST: OnceLock<Guards> = OnceLock::new();
    *BEST.get_or_init(|| {
        if light_guards_work() {
            return Guards::Light;
        }
        let maps = std::fs::read_to_string("/proc/sys/vm/max_map_count").ok();
        // 65530 is Linux's default (Documentation/admin-guide/sysctl/vm.rst).
        let maps = maps.and_then(|text| text.trim().parse::<usize>().ok()).unwrap_or(65530);
        // Two mappings a guard: a quarter of the mappings as guards uses half of them.
        Guards::Mapped { limit: maps / 4 }
    })
}

fn light_guards_work() -> bool {
    let bytes = page_bytes();
    // SAFETY: a new mapping, unmapped below; nothing else uses it.
    unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let page = libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
        if page == libc::MAP_FAILED {
            return false;
        }
        let works = libc::madvise(page, bytes, MADV_GUARD_INSTALL) == 0;
        libc::munmap(page, bytes);
        works
    }
}

pub(super) fn page_bytes() -> usize {
    static PAGE: OnceLock<usize> = OnceLock::new();
    // SAFETY: sysconf has no preconditions.
    *PAGE.get_or_init(|| usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096))
}

fn round_up(bytes: usize) -> usize {
    bytes.next_multiple_of(page_bytes())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn stacks_do_not_overlap_and_are_reused() {
        let mut pool = StackPool::new(64 << 10, best_guards());
        let stacks: Vec<_> = (0..STACKS_PER_SEGMENT + 3).map(|_| pool.take().unwrap()).collect();
        let mut ranges: Vec<_> = stacks.iter().map(|s| (s.limit().get(), s.base().get())).collect();
        ranges.sort_unstable();
        for pair in ranges.windows(2) {
            assert!(pair[0].1 <= pair[1].0, "{pair:x?}");
        }
        for stack in &stacks {
            assert!(stack.base().get().is_multiple_of(16));
            assert!(stack.base().get() - stack.guard().end >= pool.usable_bytes());
        }
        let last = stacks.last().unwrap().index;
        for stack in stacks {
            pool.give(stack);
        }
        assert_eq!(pool.take().unwrap().index, last);
        assert_eq!(pool.segments.len(), 2);
    }

    #[test]
    fn sparse_guards_leave_canaries() {
        let mut pool = StackPool::new(64 << 10, Guards::Mapped { limit: 0 });
        let stacks: Vec<_> = (0..STACKS_PER_SEGMENT).map(|_| pool.take().unwrap()).collect();
        assert_eq!(pool.segments[0].mapped_guards, STACKS_PER_SEGMENT / SPARSE_GUARDS);
        assert_eq!(stacks.iter().filter(|s| !s.has_canary).count(), STACKS_PER_SEGMENT / SPARSE_GUARDS);
        let canary = stacks.iter().find_map(PooledStack::canary).unwrap();
        assert!(canary.is_alive());
        // SAFETY: the stack is ours and nothing runs on it.
        unsafe { canary.0.write(0) };
        assert!(!canary.is_alive());
    }

    #[test]
    fn mapped_guards_guard_every_stack_while_there_are_mappings() {
        let mut pool = StackPool::new(16 << 10, Guards::Mapped { limit: usize::MAX / 2 });
        let stack = pool.take().unwrap();
        assert!(!stack.has_canary);
        assert_eq!(pool.segments[0].mapped_guards, STACKS_PER_SEGMENT);
    }

    #[test]
    fn trimming_keeps_guards_and_hands_out_the_first_stack_again() {
        let mut pool = StackPool::new(16 << 10, best_guards());
        let stacks: Vec<_> = (0..KEPT_STACKS + 1).map(|_| pool.take().unwrap()).collect();
        assert!(pool.wants_trim());
        for stack in stacks {
            pool.give(stack);
        }
        pool.trim();
        assert!(!pool.wants_trim());
        assert_eq!(pool.take().unwrap().index, 0);
    }
}
