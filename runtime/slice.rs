//! Symmetric memory as programs name it: slices, views of them, signals.
//!
//! A slice knows its allocation, and every call checks it against the PE that it is given to. So
//! safe code cannot use memory that was freed, that belonged to an earlier PE of the process, or
//! that lies outside the slice.

use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use crate::heap::allocation::Allocation;
use crate::heap::error::{AddressProblem, HeapError};
use crate::identity::PeId;

/// `len` elements of `T` at the same offset of every PE's symmetric heap.
///
/// [`Pe::alloc`](crate::Pe::alloc) makes one and [`Pe::free`](crate::Pe::free) ends it. Calls take
/// `&slice` for the whole of it and [`slice.view(range)`](Self::view) for a part.
///
/// A kernel that takes it as an argument gets the address of this PE's copy, which device code
/// takes as symmetric address.
///
/// # Errors
/// A slice that was freed or that an earlier PE of the process made is refused by every call with
/// an error that names the allocation.
///
/// # Threads and drop
/// `Send` and `Sync`: it is a name, and the memory is accessed through the PE alone. A slice that
/// is dropped keeps its memory until finalize, since giving memory back is collective.
///
/// # Example
/// ```
/// # fn main() -> oxshmem::Result<()> {
/// let pe = oxshmem::init()?;
/// let numbers = pe.alloc::<i32>(8)?;
/// pe.write(numbers.view(2..), &[7, 8])?;
/// assert_eq!(pe.read(&numbers)?, [0, 0, 7, 8, 0, 0, 0, 0]);
/// pe.free(numbers)?;
/// # pe.finalize()
/// # }
/// ```
#[derive(Debug)]
pub struct SymmetricSlice<T> {
    allocation: Arc<Allocation>,
    /// Offset in the heap.
    offset: u64,
    len: usize,
    element: PhantomData<fn() -> T>,
}

impl<T> SymmetricSlice<T> {
    /// Returns the whole of an allocation.
    pub(crate) fn new(allocation: Arc<Allocation>, len: usize) -> Self {
        let offset = allocation.offset();
        Self { allocation, offset, len, element: PhantomData }
    }

    /// Returns the number of elements.
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// assert_eq!(pe.alloc::<u64>(5)?.len(), 5);
    /// # pe.finalize()
    /// # }
    /// ```
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the slice has no elements.
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// assert!(pe.alloc::<u64>(0)?.is_empty());
    /// # pe.finalize()
    /// # }
    /// ```
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the address of this PE's copy: what kernels take, and on the `cuda` device a
    /// `CUdeviceptr`.
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// let words = pe.alloc_aligned::<u64>(4, 256)?;
    /// assert_eq!(words.address() % 256, 0);
    /// # pe.finalize()
    /// # }
    /// ```
    #[must_use]
    pub fn address(&self) -> u64 {
        self.allocation.address() + (self.offset - self.allocation.offset())
    }

    /// Returns the elements of `range`. A range that is not inside the slice is an error of the
    /// call that the view is given to.
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// let words = pe.alloc::<u64>(4)?;
    /// assert_eq!(words.view(1..3).len(), 2);
    /// assert!(pe.read(words.view(3..5)).is_err());
    /// # pe.finalize()
    /// # }
    /// ```
    #[must_use]
    pub fn view(&self, range: impl RangeBounds<usize>) -> SymmetricView<'_, T> {
        self.as_view().view(range)
    }

    /// Returns element `index`, for calls that act on one: [`Pe::atomic`](crate::Pe::atomic).
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// let counters = pe.alloc::<i64>(2)?;
    /// pe.atomic(counters.at(1), 0).fetch_add(5)?;
    /// assert_eq!(pe.read(&counters)?, [0, 5]);
    /// # pe.finalize()
    /// # }
    /// ```
    #[must_use]
    pub fn at(&self, index: usize) -> SymmetricView<'_, T> {
        self.as_view().at(index)
    }

    fn as_view(&self) -> SymmetricView<'_, T> {
        let (allocation, offset, len) = (Arc::clone(&self.allocation), self.offset, self.len);
        SymmetricView { place: Place::Inside { allocation, offset, len }, of: PhantomData }
    }

    /// Refuses a slice that was freed or that another PE made.
    pub(crate) fn whole(&self, pe: PeId) -> Result<&Allocation, HeapError> {
        live(&self.allocation, pe)?;
        Ok(&self.allocation)
    }
}

