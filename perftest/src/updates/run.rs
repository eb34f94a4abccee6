//! One PE's part of a measurement: of each way one launch that does not count, and then some that
//! are timed, each on a table of zeros. What is posted and checked is that of the last.

use std::time::Instant;

use oxshmem::{
    Aggregate, AggregateCounters, HeapError, KernelArg, LaunchConfig, Module, Operations, Pe, PeId, SymmetricSlice,
};

use super::options::{Plan, Via};
use super::report::Row;
use super::stream;
use crate::connection;
use crate::error::{Error, Mismatch};
use crate::report::{Job, Posted};
use crate::verdicts::Verdicts;

oxshmem::include_module!(KERNELS, "updates");

/// The kernels' parameter.
struct Updates([u64; 6]);

impl KernelArg for Updates {
    type Bytes = Vec<u8>;
    fn bytes(&self, _pe: PeId) -> Result<Vec<u8>, HeapError> {
        Ok(self.0.iter().flat_map(|word| word.to_ne_bytes()).collect())
    }
}

/// Launches of a way that are timed. Before them is one that loads the kernel and fills caches.
const ROUNDS: usize = 5;

/// Counts of one PE, in the order in which PE 0 is told them.
const COUNTS: usize = 6;

/// One launch of the updates.
struct Round {
    ms: f64,
    posted: Posted,
    payload: u64,
    /// Writes, their bytes, and acknowledgements.
    aggregated: [u64; 3],
}

/// Returns the median of an odd number of times.
fn median(mut times: Vec<f64>) -> f64 {
    times.sort_unstable_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or_default()
}

/// A PE of the job.
pub struct Session<'a> {
    pe: &'a Pe,
    plan: &'a Plan,
    module: Module,
    table: SymmetricSlice<u64>,
    /// At PE 0: what each PE has counted.
    counts: SymmetricSlice<u64>,
    verdicts: Verdicts<'a>,
    job: Job,
    nodes: usize,
}

impl<'a> Session<'a> {
    /// Creates the session. Collective.
    ///
    /// # Errors
    /// The requested HCA is not in use, or there is no memory.
    pub fn new(pe: &'a Pe, plan: &'a Plan) -> Result<Self, Error> {
        connection::require_hca(pe, plan.hca.as_ref())?;
        let words = stream::words(plan, pe.n_pes()).div_ceil(pe.n_pes() as u64);
        Ok(Self {
            pe,
            plan,
            module: pe.load(&KERNELS)?,
            table: pe.alloc(usize::try_from(words).unwrap_or(usize::MAX))?,
            counts: pe.alloc(COUNTS * pe.n_pes())?,
            verdicts: Verdicts::new(pe)?,
            job: Job::of(pe, connection::paths(pe)),
            nodes: pe.team_world().nodes_by_reach(),
        })
    }

    /// Gives the memory of the session back. Collective.
    ///
    /// # Errors
    /// The job has failed.
    pub fn close(self) -> Result<(), Error> {
        self.pe.free(self.table)?;
        self.pe.free(self.counts)?;
        self.verdicts.close()
    }

    /// Measures one way. Returns the row at PE 0, and wrong data if there is some. Collective.
    ///
    /// # Errors
    /// The job has failed, or the library refused something.
    pub fn run(&self, via: Via) -> Result<(Option<Row>, Option<Error>), Error> {
        let (pe, plan) = (self.pe, self.plan);
        match via {
            Via::Direct => self.measure(via, None),
            Via::Aggregate => {
                let world = pe.team_world();
                let words = plan.aggregate.words(&world).map_err(oxshmem::Error::from)?;
                let memory = pe.alloc::<u64>(words)?;
                let context = world.create_aggregate(pe, &memory, &plan.aggregate)?;
                let measured = self.measure(via, Some(&context))?;
                context.destroy(pe)?;
                pe.free(memory)?;
                Ok(measured)
            }
        }
    }

