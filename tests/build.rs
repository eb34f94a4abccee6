//! Compiles the tests' kernels.

fn main() {
    // Exceptions and other things that only C++ has.
    for name in ["errors", "simt"] {
        oxshmem_build::Module::new(name).source(format!("kernels/{name}.cu")).cpu_only().compile();
    }
    for name in ["abi", "atomics", "barriers", "gpu", "lanes", "queues", "rma", "signals", "typed", "waits", "wqe"] {
        oxshmem_build::Module::new(name).source(format!("kernels/{name}.cu")).compile();
    }
}
