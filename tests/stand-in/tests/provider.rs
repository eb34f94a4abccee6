//! The provider for ConnectX cards by itself, in a process that finds the stand-in in the place of
//! rdma-core.
//!
//! The loader reads the library path when a process starts, so each test starts this program again
//! for one test of [`inner`].
#![allow(clippy::unwrap_used)]

use std::process::Command;

use oxshmem_stand_in::VARIABLE;

/// Runs the ignored test `name` of this program on the stand-in, with lies.
fn on_the_stand_in(name: &str, lies: &str) {
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("provider");
    oxshmem_stand_in::install(&folder, &[]).unwrap();
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("inner::{name}"), "--ignored", "--nocapture"])
        .env("LD_LIBRARY_PATH", &folder)
        .env(VARIABLE, lies)
        .output()
        .unwrap();
    let text = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    assert!(output.status.success() && text.contains("1 passed"), "{name} with {lies}: {}\n{text}", output.status);
}

#[test]
fn device_memory_is_registered_by_dma_buf() {
    on_the_stand_in("dma_buf", "");
}

#[test]
fn what_fails_is_tried_in_another_way() {
    on_the_stand_in("peermem", "errno:mlx5dv_devx_umem_reg_ex.dmabuf=95,errno:ibv_reg_dmabuf_mr=95");
}

#[test]
fn memory_that_no_way_reaches_is_refused_with_every_reason() {
    on_the_stand_in("no_way", "errno:mlx5dv_devx_umem_reg_ex.dmabuf=95,errno:mlx5dv_devx_umem_reg_ex.address=14");
}

#[test]
fn the_way_that_is_asked_for_is_tried_first() {
    on_the_stand_in("preferred", "");
}

#[test]
fn what_kernel_and_firmware_refuse_is_refused() {
    on_the_stand_in("refused", "");
}

#[test]
fn pages_of_doorbells_are_as_the_library_gives_them() {
    on_the_stand_in("pages", "errno:mlx5dv_devx_alloc_uar.dedicated=95");
}

#[test]
fn objects_go_in_any_order_and_once() {
    on_the_stand_in("teardown", "");
}

#[test]
fn all_doorbells_work_and_any_kind_of_page_does() {
    on_the_stand_in("transfer", "");
    on_the_stand_in("transfer", "errno:mlx5dv_devx_alloc_uar.dedicated=95,errno:mlx5dv_devx_alloc_uar.bf=95");
    on_the_stand_in("transfer", "device:kernel=1");
}

mod inner {
    use std::os::fd::{BorrowedFd, OwnedFd};
    use std::sync::Arc;

    use oxshmem_hca::mlx5::{Mlx5Hca, Mlx5Options, Registration, check_libraries, device_names};
    use oxshmem_hca::objects::{Cq, CqAttributes, Doorbells, Mkey, Pd, Qp, QpAttributes, QpGeometry, Uar, Umem};
    use oxshmem_hca::prm::Command as _;
    use oxshmem_hca::prm::cq::{CqContext, CreateCq, QueryCq};
    use oxshmem_hca::prm::qp::CreateQp;
    use oxshmem_hca::prm::qpc::{MIGRATED, QpContext, QpState, SendDbrMode, ZERO_SIZE_RQ};
    use oxshmem_hca::provider::{Access, Attempt, DeviceMemory, Provider, Rung, UmemSource};
    use oxshmem_hca::testing::SharedMemory;

    const BYTES: usize = 1 << 16;

    fn open() -> Arc<Mlx5Hca> {
        check_libraries().unwrap();
        assert_eq!(device_names().unwrap(), ["mlx5_0"]);
        open_registering(Registration::DmaBuf)
    }

    fn open_registering(registration: Registration) -> Arc<Mlx5Hca> {
        let options = Mlx5Options { device: "mlx5_0", port: 1, gid_index: None, pkey_index: 0, registration };
        Mlx5Hca::open(&options).unwrap()
    }

