//! Raw shared memory: mappings, and the copies and atomics that the engine does on bytes that
//! others change at any time.
//!
//! No reference to shared bytes is ever formed; words are read and written with relaxed atomics.

use crate::error::{Error, Result};
use memmap2::{MmapOptions, MmapRaw};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

/// A page, in bytes. x86-64 and most arm64 kernels; a larger one only makes `mmap` refuse offsets,
/// with an error.
pub(super) const PAGE: u64 = 4096;

/// A shared mapping of a file or private memory, unmapped on drop. All threads access it through
/// raw pointers and atomics alone.
#[derive(Debug)]
pub(super) struct Mapping(MmapRaw);

impl Mapping {
    /// Maps `len` bytes of `fd` from `offset`, shared. Fails if the file is shorter.
    pub(super) fn of_fd(fd: BorrowedFd<'_>, offset: u64, len: usize, writable: bool) -> Result<Self> {
        let what = || format!("map {len} bytes at offset {offset:#x} of a shared file");
        let end =
            offset.checked_add(len as u64).ok_or_else(|| Error::argument("len", len, "offset + len overflows"))?;
        let size = rustix::fs::fstat(fd).map_err(|errno| Error::os(what(), errno))?.st_size;
        if u64::try_from(size).unwrap_or(0) < end {
            return Err(Error::argument("fd", format!("a file of {size} bytes"), format!("must hold {end} bytes")));
        }
        let mut options = MmapOptions::new();
        options.offset(offset).len(len);
        let mapped = if writable { options.map_raw(&fd) } else { options.map_raw_read_only(&fd) };
        mapped.map(Self).map_err(|error| Error::os(what(), error))
    }

    /// Maps `len` bytes of private memory, filled with zeros.
    pub(super) fn anonymous(len: usize) -> Result<Self> {
        let mapped = MmapOptions::new().len(len).map_anon();
        mapped.map(|mapped| Self(mapped.into())).map_err(|error| Error::os(format!("map {len} bytes"), error))
    }

    /// Returns its length in bytes.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns where the range starts.
    pub(super) fn ptr(&self) -> *mut u8 {
        self.0.as_mut_ptr()
    }
}

/// Loads an aligned 8-byte word.
///
/// # Safety
/// `ptr` is aligned and readable.
#[inline]
pub(super) unsafe fn load64(ptr: *const u8, order: Ordering) -> u64 {
    // SAFETY: the caller's promise.
    unsafe { AtomicU64::from_ptr(ptr.cast_mut().cast()) }.load(order)
}

/// Stores an aligned 8-byte word.
///
/// # Safety
/// `ptr` is aligned and writable.
#[inline]
pub(super) unsafe fn store64(ptr: *mut u8, value: u64, order: Ordering) {
    // SAFETY: the caller's promise.
    unsafe { AtomicU64::from_ptr(ptr.cast()) }.store(value, order);
}

/// Loads an aligned 4-byte word.
///
/// # Safety
/// `ptr` is aligned and readable.
#[inline]
pub(super) unsafe fn load32(ptr: *const u8, order: Ordering) -> u32 {
    // SAFETY: the caller's promise.
    unsafe { AtomicU32::from_ptr(ptr.cast_mut().cast()) }.load(order)
}

/// Reads 8 bytes at any alignment, aligned words as one access.
///
/// # Safety
/// The 8 bytes are readable.
#[inline]
unsafe fn read64(ptr: *const u8) -> u64 {
    if ptr.addr().is_multiple_of(8) {
        // SAFETY: aligned, and readable by the caller's promise.
        unsafe { load64(ptr, Ordering::Relaxed) }
    } else {
        // Two words of different alignment never transfer atomically, so no program may rely on it.
        // SAFETY: readable by the caller's promise.
        unsafe { ptr.cast::<u64>().read_unaligned() }
    }
}

