//! The verbs library, loaded once, when it is first needed.

use std::error::Error as _;
use std::ffi::CStr;
use std::fmt;
use std::sync::OnceLock;

use super::error::{Result, VerbsError};
use super::sys::{Ibverbs, ibv_wc_status};

/// Its name: the major version has been 1 since 2006.
const NAME: &str = "libibverbs.so.1";

/// The loaded library.
pub(crate) struct Library {
    functions: Ibverbs,
}

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Library").field("name", &NAME).finish_non_exhaustive()
    }
}

/// Returns why a library cannot be loaded: what the loader itself says.
pub(crate) fn reason(error: &libloading::Error) -> String {
    error.source().map_or_else(|| error.to_string(), ToString::to_string)
}

/// Has the library keep registered memory with this process when the program forks, also by
/// `system` or `popen`: kernels before 5.12 give the pages that a card knows to the process that
/// writes first. On newer ones the library finds that there is nothing to do. It is too late once
/// memory is registered.
fn keep_across_fork(functions: &Ibverbs) {
    if functions.ibv_fork_init.is_err() {
        return;
    }
    // SAFETY: it takes nothing, and may be called at any time.
    match unsafe { functions.ibv_fork_init() } {
        0 => {}
        // Another library of the process has registered memory before, for one.
        errno => {
            let error = std::io::Error::from_raw_os_error(errno.abs());
            tracing::debug!(%error, "a program that forks may lose what cards write (ibv_fork_init)");
        }
    }
}

impl Library {
    /// Returns the library, with every function that [`functions`](Self::functions) callers use
    /// without asking.
    pub(crate) fn get() -> Result<&'static Self> {
        static LIBRARY: OnceLock<std::result::Result<Library, String>> = OnceLock::new();
        let loaded = LIBRARY.get_or_init(|| {
            // SAFETY: the library's constructors do nothing but set up the library.
            let functions = unsafe { Ibverbs::new(NAME) }.map_err(|error| reason(&error))?;
            keep_across_fork(&functions);
            Ok(Self { functions })
        });
        let library = loaded.as_ref().map_err(|reason| VerbsError::NoLibrary { reason: reason.clone() })?;
        let all = &library.functions;
        let missing = [
            ("ibv_get_device_list", all.ibv_get_device_list.is_err()),
            ("ibv_free_device_list", all.ibv_free_device_list.is_err()),
            ("ibv_get_device_name", all.ibv_get_device_name.is_err()),
            ("ibv_open_device", all.ibv_open_device.is_err()),
            ("ibv_close_device", all.ibv_close_device.is_err()),
            ("ibv_query_device", all.ibv_query_device.is_err()),
            ("ibv_query_port", all.ibv_query_port.is_err()),
            ("ibv_query_pkey", all.ibv_query_pkey.is_err()),
            ("_ibv_query_gid_ex", all._ibv_query_gid_ex.is_err()),
            ("ibv_alloc_pd", all.ibv_alloc_pd.is_err()),
            ("ibv_dealloc_pd", all.ibv_dealloc_pd.is_err()),
            ("ibv_reg_mr_iova2", all.ibv_reg_mr_iova2.is_err()),
            ("ibv_dereg_mr", all.ibv_dereg_mr.is_err()),
            ("ibv_create_cq", all.ibv_create_cq.is_err()),
            ("ibv_destroy_cq", all.ibv_destroy_cq.is_err()),
            ("ibv_create_qp", all.ibv_create_qp.is_err()),
            ("ibv_modify_qp", all.ibv_modify_qp.is_err()),
            ("ibv_query_qp", all.ibv_query_qp.is_err()),
            ("ibv_destroy_qp", all.ibv_destroy_qp.is_err()),
            ("ibv_wc_status_str", all.ibv_wc_status_str.is_err()),
        ];
        match missing.into_iter().find(|(_, missing)| *missing) {
            Some((function, _)) => Err(VerbsError::OldLibrary { function }),
            None => Ok(library),
        }
    }

    /// Returns its functions. Those that [`get`](Self::get) does not check may be absent.
    pub(crate) fn functions(&self) -> &Ibverbs {
        &self.functions
    }

    /// Returns what a completion's status means.
    pub(crate) fn status_text(&self, status: ibv_wc_status) -> &'static str {
        // SAFETY: any number may be asked about; the answer is a constant.
        let text = unsafe { CStr::from_ptr(self.functions.ibv_wc_status_str(status)) };
        text.to_str().unwrap_or("a status without a name")
    }
}
