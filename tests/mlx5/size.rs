//! Set-up at the size of large jobs: what it takes, and that it fails as it does in small ones.

use oxshmem_tests::set_up::{Simulated, Taken};

use super::{PE, folder, libraries, library_path};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// The most that a PE of 1024 receives: of each other one some 200 bytes, 4 for each chunk of its
/// heap, of which the teams' workspaces take three, and 5 for the order of its queue pairs.
const MOST_RECEIVED: u64 = 209 * KIB;

/// Plays a job of `pes` PEs; its report has that name.
fn with<R>(name: &str, pes: u32, transport: &str, lies: &str, then: impl FnOnce(&Simulated<'_>) -> R) -> R {
    let report = folder().join(format!("size-{name}"));
    then(&Simulated {
        program: &oxshmem_tests::program(PE),
        library_path: library_path(&libraries(&[])),
        report: &report,
        pes,
        transport,
        lies,
        variables: &[],
    })
}

#[test]
fn what_set_up_takes_grows_with_the_peers_and_stays_within_limits() {
    println!("{}", Taken::COLUMNS);
    let sizes = [64, 256, 512, 1024];
    let all = sizes.map(|pes| {
        let taken = with("ibgda", pes, "ibgda", "", |job| job.measure());
        println!("{taken}");
        taken
    });
    for taken in all {
        let Taken { pes, qps, commands, received, memory, left, .. } = taken;
        // Those of a PE to itself are for atomics.
        assert_eq!(qps, u64::from(pes) * 4);
        // CREATE_CQ, CREATE_QP, RST2INIT_QP, INIT2RTR_QP, RTR2RTS_QP, and to give back two; few
        // others, of which there are as many in each job.
        assert!((7 * qps..7 * qps + 50).contains(&commands), "{taken:?}");
        assert!(received <= MOST_RECEIVED, "{taken:?}");
        assert!(memory <= 200 * MIB, "{taken:?}");
        assert_eq!(left, 0, "{taken:?}");
    }
    for pair in all.windows(2) {
        let [less, more] = pair else { continue };
        let factor = u64::from(more.pes / less.pes);
        for (what, less, more) in [("received", less.received, more.received), ("memory", less.memory, more.memory)] {
            assert!(more <= less * factor * 21 / 20, "{what}: {less} becomes {more} with {factor} times as many PEs");
        }
    }
}

#[test]
fn the_cpu_proxy_connects_to_many_peers_too() {
    for pes in [256, 1024] {
        let taken = with("ibrc", pes, "ibrc", "", |job| job.measure());
        println!("{taken}");
        let Taken { qps, commands, received, left, .. } = taken;
        assert_eq!((qps, left), (u64::from(pes) * 4, 0));
        assert!((7 * qps..7 * qps + 50).contains(&commands), "{taken:?}");
        assert!(received <= MOST_RECEIVED, "{taken:?}");
    }
}

/// Where `command` fails for the K-th time, the job ends with its name, and nothing is left.
#[test]
fn a_command_that_fails_among_many_is_named_and_all_is_given_back() {
    const PES: u32 = 64;
    for command in ["CREATE_CQ", "CREATE_QP", "RST2INIT_QP", "INIT2RTR_QP", "RTR2RTS_QP"] {
        for (name, at) in [("first", "@1"), ("middle", "@131"), ("last", "@256"), ("all", "")] {
            // The CPU proxy's way is the same except for the loop.
            for transport in if name == "middle" { &["ibgda", "ibrc"][..] } else { &["ibgda"] } {
                let lies = format!("status:{command}=0x0f{at}");
                with(&format!("{command}-{name}"), PES, transport, &lies, |job| {
                    let played = job.play();
                    let text = played.text();
                    assert!(!played.output.status.success(), "{lies} over {transport}: nothing failed:\n{text}");
                    let error =
                        format!("{command} failed: no resources (status 0x0f), syndrome 0xbad: mlx5_0: {command} ");
                    assert!(text.contains(&error), "{lies} over {transport}: no `{error}` in\n{text}");
                    assert_eq!(job.reported("live"), Some(0), "{lies} over {transport}:\n{text}");
                });
            }
        }
    }
}

#[test]
fn the_first_of_several_commands_that_fail_is_the_one_that_is_named() {
    // Every CREATE_QP fails: that of the first queue pair is reported, whichever thread was the
    // first.
    with("first-of-all", 64, "ibgda", "status:CREATE_QP=0x0f", |job| {
        let text = job.play().text();
        assert!(text.contains("CREATE_QP failed") && !text.contains("qpc.user_index="), "{text}");
    });
}
