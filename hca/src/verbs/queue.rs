//! Completion queues and RC queue pairs.

use std::io;
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use super::context::{Context, Port};
use super::error::{PostError, Result, VerbsError};
use super::memory::ProtectionDomain;
use super::path::{self, flow_label};
use super::sys;
use super::work::SendChain;
use crate::address::{QpAddress, QpAttributes};
use crate::port::LinkLayer;
use crate::provider::Access;
use crate::resolving::until_resolved;
use crate::route::route;
use crate::route::udp_source_port;
use oxshmem_system::words::{const32, low8};

/// How a work request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkStatus {
    /// Done.
    Success,
    /// Not done.
    Failed {
        /// `enum ibv_wc_status`.
        code: u32,
        /// What the vendor says about it.
        vendor: u32,
    },
}

/// A completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkCompletion {
    /// The work request's id.
    pub id: u64,
    /// Number of the queue pair.
    pub qpn: u32,
    /// How it ended.
    pub status: WorkStatus,
}

/// Retries of a queue pair. The field's largest value, 7, is a number like the others in the
/// InfiniBand specification, but rdma_rxe takes it for "without end" (its completer never counts
/// down from 7), and then a peer that is gone would never be reported.
const MOST_RETRIES: u8 = 6;

/// Completions that one poll fetches at most.
const BATCH: usize = 32;

/// A completion queue.
#[derive(Debug)]
pub struct CompletionQueue {
    context: Arc<Context>,
    raw: NonNull<sys::ibv_cq>,
}

// SAFETY: as for `Context`.
unsafe impl Send for CompletionQueue {}
// SAFETY: as for `Context`.
unsafe impl Sync for CompletionQueue {}

impl CompletionQueue {
    /// Creates one with room for `entries` completions.
    ///
    /// # Errors
    /// More than the device has.
    pub fn new(context: &Arc<Context>, entries: u32) -> Result<Arc<Self>> {
        let most = context.limits().cq_depth;
        let Some(count) = i32::try_from(entries).ok().filter(|_| entries <= most) else {
            let what = format!(
                "has completion queues of at most {most} entries, {entries} are needed; lower OXSHMEM_QP_DEPTH or OXSHMEM_QPS_PER_PEER"
            );
            return Err(VerbsError::Unsupported { device: context.name().to_owned(), what });
        };
        // SAFETY: the context is alive; no channel, vector 0, which every device has.
        let raw = unsafe {
            context.library().functions().ibv_create_cq(context.raw(), count, ptr::null_mut(), ptr::null_mut(), 0)
        };
        let raw = context.check_pointer("ibv_create_cq", raw)?;
        Ok(Arc::new(Self { context: Arc::clone(context), raw }))
    }

    /// Appends completions that have arrived, at most 32, and says how many.
    ///
    /// # Errors
    /// The device is gone.
    pub fn poll(&self, completions: &mut Vec<WorkCompletion>) -> Result<usize> {
        let mut batch = [const { MaybeUninit::<sys::ibv_wc>::uninit() }; BATCH];
        // SAFETY: the queue is alive, and the batch has that room.
        let count = unsafe {
            sys::ibv_poll_cq(self.raw.as_ptr(), const { const32(BATCH).cast_signed() }, batch.as_mut_ptr().cast())
        };
        let Ok(count) = usize::try_from(count) else {
            return Err(VerbsError::call("ibv_poll_cq", self.context.name(), io::Error::last_os_error()));
        };
        completions.extend(batch[..count].iter().map(|wc| {
            // SAFETY: that many were written. Only these fields of a failed request are valid.
            let wc = unsafe { wc.assume_init_ref() };
            let status = match wc.status {
                sys::IBV_WC_SUCCESS => WorkStatus::Success,
                code => WorkStatus::Failed { code, vendor: wc.vendor_err },
            };
            WorkCompletion { id: wc.wr_id, qpn: wc.qp_num, status }
        }));
        Ok(count)
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        // SAFETY: queue pairs hold an `Arc` of it, so none is left.
        let status = unsafe { self.context.library().functions().ibv_destroy_cq(self.raw.as_ptr()) };
        if let Err(error) = self.context.check("ibv_destroy_cq", status) {
            tracing::warn!(%error, "a completion queue could not be destroyed");
        }
    }
}

/// What a queue pair is made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueuePairSize {
    /// Work requests that may be outstanding.
    pub sends: u32,
    /// Bytes that a work request carries inside.
    pub inline_bytes: u32,
}

/// A reliably connected queue pair.
#[derive(Debug)]
pub struct QueuePair {
    raw: NonNull<sys::ibv_qp>,
    port: Port,
    inline_bytes: u32,
    _domain: Arc<ProtectionDomain>,
    _completions: Arc<CompletionQueue>,
}

