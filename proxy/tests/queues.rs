//! The engine over queue pairs whose HCA does not say what failed first on one, as a card does not:
//! its collapsed CQ shows the request that was flushed last.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use oxshmem_hca::Result;
use oxshmem_hca::objects::{Mkey, Pd, QpAddress, QpAttributes};
use oxshmem_hca::provider::{
    Access, Attempt, Counters, HcaInfo, MemoryKey, ObjectHandle, Provider, QpFailure, Rung, UarPage, UmemSource,
};
use oxshmem_hca::soft::{SoftHca, SoftOptions};
use oxshmem_hca::testing::{HEAP_START, SharedMemory};
use oxshmem_hca::wire::ctrl::Fence;
use oxshmem_proxy::descriptor::{Descriptor, Landing, Request};
use oxshmem_proxy::devx::{QueueLayout, Queues};
use oxshmem_proxy::engine::{
    Acknowledgement, EXTRA_SLOTS, Engine, EngineOptions, LANDING_BYTES, Results, acknowledgement,
};
use oxshmem_proxy::striping::Striping;
use oxshmem_proxy::work::{Atomic, Backend, Failure, Registered, Remote, Status, Width};

const BYTES: usize = 1 << 16;
const LAYOUT: QueueLayout = QueueLayout { count: 1, log_depth: 6 };
const SLOTS: u32 = 8;
const LANDING: u64 = 0x20_0000_0000;

/// A software HCA that tells as little of errors as a card.
#[derive(Debug)]
struct Silent(Arc<SoftHca>);

impl Provider for Silent {
    fn info(&self) -> &HcaInfo {
        self.0.info()
    }

    fn alloc_uar(&self, rung: Rung) -> Result<UarPage> {
        self.0.alloc_uar(rung)
    }

    fn free_uar(&self, page_id: u32) -> Result<()> {
        self.0.free_uar(page_id)
    }

    unsafe fn reg_umem(&self, source: UmemSource<'_>, access: Access) -> Result<u32> {
        // SAFETY: the caller's promise is the same.
        unsafe { self.0.reg_umem(source, access) }
    }

    fn dereg_umem(&self, umem_id: u32) -> Result<()> {
        self.0.dereg_umem(umem_id)
    }

    unsafe fn reg_key(&self, pdn: u32, source: UmemSource<'_>, iova: u64, access: Access) -> Result<Option<MemoryKey>> {
        // SAFETY: the caller's promise is the same.
        unsafe { self.0.reg_key(pdn, source, iova, access) }
    }

    fn dereg_key(&self, id: u64) -> Result<()> {
        self.0.dereg_key(id)
    }

    fn next_hop(&self, peer: &QpAddress, attributes: &QpAttributes) -> Result<[u8; 6]> {
        self.0.next_hop(peer, attributes)
    }

    fn obj_create(&self, input: &[u8], output: &mut [u8]) -> Result<ObjectHandle> {
        self.0.obj_create(input, output)
    }

    fn obj_modify(&self, object: ObjectHandle, input: &[u8], output: &mut [u8]) -> Result<()> {
        self.0.obj_modify(object, input, output)
    }

    fn obj_query(&self, object: ObjectHandle, input: &[u8], output: &mut [u8]) -> Result<()> {
        self.0.obj_query(object, input, output)
    }

    fn obj_destroy(&self, object: ObjectHandle) -> Result<()> {
        self.0.obj_destroy(object)
    }

    fn general_cmd(&self, input: &[u8], output: &mut [u8]) -> Result<()> {
        self.0.general_cmd(input, output)
    }

    fn prepare(&self, uses: &[(u32, u32)]) -> Result<()> {
        self.0.prepare(uses)
    }

    fn counters(&self) -> Option<Counters> {
        self.0.counters()
    }

    fn first_failure(&self, _: u32) -> Option<QpFailure> {
        None
    }

    fn attempts(&self) -> Vec<Attempt> {
        self.0.attempts()
    }

    fn dead(&self) -> Option<String> {
        self.0.dead()
    }

    fn when_dead(&self, hook: Box<dyn Fn() + Send + Sync>) {
        self.0.when_dead(hook);
    }
}

/// One side: an HCA without a thread, a queue pair, and memory that either side may use.
struct Side {
    queues: Queues,
    key: Mkey,
    hca: Arc<SoftHca>,
    memory: SharedMemory,
    _places: SharedMemory,
}