    fn measure(&self, via: Via, context: Option<&Aggregate>) -> Result<(Option<Row>, Option<Error>), Error> {
        let (pe, plan) = (self.pe, self.plan);
        let words = stream::words(plan, pe.n_pes());
        self.round(context)?;
        let mut last = self.round(context)?;
        let mut times = vec![last.ms];
        for _ in 1..ROUNDS {
            last = self.round(context)?;
            times.push(last.ms);
        }
        let Round { posted, payload, aggregated, .. } = last;
        let ms = median(times);
        let counts = [
            posted.wqes.unwrap_or_default(),
            posted.doorbells.unwrap_or_default(),
            payload,
            aggregated[0],
            aggregated[1],
            aggregated[2],
        ];
        pe.put(self.counts.view(COUNTS * pe.my_pe()..COUNTS * (pe.my_pe() + 1)), &counts, 0)?;
        let wrong = self.verdicts.gather(self.check())?;
        if pe.my_pe() != 0 {
            return Ok((None, wrong));
        }
        let all = pe.read(&self.counts)?;
        let sum = |which: usize| all.iter().skip(which).step_by(COUNTS).sum::<u64>();
        let of_aggregate = |value: u64| context.map(|_| value);
        let total = Posted { wqes: posted.wqes.map(|_| sum(0)), doorbells: posted.doorbells.map(|_| sum(1)) };
        let row = Row {
            app: plan.app.to_owned(),
            op: plan.op.to_owned(),
            via: match via {
                Via::Direct => "direct",
                Via::Aggregate => "aggregate",
            }
            .to_owned(),
            job: self.job.having(total),
            nodes: self.nodes,
            ctas: plan.ctas,
            threads: plan.threads,
            words,
            updates: plan.updates,
            seed: plan.seed,
            skew: plan.skew,
            rounds: ROUNDS as u64,
            ms,
            gups: (plan.updates * pe.n_pes() as u64) as f64 / (ms * 1e6),
            payload: total.wqes.map(|_| sum(2)),
            segment: of_aggregate(plan.aggregate.segment_bytes()),
            age_us: of_aggregate(u64::try_from(plan.aggregate.age_limit().as_micros()).unwrap_or(u64::MAX)),
            writes: of_aggregate(sum(3)),
            record_bytes: of_aggregate(sum(4)),
            acknowledgements: of_aggregate(sum(5)),
            verified: wrong.is_none(),
        };
        Ok((Some(row), wrong))
    }

    /// Launches the updates once at all PEs, on a table of zeros. Collective.
    fn round(&self, context: Option<&Aggregate>) -> Result<Round, Error> {
        let (pe, plan) = (self.pe, self.plan);
        let words = stream::words(plan, pe.n_pes());
        let updates = Updates([self.table.address(), words, plan.updates, plan.seed, plan.skew, plan.update]);
        let shape = LaunchConfig::linear(plan.ctas, plan.threads);
        let aggregated = || context.map_or(Ok(AggregateCounters::default()), |context| context.counters(pe));
        // The others have ended their updates by the barrier of the round before.
        pe.write(&self.table, &vec![0; self.table.len()])?;
        pe.barrier_all()?;
        let (before, moved, sent) = (Posted::so_far(pe)?, self.payload(), aggregated()?);
        pe.barrier_all()?;
        let begun = Instant::now();
        match context {
            // SAFETY: the kernel takes the table, which is long enough for all its words.
            None => unsafe { self.module.kernel("perftest_updates")?.launch(pe, shape, (updates,)) }?,
            Some(context) => {
                let kernel = self.module.kernel("perftest_updates_aggregated")?;
                // SAFETY: the same, and the context.
                unsafe { kernel.launch(pe, shape, (updates, context)) }?;
            }
        }
        pe.synchronize()?;
        pe.barrier_all()?;
        let ms = begun.elapsed().as_secs_f64() * 1e3;
        if let Some(context) = context {
            // The last acknowledgements of this PE have left, but its card may not have counted
            // them.
            let nothing = Updates([self.table.address(), words, 0, plan.seed, plan.skew, plan.update]);
            // SAFETY: the kernel takes the table, which it does not touch, and the context.
            unsafe { self.module.kernel("perftest_updates_aggregated")?.launch(pe, shape, (nothing, context)) }?;
            pe.synchronize()?;
        }
        let posted = Posted::so_far(pe)?.since(before);
        let payload = self.payload().saturating_sub(moved);
        let now = aggregated()?;
        let aggregated = [
            now.writes.saturating_sub(sent.writes),
            now.bytes.saturating_sub(sent.bytes),
            now.acknowledgements.saturating_sub(sent.acknowledgements),
        ];
        Ok(Round { ms, posted, payload, aggregated })
    }

    /// Returns the payload bytes that this PE's HCA has moved.
    fn payload(&self) -> u64 {
        self.pe.hca_counters().map_or(0, |counters| counters.bytes)
    }

    /// Compares this PE's part of the table with what the host computes.
    fn check(&self) -> Result<(), Error> {
        let (pe, plan) = (self.pe, self.plan);
        let mut found = pe.read(&self.table)?;
        if let (Some(word), 0) = (plan.corrupt, pe.my_pe()) {
            let last = found.len() - 1;
            found[word.min(last)] ^= 1;
        }
        let expected = stream::table(plan, pe.n_pes(), pe.my_pe());
        let wrong = |pair: &(&u64, &u64)| pair.0 != pair.1;
        let Some(first) = expected.iter().zip(&found).position(|pair| wrong(&pair)) else { return Ok(()) };
        Err(Mismatch {
            what: "table",
            unit: "word",
            offset: first as u64,
            expected: expected[first],
            found: found[first],
            wrong: expected.iter().zip(&found).filter(wrong).count() as u64,
            of: expected.len() as u64,
        }
        .into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_slow_launch_changes_nothing() {
        assert_eq!(median(vec![2.0, 90.0, 1.0, 3.0, 2.5]), 2.5);
        assert_eq!(ROUNDS % 2, 1);
    }
}
