//! What the firmware of the software HCA refuses, and that objects come and go in order.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::Pair;
use oxshmem_hca::Error;
use oxshmem_hca::objects::{
    Cq, CqAttributes, KEY_VARIANT, Mkey, MkeyAttributes, Pd, Qp, QpAttributes, QpGeometry, Uar, Umem, query_caps,
};
use oxshmem_hca::prm::qpc::{self, QpState, SendDbrMode};
use oxshmem_hca::prm::{self, Command, CommandStatus, Opcode, counter, cq, mkey, pd, qp, uar};
use oxshmem_hca::provider::{Access, Gid, LinkLayer, ObjectHandle, Provider, Rung, UmemSource};
use oxshmem_hca::soft::{SYNDROME_BASE, SoftHca, SoftOptions};
use oxshmem_hca::testing::{Endpoint, EndpointOptions, HEAP_START, SharedMemory};
use oxshmem_hca::wire::Op;
use std::sync::Arc;

fn stepped() -> SoftOptions {
    SoftOptions { stepped: true, ..SoftOptions::default() }
}

fn open() -> Arc<dyn Provider> {
    SoftHca::open(stepped()).unwrap()
}

/// The command is refused with this status, and the output says the same as the error.
#[track_caller]
fn refused<T>(result: Result<T, Error>, status: CommandStatus, text: &str) -> u32 {
    match result.err().expect("the command was accepted") {
        Error::Command { status: got, detail, syndrome, .. } => {
            assert_eq!(got, status, "{detail}");
            assert!(detail.contains(text), "`{text}` is not in `{detail}`");
            syndrome
        }
        other => panic!("{other}"),
    }
}

fn create<C: Command>(provider: &Arc<dyn Provider>, command: &C) -> Result<ObjectHandle, Error> {
    let mut output = vec![0xaa; C::OUT_LEN];
    let result = provider.obj_create(&command.encode(), &mut output);
    match &result {
        Ok(_) => assert_eq!(prm::outcome(&output), (CommandStatus::Ok, 0)),
        Err(Error::Command { status, syndrome, .. }) => assert_eq!(prm::outcome(&output), (*status, *syndrome)),
        Err(other) => panic!("{other}"),
    }
    result
}

fn modify<C: Command>(provider: &Arc<dyn Provider>, qp: ObjectHandle, command: &C) -> Result<(), Error> {
    provider.obj_modify(qp, &command.encode(), &mut vec![0; C::OUT_LEN])
}

/// Objects of one HCA, with raw commands that would succeed.
struct Bench {
    provider: Arc<dyn Provider>,
    memory: SharedMemory,
    umem: u32,
    pd: u32,
    uar: u32,
    cq: u32,
}

impl Bench {
    fn new() -> Self {
        let provider = open();
        let memory = SharedMemory::new(1 << 16).unwrap();
        // SAFETY: the memory lives as long as the bench, and with it the HCA.
        let umem = unsafe { provider.reg_umem(memory.source(), Access::ALL) }.unwrap();
        let uar = provider.alloc_uar(Rung::ByDevice).unwrap().page_id;
        let mut out = vec![0; pd::AllocPd::OUT_LEN];
        provider.obj_create(&pd::AllocPd {}.encode(), &mut out).unwrap();
        let pd = pd::AllocPd::decode_output(&out).pd;
        let mut bench = Self { provider, memory, umem, pd, uar, cq: 0 };
        let mut out = vec![0; cq::CreateCq::OUT_LEN];
        bench.provider.obj_create(&bench.create_cq().encode(), &mut out).unwrap();
        bench.cq = cq::CreateCq::decode_output(&out).cqn;
        bench
    }

    fn create_cq(&self) -> cq::CreateCq {
        cq::CreateCq {
            cq_umem_offset: 4096,
            cq_umem_id: self.umem,
            cq_umem_valid: true,
            cqc: cq::CqContext {
                dbr_umem_valid: true,
                cc: true,
                oi: true,
                dbr_umem_id: self.umem,
                log_cq_size: 4,
                uar_page: self.uar,
                dbr_addr: 8,
                ..cq::CqContext::default()
            },
        }
    }

