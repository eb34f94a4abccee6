//! What addresses of this process map: the kernel knows the pages of memory that is registered, the
//! stand-in has to look.

use std::fs;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

/// A file, and where in it something is.
#[derive(Debug)]
pub(crate) struct Backing {
    pub(crate) fd: OwnedFd,
    pub(crate) offset: u64,
}

struct Area {
    start: usize,
    end: usize,
    offset: u64,
    inode: u64,
    shared: bool,
}

fn areas() -> Vec<Area> {
    let text = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let one = |line: &str| -> Option<Area> {
        let mut words = line.split_ascii_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let hex = |text: &str| usize::from_str_radix(text, 16).ok();
        let rights = words.next()?;
        let offset = hex(words.next()?)? as u64;
        let inode = words.nth(1)?.parse().ok()?;
        Some(Area { start: hex(start)?, end: hex(end)?, offset, inode, shared: rights.ends_with('s') })
    };
    text.lines().filter_map(one).collect()
}

/// Returns whether all of the range is mapped.
pub(crate) fn is_mapped(address: usize, len: usize) -> bool {
    let mut at = address;
    for area in areas() {
        if (area.start..area.end).contains(&at) {
            at = area.end;
        }
    }
    at >= address.saturating_add(len)
}

/// Returns the shared file that the range maps, if all of it is one piece of one that this process
/// still has open.
pub(crate) fn behind(address: usize, len: usize) -> Option<Backing> {
    let area = areas().into_iter().find(|area| (area.start..area.end).contains(&address))?;
    if !area.shared || area.inode == 0 || area.end - address < len {
        return None;
    }
    let offset = area.offset + (address - area.start) as u64;
    for entry in fs::read_dir("/proc/self/fd").ok()?.flatten() {
        let Ok(fd) = entry.file_name().to_string_lossy().parse::<i32>() else { continue };
        if fs::metadata(entry.path()).is_ok_and(|metadata| metadata.ino() == area.inode && metadata.is_file()) {
            // SAFETY: the descriptor was open a moment ago, and the caller that registers memory
            // keeps its file meanwhile.
            let fd = unsafe { BorrowedFd::borrow_raw(fd) };
            return Some(Backing { fd: fd.try_clone_to_owned().ok()?, offset });
        }
    }
    None
}

/// Returns where `len` bytes of a file from `offset` are mapped.
pub(crate) fn address_of(fd: BorrowedFd<'_>, offset: u64, len: usize) -> Option<usize> {
    let inode = fs::metadata(format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd())).ok()?.ino();
    areas().into_iter().find_map(|area| {
        let skip = offset.checked_sub(area.offset)? as usize;
        (area.inode == inode && area.shared && area.start + skip + len <= area.end).then_some(area.start + skip)
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use oxshmem_hca::testing::SharedMemory;

    #[test]
    fn shared_memory_is_found_both_ways() {
        let memory = SharedMemory::new(3 * 4096).unwrap();
        let address = memory.base().addr();
        let found = behind(address + 4096, 8192).unwrap();
        assert_eq!(found.offset, 4096);
        assert_eq!(address_of(found.fd.as_fd(), 4096, 8192), Some(address + 4096));
        assert!(behind(address, 4 * 4096).is_none() && address_of(memory.fd(), 0, 4 * 4096).is_none());
        assert!(is_mapped(address, 3 * 4096) && !is_mapped(8, 8));
        let private = [0u8; 64];
        assert!(behind(private.as_ptr().addr(), 64).is_none() && is_mapped(private.as_ptr().addr(), 64));
    }
}
