//! The tests of transfers, queues, violations and faults between HCAs that reach each other over
//! TCP, as on two nodes; and what only such a connection meets.
#![allow(clippy::unwrap_used, missing_docs)]
#![allow(clippy::duplicate_mod, reason = "each of the test programs has its own `common`")]

mod common;
#[path = "cpu_engine.rs"]
mod cpu_engine;
#[path = "faults.rs"]
mod faults;
#[path = "queues.rs"]
mod queues;
#[path = "transfers.rs"]
mod transfers;
#[path = "violations.rs"]
mod violations;

use common::{LIMIT, Pair};
use oxshmem_hca::objects::QpAttributes;
use oxshmem_hca::port::Gid;
use oxshmem_hca::provider::Provider;
use oxshmem_hca::soft::{SoftHca, SoftOptions};
use oxshmem_hca::testing::{Endpoint, EndpointOptions};
use oxshmem_hca::wire::cqe::{self, Syndrome};
use oxshmem_hca::wire::ctrl::Fence;
use oxshmem_hca::wire::{BLOCK_BYTES, MAX_WQE_BYTES, Op, Wqe};
use oxshmem_system::challenge::{BYTES, Nonces, Role, prove};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

const SECRET: &[u8] = b"the secret of a job";

/// An HCA that listens, and where.
fn listening() -> (Arc<SoftHca>, SocketAddr) {
    let hca = SoftHca::open(SoftOptions::default()).unwrap();
    let address = hca.listen("127.0.0.1:0".parse().unwrap(), SECRET).unwrap();
    (hca, address)
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream
}

/// Whether the other side closes without a further byte.
fn is_closed(stream: &mut TcpStream) -> bool {
    match stream.read(&mut [0; 1]) {
        Ok(bytes) => bytes == 0,
        // A connection that is reset is closed as well; one that is silent is not.
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    }
}