    fn create_mkey(&self) -> mkey::CreateMkey {
        mkey::CreateMkey {
            mkey_umem_valid: true,
            mkey_umem_id: self.umem,
            mkey_umem_offset: 8192,
            translations_octword_actual_size: 1,
            mkc: mkey::MkeyContext {
                lr: true,
                lw: true,
                rr: true,
                access_mode_1_0: mkey::ACCESS_MODE_MTT,
                qpn: mkey::ANY_QP,
                pd: self.pd,
                start_addr: 1 << 40,
                len: 4096,
                translations_octword_size: 1,
                log_page_size: 12,
                ..mkey::MkeyContext::default()
            },
        }
    }

    fn create_qp(&self) -> qp::CreateQp {
        qp::CreateQp {
            wq_umem_offset: 16384,
            wq_umem_id: self.umem,
            wq_umem_valid: true,
            qpc: qpc::QpContext {
                pm_state: qpc::MIGRATED,
                pd: self.pd,
                log_sq_size: 7,
                uar_page: self.uar,
                cqn_snd: self.cq,
                cqn_rcv: self.cq,
                rq_type: qpc::ZERO_SIZE_RQ,
                dbr_addr: 64,
                dbr_umem_valid: true,
                dbr_umem_id: self.umem,
                ..qpc::QpContext::default()
            },
            ..qp::CreateQp::default()
        }
    }

    fn qp(&self) -> (ObjectHandle, u32) {
        let mut out = vec![0; qp::CreateQp::OUT_LEN];
        let handle = self.provider.obj_create(&self.create_qp().encode(), &mut out).unwrap();
        (handle, qp::CreateQp::decode_output(&out).qpn)
    }

    /// The three transitions that connect a QP to itself.
    fn transitions(&self, qpn: u32) -> (qp::Rst2InitQp, qp::Init2RtrQp, qp::Rtr2RtsQp) {
        let info = self.provider.info();
        let mut init = qp::Rst2InitQp { qpn, ..Default::default() };
        init.qpc.primary_address_path.vhca_port_num = 1;
        init.qpc.atomic_mode = 3;
        let mut rtr = qp::Init2RtrQp { qpn, ..Default::default() };
        rtr.qpc.mtu = 5;
        rtr.qpc.log_msg_max = 30;
        rtr.qpc.remote_qpn = qpn;
        rtr.qpc.dp_ordering_force = true;
        let path = &mut rtr.qpc.primary_address_path;
        (path.rgid_hi, path.rgid_lo) = info.port.gid.halves();
        path.hop_limit = 64;
        path.udp_sport = 0xc000;
        path.rmac_47_32 = u16::from_be_bytes([info.mac[0], info.mac[1]]);
        let mut rts = qp::Rtr2RtsQp { qpn, ..Default::default() };
        rts.qpc.primary_address_path.ack_timeout = 14;
        (init, rtr, rts)
    }
}

#[test]
fn well_formed_commands_are_accepted_and_read_back() {
    let bench = Bench::new();
    let provider = &bench.provider;
    let (handle, qpn) = bench.qp();
    let (init, rtr, rts) = bench.transitions(qpn);
    modify(provider, handle, &init).unwrap();
    modify(provider, handle, &rtr).unwrap();
    modify(provider, handle, &rts).unwrap();
    let mut out = vec![0; qp::QueryQp::OUT_LEN];
    provider.obj_query(handle, &qp::QueryQp { qpn }.encode(), &mut out).unwrap();
    let context = qp::QueryQp::decode_output(&out).qpc;
    assert_eq!(context.state, QpState::Rts as u8);
    assert_eq!((context.mtu, context.log_msg_max, context.remote_qpn, context.log_sq_size), (5, 30, qpn, 7));
    assert!(context.dp_ordering_force && context.is_in_order());
    assert_eq!(context.primary_address_path.ack_timeout, 14);
    assert_eq!(context.primary_address_path.udp_sport, 0xc000);

    let command = bench.create_cq();
    let mut out = vec![0; cq::CreateCq::OUT_LEN];
    let handle = provider.obj_create(&command.encode(), &mut out).unwrap();
    let cqn = cq::CreateCq::decode_output(&out).cqn;
    let mut out = vec![0; cq::QueryCq::OUT_LEN];
    provider.obj_query(handle, &cq::QueryCq { cqn }.encode(), &mut out).unwrap();
    assert_eq!(cq::QueryCq::decode_output(&out).cqc, command.cqc);
    let _ = &bench.memory;
}

