//! The wire formats against rdma-core's own header: `golden.c` fills segments with mlx5dv.h's
//! inline setters and structures.
//!
//! Needs a C compiler and libibverbs-dev (`infiniband/mlx5dv.h`); without them the comparison is
//! skipped, with the reason printed.
#![allow(clippy::unwrap_used, missing_docs)]

use oxshmem_hca::wire::cqe::{self, Syndrome};
use oxshmem_hca::wire::ctrl::{Fence, Opcode};
use oxshmem_hca::wire::{atomic, ctrl, data, dbr, inline, raddr};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// Returns the values that golden.c prints, or why there are none.
fn golden() -> Result<BTreeMap<String, String>, String> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden.c");
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("golden");
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let probe = Command::new(&compiler)
        .args(["-E", "-include", "infiniband/mlx5dv.h", "-x", "c", "/dev/null", "-o", "/dev/null"])
        .output()
        .map_err(|error| format!("no C compiler `{compiler}`: {error}"))?;
    if !probe.status.success() {
        return Err("infiniband/mlx5dv.h is not installed (package libibverbs-dev)".into());
    }
    // From here on nothing is skipped: the header is there, so golden.c must compile.
    let output = Command::new(&compiler).arg("-o").arg(&program).arg(&source).output().unwrap();
    assert!(output.status.success(), "golden.c: {}", String::from_utf8_lossy(&output.stderr));
    let output = Command::new(&program).output().unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    Ok(text
        .lines()
        .map(|line| line.split_once(' ').unwrap())
        .map(|(name, value)| (name.into(), value.into()))
        .collect())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn emitted<const N: usize>(emit: impl FnOnce(&mut [u8])) -> String {
    // Not zeros, so that a byte that is not written shows.
    let mut bytes = [0xaa; N];
    emit(&mut bytes);
    hex(&bytes)
}

fn ctrl(repr: ctrl::Repr) -> String {
    emitted::<16>(|bytes| repr.emit(&mut ctrl::Segment::new_unchecked(bytes)))
}