impl SymmetricSlice<u64> {
    /// Returns element `index` as a signal.
    ///
    /// ```
    /// use oxshmem::{Compare, Operations};
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// let flags = pe.alloc::<u64>(4)?;
    /// pe.signal(flags.signal(3).set(7), 0)?;
    /// assert_eq!(pe.signal_wait_until(flags.signal(3), Compare::Ge, 7)?, 7);
    /// # pe.finalize()
    /// # }
    /// ```
    #[must_use]
    pub fn signal(&self, index: usize) -> Signal<'_> {
        self.at(index).into()
    }
}

/// A part of a [`SymmetricSlice`], which it borrows: the slice cannot be freed while views of it
/// are in use.
///
/// Made by [`SymmetricSlice::view`] and by [`view`](Self::view) of another view; cheap to clone.
///
/// # Errors
/// A view keeps the requested range. If that was not inside the slice, each call that the view is
/// given to says so, with the range and the allocation.
///
/// # Threads and drop
/// `Send` and `Sync`, as the slice is. Dropping a view does nothing.
///
/// # Example
/// ```
/// # fn main() -> oxshmem::Result<()> {
/// # let pe = oxshmem::init()?;
/// let numbers = pe.alloc::<f32>(100)?;
/// let (left, right) = (numbers.view(..50), numbers.view(50..));
/// pe.write(right.view(..2), &[1.5, 2.5])?;
/// assert_eq!(pe.read(numbers.view(50..52))?, [1.5, 2.5]);
/// assert!(pe.read(left.view(49..51)).is_err());
/// # pe.finalize()
/// # }
/// ```
///
/// A slice is not freed while a view of it is in use:
///
/// ```compile_fail,E0505
/// # fn main() -> oxshmem::Result<()> {
/// # let pe = oxshmem::init()?;
/// let numbers = pe.alloc::<f32>(100)?;
/// let left = numbers.view(..50);
/// pe.free(numbers)?;
/// pe.write(left, &[1.5])?;
/// # pe.finalize()
/// # }
/// ```
#[derive(Debug)]
pub struct SymmetricView<'a, T> {
    place: Place,
    of: Elements<'a, T>,
}

impl<T> Clone for SymmetricView<'_, T> {
    fn clone(&self) -> Self {
        Self { place: self.place.clone(), of: PhantomData }
    }
}

/// Borrows a slice for `'a`; neither owns nor accesses elements.
type Elements<'a, T> = PhantomData<(&'a (), fn() -> T)>;

#[derive(Debug, Clone)]
enum Place {
    /// `len` elements from an offset of the heap on.
    Inside { allocation: Arc<Allocation>, offset: u64, len: usize },
    /// A range that was not inside its parent of `len` elements.
    Outside { allocation: Arc<Allocation>, first: usize, last: usize, len: usize },
    /// An address that is not that of `len` elements of a live allocation.
    Nowhere { address: u64, bytes: u64, len: usize, problem: AddressProblem },
}

impl<'a, T> SymmetricView<'a, T> {
    /// Returns `len` elements at an address of this PE's heap, of the allocation that was found to
    /// have them.
    pub(crate) fn by_address(address: u64, len: usize, found: Result<Arc<Allocation>, AddressProblem>) -> Self {
        let bytes = (len as u64).saturating_mul(size_of::<T>() as u64);
        let aligned = |allocation: Arc<Allocation>| {
            if address.is_multiple_of(align_of::<T>() as u64) {
                Ok(allocation)
            } else {
                Err(AddressProblem::Misaligned { align: align_of::<T>(), allocation: allocation.info() })
            }
        };
        let place = match found.and_then(aligned) {
            Ok(allocation) => {
                let offset = allocation.offset() + (address - allocation.address());
                Place::Inside { allocation, offset, len }
            }
            Err(problem) => Place::Nowhere { address, bytes, len, problem },
        };
        Self { place, of: PhantomData }
    }