#[test]
fn capabilities() {
    let provider = open();
    let (general, atomic) = query_caps(&*provider).unwrap();
    assert!(general.rc && general.roce && general.atomic && general.cq_oi);
    assert_eq!((general.log_max_qp_sz, general.log_max_msg, general.log_bf_reg_size), (15, 30, 7));
    assert_eq!((atomic.atomic_operations, atomic.atomic_size_qp, atomic.atomic_req_8b_endianness_mode), (0xf, 0xc, 1));
    let command = prm::caps::QueryHcaCap { op_mod: 2 };
    let mut out = vec![0; prm::caps::QueryHcaCap::OUT_LEN];
    let syndrome = refused(provider.general_cmd(&command.encode(), &mut out), CommandStatus::BadParam, "op_mod 0x2");
    assert_eq!(syndrome, SYNDROME_BASE | 0x30);
    let info = provider.info();
    assert_eq!((info.provider, info.port.link_layer, info.port.lid), ("soft", LinkLayer::Ethernet, 0));
    assert!(info.port.gid.to_string().starts_with("fe80::"));
    assert_eq!(info.port.gid.to_string().parse::<Gid>().unwrap(), info.port.gid);
}

#[test]
fn malformed_commands() {
    let bench = Bench::new();
    let provider = &bench.provider;
    let out = &mut [0; 64];
    refused(provider.obj_create(&[], out), CommandStatus::BadOp, "have no opcode");
    refused(provider.obj_create(&[0x12, 0x34], out), CommandStatus::BadOp, "0x1234");
    refused(provider.obj_create(&[0x05, 0x00, 0], out), CommandStatus::BadInputLength, "3 bytes of input");
    refused(provider.obj_create(&bench.create_qp().encode(), &mut [0; 15]), CommandStatus::BadOutputLength, "15 bytes");
    // Each purpose takes its own commands.
    let destroy = qp::DestroyQp { qpn: 0x40 }.encode();
    refused(provider.obj_create(&destroy, out), CommandStatus::BadOp, "DESTROY_QP");
    refused(provider.general_cmd(&destroy, out), CommandStatus::BadOp, "DESTROY_QP");
    let (handle, qpn) = bench.qp();
    let other = qp::ToErrQp { qpn: qpn + 1 };
    refused(modify(provider, handle, &other), CommandStatus::BadOp, "2ERR_QP");
    refused(provider.obj_query(handle, &cq::QueryCq { cqn: 0 }.encode(), out), CommandStatus::BadOp, "QUERY_CQ");
    assert!(matches!(
        provider.obj_destroy(ObjectHandle(u64::MAX)),
        Err(Error::System(oxshmem_system::Error::Argument { .. }))
    ));
    // A reserved bit.
    let mut bytes = bench.create_qp().encode();
    bytes[0x60 / 8] |= 0x80;
    let syndrome = refused(provider.obj_create(&bytes, out), CommandStatus::BadParam, "bit 0x60");
    assert_eq!(syndrome, SYNDROME_BASE | 0x60);
    // Every single reserved bit, in one command.
    let good = bench.create_mkey().encode();
    let mut refusals = 0;
    for bit in 64..good.len() * 8 {
        let mut bytes = good.clone();
        bytes[bit / 8] ^= 0x80 >> (bit % 8);
        if let Err(Error::Command { detail, .. }) = provider.obj_create(&bytes, out)
            && detail.contains("is reserved")
        {
            assert!(detail.contains(&format!("bit {bit:#x} ")), "{detail}");
            refusals += 1;
        }
    }
    assert!(refusals > 1500, "only {refusals} reserved bits");
}

