//! Sets of error counters of queue pairs (`mlx5_ifc_alloc_q_counter_*`,
//! `mlx5_ifc_query_q_counter_*`, `mlx5_ifc_dealloc_q_counter_*`).

use super::command::command;
use crate::wire::cqe::Syndrome;

command! {
    AllocQCounter, 16 => 16;
    /// ALLOC_Q_COUNTER.
    in AllocQCounter {}
    /// Its output.
    out AllocQCounterOut {
        /// Number of the set.
        counter_set_id: u8 = 0x58, 8;
    }
}

command! {
    DeallocQCounter, 16 => 16;
    /// DEALLOC_Q_COUNTER.
    in DeallocQCounter {
        /// Number of the set.
        counter_set_id: u8 = 0x58, 8;
    }
    /// Its output.
    out DeallocQCounterOut {}
}

command! {
    QueryQCounter, 32 => 256;
    /// QUERY_Q_COUNTER.
    in QueryQCounter {
        /// Whether all counters of the set begin at 0 again.
        clear: bool = 0xc0, 1;
        /// Number of the set.
        counter_set_id: u8 = 0xf8, 8;
    }
    /// Its output: how many requests of this end were ended by each error.
    out QueryQCounterOut {
        /// By [`Syndrome::LocalLength`].
        req_local_length_error: u32 = 0x3e0, 32;
        /// By [`Syndrome::LocalQpOperation`].
        local_operation_error: u32 = 0x420, 32;
        /// By [`Syndrome::LocalProtection`].
        req_local_protection: u32 = 0x460, 32;
        /// By [`Syndrome::BadResponse`].
        req_bad_response: u32 = 0x4e0, 32;
        /// By [`Syndrome::RemoteInvalidRequest`].
        req_remote_invalid_request: u32 = 0x500, 32;
        /// By [`Syndrome::RemoteAccess`].
        req_remote_access_errors: u32 = 0x540, 32;
        /// By [`Syndrome::RemoteOperation`].
        req_remote_operation_errors: u32 = 0x580, 32;
        /// By [`Syndrome::RetryExceeded`].
        req_transport_retries_exceeded: u32 = 0x5a0, 32;
        /// By [`Syndrome::WrFlush`].
        req_cqe_flush_error: u32 = 0x600, 32;
    }
}

impl QueryQCounterOut {
    /// Returns the counter of a syndrome; `None` if there is none.
    pub fn counter(&mut self, syndrome: Syndrome) -> Option<&mut u32> {
        Some(match syndrome {
            Syndrome::LocalLength => &mut self.req_local_length_error,
            Syndrome::LocalQpOperation => &mut self.local_operation_error,
            Syndrome::LocalProtection => &mut self.req_local_protection,
            Syndrome::BadResponse => &mut self.req_bad_response,
            Syndrome::RemoteInvalidRequest => &mut self.req_remote_invalid_request,
            Syndrome::RemoteAccess => &mut self.req_remote_access_errors,
            Syndrome::RemoteOperation => &mut self.req_remote_operation_errors,
            Syndrome::RetryExceeded => &mut self.req_transport_retries_exceeded,
            Syndrome::WrFlush => &mut self.req_cqe_flush_error,
            _ => return None,
        })
    }

    /// Returns what ended requests and how often, without those that were flushed because of
    /// another.
    pub fn errors(mut self) -> Vec<(Syndrome, u32)> {
        const FIRST: [Syndrome; 8] = [
            Syndrome::LocalLength,
            Syndrome::LocalQpOperation,
            Syndrome::LocalProtection,
            Syndrome::BadResponse,
            Syndrome::RemoteInvalidRequest,
            Syndrome::RemoteAccess,
            Syndrome::RemoteOperation,
            Syndrome::RetryExceeded,
        ];
        let counts = FIRST.map(|syndrome| (syndrome, self.counter(syndrome).map_or(0, |count| *count)));
        counts.into_iter().filter(|(_, count)| *count != 0).collect()
    }
}