// SAFETY: as for `Context`.
unsafe impl Send for QueuePair {}
// SAFETY: as for `Context`.
unsafe impl Sync for QueuePair {}

impl QueuePair {
    /// Creates one on a port; all its completions go to one queue.
    ///
    /// # Errors
    /// More than the device has.
    pub fn new(
        domain: &Arc<ProtectionDomain>,
        completions: &Arc<CompletionQueue>,
        port: &Port,
        size: QueuePairSize,
    ) -> Result<Self> {
        let context = domain.context();
        let most = context.limits().queue_depth;
        if size.sends > most {
            let what = format!(
                "has queues of at most {most} work requests, {} are needed; lower OXSHMEM_QP_DEPTH",
                size.sends
            );
            return Err(VerbsError::Unsupported { device: context.name().to_owned(), what });
        }
        let mut attributes = sys::ibv_qp_init_attr {
            qp_context: ptr::null_mut(),
            send_cq: completions.raw.as_ptr(),
            recv_cq: completions.raw.as_ptr(),
            srq: ptr::null_mut(),
            cap: sys::ibv_qp_cap {
                max_send_wr: size.sends,
                // What peers do needs none of this side's work requests.
                max_recv_wr: 0,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: size.inline_bytes,
            },
            qp_type: sys::IBV_QPT_RC,
            sq_sig_all: 0,
        };
        // SAFETY: domain and completion queue are alive.
        let raw = unsafe { context.library().functions().ibv_create_qp(domain.raw(), &raw mut attributes) };
        let raw = context.check_pointer("ibv_create_qp", raw).map_err(|error| {
            error.hint(format!(
                "{} work requests of {} inline bytes were requested; lower OXSHMEM_QP_DEPTH or OXSHMEM_QPS_PER_PEER",
                size.sends, size.inline_bytes
            ))
        })?;
        Ok(Self {
            raw,
            port: port.clone(),
            inline_bytes: attributes.cap.max_inline_data,
            _domain: Arc::clone(domain),
            _completions: Arc::clone(completions),
        })
    }

    /// Returns its number.
    #[must_use]
    pub fn qpn(&self) -> u32 {
        // SAFETY: it is alive.
        unsafe { self.raw.as_ref().qp_num }
    }

    /// Returns how many bytes a work request can carry inside: at least the requested number.
    #[must_use]
    pub fn inline_bytes(&self) -> u32 {
        self.inline_bytes
    }

    /// Returns what the peer needs to know to connect to it.
    #[must_use]
    pub fn address(&self) -> QpAddress {
        let info = &self.port.info;
        QpAddress {
            qpn: self.qpn(),
            gid: info.gid,
            lid: info.lid,
            pkey: info.pkey,
            // The kernel finds out by itself.
            mac: [0; 6],
            mtu: info.mtu,
            link_layer: info.link_layer,
            log_rra_max: low8(self.port.context.limits().reads_served.checked_ilog2().unwrap_or(0).into()),
        }
    }

