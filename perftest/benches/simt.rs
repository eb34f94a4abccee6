//! What the parts of a kernel cost on the `cpu` device: launch, switch between threads, barriers,
//! warp operations, p.
#![allow(missing_docs, clippy::unwrap_used)]

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use oxshmem::config::Device;
use oxshmem::{Config, KernelArgs, LaunchConfig, Module, Pe};

oxshmem::include_module!(KERNELS, "perftest_simt");

const REPEAT: u32 = 1000;

fn run(pe: &Pe, module: &Module, name: &str, shape: LaunchConfig, args: impl KernelArgs) {
    // SAFETY: the callers pass what benches/simt.cu declares; buffers have an element for each
    // thread.
    unsafe { module.kernel(name).unwrap().launch(pe, shape, args).unwrap() };
    pe.synchronize().unwrap();
}

fn simt(c: &mut Criterion) {
    let pe = Pe::with_config(Config::builder().env().device(Device::Cpu).build().unwrap()).unwrap();
    let module = pe.load(&KERNELS).unwrap();
    let words = pe.alloc::<u64>(1024).unwrap();
    let lanes = pe.alloc::<u32>(1024).unwrap();

    let mut group = c.benchmark_group("launch");
    for threads in [1, 32, 1024] {
        group.bench_function(BenchmarkId::new("nothing", threads), |b| {
            b.iter(|| run(&pe, &module, "nothing", LaunchConfig::linear(1, threads), ()));
        });
    }
    group.finish();

    let mut group = c.benchmark_group("per thread and call");
    for threads in [32, 1024] {
        let shape = LaunchConfig::linear(1, threads);
        group.throughput(Throughput::Elements(u64::from(REPEAT) * u64::from(threads)));
        group.bench_function(BenchmarkId::new("sync_block", threads), |b| {
            b.iter(|| run(&pe, &module, "block_barriers", shape, (REPEAT,)));
        });
        group.bench_function(BenchmarkId::new("pause", threads), |b| {
            b.iter(|| run(&pe, &module, "pauses", shape, (REPEAT,)))
        });
        group.bench_function(BenchmarkId::new("active_mask", threads), |b| {
            b.iter(|| run(&pe, &module, "active_masks", shape, (REPEAT, &lanes)));
        });
        group.bench_function(BenchmarkId::new("shfl", threads), |b| {
            b.iter(|| run(&pe, &module, "shuffles", shape, (REPEAT, &lanes)));
        });
        group.bench_function(BenchmarkId::new("p to itself", threads), |b| {
            b.iter(|| run(&pe, &module, "own_puts", shape, (REPEAT, &words)));
        });
    }
    group.finish();

    let mut group = c.benchmark_group("barrier_all of one PE");
    group.throughput(Throughput::Elements(u64::from(REPEAT)));
    group.bench_function("block of 32", |b| {
        b.iter(|| run(&pe, &module, "barriers_of_all", LaunchConfig::linear(1, 32), (REPEAT,)));
    });
    group.finish();
    pe.finalize().unwrap();
}

fn short() -> Criterion {
    let second = std::time::Duration::from_secs(1);
    Criterion::default().sample_size(20).warm_up_time(second / 2).measurement_time(second)
}

criterion_group!(name = benches; config = short(); targets = simt);
criterion_main!(benches);
