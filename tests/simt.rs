//! The `cpu` device: what kernels may do, and how they end when they do what they may not.

#![allow(clippy::unwrap_used)]

use std::ffi::c_void;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use oxshmem::device::cpu::{
    Executor, ExecutorOptions, Kernel, KernelError, KernelErrorKind, LaunchConfig, LaunchError, Module, ModuleError,
    Position, set_mmio_hook,
};

oxshmem::include_module!(SIMT, "simt");

fn module() -> &'static Module {
    static MODULE: OnceLock<Module> = OnceLock::new();
    // SAFETY: the function is what the build generated for the module.
    MODULE.get_or_init(|| unsafe { Module::from_raw(SIMT.cpu_object()) }.unwrap())
}

fn kernel(name: &str) -> &'static Kernel {
    module().kernel(name).unwrap()
}

fn executor() -> Executor {
    with_workers(1)
}

fn with_workers(workers: usize) -> Executor {
    Executor::new(ExecutorOptions { workers, deadline: Duration::from_secs(60), ..ExecutorOptions::default() }).unwrap()
}

/// The bytes of an argument.
trait Argument {
    fn bytes(&self) -> Vec<u8>;
}

macro_rules! arguments {
    ($($t:ty),*) => {$(
        impl Argument for $t {
            fn bytes(&self) -> Vec<u8> {
                self.to_ne_bytes().to_vec()
            }
        }
    )*};
}
arguments!(u8, i8, u16, u32, i32, u64, usize);

impl<T> Argument for *mut T {
    fn bytes(&self) -> Vec<u8> {
        (*self as usize).bytes()
    }
}

impl<T> Argument for *const T {
    fn bytes(&self) -> Vec<u8> {
        (*self as usize).bytes()
    }
}

fn run(executor: &Executor, name: &str, config: LaunchConfig, args: &[&dyn Argument]) -> Result<(), KernelError> {
    try_launch(executor, name, config, args).unwrap().wait()
}

fn try_launch(
    executor: &Executor,
    name: &str,
    config: LaunchConfig,
    args: &[&dyn Argument],
) -> Result<oxshmem::device::cpu::LaunchHandle, LaunchError> {
    let bytes: Vec<Vec<u8>> = args.iter().map(|arg| arg.bytes()).collect();
    let slices: Vec<&[u8]> = bytes.iter().map(Vec::as_slice).collect();
    // SAFETY: each test passes what its kernel declares, and waits for the launch before its
    // buffers go away.
    unsafe { executor.launch(kernel(name), config, &slices) }
}

fn at(block: u32, thread: u32) -> Position {
    Position { block: [block, 0, 0], thread: [thread, 0, 0] }
}

/// A failed launch leaves the executor as good as new.
fn assert_usable(executor: &Executor) {
    let mut count = 0u32;
    run(executor, "use_stack", LaunchConfig::linear(3, 96), &[&(&raw mut count), &0u32]).unwrap();
    assert_eq!(count, 3 * 96);
}

#[test]
fn threads_know_their_position_in_three_dimensions() {
    for workers in [1, 3] {
        let config = LaunchConfig { grid: [3, 2, 2], block: [5, 4, 3], ..LaunchConfig::linear(1, 1) };
        let mut out = vec![u32::MAX; 12 * 60 * 14];
        run(&with_workers(workers), "positions", config, &[&out.as_mut_ptr()]).unwrap();
        let mut rank = 0;
        for (bz, by, bx) in (0..2).flat_map(|z| (0..2).flat_map(move |y| (0..3).map(move |x| (z, y, x)))) {
            let block_rank = rank as u32 / 60;
            for (tz, ty, tx) in (0..3).flat_map(|z| (0..4).flat_map(move |y| (0..5).map(move |x| (z, y, x)))) {
                let thread_rank = rank as u32 % 60;
                assert_eq!(
                    out[rank * 14..][..14],
                    [tx, ty, tz, bx, by, bz, thread_rank, thread_rank % 32, 3, 4, block_rank, 12, 60, 0],
                );
                rank += 1;
            }
        }
    }
}