fn hello(to: Gid) -> Vec<u8> {
    let (hi, lo) = to.halves();
    let mut bytes = b"OXHT\x01\0\0\0".to_vec();
    for word in [7u64, 8, hi, lo] {
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    bytes.extend_from_slice(&[9; BYTES]);
    bytes
}

/// The proof that follows a challenge.
fn proof(hello: &[u8], challenge: &[u8], secret: &[u8]) -> [u8; BYTES] {
    let nonces = Nonces { connecting: [9; BYTES], accepting: std::array::from_fn(|i| challenge[8 + i]) };
    let context = [b"oxshmem fabric between nodes", &hello[8..40]].concat();
    prove(secret, Role::Connecting, &nonces, &context)
}

#[test]
fn a_stranger_learns_nothing_and_harms_no_member() {
    let mut pair = Pair::new(EndpointOptions::default(), SoftOptions::default);
    let (hca, address) = listening();
    let gid = hca.info().port.gid;
    let good = hello(gid);
    let mut other_version = good.clone();
    other_version[4] = 2;
    for garbage in [
        &b"GET / HTTP/1.1\r\nHost: node1\r\nAccept: */*\r\n\r\n0123456789012345678901234567890"[..],
        &other_version,
        &hello(Gid::default()),
    ] {
        let mut stream = connect(address);
        stream.write_all(garbage).unwrap();
        assert!(is_closed(&mut stream), "{garbage:?}");
    }
    // A proof with another secret, one that was recorded, and none.
    let mut first = connect(address);
    first.write_all(&good).unwrap();
    let mut challenge = [0; 40];
    first.read_exact(&mut challenge).unwrap();
    let recorded = proof(&good, &challenge, SECRET);
    for answer in [proof(&good, &challenge, b"another secret"), recorded] {
        let mut stream = connect(address);
        stream.write_all(&good).unwrap();
        let mut second = [0; 40];
        stream.read_exact(&mut second).unwrap();
        assert_ne!(second, challenge);
        stream.write_all(&answer).unwrap();
        assert!(is_closed(&mut stream));
    }
    let mut silent = connect(address);
    silent.write_all(&good[..20]).unwrap();
    assert!(is_closed(&mut silent), "a connection that proves nothing stays");
    let remote = Endpoint::remote(&pair.b.address(), 0);
    pair.run(Op::WriteInline { remote, payload: &[5] });
}

#[test]
fn a_member_that_sends_garbage_is_disconnected() {
    let (hca, address) = listening();
    let hello = hello(hca.info().port.gid);
    let frame = |len: u32, kind: u16, number: u64| {
        let mut bytes = [&len.to_le_bytes()[..], &kind.to_le_bytes(), &[0; 2], &[0; 8], &number.to_le_bytes()].concat();
        bytes.resize(bytes.len() + 48, 0);
        bytes
    };
    // An unknown kind, a body that is too long, one that does not fit its kind, and a gap.
    for garbage in [frame(8, 99, 0), frame(1 << 30, 2, 0), frame(9, 1, 0), frame(48, 3, 5)] {
        let mut stream = connect(address);
        stream.write_all(&hello).unwrap();
        let mut challenge = [0; 40];
        stream.read_exact(&mut challenge).unwrap();
        stream.write_all(&proof(&hello, &challenge, SECRET)).unwrap();
        stream.read_exact(&mut [0; BYTES]).unwrap();
        stream.write_all(&garbage).unwrap();
        assert!(is_closed(&mut stream), "{garbage:?}");
    }
}

#[test]
fn an_hca_of_another_job_is_not_connected_to() {
    let (hca, address) = listening();
    let own = SoftHca::open(SoftOptions::default()).unwrap();
    own.listen("127.0.0.1:0".parse().unwrap(), b"another secret").unwrap();
    own.add_route(hca.info().port.gid, address, b"another secret");
    let provider = |hca: &Arc<SoftHca>| -> Arc<dyn Provider> { Arc::<SoftHca>::clone(hca) };
    let a = Endpoint::new(&provider(&own), EndpointOptions::default()).unwrap();
    let b = Endpoint::new(&provider(&hca), EndpointOptions::default()).unwrap();
    let error = a.connect(&b.address(), &QpAttributes::default()).unwrap_err().to_string();
    assert!(error.contains("proved that it belongs to the job") && error.contains("OXSHMEM_INTERFACE"), "{error}");
}

#[test]
fn a_connection_that_breaks_is_a_transport_error() {
    // A relay in between, which can cut the line.
    let (ends, line) = std::sync::mpsc::channel();
    let ((hca_a, mut a), b) = relayed(move |near, far| {
        for (mut from, mut to) in [
            (near.try_clone().unwrap(), far.try_clone().unwrap()),
            (far.try_clone().unwrap(), near.try_clone().unwrap()),
        ] {
            std::thread::spawn(move || std::io::copy(&mut from, &mut to));
        }
        ends.send((near, far)).unwrap();
    });
    let (near, far) = line.recv_timeout(LIMIT).unwrap();
    let remote = Endpoint::remote(&b.address(), 0);
    let index = a.post_and_ring(Op::WriteInline { remote, payload: &[7] });
    let cqe = a.wait(index, LIMIT, std::thread::yield_now).unwrap();
    assert!(matches!(cqe.status, cqe::Status::Done { .. }), "{cqe}");
    for stream in [near, far] {
        stream.shutdown(std::net::Shutdown::Both).unwrap();
    }
    let index = a.post_and_ring(Op::WriteInline { remote, payload: &[1] });
    let cqe = a.wait(index, LIMIT, std::thread::yield_now).unwrap();
    let exceeded = cqe::Status::Error { syndrome: Syndrome::RetryExceeded as u8, vendor_syndrome: 0 };
    assert_eq!(cqe.status, exceeded);
    assert!(hca_a.violations()[0].message.contains("is gone"), "{:?}", hca_a.violations());
    assert_eq!(b.heap.read(0, 1), [7]);
}

/// Two endpoints whose line a relay is in, which gets the stream from the initiator and the one to
/// the target once both are there.
fn relayed(relay: impl FnOnce(TcpStream, TcpStream) + Send + 'static) -> ((Arc<SoftHca>, Endpoint), Endpoint) {
    let ((hca_a, address_a), (hca_b, target)) = (listening(), listening());
    let between = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    hca_a.add_route(hca_b.info().port.gid, between.local_addr().unwrap(), SECRET);
    hca_b.add_route(hca_a.info().port.gid, address_a, SECRET);
    std::thread::spawn(move || relay(between.accept().unwrap().0, TcpStream::connect(target).unwrap()));
    let provider = |hca: &Arc<SoftHca>| -> Arc<dyn Provider> { Arc::<SoftHca>::clone(hca) };
    let a = Endpoint::new(&provider(&hca_a), EndpointOptions::default()).unwrap();
    let b = Endpoint::new(&provider(&hca_b), EndpointOptions::default()).unwrap();
    a.connect(&b.address(), &QpAttributes::default()).unwrap();
    b.connect(&a.address(), &QpAttributes::default()).unwrap();
    ((hca_a, a), b)
}

#[test]
fn a_read_is_not_done_without_its_data() {
    const GREETING: usize = 40 + BYTES;
    // The target's data never arrives; in its place the initiator hears that the read is done.
    let ((hca, mut a), b) = relayed(|near, far| {
        let (mut to_far, mut from_near) = (far.try_clone().unwrap(), near.try_clone().unwrap());
        std::thread::spawn(move || std::io::copy(&mut from_near, &mut to_far));
        let (mut far, mut near) = (far, near);
        let mut greeting = [0; 40];
        far.read_exact(&mut greeting).unwrap();
        near.write_all(&greeting).unwrap();
        far.read_exact(&mut greeting[..GREETING - 40]).unwrap();
        near.write_all(&greeting[..GREETING - 40]).unwrap();
        let mut header = [0; 24];
        while far.read_exact(&mut header).is_ok() {
            let len = u32::from_le_bytes([header[0], header[1], header[2], header[3]]);
            std::io::copy(&mut (&mut far).take(len.into()), &mut std::io::sink()).unwrap();
            header[..6].copy_from_slice(&[0, 0, 0, 0, 0x81, 0]);
            near.write_all(&header).unwrap();
        }
    });
    let remote = Endpoint::remote(&b.address(), 0);
    let index = a.post_and_ring(Op::Read { remote, local: Some(a.local(0, 8)) });
    let cqe = a.wait(index, LIMIT, std::thread::yield_now).unwrap();
    let exceeded = cqe::Status::Error { syndrome: Syndrome::RetryExceeded as u8, vendor_syndrome: 0 };
    assert_eq!(cqe.status, exceeded);
    let violations = hca.violations();
    assert!(violations[0].message.contains("0 of its 8 bytes are here"), "{}", violations[0]);
}

#[test]
fn a_work_request_that_waits_for_a_read_counts_once() {
    let pair_of = || SoftOptions { stepped: true, ..SoftOptions::default() };
    let mut pair = Pair::new(EndpointOptions::default(), pair_of);
    let remote = Endpoint::remote(&pair.b.address(), 0);
    pair.a.post(Op::Read { remote, local: Some(pair.a.local(0, 4096)) }, false);
    let mut wqe = Wqe::new(pair.a.qp.qpn(), 1, true, Op::WriteInline { remote, payload: &[1] });
    wqe.fence = Fence::StrongOrdering;
    let mut bytes = [0; MAX_WQE_BYTES];
    wqe.emit(&mut bytes);
    let index = pair.a.post_raw(&bytes[..BLOCK_BYTES]);
    pair.a.ring();
    let cqe = pair.a.wait(index, LIMIT, || {
        pair.step();
    });
    assert!(matches!(cqe.as_ref().unwrap().status, cqe::Status::Done { .. }), "{cqe:?}");
    assert_eq!(pair.hca_a.counters().unwrap().strong, 1);
}

#[test]
fn requests_of_many_queues_and_sizes_share_a_connection() {
    let options = EndpointOptions { heap_bytes: 16 << 20, ..EndpointOptions::default() };
    let mut pair = Pair::new(options, SoftOptions::default);
    let pattern: Vec<u8> = (0..12_000_001u32).map(|i| ((i * 31) >> 3) as u8).collect();
    pair.a.heap.write(5, &pattern);
    // A long write, a long read of what it wrote, and small ones behind both.
    let remote = Endpoint::remote(&pair.b.address(), 3);
    let len = pattern.len() as u32;
    pair.a.post(Op::Write { remote, local: Some(pair.a.local(5, len)) }, false);
    pair.a.heap.write(13 << 20, &[0; 4096]);
    pair.a.post(Op::Read { remote, local: Some(pair.a.local(13 << 20, 4096)) }, false);
    let last = pair.a.post_and_ring(Op::WriteInline { remote, payload: &[9; 3] });
    let cqe = pair.a.wait(last, LIMIT, std::thread::yield_now).unwrap();
    assert!(matches!(cqe.status, cqe::Status::Done { .. }), "{cqe}");
    assert_eq!(pair.a.heap.read(13 << 20, 4096), pattern[..4096]);
    assert_eq!(pair.b.heap.read(3, 3), [9; 3]);
    assert_eq!(pair.b.heap.read(6, pattern.len() - 3), pattern[3..]);
}
