//! All-to-all on a stream: transposes a matrix whose rows are dealt out to the PEs, twice.
//!
//! Kernels and collectives are queued one after the other on a stream, and the host waits once, at
//! the end.

use oxshmem::{LaunchConfig, OnStream, Operations, SymmetricSlice, Team};

oxshmem::kernels! {
    struct Kernels from "alltoall" {
        unsafe fn pack(matrix: &SymmetricSlice<i32>, outbox: &SymmetricSlice<i32>, rows: u64, n: u64);
        unsafe fn unpack(inbox: &SymmetricSlice<i32>, matrix: &SymmetricSlice<i32>, rows: u64, n: u64);
    }
}

/// Rows of each PE.
const ROWS: usize = 24;

/// What a transposition works on.
struct Buffers {
    outbox: SymmetricSlice<i32>,
    inbox: SymmetricSlice<i32>,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let pe = oxshmem::init()?;
    let n = ROWS * pe.n_pes();
    let team = pe.team_world();

    let (matrix, transposed, back) = (pe.alloc(ROWS * n)?, pe.alloc(ROWS * n)?, pe.alloc(ROWS * n)?);
    let buffers = Buffers { outbox: pe.alloc(ROWS * n)?, inbox: pe.alloc(ROWS * n)? };
    let first = ROWS * pe.my_pe();
    let value = |row: usize, column: usize| (1000 * row + column) as i32;
    let rows: Vec<i32> = (0..ROWS * n).map(|i| value(first + i / n, i % n)).collect();
    pe.write(&matrix, &rows)?;

    let kernels = Kernels::load(&pe)?;
    let stream = pe.create_stream()?;
    let on = pe.on(&stream);
    transpose(&on, &kernels, &team, &buffers, &matrix, &transposed)?;
    // The next all-to-all writes the inboxes again: no PE begins it before every PE has read its
    // inbox.
    on.team_sync(&team)?;
    transpose(&on, &kernels, &team, &buffers, &transposed, &back)?;
    on.synchronize()?;

    let expected: Vec<i32> = (0..ROWS * n).map(|i| value(i % n, first + i / n)).collect();
    if pe.read(&transposed)? != expected || pe.read(&back)? != rows {
        return Err(format!("PE {}: the transposed rows are wrong", pe.my_pe()).into());
    }
    println!("PE {}: a matrix of {n} by {n} was transposed and back", pe.my_pe());
    Ok(pe.finalize()?)
}

/// Queues the transposition of `input` to `output`.
fn transpose(
    on: &OnStream<'_>,
    kernels: &Kernels,
    team: &Team,
    Buffers { outbox, inbox }: &Buffers,
    input: &SymmetricSlice<i32>,
    output: &SymmetricSlice<i32>,
) -> oxshmem::Result<()> {
    let (rows, n) = (ROWS as u64, (ROWS * team.n_pes()) as u64);
    let shape = LaunchConfig::linear(2, 256);
    // SAFETY: all of the slices have `rows` times `n` elements.
    unsafe { kernels.pack(on, shape, input, outbox, rows, n)? };
    on.alltoall(team, inbox, outbox, ROWS * ROWS)?;
    // SAFETY: as above.
    unsafe { kernels.unpack(on, shape, inbox, output, rows, n) }
}
