//! The part of `pmix.h` that is used: PMIx's C interface, whose library is `libpmix.so.2` from
//! release 2 to 5. The layout is compared with the header where that is installed (`tests.rs`).

use std::ffi::{c_char, c_int, c_uint};

/// The library's name.
pub const LIBRARY: &str = "libpmix.so.2";

/// `PMIX_MAX_NSLEN` and the 0 at the end.
pub const NAMESPACE: usize = 256;
/// `PMIX_MAX_KEYLEN` and the 0 at the end.
pub const KEY: usize = 512;
pub const SUCCESS: c_int = 0;
pub const BOOL: u16 = 1;
pub const STRING: u16 = 3;
pub const UINT32: u16 = 14;
/// `PMIX_GLOBAL`: a value for all processes.
pub const GLOBAL: u8 = 3;
pub const RANK_WILDCARD: u32 = u32::MAX - 1;
pub const JOB_SIZE: &str = "pmix.job.size";
pub const LOCAL_SIZE: &str = "pmix.local.size";
pub const COLLECT_DATA: &str = "pmix.collect";

/// `pmix_proc_t`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Proc {
    pub namespace: [u8; NAMESPACE],
    pub rank: u32,
}

/// What a value holds; its type says which. As large as the largest member, `pmix_envar_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub union Data {
    pub flag: bool,
    pub string: *mut c_char,
    pub uint32: u32,
    pub size: [usize; 3],
}

/// `pmix_value_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Value {
    pub kind: u16,
    pub data: Data,
}

/// `pmix_info_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Info {
    pub key: [u8; KEY],
    pub flags: u32,
    pub value: Value,
}

type Init = unsafe extern "C" fn(*mut Proc, *mut Info, usize) -> c_int;
type Finalize = unsafe extern "C" fn(*const Info, usize) -> c_int;
type Put = unsafe extern "C" fn(u8, *const c_char, *mut Value) -> c_int;
type Commit = unsafe extern "C" fn() -> c_int;
type Fence = unsafe extern "C" fn(*const Proc, usize, *const Info, usize) -> c_int;
type Get = unsafe extern "C" fn(*const Proc, *const c_char, *const Info, usize, *mut *mut Value) -> c_int;
type ErrorString = unsafe extern "C" fn(c_int) -> *const c_char;

/// The library's functions. They stay loaded until the process ends.
#[derive(Debug, Clone, Copy)]
pub struct Library {
    pub init: Init,
    pub finalize: Finalize,
    pub put: Put,
    pub commit: Commit,
    pub fence: Fence,
    pub get: Get,
    pub error_string: ErrorString,
}

impl Library {
    /// Loads a library by its name.
    pub fn load(name: &str) -> Result<Self, libloading::Error> {
        // SAFETY: the library's constructors set up nothing but the library.
        let library = std::mem::ManuallyDrop::new(unsafe { libloading::Library::new(name) }?);
        // SAFETY: these are the types of pmix.h, and the library is never unloaded.
        unsafe {
            Ok(Self {
                init: *library.get(b"PMIx_Init\0")?,
                finalize: *library.get(b"PMIx_Finalize\0")?,
                put: *library.get(b"PMIx_Put\0")?,
                commit: *library.get(b"PMIx_Commit\0")?,
                fence: *library.get(b"PMIx_Fence\0")?,
                get: *library.get(b"PMIx_Get\0")?,
                error_string: *library.get(b"PMIx_Error_string\0")?,
            })
        }
    }
}

/// Returns the `pmix_info_t` that says yes to `key`.
pub fn yes(key: &str) -> Info {
    let value = Value { kind: BOOL, data: Data { size: [0; 3] } };
    let mut info = Info { key: [0; KEY], flags: 0, value };
    info.key[..key.len()].copy_from_slice(key.as_bytes());
    info.value.data.flag = true;
    info
}

/// Every status fits.
const _: () = assert!(size_of::<c_uint>() == 4 && size_of::<c_int>() == 4);
