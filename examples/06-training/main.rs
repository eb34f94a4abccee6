//! Training of a network of two layers, whose samples are dealt out to the PEs: data parallelism.
//!
//! Every PE has all weights and computes the gradient of its samples; a reduction adds up the
//! gradients of all PEs, and each PE takes the same step. Kernels run on one stream and reductions
//! on another: while the gradients of the second layer are added up, those of the first are still
//! computed. Signals of a PE to itself say how far each stream is. The host queues all steps and
//! waits once.
//!
//! PE 0 first trains with all samples on its device alone, as a team of one, which the weights of
//! all PEs are compared with. Then all train twice, with everything on one stream and with two, and
//! PE 0 says how long each took.

mod serial;

use std::ops::Range;
use std::time::Instant;

use oxshmem::{Compare, LaunchConfig, OnStream, Operations, Pe, ReduceOp, SymmetricSlice, Team};

use serial::{RATE, SAMPLES, SIZES, STEPS, inputs, largest_difference, start, train, wanted};

oxshmem::kernels! {
    struct Kernels from "training" {
        unsafe fn forward(
            input: &SymmetricSlice<f32>, weights: &SymmetricSlice<f32>, out: &SymmetricSlice<f32>,
            samples: u64, inputs: u64, outputs: u64, rectifies: u32,
        );
        unsafe fn error(
            results: &SymmetricSlice<f32>, wanted: &SymmetricSlice<f32>, gradient: &SymmetricSlice<f32>,
            n: u64, scale: f32,
        );
        unsafe fn by_weights(
            input: &SymmetricSlice<f32>, by_results: &SymmetricSlice<f32>, gradient: &SymmetricSlice<f32>,
            samples: u64, inputs: u64, outputs: u64,
        );
        unsafe fn by_inputs(
            input: &SymmetricSlice<f32>, by_results: &SymmetricSlice<f32>, weights: &SymmetricSlice<f32>,
            gradient: &SymmetricSlice<f32>, samples: u64, inputs: u64, outputs: u64,
        );
        unsafe fn descend(weights: &SymmetricSlice<f32>, gradient: &SymmetricSlice<f32>, n: u64, rate: f32);
    }
}

/// How large the kernels' grids are.
const SHAPE: LaunchConfig = LaunchConfig { grid: [4, 1, 1], block: [128, 1, 1], shared_bytes: 0, cooperative: false };

