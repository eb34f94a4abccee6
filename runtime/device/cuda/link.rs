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

/// Returns how many bytes code has, or its header, by what it says of itself; 0 for text. The
/// driver believes that, whatever size it is told.
fn bytes_said(code: &[u8]) -> u64 {
    /// The layouts of elf.h (64 bits, little-endian) and of fatbinary_section.h.
    const ELF_HEADER: usize = 64;
    const SEGMENT: usize = 56;
    const SECTION: usize = 64;
    const FAT_HEADER: usize = 16;
    const NO_BITS: u64 = 8;
    // What lies outside has been found to be missing, or is.
    let number = |at: u64, bytes: usize| {
        let at = usize::try_from(at).unwrap_or(usize::MAX);
        let mut word = [0; 8];
        word[..bytes].copy_from_slice(code.get(at..at.saturating_add(bytes)).unwrap_or(&[0; 8][..bytes]));
        u64::from_le_bytes(word)
    };
    match kind_of(code) {
        CUjitInputType::CU_JIT_INPUT_FATBINARY if code.len() < FAT_HEADER => FAT_HEADER as u64,
        CUjitInputType::CU_JIT_INPUT_FATBINARY => number(8, 8).saturating_add(number(6, 2)),
        CUjitInputType::CU_JIT_INPUT_CUBIN if code.len() < ELF_HEADER => ELF_HEADER as u64,
        CUjitInputType::CU_JIT_INPUT_CUBIN => {
            let table = |at: u64, count: u64, entry: usize| {
                let (first, entry_bytes, entries) = (number(at, 8), number(count - 2, 2), number(count, 2));
                let end = first.saturating_add(entries * entry_bytes.max(entry as u64));
                let each = (0..entries).map(move |i| first.saturating_add(i * entry_bytes));
                (end, if end > code.len() as u64 { None } else { Some(each) })
            };
            let (segments_end, segments) = table(32, 56, SEGMENT);
            let (sections_end, sections) = table(40, 60, SECTION);
            let of_segments =
                segments.into_iter().flatten().map(|at| number(at + 8, 8).saturating_add(number(at + 32, 8)));
            let of_sections = sections
                .into_iter()
                .flatten()
                .filter(|at| number(at + 4, 4) != NO_BITS)
                .map(|at| number(at + 24, 8).saturating_add(number(at + 32, 8)));
            of_segments.chain(of_sections).fold(segments_end.max(sections_end), u64::max)
        }
        _ => 0,
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
    let (given, needed) = (code.len() as u64, bytes_said(code));
    if needed > given {
        return Err(ModuleError::Truncated { given, needed });
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

    /// Returns an ELF file of a header, one segment and two sections, of which one has no bytes.
    fn elf() -> Vec<u8> {
        let mut elf = vec![0u8; 64 + 56 + 2 * 64 + 16];
        let mut set = |at: usize, value: &[u8]| elf[at..at + value.len()].copy_from_slice(value);
        set(0, b"\x7fELF\x02\x01");
        set(32, &64u64.to_le_bytes());
        set(40, &120u64.to_le_bytes());
        for (at, number) in [(54, 56u16), (56, 1), (58, 64), (60, 2)] {
            set(at, &number.to_le_bytes());
        }
        set(64 + 8, &248u64.to_le_bytes());
        set(64 + 32, &16u64.to_le_bytes());
        set(120 + 4, &1u32.to_le_bytes());
        set(120 + 24, &248u64.to_le_bytes());
        set(120 + 32, &16u64.to_le_bytes());
        set(184 + 4, &8u32.to_le_bytes());
        set(184 + 32, &(1u64 << 40).to_le_bytes());
        elf
    }

    #[test]
    fn code_that_is_cut_off_is_told_by_its_header() {
        let elf = elf();
        for bytes in 4..elf.len() {
            assert!(bytes_said(&elf[..bytes]) > bytes as u64, "{bytes}");
        }
        assert_eq!(bytes_said(&elf), elf.len() as u64);
        let mut endless = elf.clone();
        endless[120 + 32..120 + 40].fill(0xff);
        assert_eq!(bytes_said(&endless), u64::MAX);

        let fat = [&0xba55_ed50_u32.to_le_bytes()[..], &[1, 0, 16, 0], &24u64.to_le_bytes(), &[0; 24]].concat();
        for bytes in 4..fat.len() {
            assert!(bytes_said(&fat[..bytes]) > bytes as u64, "{bytes}");
        }
        assert_eq!(bytes_said(&fat), fat.len() as u64);
        for text in [&b""[..], b"//", b"\x7fEL", b".version 9.0"] {
            assert_eq!(bytes_said(text), 0);
        }
    }

    #[test]
    fn the_device_library_is_a_fat_binary() {
        if DEVICE_LIBRARY.is_empty() {
            println!("skipped: built without a CUDA compiler");
            return;
        }
        assert_eq!(kind_of(DEVICE_LIBRARY), CUjitInputType::CU_JIT_INPUT_FATBINARY);
        assert!(bytes_said(DEVICE_LIBRARY) <= DEVICE_LIBRARY.len() as u64);
        assert_eq!(DEVICE_LIBRARY.as_ptr().align_offset(64), 0);
    }
}
