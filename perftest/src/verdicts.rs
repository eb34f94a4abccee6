//! How PE 0 learns that a PE has found wrong data, and how the job ends then.

use oxshmem::{Operations, Pe, SymmetricSlice};

use crate::error::Error;

/// Where each PE tells PE 0 what its check came to.
#[derive(Debug)]
pub struct Verdicts<'a> {
    pe: &'a Pe,
    /// Entry k, at PE 0: whether PE k found wrong data.
    wrong: SymmetricSlice<u64>,
}

impl<'a> Verdicts<'a> {
    /// Creates the verdicts. Collective.
    ///
    /// # Errors
    /// No memory.
    pub fn new(pe: &'a Pe) -> Result<Self, Error> {
        Ok(Self { pe, wrong: pe.alloc(pe.n_pes())? })
    }

    /// Gives the memory back. Collective.
    ///
    /// # Errors
    /// The job has failed.
    pub fn close(self) -> Result<(), Error> {
        Ok(self.pe.free(self.wrong)?)
    }

    /// Tells PE 0 what this PE's check came to. The answer is the wrong data that this PE has
    /// found; at PE 0, where only others have found some, the first of them. Collective.
    ///
    /// # Errors
    /// The job has failed, or the check has, for another reason than wrong data.
    pub fn gather(&self, checked: Result<(), Error>) -> Result<Option<Error>, Error> {
        let found = wrong_data(checked)?;
        let (pe, me) = (self.pe, self.pe.my_pe());
        pe.put(self.wrong.view(me..), &[u64::from(found.is_some())], 0)?;
        pe.barrier_all()?;
        if me != 0 {
            return Ok(found);
        }
        let first = pe.read(self.wrong.view(..pe.n_pes()))?.iter().position(|wrong| *wrong != 0);
        Ok(found.or(first.map(Error::MismatchElsewhere)))
    }
}

/// Returns the wrong data that a check has found.
///
/// # Errors
/// Any other error of the check.
pub fn wrong_data(checked: Result<(), Error>) -> Result<Option<Error>, Error> {
    match checked {
        Ok(()) => Ok(None),
        Err(wrong @ Error::Mismatch(_)) => Ok(Some(wrong)),
        Err(error) => Err(error),
    }
}

/// Goes on where no PE has found wrong data; `wrong` is what [`Verdicts::gather`] has answered. By
/// now PE 0 has shown what was measured. Where several PEs have found some, the first to leave ends
/// the barrier of the others. Collective.
///
/// # Errors
/// `wrong`, or the job has failed.
pub fn end_if_wrong(pe: &Pe, wrong: Option<Error>) -> Result<(), Error> {
    let together = pe.barrier_all();
    wrong.map_or(Ok(()), Err)?;
    Ok(together?)
}
