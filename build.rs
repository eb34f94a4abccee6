//! Compiles the runtime's device code (`device-kernels/kernels`) and the C++ side of the `cpu` device.

fn main() {
    oxshmem_build::Module::new("host_ops").source("device-kernels/kernels/host_ops.cu").compile();

    println!("cargo::rerun-if-changed=runtime/device/cpu/glue.cpp");
    cc::Build::new()
        .cpp(true)
        .std("c++17")
        .include(oxshmem_build::include_dir())
        .file("runtime/device/cpu/glue.cpp")
        .compile("oxshmem_cpu_glue");
}
