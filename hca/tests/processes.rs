//! Two processes: this test program starts itself again as the peer.
#![allow(clippy::unwrap_used, missing_docs)]

use oxshmem_hca::objects::QpAttributes;
use oxshmem_hca::provider::Provider;
use oxshmem_hca::soft::{SoftHca, SoftOptions};
use oxshmem_hca::testing::{Endpoint, EndpointAddress, EndpointOptions};
use oxshmem_hca::wire::Op;
use oxshmem_hca::wire::cqe::{self, Syndrome};
use oxshmem_system::fdpass::{Connection, Listener};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering::Acquire;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);
const SOCKET: &str = "OXSHMEM_HCA_TEST_PEER";

/// An endpoint of its own HCA, connected through a control socket.
struct End {
    endpoint: Endpoint,
    hca: Arc<SoftHca>,
    peer: EndpointAddress,
    control: Connection,
}

impl End {
    fn meet(control: Connection) -> Self {
        let hca = SoftHca::open(SoftOptions::default()).unwrap();
        let provider: Arc<dyn Provider> = Arc::clone(&hca) as _;
        let endpoint = Endpoint::new(&provider, EndpointOptions::default()).unwrap();
        control.send(&endpoint.address().to_bytes(), &[], LIMIT).unwrap();
        let mut bytes = [0; 64];
        let len = control.recv(&mut bytes, LIMIT).unwrap().len;
        let peer = EndpointAddress::from_bytes(&bytes[..len]).unwrap();
        // 4.096 us x 2^10 x 4: 17 ms.
        let attributes = QpAttributes { ack_timeout: 10, retry_count: 3, ..QpAttributes::default() };
        endpoint.connect(&peer, &attributes).unwrap();
        Self { endpoint, hca, peer, control }
    }

    fn say(&self, word: &str) {
        self.control.send(word.as_bytes(), &[], LIMIT).unwrap();
    }

    fn hear(&self, word: &str) {
        let mut bytes = [0; 64];
        let len = self.control.recv(&mut bytes, LIMIT).unwrap().len;
        assert_eq!(std::str::from_utf8(&bytes[..len]).unwrap(), word);
    }

    fn run(&mut self, op: Op<'_>) -> cqe::Repr {
        let index = self.endpoint.post_and_ring(op);
        self.endpoint.wait(index, LIMIT, std::thread::yield_now).unwrap()
    }
}

/// A child that is killed when the test ends, however it ends.
struct Peer(Child);

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts this program's test `role` in another process and meets it.
fn with_peer(role: &str) -> (End, Peer) {
    let name = format!("oxshmem-hca-test-{}-{role}", std::process::id());
    let listener = Listener::bind(&name).unwrap();
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--nocapture", role])
        .env(SOCKET, &name)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let peer = Peer(child);
    (End::meet(listener.accept(LIMIT).unwrap()), peer)
}

/// In the child: the other end. In the ordinary run of this test there is none.
fn in_child() -> Option<End> {
    let name = std::env::var(SOCKET).ok()?;
    Some(End::meet(Connection::connect(&name, LIMIT).unwrap()))
}

#[test]
fn peer_that_answers() {
    let Some(mut end) = in_child() else { return };
    end.hear("written");
    assert_eq!(end.endpoint.heap.read(0, 5), b"hello");
    // Reply on this process's QP, twice: data, then the flag that the other end waits for.
    let remote = Endpoint::remote(&end.peer, 64);
    end.endpoint.post(Op::WriteInline { remote, payload: b"answer" }, false);
    let flag = Endpoint::remote(&end.peer, 128);
    end.run(Op::WriteInline { remote: flag, payload: &1u64.to_ne_bytes() });
    for _ in 0..1000 {
        end.endpoint.heap.word(256).fetch_add(1, Acquire);
    }
    end.say("added");
    end.hear("done");
    assert_eq!(end.endpoint.heap.word(256).load(Acquire), 2000);
}

#[test]
fn peer_that_waits_to_be_killed() {
    let Some(end) = in_child() else { return };
    end.say("ready");
    std::thread::sleep(LIMIT);
}

