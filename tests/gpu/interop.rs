//! A program that uses the GPU itself, through cudarc, before, beside and after this library.

use std::sync::Arc;

use cudarc::driver::{CudaContext, DevicePtr};
use oxshmem::{LaunchConfig, Operations};

use crate::{GPU, Outcome, init};

pub fn beside_cudarc() -> Outcome {
    // Its own context on the last GPU: the PE takes the GPU that is current.
    let last = CudaContext::device_count()? as usize - 1;
    let context = CudaContext::new(last)?;
    let stream = context.new_stream()?;
    let data: Vec<u32> = (0..100_000).collect();
    let source = stream.clone_htod(&data)?;
    stream.synchronize()?;

    let pe = init()?;
    assert_eq!(pe.gpu().unwrap().ordinal as usize, last);
    let (me, n_pes) = (pe.my_pe(), pe.n_pes());
    let inbox = pe.alloc::<u32>(data.len())?;
    let put = pe.load(&GPU)?.kernel("put_from")?;
    {
        let (address, _guard) = source.device_ptr(&stream);
        let args = (&inbox, address, data.len() as u64 * 4, ((me + 1) % n_pes) as i32);
        // SAFETY: the kernel reads memory of cudarc's, which lives until the stream is synchronised below.
        unsafe { put.launch(&pe, LaunchConfig::linear(1, 256), args)? };
        pe.barrier_all()?;
    }
    assert_eq!(pe.read(inbox.view(..data.len()))?, data);

    // The library left cudarc's context current, and its calls still work, on the library's memory too.
    let mut here = vec![0u32; data.len()];
    context.check_err()?;
    // SAFETY: the slice has that many elements.
    unsafe { cudarc::driver::result::memcpy_dtoh_sync(&mut here, inbox.address())? };
    assert_eq!(here, data);
    pe.finalize()?;
    assert_eq!(stream.clone_dtoh(&source)?, data);
    drop(source);
    drop(stream);
    assert_eq!(Arc::strong_count(&context), 1);
    Ok(())
}