#[test]
fn arguments_of_all_sizes_arrive() {
    #[repr(C)]
    struct Three {
        a: f32,
        b: u16,
        c: f64,
    }
    let three = Three { a: 1.5, b: 777, c: 2.25 };
    // SAFETY: padding bytes are never looked at, but they must be initialised: go through a zeroed
    // array.
    let bytes = unsafe {
        let mut bytes = [0u8; size_of::<Three>()];
        bytes.as_mut_ptr().cast::<Three>().write(three);
        bytes
    };
    let mut out = [0u64; 6];
    let out_bytes = (&raw mut out).bytes();
    let text = c"xyz".as_ptr().bytes();
    let executor = executor();
    let args: [&[u8]; 5] = [&out_bytes, &(-3i8).to_ne_bytes(), &bytes, &text, &65535u16.to_ne_bytes()];
    // SAFETY: the kernel's parameters.
    unsafe { executor.launch(kernel("arguments"), LaunchConfig::linear(1, 1), &args) }.unwrap().wait().unwrap();
    assert_eq!(out, [-3i64 as u64, 3, 777, 9, u64::from(b'y'), 65535]);
}

#[test]
fn reductions_by_shuffle_and_shared_memory() {
    for (blocks, threads) in [(1, 32), (2, 64), (5, 256), (3, 1024)] {
        let input: Vec<u64> = (0..u64::from(blocks * threads)).map(|i| i * i + 2).collect();
        let mut out = vec![0u64; input.len()];
        run(&with_workers(2), "reduce", LaunchConfig::linear(blocks, threads), &[&input.as_ptr(), &out.as_mut_ptr()])
            .unwrap();
        for (block, sums) in input.chunks(threads as usize).zip(out.chunks(threads as usize)) {
            let sum: u64 = block.iter().sum();
            assert!(sums.iter().all(|&s| s == sum + sum / 2), "{blocks} x {threads}");
        }
    }
}

#[test]
fn dynamic_shared_memory_and_barriers() {
    for threads in [1, 31, 33, 500, 1024] {
        let mut data: Vec<u32> = (0..4 * threads).collect();
        let config = LaunchConfig { shared_bytes: threads as usize * 4, ..LaunchConfig::linear(4, threads) };
        run(&executor(), "reverse", config, &[&data.as_mut_ptr(), &5u32]).unwrap();
        for (block, part) in data.chunks(threads as usize).enumerate() {
            let expected: Vec<u32> = (0..threads).rev().map(|i| block as u32 * threads + i).collect();
            assert_eq!(part, expected);
        }
    }
}

#[test]
fn static_shared_memory_belongs_to_one_block() {
    let executor = executor();
    for _ in 0..2 {
        let mut out = vec![0u32; 6 * 40];
        run(&executor, "shared_is_per_block", LaunchConfig::linear(6, 40), &[&out.as_mut_ptr()]).unwrap();
        for (rank, &value) in out.iter().enumerate() {
            assert_eq!(value, rank as u32 / 40 * 8);
        }
    }
}

#[test]
fn votes_of_warps_and_blocks() {
    // 80 threads: the last warp has 16 lanes.
    let mut out = vec![0u32; 2 * 80 * 8];
    run(&executor(), "votes", LaunchConfig::linear(2, 80), &[&out.as_mut_ptr()]).unwrap();
    for rank in 0..160u32 {
        let in_block = rank % 80;
        let first = in_block / 32 * 32;
        let lanes = first..(first + 32).min(80);
        let set = |condition: &dyn Fn(u32) -> bool| {
            lanes.clone().filter(|&t| condition(t)).fold(0, |mask, t| mask | 1 << (t % 32))
        };
        let expected = [set(&|t| t % 3 == 0), 1, 1, set(&|t| t % 4 == in_block % 4), 40, 1, 1, 0];
        assert_eq!(out[rank as usize * 8..][..8], expected, "thread {rank}");
    }
}

#[test]
fn shuffles_follow_cuda() {
    let mut out = [0u32; 32 * 6];
    run(&executor(), "shuffles", LaunchConfig::linear(1, 32), &[&out.as_mut_ptr()]).unwrap();
    for lane in 0..32u32 {
        let (first, own) = (lane & !7, lane % 8);
        let expected = [
            100 + first + 3,
            100 + if own >= 3 { lane - 3 } else { lane },
            100 + if own < 5 { lane + 3 } else { lane },
            100 + (lane ^ 5),
            100 + (lane ^ 16),
            3 * (100 + 31 - lane),
        ];
        assert_eq!(out[lane as usize * 6..][..6], expected, "lane {lane}");
    }
}

#[test]
fn active_mask_follows_divergence_and_reconvergence() {
    let mut out = vec![0u32; 2 * 64 * 3];
    run(&executor(), "divergence", LaunchConfig::linear(2, 64), &[&out.as_mut_ptr()]).unwrap();
    let thirds = (0..32).filter(|lane| lane % 3 == 0).fold(0u32, |mask, lane| mask | 1 << lane);
    for (rank, words) in out.chunks(3).enumerate() {
        let branch = if rank % 32 % 3 == 0 { thirds & 0xffff_0000 } else { !thirds };
        assert_eq!(words, [u32::MAX, u32::MAX, branch], "thread {rank}");
    }
}

