//! Modules of device code, and the arguments of their kernels.

use std::ffi::c_void;
use std::sync::Arc;

use super::{DeviceError, LaunchConfig, LoadedModule, Stream};

/// A module as the build left it in the program; made by [`include_module!`](crate::include_module).
#[derive(Debug, Clone, Copy)]
pub struct ModuleSource {
    /// The module's name.
    pub name: &'static str,
    /// PTX per virtual architecture (80 for sm_80), ascending; empty if no CUDA compiler was there at build time.
    pub ptx: &'static [(u32, &'static str)],
    /// Cubins per real architecture (80 for sm_80), ascending, which need no compilation by the driver; empty likewise.
    pub cubins: &'static [(u32, &'static [u8])],
    /// Describes the module's CPU object.
    pub cpu: unsafe extern "C" fn() -> *const c_void,
}

/// Takes in a module that the package's build script compiled with `oxshmem_build::Module::new("name")`:
/// `include_module!(pub KERNELS, "name");` defines the static `KERNELS`.
#[macro_export]
macro_rules! include_module {
    ($(#[$doc:meta])* $vis:vis $name:ident, $module:literal) => {
        $(#[$doc])*
        $vis static $name: $crate::ModuleSource = include!(concat!(env!("OUT_DIR"), "/", $module, ".rs"));
    };
}

/// A module that is loaded and knows the PE's state.
#[derive(Debug, Clone)]
pub struct Module {
    pub(crate) loaded: Arc<dyn LoadedModule>,
}

impl Module {
    /// The kernel of this name.
    ///
    /// # Errors
    /// The module has no such kernel; the error lists those it has.
    pub fn function(&self, name: &str) -> Result<Function, DeviceError> {
        self.loaded.check(name)?;
        Ok(Function { loaded: Arc::clone(&self.loaded), name: name.to_owned() })
    }
}

/// A kernel.
#[derive(Debug, Clone)]
pub struct Function {
    loaded: Arc<dyn LoadedModule>,
    name: String,
}

impl Function {
    /// The kernel's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// # Safety
    /// As [`LoadedModule::launch`].
    pub(crate) unsafe fn launch(
        &self,
        config: LaunchConfig,
        args: &impl KernelArgs,
        stream: &Stream,
    ) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise.
        args.with_bytes(&mut |args| unsafe { self.loaded.launch(&self.name, config, args, stream) })
    }
}

/// Something that can be an argument of a kernel. Implemented for the numbers, and for `&SymmetricSlice`, which arrives as the address of
/// the own copy.
pub trait KernelArg {
    /// The bytes of the parameter, in memory order.
    type Bytes: AsRef<[u8]>;
    /// The argument's bytes.
    fn bytes(&self) -> Self::Bytes;
}

macro_rules! number_arg {
    ($($type:ty),*) => {
        $(impl KernelArg for $type {
            type Bytes = [u8; size_of::<$type>()];
            fn bytes(&self) -> Self::Bytes {
                self.to_ne_bytes()
            }
        })*
    };
}
number_arg!(u8, u16, u32, u64, usize, i8, i16, i32, i64, isize, f32, f64);

impl<T> KernelArg for *const T {
    type Bytes = [u8; 8];
    fn bytes(&self) -> Self::Bytes {
        (*self as u64).to_ne_bytes()
    }
}

impl<T> KernelArg for *mut T {
    type Bytes = [u8; 8];
    fn bytes(&self) -> Self::Bytes {
        (*self as u64).to_ne_bytes()
    }
}

/// The arguments of a kernel: a tuple of up to twelve [`KernelArg`]s.
pub trait KernelArgs {
    /// Calls `body` with the bytes of each argument.
    fn with_bytes<R>(&self, body: &mut dyn FnMut(&[&[u8]]) -> R) -> R;
}

macro_rules! tuple_args {
    ($($arg:ident),*) => {
        impl<$($arg: KernelArg),*> KernelArgs for ($($arg,)*) {
            #[allow(non_snake_case)]
            fn with_bytes<R>(&self, body: &mut dyn FnMut(&[&[u8]]) -> R) -> R {
                let ($($arg,)*) = self;
                $(let $arg = $arg.bytes();)*
                body(&[$($arg.as_ref()),*])
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
