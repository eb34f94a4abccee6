//! Types of other parts of the runtime as types of variables.

use oxshmem_hca::topology::{DeviceChoice, MAX_CARDS};

use super::value::Value;
use std::path::PathBuf;

use crate::bootstrap::job::{JobId, Rendezvous};
use crate::team::choice::Collectives;

// The form says how many.
const _: () = assert!(MAX_CARDS == 4);

impl Value for DeviceChoice {
    const FORM: &'static str = "a list like `mlx5_0,mlx5_3/2` (device, or device and port), one of devices to leave out like `^mlx5_1`, or a mapping like \
        `0=mlx5_0,0000:1b:00.0=mlx5_1/1+mlx5_2` with up to 4 devices for each";
    fn parse(text: &str) -> Option<Self> {
        text.parse().ok()
    }
    fn show(&self) -> String {
        self.to_string()
    }
}

impl Value for Collectives {
    const FORM: &'static str = "a list like `fcollect=push,broadcast=packets:4K/tree`: collectives `broadcast`, `collect`, `fcollect`, \
        `alltoall`, `alltoalls`, `reduce`, `reducescatter`; algorithms `packets`, `push`, `levels`, for `broadcast` and `reduce` `tree` and `relay`, for `reduce` `oneshot`, and for `broadcast`, `fcollect` and `alltoall` `copy`, and `library`, with \
        ascending sizes of which the last may be missing";
    fn parse(text: &str) -> Option<Self> {
        text.parse().ok()
    }
    fn show(&self) -> String {
        self.to_string()
    }
}

impl Value for Rendezvous {
    const FORM: &'static str = "`host:port`, or several separated by commas, tried in turn";
    fn parse(text: &str) -> Option<Self> {
        text.parse().ok()
    }
    fn show(&self) -> String {
        self.to_string()
    }
}

impl Value for PathBuf {
    const FORM: &'static str = "a path";
    fn parse(text: &str) -> Option<Self> {
        (!text.is_empty()).then(|| Self::from(text))
    }
    fn show(&self) -> String {
        self.display().to_string()
    }
}

impl Value for JobId {
    const FORM: &'static str = "32 hexadecimal digits";
    fn parse(text: &str) -> Option<Self> {
        text.parse().ok()
    }
    fn show(&self) -> String {
        self.to_string()
    }
}
