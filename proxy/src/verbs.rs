//! Work requests carried by a device of the kernel's verbs.

use std::collections::HashMap;
use std::sync::Arc;

use oxshmem_hca::verbs::{
    Atomicity, CompletionQueue, Port, QueuePair, Segment, SendChain, SendOperation, SendRequest, Target,
    WorkCompletion, WorkStatus,
};

use crate::work::{
    Atomic, Backend, Capabilities, Completion, Failure, LEAST_INLINE_BYTES, Local, Operation, PollError, PostError,
    Remote, Status, Transfer, Width, WorkRequest,
};

/// Connected queue pairs of one port, whose completions go to one queue.
#[derive(Debug)]
pub struct VerbsBackend {
    queue_pairs: Vec<QueuePair>,
    completions: Arc<CompletionQueue>,
    by_number: HashMap<u32, u32>,
    device: String,
    capabilities: Capabilities,
    chain: SendChain,
    batch: Vec<WorkCompletion>,
    failures: HashMap<u32, String>,
    /// By queue pair.
    progress: Vec<Progress>,
}

/// Ids of a queue pair's requests, plus one.
#[derive(Debug, Clone, Copy, Default)]
struct Progress {
    /// The last read or atomic that was posted.
    fetch: u64,
    /// The last that is known to have been done.
    done: u64,
    /// The last read or atomic before a fence that no write has come after.
    owed: u64,
}

impl Progress {
    /// Takes in the next request, and returns whether it is posted with a fence. A responder takes
    /// requests in their order; what needs a fence is a write, which may pass the reads and atomics
    /// before it. So the first write after a fence has it, if any of them may be under way. An
    /// atomic must not have one where it is not needed: rdma_rxe, when it has to send a fenced
    /// atomic again, waits for that atomic itself, forever (its test for the fence counts the one
    /// that is being repeated).
    fn next(&mut self, request: &WorkRequest) -> bool {
        if request.fence {
            self.owed = self.fetch;
        }
        if !request.operation.is_write() {
            self.fetch = request.id + 1;
            return false;
        }
        std::mem::take(&mut self.owed) > self.done
    }
}

impl VerbsBackend {
    /// Takes connected queue pairs, by dense index, that were made for `send_depth` work requests
    /// each on `port`.
    #[must_use]
    pub fn new(port: &Port, queue_pairs: Vec<QueuePair>, completions: Arc<CompletionQueue>, send_depth: u32) -> Self {
        let by_number = (0..).zip(&queue_pairs).map(|(index, qp)| (qp.qpn(), index)).collect();
        let inline_bytes = queue_pairs.iter().map(QueuePair::inline_bytes).min().unwrap_or(LEAST_INLINE_BYTES);
        let progress = vec![Progress::default(); queue_pairs.len()];
        let capabilities = Capabilities {
            inline_bytes,
            // Verbs have atomics of eight bytes without masks only.
            width_four: false,
            masked: false,
            four_is_big_endian: false,
            atomics_coherent_with_cpu: port.context.limits().atomicity == Atomicity::Global,
            send_depth,
            max_message: port.max_message,
        };
        Self {
            queue_pairs,
            completions,
            by_number,
            device: port.context.name().to_owned(),
            capabilities,
            chain: SendChain::default(),
            batch: Vec::new(),
            failures: HashMap::new(),
            progress,
        }
    }

    fn refusal(&self, qp: u32, requests: usize, reason: String) -> PostError {
        PostError { qp: format!("queue pair {qp} of {}", self.device), requests, reason }
    }
}

fn segment(local: Local) -> Segment {
    Segment { address: local.address, length: local.length, key: local.key }
}

fn target(remote: Remote) -> Target {
    Target { address: remote.address, key: remote.key }
}

/// Returns the verbs' form of an operation; nothing for one that [`Capabilities`] excludes.
fn operation(operation: &Operation) -> Option<SendOperation<'_>> {
    Some(match operation {
        Operation::Transfer(Transfer::Write { source, target: to }) => {
            SendOperation::Write(segment(*source), target(*to))
        }
        Operation::Transfer(Transfer::WriteInline { payload, target: to }) => {
            SendOperation::WriteInline(payload.as_slice(), target(*to))
        }
        Operation::Transfer(Transfer::Read { target: into, source }) => {
            SendOperation::Read(segment(*into), target(*source))
        }
        Operation::Atomic { operands, width, .. } if *width != Width::Eight || operands.is_masked(*width) => {
            return None;
        }
        Operation::Atomic { operands, result, target: to, .. } => {
            let (result, target) = (segment(*result), target(*to));
            match *operands {
                Atomic::Add { value, .. } => SendOperation::FetchAdd { add: value, result, target },
                Atomic::CompareSwap { compare, swap, .. } => {
                    SendOperation::CompareSwap { compare, swap, result, target }
                }
            }
        }
    })
}

