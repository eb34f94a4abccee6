//! Compiles the tests' kernels.

fn main() {
    // Exceptions and other things that only C++ has.
    oxshmem_build::Module::new("simt").source("kernels/simt.cu").cpu_only().compile();
    oxshmem_build::Module::new("gpu").source("kernels/gpu.cu").compile();
    oxshmem_build::Module::new("wqe").source("kernels/wqe.cu").compile();
}
