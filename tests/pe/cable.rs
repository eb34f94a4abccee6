//! A network that goes away.

use std::process::Command;
use std::time::Instant;

use oxshmem::{Error, FaultKind, Operations};

use crate::Outcome;
use crate::rig::Rig;

oxshmem::include_module!(QUEUES, "queues");

/// `cut_cable COMMAND ARGS...`: three PEs write to each other, then PE 0 runs a command that cuts
/// the cable between PE 1 and the others. A PE that writes over it is told, in time, which PE is
/// lost and why, PE 0 and PE 2 still reach each other.
pub fn cut_cable(args: &[String]) -> Outcome {
    let Some((program, rest)) = args.split_first() else { return Err("cut_cable COMMAND ARGS...".into()) };
    let rig = Rig::new(&QUEUES)?;
    let (me, n) = (rig.me(), rig.n_pes());
    assert_eq!(n, 3, "two PEs at one end of the cable and one at the other");
    let slice = rig.pe.alloc::<u64>(n)?;
    let at = slice.at(me);
    let other_end = 1usize;
    for to in (0..n).filter(|to| *to != me) {
        rig.run_linear("put_to", 1, 1, (&at, 5u64, to as i32, 20u32))?;
    }
    // Allocations are agreed on without the network under test.
    let _ = rig.pe.alloc::<u64>(1)?;
    if me == 0 {
        let status = Command::new(program).args(rest).status()?;
        assert!(status.success(), "{program} {rest:?}: {status}");
    }
    let _ = rig.pe.alloc::<u64>(1)?;

    let lost = if me == other_end { 0 } else { other_end };
    let begun = Instant::now();
    let error = rig.run_linear("put_to", 1, 1, (&at, 7u64, lost as i32, 1u32)).unwrap_err();
    let Error::Fault(fault) = &error else { panic!("{error:?}") };
    let FaultKind::Completion { pe, qpn, opcode, address, syndrome, cause, .. } = &fault.kind else {
        panic!("{error}")
    };
    assert_eq!(*pe, lost as i32, "{error}");
    assert!(*qpn != 0 && opcode == "RDMA WRITE" && syndrome.contains("retr") && cause.contains("retry"), "{error}");
    assert!(*address % 8 == 0 && *address < rig.pe.config().heap_max().0, "{error}");
    println!("PE {me}, {:.1} s after it wrote: {error}", begun.elapsed().as_secs_f64());

    if me != other_end {
        let to = 2 - me;
        rig.run_linear("put_to", 1, 1, (&at, 9u64, to as i32, 20u32))?;
        assert_eq!(rig.pe.get_vec(slice.view(me..me + 1), to)?, [9]);
    }
    let _ = rig.pe.alloc::<u64>(1)?;
    // What is lost stays lost, and finalize may say so.
    if let Err(error) = rig.finish() {
        println!("PE {me}, finalize: {error}");
    }
    Ok(())
}

/// Two PEs write to each other, and no packet arrives: both are told.
pub fn lost_packets(_: &[String]) -> Outcome {
    let rig = Rig::new(&QUEUES)?;
    let (me, n) = (rig.me(), rig.n_pes());
    let slice = rig.pe.alloc::<u64>(n)?;
    let at = slice.at(me);
    let error = rig.run_linear("put_to", 1, 1, (&at, 7u64, 1 - me as i32, 1u32)).unwrap_err();
    let Error::Fault(fault) = &error else { panic!("{error:?}") };
    let FaultKind::Completion { pe, opcode, syndrome, .. } = &fault.kind else { panic!("{error}") };
    assert_eq!((*pe, opcode.as_str()), (1 - me as i32, "RDMA WRITE"), "{error}");
    assert!(syndrome.contains("transport retry counter exceeded"), "{error}");
    // Until the other knows, too; allocations are agreed on without the network.
    let _ = rig.pe.alloc::<u64>(1)?;
    assert_eq!(rig.pe.read(slice.view(..n))?, vec![0; n]);
    let _ = rig.pe.alloc::<u64>(1)?;
    // What is lost stays lost, and finalize may say so.
    if let Err(error) = rig.finish() {
        println!("PE {me}, finalize: {error}");
    }
    Ok(())
}

/// Two PEs meet, and what says so to the other does not arrive. No thread waits for its completion,
/// so it is the wait for the other that ends, at its deadline; the error names the connection as
/// well.
pub fn lost_barrier(_: &[String]) -> Outcome {
    let rig = Rig::new(&QUEUES)?;
    let other = 1 - rig.me() as u32;
    let error = rig.pe.barrier_all().unwrap_err();
    let Error::Fault(fault) = &error else { panic!("{error:?}") };
    let FaultKind::Timeout { lost, .. } = &fault.kind else { panic!("{error}") };
    assert_eq!(lost.iter().map(|(pe, _)| *pe).collect::<Vec<_>>(), [other], "{error}");
    println!("{error}");
    let _ = rig.pe.alloc::<u64>(1)?;
    if let Err(error) = rig.finish() {
        println!("finalize: {error}");
    }
    Ok(())
}
