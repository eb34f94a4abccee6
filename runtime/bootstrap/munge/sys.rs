//! The part of `munge.h` that is used: munge's C interface, `libmunge.so.2` in every release since
//! 0.5. See munge(3) and munge_ctx(3). The binding is compared with the header where that is
//! installed (`tests.rs`).

use std::ffi::{c_char, c_int, c_uint, c_void};

/// The library's name.
pub const LIBRARY: &str = "libmunge.so.2";

/// `EMUNGE_SUCCESS`.
pub const SUCCESS: c_int = 0;
/// `EMUNGE_CRED_INVALID`.
pub const INVALID: c_int = 14;
/// `EMUNGE_CRED_EXPIRED`.
pub const EXPIRED: c_int = 15;
/// `EMUNGE_CRED_REWOUND`.
pub const REWOUND: c_int = 16;
/// `MUNGE_OPT_CIPHER_TYPE`, an int.
pub const CIPHER: c_int = 0;
/// `MUNGE_OPT_SOCKET`, a string.
pub const SOCKET: c_int = 8;
/// `MUNGE_OPT_UID_RESTRICTION`, a `uid_t`.
pub const UID_RESTRICTION: c_int = 9;
/// `MUNGE_CIPHER_AES128`.
pub const AES128: c_int = 4;

/// `struct munge_ctx`, of which nothing is known.
#[repr(C)]
#[derive(Debug)]
pub struct RawContext([u8; 0]);

type Encode = unsafe extern "C" fn(*mut *mut c_char, *mut RawContext, *const c_void, c_int) -> c_int;
type Decode = unsafe extern "C" fn(
    *const c_char,
    *mut RawContext,
    *mut *mut c_void,
    *mut c_int,
    *mut libc::uid_t,
    *mut libc::gid_t,
) -> c_int;
type Create = unsafe extern "C" fn() -> *mut RawContext;
type Destroy = unsafe extern "C" fn(*mut RawContext);
type ContextText = unsafe extern "C" fn(*mut RawContext) -> *const c_char;
type ErrorText = unsafe extern "C" fn(c_int) -> *const c_char;
type AccessOption = unsafe extern "C" fn(*mut RawContext, c_int, ...) -> c_int;

/// The library's functions. They stay loaded until the process ends.
#[derive(Debug, Clone, Copy)]
pub struct Library {
    pub encode: Encode,
    pub decode: Decode,
    pub create: Create,
    pub destroy: Destroy,
    pub context_text: ContextText,
    pub error_text: ErrorText,
    pub get: AccessOption,
    pub set: AccessOption,
}

impl Library {
    /// Loads a library by its name.
    pub fn load(name: &str) -> Result<Self, libloading::Error> {
        // SAFETY: the library's constructors set up nothing but the library.
        let library = std::mem::ManuallyDrop::new(unsafe { libloading::Library::new(name) }?);
        // SAFETY: these are the types of munge.h, and the library is never unloaded.
        unsafe {
            Ok(Self {
                encode: *library.get(b"munge_encode\0")?,
                decode: *library.get(b"munge_decode\0")?,
                create: *library.get(b"munge_ctx_create\0")?,
                destroy: *library.get(b"munge_ctx_destroy\0")?,
                context_text: *library.get(b"munge_ctx_strerror\0")?,
                error_text: *library.get(b"munge_strerror\0")?,
                get: *library.get(b"munge_ctx_get\0")?,
                set: *library.get(b"munge_ctx_set\0")?,
            })
        }
    }
}

/// An option is an int in C, and so is a user's number where it is passed on.
const _: () = assert!(size_of::<c_int>() == 4 && size_of::<libc::uid_t>() == size_of::<c_uint>());
