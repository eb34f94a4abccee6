//! Memory orders and scopes, as modules pass them.

pub(super) const RELAXED: u32 = 0;
pub(super) const ACQUIRE: u32 = 1;
pub(super) const RELEASE: u32 = 2;
pub(super) const SYSTEM: u32 = 2;
