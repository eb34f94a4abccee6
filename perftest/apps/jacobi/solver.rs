//! Runs of the solver as one PE of a job, and their checks.

use oxshmem::{
    HeapError, Kernel, KernelArg, LaunchConfig, Module, Operations, Pe, PeId, SymmetricSlice, SymmetricView,
};
use oxshmem_perftest::connection;
use oxshmem_perftest::error::{Error, Mismatch};
use oxshmem_perftest::report::{Job, Posted};
use oxshmem_perftest::verdicts::wrong_data;
use oxshmem_perftest::waiting;

use crate::mesh::Mesh;
use crate::options::{Check, Options, Variant};
use crate::report::Row;
use crate::serial::{self, Solution};

oxshmem::include_module!(KERNELS, "jacobi");

/// By how much the norm may differ from that of the serial solution, which adds up in another
/// order.
const NORM_TOLERANCE: f64 = 1e-9;

/// Blocks and threads of the kernels that fill and compare fields.
const PLAIN: LaunchConfig = LaunchConfig { grid: [128, 1, 1], block: [64, 1, 1], shared_bytes: 0, cooperative: false };

/// The kernels' parameter `Problem`: words, in its order.
struct Problem([u64; 17]);

impl KernelArg for Problem {
    type Bytes = Vec<u8>;
    fn bytes(&self, _pe: PeId) -> Result<Vec<u8>, HeapError> {
        Ok(self.0.iter().flat_map(|word| word.to_ne_bytes()).collect())
    }
}

/// Two fields that take turns, and the fixed values beside them.
struct Fields {
    both: [SymmetricSlice<f32>; 2],
    sides: SymmetricSlice<f32>,
}

impl Fields {
    fn new(pe: &Pe, len: u64, rows: u64) -> Result<Self, Error> {
        let field = || pe.alloc_aligned(len as usize, 256);
        Ok(Self { both: [field()?, field()?], sides: pe.alloc(rows as usize)? })
    }

    fn free(self, pe: &Pe) -> Result<(), Error> {
        let [a, b] = self.both;
        for slice in [a, b, self.sides] {
            pe.free(slice)?;
        }
        Ok(())
    }
}

/// What a launch has answered.
#[derive(Debug, Clone, Copy)]
struct Answer {
    nanoseconds: u64,
    iterations: u64,
    /// Bits of the last sum of squares.
    change: u64,
}

/// Rows of figures, by PE, at PE 0: see [`Solver::verdict`].
const WORDS: usize = 4;

/// A PE in the middle of its runs.
pub struct Solver<'a> {
    pe: &'a Pe,
    options: &'a Options,
    mesh: Mesh,
    shape: LaunchConfig,
    module: Module,
    fields: Fields,
    /// The whole mesh, for what each PE computes alone.
    whole: Option<Fields>,
    signals: SymmetricSlice<u64>,
    arrivals: SymmetricSlice<u64>,
    partial: SymmetricSlice<f64>,
    change: SymmetricSlice<f64>,
    results: SymmetricSlice<u64>,
    found: SymmetricSlice<u64>,
    verdicts: SymmetricSlice<u64>,
    checked: SymmetricSlice<u64>,
    job: Job,
    /// Iterations and runs so far.
    base: u64,
    runs: u64,
    /// The serial solution, with its iterations.
    serial: Option<(u64, Solution)>,
}

impl std::fmt::Debug for Solver<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Solver").field("mesh", &self.mesh).field("runs", &self.runs).finish_non_exhaustive()
    }
}

impl<'a> Solver<'a> {
    /// Allocates what runs need. Collective.
    ///
    /// # Errors
    /// This many PEs cannot have the mesh, the requested HCA is not in use, or there is no memory.
    pub fn new(pe: &'a Pe, options: &'a Options) -> Result<Self, Error> {
        let (mesh, npes) = (options.mesh(), pe.n_pes());
        let single = options.check() == Check::Single;
        mesh.check(npes, single, pe.config().heap_max())?;
        connection::require_hca(pe, options.connection.hca.as_ref())?;
        let gpu = pe.gpu();
        let threads = options.threads.unwrap_or(if gpu.is_some() { 512 } else { 32 });
        let ctas = options.ctas.unwrap_or_else(|| gpu.as_ref().map_or(4, |gpu| gpu.multiprocessors));
        let chunks = mesh.nx.div_ceil(4 * u64::from(threads)) as usize;
        let len = mesh.field_len(npes);
        Ok(Self {
            pe,
            options,
            mesh,
            shape: LaunchConfig::linear(ctas, threads).cooperative(),
            module: pe.load(&KERNELS)?,
            fields: Fields::new(pe, len, len / mesh.pitch())?,
            whole: single.then(|| Fields::new(pe, mesh.ny * mesh.pitch(), mesh.ny)).transpose()?,
            signals: pe.alloc(2 * chunks)?,
            arrivals: pe.alloc_aligned(1, 128)?,
            partial: pe.alloc_aligned(ctas as usize, 128)?,
            change: pe.alloc_aligned(2, 128)?,
            results: pe.alloc_aligned(4, 128)?,
            found: pe.alloc(2)?,
            verdicts: pe.alloc(WORDS * npes)?,
            checked: pe.alloc(1)?,
            job: Job::of(pe, connection::paths(pe)),
            base: 0,
            runs: 0,
            serial: None,
        })
    }