    /// Returns the requested number of elements.
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// assert_eq!(pe.alloc::<u64>(4)?.view(1..).len(), 3);
    /// # pe.finalize()
    /// # }
    /// ```
    #[must_use]
    pub fn len(&self) -> usize {
        match &self.place {
            Place::Inside { len, .. } | Place::Nowhere { len, .. } => *len,
            Place::Outside { first, last, .. } => last.saturating_sub(*first),
        }
    }

    /// Returns whether the view has no elements.
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// assert!(pe.alloc::<u64>(4)?.view(4..).is_empty());
    /// # pe.finalize()
    /// # }
    /// ```
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the elements of `range`, counted from the beginning of this view; as
    /// [`SymmetricSlice::view`].
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// let words = pe.alloc::<u64>(10)?;
    /// pe.write(words.view(4..).view(1..), &[9])?;
    /// assert_eq!(pe.read(words.at(5))?, [9]);
    /// # pe.finalize()
    /// # }
    /// ```
    #[must_use]
    pub fn view(&self, range: impl RangeBounds<usize>) -> Self {
        let Place::Inside { allocation, offset, len } = &self.place else { return self.clone() };
        let first = match range.start_bound() {
            Bound::Included(first) => *first,
            Bound::Excluded(before) => before.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let last = match range.end_bound() {
            Bound::Included(last) => last.saturating_add(1),
            Bound::Excluded(end) => *end,
            Bound::Unbounded => *len,
        };
        let allocation = Arc::clone(allocation);
        let place = if first <= last && last <= *len {
            // Inside the allocation, whose length in bytes fits 64 bits.
            Place::Inside { allocation, offset: offset + (first * size_of::<T>()) as u64, len: last - first }
        } else {
            Place::Outside { allocation, first, last, len: *len }
        };
        Self { place, of: PhantomData }
    }

    /// Returns element `index`; as [`SymmetricSlice::at`].
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// let words = pe.alloc::<u64>(10)?;
    /// assert_eq!(words.view(3..).at(2).len(), 1);
    /// # pe.finalize()
    /// # }
    /// ```
    #[must_use]
    pub fn at(&self, index: usize) -> Self {
        self.view(index..index.saturating_add(1))
    }

    /// Returns the elements 0, `stride`, 2 * `stride`... of the view, for
    /// [`alltoalls`](crate::Operations::alltoalls).
    ///
    /// ```
    /// use oxshmem::Operations;
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// let (dst, src) = (pe.alloc::<i32>(3)?, pe.alloc::<i32>(5)?);
    /// pe.write(&src, &[1, 0, 2, 0, 3])?;
    /// pe.alltoalls(&pe.team_world(), dst.view(..).step_by(1), src.view(..).step_by(2), 3)?;
    /// assert_eq!(pe.read(&dst)?, [1, 2, 3]);
    /// # pe.finalize()
    /// # }
    /// ```
    #[must_use]
    pub fn step_by(self, stride: usize) -> Strided<'a, T> {
        Strided { view: self, stride }
    }

    /// Returns the address of this PE's copy and the number of elements, if a call of the PE may
    /// use them.
    pub(crate) fn resolve(&self, pe: PeId) -> Result<(u64, usize), HeapError> {
        match &self.place {
            Place::Inside { allocation, offset, len } => {
                live(allocation, pe)?;
                Ok((allocation.address() + (offset - allocation.offset()), *len))
            }
            Place::Outside { allocation, first, last, len } => {
                live(allocation, pe)?;
                let allocation = allocation.info();
                Err(HeapError::OutOfRange { first: *first, last: *last, len: *len, allocation })
            }
            Place::Nowhere { address, bytes, problem, .. } => {
                Err(HeapError::Address { side: None, address: *address, bytes: *bytes, problem: problem.clone() })
            }
        }
    }

