//! What the check mode finds.

use std::time::Duration;

use oxshmem::{Compare, Operations};

use crate::Outcome;
use crate::rig::Rig;

oxshmem::include_module!(CHECK, "check");

const WORDS: usize = 512;

/// `check_buffers quiet|reuse`: puts from a buffer that is written again after a quiet, or at once.
pub fn buffers(args: &[String]) -> Outcome {
    let [how] = args else { return Err("check_buffers quiet|reuse".into()) };
    let rig = Rig::new(&CHECK)?;
    let peer = (rig.me() + 1) % rig.n_pes();
    let (inbox, outbox) = (rig.pe.alloc::<u64>(WORDS)?, rig.pe.alloc::<u64>(WORDS)?);
    let run = |quiets| {
        // A change is found if the HCA's thread has seen the doorbell before, so there are many.
        let rounds = if quiets { 4i32 } else { 400 };
        let args = (&inbox, &outbox, WORDS as u64, rounds, i32::from(quiets), peer as i32);
        rig.run_linear("check_reuse", 1, 1, args)
    };
    if how == "quiet" {
        run(true)?;
        rig.pe.barrier_all()?;
        assert_eq!(rig.pe.read(&inbox)?[WORDS - 1], 3);
        return rig.finish();
    }
    // One of them: the connection is lost for both.
    if rig.me() == 0 {
        let text = run(false).unwrap_err().to_string();
        let wanted = "the source of this put, 4096 bytes, has changed before the put was complete: call quiet";
        assert!(text.contains(wanted) && text.contains("RDMA WRITE to PE 1"), "{text}");
    }
    // There is no connection by which they could meet to end in order.
    rig.pe.alloc::<u64>(1)?;
    Ok(())
}

/// `check_calls`: PE 0 meets all PEs while the others allocate; then sizes of a collective differ.
pub fn calls(_: &[String]) -> Outcome {
    let pe = oxshmem::init()?;
    let words = pe.alloc::<u64>(8)?;
    let differs = |result: oxshmem::Result<()>, mine: &str, theirs: &str| {
        let text = result.unwrap_err().to_string();
        assert!(text.contains(mine) && text.contains(theirs), "{text}");
    };
    let n = if pe.my_pe() == 0 { 2 } else { 3 };
    let broadcast = pe.broadcast(&pe.team_world(), words.view(..n), words.view(..n), 0);
    differs(broadcast, "broadcast of team 0 with 16 bytes in all", "broadcast of team 0 with 24 bytes in all");
    // The calls that differ were not made, so the job goes on.
    pe.barrier_all()?;
    // Members may contribute different lengths here.
    let all = pe.alloc::<u64>(5)?;
    pe.write(&words, &[pe.my_pe() as u64 + 1; 8])?;
    pe.collect(&pe.team_world(), &all, words.view(..n))?;
    assert_eq!(pe.read(&all)?, [1, 1, 2, 2, 2]);
    if pe.my_pe() == 0 {
        differs(pe.barrier_all(), "a collective call", "alloc");
    } else {
        differs(pe.alloc::<u64>(1).map(drop), "a collective call", "alloc");
    }
    Ok(())
}

/// `check_waits busy|never`: PE 0 waits for a signal that the other PE sends after it was busy on
/// the host and on the device, or never.
pub fn waits(args: &[String]) -> Outcome {
    let [how] = args else { return Err("check_waits busy|never".into()) };
    let rig = Rig::new(&CHECK)?;
    let signal = rig.pe.alloc::<u64>(1)?;
    if how == "busy" {
        if rig.me() == 0 {
            rig.pe.signal_wait_until(signal.signal(0), Compare::Eq, 1)?;
        } else {
            std::thread::sleep(Duration::from_millis(1500));
            rig.run_linear("check_busy", 1, 1, (&signal, 1_500_000_000u64, 0i32))?;
        }
        rig.pe.barrier_all()?;
        return rig.finish();
    }
    let ended = if rig.me() == 0 {
        rig.pe.signal_wait_until(signal.signal(0), Compare::Eq, 1).map(drop)
    } else {
        rig.pe.barrier_all()
    };
    let text = ended.unwrap_err().to_string();
    let begin = "OXSHMEM_CHECK=waits: nothing can satisfy what the PEs wait for, since none of them goes on: PE 0: ";
    assert!(text.contains(begin), "{text}");
    assert!(text.contains("oxshmem_host_signal_wait") && text.contains("oxshmem_host_barrier"), "{text}");
    Ok(())
}
