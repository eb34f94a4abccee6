//! Typed views of symmetric memory.

use std::marker::PhantomData;

use crate::device::KernelArg;

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
