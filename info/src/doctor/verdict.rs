//! What the findings mean for each path between PEs.

use serde::Serialize;

use super::finding::{Finding, Outcome};
use super::gpu::Seen;

/// Whether a path can be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Everything it needs was seen.
    Ready,
    /// Something that it needs is missing.
    Missing,
    /// Nothing speaks against it that can be seen without using it.
    Unconfirmed,
}

impl State {
    /// Returns the word that is printed.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Missing => "missing",
            Self::Unconfirmed => "unconfirmed",
        }
    }
}

/// A path between PEs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// Its name.
    pub path: &'static str,
    /// Whether it can be used.
    pub state: State,
    /// Why.
    pub reason: String,
}

/// Returns the first of these probes that speaks against a path, and how. One of several devices
/// that is well is enough, unless another fails.
fn obstacle(findings: &[Finding], probes: &[&str]) -> Option<String> {
    probes.iter().find_map(|probe| {
        let mut own = findings.iter().filter(|finding| finding.probe == *probe);
        let worst = match own.clone().map(|finding| finding.result).max() {
            None => return Some(format!("{probe}: not tried")),
            Some(Outcome::Fail) => own.find(|finding| finding.result == Outcome::Fail),
            Some(_) if own.clone().any(|finding| finding.result == Outcome::Ok) => None,
            Some(worst) => own.find(|finding| finding.result == worst),
        };
        worst.map(|finding| format!("{probe}: {}", finding.reason))
    })
}

fn verdict(path: &'static str, findings: &[Finding], probes: &[&str], good: State, reason: &str) -> Verdict {
    match obstacle(findings, probes) {
        Some(reason) => Verdict { path, state: State::Missing, reason },
        None => Verdict { path, state: good, reason: reason.to_owned() },
    }
}

const GPU: [&str; 5] = ["gpu.libcuda", "gpu.visible", "gpu.vmm", "gpu.modules", "gpu.export"];
const CARD: [&str; 5] = ["rdma.devices", "rdma.nodes", "rdma.libibverbs", "rdma.port", "rdma.gid"];

/// Returns the verdict on each path.
pub fn verdicts(findings: &[Finding], seen: &Seen, any_device: bool, any_mlx5: bool) -> Vec<Verdict> {
    let mut all = vec![verdict(
        "cpu device, software HCA",
        findings,
        &["system.sharing"],
        State::Ready,
        "P2P, IBGDA and IBRC between PEs of this machine, without GPU and card",
    )];
    let p2p = "GPU load and store (P2P)";
    let pairs = findings.iter().any(|finding| finding.probe == "gpu.p2p" && finding.result == Outcome::Ok);
    all.push(match seen.gpus.len() {
        0 | 1 => verdict(p2p, findings, &GPU, State::Ready, "between PEs that share the GPU"),
        _ if pairs => verdict(p2p, findings, &GPU, State::Ready, "see gpu.p2p for each pair"),
        _ => Verdict {
            path: p2p,
            state: State::Missing,
            reason: "between no two GPUs; PEs that share a GPU have it".into(),
        },
    });
    all.push(verdict(
        "GPU, software HCA",
        findings,
        &GPU,
        State::Ready,
        "IBGDA and IBRC where GPUs have peer access, for tests",
    ));
    let card: Vec<&str> = CARD.into_iter().chain(["rdma.selection"]).collect();
    let posted = ["rdma.libmlx5", "rdma.devx", "rdma.uar", "rdma.gpu-memory"];
    let posted: Vec<&str> = GPU.into_iter().chain(card.iter().copied()).chain(posted).collect();
    let absent = |path, reason: &str| Verdict { path, state: State::Missing, reason: reason.to_owned() };
    let (by_gpu, by_cpu, ibrc) = ("IBGDA, GPU rings", "IBGDA, CPU rings", "IBRC on a card (verbs)");
    if any_mlx5 {
        let mapped: Vec<&str> = posted.iter().copied().chain(["gpu.doorbell"]).collect();
        all.push(verdict(
            by_gpu,
            findings,
            &mapped,
            State::Ready,
            "commands, registers and memory of the card were tried",
        ));
        all.push(verdict(by_cpu, findings, &posted, State::Ready, "commands and memory of the card were tried"));
    } else {
        for path in [by_gpu, by_cpu] {
            all.push(absent(path, "no ConnectX or BlueField"));
        }
    }
    all.push(if any_device {
        verdict(ibrc, findings, &card, State::Unconfirmed, "the device, its node, port and address are there")
    } else {
        absent(ibrc, "no RDMA device")
    });
    all
}

#[cfg(test)]
mod tests {
    use super::super::cuda::Gpu;
    use super::*;

    #[test]
    fn a_path_is_missing_for_its_first_obstacle() {
        let ok = |probe| Finding::ok(probe, "fine");
        let mut findings: Vec<Finding> = GPU
            .into_iter()
            .chain(CARD)
            .chain(["rdma.selection", "rdma.libmlx5", "rdma.devx", "rdma.uar", "rdma.gpu-memory", "system.sharing"])
            .map(ok)
            .collect();
        findings.push(Finding::bad("gpu.doorbell", Outcome::Warn, "not mapped", "set it"));
        let seen = Seen { gpus: vec![Gpu::default()], pairs: Vec::new() };
        let state = |findings: &[Finding], path: &str| {
            let all = verdicts(findings, &seen, true, true);
            all.into_iter().find(|verdict| verdict.path.contains(path)).map(|verdict| (verdict.state, verdict.reason))
        };
        assert!(
            state(&findings, "GPU rings").is_some_and(|(s, why)| s == State::Missing && why.contains("gpu.doorbell"))
        );
        assert!(state(&findings, "CPU rings").is_some_and(|(s, _)| s == State::Ready));
        assert!(state(&findings, "verbs").is_some_and(|(s, _)| s == State::Unconfirmed));
        assert!(state(&findings, "P2P").is_some_and(|(s, _)| s == State::Ready));
        // One port that is down does not count while another is up.
        findings.push(Finding::skip("rdma.port", "DOWN"));
        assert!(state(&findings, "verbs").is_some_and(|(s, _)| s == State::Unconfirmed));
        findings.retain(|finding| finding.probe != "rdma.port" || finding.result == Outcome::Skip);
        assert!(
            state(&findings, "verbs").is_some_and(|(s, why)| s == State::Missing && why.contains("rdma.port: DOWN"))
        );
        assert!(state(&findings, "cpu device").is_some_and(|(s, _)| s == State::Ready));
        // A driver that is there and does not start is not a driver.
        findings.push(Finding::bad("gpu.libcuda", Outcome::Fail, "does not start", "start it"));
        assert!(state(&findings, "P2P").is_some_and(|(s, why)| s == State::Missing && why.contains("does not start")));
        let none = verdicts(&[], &Seen::default(), false, false);
        assert!(none.iter().any(|verdict| verdict.reason == "system.sharing: not tried"));
        assert!(none.iter().any(|verdict| verdict.reason == "no RDMA device" && verdict.state == State::Missing));
    }
}
