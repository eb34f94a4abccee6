//! The problem, and its solution by one thread of the host.

/// Samples of all PEs.
pub const SAMPLES: usize = 96;
/// Inputs of the first layer, its values, and those of the second layer.
pub const SIZES: [usize; 3] = [64, 128, 32];
/// Steps of the training.
pub const STEPS: usize = 20;
/// How far a step goes.
pub const RATE: f32 = 4.0;

/// The weights of both layers, each by its inputs and then by its values.
pub type Weights = [Vec<f32>; 2];

/// Returns numbers between -1 and 1 that look random, the same each time.
fn numbers(seed: u64, n: usize) -> Vec<f32> {
    let number = |i: usize| {
        let x = (seed << 32 | i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let x = (x ^ x >> 31).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (x >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..n).map(number).collect()
}

/// Returns the inputs of all samples.
pub fn inputs() -> Vec<f32> {
    numbers(1, SAMPLES * SIZES[0])
}

/// Returns what the network shall make of them.
pub fn wanted() -> Vec<f32> {
    numbers(2, SAMPLES * SIZES[2])
}

/// Returns the weights before the first step.
pub fn start() -> Weights {
    let layer = |layer: usize| {
        let scale = 1.0 / (SIZES[layer] as f32).sqrt();
        numbers(3 + layer as u64, SIZES[layer] * SIZES[layer + 1]).into_iter().map(|x| x * scale).collect()
    };
    [layer(0), layer(1)]
}

/// Returns what the difference of a result is multiplied with in the gradient of the mean squared
/// error.
pub fn scale() -> f32 {
    2.0 / (SAMPLES * SIZES[2]) as f32
}

/// Returns the weights of both layers after some steps.
pub fn train(steps: usize) -> Weights {
    let (input, wanted) = (inputs(), wanted());
    let mut weights = start();
    for _ in 0..steps {
        let hidden: Vec<f32> = product(&input, &weights[0], SIZES[0]).into_iter().map(|x| x.max(0.0)).collect();
        let results = product(&hidden, &weights[1], SIZES[1]);
        let by_results: Vec<f32> = results.iter().zip(&wanted).map(|(is, wanted)| (is - wanted) * scale()).collect();
        let mut by_hidden = product(&by_results, &transposed(&weights[1], SIZES[2]), SIZES[2]);
        by_hidden.iter_mut().zip(&hidden).filter(|(_, value)| **value <= 0.0).for_each(|(by, _)| *by = 0.0);
        let gradients = [
            product(&transposed(&input, SIZES[0]), &by_hidden, SAMPLES),
            product(&transposed(&hidden, SIZES[1]), &by_results, SAMPLES),
        ];
        for (weights, gradients) in weights.iter_mut().zip(gradients) {
            weights.iter_mut().zip(gradients).for_each(|(weight, gradient)| *weight -= RATE * gradient);
        }
    }
    weights
}

/// Returns the product of two matrices in rows, of which the first has `columns` columns.
fn product(a: &[f32], b: &[f32], columns: usize) -> Vec<f32> {
    let width = b.len() / columns;
    let row = |row: &[f32]| -> Vec<f32> {
        (0..width).map(|x| row.iter().enumerate().map(|(k, a)| a * b[k * width + x]).sum()).collect()
    };
    a.chunks_exact(columns).flat_map(row).collect()
}

/// Returns a matrix of `columns` columns with rows and columns exchanged.
fn transposed(a: &[f32], columns: usize) -> Vec<f32> {
    (0..columns).flat_map(|column| a.iter().skip(column).step_by(columns).copied()).collect()
}

/// Returns the largest difference of two vectors of one length.
pub fn largest_difference(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}
