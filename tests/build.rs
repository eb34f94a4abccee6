//! Compiles the tests' kernels for the `cpu` device.

use std::path::Path;
use std::{env, fs};

fn main() {
    let root = env::var("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR");
    let out = env::var("OUT_DIR").expect("cargo sets OUT_DIR");
    let source = Path::new(&root).join("kernels/simt.cu");
    let include = Path::new(&root).join("../device-kernels/include");
    let wrapper = Path::new(&out).join("simt.cpp");
    let text = format!(
        "#define OXSHMEM_MODULE_NAME simt\n#include \"{}\"\n#include <oxshmem/port/module.h>\n",
        source.display()
    );
    fs::write(&wrapper, text).expect("OUT_DIR is writable");
    println!("cargo::rerun-if-changed={}", source.display());
    println!("cargo::rerun-if-changed={}", include.display());
    cc::Build::new()
        .cpp(true)
        .std("c++17")
        .opt_level(2)
        .flag("-fexceptions")
        .flag("-fstack-clash-protection")
        .include(include)
        .file(wrapper)
        .compile("oxshmem_module_simt");
}
