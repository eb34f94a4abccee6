//! Jacobi step by step: the heat in a plate whose rows are dealt out to the PEs.
//!
//! A step is two launches on one stream: `relax` computes, `exchange` sends the edge rows to the
//! neighbours and waits for theirs. The host queues all steps and waits once.

use oxshmem::{LaunchConfig, Operations, Pe, SymmetricSlice};

oxshmem::kernels! {
    struct Kernels from "jacobi" {
        unsafe fn relax(input: &SymmetricSlice<f32>, output: &SymmetricSlice<f32>, width: u64, first: u64, last: u64);
        unsafe fn exchange(
            field: &SymmetricSlice<f32>, width: u64, rows: u64, above: i32, below: i32, above_rows: u64,
            signals: &SymmetricSlice<u64>, step: u64,
        );
    }
}

/// Columns of the plate, its fixed edges included.
const WIDTH: usize = 66;
/// Rows of the plate, without the fixed edges.
const ROWS: usize = 61;
const STEPS: u64 = 50;

/// The rows of one PE: `first..first + rows` of the plate's.
#[derive(Clone, Copy)]
struct Share {
    first: usize,
    rows: usize,
}

impl Share {
    /// Deals the rows out as evenly as they go.
    fn of(pe: usize, n_pes: usize) -> Self {
        let first = pe * ROWS / n_pes;
        Self { first, rows: (pe + 1) * ROWS / n_pes - first }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let pe = oxshmem::init()?;
    if pe.n_pes() > ROWS {
        return Err(format!("{} PEs for {ROWS} rows: start at most {ROWS}", pe.n_pes()).into());
    }
    let share = Share::of(pe.my_pe(), pe.n_pes());
    let field = solve(&pe, share)?;

    // Each PE has a small plate, so it can check its rows against the whole, computed here.
    let whole = serial();
    if field != whole[share.first * WIDTH..(share.first + share.rows + 2) * WIDTH] {
        return Err(format!("PE {}: the rows differ from the serial solution", pe.my_pe()).into());
    }
    let Share { first, rows } = share;
    println!("PE {}: rows {first} to {} are right after {STEPS} steps", pe.my_pe(), first + rows - 1);
    Ok(pe.finalize()?)
}

/// Returns this PE's rows after the last step, with the row before and the row after them.
fn solve(pe: &Pe, share: Share) -> oxshmem::Result<Vec<f32>> {
    let (me, n_pes) = (pe.my_pe(), pe.n_pes());
    // Allocation is collective, so all PEs ask for what the largest share needs. Steps alternate
    // between two fields.
    let most = (0..n_pes).map(|other| Share::of(other, n_pes).rows).max().unwrap_or_default();
    let fields = [pe.alloc::<f32>((most + 2) * WIDTH)?, pe.alloc::<f32>((most + 2) * WIDTH)?];
    let signals = pe.alloc::<u64>(2)?;

    let start = plate();
    let mine = &start[share.first * WIDTH..(share.first + share.rows + 2) * WIDTH];
    for field in &fields {
        pe.write(field.view(..mine.len()), mine)?;
    }
    // A neighbour's first exchange writes into this PE's fields, so these are ready everywhere
    // first.
    pe.barrier_all()?;

    let neighbour = |pe: Option<usize>| pe.filter(|pe| *pe < n_pes).map_or(-1, |pe| pe as i32);
    let (above, below) = (neighbour(me.checked_sub(1)), neighbour(Some(me + 1)));
    let above_rows = me.checked_sub(1).map_or(0, |above| Share::of(above, n_pes).rows as u64);
    let (width, rows) = (WIDTH as u64, share.rows as u64);

    let kernels = Kernels::load(pe)?;
    let stream = pe.create_stream()?;
    let on = pe.on(&stream);
    let mut last = &fields[0];
    for step in 1..=STEPS {
        let (input, output) = if step % 2 == 1 { (&fields[0], &fields[1]) } else { (&fields[1], &fields[0]) };
        // SAFETY: both fields have the rows that the kernels are told of, and `signals` has two
        // words.
        unsafe {
            kernels.relax(&on, LaunchConfig::linear(4, 256), input, output, width, 1, rows + 1)?;
            kernels.exchange(
                &on,
                LaunchConfig::linear(2, 256),
                output,
                width,
                rows,
                above,
                below,
                above_rows,
                &signals,
                step,
            )?;
        }
        last = output;
    }
    on.synchronize()?;
    pe.read(last.view(..mine.len()))
}

/// Returns the plate at the start: hot at the upper edge, cold elsewhere.
fn plate() -> Vec<f32> {
    let mut plate = vec![0.0; (ROWS + 2) * WIDTH];
    plate[..WIDTH].fill(100.0);
    plate
}

/// Returns the plate after the last step.
fn serial() -> Vec<f32> {
    let mut input = plate();
    for _ in 0..STEPS {
        let mut output = input.clone();
        for row in 1..=ROWS {
            for column in 1..WIDTH - 1 {
                let at = row * WIDTH + column;
                output[at] = 0.25 * (input[at - WIDTH] + input[at + WIDTH] + input[at - 1] + input[at + 1]);
            }
        }
        input = output;
    }
    input
}
