//! Notes which C++ compiler there is: the library compiles modules with it when it needs them, also
//! changed ones.

use std::path::Path;

fn main() {
    let compiler = cc::Build::new().cpp(true).warnings(false).get_compiler();
    let out = std::env::var("OUT_DIR").unwrap_or_default();
    println!("cargo:rustc-env=OXSHMEM_EXPLORE_CXX={}", compiler.path().display());
    println!("cargo:rustc-env=OXSHMEM_EXPLORE_CACHE={}", Path::new(&out).join("modules").display());
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=CXX");
}