/// The largest difference that rounding may make to a weight: gradients of one PE are sums of the
/// same terms in another order. Rounding changes a sum of `SAMPLES` terms by at most `SAMPLES *
/// EPSILON` times the sum of their magnitudes, which is below 0.01 for each gradient here, and each
/// step adds `RATE` times that change.
const TOLERANCE: f32 = 0.01 * SAMPLES as f32 * f32::EPSILON * RATE * STEPS as f32;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let pe = oxshmem::init()?;
    let (me, n_pes, world) = (pe.my_pe(), pe.n_pes(), pe.team_world());
    if n_pes > SAMPLES {
        return Err(format!("{n_pes} PEs for {SAMPLES} samples: start at most {SAMPLES}").into());
    }
    let kernels = Kernels::load(&pe)?;

    // PE 0 alone.
    let by_one = Trainer::new(&pe, &kernels, 0..SAMPLES, SAMPLES)?;
    if let Some(alone) = world.split_strided(&pe, 0, 1, 1)? {
        by_one.train(&alone, true)?;
        for layer in 0..2 {
            let weights = pe.read(&by_one.weights[layer])?;
            if largest_difference(&weights, &start()[layer]) < 100.0 * TOLERANCE {
                return Err(format!("{STEPS} steps have changed nothing in layer {layer}").into());
            }
            // The kernels compute what a thread of the host computes.
            let difference = largest_difference(&weights, &train(STEPS)[layer]);
            if difference > TOLERANCE {
                return Err(format!("a weight of layer {layer} differs by {difference} from the host's").into());
            }
        }
        alone.destroy(&pe)?;
    }

    // All PEs, without overlap and with it.
    let (first, last) = (me * SAMPLES / n_pes, (me + 1) * SAMPLES / n_pes);
    let trainer = Trainer::new(&pe, &kernels, first..last, SAMPLES.div_ceil(n_pes))?;
    let mut milliseconds = [0.0; 2];
    for overlaps in [false, true] {
        trainer.begin()?;
        pe.barrier_all()?;
        let begin = Instant::now();
        trainer.train(&world, overlaps)?;
        // All PEs have their weights.
        pe.barrier_all()?;
        milliseconds[usize::from(overlaps)] = begin.elapsed().as_secs_f64() * 1e3;
        for layer in 0..2 {
            // All PEs have added up the same numbers in the same order.
            let weights = &trainer.weights[layer];
            let mine = pe.read(weights)?;
            if mine != pe.get_vec(weights, (me + 1) % n_pes)? {
                return Err(format!("PE {me}: the weights of layer {layer} differ from those of the next PE").into());
            }
            let difference = largest_difference(&mine, &pe.get_vec(&by_one.weights[layer], 0)?);
            if difference > TOLERANCE {
                return Err(format!("PE {me}: a weight of layer {layer} differs by {difference} from one PE's").into());
            }
        }
        // No PE goes on while others still look at its weights.
        pe.barrier_all()?;
    }
    if me == 0 {
        let [apart, overlapped] = milliseconds;
        eprintln!("{STEPS} steps took {overlapped:.2} ms, and {apart:.2} ms without overlap");
    }
    println!("PE {me}: samples {first} to {} have made the weights that one PE makes in {STEPS} steps", last - 1);
    trainer.free()?;
    by_one.free()?;
    Ok(pe.finalize()?)
}

/// One PE's part of a training.
struct Trainer<'a> {
    pe: &'a Pe,
    kernels: &'a Kernels,
    samples: u64,
    /// The samples, what they shall lead to, and the values of both layers.
    input: SymmetricSlice<f32>,
    wanted: SymmetricSlice<f32>,
    values: [SymmetricSlice<f32>; 2],
    /// Gradients by those values.
    by_values: [SymmetricSlice<f32>; 2],
    weights: [SymmetricSlice<f32>; 2],
    gradients: [SymmetricSlice<f32>; 2],
    /// The last step whose gradients a layer has: of this PE, and of all.
    signals: SymmetricSlice<u64>,
}

/// Where the signals of a layer's gradients are.
const COMPUTED: usize = 0;
const ADDED_UP: usize = 2;

impl<'a> Trainer<'a> {
    /// Makes what a PE needs for some of the samples. Allocation is collective, so all PEs name the
    /// same number as the `most` that any of them has.
    fn new(pe: &'a Pe, kernels: &'a Kernels, of: Range<usize>, most: usize) -> oxshmem::Result<Self> {
        let floats = |n: usize| pe.alloc::<f32>(n);
        let [inputs_of_1, values_of_1, values_of_2] = SIZES;
        let trainer = Self {
            pe,
            kernels,
            samples: of.len() as u64,
            input: floats(most * inputs_of_1)?,
            wanted: floats(most * values_of_2)?,
            values: [floats(most * values_of_1)?, floats(most * values_of_2)?],
            by_values: [floats(most * values_of_1)?, floats(most * values_of_2)?],
            weights: [floats(inputs_of_1 * values_of_1)?, floats(values_of_1 * values_of_2)?],
            gradients: [floats(inputs_of_1 * values_of_1)?, floats(values_of_1 * values_of_2)?],
            signals: pe.alloc(4)?,
        };
        pe.write(
            trainer.input.view(..of.len() * inputs_of_1),
            &inputs()[of.start * inputs_of_1..of.end * inputs_of_1],
        )?;
        pe.write(
            trainer.wanted.view(..of.len() * values_of_2),
            &wanted()[of.start * values_of_2..of.end * values_of_2],
        )?;
        trainer.begin()?;
        Ok(trainer)
    }