/// Copies `len` bytes in ascending order. A destination of 1, 2, 4 or 8 bytes that is aligned to
/// its size is stored at once.
///
/// # Safety
/// `src` is readable and `dst` writable for `len` bytes. They may overlap; the result is then
/// unspecified, but bytes all the same.
#[inline]
pub(super) unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: every access below stays within the `len` bytes that the caller vouches for, and is
    // aligned where it must be.
    unsafe {
        match len {
            8 if dst.addr().is_multiple_of(8) => store64(dst, read64(src), Ordering::Relaxed),
            4 if dst.addr().is_multiple_of(4) => {
                let value = src.cast::<u32>().read_unaligned();
                AtomicU32::from_ptr(dst.cast()).store(value, Ordering::Relaxed);
            }
            2 if dst.addr().is_multiple_of(2) => {
                let value = src.cast::<u16>().read_unaligned();
                AtomicU16::from_ptr(dst.cast()).store(value, Ordering::Relaxed);
            }
            _ => copy_long(dst, src, len),
        }
    }
}

/// Copies `len` bytes from `src` to `dst`.
///
/// # Safety
/// The conditions of [`copy`].
unsafe fn copy_long(dst: *mut u8, src: *const u8, len: usize) {
    let head = dst.align_offset(8).min(len);
    let words = (len - head) / 8;
    // SAFETY: as for `copy`; `head` bytes bring `dst` to an 8-byte boundary, `words` words follow,
    // then the rest.
    unsafe {
        for i in 0..head {
            copy_byte(dst.add(i), src.add(i));
        }
        let (dst, src) = (dst.add(head), src.add(head));
        if src.addr().is_multiple_of(8) {
            for i in 0..words {
                store64(dst.add(i * 8), load64(src.add(i * 8), Ordering::Relaxed), Ordering::Relaxed);
            }
        } else {
            for i in 0..words {
                store64(dst.add(i * 8), src.add(i * 8).cast::<u64>().read_unaligned(), Ordering::Relaxed);
            }
        }
        for i in words * 8..len - head {
            copy_byte(dst.add(i), src.add(i));
        }
    }
}

/// Copies a byte from `src` to `dst`.
///
/// # Safety
/// `src` is readable, `dst` writable.
#[inline]
pub(super) unsafe fn copy_byte(dst: *mut u8, src: *const u8) {
    // SAFETY: the caller's promise; a byte is always aligned.
    unsafe {
        let value = AtomicU8::from_ptr(src.cast_mut()).load(Ordering::Relaxed);
        AtomicU8::from_ptr(dst).store(value, Ordering::Relaxed);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::os::fd::AsFd;

    proptest! {
        #[test]
        fn copies_every_byte_and_no_other(from in 0usize..16, to in 0usize..16, len in 0usize..100) {
            let src: Vec<u8> = (0..128u8).collect();
            let mut dst = vec![0xeeu8; 128];
            // SAFETY: both ranges lie within the vectors.
            unsafe { copy(dst.as_mut_ptr().add(to), src.as_ptr().add(from), len) };
            prop_assert_eq!(&dst[to..to + len], &src[from..from + len]);
            prop_assert!(dst[..to].iter().chain(&dst[to + len..]).all(|byte| *byte == 0xee));
        }
    }

    #[test]
    fn a_short_file_is_not_mapped() {
        let fd = rustix::fs::memfd_create("short", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&fd, 8192).unwrap();
        assert!(Mapping::of_fd(fd.as_fd(), 0, 8193, true).is_err());
        assert!(Mapping::of_fd(fd.as_fd(), u64::MAX, 1, true).is_err());
        let whole = Mapping::of_fd(fd.as_fd(), 0, 8192, true).unwrap();
        let part = Mapping::of_fd(fd.as_fd(), 4100, 8, false).unwrap();
        // SAFETY: both lie within the mappings; 4104 is aligned.
        unsafe {
            store64(whole.ptr().add(4104), 77, Ordering::Relaxed);
            assert_eq!(load64(part.ptr().add(4), Ordering::Relaxed), 77);
        }
    }
}
