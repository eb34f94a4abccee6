//! The verbs objects on real kernel verbs: every device of this machine, or Soft-RoCE
//! (`scripts/soft-roce`). Without a device each test prints that it is skipped.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use oxshmem_hca::objects::QpAttributes;
use oxshmem_hca::provider::Access;
use oxshmem_hca::route::RouteError;
use oxshmem_hca::topology::{DeviceChoice, Family, Place, Topology};
use oxshmem_hca::verbs::{
    Atomicity, CompletionQueue, Context, MemoryRegion, Port, ProtectionDomain, QueuePair, QueuePairSize, Segment,
    SendChain, SendOperation, SendRequest, Target, VerbsError, WorkCompletion, WorkStatus, device_names,
};

/// `IBV_WC_REM_ACCESS_ERR`, `IBV_WC_WR_FLUSH_ERR` and `IBV_WC_RETRY_EXC_ERR`.
const REM_ACCESS: u32 = 10;
const FLUSHED: u32 = 5;
const RETRY_EXCEEDED: u32 = 12;

/// Words of registered memory at each end.
const WORDS: usize = 1024;
/// Addresses on the wire start in this page, not at the virtual address.
const IOVA_PAGE: u64 = 0x40_0000_0000;

/// One end of a connection: memory, a queue pair, a completion queue.
struct End {
    queue_pair: QueuePair,
    completions: Arc<CompletionQueue>,
    region: MemoryRegion,
    memory: Box<[u64]>,
    iova: u64,
}

impl End {
    fn new(port: &Port, access: Access) -> Self {
        let domain = ProtectionDomain::new(&port.context).unwrap();
        let completions = CompletionQueue::new(&port.context, 256).unwrap();
        let mut memory = vec![0u64; WORDS].into_boxed_slice();
        let address = memory.as_mut_ptr().cast::<u8>();
        let iova = IOVA_PAGE + (address.addr() % rustix::param::page_size()) as u64;
        // SAFETY: the memory lives as long as the region, and is used through volatile accesses
        // only while it is registered.
        let region = unsafe { MemoryRegion::register(&domain, address, size_of_val(&*memory), iova, access) }.unwrap();
        let size = QueuePairSize { sends: 128, inline_bytes: 64 };
        let queue_pair = QueuePair::new(&domain, &completions, port, size).unwrap();
        assert!(queue_pair.inline_bytes() >= 64);
        Self { queue_pair, completions, region, memory, iova }
    }

    fn word(&self, index: usize) -> u64 {
        // SAFETY: a word of the memory; the device may write it meanwhile.
        unsafe { (&raw const self.memory[index]).read_volatile() }
    }

    fn set(&mut self, index: usize, value: u64) {
        // SAFETY: as above.
        unsafe { (&raw mut self.memory[index]).write_volatile(value) }
    }

    fn segment(&self, first: usize, words: usize) -> Segment {
        Segment { address: self.iova + first as u64 * 8, length: words as u32 * 8, key: self.region.lkey() }
    }

    fn target(&self, index: usize) -> Target {
        Target { address: self.iova + index as u64 * 8, key: self.region.rkey() }
    }