#[test]
fn every_member_of_a_group_is_told_the_same_group() {
    let mut out = vec![0u32; 64 * 8];
    run(&executor(), "nested_divergence", LaunchConfig::linear(1, 64), &[&out.as_mut_ptr()]).unwrap();
    // A group whose members disagree would not complete its operation, which is an error.
    for (rank, masks) in out.chunks(8).enumerate() {
        assert!(masks.iter().all(|mask| mask & 1 << (rank % 32) != 0), "thread {rank}: {masks:x?}");
    }
    let mut flag = 0u32;
    run(&executor(), "gathering_is_fair", LaunchConfig::linear(1, 32), &[&(&raw mut flag)]).unwrap();
}

#[test]
fn lanes_that_left_do_not_count() {
    let mut out = [0u32; 32];
    run(&executor(), "leaving", LaunchConfig::linear(1, 32), &[&out.as_mut_ptr()]).unwrap();
    for (lane, &seen) in out.iter().enumerate() {
        assert_eq!(seen, u32::MAX << lane, "lane {lane}");
    }
}

#[test]
fn groups_of_a_warp_work_independently() {
    let mut out = [0u32; 32];
    run(&executor(), "partial_masks", LaunchConfig::linear(1, 32), &[&out.as_mut_ptr()]).unwrap();
    for lane in 0..32u32 {
        let value = if lane < 16 { (lane + 3) % 16 } else { 16 + (lane + 7) % 16 };
        assert_eq!(out[lane as usize], value + 100 * 0xffff, "lane {lane}");
    }
    let mut out = [0u32; 32];
    run(&executor(), "overlapping_masks", LaunchConfig::linear(1, 32), &[&out.as_mut_ptr()]).unwrap();
    assert_eq!(out[..4], [11 + 3200, 10, 23 + 3000, 22]);
}

#[test]
fn exited_threads_do_not_count_in_barriers() {
    let mut out = [0u32; 2 * 100];
    run(&executor(), "early_exit", LaunchConfig::linear(2, 100), &[&out.as_mut_ptr(), &3u32]).unwrap();
    for (rank, &count) in out.iter().enumerate() {
        assert!(count == if rank % 2 == 0 { 150 } else { 0 } || count > 150, "thread {rank}: {count}");
    }
}

#[test]
fn blocks_wait_for_each_other() {
    for workers in [1, 3] {
        let executor = with_workers(workers);
        let mut flags = [0u32; 8];
        run(&executor, "chain", LaunchConfig::linear(8, 70), &[&flags.as_mut_ptr(), &20u32]).unwrap();
        assert_eq!(flags, [20; 8]);
        let (mut arrived, mut wrong) = (0u32, 0u32);
        let args: [&dyn Argument; 3] = [&(&raw mut arrived), &(&raw mut wrong), &10u32];
        run(&executor, "grid_barrier", LaunchConfig::linear(7, 33), &args).unwrap();
        assert_eq!((arrived, wrong), (70, 0));
    }
}

#[test]
fn blocks_beyond_those_that_are_live_begin_as_others_end() {
    for workers in [1, 3] {
        let options = ExecutorOptions { workers, max_threads: 200, ..ExecutorOptions::default() };
        let executor = Executor::new(options).unwrap();
        let (mut flags, mut out) = (vec![0u32; 3000], vec![0u32; 3000 * 33]);
        run(&executor, "chain", LaunchConfig::linear(3000, 33), &[&flags.as_mut_ptr(), &1u32]).unwrap();
        assert!(flags.iter().all(|flag| *flag == 1));
        run(&executor, "shared_is_per_block", LaunchConfig::linear(3000, 33), &[&out.as_mut_ptr()]).unwrap();
        assert!(out.iter().zip(0u32..).all(|(found, thread)| *found == thread / 33 * 8));
    }
}

