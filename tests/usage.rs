//! What the CUDA compiler makes of the device API: hot paths (put, p, signals and quiet) keep
//! nothing in local memory on sm_90, and kernels without launch bounds can be launched with 1024
//! threads.

use std::collections::BTreeMap;

/// Written by the build of `kernels/paths.cu`: a line for each function and architecture. See
/// `oxshmem_build`.
const REPORT: &str = include_str!(concat!(env!("OUT_DIR"), "/paths.usage.txt"));

/// Written by the build of `kernels/unbounded.cu`, compiled as a whole.
const WHOLE: &str = include_str!(concat!(env!("OUT_DIR"), "/unbounded.usage.txt"));

/// The same of `kernels/unbounded.cu` and `kernels/unbounded_collectives.cu` as relocatable code,
/// linked.
const LINKED: [&str; 2] = [
    include_str!(concat!(env!("OUT_DIR"), "/linked_unbounded.usage.txt")),
    include_str!(concat!(env!("OUT_DIR"), "/linked_unbounded_collectives.usage.txt")),
];

const ARCHITECTURE: &str = "sm_90";

/// Registers that a thread of 1024 in a block may have.
const MOST_REGISTERS: u32 = 64;

/// Beginnings of the names of the kernels that are hot, and parts of the names of what they call.
const HOT: [&str; 5] = ["put_", "p_", "signal_", "quiet_", "fence"];
const CALLED: [&str; 9] =
    ["near_", "far_p", "far_signal", "network_p", "network_signal", "network_quiet", "copy_", "ibrc_put", "put_piece"];

/// Bytes of spill stores and loads by function, the most that is said of each.
fn spills() -> BTreeMap<&'static str, (u32, u32)> {
    let mut found = BTreeMap::new();
    for line in REPORT.lines().filter(|line| line.starts_with(ARCHITECTURE)) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let &[_, _, _, stores, loads, _, _, name] = &words[..] else {
            panic!("{line:?} is not a line of a usage report")
        };
        let number =
            |word: &str| word.parse::<u32>().unwrap_or_else(|_| panic!("{word:?} in {line:?} is not a number"));
        let entry = found.entry(name).or_insert((0, 0));
        *entry = (entry.0.max(number(stores)), entry.1.max(number(loads)));
    }
    found
}

#[test]
fn hot_paths_do_not_spill() {
    let spills = spills();
    if spills.is_empty() {
        println!("skipped: no CUDA compiler, so nothing was compiled for {ARCHITECTURE}");
        return;
    }
    let is_hot =
        |name: &str| HOT.iter().any(|hot| name.starts_with(hot)) || CALLED.iter().any(|called| name.contains(called));
    let hot: Vec<_> = spills.into_iter().filter(|(name, _)| is_hot(name)).collect();
    for kernel in ["put_block", "put_nbi_thread", "p_u64", "signal_op", "quiet_thread"] {
        assert!(hot.iter().any(|(name, _)| *name == kernel), "{kernel} is not in the report: {hot:?}");
    }
    for (name, (stores, loads)) in hot {
        assert!(stores == 0 && loads == 0, "{name} stores {stores} and loads {loads} bytes of spilled registers");
    }
}

/// Kernels in a report, with their architecture and registers.
fn kernels(report: &str) -> Vec<(&str, &str, u32)> {
    let lines = report.lines().filter(|line| !line.starts_with('#'));
    let fields = lines.map(|line| line.split_whitespace().collect::<Vec<_>>());
    fields.filter_map(|words| Some((*words.get(7)?, words[0], words[1].parse().ok()?))).collect()
}

#[test]
fn linked_kernels_without_bounds_leave_room_for_1024_threads() {
    for (report, known) in LINKED.into_iter().zip(["busy", "complexd_prod_reduce_block"]) {
        let kernels = kernels(report);
        if kernels.is_empty() {
            println!("skipped: no CUDA compiler, so nothing was linked");
            return;
        }
        assert!(kernels.iter().any(|(name, ..)| *name == known), "{known} is not in the report");
        let large: Vec<_> = kernels.iter().filter(|(.., registers)| *registers > MOST_REGISTERS).collect();
        assert!(large.is_empty(), "kernels with more than {MOST_REGISTERS} registers: {large:?}");
    }
}

/// The kernel that keeps values of its own while it calls. Compiled as a whole it has these and the
/// longest chain of calls together.
const BUSY: &str = "busy";

/// Registers that a thread of 640 in a block may have.
const MOST_REGISTERS_BUSY: u32 = 96;

#[test]
fn kernels_without_bounds_that_call_one_function_leave_room_for_1024_threads() {
    let kernels = kernels(WHOLE);
    if kernels.is_empty() {
        println!("skipped: no CUDA compiler, so nothing was compiled");
        return;
    }
    for known in [BUSY, "put_block", "get_thread", "iget_u8_warp", "barrier_block", "put_signal_thread"] {
        assert!(kernels.iter().any(|(name, ..)| *name == known), "{known} is not in the report");
    }
    let most = |name: &str| if name == BUSY { MOST_REGISTERS_BUSY } else { MOST_REGISTERS };
    let large: Vec<_> = kernels.iter().filter(|(name, _, registers)| *registers > most(name)).collect();
    assert!(large.is_empty(), "kernels with more than {MOST_REGISTERS} registers: {large:?}");
}
