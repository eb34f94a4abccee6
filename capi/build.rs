//! Gives the shared library its soname, which has the major version (docs/versions.md), and puts a
//! link of that name beside the file that cargo makes: programs that were linked with the library
//! in a target folder look for it there.

use std::path::Path;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let soname = format!("liboxshmem.so.{}", env!("CARGO_PKG_VERSION_MAJOR"));
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,{soname}");
    // PROFILE/build/PACKAGE/out
    let out = std::env::var_os("OUT_DIR").unwrap_or_default();
    let Some(profile) = Path::new(&out).ancestors().nth(3) else { return };
    for folder in [profile.to_path_buf(), profile.join("deps")] {
        let link = folder.join(&soname);
        // One that is there already is right: the version is in its name.
        if std::os::unix::fs::symlink("liboxshmem.so", &link).is_err() && !link.is_symlink() {
            println!("cargo::warning=cannot make the link {}; programs do not find the library there", link.display());
        }
    }
}
