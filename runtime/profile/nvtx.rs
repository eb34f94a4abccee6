//! NVTX ranges, which Nsight Systems and other tools show.
//!
//! NVTX 3 is headers alone. A tool sets `NVTX_INJECTION64_PATH` to a library of its own; the
//! program loads that and calls `InitializeInjectionNvtx2` in it with a function by which the tool
//! gets at tables of function pointers, where it enters its own functions (NVTX's repository,
//! `nvtxDetail/nvtxInit.h`, `nvtxInitDefs.h` and `nvtxTypes.h`). This is the program's side of
//! that. `libnvToolsExt.so` of NVTX 2 is not used: CUDA has not shipped it since release 12.9, and
//! tools take both alike.

use std::error::Error as _;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

use libloading::os::unix::{Library, RTLD_LAZY, RTLD_LOCAL};
use oxshmem_system::words::{const32, low16};

/// The variable by which a tool names its library.
const PATH: &str = "NVTX_INJECTION64_PATH";
const ENTRY: &CStr = c"InitializeInjectionNvtx2";
/// The name that tools show the ranges under.
const DOMAIN: &CStr = c"OxSHMEM";

/// `NVTX_VERSION`.
const VERSION: u16 = 3;
/// `NVTX_PAYLOAD_TYPE_UNSIGNED_INT64` and `NVTX_MESSAGE_TYPE_ASCII`.
const PAYLOAD_UNSIGNED_INT64: i32 = 1;
const MESSAGE_ASCII: i32 = 1;
/// `NVTX_ETID_CALLBACKS` and `NVTX_ETID_VERSIONINFO`.
const TABLE_CALLBACKS: u32 = 1;
const TABLE_VERSION: u32 = 3;
/// `NVTX_CB_MODULE_CORE` and `NVTX_CB_MODULE_CORE2`.
const MODULE_CORE: c_int = 1;
const MODULE_CORE2: c_int = 5;
/// Entries of the tables of both modules, `NVTX_CBID_CORE_SIZE` and `NVTX_CBID_CORE2_SIZE`.
const ENTRIES: usize = 16;
/// `NVTX_CBID_CORE2_DomainRangePushEx`, `..DomainRangePop` and `..DomainCreateA`.
const RANGE_PUSH: usize = 4;
const RANGE_POP: usize = 5;
const DOMAIN_CREATE: usize = 12;

/// `nvtxEventAttributes_v2`.
#[repr(C)]
struct Attributes {
    version: u16,
    size: u16,
    category: u32,
    color_type: i32,
    color: u32,
    payload_type: i32,
    reserved0: i32,
    payload: u64,
    message_type: i32,
    message: *const c_char,
}

/// The size that a range's attributes say they have.
const ATTRIBUTES_BYTES: u16 = low16(size_of::<Attributes>() as u64);

/// `NvtxExportTableCallbacks`.
#[repr(C)]
struct Callbacks {
    bytes: usize,
    function_table: extern "C" fn(c_int, *mut *const Slot, *mut c_uint) -> c_int,
}

/// `NvtxExportTableVersionInfo`.
#[repr(C)]
struct VersionInfo {
    bytes: usize,
    version: u32,
    reserved0: u32,
    tell: extern "C" fn(u32),
}

/// Where a tool enters a function.
type Function = AtomicPtr<c_void>;

/// An entry of a table: the address of such a place, or null.
#[repr(transparent)]
struct Slot(*const Function);

// SAFETY: it is null or the address of a static atomic.
unsafe impl Sync for Slot {}

static CORE: [Function; ENTRIES] = [const { Function::new(ptr::null_mut()) }; ENTRIES];
static CORE2: [Function; ENTRIES] = [const { Function::new(ptr::null_mut()) }; ENTRIES];
static CORE_TABLE: [Slot; ENTRIES + 1] = table(&CORE);
static CORE2_TABLE: [Slot; ENTRIES + 1] = table(&CORE2);

static CALLBACKS: Callbacks = Callbacks { bytes: size_of::<Callbacks>(), function_table };
static VERSION_INFO: VersionInfo =
    VersionInfo { bytes: size_of::<VersionInfo>(), version: VERSION as u32, reserved0: 0, tell: told_version };

/// Returns the table of a module: entry 0 is invalid, and a null ends it.
const fn table(functions: &'static [Function; ENTRIES]) -> [Slot; ENTRIES + 1] {
    let mut table = [const { Slot(ptr::null()) }; ENTRIES + 1];
    let mut at = 1;
    while at < ENTRIES {
        table[at] = Slot(&raw const functions[at]);
        at += 1;
    }
    table
}

extern "C" fn function_table(module: c_int, table: *mut *const Slot, entries: *mut c_uint) -> c_int {
    let found = match module {
        MODULE_CORE => &CORE_TABLE,
        MODULE_CORE2 => &CORE2_TABLE,
        _ => return 0,
    };
    // SAFETY: the tool passes places for both, or null.
    unsafe {
        if let Some(table) = table.as_mut() {
            *table = found.as_ptr();
        }
        if let Some(entries) = entries.as_mut() {
            *entries = const { const32(ENTRIES) };
        }
    }
    1
}

extern "C" fn told_version(_: u32) {}

