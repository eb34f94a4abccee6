//! Compiles the C++ that the runtime itself needs.

fn main() {
    println!("cargo::rerun-if-changed=runtime/device/cpu/glue.cpp");
    println!("cargo::rerun-if-changed=device-kernels/include");
    cc::Build::new()
        .cpp(true)
        .std("c++17")
        .include("device-kernels/include")
        .file("runtime/device/cpu/glue.cpp")
        .compile("oxshmem_cpu_glue");
}
