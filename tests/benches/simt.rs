//! What one thread of the `cpu` device pays: each figure is the time of one call of one GPU thread.

#![allow(clippy::unwrap_used, missing_docs)]

use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use oxshmem::device::cpu::{Executor, ExecutorOptions, LaunchConfig, Module};

oxshmem::include_module!(SIMT, "simt");

fn bench(c: &mut Criterion) {
    // SAFETY: the function is what the build generated for the module.
    let module = unsafe { Module::from_raw(SIMT.cpu_object()) }.unwrap();
    let executor = Executor::new(ExecutorOptions::default()).unwrap();
    let mut group = c.benchmark_group("simt");
    group.warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1)).sample_size(20);
    let operations = [
        ("pause", "time_pause"),
        ("sync_block", "time_barrier"),
        ("ballot", "time_ballot"),
        ("shfl", "time_shfl"),
        ("match_any", "time_match"),
        ("active_mask", "time_active_mask"),
    ];
    for (blocks, threads) in [(1, 32), (4, 256), (32, 1024)] {
        let config = LaunchConfig::linear(blocks, threads);
        for (operation, kernel) in operations {
            group.throughput(Throughput::Elements(1));
            group.bench_function(format!("{operation}/{blocks}x{threads}"), |b| {
                b.iter_custom(|iterations| {
                    // Enough calls a thread to hide the start of the threads.
                    let calls = u32::try_from(iterations.div_ceil(u64::from(blocks * threads))).unwrap().max(100);
                    let begin = Instant::now();
                    // SAFETY: the kernel takes one u32.
                    let launch =
                        unsafe { executor.launch(module.kernel(kernel).unwrap(), config, &[&calls.to_ne_bytes()]) };
                    launch.unwrap().wait().unwrap();
                    begin.elapsed().mul_f64(iterations as f64 / (f64::from(calls) * f64::from(blocks * threads)))
                });
            });
        }
        group.bench_function(format!("launch/{blocks}x{threads}"), |b| {
            b.iter(|| {
                // SAFETY: the kernel takes nothing.
                unsafe { executor.launch(module.kernel("empty").unwrap(), config, &[]) }.unwrap().wait().unwrap();
            });
        });
    }
    group.finish();
}

criterion_group!(benches, bench);
criterion_main!(benches);