    /// Gives the memory back. Collective.
    ///
    /// # Errors
    /// The job has failed.
    pub fn close(self) -> Result<(), Error> {
        let pe = self.pe;
        self.fields.free(pe)?;
        self.whole.map_or(Ok(()), |whole| whole.free(pe))?;
        let words = [self.signals, self.arrivals, self.results, self.found, self.verdicts, self.checked];
        words.into_iter().try_for_each(|slice| pe.free(slice))?;
        [self.partial, self.change].into_iter().try_for_each(|slice| pe.free(slice))?;
        Ok(())
    }

    /// Solves once and checks the result. PE 0 gets the row; it and the PEs that found wrong values
    /// get that as an error beside it. Collective.
    ///
    /// # Errors
    /// Anything but wrong values.
    pub fn run(&mut self, variant: Variant) -> Result<(Option<Row>, Option<Error>), Error> {
        let options = self.options;
        let function = self.module.kernel(&format!("solve_{}", variant.name()))?;
        if options.warmup != 0 {
            self.solve(&function, options.warmup)?;
        }
        let before = Posted::so_far(self.pe)?;
        let answer = self.solve(&function, options.niter)?;
        let posted = Posted::so_far(self.pe)?.since(before);
        self.runs += 1;

        let found = wrong_data(self.check(answer))?;
        let (slowest, wrong) = self.verdict(answer, found.is_some())?;
        if self.pe.my_pe() != 0 {
            return Ok((None, found));
        }
        let seconds = slowest as f64 / 1e9;
        let points = self.mesh.interior() * (self.mesh.nx - 2) * answer.iterations;
        let measured = options.norm_every != 0 && answer.iterations >= options.norm_every;
        let row = Row {
            app: "jacobi".to_owned(),
            variant: variant.name().to_owned(),
            job: self.job.having(posted),
            ctas: self.shape.grid[0],
            threads: self.shape.block[0],
            nx: self.mesh.nx,
            ny: self.mesh.ny,
            niter: answer.iterations,
            norm_every: options.norm_every,
            norm: measured.then(|| f64::from_bits(answer.change).sqrt()),
            ms: seconds * 1e3,
            us_per_iteration: seconds * 1e6 / answer.iterations as f64,
            gpoints: points as f64 / seconds / 1e9,
            check: options.check().into(),
            verified: (options.check() != Check::Off).then_some(wrong.is_none()),
            scaling: None,
            speedup: None,
            efficiency: None,
        };
        Ok((Some(row), found.or(wrong.map(Error::MismatchElsewhere))))
    }

    /// From the start, `iterations` or what is enough of them.
    fn solve(&mut self, function: &Kernel, iterations: u64) -> Result<Answer, Error> {
        let (me, npes) = (self.pe.my_pe(), self.pe.n_pes());
        let rows = self.mesh.rows_of(me, npes);
        let neighbour = |pe: Option<usize>| pe.filter(|pe| *pe < npes);
        let (above, below) = (neighbour(me.checked_sub(1)), neighbour(Some(me + 1)));
        let above_row = above.map_or(0, |pe| {
            let rows = self.mesh.rows_of(pe, npes);
            rows.end - rows.start + 1
        });
        let sides = self.mesh.sides();
        self.begin(&self.fields, &sides[rows.start as usize - 1..=rows.end as usize])?;
        // Neighbours may write as soon as they have begun.
        self.pe.barrier_all()?;
        let measure = self.options.norm_every;
        let problem =
            self.problem(&self.fields, rows.end - rows.start, (above, below, above_row), (iterations, measure));
        self.launch(function, problem)?;
        // What was sent in the last iteration is on its way.
        self.pe.barrier_all()?;
        self.base += iterations;
        let results = self.pe.read(self.results.view(..4))?;
        Ok(Answer {
            nanoseconds: results[1].saturating_sub(results[0]).max(1),
            iterations: results[2],
            change: results[3],
        })
    }

