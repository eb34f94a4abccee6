//! Compiles the kernels.

fn main() {
    oxshmem_build::Module::new("perftest")
        .source("kernels/bandwidth.cu")
        .source("kernels/latency.cu")
        .source("kernels/atomic.cu")
        .source("kernels/ping_pong.cu")
        .source("kernels/ceiling.cu")
        .compile();
    oxshmem_build::Module::new("perftest_collectives").source("kernels/collective.cu").large().compile();
    oxshmem_build::Module::new("alltoall").include("kernels").source("apps/alltoall/kernels.cu").large().compile();
    oxshmem_build::Module::new("jacobi")
        .include("kernels")
        .include("apps/jacobi")
        .source("apps/jacobi/kernels.cu")
        .large()
        .compile();
    oxshmem_build::Module::new("perftest_checks").include("kernels").source("tests/kernels/split.cu").compile();
    // On GPUs these belong to the programs that scripts/compare builds.
    oxshmem_build::Module::new("compare").include("apps/jacobi").source("compare/kernels.cu").cpu_only().compile();
    oxshmem_build::Module::new("perftest_simt").source("benches/simt.cu").compile();
}