    /// Memory of a device whose driver exports it as dma-buf, but does not know PCIe mappings.
    #[derive(Debug)]
    struct Exporter<'a>(BorrowedFd<'a>);

    impl DeviceMemory for Exporter<'_> {
        fn dma_buf(&self, _: u64, _: usize, pcie: bool) -> Result<OwnedFd, String> {
            if pcie {
                return Err("flags are not known".into());
            }
            self.0.try_clone_to_owned().map_err(|error| error.to_string())
        }
    }

    fn of_device<'a>(memory: &'a SharedMemory, exporter: &'a Exporter<'a>) -> UmemSource<'a> {
        let UmemSource::Fd { fd, offset, len, addr, .. } = memory.source() else { unreachable!() };
        UmemSource::Fd { fd, offset, len, addr, device: Some(exporter) }
    }

    fn registrations(card: &Mlx5Hca) -> Vec<String> {
        card.attempts().iter().map(Attempt::to_string).filter(|text| text.contains("memory as")).collect()
    }

    /// Registers memory of a device both ways, twice.
    fn register() -> Vec<String> {
        register_with(&open())
    }

    fn register_with(card: &Arc<Mlx5Hca>) -> Vec<String> {
        let provider: Arc<dyn Provider> = Arc::clone(card) as _;
        let memory = SharedMemory::new(BYTES).unwrap();
        let exporter = Exporter(memory.fd());
        let pd = Pd::alloc(&provider).unwrap();
        for _ in 0..2 {
            let source = of_device(&memory, &exporter);
            // SAFETY: the memory outlives both registrations, and nothing uses it.
            let (umem, key) = unsafe {
                (
                    Umem::register(&provider, source, Access::LOCAL).unwrap(),
                    Mkey::register(&pd, source, None, 0x40_0000, Access::ALL).unwrap(),
                )
            };
            assert_ne!(key.rkey(), 0);
            key.close().unwrap();
            umem.close().unwrap();
        }
        registrations(card)
    }

    #[test]
    #[ignore = "started by a test that sets the library path"]
    fn dma_buf() {
        assert_eq!(
            register(),
            ["device memory as umem by dma-buf: done", "device memory as memory region by dma-buf: done",]
        );
    }

    #[test]
    #[ignore = "started by a test that sets the library path"]
    fn peermem() {
        let texts = register();
        assert_eq!(texts.len(), 6, "{texts:?}");
        for (text, begin) in texts.iter().zip([
            "device memory as umem by dma-buf: no: Operation not supported",
            "device memory as umem by dma-buf with PCIe mapping: no: flags are not known",
            "device memory as umem by address (nvidia_peermem): done",
            "device memory as memory region by dma-buf: no: mlx5_0 cannot register dma-bufs; its driver needs a kernel of 5.12 or newer",
            "device memory as memory region by dma-buf with PCIe mapping: no: ",
            "device memory as memory region by address (nvidia_peermem): done",
        ]) {
            assert!(text.starts_with(begin), "{text}");
        }
    }

    #[test]
    #[ignore = "started by a test that sets the library path"]
    fn preferred() {
        let by = |registration| register_with(&open_registering(registration));
        assert_eq!(
            by(Registration::Address),
            [
                "device memory as umem by address (nvidia_peermem): done",
                "device memory as memory region by address (nvidia_peermem): done",
            ]
        );
        let texts = by(Registration::DmaBufPcie);
        assert_eq!(texts[0], "device memory as umem by dma-buf with PCIe mapping: no: flags are not known");
        assert_eq!(texts[1], "device memory as umem by dma-buf: done");
    }

    #[test]
    #[ignore = "started by a test that sets the library path"]
    fn refused() {
        let card = open();
        let provider: Arc<dyn Provider> = Arc::clone(&card) as _;
        // The stand-in's clock knows real time alone.
        assert_eq!(card.info().ts_format, 1);
        let memory = SharedMemory::new(BYTES).unwrap();
        // SAFETY: the memory outlives the registration.
        let umem = unsafe { Umem::register(&provider, memory.source(), Access::LOCAL) }.unwrap();
        let uar = Uar::alloc(&provider, Rung::ByDevice).unwrap();
        let at = |offset| CqAttributes { log_size: 1, umem_offset: offset, dbr_offset: 256, collapsed: true };
        // Queues begin at multiples of a 64th of the umem's page, which is 4 KiB whatever the
        // system's is.
        Cq::create(&uar, &umem, &at(64)).unwrap().close().unwrap();
        assert!(Cq::create(&uar, &umem, &at(32)).unwrap_err().to_string().contains("CREATE_CQ failed"));
        // A command names the object whose handle it is given with.
        let command = CreateCq {
            cq_umem_offset: 512,
            cq_umem_id: umem.id(),
            cq_umem_valid: true,
            cqc: CqContext {
                dbr_umem_valid: true,
                dbr_umem_id: umem.id(),
                log_cq_size: 1,
                uar_page: uar.page_id(),
                c_eqn: card.info().event_queue,
                // The firmware does not look at it where the queue lies in a umem.
                log_page_size: 5,
                ..CqContext::default()
            },
        };
        let mut output = vec![0; CreateCq::OUT_LEN];
        let object = provider.obj_create(&command.encode(), &mut output).unwrap();
        let cqn = CreateCq::decode_output(&output).cqn;
        let mut answer = vec![0; QueryCq::OUT_LEN];
        let wrong = provider.obj_query(object, &QueryCq { cqn: cqn + 1 }.encode(), &mut answer).unwrap_err();
        assert!(wrong.to_string().contains("Invalid argument"), "{wrong}");
        provider.obj_query(object, &QueryCq { cqn }.encode(), &mut answer).unwrap();
        let pd = Pd::alloc(&provider).unwrap();
        let command = CreateQp {
            wq_umem_offset: 4096,
            wq_umem_id: umem.id(),
            wq_umem_valid: true,
            qpc: QpContext {
                pm_state: MIGRATED,
                pd: pd.pdn(),
                log_sq_size: 6,
                ts_format: 1,
                uar_page: uar.page_id(),
                cqn_snd: cqn,
                cqn_rcv: cqn,
                rq_type: ZERO_SIZE_RQ,
                dbr_umem_valid: true,
                dbr_umem_id: umem.id(),
                log_page_size: 5,
                ..QpContext::default()
            },
            ..CreateQp::default()
        };
        let mut output = vec![0; CreateQp::OUT_LEN];
        let qp = provider.obj_create(&command.encode(), &mut output).unwrap();
        provider.obj_destroy(qp).unwrap();
        provider.obj_destroy(object).unwrap();
        // The address of a dma-buf's memory region agrees with the offset in it, modulo the page.
        let exporter = Exporter(memory.fd());
        // SAFETY: the memory outlives the registration, and nothing uses it.
        let region = |iova| unsafe { Mkey::register(&pd, of_device(&memory, &exporter), None, iova, Access::ALL) };
        region(0x40_0000).unwrap().close().unwrap();
        assert_eq!(registrations(&card)[1..], ["device memory as memory region by dma-buf: done"]);
        let text = region(0x40_0040).unwrap_err().to_string();
        assert!(text.contains("ibv_reg_dmabuf_mr on mlx5_0 failed: Invalid argument"), "{text}");
    }

    #[test]
    #[ignore = "started by a test that sets the library path"]
    fn pages() {
        let provider: Arc<dyn Provider> = open();
        // Two registers of a write-combining page.
        let give = |rung| provider.alloc_uar(rung).unwrap();
        let [first, second, third] = [(); 3].map(|()| give(Rung::ByDevice));
        assert_eq!(first.page_id, second.page_id);
        assert!(first.registers != second.registers && third.page_id != first.page_id);
        // For a CPU's stores the page that is not cached, which is one for all.
        let [fourth, fifth] = [(); 2].map(|()| give(Rung::ByCpu));
        assert_eq!((fourth.page_id, &fourth.registers), (fifth.page_id, &fifth.registers));
        assert!(![first.page_id, third.page_id].contains(&fourth.page_id));
        for page in [first, second, third, fourth, fifth] {
            provider.free_uar(page.page_id).unwrap();
        }
    }

    #[test]
    #[ignore = "started by a test that sets the library path"]
    fn no_way() {
        let card = open();
        let provider: Arc<dyn Provider> = Arc::clone(&card) as _;
        let memory = SharedMemory::new(BYTES).unwrap();
        let exporter = Exporter(memory.fd());
        // SAFETY: it fails.
        let refused = unsafe { Umem::register(&provider, of_device(&memory, &exporter), Access::LOCAL) };
        let text = refused.unwrap_err().to_string();
        for part in [
            "65536 bytes of device memory cannot be registered with mlx5_0: ",
            "by dma-buf: Operation not supported",
            "by dma-buf with PCIe mapping: flags are not known; ",
            "by address (nvidia_peermem): Bad address",
            "the module nvidia_peermem",
        ] {
            assert!(text.contains(part), "no `{part}` in {text}");
        }
        assert!(!text.contains('\n'));
    }

    /// A queue pair in `umem`, with its completion queue.
    fn queue_pair(pd: &Arc<Pd>, umem: &Arc<Umem>, uar: &Arc<Uar>, index: u64) -> Qp {
        let at = index * 8192;
        let attributes = CqAttributes { log_size: 1, umem_offset: at, dbr_offset: at + 256, collapsed: true };
        let cq = Cq::create(uar, umem, &attributes).unwrap();
        let geometry = QpGeometry {
            log_sq_size: 6,
            sq_offset: at + 4096,
            dbr_offset: at + 320,
            user_index: index as u32,
            send_dbr_mode: SendDbrMode::DbrValid,
        };
        Qp::create(pd, &cq, uar, umem, &geometry).unwrap()
    }

    #[test]
    #[ignore = "started by a test that sets the library path"]
    fn transfer() {
        let provider: Arc<dyn Provider> = open();
        let memory = SharedMemory::new(BYTES).unwrap();
        let pd = Pd::alloc(&provider).unwrap();
        // SAFETY: the memory outlives the registration.
        let umem = unsafe { Umem::register(&provider, memory.source(), Access::LOCAL) }.unwrap();
        let mut doorbells = Doorbells::new(&provider, Rung::ByDevice, SendDbrMode::DbrValid);
        let pair: Vec<Qp> = (0..2)
            .map(|index| {
                let doorbell = doorbells.give().unwrap();
                assert!(doorbell.uar.page().device_registers && doorbell.address().is_aligned());
                queue_pair(&pd, &umem, &doorbell.uar, index)
            })
            .collect();
        pair[0].connect(&pair[1].address(), &QpAttributes::default()).unwrap();
        pair[1].connect(&pair[0].address(), &QpAttributes::default()).unwrap();
        let status = pair[0].query().unwrap();
        assert_eq!((status.state, status.context.remote_qpn), (QpState::Rts, pair[1].qpn()));
        pair[0].to_error().unwrap();
        assert_eq!(pair[0].query().unwrap().state, QpState::Err);
        pair[0].to_reset().unwrap();
        assert_eq!(pair[0].query().unwrap().state, QpState::Reset);
        // More queue pairs than pages.
        let all: Vec<_> = (2..40).map(|_| doorbells.give().unwrap()).collect();
        let mut pages: Vec<u32> = all.iter().map(|doorbell| doorbell.uar.page_id()).collect();
        pages.sort_unstable();
        pages.dedup();
        assert!(pages.len() <= 16, "{pages:?}");
    }

    #[test]
    #[ignore = "started by a test that sets the library path"]
    fn teardown() {
        let provider: Arc<dyn Provider> = open();
        let memory = SharedMemory::new(BYTES).unwrap();
        let pd = Pd::alloc(&provider).unwrap();
        // SAFETY: the memory outlives the registration.
        let umem = unsafe { Umem::register(&provider, memory.source(), Access::LOCAL) }.unwrap();
        let uar = Uar::alloc(&provider, Rung::ByDevice).unwrap();
        let qp = queue_pair(&pd, &umem, &uar, 0);
        let busy = umem.close().unwrap_err().to_string();
        assert!(busy.contains("mlx5dv_devx_umem_dereg on mlx5_0 failed: Device or resource busy"), "{busy}");
        qp.close().unwrap();
        qp.close().unwrap();
        drop(qp);
        umem.close().unwrap();
        umem.close().unwrap();
        let twice = provider.dereg_umem(umem.id()).unwrap_err().to_string();
        assert!(twice.contains("no such umem; was it deregistered before?"), "{twice}");
        uar.close().unwrap();
        let twice = provider.free_uar(uar.page_id()).unwrap_err().to_string();
        assert!(twice.contains("no such page; was it freed before?"), "{twice}");
        pd.close().unwrap();
        assert!(provider.dereg_key(77).unwrap_err().to_string().contains("no such key"));
        assert_eq!(provider.dead(), None);
    }
}
