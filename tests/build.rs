//! Compiles the tests' kernels.

fn main() {
    oxshmem_build::Module::new("simt").source("kernels/simt.cu").compile();
}