/// Returns `enum ibv_wc_status` as the syndrome of an mlx5 error CQE (`MLX5_CQE_SYNDROME_*`), as
/// rdma-core's mlx5 driver translates, backwards; a status that no mlx5 syndrome stands for is 0,
/// and the explanation says what it was.
fn syndrome(status: u32) -> u32 {
    match status {
        1 => 0x01,  // local length
        2 => 0x02,  // local QP operation
        4 => 0x04,  // local protection
        5 => 0x05,  // flushed
        6 => 0x06,  // memory window bind
        7 => 0x10,  // bad response
        8 => 0x11,  // local access
        9 => 0x12,  // remote invalid request
        10 => 0x13, // remote access
        11 => 0x14, // remote operation
        12 => 0x15, // transport retries exceeded
        13 => 0x16, // receiver-not-ready retries exceeded
        16 => 0x22, // remote aborted
        _ => 0,
    }
}

/// `IBV_WC_WR_FLUSH_ERR`.
const FLUSHED: u32 = 5;

impl Backend for VerbsBackend {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn post(&mut self, qp: u32, requests: &[WorkRequest]) -> Result<(), PostError> {
        self.chain.clear();
        for request in requests {
            let Some(operation) = operation(&request.operation) else {
                let reason = format!("{:?} is none of its operations", request.operation);
                return Err(self.refusal(qp, requests.len(), reason));
            };
            let WorkRequest { id, signaled, fence, .. } = *request;
            let fence = self.progress.get_mut(qp as usize).map_or(fence, |progress| progress.next(request));
            self.chain.push(&SendRequest { id, operation, signaled, fence });
        }
        let posted = match self.queue_pairs.get(qp as usize) {
            Some(queue_pair) => queue_pair.post(&mut self.chain).map_err(|error| error.to_string()),
            None => Err(format!("there are {} queue pairs", self.queue_pairs.len())),
        };
        posted.map_err(|reason| self.refusal(qp, requests.len(), reason))
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) -> Result<(), PollError> {
        self.batch.clear();
        self.completions.poll(&mut self.batch).map_err(|error| PollError { reason: error.to_string() })?;
        for done in &self.batch {
            // The queue serves no others.
            let Some(&qp) = self.by_number.get(&done.qpn) else { continue };
            let status = match done.status {
                WorkStatus::Success => {
                    self.progress[qp as usize].done = done.id + 1;
                    Status::Success
                }
                WorkStatus::Failed { code, vendor } => {
                    let what = if code == FLUSHED { Failure::Flushed } else { Failure::Error };
                    let text = self.queue_pairs[qp as usize].status_text(code);
                    // What follows is flushed; the first says why.
                    self.failures.entry(qp).or_insert_with(|| {
                        format!("{}: {text} (verbs status {code}, vendor {vendor:#x})", self.device)
                    });
                    Status::Failed { what, syndrome: syndrome(code), vendor }
                }
            };
            completions.push(Completion { qp, id: done.id, status });
        }
        Ok(())
    }

    fn explain(&self, qp: u32) -> Option<String> {
        self.failures.get(&qp).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::work::{PAYLOAD_BYTES, Payload};

    #[test]
    fn what_capabilities_exclude_has_no_form() {
        let (local, remote) = (Local { address: 8, length: 8, key: 1 }, Remote { address: 16, key: 2 });
        let add = |width, boundary| Operation::Atomic {
            operands: Atomic::Add { value: 1, boundary },
            width,
            result: local,
            target: remote,
        };
        let expected =
            SendOperation::FetchAdd { add: 1, result: segment(local), target: Target { address: 16, key: 2 } };
        assert_eq!(operation(&add(Width::Eight, 0)), Some(expected));
        assert_eq!(operation(&add(Width::Four, 0)), None);
        assert_eq!(operation(&add(Width::Eight, 1)), None);
        let payload = Payload::new([7; PAYLOAD_BYTES], 3);
        let inline = Operation::Transfer(Transfer::WriteInline { payload, target: remote });
        assert_eq!(operation(&inline), Some(SendOperation::WriteInline(&[7; 3], Target { address: 16, key: 2 })));
    }

    /// A write may pass the reads and atomics before a fence as long as they are under way,
    /// whatever else was posted after it.
    #[test]
    fn the_first_write_after_a_fence_carries_it() {
        let (near, far) = (Local { address: 8, length: 8, key: 1 }, Remote { address: 16, key: 2 });
        let write = Operation::Transfer(Transfer::Write { source: near, target: far });
        let operands = Atomic::Add { value: 1, boundary: 0 };
        let add = Operation::Atomic { operands, width: Width::Eight, result: near, target: far };
        let posted = [(add, false), (add, true), (write, false), (write, false), (add, false), (write, true)];
        let fenced = |done: u64| -> Vec<u64> {
            let mut progress = Progress { done, ..Progress::default() };
            let requests =
                (0..).zip(posted).map(|(id, (operation, fence))| WorkRequest { id, operation, signaled: true, fence });
            requests.filter(|request| progress.next(request)).map(|request| request.id).collect()
        };
        assert_eq!(fenced(0), [2, 5]);
        assert_eq!(fenced(1), [5], "the atomic before the first fence is done");
        assert_eq!(fenced(5), [0u64; 0]);
    }

    #[test]
    fn every_status_of_rc_has_a_syndrome_of_its_own() {
        let statuses = [1, 2, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 16];
        let mut syndromes: Vec<_> = statuses.map(syndrome).to_vec();
        syndromes.sort_unstable();
        syndromes.dedup();
        assert_eq!(syndromes.len(), statuses.len());
        assert_eq!((syndrome(FLUSHED), syndrome(12), syndrome(99)), (5, 0x15, 0));
    }
}
