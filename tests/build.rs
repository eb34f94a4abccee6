//! Compiles the tests' kernels.

/// The oldest GPUs that the tests run on; newer ones take the same PTX. One architecture keeps the build short.
const ARCHITECTURES: [u32; 1] = [90];

fn main() {
    for name in [
        "abi",
        "atomics",
        "barriers",
        "collectives",
        "errors",
        "gpu",
        "lanes",
        "queues",
        "rma",
        "signals",
        "streams",
        "teams",
        "typed",
        "waits",
        "wqe",
    ] {
        oxshmem_build::Module::new(name).source(format!("kernels/{name}.cu")).architectures(ARCHITECTURES).compile();
    }
    // For the report of registers and spills on every architecture.
    oxshmem_build::Module::new("paths").source("kernels/paths.cu").compile();
    // Calls the port layer as only the `cpu` device can be called.
    oxshmem_build::Module::new("simt").source("kernels/simt.cu").cpu_only().compile();
}