    /// Returns the allocation that the view is in, if a call of the PE may use it.
    #[cfg(feature = "cudarc")]
    pub(crate) fn allocation(&self, pe: PeId) -> Result<&Allocation, HeapError> {
        self.resolve(pe)?;
        match &self.place {
            Place::Inside { allocation, .. } | Place::Outside { allocation, .. } => Ok(allocation),
            Place::Nowhere { address, bytes, problem, .. } => {
                Err(HeapError::Address { side: None, address: *address, bytes: *bytes, problem: problem.clone() })
            }
        }
    }

    /// Returns whether a call of the PE may be given the view where it uses no element: an address
    /// may be any then.
    pub(crate) fn nothing(&self, pe: PeId) -> Result<(), HeapError> {
        match &self.place {
            Place::Nowhere { .. } => Ok(()),
            Place::Inside { .. } | Place::Outside { .. } => self.resolve(pe).map(|_| ()),
        }
    }

    /// Returns the address of the first `needed` elements.
    pub(crate) fn first(&self, pe: PeId, needed: usize, side: &'static str) -> Result<u64, HeapError> {
        let (address, len) = self.resolve(pe).map_err(|error| match error {
            HeapError::Address { address, bytes, problem, .. } => {
                HeapError::Address { side: Some(side), address, bytes, problem }
            }
            error => error,
        })?;
        if needed <= len {
            return Ok(address);
        }
        match &self.place {
            Place::Inside { allocation, .. } => {
                Err(HeapError::TooShort { side, needed, len, allocation: Some(allocation.info()) })
            }
            // `resolve` has refused them.
            Place::Outside { .. } | Place::Nowhere { .. } => Ok(address),
        }
    }

    /// Returns the address of the one element.
    pub(crate) fn element(&self, pe: PeId, call: &'static str) -> Result<u64, HeapError> {
        let (address, len) = self.resolve(pe)?;
        match &self.place {
            Place::Inside { allocation, .. } if len != 1 => {
                Err(HeapError::NotOneElement { call, len, allocation: allocation.info() })
            }
            _ => Ok(address),
        }
    }
}

/// Refuses an allocation that was freed or that another PE made.
fn live(allocation: &Allocation, pe: PeId) -> Result<(), HeapError> {
    if allocation.pe() != pe {
        return Err(HeapError::EarlierPe { allocation: allocation.info() });
    }
    if allocation.is_freed() {
        return Err(HeapError::Freed { allocation: allocation.info() });
    }
    Ok(())
}

mod sealed {
    pub trait Sealed {}
}

/// What calls take as symmetric memory: `&SymmetricSlice<T>` and `SymmetricView<'_, T>`.
///
/// ```
/// use oxshmem::{Operations, Pe, Symmetric};
///
/// /// Puts ones to a neighbour.
/// fn fill(pe: &Pe, dst: impl Symmetric<Element = u8>) -> oxshmem::Result<()> {
///     let ones = vec![1; dst.to_view().len()];
///     pe.put(dst, &ones, (pe.my_pe() + 1) % pe.n_pes())
/// }
/// # fn main() -> oxshmem::Result<()> {
/// # let pe = oxshmem::init()?;
/// let bytes = pe.alloc::<u8>(4)?;
/// fill(&pe, bytes.view(2..))?;
/// pe.barrier_all()?;
/// assert_eq!(pe.read(&bytes)?, [0, 0, 1, 1]);
/// # pe.finalize()
/// # }
/// ```
pub trait Symmetric: sealed::Sealed {
    /// What the memory consists of.
    ///
    /// ```
    /// use oxshmem::{Symmetric, SymmetricSlice};
    ///
    /// fn takes_words(_: impl Symmetric<Element = u64>) {}
    /// # let _ = |slice: &SymmetricSlice<u64>| takes_words(slice);
    /// ```
    type Element;
    /// Returns all of the elements as a view.
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// use oxshmem::Symmetric;
    ///
    /// let words = pe.alloc::<u64>(4)?;
    /// assert_eq!((&words).to_view().len(), 4);
    /// # pe.finalize()
    /// # }
    /// ```
    fn to_view(&self) -> SymmetricView<'_, Self::Element>;
    /// Converts it into a view of all of the elements.
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// use oxshmem::Symmetric;
    ///
    /// let words = pe.alloc::<u64>(4)?;
    /// assert_eq!(words.view(1..).into_view().len(), 3);
    /// # pe.finalize()
    /// # }
    /// ```
    fn into_view<'a>(self) -> SymmetricView<'a, Self::Element>
    where
        Self: 'a;
}

