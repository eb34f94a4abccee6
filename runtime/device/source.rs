//! Modules of device code as the build leaves them in a program.

use std::ffi::c_void;

/// A module as the build left it in the program; made by
/// [`include_module!`](crate::include_module), or inside [`kernels!`](crate::kernels).
///
/// # Threads and drop
/// Static data: `Copy`, `Send` and `Sync`.
///
/// ```
/// oxshmem::include_module!(OPERATIONS, "host_ops"); // what the build script of this package compiles
///
/// assert_eq!(OPERATIONS.name, "host_ops");
/// ```
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct ModuleSource {
    /// The module's name.
    pub name: &'static str,
    /// PTX per virtual architecture (80 for sm_80), ascending; empty if no CUDA compiler was there
    /// at build time.
    pub ptx: &'static [(u32, &'static str)],
    /// Cubins per real architecture (80 for sm_80), ascending, which need no compilation by the
    /// driver; empty likewise.
    pub cubins: &'static [(u32, &'static [u8])],
    /// Describes the module's CPU object.
    pub(crate) cpu: unsafe extern "C" fn() -> *const c_void,
}

impl ModuleSource {
    /// Returns what generated code calls.
    ///
    /// # Safety
    /// `cpu` is the function that the build compiled into the module's CPU object.
    #[doc(hidden)]
    #[must_use]
    pub const unsafe fn from_build(
        name: &'static str,
        ptx: &'static [(u32, &'static str)],
        cubins: &'static [(u32, &'static [u8])],
        cpu: unsafe extern "C" fn() -> *const c_void,
    ) -> Self {
        Self { name, ptx, cubins, cpu }
    }

    /// Returns the description of the module's CPU object, for tests of the executor.
    #[doc(hidden)]
    #[must_use]
    pub fn cpu_object(&self) -> *const c_void {
        // SAFETY: the build compiled the function into the object; it returns the address of static
        // data.
        unsafe { (self.cpu)() }
    }
}

/// Takes in a module that the package's build script compiled with
/// `oxshmem_build::Module::new("name")`: `include_module!(pub MODULE, "name");` defines the static
/// `MODULE`, for [`Pe::load`](crate::Pe::load). With [`kernels!`](crate::kernels), which checks the
/// arguments of kernels too, it is not needed.
///
/// ```
/// oxshmem::include_module!(OPERATIONS, "host_ops");
///
/// # fn main() -> oxshmem::Result<()> {
/// # let pe = oxshmem::init()?;
/// assert!(pe.load(&OPERATIONS)?.kernel("oxshmem_host_quiet").is_ok());
/// # pe.finalize()
/// # }
/// ```
#[macro_export]
macro_rules! include_module {
    ($(#[$doc:meta])* $vis:vis $name:ident, $module:literal) => {
        $(#[$doc])*
        $vis static $name: $crate::ModuleSource = include!(concat!(env!("OUT_DIR"), "/", $module, ".rs"));
    };
}