/// Returns the same as golden.c, made by this crate.
fn ours() -> BTreeMap<String, String> {
    let plain = ctrl::Repr {
        opcode: Opcode::RdmaWrite,
        opmod: 0,
        index: 0xbeef,
        qpn: 0xabcdef,
        ds: 3,
        fence: Fence::None,
        signaled: true,
        solicited: false,
    };
    let masked = ctrl::Repr {
        opcode: Opcode::AtomicMaskedCs,
        opmod: 9,
        index: 7,
        qpn: 0x41,
        ds: 5,
        fence: Fence::SmallAndFence,
        signaled: true,
        solicited: true,
    };
    let nop = ctrl::Repr {
        opcode: Opcode::Nop,
        index: 65535,
        qpn: 1,
        ds: 1,
        fence: Fence::InitiatorSmall,
        signaled: false,
        ..plain
    };
    let atomic = |repr: atomic::Repr| emitted::<16>(|bytes| repr.emit(&mut atomic::Segment::new_unchecked(bytes)));
    let (swap, compare) = (0x1122_3344_5566_7788, 0x99aa_bbcc_ddee_ff00);
    let completion = cqe::Repr {
        wqe_opcode: Opcode::RdmaRead as u8,
        qpn: 0xabcdef,
        wqe_counter: 0xfeed,
        owner: true,
        status: cqe::Status::Done { byte_cnt: 4097, timestamp: 0x0102_0304_0506_0708 },
    };
    let failure = cqe::Repr {
        wqe_opcode: Opcode::AtomicFa as u8,
        qpn: 0x40,
        wqe_counter: 12,
        owner: false,
        status: cqe::Status::Error { syndrome: Syndrome::RemoteAccess as u8, vendor_syndrome: 0x77 },
    };
    let cqe = |repr: cqe::Repr| emitted::<64>(|bytes| repr.emit(&mut cqe::Segment::new_unchecked(bytes)));
    let data = data::Repr { byte_count: 0x1234_5678, lkey: 0x9abc_def0, addr: 0x0123_4567_89ab_cdef };
    let raddr = raddr::Repr { raddr: 0xfedc_ba98_7654_3210, rkey: 0xcafe_5a5a };
    let inline = inline::Repr { payload: &[0; 28] };
    let mut all: BTreeMap<String, String> = [
        ("ctrl_write", ctrl(plain)),
        ("ctrl_masked", ctrl(masked)),
        ("ctrl_nop", ctrl(nop)),
        ("data", emitted::<16>(|bytes| data.emit(&mut data::Segment::new_unchecked(bytes)))),
        ("raddr", emitted::<16>(|bytes| raddr.emit(&mut raddr::Segment::new_unchecked(bytes)))),
        ("atomic_fa", atomic(atomic::Repr::FetchAdd { add: swap })),
        ("atomic_cs", atomic(atomic::Repr::CompareSwap { swap, compare })),
        ("inline", emitted::<32>(|bytes| inline.emit(&mut inline::Segment::new_unchecked(bytes)))[..8].to_owned()),
        ("cqe", cqe(completion)),
        ("err_cqe", cqe(failure)),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), value))
    .collect();
    // Where the syndrome lies, as our getter sees it.
    let syndrome_at = (0..64)
        .find(|at| {
            let mut bytes = [0u8; 64];
            bytes[*at] = 1;
            cqe::Segment::new_unchecked(&bytes[..]).syndrome() == 1
        })
        .unwrap();
    let numbers: [(&str, usize); 31] = [
        ("cqe_opcode", cqe::REQ.into()),
        ("cqe_owner", 1),
        ("offset_cqe_tail", cqe::TAIL_OFFSET),
        ("offset_cqe_counter", cqe::TAIL_OFFSET + 4),
        ("offset_err_syndrome", syndrome_at),
        ("size_cqe", cqe::LEN),
        ("size_block", oxshmem_hca::wire::BLOCK_BYTES),
        ("opcode_nop", Opcode::Nop as usize),
        ("opcode_write", Opcode::RdmaWrite as usize),
        ("opcode_read", Opcode::RdmaRead as usize),
        ("opcode_cs", Opcode::AtomicCs as usize),
        ("opcode_fa", Opcode::AtomicFa as usize),
        ("opcode_masked_cs", Opcode::AtomicMaskedCs as usize),
        ("opcode_masked_fa", Opcode::AtomicMaskedFa as usize),
        ("syndrome_local_length", Syndrome::LocalLength as usize),
        ("syndrome_local_qp_op", Syndrome::LocalQpOperation as usize),
        ("syndrome_local_prot", Syndrome::LocalProtection as usize),
        ("syndrome_flush", Syndrome::WrFlush as usize),
        ("syndrome_mw_bind", Syndrome::MemoryWindowBind as usize),
        ("syndrome_bad_resp", Syndrome::BadResponse as usize),
        ("syndrome_local_access", Syndrome::LocalAccess as usize),
        ("syndrome_remote_inval", Syndrome::RemoteInvalidRequest as usize),
        ("syndrome_remote_access", Syndrome::RemoteAccess as usize),
        ("syndrome_remote_op", Syndrome::RemoteOperation as usize),
        ("syndrome_retry", Syndrome::RetryExceeded as usize),
        ("syndrome_rnr", Syndrome::RnrRetryExceeded as usize),
        ("syndrome_aborted", Syndrome::RemoteAborted as usize),
        ("cqe_req", cqe::REQ.into()),
        ("cqe_req_err", cqe::REQ_ERR.into()),
        ("cqe_invalid", cqe::INVALID.into()),
        ("dbr_send", dbr::SEND_OFFSET),
    ];
    for (name, value) in numbers {
        all.insert(name.to_owned(), value.to_string());
    }
    all
}

#[test]
fn formats_equal_those_of_rdma_core() {
    let golden = match golden() {
        Ok(golden) => golden,
        Err(reason) => {
            println!("skipped: {reason}");
            return;
        }
    };
    let ours = ours();
    let names = |map: &BTreeMap<String, String>| map.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&ours), names(&golden));
    for (name, value) in &golden {
        assert_eq!(&ours[name], value, "{name}");
    }
}
