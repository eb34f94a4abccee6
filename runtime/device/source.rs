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
/// assert_eq!(OPERATIONS.name(), "host_ops");
/// ```
#[derive(Debug, Clone, Copy)]
pub struct ModuleSource {
    pub(crate) name: &'static str,
    pub(crate) ptx: &'static [(u32, &'static str)],
    /// Whole cubins, which is why no program can change them: the driver is told no size.
    pub(crate) cubins: &'static [(u32, &'static [u8])],
    /// Describes the module's CPU object.
    pub(crate) cpu: unsafe extern "C" fn() -> *const c_void,
}

impl ModuleSource {
    /// Returns what generated code calls.
    ///
    /// # Safety
    /// `cpu` is the function that the build compiled into the module's CPU object, and each cubin
    /// is whole.
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

    /// Returns the module's name.
    ///
    /// ```
    /// oxshmem::include_module!(OPERATIONS, "host_ops");
    ///
    /// assert_eq!(OPERATIONS.name(), "host_ops");
    /// ```
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// Returns PTX per virtual architecture (80 for sm_80), ascending; empty if no CUDA compiler
    /// was there at build time.
    ///
    /// ```
    /// oxshmem::include_module!(OPERATIONS, "host_ops");
    ///
    /// assert_eq!(OPERATIONS.ptx().is_empty(), oxshmem::build_info().cuda.is_none());
    /// ```
    #[must_use]
    pub const fn ptx(&self) -> &'static [(u32, &'static str)] {
        self.ptx
    }

    /// Returns cubins per real architecture (80 for sm_80), ascending, which need no compilation by
    /// the driver; empty if there are none.
    ///
    /// ```
    /// oxshmem::include_module!(OPERATIONS, "host_ops");
    ///
    /// assert!(OPERATIONS.cubins().iter().all(|(_, cubin)| cubin.starts_with(b"\x7fELF")));
    /// ```
    #[must_use]
    pub const fn cubins(&self) -> &'static [(u32, &'static [u8])] {
        self.cubins
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