#[test]
fn atomics_under_contention() {
    #[repr(C)]
    #[derive(Debug, PartialEq)]
    struct Counters {
        add: u32,
        sub: u32,
        max: u32,
        min: u32,
        exclusive: u32,
        spin: u32,
        bits: u32,
        parity: u32,
        wide: u64,
        real: f32,
        precise: f64,
        bytes: [u8; 8],
        lock: u32,
    }
    for workers in [1, 3] {
        let mut c = Counters {
            add: 0,
            sub: 0,
            max: 0,
            min: u32::MAX,
            exclusive: 0,
            spin: 0,
            bits: 0,
            parity: 1,
            wide: 0,
            real: 0.0,
            precise: 0.0,
            bytes: [0; 8],
            lock: 0,
        };
        let n = 6 * 64 * 5;
        run(&with_workers(workers), "atomics", LaunchConfig::linear(6, 64), &[&(&raw mut c), &5u32]).unwrap();
        let expected = Counters {
            add: n,
            sub: 0u32.wrapping_sub(n),
            max: 6 * 64 - 1,
            min: 0,
            exclusive: 2 * n,
            spin: n,
            bits: u32::MAX,
            parity: 1,
            wide: u64::from(n) << 33,
            real: n as f32,
            precise: f64::from(n) / 2.0,
            bytes: [200, 201, 202, 203, 204, 205, 206, 207],
            lock: 0,
        };
        assert_eq!(c, expected, "{workers} workers");
    }
}

#[test]
fn vectors_of_16_bytes() {
    #[repr(align(16))]
    struct Data([u32; 64]);
    let mut data = Data(std::array::from_fn(|i| i as u32));
    run(&executor(), "vectors", LaunchConfig::linear(1, 16), &[&data.0.as_mut_ptr()]).unwrap();
    for (i, &word) in data.0.iter().enumerate() {
        assert_eq!(word, (i / 4 * 4 + 3 - i % 4) as u32);
    }
}

#[test]
fn doorbells_call_the_hook() {
    static CALLS: AtomicU32 = AtomicU32::new(0);
    set_mmio_hook(Some(|| {
        CALLS.fetch_add(1, Ordering::Relaxed);
    }));
    let mut register = 0u64;
    let executor = executor();
    run(&executor, "doorbell", LaunchConfig::linear(1, 5), &[&(&raw mut register)]).unwrap();
    assert_eq!((register, CALLS.load(Ordering::Relaxed)), (42, 5));
    set_mmio_hook(None);
    run(&executor, "doorbell", LaunchConfig::linear(1, 5), &[&(&raw mut register)]).unwrap();
    assert_eq!(CALLS.load(Ordering::Relaxed), 5);
}

#[test]
fn launches_are_asynchronous_and_in_order() {
    let executor = executor();
    let mut flag = 0u32;
    let mut count = 0u32;
    let waiting = try_launch(&executor, "spin_forever", LaunchConfig::linear(1, 4), &[&(&raw mut flag)]).unwrap();
    let handles: Vec<_> = (0..10)
        .map(|_| try_launch(&executor, "count_threads", LaunchConfig::linear(2, 8), &[&(&raw mut count)]).unwrap())
        .collect();
    assert!(!waiting.is_finished() && handles.iter().all(|handle| !handle.is_finished()));
    // SAFETY: the kernel reads the flag atomically.
    unsafe { AtomicU32::from_ptr(&raw mut flag) }.store(1, Ordering::Release);
    executor.synchronize().unwrap();
    assert!(handles.iter().all(|handle| handle.is_finished()));
    assert_eq!(count, 160);
    executor.synchronize().unwrap();
}

#[test]
fn a_dropped_executor_finishes_its_launches() {
    let mut count = 0u32;
    let executor = with_workers(2);
    for _ in 0..5 {
        try_launch(&executor, "count_threads", LaunchConfig::linear(3, 50), &[&(&raw mut count)]).unwrap();
    }
    drop(executor);
    assert_eq!(count, 750);
}

