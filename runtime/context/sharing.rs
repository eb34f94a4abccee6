//! The threads that contexts are for.

use std::fmt;

use crate::abi;

/// The threads that a context is for.
///
/// ```
/// assert_eq!(oxshmem::Sharing::Warp.to_string(), "warp");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Sharing {
    /// One thread at a time. Each of its posts is a work request of its own.
    Thread,
    /// The lanes of one warp at a time. Whole warps that call together share work requests and
    /// doorbells.
    Warp,
    /// The threads of one block at a time. Calls of the block scope need no lock, those of single
    /// threads take turns.
    Block,
    /// Any threads at any time, as they use the default context.
    Device,
}

impl Sharing {
    /// Returns the bits of `abi::Context::how`.
    pub(super) fn how(self) -> u32 {
        match self {
            Self::Thread => abi::CONTEXT_PRIVATE | abi::CONTEXT_ALONE,
            Self::Warp => abi::CONTEXT_PRIVATE | abi::CONTEXT_WARP,
            Self::Block => abi::CONTEXT_PRIVATE,
            Self::Device => 0,
        }
    }
}

impl fmt::Display for Sharing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Thread => "thread",
            Self::Warp => "warp",
            Self::Block => "block",
            Self::Device => "device",
        })
    }
}
