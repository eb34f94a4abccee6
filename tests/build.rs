//! Compiles the tests' kernels. For the `cpu` device alone: they call every function of the inlined device API many times, which takes the
//! CUDA compiler minutes per module and architecture. Those of the layout, of single work
//! requests, of streams and of the `cuda` device itself are small.

fn main() {
    for name in ["atomics", "barriers", "errors", "lanes", "queues", "rma", "signals", "simt", "typed", "waits"] {
        oxshmem_build::Module::new(name).source(format!("kernels/{name}.cu")).cpu_only().compile();
    }
    for name in ["abi", "gpu", "streams", "wqe"] {
        oxshmem_build::Module::new(name).source(format!("kernels/{name}.cu")).compile();
    }
}