impl<T> sealed::Sealed for &SymmetricSlice<T> {}
impl<T> Symmetric for &SymmetricSlice<T> {
    type Element = T;
    fn to_view(&self) -> SymmetricView<'_, T> {
        self.as_view()
    }
    fn into_view<'a>(self) -> SymmetricView<'a, T>
    where
        Self: 'a,
    {
        self.as_view()
    }
}

impl<T> sealed::Sealed for SymmetricView<'_, T> {}
impl<T> Symmetric for SymmetricView<'_, T> {
    type Element = T;
    fn to_view(&self) -> SymmetricView<'_, T> {
        self.clone()
    }
    fn into_view<'a>(self) -> SymmetricView<'a, T>
    where
        Self: 'a,
    {
        self
    }
}

impl<T> sealed::Sealed for &SymmetricView<'_, T> {}
impl<T> Symmetric for &SymmetricView<'_, T> {
    type Element = T;
    fn to_view(&self) -> SymmetricView<'_, T> {
        (*self).clone()
    }
    fn into_view<'a>(self) -> SymmetricView<'a, T>
    where
        Self: 'a,
    {
        self.clone()
    }
}

/// Every n-th element of a view: one side of [`alltoalls`](crate::Operations::alltoalls). Made by
/// [`SymmetricView::step_by`]; plain data, as the view is.
///
/// ```
/// # fn main() -> oxshmem::Result<()> {
/// # let pe = oxshmem::init()?;
/// let every_third = pe.alloc::<i32>(9)?;
/// let every_third: oxshmem::Strided<'_, i32> = every_third.view(..).step_by(3);
/// # drop(every_third);
/// # pe.finalize()
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Strided<'a, T> {
    pub(crate) view: SymmetricView<'a, T>,
    pub(crate) stride: usize,
}

/// A 64-bit word by which one PE tells another that data has arrived. Made by
/// [`SymmetricSlice::signal`], or from a view of one element.
///
/// [`Operations::signal_wait_until`](crate::Operations::signal_wait_until) waits for this PE's
/// copy, and [`set`](Self::set) and [`add`](Self::add) say how
/// [`signal`](crate::Operations::signal) and [`put_signal`](crate::Operations::put_signal) update
/// the copy of another PE.
///
/// ```
/// use oxshmem::{Compare, Operations};
/// # fn main() -> oxshmem::Result<()> {
/// # let pe = oxshmem::init()?;
/// let (data, arrived) = (pe.alloc::<i32>(2)?, pe.alloc::<u64>(1)?);
/// let next = (pe.my_pe() + 1) % pe.n_pes();
/// pe.put_signal(&data, &[4, 5], arrived.signal(0).add(1), next)?;
/// pe.signal_wait_until(arrived.signal(0), Compare::Eq, 1)?;
/// assert_eq!(pe.read(&data)?, [4, 5]);
/// # pe.finalize()
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Signal<'a>(SymmetricView<'a, u64>);

impl<'a> From<SymmetricView<'a, u64>> for Signal<'a> {
    fn from(word: SymmetricView<'a, u64>) -> Self {
        Self(word)
    }
}

