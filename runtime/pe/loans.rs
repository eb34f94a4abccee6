//! Loans of symmetric memory to other libraries, whose work on it the PE does not see.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::heap::allocation::Allocation;
use crate::heap::error::HeapError;

/// How often each allocation is lent now, by its offset, for all that were ever lent.
#[derive(Debug, Default)]
pub(crate) struct Loans(RefCell<HashMap<u64, Arc<AtomicUsize>>>);

/// A loan of one allocation, which ends when it is dropped.
#[cfg(feature = "cudarc")]
#[derive(Debug)]
pub(crate) struct Loan(Arc<AtomicUsize>);

#[cfg(feature = "cudarc")]
impl Drop for Loan {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}

impl Loans {
    /// Notes that a part of `allocation` is lent.
    #[cfg(feature = "cudarc")]
    pub(crate) fn lend(&self, allocation: &Allocation) -> Loan {
        let mut loans = self.0.borrow_mut();
        let count = loans.entry(allocation.offset()).or_default();
        count.fetch_add(1, Ordering::Relaxed);
        Loan(Arc::clone(count))
    }

    /// Returns whether no live allocation was ever lent.
    pub(super) fn is_empty(&self) -> bool {
        self.0.borrow().is_empty()
    }

    /// Returns whether `allocation` was ever lent.
    ///
    /// # Errors
    /// It still is.
    pub(super) fn ended(&self, allocation: &Allocation) -> Result<bool, HeapError> {
        match self.0.borrow().get(&allocation.offset()) {
            None => Ok(false),
            Some(count) if count.load(Ordering::Acquire) == 0 => Ok(true),
            Some(_) => Err(HeapError::Lent { allocation: allocation.info() }),
        }
    }

    /// Forgets the loans of an allocation that is freed.
    pub(super) fn forget(&self, allocation: &Allocation) {
        self.0.borrow_mut().remove(&allocation.offset());
    }
}
