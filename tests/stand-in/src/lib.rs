//! A stand-in for rdma-core: `libibverbs.so.1` and `libmlx5.so.1` with the functions that OxSHMEM
//! loads, backed by the software HCA.
//!
//! With the folder that [`install`] makes on the library path, the provider for ConnectX cards runs
//! through its real interface: C structures, protection domains, memory regions, umems, doorbell
//! pages, command bytes, asynchronous events, teardown. The stand-in refuses what the library, the
//! kernel and the firmware would refuse: umems with rights that the kernel's DevX does not know, or
//! without a page size where queues begin inside them; CQs on an event queue that does not exist;
//! packets to a hardware address that is not the peer's; paths with fields of the other link layer,
//! or without those that they need.
//!
//! It has one card, `mlx5_0`, with one RoCE port. Index 3 of the port's GID table is the only one
//! that can be routed. On request there are more cards, and ports are on InfiniBand: one subnet, or
//! several that a router joins. Packets to LIDs and GIDs that no port has are lost, as on a
//! network.
//!
//! # Lies
//! The variable [`VARIABLE`] makes it misbehave: items separated by commas, see [`lies`].
//!
//! One file stands for both libraries, so that they share what one makes and the other uses; two
//! copies of it do as well, since all they share are objects behind pointers.

mod devx;
mod infiniband;
pub mod lies;
mod mapping;
mod state;
mod verbs;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

pub use lies::VARIABLE;

/// The names that programs load it by.
pub const LIBRARIES: [&str; 2] = ["libibverbs.so.1", "libmlx5.so.1"];

/// Returns the file of this library that was built with the program that calls this.
///
/// # Errors
/// There is none beside the program.
pub fn library() -> io::Result<PathBuf> {
    built("liboxshmem_stand_in.so")
}

/// Returns the file of a library that was built with the program that calls this.
///
/// # Errors
/// There is none beside the program.
pub fn built(name: &str) -> io::Result<PathBuf> {
    let program = std::env::current_exe()?;
    program
        .ancestors()
        .skip(1)
        .take(2)
        .flat_map(|folder| [folder.to_path_buf(), folder.join("deps")])
        .map(|folder| folder.join(name))
        .find(|path| path.is_file())
        .ok_or_else(|| io::Error::other(format!("no {name} beside {}", program.display())))
}

/// Makes `folder`, and both libraries in it, without the functions named in `missing`. The folder
/// belongs on the library path (`LD_LIBRARY_PATH`) of the programs that are to use them.
///
/// # Errors
/// The library was not built, or the folder cannot be written.
pub fn install(folder: &Path, missing: &[&str]) -> io::Result<()> {
    std::fs::create_dir_all(folder)?;
    let file = library()?;
    let source = if missing.is_empty() {
        file
    } else {
        let mut bytes = std::fs::read(file)?;
        for name in missing {
            hide(&mut bytes, name)?;
        }
        let copy = folder.join("stand-in.so");
        replace(&copy, |path| std::fs::write(path, &bytes))?;
        copy
    };
    link(&source, folder, &LIBRARIES)
}

/// Makes `folder`, and in it links to a library, by the names that programs load it by.
///
/// # Errors
/// The folder cannot be written.
pub fn link(library: &Path, folder: &Path, names: &[&str]) -> io::Result<()> {
    std::fs::create_dir_all(folder)?;
    names.iter().try_for_each(|name| replace(&folder.join(name), |path| std::os::unix::fs::symlink(library, path)))
}

/// Makes a file under another name and renames it, so that no other process or thread ever sees
/// half of it.
fn replace(path: &Path, make: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
    static FILES: AtomicU64 = AtomicU64::new(0);
    let own = path.with_extension(format!("new-{}-{}", std::process::id(), FILES.fetch_add(1, Relaxed)));
    make(&own)?;
    std::fs::rename(&own, path)
}

/// Renames a symbol in the string table, so that the loader does not find it.
fn hide(bytes: &mut [u8], symbol: &str) -> io::Result<()> {
    let name = [&[0], symbol.as_bytes(), &[0]].concat();
    let mut found = false;
    let mut at = 0;
    while let Some(next) = bytes[at..].windows(name.len()).position(|window| window == name) {
        at += next + 1;
        bytes[at] = b'X';
        found = true;
    }
    if found { Ok(()) } else { Err(io::Error::other(format!("there is no symbol {symbol}"))) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_hidden_symbol_is_not_found() {
        let mut bytes = b"\0ibv_one\0ibv_one_ex\0ibv_two\0".to_vec();
        hide(&mut bytes, "ibv_one").unwrap();
        assert_eq!(bytes, b"\0Xbv_one\0ibv_one_ex\0ibv_two\0");
        assert!(hide(&mut bytes, "ibv_three").is_err());
    }
}