#[test]
fn executors_run_side_by_side() {
    let threads: Vec<_> = (0..3)
        .map(|_| {
            std::thread::spawn(|| {
                let executor = executor();
                for _ in 0..20 {
                    assert_usable(&executor);
                    let error = run(&executor, "throws", LaunchConfig::linear(1, 64), &[&7u32]).unwrap_err();
                    assert_eq!(error.position, at(0, 7));
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
}

/// Resident bytes of this process.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 1024
}

/// In a process of its own: other tests would disturb the measurement.
fn alone(test: &str) -> bool {
    const VARIABLE: &str = "SIMT_TEST_ALONE";
    if std::env::var_os(VARIABLE).is_some() {
        return true;
    }
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env(VARIABLE, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    false
}

#[test]
fn a_huge_launch_runs_and_its_memory_is_given_back() {
    if !alone("a_huge_launch_runs_and_its_memory_is_given_back") {
        return;
    }
    let executor = executor();
    assert_usable(&executor);
    let before = resident();
    let (mut count, mut arrived, mut wrong) = (0u32, 0u32, 0u32);
    // All 32768 threads are alive at once, each with a stack.
    let args: [&dyn Argument; 3] = [&(&raw mut arrived), &(&raw mut wrong), &3u32];
    run(&executor, "grid_barrier", LaunchConfig::linear(32, 1024), &args).unwrap();
    assert_eq!((arrived, wrong), (96, 0));
    let during = resident();
    assert!(during - before < 200 << 20, "{} MiB for 32 x 1024 threads", (during - before) >> 20);
    let limit = Instant::now() + Duration::from_secs(30);
    while resident() > before + (24 << 20) {
        assert!(Instant::now() < limit, "{} MiB stay resident", (resident() - before) >> 20);
        std::thread::sleep(Duration::from_millis(10));
    }
    // And once more after the trim.
    run(&executor, "use_stack", LaunchConfig::linear(32, 1024), &[&(&raw mut count), &0u32]).unwrap();
    assert_eq!(count, 32768);
}

#[test]
fn a_thousand_launches_do_not_grow_memory() {
    if !alone("a_thousand_launches_do_not_grow_memory") {
        return;
    }
    let executor = with_workers(2);
    let run_some = |times: u32| {
        let mut out = vec![0u32; 8 * 256];
        let mut count = 0u32;
        for _ in 0..times {
            run(&executor, "shared_is_per_block", LaunchConfig::linear(8, 256), &[&out.as_mut_ptr()]).unwrap();
            run(&executor, "count_threads", LaunchConfig::linear(32, 64), &[&(&raw mut count)]).unwrap();
            run(&executor, "throws", LaunchConfig::linear(2, 32), &[&40u32]).unwrap_err();
        }
    };
    run_some(100);
    let before = resident();
    run_some(1000);
    let grown = resident().saturating_sub(before);
    assert!(grown < 2 << 20, "{grown} bytes more after 3000 launches");
}

#[test]
fn threads_without_barriers_share_few_stacks() {
    if !alone("threads_without_barriers_share_few_stacks") {
        return;
    }
    let executor = executor();
    assert_usable(&executor);
    let before = resident();
    let mut count = 0u32;
    run(&executor, "count_threads", LaunchConfig::linear(64, 1024), &[&(&raw mut count)]).unwrap();
    assert_eq!(count, 65536);
    // 65536 threads would need 256 MiB of stacks; their bookkeeping alone needs a fraction.
    let grown = resident().saturating_sub(before);
    assert!(grown < 32 << 20, "{} MiB", grown >> 20);
}

#[test]
fn a_bad_address_is_reported_with_its_thread() {
    for workers in [1, 2] {
        let executor = with_workers(workers);
        let error =
            run(&executor, "bad_write", LaunchConfig::linear(4, 64), &[&0x10usize, &(64 * 2 + 33u32)]).unwrap_err();
        assert_eq!((error.kernel.as_str(), error.position), ("bad_write", at(2, 33)));
        let KernelErrorKind::BadAddress { access, address, pc, .. } = error.kind else { panic!("{error}") };
        assert_eq!(address, 0x10);
        assert_ne!(pc, 0);
        assert_eq!(access, if cfg!(target_arch = "x86_64") { "write to" } else { "access to" });
        assert_usable(&executor);
    }
    let executor = executor();
    let (address, mut out) = (0x7fff_0000_1000usize, 0u64);
    let error =
        run(&executor, "bad_read", LaunchConfig::linear(1, 64), &[&address, &(&raw mut out), &63u32]).unwrap_err();
    assert!(matches!(error.kind, KernelErrorKind::BadAddress { address: a, .. } if a == address), "{error}");
    assert!(error.to_string().contains("read of address 0x7fff00001000, which is not mapped"), "{error}");
    assert_eq!(error.position, at(0, 63));
    assert_usable(&executor);
    // A string in the program's read-only part.
    let constant = c"read only".as_ptr();
    let error = run(&executor, "bad_write", LaunchConfig::linear(1, 1), &[&constant, &0u32]).unwrap_err();
    assert!(error.to_string().contains("protected against this access"), "{error}");
    // Inside of a library function.
    let error = run(&executor, "bad_string", LaunchConfig::linear(1, 1), &[&0x20usize, &(&raw mut out)]).unwrap_err();
    assert!(matches!(error.kind, KernelErrorKind::BadAddress { address: 0x20, .. }), "{error}");
    // Not an address at all: the processor reports a general protection fault without it.
    let error =
        run(&executor, "bad_write", LaunchConfig::linear(1, 1), &[&0x8000_0000_0000_0000usize, &0u32]).unwrap_err();
    assert!(matches!(error.kind, KernelErrorKind::BadAddress { .. }), "{error}");
    assert_usable(&executor);
}

#[test]
fn access_beyond_the_end_of_a_file_is_reported() {
    // SAFETY: a fresh memory object of one page, mapped with two.
    let address = unsafe {
        let fd = libc::memfd_create(c"short".as_ptr(), 0);
        assert_eq!(libc::ftruncate(fd, 4096), 0);
        let flags = libc::MAP_SHARED;
        let start = libc::mmap(std::ptr::null_mut(), 8192, libc::PROT_READ | libc::PROT_WRITE, flags, fd, 0);
        libc::close(fd);
        start as usize + 4096
    };
    let executor = executor();
    let error = run(&executor, "bad_write", LaunchConfig::linear(1, 1), &[&address, &0u32]).unwrap_err();
    assert!(error.to_string().contains("beyond the end of the memory object"), "{error}");
    assert_usable(&executor);
}

#[test]
fn stack_overflow_is_reported_with_the_remedy() {
    let executor = executor();
    for _ in 0..3 {
        let mut depth = 0i32;
        let args: [&dyn Argument; 2] = [&(&raw mut depth), &(64 + 5u32)];
        let error = run(&executor, "overflow", LaunchConfig::linear(2, 64), &args).unwrap_err();
        assert_eq!(error.position, at(1, 5));
        assert!(
            matches!(error.kind, KernelErrorKind::StackOverflow { stack_bytes } if stack_bytes > 32 << 10),
            "{error}"
        );
        assert!(error.to_string().contains("OXSHMEM_CPU_STACK"), "{error}");
        assert!(depth > 50, "{depth}");
        assert_usable(&executor);
    }
    // 96 KiB do not fit into the default, and do into a larger stack.
    let mut count = 0u32;
    let args: [&dyn Argument; 2] = [&(&raw mut count), &(96u32 << 10)];
    let error = run(&executor, "use_stack", LaunchConfig::linear(1, 2), &args).unwrap_err();
    assert!(matches!(error.kind, KernelErrorKind::StackOverflow { .. }), "{error}");
    let large = Executor::new(ExecutorOptions { stack_bytes: 128 << 10, ..ExecutorOptions::default() }).unwrap();
    run(&large, "use_stack", LaunchConfig::linear(1, 2), &args).unwrap();
}

#[test]
fn arithmetic_and_illegal_instructions_are_reported() {
    let executor = executor();
    let mut value = 3i32;
    if cfg!(target_arch = "x86_64") {
        let error = run(&executor, "divide", LaunchConfig::linear(1, 1), &[&(&raw mut value), &0i32]).unwrap_err();
        assert!(matches!(error.kind, KernelErrorKind::Arithmetic { .. }), "{error}");
    }
    run(&executor, "divide", LaunchConfig::linear(1, 1), &[&(&raw mut value), &3i32]).unwrap();
    assert_eq!(value, 1);
    if cfg!(target_arch = "x86_64") {
        let error = run(&executor, "illegal", LaunchConfig::linear(2, 1), &[]).unwrap_err();
        assert!(matches!(error.kind, KernelErrorKind::IllegalInstruction { .. }), "{error}");
        assert_eq!(error.position, at(0, 0));
    }
    assert_usable(&executor);
}

#[test]
fn exceptions_are_reported_with_their_text() {
    let executor = executor();
    let error = run(&executor, "throws", LaunchConfig::linear(3, 64), &[&(64 + 9u32)]).unwrap_err();
    assert_eq!(error.to_string(), "kernel `throws`, block (1,0,0), thread (9,0,0): exception: no luck today");
    let error = run(&executor, "throws_number", LaunchConfig::linear(1, 1), &[]).unwrap_err();
    assert_eq!(error.kind, KernelErrorKind::Exception { what: "unknown exception".to_owned() });
    let mut caught = 0u32;
    run(&executor, "handles_exceptions", LaunchConfig::linear(2, 50), &[&(&raw mut caught)]).unwrap();
    assert_eq!(caught, 3 * 99 * 50 + 300);
    assert_eq!(executor.synchronize().unwrap_err().kernel, "throws");
    executor.synchronize().unwrap();
    assert_usable(&executor);
}

#[test]
fn deadlocks_are_found_at_once_and_explained() {
    let executor = executor();
    let error = run(&executor, "deadlock", LaunchConfig::linear(2, 64), &[&(64 + 40u32)]).unwrap_err();
    assert_eq!(error.position.block, [1, 0, 0]);
    let text = error.to_string();
    let KernelErrorKind::Deadlock { live: 64, .. } = error.kind else { panic!("{text}") };
    assert!(text.contains("thread (40,0,0) waits in sync_warp(mask 0xffffffff) for lanes 0xfffffeff"), "{text}");
    assert!(text.contains("thread (0,0,0) and 31 more of warp 0 waits in sync_block"), "{text}");
    assert!(text.contains("63 of 64 threads are in sync_block"), "{text}");
    assert_usable(&executor);
}

#[test]
fn misused_warp_operations_are_explained() {
    let executor = executor();
    let misuse = |name: &str| {
        let error = run(&executor, name, LaunchConfig::linear(1, 32), &[]).unwrap_err();
        assert!(matches!(error.kind, KernelErrorKind::WarpOperation { .. }), "{error}");
        assert_usable(&executor);
        error
    };
    let error = misuse("foreign_mask");
    assert_eq!(error.position, at(0, 3));
    assert!(error.to_string().contains("sync_warp(mask 0x00000007) does not name its caller, lane 3"), "{error}");
    let error = misuse("different_operations");
    assert_eq!(error.position, at(0, 4));
    assert!(
        error.to_string().contains("ballot(mask 0xffffffff) while other lanes of the mask are in sync_warp"),
        "{error}"
    );
    let error = misuse("different_masks");
    assert!(error.to_string().contains("different masks"), "{error}");
    assert!(error.to_string().contains("waits in sync_warp(mask 0x00000003) for lanes 0x00000002"), "{error}");
}

#[test]
fn a_kernel_is_stopped_at_its_deadline() {
    for workers in [1, 2] {
        let options = ExecutorOptions { workers, deadline: Duration::from_millis(200), ..ExecutorOptions::default() };
        let executor = Executor::new(options).unwrap();
        let mut flag = 0u32;
        // In pauses, in barriers, and in device code that never looks up.
        let error = run(&executor, "spin_forever", LaunchConfig::linear(2, 33), &[&(&raw mut flag)]).unwrap_err();
        assert!(matches!(error.kind, KernelErrorKind::Deadline { .. }), "{error}");
        assert!(error.to_string().contains("spins (pause)"), "{error}");
        assert!(error.to_string().contains("OXSHMEM_KERNEL_TIMEOUT"), "{error}");
        let error = run(&executor, "barriers_forever", LaunchConfig::linear(2, 64), &[&(&raw mut flag)]).unwrap_err();
        assert!(matches!(error.kind, KernelErrorKind::Deadline { .. }), "{error}");
        let args: [&dyn Argument; 2] = [&(&raw mut flag), &1u32];
        let error = run(&executor, "hog", LaunchConfig::linear(2, 1), &args).unwrap_err();
        assert!(
            matches!(error.kind, KernelErrorKind::Deadline { deadline, .. } if deadline.as_millis() == 200),
            "{error}"
        );
        assert_eq!(error.position, at(1, 0));
        assert_usable(&executor);
    }
}

#[test]
fn a_kernel_that_stays_in_a_library_is_stopped_too() {
    let options = ExecutorOptions { deadline: Duration::from_millis(100), ..ExecutorOptions::default() };
    let executor = Executor::new(options).unwrap();
    let mut flag = 0u32;
    let error = run(&executor, "sleeps_forever", LaunchConfig::linear(1, 2), &[&(&raw mut flag)]).unwrap_err();
    assert!(matches!(error.kind, KernelErrorKind::Deadline { .. }), "{error}");
    assert_usable(&executor);
}

#[test]
fn a_failure_stops_blocks_of_other_workers() {
    let executor = with_workers(2);
    let mut flag = 0u32;
    let error = run(&executor, "fail_beside_hog", LaunchConfig::linear(2, 1), &[&(&raw mut flag)]).unwrap_err();
    assert_eq!(error.kind, KernelErrorKind::Exception { what: "block 0 failed".to_owned() });
    assert_eq!(error.position, at(0, 0));
    assert_usable(&executor);
}

#[test]
fn faults_outside_of_kernels_still_kill_the_process() {
    const TEST: &str = "faults_outside_of_kernels_still_kill_the_process";
    if std::env::var_os("SIMT_TEST_CRASH").is_some() {
        let _executor = executor();
        // SAFETY: not safe; this process is here to crash.
        unsafe { std::ptr::without_provenance_mut::<u32>(16).write_volatile(1) };
        return;
    }
    use std::os::unix::process::ExitStatusExt as _;
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args([TEST, "--exact"])
        .env("SIMT_TEST_CRASH", "1")
        .output()
        .unwrap();
    assert_eq!(output.status.signal(), Some(libc::SIGSEGV), "{output:?}");
}

#[test]
fn signals_that_are_not_faults_reach_the_previous_handler() {
    if !alone("signals_that_are_not_faults_reach_the_previous_handler") {
        return;
    }
    static SEEN: AtomicU32 = AtomicU32::new(0);
    extern "C" fn count(_: libc::c_int) {
        SEEN.fetch_add(1, Ordering::Relaxed);
    }
    extern "C" fn count_with_info(_: libc::c_int, info: *const libc::siginfo_t, _: *mut c_void) {
        // SAFETY: the system passes a valid description.
        SEEN.fetch_add(if unsafe { (*info).si_signo } == libc::SIGILL { 100 } else { 0 }, Ordering::Relaxed);
    }
    // SAFETY: handlers that only count, for signals that this process sends to itself.
    unsafe {
        libc::signal(libc::SIGFPE, count as *const () as usize);
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = count_with_info as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        libc::sigaction(libc::SIGILL, &raw const action, std::ptr::null_mut());
    }
    let executor = executor();
    // SAFETY: the handlers above take them.
    unsafe {
        libc::raise(libc::SIGFPE);
        libc::raise(libc::SIGILL);
    }
    assert_eq!(SEEN.load(Ordering::Relaxed), 101);
    // Those of kernels do not.
    let error = run(&executor, "illegal", LaunchConfig::linear(1, 1), &[]).unwrap_err();
    assert!(!error.to_string().is_empty());
    assert_eq!(SEEN.load(Ordering::Relaxed), 101);
}

#[test]
fn launches_beyond_a_limit_are_refused() {
    let executor = executor();
    let refused = |name: &str, config, args: &[&dyn Argument]| try_launch(&executor, name, config, args).unwrap_err();
    let config = |grid, block| LaunchConfig { grid, block, ..LaunchConfig::linear(1, 1) };
    let error = refused("empty", config([1, 0, 1], [1, 1, 1]), &[]);
    assert!(matches!(error, LaunchError::Grid { .. }), "{error}");
    let error = refused("empty", config([1 << 20, 1 << 20, 1], [1, 1, 1]), &[]);
    assert!(matches!(error, LaunchError::Grid { .. }), "{error}");
    let error = refused("empty", config([1, 1, 1], [32, 33, 1]), &[]);
    assert!(error.to_string().contains("[32, 33, 1]") && error.to_string().contains("1024"), "{error}");
    let error = refused("empty", config([1, 1, 1], [0, 1, 1]), &[]);
    assert!(matches!(error, LaunchError::Block { .. }), "{error}");
    let error = refused("bounded", config([1, 1, 1], [33, 3, 1]), &[]);
    assert_eq!(error, LaunchError::Block { kernel: "bounded".to_owned(), block: [33, 3, 1], limit: 96 });
    try_launch(&executor, "bounded", LaunchConfig::linear(2, 96), &[]).unwrap();
    let error = refused("empty", config([u32::MAX, 1, 1], [2, 1, 1]).cooperative(), &[]);
    let limit = executor.options().max_threads;
    assert_eq!(error, LaunchError::Threads { kernel: "empty".to_owned(), threads: u64::from(u32::MAX) * 2, limit });
    let error = refused("empty", LaunchConfig { shared_bytes: 300 << 10, ..LaunchConfig::linear(1, 1) }, &[]);
    assert!(error.to_string().contains("307200") && error.to_string().contains("232448"), "{error}");
    let error = refused("bad_write", LaunchConfig::linear(1, 1), &[&0u64]);
    assert_eq!(error.to_string(), "kernel `bad_write` takes 2 arguments, 1 were given");
    let error = refused("bad_write", LaunchConfig::linear(1, 1), &[&0u64, &0u64]);
    assert_eq!(error.to_string(), "kernel `bad_write`: argument 1 (counted from 0) has 8 bytes, its parameter has 4");
    assert_usable(&executor);
}

#[test]
fn options_beyond_a_limit_are_refused() {
    let refused = |change: &dyn Fn(&mut ExecutorOptions)| {
        let mut options = ExecutorOptions::default();
        change(&mut options);
        Executor::new(options).unwrap_err().to_string()
    };
    assert!(refused(&|o| o.workers = 0).contains("`workers` is 0"));
    assert!(refused(&|o| o.stack_bytes = 4096).contains("`stack_bytes` is 4096"));
    assert!(refused(&|o| o.deadline = Duration::ZERO).contains("`deadline`"));
    assert!(refused(&|o| o.max_threads = 0).contains("`max_threads`"));
}

#[test]
fn unknown_kernels_are_named_with_those_there_are() {
    let error = module().kernel("nonesuch").unwrap_err();
    let ModuleError::NoKernel { name, known } = error else { panic!("{error}") };
    assert_eq!(name, "nonesuch");
    assert!(known.starts_with("positions, arguments") && known.contains("throws_number"), "{known}");
    assert_eq!(kernel("bad_write").arg_sizes(), [8, 4]);
}
