//! Which processes a signal would not kill, from /proc: SIGUSR2 requests dumps, and must not end a
//! PE that has no handler yet, or a script that started one.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

/// Longer than a thread takes to start.
const MOMENT: Duration = Duration::from_millis(20);

/// Sends a signal to those processes of the groups that handle, block or ignore it. `groups` are
/// the groups' leaders. Returns by group whether there was one; where /proc cannot be read,
/// nothing.
pub(super) fn signal(groups: &[Pid], signal: Signal) -> Option<Vec<bool>> {
    let mut members: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
    for entry in fs::read_dir("/proc").ok()?.flatten() {
        let Some(process) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
        if let Some(group) = group_of(process) {
            members.entry(group).or_default().push(process);
        }
    }
    members.keys().next()?;
    let group = |leader: &Pid| members.get(&leader.as_raw_nonzero().get()).map_or(&[][..], Vec::as_slice);
    let others = || groups.iter().flat_map(group).filter(|process| !takes(**process, signal));
    // The C library blocks all signals for a moment when it starts a thread.
    let mut blocked: BTreeSet<i32> = others().copied().filter(|process| blocks(*process, signal)).collect();
    if !blocked.is_empty() {
        std::thread::sleep(MOMENT);
        blocked.retain(|process| blocks(*process, signal));
    }
    let send = |leader: &Pid| {
        let mut sent = false;
        for process in group(leader) {
            if (blocked.contains(process) || takes(*process, signal))
                && let Some(process) = Pid::from_raw(*process)
            {
                sent |= kill_process(process, signal).is_ok();
            }
        }
        sent
    };
    Some(groups.iter().map(send).collect())
}

fn group_of(process: i32) -> Option<i32> {
    // The name, in parentheses, may have any character; state, parent and group follow.
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(2)?.parse().ok()
}

/// Returns whether a process handles or ignores a signal.
fn takes(process: i32, signal: Signal) -> bool {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    is_in(&status, "SigCgt:", signal) || is_in(&status, "SigIgn:", signal)
}

/// Returns whether all threads of a process block a signal: one of them may wait for it.
fn blocks(process: i32, signal: Signal) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{process}/task")) else { return false };
    threads.flatten().all(|thread| {
        let status = fs::read_to_string(thread.path().join("status")).unwrap_or_default();
        is_in(&status, "SigBlk:", signal)
    })
}

/// Returns whether a set of signals of a status has this one.
fn is_in(status: &str, set: &str, signal: Signal) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix(set));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask & 1 << (signal.as_raw() - 1) != 0)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_process_without_a_handler_is_left_alone() {
        let start = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]).process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut child = command.spawn().unwrap();
            // The shell says that it is ready.
            let mut ready = [0];
            std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut ready).unwrap();
            child
        };
        let mut without = start("echo; read line; exit 3");
        let mut with = start("trap 'exit 4' USR2; echo; read line; exit 5");
        let leaders = [&without, &with].map(Pid::from_child);
        assert_eq!(signal(&leaders, Signal::USR2), Some(vec![false, true]));
        drop(without.stdin.take());
        assert_eq!(without.wait().unwrap().code(), Some(3));
        drop(with.stdin.take());
        assert_eq!(with.wait().unwrap().code(), Some(4));
    }
}