impl Side {
    fn new(faults: &str, start: u64) -> Self {
        let faults = faults.parse().unwrap();
        let hca = SoftHca::open(SoftOptions { stepped: true, faults, ..SoftOptions::default() }).unwrap();
        let provider: Arc<dyn Provider> = Arc::new(Silent(Arc::clone(&hca)));
        let pd = Pd::alloc(&provider).unwrap();
        let places = SharedMemory::new(LAYOUT.bytes() as usize).unwrap();
        let memory = SharedMemory::new(BYTES).unwrap();
        // SAFETY: both memories are fields behind what uses them.
        let (queues, key) = unsafe {
            (
                Queues::create(&pd, places.base(), LAYOUT, true, Fence::Fence, || {}).unwrap(),
                Mkey::register(&pd, memory.source(), None, start, Access::ALL).unwrap(),
            )
        };
        Self { queues, key, hca, memory, _places: places }
    }
}

/// The landing slots in a side's memory.
struct Landings<'a>(&'a SharedMemory);

impl Results for Landings<'_> {
    fn load(&self, slot: u32) -> u64 {
        let at = u64::from(slot) * LANDING_BYTES;
        self.0.word(at as usize).load(std::sync::atomic::Ordering::Acquire)
    }

    fn store(&mut self, slot: u32, value: u64) {
        let at = u64::from(slot) * LANDING_BYTES;
        self.0.word(at as usize).store(value, std::sync::atomic::Ordering::Release);
    }
}

/// Adds 1 to a word of the peer; the old value goes to landing slot `slot`.
fn fetch_add(slot: u32, key: u32) -> Descriptor {
    let request = Request::Atomic {
        operands: Atomic::Add { value: 1, boundary: 0 },
        width: Width::Eight,
        landing: Some(Landing { slot, lap: 0 }),
        target: Remote { address: HEAP_START, key },
    };
    Descriptor { pe: 1, queue: 0, ordered: false, request }
}

#[test]
fn no_fetch_is_acknowledged_as_good_that_only_a_flushed_entry_has_covered() {
    // The first fetch takes block 0 and the next three blocks 1 to 3, the second of which fails.
    let mut own = Side::new("error=0x13@qp0:2", LANDING);
    let peer = Side::new("", HEAP_START);
    let addresses = [&own, &peer].map(|side| side.queues.address(0).unwrap());
    own.queues.connect(&[(0, addresses[1], QpAttributes::default())]).unwrap();
    peer.queues.connect(&[(0, addresses[0], QpAttributes::default())]).unwrap();
    let mut keys = [0; oxshmem_hca::topology::MAX_SENDERS];
    keys[0] = own.key.lkey();
    let options = EngineOptions {
        me: 0,
        n_pes: 2,
        striping: Striping::new(1, 1),
        own: false,
        window: 64,
        landing: Registered { address: LANDING, length: 0, keys },
        slots: SLOTS,
        staging: None,
    };
    assert!(u64::from(SLOTS + EXTRA_SLOTS) * LANDING_BYTES <= BYTES as u64);
    let mut engine = Engine::new(options, *own.queues.capabilities());
    let mut run = |slots: std::ops::Range<u32>| -> (Vec<Acknowledgement>, Vec<Status>) {
        slots.for_each(|slot| engine.accept(&fetch_add(slot, peer.key.rkey()).encode()));
        let mut chain = Vec::new();
        while let Some(qp) = engine.chain(&mut chain) {
            own.queues.post(qp, &chain).unwrap();
        }
        while own.hca.progress() + peer.hca.progress() > 0 || own.hca.is_waiting() {}
        let mut completions = Vec::new();
        own.queues.poll(&mut completions).unwrap();
        completions.iter().for_each(|completion| engine.complete(completion, &mut Landings(&own.memory)));
        (engine.acknowledgements().collect(), completions.iter().map(|completion| completion.status).collect())
    };
    let told = |slot, failed| Acknowledgement { slot, value: acknowledgement(0, failed) };
    assert_eq!(run(0..1), (vec![told(0, false)], vec![Status::Success]));
    // The entry of the request that failed is gone when it is looked for.
    let (acknowledged, statuses) = run(1..4);
    assert!(matches!(statuses[..], [Status::Failed { what: Failure::Flushed, .. }]), "{statuses:?}");
    assert_eq!(acknowledged, [1, 2, 3].map(|slot| told(slot, true)));
    assert_eq!(engine.failures(), (3, 1));
    assert!(engine.is_idle());
}
