//! Atomics from the host.

use bytemuck::Pod;

use super::SymmetricSlice;
use crate::Result;
use crate::pe::Pe;

mod sealed {
    pub trait Sealed {}
}

/// 32- and 64-bit types with fetch, set and swap.
pub trait AtomicValue: Pod + sealed::Sealed {
    #[doc(hidden)]
    fn to_word(self) -> u64;
    #[doc(hidden)]
    fn from_word(word: u64) -> Self;
}

/// Integer types, which have arithmetic, comparison and bitwise atomics too.
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

/// Each call acts on element `index` at `pe` and returns when the old value is here.
///
/// # Errors
/// `index` is outside the slice, or what [`Pe::synchronize`] reports.
impl Pe {
    fn atomic<T: AtomicValue>(
        &self,
        at: &SymmetricSlice<T>,
        index: usize,
        operand: T,
        compare: T,
        op: Op,
        pe: usize,
    ) -> Result<T> {
        let target = at.element_address(index)?;
        let (operand, compare) = (operand.to_word(), compare.to_word());
        let old = self.staging_address();
        #[allow(clippy::cast_possible_truncation)]
        let args = (target, operand as u32, compare as u32, op as i32, self.peer(pe), old);
        // SAFETY: the kernel writes its result to the staging buffer and checks the target itself.
        unsafe {
            if size_of::<T>() == 4 {
                self.run_host_kernel("oxshmem_host_atomic32", 1, &args)?;
            } else {
                self.run_host_kernel(
                    "oxshmem_host_atomic64",
                    1,
                    &(target, operand, compare, op as i32, self.peer(pe), old),
                )?;
            }
        }
        Ok(T::from_word(self.staged_word()?))
    }

    /// The element's value.
    pub fn atomic_fetch<T: AtomicValue>(&self, at: &SymmetricSlice<T>, index: usize, pe: usize) -> Result<T> {
        self.atomic(at, index, T::zeroed(), T::zeroed(), Op::Fetch, pe)
    }

    /// Replaces the element by `value`.
    pub fn atomic_set<T: AtomicValue>(&self, at: &SymmetricSlice<T>, index: usize, value: T, pe: usize) -> Result<()> {
        self.atomic_swap(at, index, value, pe).map(drop)
    }

    /// Replaces the element by `value`.
    pub fn atomic_swap<T: AtomicValue>(&self, at: &SymmetricSlice<T>, index: usize, value: T, pe: usize) -> Result<T> {
        self.atomic(at, index, value, T::zeroed(), Op::Swap, pe)
    }

    /// Replaces the element by `desired` if it equals `expected`.
    pub fn atomic_compare_swap<T: BitwiseValue>(
        &self,
        at: &SymmetricSlice<T>,
        index: usize,
        expected: T,
        desired: T,
        pe: usize,
    ) -> Result<T> {
        self.atomic(at, index, desired, expected, Op::CompareSwap, pe)
    }

    /// Adds `value`, wrapping.
    pub fn atomic_fetch_add<T: BitwiseValue>(
        &self,
        at: &SymmetricSlice<T>,
        index: usize,
        value: T,
        pe: usize,
    ) -> Result<T> {
        self.atomic(at, index, value, T::zeroed(), Op::FetchAdd, pe)
    }

    /// Bitwise and.
    pub fn atomic_fetch_and<T: BitwiseValue>(
        &self,
        at: &SymmetricSlice<T>,
        index: usize,
        value: T,
        pe: usize,
    ) -> Result<T> {
        self.atomic(at, index, value, T::zeroed(), Op::FetchAnd, pe)
    }

    /// Bitwise or.
    pub fn atomic_fetch_or<T: BitwiseValue>(
        &self,
        at: &SymmetricSlice<T>,
        index: usize,
        value: T,
        pe: usize,
    ) -> Result<T> {
        self.atomic(at, index, value, T::zeroed(), Op::FetchOr, pe)
    }

    /// Bitwise exclusive or.
    pub fn atomic_fetch_xor<T: BitwiseValue>(
        &self,
        at: &SymmetricSlice<T>,
        index: usize,
        value: T,
        pe: usize,
    ) -> Result<T> {
        self.atomic(at, index, value, T::zeroed(), Op::FetchXor, pe)
    }
}
