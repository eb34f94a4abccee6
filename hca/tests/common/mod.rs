//! Two connected endpoints on two software HCAs of this process.
// Each test program uses a part.
#![allow(dead_code, clippy::unwrap_used, clippy::cast_possible_truncation, missing_docs)]

pub mod accelerator;

use oxshmem_hca::objects::QpAttributes;
use oxshmem_hca::provider::Provider;
use oxshmem_hca::soft::{Accelerator, SoftHca, SoftOptions};
use oxshmem_hca::testing::{Endpoint, EndpointOptions};
use oxshmem_hca::wire::Op;
use oxshmem_hca::wire::cqe;
use std::sync::Arc;
use std::time::Duration;

use accelerator::{Apart, SHIFT};

/// Nothing in these tests takes that long unless it hangs.
pub const LIMIT: Duration = Duration::from_secs(60);

/// A side of the fabric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Within a node.
    Shared,
    /// Between nodes.
    Tcp,
    /// Between nodes, where all memory is an accelerator's that the engine does not reach.
    TcpByCopies,
}

/// The side that the pairs of this test program use. `nodes.rs` and `nodes_by_copies.rs` consist of
/// the tests of others.
pub fn side() -> Side {
    match env!("CARGO_CRATE_NAME") {
        "nodes" => Side::Tcp,
        "nodes_by_copies" => Side::TcpByCopies,
        _ => Side::Shared,
    }
}

/// Returns what endpoints of this test program's side have in common.
pub fn options() -> EndpointOptions {
    let shift = if side() == Side::TcpByCopies { SHIFT } else { 0 };
    EndpointOptions { shift, ..EndpointOptions::default() }
}

pub struct Pair {
    pub a: Endpoint,
    pub b: Endpoint,
    pub hca_a: Arc<SoftHca>,
    pub hca_b: Arc<SoftHca>,
    stepped: bool,
}

impl Pair {
    pub fn new(options: EndpointOptions, soft: impl Fn() -> SoftOptions) -> Self {
        Self::with(options, soft(), soft(), &QpAttributes::default())
    }

    pub fn with(options: EndpointOptions, soft_a: SoftOptions, soft_b: SoftOptions, attributes: &QpAttributes) -> Self {
        Self::on(side(), options, [soft_a, soft_b], attributes)
    }

    pub fn on(side: Side, options: EndpointOptions, soft: [SoftOptions; 2], attributes: &QpAttributes) -> Self {
        let stepped = soft[0].stepped;
        let [hca_a, hca_b] = soft.map(|soft| {
            let apart = || -> Arc<dyn Accelerator> { Arc::new(Apart) };
            let accelerator = if side == Side::TcpByCopies { Some(apart()) } else { soft.accelerator };
            SoftHca::open(SoftOptions { accelerator, ..soft }).unwrap()
        });
        if side != Side::Shared {
            let address = |hca: &Arc<SoftHca>| hca.listen("127.0.0.1:0".parse().unwrap(), b"secret").unwrap();
            hca_a.add_route(hca_b.info().port.gid, address(&hca_b), b"secret");
            hca_b.add_route(hca_a.info().port.gid, address(&hca_a), b"secret");
        }
        let provider = |hca: &Arc<SoftHca>| -> Arc<dyn Provider> { Arc::<SoftHca>::clone(hca) };
        let a = Endpoint::new(&provider(&hca_a), options).unwrap();
        let b = Endpoint::new(&provider(&hca_b), options).unwrap();
        a.connect(&b.address(), attributes).unwrap();
        b.connect(&a.address(), attributes).unwrap();
        Self { a, b, hca_a, hca_b, stepped }
    }

    /// Returns one pass of both engines, if they have no threads. False if there is nothing left to
    /// do.
    pub fn step(&self) -> bool {
        if !self.stepped {
            std::thread::yield_now();
            return true;
        }
        let work = self.hca_a.progress() + self.hca_b.progress();
        work > 0 || self.hca_a.is_waiting() || self.hca_b.is_waiting()
    }

    /// Posts one WQE at `a` and waits for its CQE, which must not be an error.
    pub fn run(&mut self, op: Op<'_>) -> cqe::Repr {
        let cqe = self.run_any(op);
        assert!(matches!(cqe.status, cqe::Status::Done { .. }), "{cqe}: {:?}", self.hca_a.violations());
        cqe
    }

    /// Posts one WQE at `a` and waits for its CQE.
    pub fn run_any(&mut self, op: Op<'_>) -> cqe::Repr {
        let index = self.a.post_and_ring(op);
        self.a
            .wait(index, LIMIT, || {
                self.step();
            })
            .unwrap()
    }
}
