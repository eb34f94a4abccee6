//! Kernels that are linked with the device library while the program runs, as those that it
//! compiles then would be.

use std::ffi::{CStr, c_void};
use std::time::{Duration, Instant};

use cudarc::driver::sys;
use oxshmem::device::DeviceError;
use oxshmem::device::cuda::{DEVICE_LIBRARY, ModuleError};
use oxshmem::{Config, ContextOptions, Error, FaultKind, Operations, Pe, Sharing, abi};
use oxshmem_tests::exchange::{BOARD_WORDS, BYTES, SPARE, THREADS, check_board};

use crate::streams::works;
use crate::{Outcome, init, init_with};

/// `kernels/linked.cu`, relocatable, with the device library's functions undefined.
static LINKED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/linked.fatbin"));

/// A linked module that is loaded and knows the PE.
struct Loaded<'a> {
    pe: &'a Pe,
    raw: sys::CUmodule,
}

impl<'a> Loaded<'a> {
    fn new(pe: &'a Pe, image: &[u8]) -> oxshmem::Result<Self> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: a whole cubin, as the linker made it; the module stays loaded until it is
        // unregistered.
        unsafe {
            works(sys::cuModuleLoadData(&raw mut raw, image.as_ptr().cast()));
            pe.register_module(raw.cast())?;
        }
        Ok(Self { pe, raw })
    }

    /// Runs a kernel in one block, to its end. Its parameters are 8 bytes each.
    fn run(&self, name: &CStr, threads: u32, mut values: Vec<u64>) -> oxshmem::Result<()> {
        let mut function = std::ptr::null_mut();
        let mut args: Vec<*mut c_void> = values.iter_mut().map(|value| std::ptr::from_mut(value).cast()).collect();
        let (stream, extra) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: a kernel of the module, with the parameters that it declares.
        unsafe {
            works(sys::cuModuleGetFunction(&raw mut function, self.raw, name.as_ptr()));
            works(sys::cuLaunchKernel(function, 1, 1, 1, threads, 1, 1, 0, stream, args.as_mut_ptr(), extra));
        }
        self.pe.synchronize_device()
    }

    fn unload(self) -> oxshmem::Result<()> {
        self.pe.unregister_module(self.raw.cast())?;
        // SAFETY: none of its kernels is running.
        works(unsafe { sys::cuModuleUnload(self.raw) });
        Ok(())
    }
}

/// Relocatable code with a function of the library under this name.
fn ptx(callee: &str) -> String {
    format!(
        ".version 8.0\n.target sm_80\n.address_size 64\n.extern .func {callee}();\n.visible .entry caller()\n{{\ncall.uni {callee}, ();\nret;\n}}\n"
    )
}

