//! `make demo`: two PEs on this machine, p and put through P2P, IBGDA and IBRC, data verified, one table at the end.

use std::io::Write;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use oxshmem::config::Transport;
use oxshmem::launch;

use crate::bench::Bench;
use crate::error::Error;
use crate::report::{Row, number, verdict};
use crate::step;

const NAME: &str = "demo";

/// A job that takes longer has failed; far above what any takes, on a busy machine too.
const LIMIT: Duration = Duration::from_secs(180);

/// What is measured over each transport: what it is called, the test, and its options.
const STEPS: [(&str, Bench, &str); 3] = [
    ("put, 64 KiB by four blocks", Bench::PutBw, "--min 64K --max 64K --scope block --iters 4000 --warmup 400"),
    ("p, 8 bytes, lanes combine", Bench::PBw, "--min 16K --max 16K --iters 1000 --warmup 100"),
    ("p, 8 bytes, not combined", Bench::PBw, "--min 16K --max 16K --iters 1000 --warmup 100 --stride 2"),
];

/// The demo's program.
pub fn main() -> ExitCode {
    if let Some(argument) = std::env::args().nth(1).filter(|_| !launch::in_job()) {
        eprintln!(
            "{NAME}: {argument}: the demo takes no arguments; the shmem_* programs beside it do, see docs/perftest.md"
        );
        return ExitCode::from(2);
    }
    if launch::in_job() {
        return step::as_pe(NAME);
    }
    match show() {
        Ok(status) => status,
        Err(error) => {
            eprintln!("{NAME}: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the jobs and prints the table.
fn show() -> Result<ExitCode, Error> {
    println!(
        "Two PEs, each a process on this machine. PE 0 runs device code that writes to the symmetric heap of PE 1;"
    );
    println!("PE 1 compares every byte with what was sent.\n");
    let mut rows: Vec<(&str, Row)> = Vec::new();
    for (transport, how) in [
        (Transport::P2p, "device code stores into PE 1's mapped memory"),
        (Transport::Ibgda, "device code builds mlx5 WQEs and rings the doorbell, the HCA executes them"),
        (Transport::Ibrc, "device code writes descriptors, a thread of the host posts them, the HCA executes them"),
    ] {
        println!("{transport}: {how}");
        for (what, bench, options) in STEPS {
            let begin = Instant::now();
            print!("  {what:<28}");
            // A line that is not seen yet is no reason to stop.
            let _ = std::io::stdout().flush();
            match one(bench, options, transport)? {
                Ok(row) => {
                    println!("{} iterations verified, {:.1} s", row.iters, begin.elapsed().as_secs_f64());
                    rows.push((what, row));
                }
                Err(complaints) => {
                    println!("FAILED");
                    complaints.iter().for_each(|line| eprintln!("{NAME}: {line}"));
                    return Ok(ExitCode::FAILURE);
                }
            }
        }
    }
    println!("\n{}", table(&rows));
    println!("{}", origin(&rows));
    Ok(ExitCode::SUCCESS)
}

/// Measures one thing; what the PEs complained about if it failed.
fn one(bench: Bench, options: &str, transport: Transport) -> Result<Result<Row, Vec<String>>, Error> {
    let options = format!("--transport={transport} {options}");
    Ok(step::run(bench, &options, LIMIT)?.and_then(|rows| match <[Row; 1]>::try_from(rows) {
        Ok([row]) => Ok(row),
        Err(rows) => Err(vec![format!("PE 0 has answered with {} rows of figures instead of one", rows.len())]),
    }))
}

fn table(rows: &[(&str, Row)]) -> String {
    let mut lines = vec![format!(
        "{:<10}  {:<26}  {:>7}  {:>8}  {:>9}  {:>9}  {:>9}",
        "transport", "operation", "GB/s", "M ops/s", "WQEs", "doorbells", "data"
    )];
    for (what, row) in rows {
        lines.push(format!(
            "{:<10}  {what:<26}  {:>7.3}  {:>8.2}  {:>9}  {:>9}  {:>9}",
            row.job.transport,
            row.gbps.unwrap_or_default(),
            row.mops.unwrap_or_default(),
            number(row.job.posted.wqes),
            number(row.job.posted.doorbells),
            verdict(row.verified),
        ));
    }
    lines.join("\n") + "\n"
}

/// What the figures are figures of.
fn origin(rows: &[(&str, Row)]) -> String {
    let device = rows.first().map_or("", |(_, row)| row.job.device.as_str());
    let hca = rows.iter().find_map(|(_, row)| row.job.hca.as_deref()).unwrap_or("none");
    let device_text = if device == "cpu" { "the `cpu` device (a SIMT executor)" } else { "a GPU" };
    let hca_text = if hca == "soft" { "the software HCA" } else { "a ConnectX" };
    let model = if device == "cpu" || hca == "soft" {
        "\nThese are figures of a software model on this machine's processor, not of a GPU or an RDMA card."
    } else {
        ""
    };
    format!("Kernels ran on {device_text}, work requests on {hca_text}.{model}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Options;
    use crate::report::tests::{job, row};
    use crate::report::{Job, Posted};

    #[test]
    fn every_step_has_options_that_its_test_takes() {
        for (_, bench, options) in STEPS {
            let args = std::iter::once(bench.name()).chain(options.split(' '));
            assert!(Options::parse(bench, args).is_ok_and(|options| options.sizes.len() * options.scopes.len() == 1));
        }
    }

    #[test]
    fn the_table_is_aligned_and_says_what_ran() {
        let p2p = Row { job: Job { hca: None, ..job("p2p").having(Posted::default()) }, ..row("block", 64, 1.0) };
        let rows = [("put", p2p), ("p, not combined", row("thread", 64, 0.2))];
        let text = table(&rows);
        let lengths: Vec<usize> = text.lines().map(str::len).collect();
        assert_eq!(lengths.len(), 3);
        assert!(lengths.iter().all(|length| *length == lengths[0]), "{text}");
        let origin = origin(&rows);
        assert!(
            origin.contains("`cpu` device") && origin.contains("software HCA") && origin.contains("not of a GPU"),
            "{origin}"
        );
    }
}
