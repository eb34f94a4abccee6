//! Compiles the tests' kernels.

fn main() {
    for name in ["simt", "abi", "atomics", "barriers", "errors", "lanes", "queues", "rma", "signals", "typed", "waits"] {
        oxshmem_build::Module::new(name).source(format!("kernels/{name}.cu")).compile();
    }
}
