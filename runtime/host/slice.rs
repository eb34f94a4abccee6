//! Typed views of symmetric memory.

use std::marker::PhantomData;
use std::ops::Range;

use crate::device::KernelArg;
use crate::heap::HeapError;

/// `len` elements of `T` at the same offset of every PE's symmetric heap. Made by [`Pe::alloc`](crate::Pe::alloc), given back by
/// [`Pe::free`](crate::Pe::free); a slice that is dropped keeps its memory until finalize, since giving memory back is collective.
///
/// As a kernel argument it is the address of the own copy, which device code passes on as symmetric address.
#[derive(Debug)]
pub struct SymmetricSlice<T> {
    address: u64,
    len: usize,
    element: PhantomData<T>,
}

impl<T> SymmetricSlice<T> {
    pub(crate) fn new(address: u64, len: usize) -> Self {
        Self { address, len, element: PhantomData }
    }

    /// Elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// No elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The part with elements `range`; it is not freed on its own.
    ///
    /// # Errors
    /// The range is not inside the slice.
    pub fn slice(&self, range: Range<usize>) -> Result<Self, HeapError> {
        Ok(Self::new(self.range_address(range.clone())?, range.len()))
    }

    pub(crate) fn range_address(&self, range: Range<usize>) -> Result<u64, HeapError> {
        if range.start > range.end || range.end > self.len {
            return Err(HeapError::OutOfRange { first: range.start, last: range.end, len: self.len });
        }
        Ok(self.address + (range.start * size_of::<T>()) as u64)
    }

    pub(crate) fn element_address(&self, index: usize) -> Result<u64, HeapError> {
        self.range_address(index..index.saturating_add(1))
    }

    /// Address of the own copy.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.address
    }
}

impl<T> KernelArg for &SymmetricSlice<T> {
    type Bytes = [u8; 8];
    fn bytes(&self) -> Self::Bytes {
        self.address.to_ne_bytes()
    }
}
