//! Modules and kernels as the compiler left them in the program.

use std::ffi::{CStr, c_void};
use std::ops::Range;

use super::error::ModuleError;
use super::interface::{self, CPU_VERSION, Entry, ModuleDescription};

/// The kernels of one `.cu` file that is linked into this program.
#[derive(Debug, Clone)]
pub struct Module {
    kernels: Vec<Kernel>,
}

/// One kernel of a [`Module`].
#[derive(Debug, Clone)]
pub struct Kernel {
    name: &'static str,
    entry: Entry,
    arg_sizes: &'static [u32],
    max_threads: u32,
    text: Range<usize>,
}

impl Module {
    /// Takes over what `oxshmem_module_<name>()` (oxshmem/port/module.h) returned.
    ///
    /// # Errors
    ///
    /// [`ModuleError`] if the module was built from other headers than this runtime.
    ///
    /// # Safety
    ///
    /// `description` is null or what such a function returned.
    pub unsafe fn from_raw(description: *const c_void) -> Result<Self, ModuleError> {
        // SAFETY: the caller passes a description, which is static.
        let Some(module) = (unsafe { description.cast::<ModuleDescription>().as_ref() }) else {
            return Err(ModuleError::Null);
        };
        let (runtime, runtime_bytes) = interface::abi_version();
        if (module.abi_version, module.state_bytes) != (runtime, runtime_bytes) {
            return Err(ModuleError::AbiVersion {
                module: module.abi_version,
                module_bytes: module.state_bytes,
                runtime,
                runtime_bytes,
            });
        }
        if module.cpu_version != CPU_VERSION {
            return Err(ModuleError::CpuVersion { module: module.cpu_version, runtime: CPU_VERSION });
        }
        let mut kernels = Vec::new();
        let mut next = module.kernels;
        // SAFETY: the list is made of static descriptions and ends with null.
        while let Some(kernel) = unsafe { next.as_ref() } {
            // SAFETY: static text and a static array of n_args sizes, written by OXSHMEM_KERNEL.
            let (name, arg_sizes) = unsafe {
                (CStr::from_ptr(kernel.name), std::slice::from_raw_parts(kernel.arg_sizes, kernel.n_args as usize))
            };
            // A C++ identifier may hold other characters than ASCII, but g++ writes them as UTF-8.
            let name = name.to_str().unwrap_or("?");
            kernels.push(Kernel::new(name, kernel.entry, arg_sizes, kernel.max_threads));
            next = kernel.next;
        }
        // The list is in reverse order of declaration.
        kernels.reverse();
        Ok(Self { kernels })
    }

    /// Returns the kernels, in the order of their declaration.
    pub fn kernels(&self) -> &[Kernel] {
        &self.kernels
    }

    /// Returns the kernel of this name.
    ///
    /// # Errors
    ///
    /// [`ModuleError::NoKernel`] with the names there are.
    pub fn kernel(&self, name: &str) -> Result<&Kernel, ModuleError> {
        self.kernels.iter().find(|kernel| kernel.name == name).ok_or_else(|| ModuleError::NoKernel {
            name: name.to_owned(),
            known: self.kernels.iter().map(|kernel| kernel.name).collect::<Vec<_>>().join(", "),
        })
    }
}

impl Kernel {
    pub(super) fn new(name: &'static str, entry: Entry, arg_sizes: &'static [u32], max_threads: u32) -> Self {
        Self { name, entry, arg_sizes, max_threads, text: interface::text_around(entry as usize) }
    }

    /// Returns the name given to OXSHMEM_KERNEL.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the bytes of each parameter.
    pub fn arg_sizes(&self) -> &'static [u32] {
        self.arg_sizes
    }

    /// Returns the most threads that a block of it may have:
    /// [`MAX_BLOCK_THREADS`](super::MAX_BLOCK_THREADS), or what it was declared with.
    pub fn max_threads(&self) -> u32 {
        self.max_threads
    }

    pub(super) fn entry(&self) -> Entry {
        self.entry
    }

    /// Returns the instructions of the program or library that holds the kernel. Outside of it (in
    /// libc, say) a thread may hold locks.
    pub(super) fn text(&self) -> &Range<usize> {
        &self.text
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_null_description_is_refused() {
        // SAFETY: null is allowed.
        assert_eq!(unsafe { Module::from_raw(std::ptr::null()) }.unwrap_err(), ModuleError::Null);
    }

    #[test]
    fn another_abi_is_refused_with_both_versions() {
        let (abi_version, state_bytes) = interface::abi_version();
        let other = ModuleDescription {
            abi_version: abi_version + 1,
            state_bytes,
            cpu_version: CPU_VERSION,
            reserved0: 0,
            kernels: std::ptr::null(),
        };
        // SAFETY: a description without kernels.
        let error = unsafe { Module::from_raw((&raw const other).cast()) }.unwrap_err();
        assert_eq!(
            error,
            ModuleError::AbiVersion {
                module: abi_version + 1,
                module_bytes: state_bytes,
                runtime: abi_version,
                runtime_bytes: state_bytes
            }
        );
        let other = ModuleDescription { abi_version, cpu_version: CPU_VERSION + 7, ..other };
        // SAFETY: as above.
        let error = unsafe { Module::from_raw((&raw const other).cast()) }.unwrap_err();
        assert_eq!(error, ModuleError::CpuVersion { module: CPU_VERSION + 7, runtime: CPU_VERSION });
    }
}