    /// Connects it to a queue pair of a peer, which does the same: RESET, INIT, RTR, RTS. Neither
    /// may post before both have.
    ///
    /// # Errors
    /// Values out of range, a peer on another network, or one that cannot be reached.
    pub fn connect(&self, peer: &QpAddress, attributes: &QpAttributes) -> Result<()> {
        let (info, context) = (&self.port.info, &self.port.context);
        let route = route(context.name(), info, peer)?;
        let label = match info.link_layer {
            LinkLayer::Ethernet => {
                flow_label(attributes.udp_sport.unwrap_or_else(|| udp_source_port(self.qpn(), peer.qpn)))
            }
            LinkLayer::InfiniBand => 0,
        };
        // SAFETY: plain data, for which zeros are a value.
        let zero: sys::ibv_qp_attr = unsafe { std::mem::zeroed() };
        let init = sys::ibv_qp_attr {
            qp_state: sys::IBV_QPS_INIT,
            pkey_index: attributes.pkey_index,
            port_num: info.number,
            qp_access_flags: access_of_peers(),
            ..zero
        };
        self.modify(init, sys::IBV_QP_STATE | sys::IBV_QP_PKEY_INDEX | sys::IBV_QP_PORT | sys::IBV_QP_ACCESS_FLAGS)?;

        let limits = context.limits();
        let asked = 1u8 << attributes.log_max_rd_atomic.min(7);
        let ready_to_receive = sys::ibv_qp_attr {
            qp_state: sys::IBV_QPS_RTR,
            path_mtu: attributes.mtu.min(peer.mtu).min(info.mtu) as u32,
            dest_qp_num: peer.qpn,
            rq_psn: attributes.first_psn,
            max_dest_rd_atomic: asked.min(limits.reads_served),
            min_rnr_timer: attributes.min_rnr_timer,
            ah_attr: path::address(info, route, peer, attributes, label),
            ..zero
        };
        let fields = sys::IBV_QP_STATE
            | sys::IBV_QP_AV
            | sys::IBV_QP_PATH_MTU
            | sys::IBV_QP_DEST_QPN
            | sys::IBV_QP_RQ_PSN
            | sys::IBV_QP_MAX_DEST_RD_ATOMIC
            | sys::IBV_QP_MIN_RNR_TIMER;
        // The kernel resolves the address before it asks the device, whose queue pair stays as it
        // is.
        let ready = until_resolved(attributes.patience, || self.modify(ready_to_receive, fields), VerbsError::of_call);
        ready.map_err(|error| {
            error.hint(format!(
                "the peer at {} (LID {}) is to be reached from GID index {} ({}); is there a route, and does its address answer?",
                peer.gid, peer.lid, info.gid_index, info.gid
            ))
        })?;

        let ready_to_send = sys::ibv_qp_attr {
            qp_state: sys::IBV_QPS_RTS,
            timeout: attributes.ack_timeout,
            retry_cnt: attributes.retry_count.min(MOST_RETRIES),
            rnr_retry: attributes.rnr_retry,
            sq_psn: attributes.first_psn,
            max_rd_atomic: asked.min(limits.reads_in_flight).min(1 << peer.log_rra_max.min(7)),
            ..zero
        };
        self.modify(
            ready_to_send,
            sys::IBV_QP_STATE
                | sys::IBV_QP_TIMEOUT
                | sys::IBV_QP_RETRY_CNT
                | sys::IBV_QP_RNR_RETRY
                | sys::IBV_QP_SQ_PSN
                | sys::IBV_QP_MAX_QP_RD_ATOMIC,
        )
        .map_err(|error| error.hint("OXSHMEM_IB_TIMEOUT, OXSHMEM_IB_RETRY_COUNT and OXSHMEM_IB_RNR_RETRY are set here"))
    }

    fn modify(&self, mut attributes: sys::ibv_qp_attr, mask: u32) -> Result<()> {
        let context = &self.port.context;
        // SAFETY: it is alive.
        let status = unsafe {
            context.library().functions().ibv_modify_qp(self.raw.as_ptr(), &raw mut attributes, mask.cast_signed())
        };
        let call = match attributes.qp_state {
            sys::IBV_QPS_INIT => "ibv_modify_qp(INIT)",
            sys::IBV_QPS_RTR => "ibv_modify_qp(RTR)",
            sys::IBV_QPS_RTS => "ibv_modify_qp(RTS)",
            _ => "ibv_modify_qp(ERR)",
        };
        context.check(call, status)
    }

    /// Ends it: whatever is outstanding completes as flushed, and what the peer sends is refused.
    ///
    /// # Errors
    /// The device is gone.
    pub fn fail(&self) -> Result<()> {
        // SAFETY: plain data, for which zeros are a value.
        let zero: sys::ibv_qp_attr = unsafe { std::mem::zeroed() };
        self.modify(sys::ibv_qp_attr { qp_state: sys::IBV_QPS_ERR, ..zero }, sys::IBV_QP_STATE)
    }

    /// Posts a chain. What its requests name is registered memory, so the device checks it.
    ///
    /// # Errors
    /// A request that is refused: neither it nor those after it were posted, those before it were.
    pub fn post(&self, chain: &mut SendChain) -> std::result::Result<(), PostError> {
        let first = chain.link();
        if first.is_null() {
            return Ok(());
        }
        let mut refused = ptr::null_mut();
        // SAFETY: it is alive; the chain is linked, and not touched during the call. Addresses in
        // it are checked by the device, except for those of inline bytes, which are the chain's
        // own.
        match unsafe { sys::ibv_post_send(self.raw.as_ptr(), first, &raw mut refused) } {
            0 => Ok(()),
            errno => {
                let source = io::Error::from_raw_os_error(errno.abs());
                Err(PostError { posted: chain.position(refused), source })
            }
        }
    }

    /// Returns what a status code of a completion means.
    #[must_use]
    pub fn status_text(&self, code: u32) -> &'static str {
        self.port.context.library().status_text(code)
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        let context = &self.port.context;
        // SAFETY: it is alive, and used no more.
        let status = unsafe { context.library().functions().ibv_destroy_qp(self.raw.as_ptr()) };
        if let Err(error) = context.check("ibv_destroy_qp", status) {
            tracing::warn!(%error, "a queue pair could not be destroyed");
        }
    }
}

/// Returns the access rights of peers: they may write, read, and use atomics, where the keys of
/// memory allow it.
fn access_of_peers() -> u32 {
    super::memory::access_flags(Access::ALL)
}
