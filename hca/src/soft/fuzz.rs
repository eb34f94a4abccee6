//! What the fuzz targets run: arbitrary bytes as a send queue must neither panic nor touch memory
//! that no key covers.

use super::fabric::frames::{HEADER, Header, Request, Response};
use super::fabric::greeting::Hello;
use super::hca::SoftHca;
use super::options::SoftOptions;
use crate::address::QpAttributes;
use crate::error::Result;
use crate::prm::qpc::QpState;
use crate::provider::Provider;
use crate::testing::{Endpoint, EndpointOptions};
use crate::wire::{BLOCK_BYTES, ctrl, data, doorbell, raddr};
use std::cell::RefCell;
use std::sync::Arc;

const LOG_DEPTH: u8 = 7;
const DEPTH: usize = 1 << LOG_DEPTH;
const HEAP: usize = 3 * GUARD;
const GUARD: usize = 4096;
const CANARY: u8 = 0xc5;
/// Passes after which an input counts as a hang. Each takes at least a WQE or a piece of payload.
const MAX_PASSES: usize = 10_000;

/// Reads bytes as what another node's HCA sends: the header, then the body as a request and as a
/// response. What can be read is written again as the same bytes.
///
/// # Panics
/// If it is not.
pub fn run_fabric(input: &[u8]) {
    let Some((bytes, body)) = input.split_first_chunk() else { return };
    let Ok(header) = Header::decode(bytes) else { return };
    let body = &body[..header.len.min(body.len())];
    if let Ok((way, request)) = Request::decode(header.kind, body) {
        let mut again = Vec::new();
        request.encode(&mut again, header.id, way);
        assert_eq!(Request::decode(header.kind, &again[HEADER..]), Ok((way, request)));
    }
    if let Ok(response) = Response::decode(header.kind, body) {
        let mut again = Vec::new();
        response.encode(&mut again, header.id);
        // A text is cut, and characters that are not known are replaced.
        assert!(Response::decode(header.kind, &again[HEADER..]).is_ok(), "{response:?}");
    }
    if let Some(hello) = input.first_chunk() {
        let _ = Hello::decode(hello);
    }
}

struct Rig {
    a: Endpoint,
    b: Endpoint,
    hca_a: Arc<SoftHca>,
    hca_b: Arc<SoftHca>,
}

thread_local! {
    static RIG: RefCell<Option<Rig>> = const { RefCell::new(None) };
}

/// Runs one input.
///
/// Byte 0 says how WQEs are repaired before they run, so that inputs reach deeper: bit 0 sets index
/// and QP number, bit 1 the keys, bit 2 moves addresses near the registered range. Byte 1 is the
/// number of blocks that the doorbell record covers, byte 2 where the queue starts. The rest is the
/// send queue.
///
/// # Panics
/// If memory outside the keys changed, or the engine does not come to rest.
pub fn run_send_queue(input: &[u8]) {
    let Some((&[mode, count, start], queue)) = input.split_first_chunk::<3>() else { return };
    RIG.with_borrow_mut(|place| {
        if let Err(error) = run(place, mode, usize::from(count), u64::from(start), queue) {
            panic!("the harness failed: {error}");
        }
    });
}

fn run(place: &mut Option<Rig>, mode: u8, count: usize, start: u64, queue: &[u8]) -> Result<()> {
    let mut rig = match place.take() {
        Some(rig) => rig,
        None => Rig::new()?,
    };
    rig.a.qp.to_reset()?;
    rig.a.restart();
    rig.a.connect(&rig.b.address(), &QpAttributes::default())?;
    let qpn = rig.a.qp.qpn();
    // NOPs up to where the queue starts, so that WQEs wrap.
    let start = start % DEPTH as u64;
    for _ in 0..start {
        rig.a.post(crate::wire::Op::Nop { ds: 1 }, false);
    }
    rig.a.ring();
    rig.settle();
    let mut blocks = queue[..queue.len().min(DEPTH * BLOCK_BYTES)].to_vec();
    blocks.resize(blocks.len().next_multiple_of(BLOCK_BYTES), 0);
    repair(&mut blocks, mode, start, qpn, &rig);
    if !blocks.is_empty() {
        rig.a.post_raw(&blocks);
    }
    let covered = (start as usize + count) as u16;
    rig.a.set_doorbell_record(u32::from(covered));
    rig.a.ring_register(doorbell::Repr::producer(covered, qpn));
    rig.settle();
    for (name, heap) in [("a", &rig.a.heap), ("b", &rig.b.heap)] {
        for at in [0, HEAP - GUARD] {
            assert!(
                heap.read(at, GUARD).iter().all(|byte| *byte == CANARY),
                "memory of {name} outside its key changed"
            );
        }
    }
    let status = rig.a.qp.query()?;
    assert!(
        status.state == QpState::Err || status.executed == covered,
        "state {}, executed {}, covered {covered}",
        status.state.name(),
        status.executed
    );
    *place = Some(rig);
    Ok(())
}

