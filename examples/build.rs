//! Compiles the kernels of the examples that have some.

use oxshmem_build::Module;

fn main() {
    for (module, source) in [
        ("put_signal", "01-put-signal/kernels.cu"),
        ("jacobi", "02-jacobi/kernels.cu"),
        ("alltoall", "03-alltoall/kernels.cu"),
        ("training", "06-training/kernels.cu"),
    ] {
        Module::new(module).source(source).compile();
    }
}