#[test]
fn two_processes_exchange() {
    if std::env::var_os(SOCKET).is_some() {
        return;
    }
    let (mut end, mut peer) = with_peer("peer_that_answers");
    let remote = Endpoint::remote(&end.peer, 0);
    end.run(Op::WriteInline { remote, payload: b"hello" });
    end.say("written");
    let waited = std::time::Instant::now();
    while end.endpoint.heap.word(128).load(Acquire) != 1 {
        assert!(waited.elapsed() < LIMIT, "no answer: {:?}", end.hca.violations());
        std::thread::yield_now();
    }
    assert_eq!(end.endpoint.heap.read(64, 6), b"answer");
    // Atomics against the CPU of the other process.
    let word = Endpoint::remote(&end.peer, 256);
    let local = end.endpoint.local(0, 8);
    for _ in 0..1000 {
        let cqe = end.run(Op::AtomicFa { remote: word, add: 1, local });
        assert!(matches!(cqe.status, cqe::Status::Done { .. }), "{cqe}");
    }
    end.hear("added");
    let back = end.endpoint.local(512, 5);
    end.run(Op::Read { remote, local: Some(back) });
    assert_eq!(end.endpoint.heap.read(512, 5), b"hello");
    end.say("done");
    assert!(peer.0.wait().unwrap().success());
}

#[test]
fn a_killed_peer_exceeds_the_retries_and_others_go_on() {
    if std::env::var_os(SOCKET).is_some() {
        return;
    }
    let (mut end, mut peer) = with_peer("peer_that_waits_to_be_killed");
    end.hear("ready");
    let remote = Endpoint::remote(&end.peer, 0);
    let cqe = end.run(Op::WriteInline { remote, payload: &[1] });
    assert!(matches!(cqe.status, cqe::Status::Done { .. }));
    peer.0.kill().unwrap();
    peer.0.wait().unwrap();
    // A QP to a living peer, here the HCA itself, goes on while the other retries.
    let provider: Arc<dyn Provider> = Arc::clone(&end.hca) as _;
    let mut alive = Endpoint::new(&provider, EndpointOptions::default()).unwrap();
    let target = Endpoint::new(&provider, EndpointOptions::default()).unwrap();
    alive.connect(&target.address(), &QpAttributes::default()).unwrap();
    target.connect(&alive.address(), &QpAttributes::default()).unwrap();
    let mut value = 0u64;
    let waited = std::time::Instant::now();
    loop {
        // Until the death is noticed, writes still land in memory that is no longer read.
        if end.endpoint.cqe().is_some_and(|cqe| matches!(cqe.status, cqe::Status::Error { .. })) {
            break;
        }
        assert!(waited.elapsed() < LIMIT, "{:?}", end.endpoint.cqe());
        if end.endpoint.posted() < 100 {
            end.endpoint.post(Op::WriteInline { remote, payload: &[2] }, true);
            end.endpoint.ring();
        }
        value += 1;
        let op = Op::WriteInline { remote: Endpoint::remote(&target.address(), 0), payload: &value.to_ne_bytes() };
        let index = alive.post_and_ring(op);
        let cqe = alive.wait(index, LIMIT, std::thread::yield_now).unwrap();
        assert!(matches!(cqe.status, cqe::Status::Done { .. }), "{cqe}");
        assert_eq!(target.heap.word(0).load(Acquire), value);
        std::thread::sleep(Duration::from_millis(1));
    }
    // On a collapsed CQ a flushed WQE may have replaced the cause.
    let cause = &end.hca.violations()[0];
    assert_eq!(cause.syndrome, Some(Syndrome::RetryExceeded));
    assert!(cause.message.contains("is gone"), "{cause}");
    // One that is dead before it is first needed is the same.
    let mut fresh = Endpoint::new(&provider, EndpointOptions::default()).unwrap();
    let attributes = QpAttributes { ack_timeout: 4, retry_count: 1, ..QpAttributes::default() };
    fresh.connect(&end.peer, &attributes).unwrap();
    let index = fresh.post_and_ring(Op::Write { remote: Endpoint::remote(&end.peer, 0), local: None });
    let cqe = fresh.wait(index, LIMIT, std::thread::yield_now).unwrap();
    let exceeded = cqe::Status::Error { syndrome: Syndrome::RetryExceeded as u8, vendor_syndrome: 0 };
    assert_eq!(cqe.status, exceeded);
    let violations = end.hca.violations();
    let cause = violations.iter().find(|violation| violation.qpn == fresh.qp.qpn()).unwrap();
    assert!(cause.message.contains(&end.peer.qp.gid.to_string()), "{cause}");
}
