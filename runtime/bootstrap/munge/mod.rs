//! Munge, the service by which the nodes of a cluster tell each other's users apart: it runs
//! wherever Slurm does. A process seals bytes in a *credential*; `munged` of any node that has the
//! cluster's key opens it, for the user alone that the credential is restricted to, and says which
//! user made it. See munge(7), munge(3) and munge_ctx(3), <https://github.com/dun/munge>.
//!
//! The library is loaded at run time. A machine without it, or without the service, has no munge,
//! which is not an error. A munge that is there and does not work is one: a stranger that makes it
//! fail does not make a PE go on without it.

mod sys;
#[cfg(test)]
pub mod tests;

use std::error::Error as _;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fmt;
use std::path::Path;
use std::ptr::{NonNull, null_mut};

use sys::Library;

/// Bytes that a credential has at most here: one with 96 bytes in it has about 300.
pub const LONGEST: usize = 8192;

/// What seals and opens credentials of this process's user.
pub trait Credentials: fmt::Debug + Send + Sync {
    /// Returns a credential with `payload` in it, made by this process's user, which no other user
    /// can open.
    ///
    /// # Errors
    /// What is wrong, and what to do.
    fn seal(&self, payload: &[u8]) -> Result<Vec<u8>, String>;

    /// Returns the user that made the credential, and what is in it.
    ///
    /// # Errors
    /// Why it cannot be opened, and what to do.
    fn open(&self, credential: &[u8]) -> Result<(u32, Vec<u8>), String>;
}

/// Why there is no munge to use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoMunge {
    /// This machine has none.
    Absent(String),
    /// It is there and does not work.
    Broken(String),
}

/// A munge that has sealed and opened a credential.
#[derive(Debug)]
pub struct MungeClient {
    library: Library,
    /// The service's socket; the library's own choice without one.
    socket: Option<CString>,
}

impl MungeClient {
    /// Loads the library and tries the service.
    ///
    /// # Errors
    /// There is none, or it does not work.
    pub fn find() -> Result<Self, NoMunge> {
        Self::at(sys::LIBRARY, None)
    }

    /// Does the same as [`MungeClient::find`], with the library of this name and the service at
    /// this socket.
    fn at(library: &str, socket: Option<&Path>) -> Result<Self, NoMunge> {
        let loaded = Library::load(library).map_err(|error| {
            let why = error.source().map_or_else(|| error.to_string(), ToString::to_string);
            NoMunge::Absent(format!("{library} cannot be loaded: {why}"))
        })?;
        let socket = socket.map(|path| CString::new(path.as_os_str().as_encoded_bytes())).transpose();
        let socket = socket.map_err(|error| NoMunge::Broken(error.to_string()))?;
        let munge = Self { library: loaded, socket };
        let socket = munge.context().and_then(|context| context.socket()).map_err(NoMunge::Broken)?;
        if !Path::new(&socket).exists() {
            return Err(NoMunge::Absent(format!("its service munged does not run here: there is no {socket}")));
        }
        let probe = b"oxshmem";
        let broken = |why: String| NoMunge::Broken(format!("munged at {socket}: {why}"));
        let credential = munge.seal(probe).map_err(broken)?;
        let (user, payload) = munge.open(&credential).map_err(broken)?;
        if user != this_user() || payload != probe {
            let what = format!("it says that user {user} made what this process of user {} did", this_user());
            return Err(broken(what));
        }
        Ok(munge)
    }

    fn context(&self) -> Result<Context<'_>, String> {
        let Library { create, set, .. } = self.library;
        // SAFETY: the function takes nothing.
        let context = NonNull::new(unsafe { create() }).ok_or("there is no memory for its context")?;
        let context = Context { library: &self.library, context };
        if let Some(socket) = &self.socket {
            // SAFETY: a context, and a string of C that the library copies.
            context.check("munge_ctx_set", unsafe { set(context.context.as_ptr(), sys::SOCKET, socket.as_ptr()) })?;
        }
        Ok(context)
    }
}

