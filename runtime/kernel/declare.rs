//! Declarations of kernels.

/// Declares the kernels of a module that the package's build script compiled with
/// `oxshmem_build::Module::new("name")`, with the types of their arguments, so that a call with
/// other arguments does not compile.
///
/// It defines a type with `load(&Pe)`, which loads the module and finds the kernels, and with an
/// unsafe method for each kernel: what it runs on (a [`Pe`](crate::Pe), or
/// [`Pe::on`](crate::Pe::on) of a stream), its [`LaunchConfig`](crate::LaunchConfig), and the
/// arguments. They return at once, as [`Kernel::launch`](crate::Kernel::launch) does, and have its
/// errors. Types of arguments are those that implement [`KernelArg`](crate::KernelArg), in the
/// order in which the kernel declares its parameters: `&SymmetricSlice<T>` or `SymmetricView<'_,
/// T>` for a `T *` into the symmetric heap.
///
/// # Safety
/// Calls are unsafe since device code may do what C++ may do, and since nothing compares the
/// declaration with the device code but the number and the sizes of the arguments, which a launch
/// checks.
///
/// ```
/// use oxshmem::{LaunchConfig, Operations, SymmetricSlice};
///
/// oxshmem::kernels! {
///     /// Kernels of the module `host_ops`.
///     pub struct HostOps from "host_ops" {
///         /// Updates a signal at a PE.
///         unsafe fn oxshmem_host_signal(signal: &SymmetricSlice<u64>, value: u64, op: i32, pe: i32);
///     }
/// }
///
/// # fn main() -> oxshmem::Result<()> {
/// # let pe = oxshmem::init()?;
/// let kernels = HostOps::load(&pe)?;
/// let flag = pe.alloc::<u64>(1)?;
/// // SAFETY: the kernel takes a signal, a value, the number of an operator, and the number of a PE.
/// unsafe { kernels.oxshmem_host_signal(&pe, LaunchConfig::linear(1, 1), &flag, 5, 9, 0) }?;
/// pe.synchronize()?;
/// assert_eq!(pe.read(&flag)?, [5]);
/// # pe.finalize()
/// # }
/// ```
///
/// A wrong argument does not compile:
///
/// ```compile_fail,E0308
/// use oxshmem::{LaunchConfig, SymmetricSlice};
///
/// oxshmem::kernels! {
///     struct HostOps from "host_ops" {
///         unsafe fn oxshmem_host_signal(signal: &SymmetricSlice<u64>, value: u64, op: i32, pe: i32);
///     }
/// }
///
/// # fn main() -> oxshmem::Result<()> {
/// # let pe = oxshmem::init()?;
/// let kernels = HostOps::load(&pe)?;
/// let flag = pe.alloc::<u32>(1)?; // not u64
/// // SAFETY: it does not compile.
/// unsafe { kernels.oxshmem_host_signal(&pe, LaunchConfig::linear(1, 1), &flag, 5, 9, 0) }?;
/// # pe.finalize()
/// # }
/// ```
#[macro_export]
macro_rules! kernels {
    ($(#[$attribute:meta])* $vis:vis struct $name:ident from $module:literal {
        $($(#[$doc:meta])* unsafe fn $kernel:ident($($arg:ident: $type:ty),* $(,)?);)*
    }) => {
        $(#[$attribute])*
        #[derive(Debug, Clone)]
        $vis struct $name { $($kernel: $crate::Kernel,)* }

        impl $name {
            /// Loads the module and finds its kernels.
            ///
            /// # Errors
            /// The module was built for another version of the device ABI, or it has no kernel of a
            /// name that is declared.
            $vis fn load(pe: &$crate::Pe) -> $crate::Result<Self> {
                $crate::include_module!(SOURCE, $module);
                let module = pe.load(&SOURCE)?;
                Ok(Self { $($kernel: module.kernel(stringify!($kernel))?,)* })
            }

            $($(#[$doc])*
            ///
            /// # Safety
            /// The declaration must have the types of the kernel's parameters, and the kernel must
            /// be sound for these arguments. What they point to must stay valid until the kernel
            /// has ended.
            #[allow(clippy::too_many_arguments, reason = "a kernel has the parameters that it declares")]
            $vis unsafe fn $kernel(
                &self,
                on: &impl $crate::Operations,
                config: $crate::LaunchConfig,
                $($arg: $type),*
            ) -> $crate::Result<()> {
                // SAFETY: the caller's promise.
                unsafe { self.$kernel.launch(on, config, ($($arg,)*)) }
            })*
        }
    };
}