impl<'a> Signal<'a> {
    /// Returns the update that replaces the signal by `value`.
    ///
    /// ```
    /// use oxshmem::Operations;
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// let flag = pe.alloc::<u64>(1)?;
    /// pe.signal(flag.signal(0).set(3), 0)?;
    /// # pe.finalize()
    /// # }
    /// ```
    #[must_use]
    pub fn set(self, value: u64) -> SignalUpdate<'a> {
        self.update(SignalOp::Set, value)
    }

    /// Returns the update that adds `value` to the signal, wrapping.
    ///
    /// ```
    /// use oxshmem::Operations;
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// let flag = pe.alloc::<u64>(1)?;
    /// pe.signal(flag.signal(0).add(2), 0)?;
    /// # pe.finalize()
    /// # }
    /// ```
    #[must_use]
    #[allow(clippy::should_implement_trait, reason = "it adds later, at another PE")]
    pub fn add(self, value: u64) -> SignalUpdate<'a> {
        self.update(SignalOp::Add, value)
    }

    /// Returns the update by `op`, where a program chooses it while it runs.
    ///
    /// ```
    /// use oxshmem::{Operations, SignalOp};
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// let flag = pe.alloc::<u64>(1)?;
    /// for (op, value) in [(SignalOp::Set, 5), (SignalOp::Add, 1)] {
    ///     pe.signal(flag.signal(0).update(op, value), 0)?;
    /// }
    /// assert_eq!(pe.read(&flag)?, [6]);
    /// # pe.finalize()
    /// # }
    /// ```
    #[must_use]
    pub fn update(self, op: SignalOp, value: u64) -> SignalUpdate<'a> {
        SignalUpdate { signal: self, op, value }
    }

    pub(crate) fn address(&self, pe: PeId) -> Result<u64, HeapError> {
        self.0.element(pe, "a signal")
    }
}

/// A [`Signal`] with what to do to it. Made by [`Signal::set`] and [`Signal::add`].
///
/// ```
/// use oxshmem::{Operations, SignalUpdate};
/// # fn main() -> oxshmem::Result<()> {
/// # let pe = oxshmem::init()?;
/// let flag = pe.alloc::<u64>(1)?;
/// let raised: SignalUpdate<'_> = flag.signal(0).set(1);
/// pe.signal(raised, 0)?;
/// # pe.finalize()
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct SignalUpdate<'a> {
    signal: Signal<'a>,
    op: SignalOp,
    value: u64,
}

impl SignalUpdate<'_> {
    /// Returns the signal's address, the value and the number of the operator, as kernels take
    /// them.
    pub(crate) fn resolve(&self, pe: PeId) -> Result<(u64, u64, i32), HeapError> {
        Ok((self.signal.address(pe)?, self.value, self.op as i32))
    }
}

/// How a signal is updated; numbered as in `signal.h`.
///
/// ```
/// assert_eq!(oxshmem::SignalOp::Set as i32, 9);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum SignalOp {
    /// Replace it.
    Set = 9,
    /// Add to it.
    Add = 10,
}

/// A comparison; numbered as in `wait.h`.
///
/// ```
/// assert_eq!(oxshmem::Compare::Ge as i32, 5);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum Compare {
    /// ==
    Eq = 0,
    /// !=
    Ne = 1,
    /// >
    Gt = 2,
    /// <=
    Le = 3,
    /// <
    Lt = 4,
    /// >=
    Ge = 5,
}

