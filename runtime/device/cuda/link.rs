//! The device library, and the driver's linker: for kernels that are compiled while the program
//! runs, which then need not compile what all kernels have in common.

use std::ffi::{CStr, c_void};

use cudarc::driver::sys::{CUjit_option, CUjitInputType, CUlinkState, CUresult};

use oxshmem_system::words::count32;

use super::driver::{DriverError, driver};
use super::error::ModuleError;
use super::module::{LOG_BYTES, ptx_version};

#[repr(C, align(64))]
struct Aligned<T: ?Sized>(T);

static LIBRARY: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/device_library.fatbin")));

/// The device library: a fat binary of relocatable code, with cubins and PTX. It has what kernels
/// call that were compiled with `OXSHMEM_DEVICE_LIBRARY` defined.
/// [`Pe::link_module`](crate::Pe::link_module) links with it; so does any other linker that takes
/// fat binaries, such as nvJitLink. Empty if no CUDA compiler was there when this crate was built.
///
/// ```
/// use oxshmem::device::cuda::DEVICE_LIBRARY;
///
/// assert_eq!(DEVICE_LIBRARY.is_empty(), oxshmem::build_info().cuda.is_none());
/// ```
pub static DEVICE_LIBRARY: &[u8] = &LIBRARY.0;

/// Registers that a thread of the library has at most where the driver compiles its PTX: as in its
/// cubins (`oxshmem_build`).
const REGISTERS: usize = 64;

/// Returns what some code is, by how it begins.
fn kind_of(code: &[u8]) -> CUjitInputType {
    /// The layout of fatbinary_section.h.
    const FAT_BINARY: [u8; 4] = 0xba55_ed50_u32.to_le_bytes();
    match code {
        [0x7f, b'E', b'L', b'F', ..] => CUjitInputType::CU_JIT_INPUT_CUBIN,
        [first, second, third, fourth, ..] if [*first, *second, *third, *fourth] == FAT_BINARY => {
            CUjitInputType::CU_JIT_INPUT_FATBINARY
        }
        _ => CUjitInputType::CU_JIT_INPUT_PTX,
    }
}

/// Returns a number in the place of a pointer, as the driver takes options.
fn number(value: usize) -> *mut c_void {
    std::ptr::without_provenance_mut(value)
}

/// A linker of the driver's.
struct Linker {
    raw: CUlinkState,
    // The driver writes here as long as the linker lives.
    log: Vec<u8>,
    _options: Vec<CUjit_option>,
    _values: Vec<*mut c_void>,
}

impl Linker {
    fn new() -> Result<Self, DriverError> {
        let mut log = vec![0u8; LOG_BYTES];
        let mut options = vec![CUjit_option::CU_JIT_ERROR_LOG_BUFFER, CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
        let mut values = vec![log.as_mut_ptr().cast(), number(log.len())];
        let mut raw = std::ptr::null_mut();
        // SAFETY: options and their values, which stay where they are as long as the linker lives,
        // as does the log.
        unsafe {
            driver!(cuLinkCreate_v2(count32(options.len()), options.as_mut_ptr(), values.as_mut_ptr(), &raw mut raw))
        }?;
        Ok(Self { raw, log, _options: options, _values: values })
    }

    fn add(&mut self, name: &CStr, code: &[u8], options: &[(CUjit_option, usize)]) -> Result<(), DriverError> {
        let (mut names, mut values): (Vec<_>, Vec<_>) =
            options.iter().map(|(option, value)| (*option, number(*value))).unzip();
        // SAFETY: the driver reads the code and the options during the call; PTX ends with 0.
        unsafe {
            driver!(cuLinkAddData_v2(
                self.raw,
                kind_of(code),
                code.as_ptr().cast_mut().cast(),
                code.len(),
                name.as_ptr(),
                count32(names.len()),
                names.as_mut_ptr(),
                values.as_mut_ptr(),
            ))
        }
    }

    /// Returns a cubin of all that was added.
    fn complete(&mut self) -> Result<Vec<u8>, DriverError> {
        let (mut image, mut bytes) = (std::ptr::null_mut(), 0);
        // SAFETY: writes a pointer and a size.
        unsafe { driver!(cuLinkComplete(self.raw, &raw mut image, &raw mut bytes)) }?;
        // SAFETY: the image is the linker's, which lives until it has been copied.
        Ok(unsafe { std::slice::from_raw_parts(image.cast::<u8>(), bytes) }.to_vec())
    }

    /// Returns what the linker, and the compiler in it, have said.
    fn said(&self) -> String {
        CStr::from_bytes_until_nul(&self.log).map(|log| log.to_string_lossy().into_owned()).unwrap_or_default()
    }
}

impl Drop for Linker {
    fn drop(&mut self) {
        // SAFETY: `new` created it.
        if let Err(error) = unsafe { driver!(cuLinkDestroy(self.raw)) } {
            tracing::debug!(%error, "cannot destroy a linker");
        }
    }
}

/// Links relocatable code with the device library for the current context's GPU; the cubin that
/// this gives.
pub(super) fn link(code: &[u8]) -> Result<Vec<u8>, ModuleError> {
    if DEVICE_LIBRARY.is_empty() {
        return Err(ModuleError::NoPtx);
    }
    let mut text = Vec::new();
    let kind = kind_of(code);
    let code = if kind == CUjitInputType::CU_JIT_INPUT_PTX && code.last() != Some(&0) {
        text.extend_from_slice(code);
        text.push(0);
        &text
    } else {
        code
    };
    let refused = |source, log| ModuleError::Link { source, log };
    let mut linker = Linker::new().map_err(|error| refused(error, String::new()))?;
    let added = linker.add(c"the kernels", code, &[]).and_then(|()| {
        linker.add(c"the device library", DEVICE_LIBRARY, &[(CUjit_option::CU_JIT_MAX_REGISTERS, REGISTERS)])
    });
    match added.and_then(|()| linker.complete()) {
        Ok(image) => Ok(image),
        Err(error) if error.code == CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION as u32 => {
            Err(ModuleError::NewPtx { ptx: ptx_version(&String::from_utf8_lossy(code)) })
        }
        Err(error) => Err(refused(error, linker.said())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_known_by_its_beginning() {
        assert_eq!(kind_of(b"\x7fELF\x02"), CUjitInputType::CU_JIT_INPUT_CUBIN);
        assert_eq!(kind_of(b"//\n.version 9.0\n"), CUjitInputType::CU_JIT_INPUT_PTX);
        assert_eq!(kind_of(b""), CUjitInputType::CU_JIT_INPUT_PTX);
    }

    #[test]
    fn the_device_library_is_a_fat_binary() {
        if DEVICE_LIBRARY.is_empty() {
            println!("skipped: built without a CUDA compiler");
            return;
        }
        assert_eq!(kind_of(DEVICE_LIBRARY), CUjitInputType::CU_JIT_INPUT_FATBINARY);
        assert_eq!(DEVICE_LIBRARY.as_ptr().align_offset(64), 0);
    }
}
