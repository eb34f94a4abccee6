//! What both modes share: launches, counters, verdicts, and what goes into every row.

use oxshmem::{KernelArg, LaunchConfig, Module, Pe, SymmetricSlice};
use oxshmem_perftest::connection;
use oxshmem_perftest::error::Error;
use oxshmem_perftest::machine::{self, Gpus};
use oxshmem_perftest::stats::Percentiles;

use crate::options::{Mode, Options, Plan, Via};
use crate::report::Row;

oxshmem::include_module!(KERNELS, "alltoall");

/// A kernel's parameter: words, in the order of its struct.
pub struct Words<const N: usize>(pub [u64; N]);

impl<const N: usize> KernelArg for Words<N> {
    type Bytes = Vec<u8>;
    fn bytes(&self) -> Vec<u8> {
        self.0.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }
}

/// Work requests and doorbells, where there is a network.
pub type Counts = (Option<u64>, Option<u64>);

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
    /// Entry k, at PE 0: whether PE k found wrong data.
    wrong: SymmetricSlice<u64>,
    gpus: Option<Gpus>,
}

impl<'a> Session<'a> {
    /// Collective.
    ///
    /// # Errors
    /// An HCA that was asked for and is not in use, or no memory.
    pub fn new(pe: &'a Pe, options: &'a Options, plan: &'a Plan) -> Result<Self, Error> {
        connection::require_hca(pe, options.connection.hca.as_ref())?;
        let on_gpu = pe.my_pe() == 0 && pe.device_name() == "cuda";
        Ok(Self {
            pe,
            options,
            plan,
            module: pe.load(&KERNELS)?,
            arrivals: pe.alloc_aligned(1, 128)?,
            wrong: pe.alloc(pe.n_pes())?,
            gpus: if on_gpu { Gpus::find() } else { None },
        })
    }

    /// Collective.
    ///
    /// # Errors
    /// The job has failed.
    pub fn close(self) -> Result<(), Error> {
        [self.arrivals, self.wrong].into_iter().try_for_each(|slice| self.pe.free(slice))?;
        Ok(())
    }

    /// Runs a kernel whose parameter is `words`, all blocks at the same time. Collective.
    ///
    /// # Errors
    /// What the kernel ran into.
    pub fn launch<const N: usize>(&self, kernel: &str, shape: LaunchConfig, words: Words<N>) -> Result<(), Error> {
        self.pe.write_local(&self.arrivals, 0, &[0])?;
        self.pe.barrier_all()?;
        let function = self.module.function(kernel)?;
        // SAFETY: what the kernel declares; the modes allocate for the sizes and shapes that they launch.
        unsafe { self.pe.launch(&function, shape.cooperative(), (words,))? };
        self.pe.synchronize()?;
        Ok(self.pe.barrier_all()?)
    }

    /// Work requests and doorbells so far.
    ///
    /// # Errors
    /// The job has failed.
    pub fn counts(&self) -> Result<Counts, Error> {
        self.pe.quiet()?;
        Ok((self.pe.hca_counters().map(|counters| counters.wqes), self.pe.doorbells()))
    }

    /// Tells PE 0 whether this one found wrong data; the first PE that did, at PE 0. Collective.
    ///
    /// # Errors
    /// The job has failed.
    pub fn verdict(&self, wrong: bool) -> Result<Option<usize>, Error> {
        let (pe, me) = (self.pe, self.pe.my_pe());
        pe.put(&self.wrong, me, &[u64::from(wrong)], 0)?;
        pe.barrier_all()?;
        Ok(if me == 0 { pe.read_local(&self.wrong, 0..pe.n_pes())?.iter().position(|wrong| *wrong != 0) } else { None })
    }

    /// The row of a phase.
    pub fn row(&self, phase: &Phase<'_>, before: Counts, after: Counts, verified: bool) -> Row {
        let (pe, options) = (self.pe, self.options);
        let times = Percentiles::of(phase.times).unwrap_or(Percentiles { us_p50: 0.0, us_p99: 0.0 });
        let delta = |before: Option<u64>, after: Option<u64>| Some(after?.saturating_sub(before?));
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
                Via::Collective => "collective",
            }
            .to_owned(),
            phase: phase.name.to_owned(),
            device: pe.device_name().to_owned(),
            hca: pe.hca_name().map(str::to_owned),
            transport: connection::paths(pe),
            npes: pe.n_pes(),
            qps: pe.hca_name().map(|_| pe.config().qps_per_peer()),
            ctas: phase.shape.grid[0],
            threads: phase.shape.block[0],
            bytes: phase.bytes,
            tokens: routing.map(|routing| routing.tokens),
            experts: routing.map(|routing| routing.experts),
            top_k: routing.map(|routing| routing.top),
            seed: routing.map(|routing| routing.seed),
            iters: self.plan.iters,
            us_p50: times.us_p50,
            us_p99: times.us_p99,
            gbps: phase.sent as f64 / (times.us_p50 * 1e3).max(1.0),
            wqes: delta(before.0, after.0),
            doorbells: delta(before.1, after.1),
            verified,
            gpu: self.gpus.as_ref().map(|gpus| gpus.model.clone()),
            driver: self.gpus.as_ref().map(|gpus| gpus.driver.clone()),
            date: machine::today(),
        }
    }
}
