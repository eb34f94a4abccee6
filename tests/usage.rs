//! What the CUDA compiler makes of the device API's hot paths: put, p, signals and quiet keep nothing in local memory on sm_90.

use std::collections::BTreeMap;

/// Written by the build of `kernels/paths.cu`: a line for each function and architecture. See `oxshmem_build`.
const REPORT: &str = include_str!(concat!(env!("OUT_DIR"), "/paths.usage.txt"));

const ARCHITECTURE: &str = "sm_90";

/// Beginnings of the names of the kernels that are hot, and parts of the names of what they call.
const HOT: [&str; 5] = ["put_", "p_", "signal_", "quiet_", "fence"];
const CALLED: [&str; 9] =
    ["near_", "far_p", "far_signal", "network_p", "network_signal", "network_quiet", "copy_", "ibrc_put", "put_piece"];

/// Bytes of spill stores and loads by function, the most that is said of each.
fn spills() -> BTreeMap<&'static str, (u32, u32)> {
    let mut found = BTreeMap::new();
    for line in REPORT.lines().filter(|line| line.starts_with(ARCHITECTURE)) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let &[_, _, _, stores, loads, _, _, name] = &words[..] else { panic!("{line:?} is no line of a usage report") };
        let number = |word: &str| word.parse::<u32>().unwrap_or_else(|_| panic!("{word:?} in {line:?} is no number"));
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