    fn post(&self, requests: &[SendRequest<'_>]) {
        let mut chain = SendChain::default();
        for request in requests {
            chain.push(request);
        }
        assert_eq!(chain.len(), requests.len());
        self.queue_pair.post(&mut chain).unwrap();
    }

    fn wait(&self, count: usize) -> Vec<WorkCompletion> {
        let mut found = Vec::new();
        let deadline = Instant::now() + Duration::from_secs(60);
        while found.len() < count {
            self.completions.poll(&mut found).unwrap();
            assert!(Instant::now() < deadline, "{count} completions were expected, there are {found:?}");
            std::thread::yield_now();
        }
        found
    }
}

fn signaled(id: u64, operation: SendOperation<'_>) -> SendRequest<'_> {
    SendRequest { id, operation, signaled: true, fence: false }
}

/// Ports of two devices, or one twice; nothing if there is none.
fn ports() -> Option<[Port; 2]> {
    let open = |name: &str, number| Port::query(&Context::open(name).unwrap(), number, None, 0).unwrap();
    match device_names() {
        Err(error) => {
            println!("skipped: {error}");
            None
        }
        Ok(_) => {
            let topology = Topology::of_this_machine().unwrap();
            let chosen =
                topology.assign(Family::Verbs, &DeviceChoice::Any, None, &[Place::Anywhere, Place::Anywhere]).unwrap();
            Some([0, 1].map(|pe: usize| open(&chosen[pe][0].device.name, chosen[pe][0].port.number)))
        }
    }
}

/// Two ends, connected. A packet without answer is sent again after 0.27 s, at most seven times.
fn pair(ports: &[Port; 2], access: Access) -> [End; 2] {
    let ends = ports.each_ref().map(|port| End::new(port, access));
    let attributes = QpAttributes { traffic_class: 96, udp_sport: Some(0xc123), ..QpAttributes::default() };
    ends[0].queue_pair.connect(&ends[1].queue_pair.address(), &attributes).unwrap();
    ends[1].queue_pair.connect(&ends[0].queue_pair.address(), &QpAttributes::default()).unwrap();
    ends
}

#[test]
fn every_operation_moves_its_bytes() {
    let Some(ports) = ports() else { return };
    let [mut a, mut b] = pair(&ports, Access::ALL);
    for i in 0..WORDS / 2 {
        a.set(i, 0x0101_0101 * i as u64);
    }
    b.set(900, 40);
    let inline = 0xfeed_u64.to_ne_bytes();
    let atomics = ports[0].context.limits().atomicity != Atomicity::None;
    // A chain: unsignaled writes, of which the last says that all are done.
    a.post(&[
        SendRequest {
            id: 1,
            operation: SendOperation::Write(a.segment(0, 512), b.target(0)),
            signaled: false,
            fence: false,
        },
        signaled(2, SendOperation::WriteInline(&inline, b.target(600))),
    ]);
    let done = WorkCompletion { id: 2, qpn: a.queue_pair.qpn(), status: WorkStatus::Success };
    assert_eq!(a.wait(1), [done]);
    assert!((0..512).all(|i| b.word(i) == 0x0101_0101 * i as u64));
    assert_eq!((b.word(600), b.word(601)), (0xfeed, 0));

    // The other way, by a read.
    a.post(&[signaled(3, SendOperation::Read(a.segment(700, 2), b.target(600)))]);
    assert_eq!(a.wait(1)[0].status, WorkStatus::Success);
    assert_eq!((a.word(700), a.word(701)), (0xfeed, 0));

    if atomics {
        let (target, result) = (b.target(900), |index| a.segment(index, 1));
        a.post(&[
            signaled(4, SendOperation::FetchAdd { add: 2, result: result(710), target }),
            signaled(5, SendOperation::CompareSwap { compare: 42, swap: 7, result: result(711), target }),
            // This one misses.
            signaled(6, SendOperation::CompareSwap { compare: 42, swap: 9, result: result(712), target }),
            // Waits for the atomics, since it sends what they fetched.
            SendRequest {
                id: 7,
                operation: SendOperation::Write(a.segment(710, 3), b.target(910)),
                signaled: true,
                fence: true,
            },
        ]);
        let completions = a.wait(4);
        assert_eq!(completions.iter().map(|completion| completion.id).collect::<Vec<_>>(), [4, 5, 6, 7]);
        assert!(completions.iter().all(|completion| completion.status == WorkStatus::Success));
        assert_eq!(b.word(900), 7);
        assert_eq!([910, 911, 912].map(|i| b.word(i)), [40, 42, 7]);
    } else {
        println!("atomics are skipped: {} has none", ports[0].context.name());
    }
}

#[test]
fn what_is_forbidden_fails_with_a_status_and_flushes_the_rest() {
    let Some(ports) = ports() else { return };
    let read_only = Access { remote_write: false, remote_atomic: false, ..Access::ALL };
    let [a, b] = pair(&ports, read_only);
    a.post(&[
        SendRequest {
            id: 1,
            operation: SendOperation::Write(a.segment(0, 1), b.target(0)),
            signaled: false,
            fence: false,
        },
        signaled(2, SendOperation::Write(a.segment(0, 1), b.target(1))),
    ]);
    let completions = a.wait(2);
    let codes: Vec<_> = completions
        .iter()
        .map(|completion| match completion.status {
            WorkStatus::Failed { code, .. } => (completion.id, code),
            WorkStatus::Success => panic!("{completion:?}"),
        })
        .collect();
    assert_eq!(codes, [(1, REM_ACCESS), (2, FLUSHED)]);
    assert_eq!(a.queue_pair.status_text(REM_ACCESS), "remote access error");
    assert_eq!((b.word(0), b.word(1)), (0, 0));
}

#[test]
fn a_peer_that_is_gone_exhausts_the_retries() {
    let Some(ports) = ports() else { return };
    let ends = ports.each_ref().map(|port| End::new(port, Access::ALL));
    // 4 ms, and the highest number of further tries.
    let attributes = QpAttributes { ack_timeout: 10, retry_count: 7, ..QpAttributes::default() };
    ends[0].queue_pair.connect(&ends[1].queue_pair.address(), &attributes).unwrap();
    ends[1].queue_pair.connect(&ends[0].queue_pair.address(), &attributes).unwrap();
    let [a, b] = ends;
    let target = b.target(0);
    drop(b);
    a.post(&[signaled(1, SendOperation::Write(a.segment(0, 1), target))]);
    let completion = a.wait(1)[0];
    assert!(
        matches!(completion.status, WorkStatus::Failed { code: RETRY_EXCEEDED, .. }),
        "{completion:?}: {}",
        a.queue_pair.status_text(RETRY_EXCEEDED)
    );
    // Work that is outstanding when a queue pair is ended is flushed, too.
    a.queue_pair.fail().unwrap();
    a.post(&[signaled(2, SendOperation::Write(a.segment(0, 1), target))]);
    assert!(matches!(a.wait(1)[0].status, WorkStatus::Failed { code: FLUSHED, .. }));
}

#[test]
fn messages_are_short_on_soft_roce_alone() {
    let Some(ports) = ports() else { return };
    for port in ports {
        // Only the driver rdma_rxe has this attribute: the network device that it is on.
        let soft = Path::new("/sys/class/infiniband").join(port.context.name()).join("parent").exists();
        let packets = (port.max_message / port.info.mtu.bytes()) as usize;
        assert!(if soft { packets == 4 } else { packets > 4 }, "{packets} packets on {}", port.context.name());
    }
}

#[test]
fn bad_input_is_named() {
    let Some([port, _]) = ports() else { return };
    let name = port.context.name().to_owned();
    let error = Context::open("mlx5_99").unwrap_err();
    assert!(matches!(&error, VerbsError::NoSuchDevice { present, .. } if present.contains(&name)), "{error}");
    let error = Port::query(&port.context, 9, None, 0).unwrap_err();
    assert!(matches!(error, VerbsError::NoSuchPort { port: 9, .. }), "{error}");
    for index in [200, 255, 1 << 20] {
        let error = Port::query(&port.context, port.info.number, Some(index), 0).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, VerbsError::GidIndex { .. }), "{text}");
        assert!(
            text.contains(&format!("OXSHMEM_IB_GID_INDEX={index}")) && text.contains(&port.info.gid.to_string()),
            "{text}"
        );
    }
    let again = Port::query(&port.context, port.info.number, Some(u32::from(port.info.gid_index)), 0).unwrap();
    assert_eq!(again.info, port.info);
    let error = Port::query(&port.context, port.info.number, None, u16::MAX).unwrap_err();
    assert!(matches!(error, VerbsError::PkeyIndex { index: u16::MAX, .. }), "{error}");

