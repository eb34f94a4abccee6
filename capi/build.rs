//! Names the shared library, so that programs find it by name wherever it lies.

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,liboxshmem.so");
    println!("cargo::rerun-if-changed=build.rs");
}
