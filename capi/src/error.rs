//! Errors as C sees them: a status, and a text per thread.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CString, c_char};

use api::{Error, HeapError};

use crate::stage::{self, Stage};

/// `oxshmem_status`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub(crate) enum Status {
    Success = 0,
    Invalid = 1,
    NotInitialized = 2,
    Config = 3,
    JobFailed = 4,
    Device = 5,
    Fault = 6,
    Heap = 7,
    Transport = 8,
    Internal = 9,
    Team = 10,
    Context = 11,
}

/// A call that failed.
#[derive(Debug)]
pub(crate) struct Failure {
    status: Status,
    text: String,
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::new(CString::default());
}

/// Returns the text of the last call of this thread that failed.
pub(crate) fn last() -> *const c_char {
    // A thread that is ending has no text any more.
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

impl Failure {
    pub fn invalid(text: String) -> Self {
        Self { status: Status::Invalid, text }
    }

    pub fn no_pe() -> Self {
        if stage::stage() == Stage::Joined {
            return Self::no_pe_because("the PE has joined the job and has no device yet: call oxshmem_open first");
        }
        Self::no_pe_because("there is no PE: call oxshmem_init first, and nothing after oxshmem_finalize")
    }

    pub fn no_pe_because(text: &str) -> Self {
        Self { status: Status::NotInitialized, text: text.into() }
    }

    pub fn internal(text: String) -> Self {
        Self { status: Status::Internal, text: format!("internal error: {text}") }
    }

    pub fn panic(panic: &(dyn Any + Send)) -> Self {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        Self::internal(text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "panic".into()))
    }

    pub fn text(&self) -> &str {
        &self.text
    }

    /// Keeps the text for `oxshmem_error`.
    pub fn keep(self) -> Status {
        let text = CString::new(self.text.replace('\0', " ")).unwrap_or_default();
        let _ = LAST.try_with(|last| *last.borrow_mut() = text);
        self.status
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let status = match &error {
            Error::Config(_) | Error::Mismatch { .. } => Status::Config,
            Error::Bootstrap(_) => Status::JobFailed,
            Error::Device(_) => Status::Device,
            Error::Fault(_) => Status::Fault,
            Error::Heap(
                HeapError::Strided { .. }
                | HeapError::Word { .. }
                | HeapError::Misaligned { .. }
                | HeapError::Alignment { .. },
            ) => Status::Invalid,
            Error::Heap(_) => Status::Heap,
            Error::Hca(_) | Error::Transport(_) => Status::Transport,
            Error::Team(_) => Status::Team,
            Error::Context(_) | Error::Aggregate(_) => Status::Context,
            Error::Occupied | Error::Buffer(_) => Status::Invalid,
            _ => Status::Internal,
        };
        Self { status, text: error.to_string() }
    }
}
