//! Compiles the kernel.

fn main() {
    oxshmem_build::Module::new("ring").source("kernels/ring.cu").compile();
}