#[test]
fn wrong_keys() {
    let bench = Bench::new();
    let good = bench.create_mkey();
    use CommandStatus::{BadParam, BadResource};
    let wrong = |change: &dyn Fn(&mut mkey::CreateMkey), status, text: &str| {
        let mut command = good;
        change(&mut command);
        refused(create(&bench.provider, &command), status, text);
    };
    wrong(&|c| c.mkey_umem_valid = false, BadParam, "mkey_umem_valid");
    wrong(&|c| c.mkey_umem_id = 99, BadResource, "no umem 99");
    wrong(&|c| c.mkc.pd = 99, BadResource, "no protection domain 99");
    wrong(&|c| c.mkc.qpn = 0x77, BadResource, "no such QP");
    wrong(&|c| c.mkc.access_mode_1_0 = 2, BadParam, "access_mode 2");
    wrong(&|c| c.mkc.free = true, BadParam, "free");
    wrong(&|c| c.mkc.len = 0, BadParam, "mkc.len is 0");
    wrong(&|c| c.mkc.len = 1 << 16, BadParam, "do not fit a umem of 65536 bytes");
    wrong(&|c| c.mkey_umem_offset = u64::MAX, BadParam, "do not fit");
    wrong(&|c| c.mkc.start_addr = u64::MAX - 4094, BadParam, "beyond the address space");
    create(&bench.provider, &good).unwrap();

    // Rights that the umem does not have.
    let memory = SharedMemory::new(8192).unwrap();
    let local = Access { local_write: false, ..Access::default() };
    // SAFETY: the memory outlives the HCA's use of it: nothing is posted.
    let umem = unsafe { bench.provider.reg_umem(memory.source(), local) }.unwrap();
    let mut command = good;
    (command.mkey_umem_id, command.mkey_umem_offset) = (umem, 0);
    refused(create(&bench.provider, &command), BadParam, "registered without this right");
}

#[test]
fn wrong_completion_queues() {
    let bench = Bench::new();
    let good = bench.create_cq();
    use CommandStatus::{BadParam, BadResource, Limit};
    let wrong = |change: &dyn Fn(&mut cq::CreateCq), status, text: &str| {
        let mut command = good;
        change(&mut command);
        refused(create(&bench.provider, &command), status, text);
    };
    wrong(&|c| c.cqc.cqe_sz = 1, BadParam, "cqe_sz");
    wrong(&|c| c.cqc.log_cq_size = 23, Limit, "log_cq_size 23");
    wrong(&|c| c.cqc.log_cq_size = 10, BadParam, "do not fit");
    wrong(&|c| c.cqc.producer_counter = 1, BadParam, "counters");
    wrong(&|c| c.cq_umem_valid = false, BadParam, "cq_umem_valid");
    wrong(&|c| c.cqc.dbr_umem_valid = false, BadParam, "dbr_umem_valid");
    wrong(&|c| c.cqc.uar_page = 99, BadResource, "no UAR page 99");
    wrong(&|c| c.cq_umem_id = 99, BadResource, "no umem 99");
    wrong(&|c| c.cq_umem_offset = 4100, BadParam, "not aligned to 64");
    wrong(&|c| c.cqc.dbr_addr = 4, BadParam, "not aligned to 8");
    wrong(&|c| c.cqc.dbr_umem_id = 99, BadResource, "no umem 99");
    create(&bench.provider, &good).unwrap();
}

