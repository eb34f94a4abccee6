//! Beside cudarc: one stream for copies of cudarc and operations of the PE, a slice of cudarc as
//! the local side of puts and gets, and symmetric memory in copies of cudarc.

use std::error::Error;

use oxshmem::{Operations, Pe};

/// Numbers that go around.
const NUMBERS: usize = 4096;

fn main() -> Result<(), Box<dyn Error>> {
    let pe = oxshmem::init()?;
    if pe.gpu().is_some() {
        beside_cudarc(&pe)?;
        println!("PE {}: cudarc and OxSHMEM moved {NUMBERS} numbers", pe.my_pe());
    } else {
        println!("PE {}: skipped: this PE is on the `{}` device, and cudarc needs a GPU", pe.my_pe(), pe.device_name());
    }
    Ok(pe.finalize()?)
}

fn beside_cudarc(pe: &Pe) -> Result<(), Box<dyn Error>> {
    let (me, n_pes) = (pe.my_pe(), pe.n_pes());
    let (next, previous) = ((me + 1) % n_pes, (me + n_pes - 1) % n_pes);
    let numbers = |pe: usize| (0..NUMBERS).map(|i| (pe * NUMBERS + i) as f32).collect::<Vec<_>>();

    // The context of the PE's GPU, with a stream that both libraries put work on.
    let context = pe.cuda_context()?;
    let stream = context.new_stream()?;
    let adopted = pe.cuda_stream(&stream)?;

    // A slice of cudarc is the source of a put, and another the destination of a get.
    let mine = stream.clone_htod(&numbers(me))?;
    let mut fetched = stream.alloc_zeros::<f32>(NUMBERS)?;
    let inbox = pe.alloc::<f32>(NUMBERS)?;
    pe.on(&adopted).put(&inbox, &mine, next)?;
    pe.on(&adopted).barrier_all()?;
    pe.on(&adopted).get(&mut fetched, &inbox, me)?;
    expect(stream.clone_dtoh(&fetched)?, &numbers(previous))?;

    // Lent to cudarc, symmetric memory goes where its calls take memory of the device.
    let lent = pe.lend(&inbox, &stream)?;
    expect(stream.clone_dtoh(&lent)?, &numbers(previous))?;
    drop(lent);

    // The copies above have ended, and the errors of device code are reported here.
    pe.on(&adopted).synchronize()?;
    Ok(pe.free(inbox)?)
}

fn expect(found: Vec<f32>, expected: &[f32]) -> Result<(), Box<dyn Error>> {
    if found == expected { Ok(()) } else { Err("the numbers of the previous PE arrived wrong".into()) }
}
