//! Pages of the program that others map too, on the `cpu` device.

use std::ffi::c_void;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use rustix::mm::{MapFlags, MremapFlags, ProtFlags, mmap, mmap_anonymous, mremap_fixed, munmap};

/// Pages of the program that are those of a file. They are the process's own again, with what is in
/// them, when this is dropped.
#[derive(Debug)]
pub(super) struct SharedPages {
    at: u64,
    bytes: usize,
}

impl SharedPages {
    /// Makes `bytes` bytes at `at`, whole pages, those of a file of that size.
    ///
    /// # Safety
    /// It is memory of the program, which stays allocated as long as this lives. No other thread
    /// uses it during the call, and while this is dropped.
    pub unsafe fn new(at: u64, bytes: usize, file: &OwnedFd) -> Result<Self, String> {
        let written = File::from(file.try_clone().map_err(|error| error.to_string())?);
        // SAFETY: the caller's promise.
        let content = unsafe { std::slice::from_raw_parts(at as *const u8, bytes) };
        written.write_all_at(content, 0).map_err(|error| format!("its content cannot be copied: {error}"))?;
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::FIXED);
        // SAFETY: as above: nothing uses the pages meanwhile, and they have the same content after.
        unsafe { mmap(at as *mut c_void, bytes, prot, flags, file, 0) }
            .map_err(|errno| format!("it cannot be mapped anew: {errno}"))?;
        Ok(Self { at, bytes })
    }

    /// Moves a copy of the pages into their place, which leaves them as they are if it fails.
    fn give_back(&self) -> rustix::io::Result<()> {
        let (prot, to) = (ProtFlags::READ | ProtFlags::WRITE, self.at as *mut c_void);
        // SAFETY: a new mapping at an address that the system chooses.
        let copy = unsafe { mmap_anonymous(std::ptr::null_mut(), self.bytes, prot, MapFlags::PRIVATE) }?;
        // SAFETY: two mappings of that length; nothing uses the first, as `new` says, and nothing
        // else has the second. It takes the place of the first, with the same content.
        let moved = unsafe {
            std::ptr::copy_nonoverlapping(to.cast::<u8>(), copy.cast(), self.bytes);
            mremap_fixed(copy, self.bytes, self.bytes, MremapFlags::MAYMOVE, to)
        };
        if moved.is_err() {
            // SAFETY: the mapping that was made above and has not been moved.
            let _ = unsafe { munmap(copy, self.bytes) };
        }
        moved.map(drop)
    }
}

impl Drop for SharedPages {
    fn drop(&mut self) {
        if let Err(error) = self.give_back() {
            tracing::warn!(%error, bytes = self.bytes, "memory of the program stays mapped from a shared file");
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use super::*;

    #[test]
    fn pages_are_the_process_s_own_again() {
        let bytes = 2 * rustix::param::page_size();
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping.
        let at = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, prot, MapFlags::PRIVATE) }.unwrap();
        // SAFETY: the mapping's bytes; nothing else uses them.
        let word = |i: usize| unsafe { &mut *at.cast::<u8>().add(i) };
        *word(0) = 1;
        let file = memfd_create("pages", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, bytes as u64).unwrap();
        // SAFETY: as above.
        let shared = unsafe { SharedPages::new(at as u64, bytes, &file) }.unwrap();
        let others = File::from(file);
        others.write_all_at(&[2], bytes as u64 - 1).unwrap();
        assert_eq!((*word(0), *word(bytes - 1)), (1, 2));
        drop(shared);
        others.write_all_at(&[3; 2], bytes as u64 - 2).unwrap();
        assert_eq!((*word(0), *word(bytes - 2), *word(bytes - 1)), (1, 0, 2));
        // SAFETY: the mapping that was made above.
        unsafe { munmap(at, bytes) }.unwrap();
    }
}
