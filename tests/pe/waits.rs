//! wait_until and test.

use bytemuck::Pod;
use oxshmem::Operations;

use crate::Outcome;
use crate::rig::Rig;

oxshmem::include_module!(WAITS, "waits");

/// The numbers of `kernels/waits.cu`: variables of a set, and sets.
const VARIABLES: usize = 18;
const SETS: usize = 8;

fn waits_of<T: Pod>(rig: &Rig, name: &str, excluded: u32) -> Outcome {
    let singles = rig.pe.alloc::<T>(6)?;
    let variables = rig.pe.alloc::<T>(VARIABLES * SETS)?;
    rig.run_linear(&format!("prepare_{name}"), 1, 1, (&singles,))?;
    rig.pe.barrier_all()?;
    rig.run_linear(&format!("waits_{name}"), 2, 1, (&singles, &variables, excluded, rig.report()))?;
    rig.pe.barrier_all()?;
    Ok(())
}

pub fn waits(_: &[String]) -> Outcome {
    let rig = Rig::new(&WAITS)?;
    // No variable, some, and all but one excluded.
    for excluded in [0, 0b10_0100_1000_0000_1001, (1 << VARIABLES) - 1 - (1 << 4)] {
        waits_of::<i16>(&rig, "i16", excluded)?;
        waits_of::<u16>(&rig, "u16", excluded)?;
        waits_of::<i32>(&rig, "i32", excluded)?;
        waits_of::<u32>(&rig, "u32", excluded)?;
        waits_of::<i64>(&rig, "i64", excluded)?;
        waits_of::<u64>(&rig, "u64", excluded)?;
    }
    let words = rig.pe.alloc::<u64>(VARIABLES)?;
    rig.run_linear("polls", 1, 32, (&words,))?;
    rig.pe.write(&words, &[1; VARIABLES])?;
    rig.run_linear("find_each", 1, 1, (&words, rig.report()))?;
    rig.finish()
}
