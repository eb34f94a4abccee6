//! Compiles the kernel.

fn main() {
    oxshmem_build::Module::new("kernels").source("kernels/ring.cu").compile();
}
