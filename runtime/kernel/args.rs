//! Arguments of kernels.

use crate::abi;
use crate::heap::error::HeapError;
use crate::identity::PeId;
use crate::slice::{SymmetricSlice, SymmetricView};

/// Something that can be an argument of a kernel.
///
/// Implemented for the numbers and for pointers, which arrive as they are, and for
/// `&SymmetricSlice` and `SymmetricView`, which arrive as the address of this PE's copy. A program
/// can implement it for types of its own that device code declares with the same layout.
///
/// ```
/// use oxshmem::{HeapError, KernelArg, PeId};
///
/// /// `struct Point { float x, y; }` in device code.
/// struct Point {
///     x: f32,
///     y: f32,
/// }
///
/// impl KernelArg for Point {
///     type Bytes = [u8; 8];
///     fn bytes(&self, _pe: PeId) -> Result<[u8; 8], HeapError> {
///         let mut bytes = [0; 8];
///         bytes[..4].copy_from_slice(&self.x.to_ne_bytes());
///         bytes[4..].copy_from_slice(&self.y.to_ne_bytes());
///         Ok(bytes)
///     }
/// }
/// ```
pub trait KernelArg {
    /// The bytes of the parameter, in memory order.
    ///
    /// ```
    /// use oxshmem::KernelArg;
    ///
    /// fn takes_eight_bytes(_: impl KernelArg<Bytes = [u8; 8]>) {}
    /// takes_eight_bytes(5u64);
    /// ```
    type Bytes: AsRef<[u8]>;
    /// Returns the argument's bytes for a launch by the PE `pe`.
    ///
    /// # Errors
    /// Symmetric memory that is stale or out of range; nothing is launched.
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// use oxshmem::{HeapError, KernelArg, PeId};
    ///
    /// /// An `int` of device code.
    /// struct Level(i32);
    ///
    /// impl KernelArg for Level {
    ///     type Bytes = [u8; 4];
    ///     fn bytes(&self, _pe: PeId) -> Result<[u8; 4], HeapError> {
    ///         Ok(self.0.to_ne_bytes())
    ///     }
    /// }
    /// # pe.finalize()
    /// # }
    /// ```
    fn bytes(&self, pe: PeId) -> Result<Self::Bytes, HeapError>;
}

macro_rules! number_arg {
    ($($type:ty),*) => {
        $(impl KernelArg for $type {
            type Bytes = [u8; size_of::<$type>()];
            fn bytes(&self, _pe: PeId) -> Result<Self::Bytes, HeapError> {
                Ok(self.to_ne_bytes())
            }
        })*
    };
}
number_arg!(u8, u16, u32, u64, usize, i8, i16, i32, i64, isize, f32, f64);

impl KernelArg for abi::KnownTeam {
    type Bytes = [u8; size_of::<Self>()];
    fn bytes(&self, _pe: PeId) -> Result<Self::Bytes, HeapError> {
        Ok(bytemuck::cast(*self))
    }
}

impl<T> KernelArg for *const T {
    type Bytes = [u8; 8];
    fn bytes(&self, _pe: PeId) -> Result<Self::Bytes, HeapError> {
        Ok((*self as u64).to_ne_bytes())
    }
}

impl<T> KernelArg for *mut T {
    type Bytes = [u8; 8];
    fn bytes(&self, _pe: PeId) -> Result<Self::Bytes, HeapError> {
        Ok((*self as u64).to_ne_bytes())
    }
}

impl<T> KernelArg for &SymmetricSlice<T> {
    type Bytes = [u8; 8];
    fn bytes(&self, pe: PeId) -> Result<Self::Bytes, HeapError> {
        self.whole(pe)?;
        Ok(self.address().to_ne_bytes())
    }
}

impl<T> KernelArg for SymmetricView<'_, T> {
    type Bytes = [u8; 8];
    fn bytes(&self, pe: PeId) -> Result<Self::Bytes, HeapError> {
        self.resolve(pe).map(|(address, _)| address.to_ne_bytes())
    }
}

impl<T> KernelArg for &SymmetricView<'_, T> {
    type Bytes = [u8; 8];
    fn bytes(&self, pe: PeId) -> Result<Self::Bytes, HeapError> {
        (*self).resolve(pe).map(|(address, _)| address.to_ne_bytes())
    }
}

/// The arguments of a kernel: a tuple of up to sixteen [`KernelArg`]s.
///
/// ```
/// use oxshmem::KernelArgs;
///
/// fn takes_any(_: impl KernelArgs) {}
/// takes_any(());
/// takes_any((1u32, 2.5f64, std::ptr::null::<u8>()));
/// ```
pub trait KernelArgs {
    /// Calls `body` with the bytes of each argument.
    ///
    /// # Errors
    /// Fails like [`KernelArg::bytes`], and does not call `body` then.
    ///
    /// ```
    /// use oxshmem::{KernelArgs, PeId};
    ///
    /// let sizes = (1u8, 2u64).with_bytes(PeId::NONE, &mut |args| args.iter().map(|arg| arg.len()).collect::<Vec<_>>())?;
    /// assert_eq!(sizes, [1, 8]);
    /// # Ok::<(), oxshmem::HeapError>(())
    /// ```
    fn with_bytes<R>(&self, pe: PeId, body: &mut dyn FnMut(&[&[u8]]) -> R) -> Result<R, HeapError>;
}

macro_rules! tuple_args {
    ($($arg:ident),*) => {
        impl<$($arg: KernelArg),*> KernelArgs for ($($arg,)*) {
            #[allow(non_snake_case, unused_variables)]
            fn with_bytes<R>(&self, pe: PeId, body: &mut dyn FnMut(&[&[u8]]) -> R) -> Result<R, HeapError> {
                let ($($arg,)*) = self;
                $(let $arg = $arg.bytes(pe)?;)*
                Ok(body(&[$($arg.as_ref()),*]))
            }
        }
    };
}
tuple_args!();
tuple_args!(A);
tuple_args!(A, B);
tuple_args!(A, B, C);
tuple_args!(A, B, C, D);
tuple_args!(A, B, C, D, E);
tuple_args!(A, B, C, D, E, F);
tuple_args!(A, B, C, D, E, F, G);
tuple_args!(A, B, C, D, E, F, G, H);
tuple_args!(A, B, C, D, E, F, G, H, I);
tuple_args!(A, B, C, D, E, F, G, H, I, J);
tuple_args!(A, B, C, D, E, F, G, H, I, J, K);
tuple_args!(A, B, C, D, E, F, G, H, I, J, K, L);
tuple_args!(A, B, C, D, E, F, G, H, I, J, K, L, M);
tuple_args!(A, B, C, D, E, F, G, H, I, J, K, L, M, N);
tuple_args!(A, B, C, D, E, F, G, H, I, J, K, L, M, N, O);
tuple_args!(A, B, C, D, E, F, G, H, I, J, K, L, M, N, O, P);