#[test]
fn wrong_queue_pairs() {
    let bench = Bench::new();
    let good = bench.create_qp();
    use CommandStatus::{BadParam, BadResource};
    let wrong = |change: &dyn Fn(&mut qp::CreateQp), status, text: &str| {
        let mut command = good;
        change(&mut command);
        refused(create(&bench.provider, &command), status, text);
    };
    wrong(&|c| c.qpc.st = 3, BadParam, "qpc.st 3");
    wrong(&|c| c.qpc.pm_state = 0, BadParam, "pm_state");
    wrong(&|c| c.qpc.state = 1, BadParam, "qpc.state");
    wrong(&|c| c.qpc.ts_format = 1, BadParam, "ts_format 1");
    wrong(&|c| c.qpc.no_sq = true, BadParam, "no_sq");
    wrong(&|c| c.qpc.send_dbr_mode = 2, BadParam, "send_dbr_mode 2: known is DBR_VALID (0) and NO_DBR_EXT (1)");
    wrong(&|c| c.qpc.rq_type = 0, BadParam, "rq_type");
    wrong(&|c| c.qpc.log_rq_size = 1, BadParam, "rq_type");
    wrong(&|c| c.qpc.log_sq_size = 10, BadParam, "do not fit");
    wrong(&|c| c.opt_param_mask = 1, BadParam, "opt_param_mask");
    wrong(&|c| c.wq_umem_valid = false, BadParam, "wq_umem_valid");
    wrong(&|c| c.qpc.dbr_umem_valid = false, BadParam, "dbr_umem_valid");
    wrong(&|c| c.wq_umem_offset = 16384 + 32, BadParam, "not aligned to 64");
    wrong(&|c| c.wq_umem_offset = 1 << 16, BadParam, "do not fit");
    wrong(&|c| c.wq_umem_id = 99, BadResource, "no umem 99");
    wrong(&|c| c.qpc.dbr_addr = (1 << 16) - 4, BadParam, "the doorbell record");
    wrong(&|c| c.qpc.pd = 99, BadResource, "protection domain");
    wrong(&|c| c.qpc.uar_page = 99, BadResource, "UAR page");
    wrong(&|c| c.qpc.cqn_snd = 99, BadResource, "no CQ 0x63");
    wrong(&|c| c.qpc.cqn_rcv = 99, BadResource, "no CQ 0x63");
    create(&bench.provider, &good).unwrap();
}

#[test]
fn every_illegal_transition_is_refused() {
    use QpState::{Err as Error, Init, Reset, Rtr, Rts};
    for from in [Reset, Init, Rtr, Rts, Error] {
        for (to, legal) in
            [(Init, from == Reset), (Rtr, from == Init), (Rts, from == Rtr), (Error, true), (Reset, true)]
        {
            let bench = Bench::new();
            let (handle, qpn) = bench.qp();
            let provider = &bench.provider;
            let (init, rtr, rts) = bench.transitions(qpn);
            let steps: [&dyn Fn() -> Result<(), oxshmem_hca::Error>; 3] =
                [&|| modify(provider, handle, &init), &|| modify(provider, handle, &rtr), &|| {
                    modify(provider, handle, &rts)
                }];
            let before = match from {
                Error => {
                    modify(provider, handle, &qp::ToErrQp { qpn }).unwrap();
                    0
                }
                state => state as usize,
            };
            for step in &steps[..before] {
                step().unwrap();
            }
            let result = match to {
                Init => steps[0](),
                Rtr => steps[1](),
                Rts => steps[2](),
                Error => modify(provider, handle, &qp::ToErrQp { qpn }),
                _ => modify(provider, handle, &qp::ToRstQp { qpn }),
            };
            if legal {
                result.unwrap();
            } else {
                let text = format!("is in state {}", from.name());
                refused(result, CommandStatus::BadQpState, &text);
            }
            let mut out = vec![0; qp::QueryQp::OUT_LEN];
            provider.obj_query(handle, &qp::QueryQp { qpn }.encode(), &mut out).unwrap();
            let expected = if legal { to } else { from };
            assert_eq!(qp::QueryQp::decode_output(&out).qpc.state, expected as u8, "{from:?} to {to:?}");
        }
    }
}