    let domain = ProtectionDomain::new(&port.context).unwrap();
    let completions = CompletionQueue::new(&port.context, 16).unwrap();
    let too_deep = QueuePairSize { sends: port.context.limits().queue_depth + 1, inline_bytes: 0 };
    let error = QueuePair::new(&domain, &completions, &port, too_deep).unwrap_err();
    assert!(error.to_string().contains("lower OXSHMEM_QP_DEPTH"), "{error}");
    let error = CompletionQueue::new(&port.context, port.context.limits().cq_depth + 1).unwrap_err();
    assert!(matches!(error, VerbsError::Unsupported { .. }), "{error}");

    // Memory that is not mapped, and a descriptor that is not a dma-buf.
    let nowhere = std::ptr::without_provenance_mut(0x1000);
    // SAFETY: nothing is there, so registering fails.
    let error = unsafe { MemoryRegion::register(&domain, nowhere, 4096, 0, Access::ALL) }.unwrap_err();
    assert!(error.to_string().contains("4096 bytes"), "{error}");
    // SAFETY: as above.
    let error = unsafe { MemoryRegion::register(&domain, nowhere, 4096, 8, Access::ALL) }.unwrap_err();
    assert!(error.to_string().contains("offset in a page"), "{error}");
    let file = std::fs::File::open("/dev/null").unwrap();
    // SAFETY: as above.
    let error = unsafe {
        MemoryRegion::register_dmabuf(&domain, std::os::fd::AsFd::as_fd(&file), 0, 4096, 0, Access::ALL).unwrap_err()
    };
    println!("no dma-buf: {error}");

