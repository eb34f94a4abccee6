//! The work queue entries that device code writes are, byte for byte, those of `oxshmem_hca::wire`,
//! which are tested against rdma-core's headers. Every operation, any operands, and queues in which
//! an entry wraps from the last block to the first.

#![allow(clippy::unwrap_used)]

use oxshmem::device::cpu::{Executor, ExecutorOptions, LaunchConfig, Module};
use oxshmem::{HeapError, KernelArgs, PeId};
use oxshmem_hca::wire::data::Repr as Local;
use oxshmem_hca::wire::masked_atomic::Repr as Masked;
use oxshmem_hca::wire::raddr::Repr as Remote;
use oxshmem_hca::wire::wqe::{Op, Wqe};
use proptest::prelude::*;

oxshmem::include_module!(WQE, "wqe");

const BLOCKS: usize = 8;
const BLOCK: usize = 64;

/// `WqeParameters` of wqe.cu.
#[derive(Debug, Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
struct Parameters {
    wq: u64,
    index: u64,
    remote: u64,
    local: u64,
    first: u64,
    second: u64,
    mask: u32,
    qpn: u32,
    rkey: u32,
    lkey: u32,
    bytes: u32,
    signaled: u32,
}

impl oxshmem::KernelArg for Parameters {
    type Bytes = [u8; size_of::<Self>()];
    fn bytes(&self, _pe: PeId) -> Result<Self::Bytes, HeapError> {
        Ok(bytemuck::bytes_of(self).try_into().unwrap())
    }
}

/// Calls what it is given with the bytes of each argument.
type Arguments = Box<dyn Fn(&mut dyn FnMut(&[&[u8]]))>;

/// Runs the kernel and gives the queue it left.
fn device_writes(kernel: &str, args: impl Fn(u64) -> Arguments) -> Vec<u8> {
    thread_local! {
        static DEVICE: (Executor, Module) = {
            // SAFETY: the build generated the function.
            let module = unsafe { Module::from_raw(WQE.cpu_object()) }.unwrap();
            (Executor::new(ExecutorOptions::default()).unwrap(), module)
        };
    }
    let mut queue = vec![[0u64; BLOCK / 8]; BLOCKS + 1];
    let start = queue.as_mut_ptr() as u64;
    let aligned = start.next_multiple_of(16);
    DEVICE.with(|(executor, module)| {
        args(aligned)(&mut |args| {
            let kernel = module.kernel(kernel).unwrap();
            // SAFETY: the arguments fit the kernel, and the queue outlives the wait.
            unsafe { executor.launch(kernel, LaunchConfig::linear(1, 1), args) }.unwrap().wait().unwrap();
        });
    });
    let offset = (aligned - start) as usize;
    bytemuck::cast_slice(&queue)[offset..offset + BLOCKS * BLOCK].to_vec()
}

/// Returns where hca puts the same entry in a queue of zeros.
fn expected(p: &Parameters, op: Op<'_>) -> Vec<u8> {
    let wqe = Wqe::new(p.qpn, p.index as u16, p.signaled != 0, op);
    let mut bytes = vec![0; 1024];
    let blocks = wqe.emit(&mut bytes);
    let mut queue = vec![0; BLOCKS * BLOCK];
    for (block, bytes) in bytes.chunks(BLOCK).take(blocks).enumerate() {
        let at = (p.index as usize + block) % BLOCKS * BLOCK;
        queue[at..at + BLOCK].copy_from_slice(bytes);
    }
    queue
}

fn bytes_of<A: KernelArgs + 'static>(args: A) -> Arguments {
    Box::new(move |run| args.with_bytes(PeId::NONE, &mut |bytes| run(bytes)).unwrap())
}

fn parameters() -> impl Strategy<Value = Parameters> {
    let wide = (any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>());
    let narrow = (0u32..1 << 24, any::<u32>(), any::<u32>(), 0u32..=1);
    (wide, narrow).prop_map(|((index, remote, local, first, second), (qpn, rkey, lkey, signaled))| Parameters {
        wq: 0,
        index,
        remote,
        local,
        first,
        second,
        mask: BLOCKS as u32 - 1,
        qpn,
        rkey,
        lkey,
        bytes: 0,
        signaled,
    })
}

fn remote(p: &Parameters) -> Remote {
    Remote { raddr: p.remote, rkey: p.rkey }
}

fn local(p: &Parameters, bytes: u32) -> Local {
    Local { byte_count: bytes, lkey: p.lkey, addr: p.local }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn transfers(p in parameters(), bytes in 1u32..=1 << 30, read in any::<bool>()) {
        let p = Parameters { bytes, ..p };
        let wrote = device_writes("wqe_transfer", |wq| bytes_of((Parameters { wq, ..p }, i32::from(read))));
        let local = Some(local(&p, bytes));
        let op = if read { Op::Read { remote: remote(&p), local } } else { Op::Write { remote: remote(&p), local } };
        prop_assert_eq!(wrote, expected(&p, op));
    }

    #[test]
    fn inline_bytes(p in parameters(), payload in prop::collection::vec(any::<u8>(), 1..=220), shift in 0usize..4) {
        let p = Parameters { bytes: payload.len() as u32, ..p };
        // Aligned sources are copied by words, others by bytes.
        let mut source = vec![0; shift];
        source.extend_from_slice(&payload);
        let from = source[shift..].as_ptr();
        let wrote = device_writes("wqe_inline", |wq| bytes_of((Parameters { wq, ..p }, from)));
        prop_assert_eq!(wrote, expected(&p, Op::WriteInline { remote: remote(&p), payload: &payload }));
    }

    #[test]
    fn inline_words(p in parameters(), words in prop::collection::vec(any::<u64>(), 1..=32)) {
        let p = Parameters { bytes: 8 * words.len() as u32, ..p };
        let from = words.as_ptr();
        let wrote = device_writes("wqe_inline_words", |wq| bytes_of((Parameters { wq, ..p }, from)));
        prop_assert_eq!(wrote, expected(&p, Op::WriteInline { remote: remote(&p), payload: bytemuck::cast_slice(&words) }));
    }

    #[test]
    fn atomics(p in parameters(), op in 0i32..4, wide in any::<bool>()) {
        let width = if wide { 8 } else { 4 };
        let wrote = device_writes("wqe_atomic", |wq| bytes_of((Parameters { wq, ..p }, op, width)));
        let (first, second) = (p.first, p.second);
        let (first4, second4) = (first as u32, second as u32);
        let (remote, local) = (remote(&p), local(&p, width as u32));
        let masked = |operands| Op::Masked { remote, operands, local };
        let op = match (op, wide) {
            (0, true) => Op::AtomicFa { remote, add: first, local },
            (0, false) => masked(Masked::FetchAdd4 { add: first4, boundary: 0 }),
            (1, true) => masked(Masked::FetchAdd8 { add: first, boundary: u64::MAX }),
            (1, false) => masked(Masked::FetchAdd4 { add: first4, boundary: u32::MAX }),
            (2, true) => masked(Masked::CompareSwap8 { swap: first, compare: 0, swap_mask: second, compare_mask: 0 }),
            (2, false) => masked(Masked::CompareSwap4 { swap: first4, compare: 0, swap_mask: second4, compare_mask: 0 }),
            (_, true) => Op::AtomicCs { remote, compare: second, swap: first, local },
            (_, false) => {
                masked(Masked::CompareSwap4 { swap: first4, compare: second4, swap_mask: u32::MAX, compare_mask: u32::MAX })
            }
        };
        prop_assert_eq!(wrote, expected(&p, op));
    }
}