#[test]
fn wrong_transitions() {
    use CommandStatus::{BadIndex, BadParam, Limit};
    let bench = Bench::new();
    let (handle, qpn) = bench.qp();
    let (init, rtr, rts) = bench.transitions(qpn);
    let wrong = |change: &dyn Fn(&mut qp::Rst2InitQp), status, text: &str| {
        let mut command = init;
        change(&mut command);
        refused(modify(&bench.provider, handle, &command), status, text);
    };
    wrong(&|c| c.qpc.primary_address_path.vhca_port_num = 2, BadParam, "port 2");
    wrong(&|c| c.qpc.primary_address_path.pkey_index = 128, BadIndex, "pkey_index 128");
    wrong(&|c| c.qpc.atomic_mode = 4, BadParam, "atomic_mode");
    wrong(&|c| c.opt_param_mask = 2, BadParam, "opt_param_mask");
    wrong(&|c| c.qpc.counter_set_id = 7, CommandStatus::BadResource, "no set 7 of error counters");
    modify(&bench.provider, handle, &init).unwrap();

    let wrong = |change: &dyn Fn(&mut qp::Init2RtrQp), status, text: &str| {
        let mut command = rtr;
        change(&mut command);
        refused(modify(&bench.provider, handle, &command), status, text);
    };
    wrong(&|c| c.qpc.mtu = 0, BadParam, "qpc.mtu 0");
    wrong(&|c| c.qpc.mtu = 6, BadParam, "qpc.mtu 6");
    wrong(&|c| c.qpc.log_msg_max = 31, Limit, "log_msg_max 31");
    wrong(&|c| c.qpc.log_rra_max = 5, Limit, "log_rra_max 5");
    wrong(&|c| c.qpc.dp_ordering_0 = true, BadParam, "dp_ordering_0");
    wrong(&|c| c.qpc.dp_ordering_1 = true, BadParam, "dp_ordering_1");
    wrong(&|c| c.qpc.remote_qpn = 1, BadParam, "not a QP number");
    wrong(&|c| c.qpc.primary_address_path.src_addr_index = 1, BadIndex, "src_addr_index 1");
    wrong(&|c| c.qpc.primary_address_path.rlid = 1, BadParam, "InfiniBand");
    wrong(&|c| c.qpc.primary_address_path.hop_limit = 0, BadParam, "hop_limit");
    wrong(&|c| c.qpc.primary_address_path.udp_sport = 4791, BadParam, "udp_sport");
    wrong(&|c| c.qpc.primary_address_path.rmac_47_32 = 0x0100, BadParam, "unicast");
    modify(&bench.provider, handle, &rtr).unwrap();

    let mut command = rts;
    command.qpc.log_sra_max = 5;
    refused(modify(&bench.provider, handle, &command), Limit, "log_sra_max 5");
    modify(&bench.provider, handle, &rts).unwrap();
}

#[test]
fn what_is_used_cannot_be_destroyed() {
    let pair = Pair::new(EndpointOptions::default(), stepped);
    let a = &pair.a;
    refused(a.pd.close(), CommandStatus::ResourceBusy, "used by 2 keys and QPs");
    refused(a.uar.close(), CommandStatus::ResourceBusy, "used by 2 CQs and QPs");
    refused(a.cq.close(), CommandStatus::ResourceBusy, "used by 1 QPs");
    assert!(a.slab_umem.close().unwrap_err().to_string().contains("still use it"));
    assert!(a.heap_umem.close().unwrap_err().to_string().contains("still use it"));
    for _ in 0..2 {
        a.qp.close().unwrap();
        a.key.close().unwrap();
        a.cq.close().unwrap();
        a.pd.close().unwrap();
        a.uar.close().unwrap();
        a.slab_umem.close().unwrap();
        a.heap_umem.close().unwrap();
    }
    refused(a.qp.query(), CommandStatus::BadResource, "no QP");
    assert!(pair.hca_a.dereg_umem(99).unwrap_err().to_string().contains("no such umem"));
}

