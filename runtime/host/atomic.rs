//! Atomics from the host.

use bytemuck::Pod;

use crate::Result;
use crate::pe::Pe;
use crate::profile::host::{Operation, Subject};
use crate::slice::SymmetricView;

mod sealed {
    pub trait Sealed {}
}

/// Types with the atomics fetch, set and swap: `u32`, `i32`, `f32`, `u64`, `i64` and `f64`.
///
/// ```
/// # fn main() -> oxshmem::Result<()> {
/// # let pe = oxshmem::init()?;
/// let cell = pe.alloc::<f32>(1)?;
/// assert_eq!(pe.atomic(cell.at(0), 0).swap(2.5)?, 0.0);
/// # pe.finalize()
/// # }
/// ```
pub trait AtomicValue: Pod + sealed::Sealed {
    #[doc(hidden)]
    fn to_word(self) -> u64;
    #[doc(hidden)]
    fn from_word(word: u64) -> Self;
}

/// Integer types, which have arithmetic, comparison and bitwise atomics too.
///
/// ```
/// # fn main() -> oxshmem::Result<()> {
/// # let pe = oxshmem::init()?;
/// let cell = pe.alloc::<u32>(1)?;
/// assert_eq!(pe.atomic(cell.at(0), 0).fetch_or(6)?, 0);
/// # pe.finalize()
/// # }
/// ```
pub trait BitwiseValue: AtomicValue {}

macro_rules! atomic_values {
    ($($type:ty as $unsigned:ty: $to:expr, $from:expr;)*) => {
        $(
            impl sealed::Sealed for $type {}
            impl AtomicValue for $type {
                fn to_word(self) -> u64 {
                    let bits: $unsigned = $to(self);
                    u64::from(bits)
                }
                #[allow(clippy::cast_possible_truncation)]
                fn from_word(word: u64) -> Self {
                    $from(word as $unsigned)
                }
            }
        )*
    };
}
atomic_values! {
    u32 as u32: |v| v, |w| w;
    u64 as u64: |v| v, |w| w;
    i32 as u32: i32::cast_unsigned, u32::cast_signed;
    i64 as u64: i64::cast_unsigned, u64::cast_signed;
    f32 as u32: f32::to_bits, f32::from_bits;
    f64 as u64: f64::to_bits, f64::from_bits;
}
impl BitwiseValue for u32 {}
impl BitwiseValue for u64 {}
impl BitwiseValue for i32 {}
impl BitwiseValue for i64 {}

/// Numbered as in `device-kernels/kernels/host_ops.cu`.
#[derive(Debug, Clone, Copy)]
#[repr(i32)]
enum Op {
    Fetch = 0,
    Swap = 1,
    CompareSwap = 2,
    FetchAdd = 3,
    FetchAnd = 4,
    FetchOr = 5,
    FetchXor = 6,
}

impl Pe {
    /// Returns the element `at` of PE `pe` as something to perform atomics on. Each atomic returns
    /// when the old value is here; it is atomic with those of all PEs and of device code,
    /// unless `OXSHMEM_ATOMICS=gpu` says otherwise (`docs/semantics.md`).
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// let tickets = pe.alloc::<u64>(1)?;
    /// let next = pe.atomic(tickets.at(0), 0);
    /// assert_eq!([next.fetch_add(1)?, next.fetch_add(1)?], [0, 1]);
    /// # pe.finalize()
    /// # }
    /// ```
    #[must_use]
    pub fn atomic<'a, T: AtomicValue>(&'a self, at: SymmetricView<'a, T>, pe: usize) -> Atomic<'a, T> {
        Atomic { own: self, at, pe }
    }
}

/// An element of symmetric memory at one PE, for atomics. Made by [`Pe::atomic`].
///
/// # Errors
/// Every call: the view is not of one element, is stale or out of range; or what
/// [`Pe::synchronize`] reports.
///
/// # Threads and drop
/// It borrows the PE, so it stays on the PE's thread. Dropping it does nothing.
///
/// ```
/// # fn main() -> oxshmem::Result<()> {
/// # let pe = oxshmem::init()?;
/// let words = pe.alloc::<i32>(2)?;
/// let word: oxshmem::Atomic<'_, i32> = pe.atomic(words.at(1), 0);
/// word.set(4)?;
/// assert_eq!(word.fetch()?, 4);
/// assert!(pe.atomic(words.view(..), 0).fetch().is_err());
/// # pe.finalize()
/// # }
/// ```
#[derive(Debug)]
pub struct Atomic<'a, T> {
    own: &'a Pe,
    at: SymmetricView<'a, T>,
    pe: usize,
}

