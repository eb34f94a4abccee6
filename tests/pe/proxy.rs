//! The CPU proxy: what device code writes into its ring, and that its thread exists only where it
//! is needed.

use std::time::{Duration, Instant};

use bytemuck::{Pod, Zeroable};
use oxshmem::config::Staging;
use oxshmem::{Operations, Path};
use oxshmem_proxy::descriptor::{Descriptor, Landing, Request, Slot, WORDS, tag, unseal};
use oxshmem_proxy::work::{Atomic, Local, PAYLOAD_BYTES, Payload, Remote, Transfer, Width};

use crate::Outcome;
use crate::queues::QUEUES;
use crate::rig::Rig;

/// Mirrors `RingNames` of `kernels/queues.cu`.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Names {
    head: u64,
    depth: u64,
    landing_head: u64,
    landing_log2: u64,
    lkey: u64,
    rkey: u64,
    offset: u64,
}

/// A proxy's thread exists if a peer is reached over it, and only then.
pub fn threads(_: &[String]) -> Outcome {
    let rig = Rig::new(&QUEUES)?;
    let count = || -> std::io::Result<usize> {
        let mut found = 0;
        for task in std::fs::read_dir("/proc/self/task")? {
            found += usize::from(std::fs::read_to_string(task?.path().join("comm"))?.trim() == "oxshmem-proxy");
        }
        Ok(found)
    };
    let needed = (0..rig.n_pes()).any(|pe| rig.pe.path(pe) == Some(Path::Ibrc));
    // A thread takes its name when it first runs.
    let limit = Instant::now() + Duration::from_secs(10);
    while count()? < usize::from(needed) && Instant::now() < limit {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!((count()?, rig.pe.proxy_counters().is_some()), (usize::from(needed), needed));
    rig.finish()
}

/// `put_flood BLOCKS THREADS COUNT MOST`: puts of up to `MOST` bytes, signals after them, and
/// whether any of them were staged.
pub fn put_flood(args: &[String]) -> Outcome {
    let rig = Rig::new(&QUEUES)?;
    let [blocks, threads, count, most] = args else { return Err("put_flood BLOCKS THREADS COUNT MOST".into()) };
    let (blocks, threads, count, most): (u32, u32, u32, usize) =
        (blocks.parse()?, threads.parse()?, count.parse()?, most.parse()?);
    let all = (blocks * threads * count) as usize * most;
    let (incoming, outgoing) = (rig.pe.alloc::<u8>(all)?, rig.pe.alloc::<u8>(all)?);
    let signals = rig.pe.alloc::<u64>((blocks * threads) as usize)?;
    let args = (&incoming, &outgoing, most as u64, &signals, count, rig.report());
    rig.run_linear("put_flood", blocks, threads, args)?;
    rig.pe.barrier_all()?;
    let is_staged = matches!(rig.pe.config().staging(), Staging::On | Staging::From(_));
    if rig.pe.proxy_counters().is_none() {
        let staged: u64 = rig.pe.counters()?.qps.iter().map(|qp| qp.staged.0).sum();
        // To a PE of the node, puts are stores where PEs share nodes.
        let is_far = rig.pe.path((rig.me() + 1) % rig.n_pes()) == Some(Path::Ibgda);
        assert_eq!(staged != 0, is_staged && is_far, "{staged} pieces were staged");
        return rig.finish();
    }
    let counters = || rig.pe.proxy_counters().ok_or("no proxy");
    if is_staged {
        // It counts with a delay.
        let limit = Instant::now() + Duration::from_secs(30);
        while counters()?.copies == 0 && Instant::now() < limit {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(counters()?.copies != 0, "nothing was staged");
    } else {
        assert_eq!(counters()?.copies, 0);
    }
    println!("{:?}", counters()?);
    rig.finish()
}

/// `descriptors [TIMES]`: what device code writes into the ring is what [`Descriptor::encode`]
/// writes for the same request, tags included.
pub fn descriptors(args: &[String]) -> Outcome {
    let rig = Rig::new(&QUEUES)?;
    for _ in 0..args.first().map_or(Ok(1), |text| text.parse::<u32>())? {
        compare(&rig)?;
    }
    rig.finish()
}

fn payload(bytes: &[u8]) -> Payload {
    let mut all = [0; PAYLOAD_BYTES];
    all[..bytes.len()].copy_from_slice(bytes);
    Payload::new(all, bytes.len())
}

fn compare(rig: &Rig) -> Outcome {
    let next = (rig.me() + 1) % rig.n_pes();
    let memory = rig.pe.alloc_aligned::<u8>(1024, 1024)?;
    let names = rig.pe.alloc::<Names>(1)?;
    rig.pe.barrier_all()?;
    rig.run_linear("ring_names", 1, 1, (&names, &memory, next as i32))?;
    let before = rig.pe.read(names.view(..1))?[0];
    rig.run_linear("every_request", 1, 1, (&memory, next as i32))?;
    rig.run_linear("ring_names", 1, 1, (&names, &memory, next as i32))?;
    let after = rig.pe.read(names.view(..1))?[0];
    let copy = rig.pe.alloc::<u64>(before.depth as usize * WORDS)?;
    rig.run_linear("ring_words", 1, 1, (&copy,))?;
    let ring = rig.pe.read(&copy)?;
    rig.pe.free(copy)?;
    let fetched: Vec<u8> = rig.pe.read(memory.view(512..520))?;

    let local_bytes: Vec<u8> = (0..=255).map(|i| i ^ 0x5a).collect();
    let stack: Vec<u8> = (0..100u32).map(|i| (i * 3 + 1) as u8).collect();
    let remote = |at: u64| Remote { address: before.offset + at, key: before.rkey as u32 };
    let heap = |at: u64, length: u32| Local { address: before.offset + at, length, key: before.lkey as u32 };
    let mut landings = before.landing_head;
    let mut landing = || {
        let ticket = landings;
        landings += 1;
        Landing {
            slot: (ticket & ((1 << before.landing_log2) - 1)) as u32,
            lap: (ticket >> before.landing_log2) as u32,
        }
    };
    let inline = |at: u64, bytes: &[u8]| {
        Request::Transfer(Transfer::WriteInline { payload: payload(bytes), target: remote(at) })
    };
    let atomic = |at: u64, width, operands, landing| Request::Atomic { operands, width, landing, target: remote(at) };
    let add = |value, boundary| Atomic::Add { value, boundary };
    let swap = |swap, swap_mask| Atomic::CompareSwap { swap, compare: 0, swap_mask, compare_mask: 0 };
    let compare_swap = |swap, compare| Atomic::compare_swap(compare, swap);
    use Width::{Eight, Four};
    // In the order of the kernel; the flag says whether it stays after what was posted before.
    let expected = [
        (inline(3, &[0xa5]), false),
        (inline(6, &[0xc7, 0xb6]), false),
        (inline(8, &[0x44, 0x33, 0x22, 0x11]), false),
        (inline(16, &[8, 7, 6, 5, 4, 3, 2, 1]), false),
        (inline(33, &local_bytes[..28]), false),
        (inline(70, &local_bytes[1..30]), false),
        (inline(100, &stack[..48]), false),
        (inline(148, &stack[48..96]), false),
        (inline(196, &stack[96..]), false),
        (Request::Transfer(Transfer::Read { target: heap(512, 24), source: remote(8) }), false),
        (Request::Fetch { landing: landing(), bytes: 2, source: remote(6) }, false),
        (atomic(256, Eight, add(5, 0), None), false),
        (atomic(256, Eight, add(u64::MAX, 0), Some(landing())), false),
        (atomic(256, Eight, compare_swap(0x1234_5678_90ab_cdef, 4), Some(landing())), false),
        (atomic(264, Eight, swap(0xfedc_ba98_7654_3210, u64::MAX), None), false),
        (atomic(264, Eight, swap(0xff00_ff00_ff00_ff00, 0x00ff_00ff_00ff_00ff), Some(landing())), false),
        (atomic(264, Eight, swap(0xf0, 0xf0), None), false),
        (atomic(264, Eight, add(0x8000_0000_0000_0001, u64::MAX), None), false),
        (atomic(280, Four, add(7, 0), None), false),
        (atomic(280, Four, add(1, 0), Some(landing())), false),
        (atomic(280, Four, compare_swap(0xdead_beef, 8), Some(landing())), false),
        (atomic(284, Four, swap(0xcafe_f00d, 0xffff_ffff), Some(landing())), false),
        (atomic(284, Four, swap(0x00ff_ff00, 0xff00_00ff), None), false),
        (atomic(284, Four, swap(0x0f, 0x0f), Some(landing())), false),
        (atomic(284, Four, add(0x8000_0000, u64::MAX), None), false),
        (inline(320, &77u64.to_le_bytes()), true),
        (atomic(320, Eight, add(3, 0), None), true),
        (Request::Transfer(Transfer::Write { source: heap(512, 64), target: remote(340) }), false),
        (inline(328, &9u64.to_le_bytes()), true),
        // The kernel reads into the local bytes before it puts from them again.
        (inline(404, &fetched), false),
        (atomic(328, Eight, add(1, 0), None), true),
    ];
    assert_eq!(after.head - before.head, expected.len() as u64, "descriptors");
    assert_eq!(after.landing_head, landings, "landing slots");
    let log_depth = before.depth.trailing_zeros();
    for (index, (request, ordered)) in (before.head..).zip(expected) {
        let wanted = Descriptor { pe: next as u32, queue: 0, ordered, request };
        let first = (index & (before.depth - 1)) as usize * WORDS;
        let sealed: Slot = ring[first..first + WORDS].try_into()?;
        assert!(sealed.iter().all(|word| word & 1 == tag(index, log_depth)), "slot {index}: {sealed:#x?}");
        assert_eq!(Descriptor::decode(&unseal(sealed))?, wanted, "slot {index}");
    }
    rig.pe.barrier_all()?;
    Ok(())
}