#[test]
fn wrong_memory() {
    let provider = open();
    let memory = SharedMemory::new(8192).unwrap();
    let register = |source: UmemSource<'_>| {
        // SAFETY: nothing uses the registrations, most of which are refused.
        unsafe { provider.reg_umem(source, Access::ALL) }.map_err(|error| error.to_string())
    };
    let (fd, addr) = (memory.fd(), memory.base());
    let bad = |source, text: &str| {
        let error = register(source).unwrap_err();
        assert!(error.contains(text), "`{text}` is not in `{error}`");
    };
    bad(UmemSource::Fd { fd, offset: 0, len: 8193, addr, device: None }, "the file has 8192 bytes");
    bad(UmemSource::Fd { fd, offset: 100, len: 4096, addr, device: None }, "multiple of the page size");
    bad(UmemSource::Fd { fd, offset: 0, len: 0, addr, device: None }, "at least a byte");
    bad(UmemSource::Fd { fd, offset: 0, len: 8, addr: std::ptr::null_mut(), device: None }, "mapped memory");
    bad(UmemSource::Fd { fd, offset: !4095, len: 8192, addr, device: None }, "the file has 8192 bytes");
    let id =
        register(UmemSource::Fd { fd, offset: 4096, len: 4096, addr: addr.wrapping_add(4096), device: None }).unwrap();
    provider.dereg_umem(id).unwrap();
    assert!(provider.dereg_umem(id).is_err());
}

#[test]
fn wrong_attributes() {
    let pair = Pair::new(EndpointOptions::default(), stepped);
    let peer = pair.b.address().qp;
    let good = QpAttributes::default();
    let connect = |peer, attributes: QpAttributes| pair.a.qp.connect(&peer, &attributes).unwrap_err().to_string();
    for (attributes, text) in [
        (QpAttributes { sl: 8, ..good }, "sl is 8: 0 to 7"),
        (QpAttributes { ack_timeout: 0, ..good }, "ack_timeout is 0: 1 to 31"),
        (QpAttributes { ack_timeout: 32, ..good }, "ack_timeout is 32"),
        (QpAttributes { retry_count: 8, ..good }, "retry_count is 8"),
        (QpAttributes { first_psn: 1 << 24, ..good }, "first_psn"),
        (QpAttributes { udp_sport: Some(4791), ..good }, "udp_sport is 4791"),
    ] {
        let error = connect(peer, attributes);
        assert!(error.contains(text), "`{text}` is not in `{error}`");
    }
    let infiniband = oxshmem_hca::objects::QpAddress { link_layer: LinkLayer::InfiniBand, ..peer };
    assert!(connect(infiniband, good).contains("the peer's port on InfiniBand"));
}

/// Cards of two kinds may meet.
#[test]
fn no_more_reads_are_requested_than_the_peer_serves() {
    let [few, many] = [1, 4].map(|log_max_rd_atomic| QpAttributes { log_max_rd_atomic, ..QpAttributes::default() });
    for (told, text) in [(1, ""), (4, "qpc.log_sra_max is 4, above the log_rra_max of the peer's QP")] {
        let hcas = [stepped(), stepped()].map(|options| SoftHca::open(options).unwrap());
        let [mut a, b] = hcas.each_ref().map(|hca| {
            let provider: Arc<dyn Provider> = Arc::<SoftHca>::clone(hca);
            Endpoint::new(&provider, EndpointOptions::default()).unwrap()
        });
        let mut address = b.address();
        address.qp.log_rra_max = told;
        a.connect(&address, &many).unwrap();
        b.connect(&a.address(), &few).unwrap();
        let context = a.qp.query().unwrap().context;
        assert_eq!((context.log_rra_max, context.log_sra_max), (4, told));
        let remote = Endpoint::remote(&address, 0);
        let index = a.post_and_ring(Op::Read { remote, local: Some(a.local(0, 8)) });
        a.wait(index, common::LIMIT, || _ = hcas[0].progress()).unwrap();
        let violations = hcas[0].violations();
        assert_eq!(violations.is_empty(), text.is_empty(), "{violations:?}");
        assert!(violations.iter().all(|violation| violation.message.contains(text)), "{violations:?}");
    }
}

#[test]
fn a_dead_hca_refuses_commands() {
    let pair = Pair::new(EndpointOptions::default(), stepped);
    pair.hca_a.kill();
    refused(pair.a.qp.query(), CommandStatus::InternalError, "dead");
    // SAFETY: refused, so nothing is registered.
    let refused = unsafe { pair.hca_a.reg_umem(pair.a.heap.source(), Access::ALL) };
    assert!(matches!(refused, Err(Error::Dead { .. })));
}

