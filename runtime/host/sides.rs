//! The program's side of a transfer: host memory, symmetric memory, or memory that a pointer names.

use std::ffi::c_void;

use bytemuck::Pod;

use crate::heap::error::HeapError;
use crate::identity::PeId;
use crate::pe::Pe;
use crate::slice::{Symmetric, SymmetricSlice, SymmetricView, bytes_of};

mod side {
    pub trait Sealed {}
}

/// The program's side of a put: where the data comes from. `On` is what issues the put: a [`Pe`](crate::Pe) also takes slices of
/// the host, which are used when the call returns.
///
/// ```
/// use oxshmem::Operations;
/// # fn main() -> oxshmem::Result<()> {
/// # let pe = oxshmem::init()?;
/// let (dst, src) = (pe.alloc::<u16>(3)?, pe.alloc::<u16>(3)?);
/// pe.put(&dst, &[1, 2, 3], 0)?; // an array, a slice or a vector
/// pe.put(&dst, src.view(1..), 0)?; // symmetric memory
/// # pe.finalize()
/// # }
/// ```
pub trait Source<On: ?Sized>: side::Sealed {
    /// What the data consists of.
    type Element;
    #[doc(hidden)]
    fn source(&self, pe: PeId) -> Result<Local<'_>, HeapError>;
}

/// The program's side of a get: where the data goes. `On` as for [`Source`].
///
/// ```
/// use oxshmem::Operations;
/// # fn main() -> oxshmem::Result<()> {
/// # let pe = oxshmem::init()?;
/// let src = pe.alloc::<u16>(3)?;
/// let mut here = [9; 3];
/// pe.get(&mut here, &src, 0)?;
/// assert_eq!(here, [0; 3]);
/// # pe.finalize()
/// # }
/// ```
pub trait Destination<On: ?Sized>: side::Sealed {
    /// What the data consists of.
    type Element;
    #[doc(hidden)]
    fn destination(&mut self, pe: PeId) -> Result<LocalMut<'_>, HeapError>;
}

/// Where the data of a put is.
#[doc(hidden)]
#[derive(Debug)]
pub enum Local<'a> {
    /// Host memory that is borrowed for the call.
    Host(&'a [u8]),
    /// Memory that the device reads: address and bytes.
    Device(u64, u64),
    /// Memory anywhere: address and bytes.
    Raw(u64, usize),
}

/// Where the data of a get goes.
#[doc(hidden)]
#[derive(Debug)]
pub enum LocalMut<'a> {
    /// Host memory that is borrowed for the call.
    Host(&'a mut [u8]),
    /// Memory that the device writes: address and bytes.
    Device(u64, u64),
    /// Memory anywhere: address and bytes.
    Raw(u64, usize),
}

macro_rules! host_sides {
    ($([$($generics:tt)*] $type:ty;)*) => {
        $(
            impl<T, $($generics)*> side::Sealed for &$type {}
            impl<T: Pod, $($generics)*> Source<Pe> for &$type {
                type Element = T;
                fn source(&self, _pe: PeId) -> Result<Local<'_>, HeapError> {
                    Ok(Local::Host(bytemuck::cast_slice::<T, u8>(&self[..])))
                }
            }
            impl<T, $($generics)*> side::Sealed for &mut $type {}
            impl<T: Pod, $($generics)*> Destination<Pe> for &mut $type {
                type Element = T;
                fn destination(&mut self, _pe: PeId) -> Result<LocalMut<'_>, HeapError> {
                    Ok(LocalMut::Host(bytemuck::cast_slice_mut::<T, u8>(&mut self[..])))
                }
            }
        )*
    };
}
host_sides! {
    [] [T];
    [const N: usize] [T; N];
    [] Vec<T>;
}

macro_rules! symmetric_sides {
    ($($type:ty),*) => {
        $(
            impl<T> side::Sealed for $type {}
            impl<T, On: ?Sized> Source<On> for $type {
                type Element = T;
                fn source(&self, pe: PeId) -> Result<Local<'_>, HeapError> {
                    let (address, len) = self.to_view().resolve(pe)?;
                    Ok(Local::Device(address, bytes_of::<T>(len)))
                }
            }
            impl<T, On: ?Sized> Destination<On> for $type {
                type Element = T;
                fn destination(&mut self, pe: PeId) -> Result<LocalMut<'_>, HeapError> {
                    let (address, len) = self.to_view().resolve(pe)?;
                    Ok(LocalMut::Device(address, bytes_of::<T>(len)))
                }
            }
        )*
    };
}
symmetric_sides!(&SymmetricSlice<T>, SymmetricView<'_, T>, &SymmetricView<'_, T>);

/// Memory that a pointer names, on the host or on the GPU, as the program's side of a transfer: for programs in other languages.
///
/// A [`Pe`] takes memory of any kind. On a stream it has to be memory that the device accesses: of the symmetric heap, of the GPU
/// (`cudaMalloc`), or page-locked (`cudaMallocHost`). On the `cpu` device that is all memory.
///
/// # Errors
/// Memory of a symmetric heap that is not all of one live allocation is refused, with the nearest allocation; so is pageable host memory on a stream of a
/// GPU.
///
/// # Example
/// ```
/// use oxshmem::{Operations, RawMemory};
/// # fn main() -> oxshmem::Result<()> {
/// # let pe = oxshmem::init()?;
/// let dst = pe.alloc::<u8>(4)?;
/// let mut data = *b"abcd";
/// // SAFETY: four bytes, which outlive the call.
/// pe.put(&dst, unsafe { RawMemory::new(data.as_mut_ptr().cast(), 4) }, 0)?;
/// assert_eq!(pe.read(&dst)?, b"abcd");
/// # pe.finalize()
/// # }
/// ```
#[derive(Debug)]
pub struct RawMemory {
    address: u64,
    bytes: usize,
}

impl RawMemory {
    /// Names `bytes` bytes at `at`.
    ///
    /// # Safety
    /// They are readable if they are the source of a put, and writable if they are the destination of a get, until the operation has ended: the call on a
    /// [`Pe`], the stream's work on a stream. Memory of a symmetric heap need not be anything.
    ///
    /// ```
    /// let mut word = 7u64;
    /// // SAFETY: it is used for nothing.
    /// let memory = unsafe { oxshmem::RawMemory::new((&raw mut word).cast(), 8) };
    /// # drop(memory);
    /// ```
    #[must_use]
    pub unsafe fn new(at: *mut c_void, bytes: usize) -> Self {
        Self { address: at as u64, bytes }
    }
}

impl side::Sealed for RawMemory {}

impl<On: ?Sized> Source<On> for RawMemory {
    type Element = u8;
    fn source(&self, _pe: PeId) -> Result<Local<'_>, HeapError> {
        Ok(Local::Raw(self.address, self.bytes))
    }
}

impl<On: ?Sized> Destination<On> for RawMemory {
    type Element = u8;
    fn destination(&mut self, _pe: PeId) -> Result<LocalMut<'_>, HeapError> {
        Ok(LocalMut::Raw(self.address, self.bytes))
    }
}
