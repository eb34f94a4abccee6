//! Protection domains.

use super::owned::{Guard, create};
use crate::error::Result;
use crate::prm::pd;
use crate::provider::Provider;
use std::sync::Arc;

/// A protection domain.
#[derive(Debug)]
pub struct Pd {
    guard: Guard,
    pdn: u32,
}

impl Pd {
    /// Allocates one (ALLOC_PD).
    pub fn alloc(provider: &Arc<dyn Provider>) -> Result<Arc<Self>> {
        let (guard, out) = create(provider, &pd::AllocPd {})?;
        Ok(Arc::new(Self { guard, pdn: out.pd }))
    }

    /// Returns its number.
    pub fn pdn(&self) -> u32 {
        self.pdn
    }

    /// Returns the HCA it belongs to.
    pub fn provider(&self) -> &Arc<dyn Provider> {
        &self.guard.provider
    }

    /// Frees it now. Fails while keys and QPs use it.
    pub fn close(&self) -> Result<()> {
        self.guard.close()
    }
}