    /// Fills fields with what a run starts from.
    fn begin(&self, fields: &Fields, sides: &[f32]) -> Result<(), Error> {
        self.pe.write(&fields.sides, sides)?;
        self.pe.write(&self.arrivals, &[0])?;
        self.pe.write(&self.results, &[0; 4])?;
        let function = self.module.kernel("start")?;
        for field in &fields.both {
            let args = (field, &fields.sides, self.mesh.nx, self.mesh.pitch(), sides.len() as u64);
            // SAFETY: what the kernel declares; the field has that many rows, and so have the
            // sides.
            unsafe { function.launch(self.pe, PLAIN, args)? };
        }
        Ok(())
    }

    fn problem(
        &self,
        fields: &Fields,
        rows: u64,
        (above, below, above_row): (Option<usize>, Option<usize>, u64),
        (iterations, measure): (u64, u64),
    ) -> Problem {
        let pe = |pe: Option<usize>| pe.map_or(u64::MAX, |pe| pe as u64);
        Problem([
            fields.both[0].address(),
            fields.both[1].address(),
            self.signals.address(),
            self.arrivals.address(),
            self.partial.address(),
            self.change.address(),
            self.results.address(),
            self.mesh.nx,
            self.mesh.pitch(),
            rows,
            pe(above),
            pe(below),
            above_row,
            iterations,
            measure,
            self.options.tolerance.powi(2).to_bits(),
            self.base,
        ])
    }

    fn launch(&self, function: &Kernel, problem: Problem) -> Result<(), Error> {
        // SAFETY: what the kernel declares; all memory was made for this mesh and shape.
        unsafe { function.launch(self.pe, self.shape, (problem,))? };
        Ok(self.pe.synchronize()?)
    }

    /// The fields of the last run, compared with the requested reference. With the serial solution
    /// PE 0 alone does it.
    fn check(&mut self, answer: Answer) -> Result<(), Error> {
        self.corrupt(answer)?;
        match self.options.check() {
            Check::Serial | Check::Auto => {
                if self.pe.my_pe() != 0 {
                    return waiting::until(self.pe, &self.checked, self.runs, || "checking the result".to_owned());
                }
                let wrong = self.check_serial(answer);
                for other in 1..self.pe.n_pes() {
                    self.pe.signal(self.checked.signal(0).set(self.runs), other)?;
                }
                self.pe.quiet()?;
                wrong
            }
            Check::Single => self.check_single(answer),
            Check::Off => Ok(()),
        }
    }

    /// Returns the field that the last of `iterations` iterations has written.
    fn last_field(&self, iterations: u64) -> &SymmetricSlice<f32> {
        &self.fields.both[(iterations % 2) as usize]
    }

    /// Makes one value of the last PE wrong, if that was requested.
    fn corrupt(&self, answer: Answer) -> Result<(), Error> {
        let Some(place) = self.options.corrupt else { return Ok(()) };
        if self.pe.my_pe() + 1 == self.pe.n_pes() {
            let field = self.last_field(answer.iterations);
            let at = (self.mesh.pitch() + place) as usize;
            let value = self.pe.read(field.at(at))?[0];
            self.pe.write(field.view(at..), &[f32::from_bits(value.to_bits() ^ 1)])?;
        }
        Ok(self.pe.barrier_all()?)
    }

    fn check_serial(&mut self, answer: Answer) -> Result<(), Error> {
        let (mesh, npes) = (self.mesh, self.pe.n_pes());
        if self.serial.as_ref().is_none_or(|(iterations, _)| *iterations != answer.iterations) {
            self.serial = Some((answer.iterations, serial::solve(mesh, answer.iterations)));
        }
        let Some((_, solution)) = &self.serial else { return Ok(()) };
        let (nx, pitch) = (mesh.nx as usize, mesh.pitch() as usize);
        let mut wrong: Option<Mismatch> = None;
        for pe in 0..npes {
            for (index, row) in mesh.rows_of(pe, npes).enumerate() {
                let at = (index + 1) * pitch;
                let found = self.pe.get_vec(self.last_field(answer.iterations).view(at..at + nx), pe)?;
                let expected = &solution.field[row as usize * nx..][..nx];
                for (column, (expected, found)) in expected.iter().zip(&found).enumerate() {
                    if expected.to_bits() == found.to_bits() {
                        continue;
                    }
                    wrong.get_or_insert(Mismatch {
                        what: "the field beside the serial solution",
                        unit: "point",
                        offset: row * mesh.nx + column as u64,
                        expected: u64::from(expected.to_bits()),
                        found: u64::from(found.to_bits()),
                        wrong: 0,
                        of: mesh.nx * mesh.interior(),
                    });
                    wrong.iter_mut().for_each(|wrong| wrong.wrong += 1);
                }
            }
        }
        wrong.map_or(Ok(()), Err)?;
        let every = self.options.norm_every;
        if every != 0 && answer.iterations >= every && answer.iterations.is_multiple_of(every) {
            let (found, expected) = (f64::from_bits(answer.change).sqrt(), solution.change.sqrt());
            if (found - expected).abs() > NORM_TOLERANCE * expected {
                return Err(one_wrong("the norm of the change, bits of a double", expected.to_bits(), found.to_bits()));
            }
        }
        Ok(())
    }