impl Credentials for MungeClient {
    fn seal(&self, payload: &[u8]) -> Result<Vec<u8>, String> {
        let context = self.context()?;
        let raw = context.context.as_ptr();
        // SAFETY: a context, an option, and a value of the option's type. The payload is a secret,
        // whatever cipher the service has by default.
        let status = unsafe { (self.library.set)(raw, sys::CIPHER, sys::AES128) };
        context.check("munge_ctx_set", status)?;
        // SAFETY: as above.
        let status = unsafe { (self.library.set)(raw, sys::UID_RESTRICTION, this_user()) };
        context.check("munge_ctx_set", status)?;
        let length = c_int::try_from(payload.len()).map_err(|_| format!("{} bytes are too many", payload.len()))?;
        let mut credential: *mut c_char = null_mut();
        // SAFETY: a place for the credential's address, a context, and that many bytes.
        let status = unsafe { (self.library.encode)(&raw mut credential, raw, payload.as_ptr().cast(), length) };
        let credential = Allocated(credential.cast());
        context.check("munge_encode", status)?;
        if credential.0.is_null() {
            return Err("munge_encode returned no credential".to_owned());
        }
        // SAFETY: the library returns a string of C, which lives until it is freed.
        Ok(unsafe { CStr::from_ptr(credential.0.cast::<c_char>()) }.to_bytes().to_vec())
    }

    fn open(&self, credential: &[u8]) -> Result<(u32, Vec<u8>), String> {
        let credential = CString::new(credential).map_err(|_| "it has a 0 in it".to_owned())?;
        let context = self.context()?;
        let (mut payload, mut length, mut user): (*mut c_void, _, _) = (null_mut(), 0, u32::MAX);
        // SAFETY: a string of C, a context, and places for the results; the group is not wanted.
        let status = unsafe {
            (self.library.decode)(
                credential.as_ptr(),
                context.context.as_ptr(),
                &raw mut payload,
                &raw mut length,
                &raw mut user,
                null_mut(),
            )
        };
        let payload = Allocated(payload);
        context.check("munge_decode", status)?;
        let length = usize::try_from(length).unwrap_or(0);
        if payload.0.is_null() || length == 0 {
            return Ok((user, Vec::new()));
        }
        // SAFETY: the library says that so many bytes are there, which live until they are freed.
        Ok((user, unsafe { std::slice::from_raw_parts(payload.0.cast::<u8>(), length) }.to_vec()))
    }
}

/// The library's context of one call.
struct Context<'a> {
    library: &'a Library,
    context: NonNull<sys::RawContext>,
}

impl Context<'_> {
    /// Returns the path of the service's socket.
    fn socket(&self) -> Result<String, String> {
        let mut path: *const c_char = std::ptr::null();
        // SAFETY: a context, an option, and a place for a value of the option's type.
        let status = unsafe { (self.library.get)(self.context.as_ptr(), sys::SOCKET, &raw mut path) };
        self.check("munge_ctx_get", status)?;
        if path.is_null() {
            return Err("munge_ctx_get returned no path of its socket".to_owned());
        }
        // SAFETY: a string of C, which lives as long as the context.
        Ok(unsafe { CStr::from_ptr(path) }.to_string_lossy().into_owned())
    }

    fn check(&self, call: &str, status: c_int) -> Result<(), String> {
        if status == sys::SUCCESS {
            return Ok(());
        }
        // SAFETY: a context; the text lives as long.
        let detailed = unsafe { (self.library.context_text)(self.context.as_ptr()) };
        // SAFETY: the library returns a constant for any status.
        let plain = unsafe { (self.library.error_text)(status) };
        let text = [detailed, plain].into_iter().find(|text| !text.is_null());
        // SAFETY: both are strings of C that live as long as the context.
        let text = text.map_or("no text".into(), |text| unsafe { CStr::from_ptr(text) }.to_string_lossy());
        let remedy = match status {
            sys::INVALID => "; both nodes need the same key of munge (munge.key)",
            sys::EXPIRED | sys::REWOUND => "; set the clocks of both nodes",
            _ => "",
        };
        Err(format!("{call} failed: {text} ({status}){remedy}"))
    }
}

impl Drop for Context<'_> {
    fn drop(&mut self) {
        // SAFETY: the context was created, and is not used after this.
        unsafe { (self.library.destroy)(self.context.as_ptr()) }
    }
}

/// Memory that the library allocated for this process, or none.
struct Allocated(*mut c_void);

impl Drop for Allocated {
    fn drop(&mut self) {
        // SAFETY: munge(3) has the caller free it, and it is not used after this.
        unsafe { libc::free(self.0) }
    }
}

/// Returns the user by which munge knows this process.
pub fn this_user() -> u32 {
    rustix::process::geteuid().as_raw()
}
