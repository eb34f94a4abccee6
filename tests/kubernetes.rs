//! The manifest of the documentation keeps to Kubernetes' schemas. No cluster runs it.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::{Command, Output};

/// Checks a manifest strictly: unknown fields are errors.
fn check(manifest: &Path) -> std::io::Result<Output> {
    Command::new("kubernetes-validate").arg("--strict").arg(manifest).output()
}

#[test]
fn the_manifest_keeps_to_the_schemas() {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/kubernetes/job.yaml");
    let output = match check(&manifest) {
        Ok(output) => output,
        Err(error) => {
            return println!("skipped: kubernetes-validate (a Python package of this name) cannot be started: {error}");
        }
    };
    let text = |output: &Output| [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text)).concat();
    assert!(output.status.success(), "{}", text(&output));
    // What is wrong is seen.
    let wrong = std::env::temp_dir().join(format!("oxshmem-kubernetes-{}.yaml", std::process::id()));
    std::fs::write(&wrong, std::fs::read_to_string(&manifest).unwrap().replace("parallelism:", "paralelism:")).unwrap();
    let output = check(&wrong).unwrap();
    std::fs::remove_file(&wrong).unwrap();
    assert!(!output.status.success() && text(&output).contains("paralelism"), "{}", text(&output));
}

/// The parts that only agree by their names.
#[test]
fn the_parts_of_the_manifest_fit_together() {
    let text = include_str!("../examples/kubernetes/job.yaml");
    let values = |key: &str| -> Vec<&str> {
        text.lines().filter_map(|line| line.trim_start_matches([' ', '-']).strip_prefix(key)).map(str::trim).collect()
    };
    assert_eq!(values("job-name:"), ["ring"; 2]);
    assert_eq!(values("subdomain:"), ["ring"]);
    assert_eq!((values("completions:"), values("parallelism:")), (vec!["2"], vec!["2"]));
    let [gpus] = values("nvidia.com/gpu:")[..] else { panic!("the GPUs of a pod") };
    for words in [
        "--nnodes 2 ",
        &format!("--nproc-per-node {gpus} "),
        "--node-rank \"$JOB_COMPLETION_INDEX\"",
        "--master-addr ring-0.ring ",
        "value: /run/ring/secret",
        "mountPath: /run/ring\n",
    ] {
        assert!(text.contains(words), "{words}");
    }
}
