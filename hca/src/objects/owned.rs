//! What an object owns on the HCA, and the commands that create, change and destroy it.

use crate::error::Result;
use crate::prm::Command;
use crate::provider::{ObjectHandle, Provider};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Destroys something once.
#[derive(Debug)]
pub(super) struct Guard {
    pub(super) provider: Arc<dyn Provider>,
    pub(super) what: Owned,
    open: AtomicBool,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Owned {
    Object(ObjectHandle),
    Uar(u32),
    Umem(u32),
    Key(u64),
}

impl Guard {
    pub(super) fn new(provider: &Arc<dyn Provider>, what: Owned) -> Self {
        Self { provider: Arc::clone(provider), what, open: AtomicBool::new(true) }
    }

    pub(super) fn close(&self) -> Result<()> {
        if !self.open.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        let result = match self.what {
            Owned::Object(handle) => self.provider.obj_destroy(handle),
            Owned::Uar(page) => self.provider.free_uar(page),
            Owned::Umem(id) => self.provider.dereg_umem(id),
            Owned::Key(id) => self.provider.dereg_key(id),
        };
        if result.is_err() {
            // Still there, so a later attempt may succeed.
            self.open.store(true, Ordering::Release);
        }
        result
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Err(error) = self.close() {
            tracing::warn!(what = ?self.what, %error, "an HCA object could not be destroyed");
        }
    }
}

pub(super) fn create<C: Command>(provider: &Arc<dyn Provider>, command: &C) -> Result<(Guard, C::Output)> {
    let mut output = vec![0; C::OUT_LEN];
    let handle = provider.obj_create(&command.encode(), &mut output)?;
    Ok((Guard::new(provider, Owned::Object(handle)), C::decode_output(&output)))
}

pub(super) fn modify<C: Command>(guard: &Guard, command: &C) -> Result<()> {
    let Owned::Object(handle) = guard.what else { return Ok(()) };
    guard.provider.obj_modify(handle, &command.encode(), &mut vec![0; C::OUT_LEN])
}