    /// Sets the weights to those before the first step.
    fn begin(&self) -> oxshmem::Result<()> {
        for (slice, weights) in self.weights.iter().zip(&start()) {
            self.pe.write(slice, weights)?;
        }
        self.pe.write(&self.signals, &[0; 4])
    }

    /// Takes all steps with the members of a team: on two streams, or all on one.
    fn train(&self, team: &Team, overlaps: bool) -> oxshmem::Result<()> {
        let streams = [self.pe.create_stream()?, self.pe.create_stream()?];
        let (compute, communicate) = (self.pe.on(&streams[0]), self.pe.on(&streams[usize::from(overlaps)]));
        for step in 1..=STEPS as u64 {
            self.queue_gradients(&compute, step)?;
            for layer in [1, 0] {
                self.await_step(&communicate, COMPUTED + layer, step)?;
                let gradient = &self.gradients[layer];
                communicate.reduce(team, ReduceOp::Sum, gradient, gradient)?;
                self.tell_step(&communicate, ADDED_UP + layer, step)?;
            }
            for layer in [1, 0] {
                self.await_step(&compute, ADDED_UP + layer, step)?;
                let (weights, gradient) = (&self.weights[layer], &self.gradients[layer]);
                // SAFETY: both have that many elements.
                unsafe {
                    self.kernels.descend(&compute, SHAPE, weights, gradient, weights.len() as u64, RATE)?;
                }
            }
        }
        compute.synchronize()?;
        communicate.synchronize()
    }

    /// Queues the kernels of a step up to the gradients of this PE's samples. Those of the second
    /// layer come first, and are told of at once.
    fn queue_gradients(&self, on: &OnStream<'_>, step: u64) -> oxshmem::Result<()> {
        let Self { kernels, samples, input, wanted, values, by_values, weights, gradients, .. } = self;
        let [inputs, hidden, outputs] = SIZES.map(|size| size as u64);
        let scale = serial::scale();
        // SAFETY: `new` has made all slices as large as the kernels are told, for its samples.
        unsafe {
            kernels.forward(on, SHAPE, input, &weights[0], &values[0], *samples, inputs, hidden, 1)?;
            kernels.forward(on, SHAPE, &values[0], &weights[1], &values[1], *samples, hidden, outputs, 0)?;
            kernels.error(on, SHAPE, &values[1], wanted, &by_values[1], *samples * outputs, scale)?;
            kernels.by_weights(on, SHAPE, &values[0], &by_values[1], &gradients[1], *samples, hidden, outputs)?;
        }
        self.tell_step(on, COMPUTED + 1, step)?;
        // SAFETY: as above.
        unsafe {
            kernels.by_inputs(
                on,
                SHAPE,
                &values[0],
                &by_values[1],
                &weights[1],
                &by_values[0],
                *samples,
                hidden,
                outputs,
            )?;
            kernels.by_weights(on, SHAPE, input, &by_values[0], &gradients[0], *samples, inputs, hidden)?;
        }
        self.tell_step(on, COMPUTED, step)
    }

    /// Tells this PE's other stream that what is queued here so far has ended.
    fn tell_step(&self, on: &OnStream<'_>, signal: usize, step: u64) -> oxshmem::Result<()> {
        on.signal(self.signals.signal(signal).set(step), self.pe.my_pe())
    }

    fn await_step(&self, on: &OnStream<'_>, signal: usize, step: u64) -> oxshmem::Result<()> {
        on.signal_wait_until(self.signals.signal(signal), Compare::Ge, step)
    }

    fn free(self) -> oxshmem::Result<()> {
        let Self { pe, input, wanted, values, by_values, weights, gradients, signals, .. } = self;
        let several = [values, by_values, weights, gradients].into_iter().flatten();
        [input, wanted].into_iter().chain(several).try_for_each(|slice| pe.free(slice))?;
        pe.free(signals)
    }
}
