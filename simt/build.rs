//! Compiles what the executor needs from C++.

fn main() {
    let headers = oxshmem_build::include_dir();
    println!("cargo::rerun-if-changed=src/glue.cpp");
    println!("cargo::rerun-if-changed={}", headers.join("oxshmem/abi.h").display());
    cc::Build::new().cpp(true).std("c++17").include(headers).file("src/glue.cpp").compile("oxshmem_cpu_glue");
}
