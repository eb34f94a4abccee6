//! The driver library, loaded once, when it is first needed.

use std::fmt;
use std::sync::OnceLock;

use super::error::Mlx5Error;
use crate::verbs::library::reason;
use crate::verbs::sys::mlx5dv::Mlx5dv;

/// Its name: the major version has been 1 since 2006.
const NAME: &str = "libmlx5.so.1";

/// The loaded library. Its functions are all there.
pub(super) struct Library {
    functions: Mlx5dv,
}

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Library").field("name", &NAME).finish_non_exhaustive()
    }
}

impl Library {
    /// Returns the library.
    pub(super) fn get() -> Result<&'static Self, Mlx5Error> {
        static LIBRARY: OnceLock<Result<Library, String>> = OnceLock::new();
        let loaded = LIBRARY.get_or_init(|| {
            // SAFETY: the library's constructors do nothing but set up the library.
            unsafe { Mlx5dv::new(NAME) }.map(|functions| Self { functions }).map_err(|error| reason(&error))
        });
        let library = loaded.as_ref().map_err(|reason| Mlx5Error::NoLibrary { reason: reason.clone() })?;
        let all = &library.functions;
        let missing = [
            ("mlx5dv_is_supported", all.mlx5dv_is_supported.is_err()),
            ("mlx5dv_open_device", all.mlx5dv_open_device.is_err()),
            ("mlx5dv_init_obj", all.mlx5dv_init_obj.is_err()),
            ("mlx5dv_devx_general_cmd", all.mlx5dv_devx_general_cmd.is_err()),
            ("mlx5dv_devx_obj_create", all.mlx5dv_devx_obj_create.is_err()),
            ("mlx5dv_devx_obj_modify", all.mlx5dv_devx_obj_modify.is_err()),
            ("mlx5dv_devx_obj_query", all.mlx5dv_devx_obj_query.is_err()),
            ("mlx5dv_devx_obj_destroy", all.mlx5dv_devx_obj_destroy.is_err()),
            ("mlx5dv_devx_umem_reg_ex", all.mlx5dv_devx_umem_reg_ex.is_err()),
            ("mlx5dv_devx_umem_dereg", all.mlx5dv_devx_umem_dereg.is_err()),
            ("mlx5dv_devx_alloc_uar", all.mlx5dv_devx_alloc_uar.is_err()),
            ("mlx5dv_devx_free_uar", all.mlx5dv_devx_free_uar.is_err()),
            ("mlx5dv_devx_query_eqn", all.mlx5dv_devx_query_eqn.is_err()),
        ];
        match missing.into_iter().find(|(_, missing)| *missing) {
            Some((function, _)) => Err(Mlx5Error::OldLibrary { function }),
            None => Ok(library),
        }
    }

    pub(super) fn functions(&self) -> &Mlx5dv {
        &self.functions
    }
}
