//! PEs that die: the others get an error that names the dead one, and end.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use oxshmem::{Error, Operations, Pe};
use rustix::process::{Signal, getpid, kill_process};

use crate::Outcome;
use crate::rig::Rig;

oxshmem::include_module!(ERRORS, "errors");

/// The PE that dies.
const DYING: usize = 1;

fn die() -> ! {
    let _ = kill_process(getpid(), Signal::KILL);
    loop {
        thread::park();
    }
}

/// The abstract sockets that this process has bound, for the test to see that they go away.
fn print_sockets() -> Outcome {
    let mut inodes = Vec::new();
    for entry in std::fs::read_dir("/proc/self/fd")? {
        if let Ok(target) = std::fs::read_link(entry?.path())
            && let Some(inode) = target.to_str().and_then(|text| text.strip_prefix("socket:[")?.strip_suffix(']'))
        {
            inodes.push(inode.to_owned());
        }
    }
    for line in std::fs::read_to_string("/proc/net/unix")?.lines() {
        let fields: Vec<&str> = line.split_whitespace().collect();
        if let [_, _, _, _, _, _, inode, name] = fields[..]
            && inodes.iter().any(|own| own == inode)
        {
            println!("socket {name}");
        }
    }
    println!("job {}", std::env::var("OXSHMEM_JOB")?);
    Ok(())
}

/// The error that a survivor gets names the dead PE, and no deadline has passed.
fn named(error: &Error) -> Outcome {
    let text = error.to_string();
    println!("survivor: {text}");
    let failed = matches!(error, Error::Bootstrap(oxshmem::bootstrap::BootstrapError::Failed(_)) | Error::Heap(_));
    if failed && text.contains(&format!("PE {DYING}")) {
        Ok(())
    } else {
        Err(format!("not the error that was due: {error:?}").into())
    }
}

/// Before the job is complete: the others wait in init.
pub fn dies_in_bootstrap(_: &[String]) -> Outcome {
    print_sockets()?;
    if std::env::var("OXSHMEM_RANK")? == DYING.to_string() {
        die();
    }
    named(&oxshmem::init().expect_err("a PE is missing"))
}

/// While the others' kernels wait for it.
pub fn dies_in_kernel(_: &[String]) -> Outcome {
    let rig = Rig::new(&ERRORS)?;
    let (ready, signal) = (rig.pe.alloc::<u64>(1)?, rig.pe.alloc::<u64>(1)?);
    print_sockets()?;
    if rig.me() == DYING {
        rig.pe.signal_wait_until(ready.signal(0), oxshmem::Compare::Eq, rig.n_pes() as u64 - 1)?;
        die();
    }
    let error = rig.run_linear("wait_for_the_dead", 2, 40, (&ready, &signal, DYING as i32)).expect_err("the PE died");
    named(&error)?;
    // Every later call says so too, and none waits.
    named(&rig.pe.barrier_all().expect_err("the job has failed"))?;
    named(&rig.pe.alloc::<u64>(1).expect_err("the job has failed"))?;
    named(&rig.pe.finalize().expect_err("the job has failed"))
}

/// While it and the others put and add as fast as they can, so that queues and rings are full of
/// what never ends. A proxy is a thread of its PE: what kills the one kills the other.
pub fn dies_under_load(_: &[String]) -> Outcome {
    const THREADS: u32 = 40;
    let rig = Rig::new(&ERRORS)?;
    let (ready, data) = (rig.pe.alloc::<u64>(1)?, rig.pe.alloc::<u64>(2 * THREADS as usize)?);
    rig.pe.barrier_all()?;
    print_sockets()?;
    let ended = rig.run_linear("under_load", 1, THREADS, (&ready, &data, 200u64, DYING as i32));
    if rig.me() == DYING {
        die();
    }
    // A PE that has posted to the dead PE may learn it from the network first, the others from the
    // job.
    let text = ended.expect_err("the PE died").to_string();
    println!("survivor: {text}");
    if !text.contains(&format!("PE {DYING}")) {
        return Err(format!("not the error that was due: {text}").into());
    }
    named(&rig.pe.barrier_all().expect_err("the job has failed"))?;
    named(&rig.pe.finalize().expect_err("the job has failed"))
}

