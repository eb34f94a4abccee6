//! The program's side of a transfer: host memory, symmetric memory, or memory that a pointer names.

use std::ffi::c_void;
use std::fmt;

use bytemuck::Pod;

use super::issuer::sealed::Issuer;
use crate::Result;
use crate::pe::Pe;
use crate::slice::{Symmetric, SymmetricSlice, SymmetricView, bytes_of};

pub(crate) mod side {
    pub trait Sealed {}
}

/// The program's side of a put: where the data comes from. `On` is what issues the put: a
/// [`Pe`](crate::Pe) also takes slices of the host, which are used when the call returns.
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
pub trait Source<On: Issuer + ?Sized>: side::Sealed {
    /// What the data consists of.
    ///
    /// ```
    /// use oxshmem::{Pe, Source};
    ///
    /// fn takes_bytes(_: impl Source<Pe, Element = u8>) {}
    /// takes_bytes(b"abc");
    /// ```
    type Element;
    #[doc(hidden)]
    fn source<'a>(&'a self, on: &'a On) -> Result<Local<'a>>;
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
pub trait Destination<On: Issuer + ?Sized>: side::Sealed {
    /// What the data consists of.
    ///
    /// ```
    /// use oxshmem::{Destination, Pe};
    ///
    /// fn takes_bytes(_: impl Destination<Pe, Element = u8>) {}
    /// takes_bytes(&mut [0u8; 4]);
    /// ```
    type Element;
    #[doc(hidden)]
    fn destination<'a>(&'a mut self, on: &'a On) -> Result<LocalMut<'a>>;
}

/// Where the data of a put is.
#[doc(hidden)]
#[derive(Debug)]
pub enum Local<'a> {
    /// Host memory that is borrowed for the call.
    Host(&'a [u8]),
    /// Memory that the device reads: address and bytes.
    Device(u64, u64, Hold<'a>),
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
    Device(u64, u64, Hold<'a>),
    /// Memory anywhere: address and bytes.
    Raw(u64, usize),
}

impl Local<'_> {
    /// Returns how many bytes it has.
    pub(super) fn bytes(&self) -> u64 {
        match self {
            Self::Host(data) => data.len() as u64,
            Self::Device(_, bytes, _) => *bytes,
            Self::Raw(_, bytes) => *bytes as u64,
        }
    }
}

impl LocalMut<'_> {
    /// Returns how many bytes it has room for.
    pub(super) fn bytes(&self) -> u64 {
        match self {
            Self::Host(data) => data.len() as u64,
            Self::Device(_, bytes, _) => *bytes,
            Self::Raw(_, bytes) => *bytes as u64,
        }
    }
}

/// What is dropped when an operation has been queued: it orders the operation before whatever uses
/// the memory next.
#[doc(hidden)]
#[derive(Debug)]
pub struct Hold<'a> {
    _held: Option<Box<dyn fmt::Debug + 'a>>,
}

impl<'a> Hold<'a> {
    /// For memory that needs nothing.
    pub(crate) const NONE: Self = Self { _held: None };

    #[cfg(feature = "cudarc")]
    pub(crate) fn new(held: impl fmt::Debug + 'a) -> Self {
        Self { _held: Some(Box::new(held)) }
    }
}

macro_rules! host_sides {
    ($([$($generics:tt)*] $type:ty;)*) => {
        $(
            impl<T, $($generics)*> side::Sealed for &$type {}
            impl<T: Pod, $($generics)*> Source<Pe> for &$type {
                type Element = T;
                fn source<'a>(&'a self, _on: &'a Pe) -> Result<Local<'a>> {
                    Ok(Local::Host(bytemuck::cast_slice::<T, u8>(&self[..])))
                }
            }
            impl<T, $($generics)*> side::Sealed for &mut $type {}
            impl<T: Pod, $($generics)*> Destination<Pe> for &mut $type {
                type Element = T;
                fn destination<'a>(&'a mut self, _on: &'a Pe) -> Result<LocalMut<'a>> {
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
            impl<T, On: Issuer + ?Sized> Source<On> for $type {
                type Element = T;
                fn source<'a>(&'a self, on: &'a On) -> Result<Local<'a>> {
                    let (address, len) = self.to_view().resolve(on.issuing_pe().id())?;
                    Ok(Local::Device(address, bytes_of::<T>(len), Hold::NONE))
                }
            }
            impl<T, On: Issuer + ?Sized> Destination<On> for $type {
                type Element = T;
                fn destination<'a>(&'a mut self, on: &'a On) -> Result<LocalMut<'a>> {
                    let (address, len) = self.to_view().resolve(on.issuing_pe().id())?;
                    Ok(LocalMut::Device(address, bytes_of::<T>(len), Hold::NONE))
                }
            }
        )*
    };
}
symmetric_sides!(&SymmetricSlice<T>, SymmetricView<'_, T>, &SymmetricView<'_, T>);

/// Memory that a pointer names, on the host or on the GPU, as the program's side of a transfer: for
/// programs in other languages.
///
/// A [`Pe`] takes memory of any kind. On a stream it has to be memory that the device accesses: of
/// the symmetric heap, of the GPU (`cudaMalloc`), or page-locked (`cudaMallocHost`). On the `cpu`
/// device that is all memory.
///
/// # Errors
/// Memory of a symmetric heap that is not all of one live allocation is refused, with the nearest
/// allocation; so is pageable host memory on a stream of a GPU.
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
    /// They are readable if they are the source of a put, and writable if they are the destination
    /// of a get, until the operation has ended: when the call on a [`Pe`] has returned without an
    /// error, or the stream's work has ended. After an error it may go on until [`Pe::synchronize`]
    /// has returned, and not with
    /// [`DeviceError::StillRunning`](crate::device::DeviceError::StillRunning). Memory of a
    /// symmetric heap need not be anything.
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

impl<On: Issuer + ?Sized> Source<On> for RawMemory {
    type Element = u8;
    fn source<'a>(&'a self, _on: &'a On) -> Result<Local<'a>> {
        Ok(Local::Raw(self.address, self.bytes))
    }
}

impl<On: Issuer + ?Sized> Destination<On> for RawMemory {
    type Element = u8;
    fn destination<'a>(&'a mut self, _on: &'a On) -> Result<LocalMut<'a>> {
        Ok(LocalMut::Raw(self.address, self.bytes))
    }
}