    let queue_pair = QueuePair::new(&domain, &completions, &port, QueuePairSize { sends: 8, inline_bytes: 0 }).unwrap();
    let peer = queue_pair.address();
    let other = match peer.link_layer {
        oxshmem_hca::provider::LinkLayer::Ethernet => oxshmem_hca::provider::LinkLayer::InfiniBand,
        oxshmem_hca::provider::LinkLayer::InfiniBand => oxshmem_hca::provider::LinkLayer::Ethernet,
    };
    let stranger = oxshmem_hca::objects::QpAddress { link_layer: other, ..peer };
    let error = queue_pair.connect(&stranger, &QpAttributes::default()).unwrap_err();
    assert!(matches!(error, VerbsError::Route(RouteError::Networks { .. })), "{error}");
}

/// The limit of locked memory binds those without CAP_IPC_LOCK only, so this test gives the
/// capability up, in a thread of its own.
#[test]
fn a_limit_of_locked_memory_is_named() {
    let Some([port, _]) = ports() else { return };
    let domain = ProtectionDomain::new(&port.context).unwrap();
    std::thread::spawn(move || {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        let sets = rustix::thread::capabilities(None).unwrap();
        let kept = rustix::thread::CapabilitySets {
            effective: sets.effective - rustix::thread::CapabilitySet::IPC_LOCK,
            ..sets
        };
        rustix::thread::set_capabilities(None, kept).unwrap();
        let limit = getrlimit(Resource::Memlock);
        setrlimit(Resource::Memlock, Rlimit { current: Some(64 << 10), ..limit }).unwrap();
        let mut memory = vec![0u8; 1 << 20];
        let address = memory.as_mut_ptr();
        let iova = address.addr() as u64;
        // SAFETY: as far as it is registered, it is dropped after the region.
        let result = unsafe { MemoryRegion::register(&domain, address, memory.len(), iova, Access::ALL) };
        let error = result.unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, VerbsError::LockedMemory { bytes: 1_048_576, limit: 65_536, .. }), "{text}");
        assert!(text.contains("ulimit -l"), "{text}");
        setrlimit(Resource::Memlock, limit).unwrap();
    })
    .join()
    .unwrap();
}
