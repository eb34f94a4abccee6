//! What must hold before anything else: the device ABI is the same on both sides, and there is such
//! a device and transport.

use oxshmem::device::DeviceError;
use oxshmem::{Error, TransportError};

use crate::Outcome;
use crate::rig::Rig;

oxshmem::include_module!(ABI, "abi");

/// The device's compiler lays the structures out as the software HCA's `tables.rs` says; what
/// `abi.h` says it has confirmed as it compiled `kernels/abi.cu`.
pub fn layout(_: &[String]) -> Outcome {
    let rig = Rig::new(&ABI)?;
    let (out, count_at) = (rig.pe.alloc::<u64>(256)?, rig.pe.alloc::<u64>(1)?);
    rig.run_linear("soft_hca_layout", 1, 1, (&out, &count_at))?;
    let count = rig.pe.read(count_at.view(..1))?[0] as usize;
    let theirs = rig.pe.read(out.view(..count))?;
    assert_eq!(theirs, oxshmem_hca::soft::tables::layout(), "tables.rs and soft_hca.h differ");
    rig.finish()
}

/// Ends with status 77 and says why if this build or machine does not have the requested device or
/// transport.
pub fn probe(_: &[String]) -> Outcome {
    match oxshmem::init() {
        Ok(pe) => Ok(pe.finalize()?),
        Err(
            error @ (Error::Device(DeviceError::Unavailable { .. })
            | Error::Transport(TransportError::NotAvailable { .. })),
        ) => {
            println!("{error}");
            std::process::exit(oxshmem_tests::ABSENT);
        }
        Err(error) => Err(error.into()),
    }
}
