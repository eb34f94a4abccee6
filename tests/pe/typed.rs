//! Every generated name once.

use crate::Outcome;
use crate::rig::Rig;
use oxshmem::{Error, FaultKind, ModuleSource, Operations};

oxshmem::include_module!(TYPED, "typed");
oxshmem::include_module!(TYPED_COLLECTIVES, "typed_collectives");
// The same calls with the names of the compatibility layer.
oxshmem::include_module!(COMPAT_TYPED, "compat_typed");
oxshmem::include_module!(COMPAT_OWN, "compat_own");
oxshmem::include_module!(COMPAT_TYPED_COLLECTIVES, "compat_typed_collectives");

pub fn typed(_: &[String]) -> Outcome {
    names(&TYPED)
}

pub fn compat_typed(_: &[String]) -> Outcome {
    names(&COMPAT_TYPED)
}

/// `compat_own_memory`: memory outside the heap, which a PE may name to itself and to no other.
pub fn compat_own_memory(_: &[String]) -> Outcome {
    let rig = Rig::new(&COMPAT_OWN)?;
    let mut outside = Box::new([0u64; 4]);
    let at = outside.as_mut_ptr();
    rig.run_linear("own_memory", 1, 1, (at, rig.report()))?;
    let other = ((rig.me() + 1) % rig.n_pes()) as i32;
    if rig.n_pes() > 1 {
        let refused = rig.run_linear("memory_of_others", 1, 1, (at, other)).unwrap_err();
        let Error::Fault(fault) = refused else { panic!("{refused}") };
        assert!(matches!(fault.kind, FaultKind::AddressOutsideHeap { pe, .. } if pe == other), "{fault}");
    }
    rig.finish()
}

fn names(module: &'static ModuleSource) -> Outcome {
    // The last warp has 8 lanes.
    const THREADS: u32 = 40;
    let rig = Rig::new(module)?;
    let bytes = rig.pe.alloc::<u64>(1)?;
    rig.run_linear("typed_bytes", 1, 1, (&bytes,))?;
    let bytes = rig.pe.read(bytes.view(..1))?[0];
    let arena = rig.pe.alloc_aligned::<u8>(bytes as usize, 16)?;
    rig.run_linear("typed_fill", 1, THREADS, (&arena,))?;
    rig.pe.barrier_all()?;
    rig.run_linear("typed_call", 1, THREADS, (&arena,))?;
    rig.run_linear("typed_scalars", 1, 1, (&arena, rig.report()))?;
    rig.pe.barrier_all()?;
    rig.run_linear("typed_check", 1, THREADS, (&arena, rig.report()))?;

    let words = rig.pe.alloc::<u64>(64)?;
    rig.run_linear("typed_atomics", 1, 1, (&words, rig.report()))?;
    let own = rig.pe.alloc::<u64>(8)?;
    rig.run_linear("typed_waits", 1, 1, (&own, rig.report()))?;
    let data = rig.pe.alloc::<i32>(1)?;
    let signals = rig.pe.alloc::<u64>(1)?;
    rig.run_linear("typed_others", 1, THREADS, (&data, &signals, rig.report()))?;
    rig.finish()
}

pub fn collectives(_: &[String]) -> Outcome {
    collective_names(&TYPED_COLLECTIVES)
}

pub fn compat_collectives(_: &[String]) -> Outcome {
    collective_names(&COMPAT_TYPED_COLLECTIVES)
}

fn collective_names(module: &'static ModuleSource) -> Outcome {
    const THREADS: u32 = 40;
    let rig = Rig::new(module)?;
    // The same as `kRoom` of the kernels.
    let room = rig.pe.alloc_aligned::<u8>(2 * 4096, 16)?;
    rig.pe.barrier_all()?;
    for kernel in ["typed_reductions", "typed_gatherings"] {
        rig.run_linear(kernel, 1, THREADS, (&room, rig.report()))?;
    }
    rig.finish()
}