pub fn linked() -> Outcome {
    let pe = init()?;
    pe.make_gpu_current()?;
    let (me, n) = (pe.my_pe(), pe.n_pes());
    let board = pe.alloc::<u64>(BOARD_WORDS)?;
    let data = pe.alloc::<u8>(3 * BYTES)?;
    let (mut spare, mut wrong) = (0, 0);
    // SAFETY: places for two addresses; memory of those sizes.
    unsafe {
        works(sys::cuMemAlloc_v2(&raw mut spare, SPARE));
        works(sys::cuMemAlloc_v2(&raw mut wrong, 8));
        works(sys::cuMemsetD8_v2(wrong, 0, 8));
    }

    // What was linked once can be loaded any number of times.
    let begin = Instant::now();
    let image = pe.link_module(LINKED)?;
    let took = begin.elapsed();
    println!(
        "linked {} bytes with a library of {}: {} bytes, {took:.1?}",
        LINKED.len(),
        DEVICE_LIBRARY.len(),
        image.len()
    );
    for _ in 0..2 {
        let begin = Instant::now();
        let module = Loaded::new(&pe, &image)?;
        println!("loaded in {:.1?}", begin.elapsed());
        pe.write(&board, &[0; BOARD_WORDS])?;
        module.run(c"who_am_i", 1, vec![board.address()])?;
        assert_eq!(pe.read(board.view(..1))?, [me as u64 | (n as u64) << 32]);
        pe.write(&board, &[0])?;
        pe.barrier_all()?;
        let (data, bytes, spare_bytes) = (data.address(), BYTES as u64, SPARE as u64);
        module.run(c"exchange", THREADS, vec![board.address(), data, bytes, spare, spare_bytes, wrong])?;
        let mut found = u64::MAX;
        // SAFETY: the word is as long.
        works(unsafe { sys::cuMemcpyDtoH_v2((&raw mut found).cast(), wrong, 8) });
        assert_eq!(found, 0, "values that are wrong");
        pe.barrier_all()?;
        check_board(&pe.read(board.view(..BOARD_WORDS))?);
        module.unload()?;
        pe.barrier_all()?;
    }

    // Through a context.
    let contexts = pe.team_world().create_contexts(&pe, &ContextOptions::new(Sharing::Thread))?;
    let words = pe.alloc::<u64>(24)?;
    let module = Loaded::new(&pe, &image)?;
    let array = contexts.as_device_has_them().1;
    module.run(c"through_context", 1, vec![array, words.address(), spare, wrong])?;
    let mut found = u64::MAX;
    // SAFETY: the word is as long.
    works(unsafe { sys::cuMemcpyDtoH_v2((&raw mut found).cast(), wrong, 8) });
    assert_eq!(found, 0, "values that are wrong through a context");
    module.unload()?;
    pe.barrier_all()?;
    contexts.destroy(&pe)?;

    // The library records errors too.
    let module = Loaded::new(&pe, &image)?;
    match module.run(c"to_nobody", 1, vec![board.address()]) {
        Err(Error::Fault(fault)) => assert!(matches!(fault.kind, FaultKind::PeOutOfRange { .. }), "{fault}"),
        other => panic!("{other:?}"),
    }
    module.unload()?;

    // What cannot be linked says why.
    let refused = |code: &[u8]| match pe.link_module(code) {
        Err(Error::Device(DeviceError::CudaModule { source: error @ ModuleError::Link { .. }, .. })) => {
            println!("{error}");
            error.to_string()
        }
        other => panic!("{other:?}"),
    };
    let other_abi = format!("oxshmem_library_fence_v{}", abi::ABI_VERSION + 1);
    assert!(refused(ptx(&other_abi).as_bytes()).contains(&other_abi));
    refused(b"this is no PTX");
    let cut_off = pe.link_module(&LINKED[..LINKED.len() / 2]);
    let is_told =
        |error: &DeviceError| matches!(error, DeviceError::CudaModule { source: ModuleError::Truncated { .. }, .. });
    assert!(matches!(&cut_off, Err(Error::Device(error)) if is_told(error)), "{cut_off:?}");
    pe.link_module(ptx(&format!("oxshmem_library_fence_v{}", abi::ABI_VERSION)).as_bytes())?;

    // SAFETY: nothing uses them any more.
    unsafe {
        works(sys::cuMemFree_v2(spare));
        works(sys::cuMemFree_v2(wrong));
    }
    Ok(pe.finalize()?)
}

/// Waits of linked kernels have their deadline.
pub fn linked_deadline() -> Outcome {
    let pe = init_with(Config::builder().timeout(Duration::from_millis(200)))?;
    pe.make_gpu_current()?;
    let board = pe.alloc::<u64>(BOARD_WORDS)?;
    let module = Loaded::new(&pe, &pe.link_module(LINKED)?)?;
    match module.run(c"wait_for_nobody", 1, vec![board.address()]) {
        Err(Error::Fault(fault)) => {
            assert!(matches!(fault.kind, FaultKind::Timeout { timeout_ms: 200, .. }), "{fault}");
        }
        other => panic!("{other:?}"),
    }
    module.unload()?;
    Ok(pe.finalize()?)
}