    /// Solves the whole mesh on this PE alone, and compares this PE's rows with it.
    fn check_single(&self, answer: Answer) -> Result<(), Error> {
        let Some(whole) = &self.whole else { return Ok(()) };
        self.begin(whole, &self.mesh.sides())?;
        let alone = self.problem(whole, self.mesh.interior(), (None, None, 0), (answer.iterations, 0));
        self.launch(&self.module.kernel("solve_overlap")?, alone)?;
        let rows = self.mesh.rows_of(self.pe.my_pe(), self.pe.n_pes());
        let (pitch, height) = (self.mesh.pitch(), rows.end - rows.start);
        let expected = &whole.both[(answer.iterations % 2) as usize];
        let expected = expected.view((rows.start * pitch) as usize..(rows.end * pitch) as usize);
        let found = self.last_field(answer.iterations).view(pitch as usize..((height + 1) * pitch) as usize);
        self.pe.write(&self.found, &[0, 0])?;
        let args = (&expected, &found, self.mesh.nx, pitch, height, &self.found);
        // SAFETY: what the kernel declares; both have that many rows.
        unsafe { self.module.kernel("compare")?.launch(self.pe, PLAIN, args)? };
        self.pe.synchronize()?;
        let count = self.pe.read(self.found.view(..2))?;
        if count[0] == 0 {
            return Ok(());
        }
        let at = !count[1] as usize;
        let bits = |field: &SymmetricView<'_, f32>| -> Result<u64, Error> {
            Ok(u64::from(self.pe.read(field.at(at))?[0].to_bits()))
        };
        let (row, column) = (rows.start + at as u64 / pitch, at as u64 % pitch);
        Err(Error::Mismatch(Mismatch {
            what: "the field beside the solution of one PE",
            unit: "point",
            offset: row * self.mesh.nx + column,
            expected: bits(&expected)?,
            found: bits(&found)?,
            wrong: count[0],
            of: height * self.mesh.nx,
        }))
    }

    /// Returns the longest time of all PEs, and the first that found wrong values, for PE 0; which
    /// also sees that all have the same norm after the same iterations.
    fn verdict(&self, answer: Answer, wrong: bool) -> Result<(u64, Option<usize>), Error> {
        let (pe, me) = (self.pe, self.pe.my_pe());
        let words = [answer.nanoseconds, answer.iterations, answer.change, u64::from(wrong)];
        pe.put(self.verdicts.view(WORDS * me..), &words, 0)?;
        pe.barrier_all()?;
        if me != 0 {
            return Ok((0, None));
        }
        let all = pe.read(self.verdicts.view(..WORDS * pe.n_pes()))?;
        for (other, theirs) in all.chunks_exact(WORDS).enumerate() {
            if (theirs[1], theirs[2]) != (answer.iterations, answer.change) {
                return Ok((0, Some(other)));
            }
        }
        let slowest = all.iter().step_by(WORDS).copied().max().unwrap_or(1);
        Ok((slowest, all.chunks_exact(WORDS).position(|theirs| theirs[3] != 0)))
    }

    /// Returns the field after the last run of `niter` iterations, at the crossings of `rows` and
    /// `columns`. PE 0 alone calls; the others wait for it where memory is given back.
    ///
    /// # Errors
    /// The job has failed.
    pub fn sample(&self, iterations: u64, rows: &[u64], columns: &[u64]) -> Result<Vec<Vec<f32>>, Error> {
        let npes = self.pe.n_pes();
        let sides = self.mesh.sides();
        let pitch = self.mesh.pitch() as usize;
        rows.iter()
            .map(|row| {
                let owner = (0..npes).find(|pe| self.mesh.rows_of(*pe, npes).contains(row));
                let values = match owner {
                    Some(pe) => {
                        let at = (row - self.mesh.rows_of(pe, npes).start + 1) as usize * pitch;
                        self.pe.get_vec(self.last_field(iterations).view(at..at + self.mesh.nx as usize), pe)?
                    }
                    None => vec![0.0; self.mesh.nx as usize],
                };
                let side = sides[*row as usize];
                let last = self.mesh.nx - 1;
                Ok(columns
                    .iter()
                    .map(|column| if *column == 0 || *column == last { side } else { values[*column as usize] })
                    .collect())
            })
            .collect()
    }
}

fn one_wrong(what: &'static str, expected: u64, found: u64) -> Error {
    Error::Mismatch(Mismatch { what, unit: "word", offset: 0, expected, found, wrong: 1, of: 1 })
}
