//! Modules: what their PTX says of their kernels and of the PE's state.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_ulonglong, c_void};

use cudarc::driver::sys::CUfunction_attribute;
use cudarc::driver::sys::CUfunction_attribute_enum as Attribute;
use cudarc::driver::sys::{CUfunction, CUmodule, CUresult};

use crate::devices::{DONE, give};
use crate::state::{STACK, state};

/// The name of the symbol that PEs fill.
const STATE: &str = "oxshmem_state";
/// The name of the symbol of modules whose kernels may be launched early.
const EARLY: &str = "oxshmem_syncs_grid_dependency";

#[derive(Debug, Default, PartialEq, Eq)]
pub struct Module {
    kernels: Vec<Kernel>,
    /// The initial contents of the state.
    state: Vec<u8>,
    /// The contents of the symbol that says that kernels may be launched early; empty without it.
    early: Vec<u8>,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub struct Kernel {
    pub name: CString,
    /// The bytes of each parameter.
    parameters: Vec<usize>,
}

impl Module {
    /// Reads the kernels and the state of a module.
    fn of(ptx: &str) -> Self {
        let mut module = Self::default();
        let mut lines = ptx.lines().map(str::trim);
        while let Some(line) = lines.next() {
            if let Some((_, name)) = line.split_once(".entry ") {
                let end = name.find('(').unwrap_or(name.len());
                let parameters = if name.ends_with(')') {
                    Vec::new()
                } else {
                    lines.by_ref().take_while(|line| !line.starts_with(')')).filter_map(bytes_of).collect()
                };
                let name = CString::new(name[..end].trim()).unwrap_or_default();
                module.kernels.push(Kernel { name, parameters });
            } else if let Some((_, rest)) = line.split_once(".b8 oxshmem_state[")
                && let Some((bytes, values)) = rest.split_once(']')
            {
                let values = values.split(|c: char| !c.is_ascii_digit()).filter_map(|value| value.parse().ok());
                module.state = values.collect();
                module.state.resize(bytes.parse().unwrap_or(0), 0);
            } else if line.contains(&format!(".u8 {EARLY} ")) {
                module.early = vec![1];
            }
        }
        module
    }
}

/// Returns the bytes of a parameter: `.param .u64 a,` has 8 and `.param .align 8 .b8 b[56]` 56.
fn bytes_of(line: &str) -> Option<usize> {
    let words: Vec<&str> = line.trim_end_matches(',').split_whitespace().collect();
    let (&name, kind) = words.split_last()?;
    match name.split_once('[') {
        Some((_, count)) => count.trim_end_matches(']').parse().ok(),
        None => {
            kind.last()?.trim_start_matches(|c: char| !c.is_ascii_digit()).parse::<usize>().ok().map(|bits| bits / 8)
        }
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuModuleLoadData(_module: *mut CUmodule, _image: *const c_void) -> CUresult {
    CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuModuleLoadDataEx(
    module: *mut CUmodule,
    image: *const c_void,
    _count: c_uint,
    _options: *mut c_uint,
    _values: *mut *mut c_void,
) -> CUresult {
    state().log("load");
    // SAFETY: the caller's text.
    let ptx = unsafe { CStr::from_ptr(image.cast()) }.to_string_lossy();
    // SAFETY: the caller's place.
    unsafe { give(module.cast(), Box::into_raw(Box::new(Module::of(&ptx)))) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuModuleUnload(module: CUmodule) -> CUresult {
    // SAFETY: `cuModuleLoadDataEx` made it.
    drop(unsafe { Box::from_raw(module.cast::<Module>()) });
    DONE
}

/// Returns a module that is loaded.
///
/// # Safety
/// The handle is one of those that `cuModuleLoadDataEx` has given.
unsafe fn loaded<'a>(module: CUmodule) -> &'a Module {
    // SAFETY: the caller's promise.
    unsafe { &*module.cast::<Module>() }
}

/// Returns a kernel of a module that is loaded.
///
/// # Safety
/// The handle is one of those that `cuModuleEnumerateFunctions` has given.
pub unsafe fn kernel<'a>(function: CUfunction) -> &'a Kernel {
    // SAFETY: the caller's promise.
    unsafe { &*function.cast::<Kernel>() }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuModuleGetGlobal_v2(
    address: *mut c_ulonglong,
    bytes: *mut usize,
    module: CUmodule,
    name: *const c_char,
) -> CUresult {
    // SAFETY: the caller's module and text.
    let (module, name) = unsafe { (loaded(module), CStr::from_ptr(name)) };
    let symbol: &[u8] = match name.to_str() {
        Ok(STATE) => &module.state,
        Ok(EARLY) => &module.early,
        _ => &[],
    };
    if symbol.is_empty() {
        return CUresult::CUDA_ERROR_NOT_FOUND;
    }
    // SAFETY: the caller's places.
    unsafe {
        give(bytes, symbol.len());
        give(address, symbol.as_ptr().addr() as c_ulonglong)
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuModuleGetFunctionCount(count: *mut c_uint, module: CUmodule) -> CUresult {
    // SAFETY: the caller's module and place.
    unsafe { give(count, loaded(module).kernels.len() as c_uint) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuModuleEnumerateFunctions(to: *mut CUfunction, room: c_uint, module: CUmodule) -> CUresult {
    // SAFETY: the caller's module.
    for (at, kernel) in unsafe { loaded(module) }.kernels.iter().enumerate().take(room as usize) {
        // SAFETY: the caller's room.
        unsafe { to.add(at).write(std::ptr::from_ref(kernel).cast_mut().cast()) };
    }
    DONE
}

#[unsafe(no_mangle)]
extern "C" fn cuFuncLoad(_function: CUfunction) -> CUresult {
    DONE
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuFuncGetName(name: *mut *const c_char, function: CUfunction) -> CUresult {
    // SAFETY: the caller's function and place.
    unsafe { give(name, kernel(function).name.as_ptr()) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuFuncGetAttribute(
    value: *mut c_int,
    attribute: CUfunction_attribute,
    _function: CUfunction,
) -> CUresult {
    let known = match attribute {
        Attribute::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK => 1024,
        Attribute::CU_FUNC_ATTRIBUTE_NUM_REGS => 64,
        Attribute::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES => STACK as c_int,
        _ => 0,
    };
    // SAFETY: the caller's place.
    unsafe { give(value, known) }
}

#[unsafe(no_mangle)]
extern "C" fn cuFuncSetAttribute(_function: CUfunction, _attribute: CUfunction_attribute, _value: c_int) -> CUresult {
    DONE
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuFuncGetParamInfo(
    function: CUfunction,
    index: usize,
    offset: *mut usize,
    bytes: *mut usize,
) -> CUresult {
    // SAFETY: the caller's function.
    let parameters = unsafe { &kernel(function).parameters };
    let Some(own) = parameters.get(index) else { return CUresult::CUDA_ERROR_INVALID_VALUE };
    let before = parameters[..index].iter().fold(0, |end: usize, bytes| end.next_multiple_of((*bytes).min(8)) + bytes);
    // SAFETY: the caller's places.
    unsafe {
        give(offset, before.next_multiple_of((*own).min(8)));
        give(bytes, *own)
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
    blocks: *mut c_int,
    _function: CUfunction,
    _threads: c_int,
    _shared: usize,
) -> CUresult {
    // SAFETY: the caller's place.
    unsafe { give(blocks, 2) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_and_the_state_are_read_from_ptx() {
        let ptx = ".global .align 1 .u8 oxshmem_syncs_grid_dependency = 1;\n\
            .const .align 128 .b8 oxshmem_state[8] = {79, 88, 3};\n\
            .visible .entry none()\n{\n}\n\
            .visible .entry some(\n\t.param .u64 some_0,\n\t.param .u32 some_1,\n\t.param .align 8 .b8 some_2[56]\n)\n{\n}\n";
        let kernel = |name: &CStr, parameters: &[usize]| Kernel { name: name.into(), parameters: parameters.to_vec() };
        let expected = Module {
            kernels: vec![kernel(c"none", &[]), kernel(c"some", &[8, 4, 56])],
            state: vec![79, 88, 3, 0, 0, 0, 0, 0],
            early: vec![1],
        };
        assert_eq!(Module::of(ptx), expected);
        assert_eq!(
            Module::of(".visible .entry none()"),
            Module { kernels: vec![kernel(c"none", &[])], ..Module::default() }
        );
    }
}
