//! What a PE says of its memory, beside what the system says.

use std::collections::BTreeMap;
use std::os::fd::AsFd;

use oxshmem::{MemoryBytes, MemoryKind, Operations, Pe};

use crate::Outcome;

/// Returns the bytes of the files of this process's memory that have this name, each counted once,
/// however many descriptors it has.
fn files(name: &str) -> std::io::Result<u64> {
    let mut sizes = BTreeMap::new();
    for entry in std::fs::read_dir("/proc/self/fd")? {
        let path = entry?.path();
        let Ok(target) = std::fs::read_link(&path) else { continue };
        if target.to_string_lossy() != format!("/memfd:{name} (deleted)") {
            continue;
        }
        let found = rustix::fs::fstat(std::fs::File::open(&path)?.as_fd())?;
        sizes.insert(found.st_ino, u64::try_from(found.st_size).unwrap_or(0));
    }
    Ok(sizes.values().sum())
}

fn check_device(pe: &Pe) -> Outcome {
    // On the `cpu` device memory of the device is files: the slab, and each chunk of the heap.
    assert_eq!(pe.memory().all().device, files("oxshmem")?, "{}", pe.memory());
    Ok(())
}

/// `memory QPS`: compares what the PE says of its memory with files of the system and with the
/// sizes of what was configured, and leaves an allocation behind.
pub fn memory(args: &[String]) -> Outcome {
    let [qps] = args else { return Err("memory QPS".into()) };
    let qps: u64 = qps.parse()?;
    let pe = oxshmem::init()?;
    check_device(&pe)?;
    let (config, memory) = (pe.config(), pe.memory());
    let of = |kind| memory.of(kind);
    let host = |kind| of(kind).host;
    let device = |kind| of(kind).device;
    assert_eq!(memory.iter().map(|(_, bytes)| bytes.total()).sum::<u64>(), memory.all().total());
    assert_eq!(device(MemoryKind::Staging), 1 << 20);

    // A workspace for each team that there is room for.
    let teams = device(MemoryKind::Teams);
    assert!(teams > u64::from(config.max_teams()) * (66 << 10), "{teams} bytes of teams");

    let depth = u64::from(config.send_queue_depth(pe.n_pes() as u32));
    match pe.path((pe.my_pe() + 1) % pe.n_pes()) {
        // A send queue, a stamp for each block, two CQEs.
        Some(oxshmem::Path::Ibgda) => {
            assert_eq!(of(MemoryKind::Queues), bytes(qps * (depth * (64 + 4) + 2 * 64), 0));
            assert_eq!(of(MemoryKind::Rings), bytes(0, 0));
            // Two doorbell records, a line each, and a record of some lines.
            assert!(device(MemoryKind::Records) >= qps * (2 * 128 + 128));
            assert_eq!(host(MemoryKind::Landing), 0);
        }
        // The send queue and a line for the CQE, to whole pages; slots of the device and of the
        // engine; the ring.
        Some(oxshmem::Path::Ibrc) => {
            let (queues, records) = (qps * (depth * 64 + 128), qps * 2 * 128);
            let pages = (queues + records).next_multiple_of(4096);
            assert_eq!(of(MemoryKind::Queues), bytes(0, pages - records));
            assert_eq!(of(MemoryKind::Records), bytes(0, records));
            assert_eq!(of(MemoryKind::Landing), bytes(4 << 10, 64 * ((1 << 10) + 257)));
            assert!(host(MemoryKind::Rings) > 64 * u64::from(config.proxy_ring()));
        }
        path => return Err(format!("nothing is known of {path:?}").into()),
    }
    // Pages of 4 KiB with registers come on top of the control segment.
    let pages = host(MemoryKind::Engine) - files("oxshmem-hca-control")?;
    assert!(pages > 0 && pages.is_multiple_of(4096), "{pages} bytes of pages");

    // The heap grows by chunks.
    let chunk = config.heap_chunk().0;
    let heap = || pe.memory().of(MemoryKind::Heap).device + teams_in_heap(&pe);
    assert!(heap().is_multiple_of(chunk), "{} is not a multiple of {chunk}", heap());
    let before = heap();
    let large = pe.alloc::<u8>(usize::try_from(2 * chunk)?)?;
    assert!((before + chunk..=before + 3 * chunk).contains(&heap()));
    check_device(&pe)?;
    pe.free(large)?;
    // Chunks are kept.
    check_device(&pe)?;

    let before = pe.allocations().len();
    let (forgotten, line) = (pe.alloc::<u64>(77)?, line!());
    assert_eq!(pe.allocations().len(), before + 1);
    println!("left at {}:{line}:", file!());
    drop(forgotten);
    pe.barrier_all()?;
    pe.finalize()?;
    assert_eq!((files("oxshmem")?, files("oxshmem-hca-control")?), (0, 0));
    Ok(())
}

/// Returns the bytes of the heap that belong to teams.
fn teams_in_heap(pe: &Pe) -> u64 {
    // All of them but the table: a row for each with a number for each PE, and where nodes begin
    // with their PEs.
    let lists = 4 * (pe.n_pes() + 2 * pe.n_pes() + 1);
    let row = (size_of::<oxshmem::abi::Team>() + lists) as u64;
    pe.memory().of(MemoryKind::Teams).device - row * u64::from(pe.config().max_teams())
}

fn bytes(device: u64, host: u64) -> MemoryBytes {
    let mut bytes = MemoryBytes::default();
    (bytes.device, bytes.host) = (device, host);
    bytes
}
