//! What issues operations: a PE, which waits for them, or a PE on a stream, which does not.

use crate::pe::Pe;
use crate::profile::host::{Call, Operation, Subject};
use crate::stream::{OnStream, Stream};
use crate::{Result, device};

/// Keeps the trait inside the crate.
pub(crate) mod sealed {
    use crate::pe::Pe;
    use crate::{Result, device};

    pub trait Issuer {
        /// Whether a call returns when its work has ended.
        const WAITS: bool;
        fn issuing_pe(&self) -> &Pe;
        /// Returns the stream that work is put on.
        fn issuing_stream(&self) -> Result<&device::Stream>;
        /// Waits for what was queued, if calls do.
        fn finish(&self) -> Result<()>;
    }
}

impl sealed::Issuer for Pe {
    const WAITS: bool = true;
    fn issuing_pe(&self) -> &Pe {
        self
    }
    fn issuing_stream(&self) -> Result<&device::Stream> {
        Ok(&device::Stream::OWN)
    }
    fn finish(&self) -> Result<()> {
        self.wait_own()
    }
}

impl sealed::Issuer for OnStream<'_> {
    const WAITS: bool = false;
    fn issuing_pe(&self) -> &Pe {
        self.pe
    }
    fn issuing_stream(&self) -> Result<&device::Stream> {
        Stream::check(self.stream, self.pe.id())
    }
    fn finish(&self) -> Result<()> {
        Ok(())
    }
}

/// Begins a call of the issuer for its PE's profile. It ends when what is returned is dropped.
pub(super) fn begins<I: sealed::Issuer + ?Sized>(
    issuer: &I,
    operation: Operation,
    subject: Subject,
    bytes: u64,
) -> Call<'_> {
    let profile = issuer.issuing_pe().host_profile();
    if I::WAITS { profile.begins(operation, subject, bytes) } else { profile.queues(operation, subject, bytes) }
}