/// While others push puts through rings in the memory that it has lent: the memory stays, and they
/// learn of the death in words.
pub fn dies_with_lent_rings(_: &[String]) -> Outcome {
    const BYTES: usize = 9000;
    let pe = oxshmem::init()?;
    let (me, n) = (pe.my_pe(), pe.n_pes());
    let (inbox, outbox) = (pe.alloc::<u8>(BYTES * n)?, pe.alloc::<u8>(BYTES)?);
    pe.barrier_all()?;
    print_sockets()?;
    // Across to the PE of the other node with the card that this PE does not have.
    let far = n - 1 - me;
    let staged = || -> oxshmem::Result<u64> { Ok(pe.counters()?.qps.iter().map(|qp| qp.staged.1).sum()) };
    for round in 0.. {
        if me == DYING && round == 20 {
            die();
        }
        if let Err(error) = pe.put(inbox.view(me * BYTES..), &outbox, far) {
            let text = error.to_string();
            println!("survivor: {text}");
            if !text.contains(&format!("PE {DYING}")) {
                return Err(format!("not the error that was due: {text}").into());
            }
            return named(&pe.barrier_all().expect_err("the job has failed"));
        }
        if round == 0 && staged()? == 0 {
            return Err("nothing was staged".into());
        }
    }
    Ok(())
}

/// While the others allocate, with a heap that has to grow.
pub fn dies_in_alloc(_: &[String]) -> Outcome {
    let pe = oxshmem::init()?;
    print_sockets()?;
    if pe.my_pe() == DYING {
        die();
    }
    named(&pe.alloc::<u8>(5 << 20).expect_err("the PE died"))
}

/// While the others split a team.
pub fn dies_in_split(_: &[String]) -> Outcome {
    let pe = oxshmem::init()?;
    print_sockets()?;
    if pe.my_pe() == DYING {
        die();
    }
    named(&pe.team_world().split_2d(&pe, 2).expect_err("the PE died"))
}

/// While the others are in a barrier of the host.
pub fn dies_in_barrier(_: &[String]) -> Outcome {
    let pe = oxshmem::init()?;
    print_sockets()?;
    if pe.my_pe() == DYING {
        die();
    }
    named(&pe.barrier_all().expect_err("the PE died"))
}

/// While the others combine long arrays, again and again.
pub fn dies_in_collective(_: &[String]) -> Outcome {
    let pe = oxshmem::init()?;
    let (src, dst) = (pe.alloc::<f32>(100_000)?, pe.alloc::<f32>(100_000)?);
    print_sockets()?;
    let world = pe.team_world();
    for round in 0.. {
        if pe.my_pe() == DYING && round == 3 {
            die();
        }
        if let Err(error) = pe.reduce(&world, oxshmem::ReduceOp::Sum, &dst, src.view(..src.len())) {
            named(&error)?;
            return named(&pe.broadcast(&world, &dst, src.view(..src.len()), 0).expect_err("the job has failed"));
        }
    }
    Ok(())
}

/// While all are in the middle of collectives, one after the other, by every algorithm that sizes
/// lead to: another thread of the process ends it.
pub fn dies_amid_collectives(_: &[String]) -> Outcome {
    /// Calls that it has made.
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    let pe = oxshmem::init()?;
    let most = 20_000 * pe.n_pes();
    let (src, dst) = (pe.alloc::<f32>(most)?, pe.alloc::<f32>(most)?);
    print_sockets()?;
    let world = pe.team_world();
    if pe.my_pe() == DYING {
        thread::spawn(|| {
            while CALLS.load(Ordering::Relaxed) < 30 {
                thread::yield_now();
            }
            die();
        });
    }
    let sum = oxshmem::ReduceOp::Sum;
    let calls: [&dyn Fn(usize) -> oxshmem::Result<()>; 7] = [
        &|n| pe.broadcast(&world, &dst, src.view(..n), 0),
        &|n| pe.fcollect(&world, &dst, src.view(..n)),
        &|n| pe.collect(&world, &dst, src.view(..n)),
        &|n| pe.alltoall(&world, &dst, &src, n),
        &|n| pe.reduce(&world, sum, &dst, src.view(..n)),
        &|n| pe.reduce(&world, sum, &dst, dst.view(..n)),
        &|n| pe.reducescatter(&world, sum, dst.view(..n), &src),
    ];
    for round in 0.. {
        let n = [3, 1000, 20_000][round % 3];
        for call in calls {
            if let Err(error) = call(n) {
                named(&error)?;
                return named(&pe.barrier_all().expect_err("the job has failed"));
            }
            CALLS.fetch_add(1, Ordering::Relaxed);
        }
    }
    Ok(())
}

