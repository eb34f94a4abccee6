//! What both modes share: launches, verdicts, and what goes into every row.

use oxshmem::{HeapError, KernelArg, LaunchConfig, Module, Operations, Pe, PeId, SymmetricSlice};
use oxshmem_perftest::connection;
use oxshmem_perftest::error::Error;
use oxshmem_perftest::report::{Job, Posted};
use oxshmem_perftest::stats::Percentiles;
use oxshmem_perftest::verdicts::Verdicts;

use crate::options::{Mode, Options, Plan, Via};
use crate::report::Row;

oxshmem::include_module!(KERNELS, "alltoall");

/// A kernel's parameter: words, in the order of its struct.
pub struct Words<const N: usize>(pub [u64; N]);

impl<const N: usize> KernelArg for Words<N> {
    type Bytes = Vec<u8>;
    fn bytes(&self, _pe: PeId) -> Result<Vec<u8>, HeapError> {
        Ok(self.0.iter().flat_map(|word| word.to_ne_bytes()).collect())
    }
}

/// One phase of a size.
pub struct Phase<'a> {
    /// Its name.
    pub name: &'static str,
    /// The shape of its launch.
    pub shape: LaunchConfig,
    /// Bytes of a message or token.
    pub bytes: u64,
    /// Bytes that PE 0 sends to others in an iteration.
    pub sent: u64,
    /// Nanoseconds of each iteration.
    pub times: &'a [u64],
}

/// A PE of the job.
pub struct Session<'a> {
    /// The PE.
    pub pe: &'a Pe,
    /// The command line.
    pub options: &'a Options,
    /// What follows from it.
    pub plan: &'a Plan,
    module: Module,
    /// Blocks that have met: see grid_meets.
    pub arrivals: SymmetricSlice<u64>,
    /// What PEs' checks come to.
    pub verdicts: Verdicts<'a>,
    job: Job,
}

impl<'a> Session<'a> {
    /// Collective.
    ///
    /// # Errors
    /// The requested HCA is not in use, or there is no memory.
    pub fn new(pe: &'a Pe, options: &'a Options, plan: &'a Plan) -> Result<Self, Error> {
        connection::require_hca(pe, options.connection.hca.as_ref())?;
        Ok(Self {
            pe,
            options,
            plan,
            module: pe.load(&KERNELS)?,
            arrivals: pe.alloc_aligned(1, 128)?,
            verdicts: Verdicts::new(pe)?,
            job: Job::of(pe, connection::paths(pe)),
        })
    }

    /// Collective.
    ///
    /// # Errors
    /// The job has failed.
    pub fn close(self) -> Result<(), Error> {
        self.pe.free(self.arrivals)?;
        self.verdicts.close()
    }

    /// Runs a kernel whose parameter is `words`, all blocks at the same time. Collective.
    ///
    /// # Errors
    /// What the kernel ran into.
    pub fn launch<const N: usize>(&self, kernel: &str, shape: LaunchConfig, words: Words<N>) -> Result<(), Error> {
        self.pe.write(&self.arrivals, &[0])?;
        self.pe.barrier_all()?;
        let function = self.module.kernel(kernel)?;
        // SAFETY: what the kernel declares; the modes allocate for the sizes and shapes that they
        // launch.
        unsafe { function.launch(self.pe, shape.cooperative(), (words,))? };
        self.pe.synchronize()?;
        Ok(self.pe.barrier_all()?)
    }

    /// Returns the row of a phase; `posted` is what all phases of the measured iterations have
    /// posted.
    pub fn row(&self, phase: &Phase<'_>, posted: Posted, verified: bool) -> Row {
        let (pe, options) = (self.pe, self.options);
        let times = Percentiles::of(phase.times);
        let routing = options.routing(pe.n_pes()).ok().filter(|_| options.mode == Mode::Moe);
        Row {
            app: "alltoall".to_owned(),
            mode: match options.mode {
                Mode::Fixed => "fixed",
                Mode::Moe => "moe",
            }
            .to_owned(),
            via: match options.via() {
                Via::Put => "put",
                Via::Context => "context",
                Via::Collective => "collective",
            }
            .to_owned(),
            phase: phase.name.to_owned(),
            job: self.job.having(posted),
            ctas: phase.shape.grid[0],
            threads: phase.shape.block[0],
            bytes: phase.bytes,
            tokens: routing.map(|routing| routing.tokens),
            experts: routing.map(|routing| routing.experts),
            top_k: routing.map(|routing| routing.top),
            seed: routing.map(|routing| routing.seed),
            iters: self.plan.iters,
            times,
            gbps: times.us_p50.map(|median| phase.sent as f64 / (median * 1e3).max(1.0)),
            verified,
        }
    }
}
