//! `OXSHMEM_CHECK=calls`: collective calls of the host meet at the rendezvous first, where calls
//! that differ are an error at once. Without it a PE that calls something else is found by members
//! of the same team in the same kind of call; others wait for their deadline.

use crate::Result;
use crate::pe::Pe;

impl Pe {
    /// Makes sure that all PEs make the same call, if that is checked. Collective then.
    ///
    /// # Errors
    /// A PE calls something else: both calls are named.
    pub(crate) fn check_call(&self, what: impl FnOnce() -> String) -> Result<()> {
        if self.config().checks().calls { self.agree("a collective call", &what()) } else { Ok(()) }
    }
}