/// While it puts itself, and the others finalize.
pub fn dies_in_finalize(_: &[String]) -> Outcome {
    let pe = oxshmem::init()?;
    print_sockets()?;
    if pe.my_pe() == DYING {
        die();
    }
    named(&pe.finalize().expect_err("the PE died"))
}

/// A PE that goes without finalize, though its process ends well, is missed too.
pub fn drops(_: &[String]) -> Outcome {
    let pe: Pe = oxshmem::init()?;
    print_sockets()?;
    if pe.my_pe() == DYING {
        drop(pe);
        return Ok(());
    }
    named(&pe.barrier_all().expect_err("the PE was dropped"))
}

/// A PE that ends by an error, as `main` does with `?`: the others learn which.
pub fn drops_with_reason(_: &[String]) -> Outcome {
    let pe: Pe = oxshmem::init()?;
    print_sockets()?;
    if pe.my_pe() == DYING {
        let ended = (|| {
            let pe = pe;
            pe.alloc_aligned::<u8>(1, 3).map(drop)?;
            pe.finalize()
        })();
        assert!(ended.is_err_and(|error| error.to_string().contains("alignment")));
        return Ok(());
    }
    // It asks for the same, so nothing differs between the PEs.
    let own = pe.alloc_aligned::<u8>(1, 3).map(drop);
    assert!(own.is_err());
    let error = pe.barrier_all().expect_err("the PE was dropped");
    let text = error.to_string();
    assert!(text.contains("ended without finalize; the last error of its calls: alignment"), "{text}");
    named(&error)
}

/// Limits the open files to the number in the argument.
pub fn few_files(args: &[String]) -> Outcome {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let files = args.first().ok_or("few_files FILES")?.parse()?;
    setrlimit(Resource::Nofile, rustix::process::Rlimit { current: Some(files), ..getrlimit(Resource::Nofile) })?;
    let pe = oxshmem::init()?;
    let words = pe.alloc::<u64>(pe.n_pes())?;
    for peer in 0..pe.n_pes() {
        pe.put(words.view(pe.my_pe()..), &[7], peer)?;
    }
    pe.barrier_all()?;
    assert_eq!(pe.read(&words)?, vec![7; pe.n_pes()]);
    Ok(pe.finalize()?)
}

/// One whose thread waits for the others aborts by another thread.
pub fn aborts_beside(_: &[String]) -> Outcome {
    let pe = oxshmem::init()?;
    print_sockets()?;
    if pe.my_pe() == DYING {
        let job = pe.job_handle();
        let thread = thread::spawn(move || {
            thread::sleep(Duration::from_millis(100));
            job.abort("the moon is full");
        });
        let error = pe.barrier_all().expect_err("the others never come");
        assert!(error.to_string().contains("the moon is full"), "{error}");
        assert!(thread.join().is_ok());
        return Ok(());
    }
    let error = loop {
        match pe.synchronize() {
            Ok(()) => thread::sleep(Duration::from_millis(1)),
            Err(error) => break error,
        }
    };
    assert!(error.to_string().contains("the moon is full"), "{error}");
    named(&error)
}

/// One that aborts tells the others why.
pub fn aborts(_: &[String]) -> Outcome {
    let pe = oxshmem::init()?;
    print_sockets()?;
    if pe.my_pe() == DYING {
        pe.abort("the moon is full");
        return Ok(());
    }
    let error = pe.barrier_all().expect_err("the PE aborted");
    assert!(error.to_string().contains("the moon is full"), "{error}");
    named(&error)
}