impl<T: AtomicValue> Atomic<'_, T> {
    fn perform(&self, operand: T, compare: T, op: Op) -> Result<T> {
        let own = self.own;
        let target = self.at.element(own.id(), "an atomic")?;
        let _call = own.host_profile().begins(Operation::Atomic, Subject::Peer(self.pe), size_of::<T>() as u64);
        let (operand, compare) = (operand.to_word(), compare.to_word());
        let (peer, old) = (own.peer(self.pe), own.staging_address()?);
        // SAFETY: the kernels write their result to the staging buffer and check the target
        // themselves.
        unsafe {
            if size_of::<T>() == 4 {
                #[allow(clippy::cast_possible_truncation)]
                let args = (target, operand as u32, compare as u32, op as i32, peer, old);
                own.run_host_kernel("oxshmem_host_atomic32", 1, &args)?;
            } else {
                let args = (target, operand, compare, op as i32, peer, old);
                own.run_host_kernel("oxshmem_host_atomic64", 1, &args)?;
            }
        }
        Ok(T::from_word(own.staged_word()?))
    }

    /// Returns the value.
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// let cell = pe.alloc::<i64>(1)?;
    /// assert_eq!(pe.atomic(cell.at(0), 0).fetch()?, 0);
    /// # pe.finalize()
    /// # }
    /// ```
    pub fn fetch(&self) -> Result<T> {
        self.perform(T::zeroed(), T::zeroed(), Op::Fetch)
    }

    /// Replaces the value.
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// let cell = pe.alloc::<f64>(1)?;
    /// pe.atomic(cell.at(0), 0).set(0.5)?;
    /// assert_eq!(pe.read(&cell)?, [0.5]);
    /// # pe.finalize()
    /// # }
    /// ```
    pub fn set(&self, value: T) -> Result<()> {
        self.swap(value).map(drop)
    }

    /// Replaces the value, and returns the old one.
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// let cell = pe.alloc::<i32>(1)?;
    /// assert_eq!(pe.atomic(cell.at(0), 0).swap(8)?, 0);
    /// # pe.finalize()
    /// # }
    /// ```
    pub fn swap(&self, value: T) -> Result<T> {
        self.perform(value, T::zeroed(), Op::Swap)
    }
}

impl<T: BitwiseValue> Atomic<'_, T> {
    /// Replaces the value by `desired` if it equals `expected`, and returns the old one.
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// let cell = pe.alloc::<u64>(1)?;
    /// let cell = pe.atomic(cell.at(0), 0);
    /// assert_eq!(cell.compare_swap(0, 5)?, 0);
    /// assert_eq!(cell.compare_swap(0, 6)?, 5);
    /// # pe.finalize()
    /// # }
    /// ```
    pub fn compare_swap(&self, expected: T, desired: T) -> Result<T> {
        self.perform(desired, expected, Op::CompareSwap)
    }

    /// Adds `value`, wrapping, and returns the old one.
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// let cell = pe.alloc::<i64>(1)?;
    /// assert_eq!(pe.atomic(cell.at(0), 0).fetch_add(-3)?, 0);
    /// # pe.finalize()
    /// # }
    /// ```
    pub fn fetch_add(&self, value: T) -> Result<T> {
        self.perform(value, T::zeroed(), Op::FetchAdd)
    }

    /// Combines the value with `value` by bitwise and, and returns the old one.
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// let cell = pe.alloc::<i64>(1)?;
    /// assert_eq!(pe.atomic(cell.at(0), 0).fetch_and(6)?, 0);
    /// # pe.finalize()
    /// # }
    /// ```
    pub fn fetch_and(&self, value: T) -> Result<T> {
        self.perform(value, T::zeroed(), Op::FetchAnd)
    }

    /// Combines the value with `value` by bitwise or, and returns the old one.
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// let cell = pe.alloc::<i64>(1)?;
    /// assert_eq!(pe.atomic(cell.at(0), 0).fetch_or(6)?, 0);
    /// # pe.finalize()
    /// # }
    /// ```
    pub fn fetch_or(&self, value: T) -> Result<T> {
        self.perform(value, T::zeroed(), Op::FetchOr)
    }

    /// Combines the value with `value` by bitwise exclusive or, and returns the old one.
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// let cell = pe.alloc::<i64>(1)?;
    /// assert_eq!(pe.atomic(cell.at(0), 0).fetch_xor(6)?, 0);
    /// # pe.finalize()
    /// # }
    /// ```
    pub fn fetch_xor(&self, value: T) -> Result<T> {
        self.perform(value, T::zeroed(), Op::FetchXor)
    }
}