/// Returns the bytes of that many elements; what is more than the address space has was refused
/// with the range.
pub(crate) fn bytes_of<T>(elements: usize) -> u64 {
    (elements as u64).saturating_mul(size_of::<T>() as u64)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Returns a slice of ten words at offset 0x40 of a heap at 0x1000.
    fn words(pe: PeId) -> SymmetricSlice<u32> {
        SymmetricSlice::new(Arc::new(Allocation::new(pe, 0x1000, 0x40, 40, None)), 10)
    }

    /// Those of `host.h` are compared with those of device code in `tests/kernels/abi.cu`.
    #[test]
    fn comparisons_and_updates_are_numbered_as_in_the_header() {
        let header = include_str!("../device-kernels/include/oxshmem/host.h");
        let comparisons = [
            ("CMP_EQ", Compare::Eq as i32),
            ("CMP_NE", Compare::Ne as i32),
            ("CMP_GT", Compare::Gt as i32),
            ("CMP_LE", Compare::Le as i32),
            ("CMP_LT", Compare::Lt as i32),
            ("CMP_GE", Compare::Ge as i32),
        ];
        let updates = [("SIGNAL_SET", SignalOp::Set as i32), ("SIGNAL_ADD", SignalOp::Add as i32)];
        for (name, number) in comparisons.into_iter().chain(updates) {
            let line = format!("OXSHMEM_{name} = {number}");
            let after = header.split(&line).nth(1).and_then(|rest| rest.chars().next());
            assert!(after.is_some_and(|next| !next.is_ascii_digit()), "{line}");
        }
    }

    #[test]
    fn views_of_views_count_from_their_beginning() {
        let pe = PeId::next();
        let words = words(pe);
        assert_eq!(words.view(..).resolve(pe).unwrap(), (0x1040, 10));
        assert_eq!(words.view(2..9).view(3..=4).resolve(pe).unwrap(), (0x1040 + 5 * 4, 2));
        assert_eq!(words.at(9).element(pe, "a test").unwrap(), 0x1040 + 9 * 4);
        assert_eq!(words.view(10..).resolve(pe).unwrap(), (0x1040 + 40, 0));
    }

    #[test]
    fn a_range_outside_is_an_error_of_the_call_and_names_the_range() {
        let pe = PeId::next();
        let words = words(pe);
        // Clippy is right that such ranges are mistakes, and this is what becomes of them.
        let (from, to) = (7, 3);
        for (view, first, last) in
            [(words.view(8..11), 8, 11), (words.view(from..to), 7, 3), (words.view(usize::MAX..), usize::MAX, 10)]
        {
            let error = view.resolve(pe).unwrap_err();
            let HeapError::OutOfRange { first: seen_first, last: seen_last, len: 10, .. } = error else {
                panic!("{error}")
            };
            assert_eq!((seen_first, seen_last), (first, last));
            // A part of it is no better.
            assert!(matches!(view.view(..1).resolve(pe), Err(HeapError::OutOfRange { .. })));
        }
        assert!(matches!(words.at(usize::MAX).resolve(pe), Err(HeapError::OutOfRange { .. })));
        assert!(matches!(words.view(..).first(pe, 11, "dst"), Err(HeapError::TooShort { needed: 11, len: 10, .. })));
        assert!(matches!(words.view(..2).element(pe, "a test"), Err(HeapError::NotOneElement { len: 2, .. })));
    }

    #[test]
    fn what_is_stale_is_refused_wherever_it_is() {
        let (pe, later) = (PeId::next(), PeId::next());
        let words = words(pe);
        let view = words.view(1..);
        assert!(matches!(view.resolve(later), Err(HeapError::EarlierPe { .. })));
        words.whole(pe).unwrap().end();
        for stale in [view.resolve(pe), words.view(20..).resolve(pe), words.at(0).resolve(pe)] {
            assert!(matches!(stale, Err(HeapError::Freed { .. })), "{stale:?}");
        }
        assert!(matches!(words.whole(pe), Err(HeapError::Freed { .. })));
    }

    #[test]
    fn an_address_must_be_aligned_for_its_type() {
        let pe = PeId::next();
        let allocation = Arc::new(Allocation::new(pe, 0x1000, 0x40, 40, None));
        let at = |address| SymmetricView::<u64>::by_address(address, 2, Ok(Arc::clone(&allocation))).resolve(pe);
        assert_eq!(at(0x1048).unwrap(), (0x1048, 2));
        let error = at(0x1044).unwrap_err();
        assert!(
            matches!(&error, HeapError::Address { problem: AddressProblem::Misaligned { align: 8, .. }, .. }),
            "{error}"
        );
    }
}
