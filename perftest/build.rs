//! Compiles the kernels.

use std::thread;

use oxshmem_build::Module;

fn main() {
    let modules = [
        Module::new("perftest_collectives").source("kernels/collective.cu").large(),
        Module::new("perftest")
            .source("kernels/bandwidth.cu")
            .source("kernels/latency.cu")
            .source("kernels/atomic.cu")
            .source("kernels/ping_pong.cu")
            .source("kernels/ceiling.cu"),
        Module::new("alltoall").include("kernels").source("apps/alltoall/kernels.cu").large(),
        Module::new("jacobi").include("kernels").include("apps/jacobi").source("apps/jacobi/kernels.cu").large(),
        Module::new("updates").include("kernels").source("kernels/updates.cu"),
        Module::new("perftest_checks").include("kernels").source("tests/kernels/split.cu"),
        // On GPUs these belong to the programs that scripts/compare builds.
        Module::new("compare").include("apps/jacobi").source("compare/kernels.cu").cpu_only(),
        Module::new("perftest_simt").source("benches/simt.cu"),
    ];
    thread::scope(|scope| {
        for module in modules {
            scope.spawn(|| module.compile());
        }
    });
}