#[test]
fn objects_keep_alive_what_they_need() {
    let provider = open();
    let memory = SharedMemory::new(1 << 16).unwrap();
    let pd = Pd::alloc(&provider).unwrap();
    let uar = Uar::alloc(&provider, Rung::ByDevice).unwrap();
    // SAFETY: the memory is dropped last.
    let umem = unsafe { Umem::register(&provider, memory.source(), Access::ALL) }.unwrap();
    let attributes = CqAttributes { log_size: 0, umem_offset: 0, dbr_offset: 64, collapsed: true };
    let cq = Cq::create(&uar, &umem, &attributes).unwrap();
    let geometry = QpGeometry {
        log_sq_size: 7,
        sq_offset: 4096,
        dbr_offset: 72,
        user_index: 5,
        send_dbr_mode: SendDbrMode::DbrValid,
    };
    let qp = Qp::create(&pd, &cq, &uar, &umem, &geometry).unwrap();
    let attributes = MkeyAttributes {
        umem_offset: 0,
        len: 4096,
        start_addr: 0,
        access: Access::ALL,
        relaxed_ordering: true,
        variant: KEY_VARIANT,
    };
    let key = Mkey::create(&pd, &umem, &attributes).unwrap();
    let weak = Arc::downgrade(&umem);
    // The wrong way round.
    drop((pd, uar, umem, cq));
    assert!(weak.upgrade().is_some());
    assert_eq!(qp.query().unwrap().context.user_index, 5);
    drop(qp);
    assert!(weak.upgrade().is_some());
    drop(key);
    assert!(weak.upgrade().is_none());
}

#[test]
fn hcas_open_and_close_again() {
    for _ in 0..20 {
        let mut pair = Pair::new(EndpointOptions::default(), SoftOptions::default);
        let remote = Endpoint::remote(&pair.b.address(), 0);
        pair.run(Op::WriteInline { remote, payload: &[1] });
        assert_eq!(pair.b.heap.read(0, 1), [1]);
    }
}

#[test]
fn a_uar_page_has_sixteen_registers() {
    let provider = open();
    let page = provider.alloc_uar(Rung::ByDevice).unwrap();
    let expected: Vec<usize> = (0..16).map(|i| 0x800 + i * 0x80).collect();
    assert_eq!(page.registers, expected);
    let expected: Vec<usize> = (0..16).map(|i| 0x600 + i * 0x20).collect();
    assert_eq!(page.without_record, expected);
    assert_eq!(Opcode::of(&uar::AllocUar {}.encode()), Some(Opcode::AllocUar));
    provider.free_uar(page.page_id).unwrap();
    refused(provider.free_uar(page.page_id), CommandStatus::BadResource, "no UAR page");
    let _ = HEAP_START;
}

#[test]
fn sets_of_error_counters_come_and_go() {
    let provider = open();
    let set = || {
        let mut out = [0; counter::AllocQCounter::OUT_LEN];
        let handle = provider.obj_create(&counter::AllocQCounter {}.encode(), &mut out).unwrap();
        (handle, counter::AllocQCounter::decode_output(&out).counter_set_id)
    };
    let query = |handle, counter_set_id| {
        let mut out = [0xaa; counter::QueryQCounter::OUT_LEN];
        let command = counter::QueryQCounter { clear: true, counter_set_id };
        provider.obj_query(handle, &command.encode(), &mut out)?;
        Ok::<_, Error>(counter::QueryQCounter::decode_output(&out))
    };
    let ((mine, id), (other, _)) = (set(), set());
    assert_eq!(query(mine, id).unwrap(), counter::QueryQCounterOut::default());
    // A set is named by its own object, and is gone when that is.
    refused(query(other, id), CommandStatus::BadOp, "QUERY_Q_COUNTER");
    provider.obj_destroy(mine).unwrap();
    refused(query(mine, id), CommandStatus::BadResource, "error counters");
}