extern "C" fn export_table(which: u32) -> *const c_void {
    match which {
        TABLE_CALLBACKS => (&raw const CALLBACKS).cast(),
        TABLE_VERSION => (&raw const VERSION_INFO).cast(),
        _ => ptr::null(),
    }
}

type Push = unsafe extern "C" fn(*mut c_void, *const Attributes) -> c_int;
type Pop = unsafe extern "C" fn(*mut c_void) -> c_int;
type Create = unsafe extern "C" fn(*const c_char) -> *mut c_void;
type Initialize = unsafe extern "C" fn(extern "C" fn(u32) -> *const c_void) -> c_int;

/// A tool that takes ranges.
#[derive(Debug)]
pub(super) struct Tool {
    domain: AtomicPtr<c_void>,
    push: Push,
    pop: Pop,
    /// It stays loaded: its functions are in the tables.
    _library: Library,
}

impl Tool {
    /// Returns the tool of this process, which the first call loads.
    ///
    /// # Errors
    /// No tool takes ranges; the reason in one line.
    pub fn get() -> Result<&'static Self, &'static str> {
        static TOOL: OnceLock<Result<Tool, String>> = OnceLock::new();
        TOOL.get_or_init(Self::load).as_ref().map_err(String::as_str)
    }

    fn load() -> Result<Self, String> {
        let path = std::env::var_os(PATH).filter(|path| !path.is_empty()).ok_or_else(|| {
            format!("no tool takes NVTX ranges: {PATH} is not set; start the program under one, as `nsys profile` does")
        })?;
        let named = |what: &dyn std::fmt::Display| format!("the tool of {PATH}={}: {what}", path.display());
        // What the loader says is the error's source.
        let unloaded = |error: libloading::Error| match error.source() {
            Some(reason) => named(&reason),
            None => named(&error),
        };
        // SAFETY: the user names a library whose initialisers may run in this process.
        let library = unsafe { Library::open(Some(&path), RTLD_LAZY | RTLD_LOCAL) }.map_err(unloaded)?;
        // SAFETY: NVTX gives the function this type.
        let initialize = *unsafe { library.get::<Initialize>(ENTRY.to_bytes_with_nul()) }.map_err(unloaded)?;
        // SAFETY: as the protocol says, it is called once, with the function that gives the tables.
        if unsafe { initialize(export_table) } == 0 {
            return Err(named(&"it does not start"));
        }
        let entered = |at: usize| {
            let function = CORE2[at].load(Ordering::Acquire);
            (!function.is_null()).then_some(function)
        };
        let (Some(push), Some(pop)) = (entered(RANGE_PUSH), entered(RANGE_POP)) else {
            return Err(named(&"it takes no ranges of domains"));
        };
        // SAFETY: NVTX gives the functions at these places these types.
        let (push, pop) =
            unsafe { (std::mem::transmute::<*mut c_void, Push>(push), std::mem::transmute::<*mut c_void, Pop>(pop)) };
        let domain = entered(DOMAIN_CREATE).map_or(ptr::null_mut(), |create| {
            // SAFETY: as above; the name is a C string.
            unsafe { std::mem::transmute::<*mut c_void, Create>(create)(DOMAIN.as_ptr()) }
        });
        Ok(Self { domain: AtomicPtr::new(domain), push, pop, _library: library })
    }

    /// Begins a range of the calling thread, with a number of bytes if it moves some.
    pub fn push(&self, name: &str, bytes: u64) {
        // Names of kernels have no zero bytes.
        let name = CString::new(name).unwrap_or_default();
        let attributes = Attributes {
            version: VERSION,
            size: ATTRIBUTES_BYTES,
            category: 0,
            color_type: 0,
            color: 0,
            payload_type: if bytes == 0 { 0 } else { PAYLOAD_UNSIGNED_INT64 },
            reserved0: 0,
            payload: bytes,
            message_type: MESSAGE_ASCII,
            message: name.as_ptr(),
        };
        // SAFETY: the tool has entered the function for this; it copies what the attributes name.
        unsafe { (self.push)(self.domain.load(Ordering::Relaxed), &raw const attributes) };
    }

    /// Ends the range that the calling thread began last.
    pub fn pop(&self) {
        // SAFETY: the tool has entered the function for this.
        unsafe { (self.pop)(self.domain.load(Ordering::Relaxed)) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_are_those_of_nvtx_3() {
        assert_eq!(size_of::<Attributes>(), 48);
        assert_eq!(std::mem::offset_of!(Attributes, payload), 24);
        assert_eq!(std::mem::offset_of!(Attributes, message), 40);
        assert_eq!((size_of::<Callbacks>(), size_of::<VersionInfo>()), (16, 24));
    }

    #[test]
    fn a_tool_gets_the_tables_that_it_requests() {
        assert!(export_table(0).is_null() && export_table(2).is_null());
        let (mut table, mut entries) = (ptr::null(), 0);
        assert_eq!(function_table(MODULE_CORE2, &raw mut table, &raw mut entries), 1);
        assert_eq!(entries, 16);
        // SAFETY: the table has one entry more, and its places live as long as the process.
        unsafe {
            assert!((*table).0.is_null() && (*table.add(ENTRIES)).0.is_null());
            assert_eq!((*table.add(RANGE_POP)).0, &raw const CORE2[RANGE_POP]);
        }
        assert_eq!(function_table(2, ptr::null_mut(), ptr::null_mut()), 0);
    }
}