/// Makes WQEs more plausible, as far as `mode` requests it.
fn repair(blocks: &mut [u8], mode: u8, start: u64, qpn: u32, rig: &Rig) {
    let mut at = 0;
    while mode & 1 != 0 && at + BLOCK_BYTES <= blocks.len() {
        let index = (start as usize + at / BLOCK_BYTES) as u16;
        let wqe = &mut blocks[at..];
        let mut head = ctrl::Segment::new_unchecked(&mut wqe[..16]);
        let (opmod, opcode, ds) = (head.opmod(), head.opcode(), head.ds_byte() & 0x3f);
        head.set_opmod_idx_opcode(opmod, index, opcode);
        head.set_qpn_ds(qpn, ds);
        head.set_signature(0);
        head.set_dci_stream_channel_id(0);
        head.set_imm(0);
        if mode & 2 != 0 {
            let mut remote = raddr::Segment::new_unchecked(&mut wqe[16..32]);
            remote.set_rkey(rig.b.key.rkey());
            remote.set_reserved(0);
            for local in [16, 32, 48] {
                if wqe[local] & 0x80 == 0 && (local != 16 || opcode == ctrl::Opcode::Dump as u8) {
                    data::Segment::new_unchecked(&mut wqe[local..local + 16]).set_lkey(rig.a.key.lkey());
                }
            }
        }
        if mode & 4 != 0 {
            // Keep the low bits, so that the edges of the range are hit.
            let near = |address: u64| crate::testing::HEAP_START.wrapping_add(address & 0x1fff).wrapping_sub(2048);
            let mut remote = raddr::Segment::new_unchecked(&mut wqe[16..32]);
            let address = near(remote.raddr());
            remote.set_raddr(address);
            for local in [32, 48] {
                let mut segment = data::Segment::new_unchecked(&mut wqe[local..local + 16]);
                if segment.byte_count() >> 31 == 0 {
                    let address = near(segment.addr());
                    segment.set_addr(address);
                    segment.set_byte_count(segment.byte_count() & 0x1fff);
                }
            }
        }
        at += usize::from(ds).div_ceil(4).max(1) * BLOCK_BYTES;
    }
}

impl Rig {
    fn new() -> Result<Self> {
        let open = || SoftHca::open(SoftOptions { stepped: true, ..SoftOptions::default() });
        let (hca_a, hca_b) = (open()?, open()?);
        let options =
            EndpointOptions { log_sq_size: LOG_DEPTH, heap_bytes: HEAP, guard: GUARD, ..EndpointOptions::default() };
        let provider = |hca: &Arc<SoftHca>| -> Arc<dyn Provider> { Arc::<SoftHca>::clone(hca) };
        let a = Endpoint::new(&provider(&hca_a), options)?;
        let b = Endpoint::new(&provider(&hca_b), options)?;
        for endpoint in [&a, &b] {
            endpoint.heap.write(0, &[CANARY; GUARD]);
            endpoint.heap.write(HEAP - GUARD, &[CANARY; GUARD]);
        }
        b.connect(&a.address(), &QpAttributes::default())?;
        Ok(Self { a, b, hca_a, hca_b })
    }

    fn settle(&self) {
        for _ in 0..MAX_PASSES {
            if self.hca_a.progress() == 0 && !self.hca_a.is_waiting() {
                return;
            }
            self.hca_b.progress();
        }
        panic!("the engine does not come to rest");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_queue(mode in 0u8..8, count in any::<u8>(), start in any::<u8>(), queue in proptest::collection::vec(any::<u8>(), 0..512)) {
            let mut input = vec![mode, count, start];
            input.extend(queue);
            run_send_queue(&input);
        }

        #[test]
        fn plausible_queues(
            start in any::<u8>(),
            wqes in proptest::collection::vec((0usize..8, 1u8..8, any::<u64>(), any::<u64>(), 0u32..6000, any::<bool>()), 1..32),
        ) {
            let mut queue = Vec::new();
            for (opcode, ds, remote, local, len, signaled) in wqes {
                let opcodes = [0x00u8, 0x08, 0x08, 0x10, 0x11, 0x12, 0x14, 0x23];
                let at = queue.len();
                queue.resize(at + usize::from(ds).div_ceil(4) * BLOCK_BYTES, 0);
                let wqe = &mut queue[at..];
                wqe[3] = opcodes[opcode];
                wqe[7] = ds;
                wqe[11] = if signaled { 8 } else { 0 };
                raddr::Segment::new_unchecked(&mut wqe[16..32]).set_raddr(remote);
                let segment = data::Repr { byte_count: len, lkey: 0, addr: local };
                segment.emit(&mut data::Segment::new_unchecked(&mut wqe[32..48]));
            }
            let mut input = vec![7, (queue.len() / BLOCK_BYTES) as u8, start];
            input.extend(queue);
            run_send_queue(&input);
        }
    }

    #[test]
    fn short_inputs_are_ignored() {
        run_send_queue(&[]);
        run_send_queue(&[1, 2]);
    }
}
