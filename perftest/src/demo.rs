//! `make demo`: two PEs on this machine, p and put through P2P, IBGDA and IBRC, data verified, one
//! table at the end.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use oxshmem::config::Transport;
use oxshmem::launch;

use crate::bench::Bench;
use crate::error::Error;
use crate::output;
use crate::report::{Row, number, verdict};
use crate::step;

const NAME: &str = "demo";

/// A job that takes longer has failed; far above what any takes, on a busy machine too.
const LIMIT: Duration = Duration::from_secs(180);

/// One measurement: what it is called, the test, and its options.
type Step = (&'static str, Bench, &'static str);

const PUT: Step =
    ("put, 64 KiB by four blocks", Bench::PutBw, "--min 64K --max 64K --scope block --iters 4000 --warmup 400");
const P: &str = "--min 16K --max 16K --iters 1000 --warmup 100";

/// By load and store each `p` is a store, and nothing combines.
const BY_STORE: &[Step] = &[PUT, ("p, 8 bytes, a store each", Bench::PBw, P)];

/// Over the network, adjacent words of a warp's lanes become one work request, or several of up to
/// six words (IBRC).
const BY_NETWORK: &[Step] = &[
    PUT,
    ("p, 8 bytes, lanes combine", Bench::PBw, P),
    ("p, 8 bytes, not combined", Bench::PBw, "--min 16K --max 16K --iters 1000 --warmup 100 --stride 2"),
];

/// Returns what is measured over a transport.
fn steps(transport: Transport) -> &'static [Step] {
    if transport == Transport::P2p { BY_STORE } else { BY_NETWORK }
}

/// Runs the demo's program.
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
            if matches!(error, Error::Interrupted(_)) {
                // The line of the step that was running has no end.
                eprintln!();
            }
            error.report(NAME)
        }
    }
}

/// Runs the jobs and prints the table.
fn show() -> Result<ExitCode, Error> {
    output::line(format_args!(
        "Two PEs, each a process on this machine. PE 0 runs device code that writes to\n\
         the symmetric heap of PE 1; PE 1 compares every byte with what was sent.\n"
    ))?;
    let mut rows: Vec<(&str, Row)> = Vec::new();
    for (transport, how) in [
        (Transport::P2p, "device code stores into PE 1's mapped memory"),
        (Transport::Ibgda, "device code builds mlx5 WQEs and rings the doorbell"),
        (Transport::Ibrc, "device code writes descriptors, a thread of the host posts them"),
    ] {
        output::line(format_args!("{transport}: {how}"))?;
        for (what, bench, options) in steps(transport).iter().copied() {
            let begin = Instant::now();
            output::text(format_args!("  {what:<28}"))?;
            match one(bench, options, transport)? {
                Ok(row) => {
                    let seconds = begin.elapsed().as_secs_f64();
                    output::line(format_args!("{} iterations verified, {seconds:.1} s", row.iters))?;
                    rows.push((what, row));
                }
                Err(complaints) => {
                    output::line(format_args!("FAILED"))?;
                    complaints.iter().for_each(|line| eprintln!("{NAME}: {line}"));
                    return Ok(ExitCode::FAILURE);
                }
            }
        }
    }
    output::line(format_args!("\n{}\n{}", table(&rows), origin(&rows)))?;
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
        "{:<9} {:<26} {:>6} {:>7} {:>8} {:>9} {:>9}",
        "transport", "operation", "GB/s", "M ops/s", "WQEs", "doorbells", "data"
    )];
    for (what, row) in rows {
        lines.push(format!(
            "{:<9} {what:<26} {:>6.3} {:>7.2} {:>8} {:>9} {:>9}",
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

/// Returns what the figures are figures of.
fn origin(rows: &[(&str, Row)]) -> String {
    let device = rows.first().map_or("", |(_, row)| row.job.device.as_str());
    let hca = rows.iter().find_map(|(_, row)| row.job.hca.as_deref()).unwrap_or("none");
    let device_text = if device == "cpu" { "the `cpu` device (a SIMT executor)" } else { "a GPU" };
    // What a row that combines gains is not always seen in its rate, so the reason is told with the
    // figures.
    let combining = if device == "cpu" {
        "\nLanes that combine post fewer WQEs, as the column shows. On the `cpu` device\n\
         their rate gains little: a word that lanes exchange costs about as much there\n\
         as a WQE does."
    } else {
        ""
    };
    let hca_text = if hca == "soft" { "the software HCA" } else { "a ConnectX" };
    let model = if device == "cpu" || hca == "soft" {
        "\nThese are figures of a software model on this machine's processor,\nnot of a GPU or an RDMA card."
    } else {
        ""
    };
    format!("Kernels ran on {device_text},\nwork requests on {hca_text}.{model}{combining}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Options;
    use crate::report::tests::{job, row};
    use crate::report::{Job, Posted};

    #[test]
    fn every_step_has_options_that_its_test_takes() {
        for (_, bench, options) in BY_STORE.iter().chain(BY_NETWORK).copied() {
            let args = std::iter::once(bench.name()).chain(options.split(' '));
            assert!(Options::parse(bench, args).is_ok_and(|options| options.sizes.len() * options.scopes.len() == 1));
        }
    }

    #[test]
    fn nothing_is_said_to_combine_where_nothing_does() {
        let combines = |steps: &[Step]| steps.iter().any(|(what, ..)| what.contains("combine"));
        assert!(!combines(steps(Transport::P2p)));
        assert!(combines(steps(Transport::Ibgda)) && combines(steps(Transport::Ibrc)));
    }

    #[test]
    fn the_table_is_aligned_and_says_what_ran() {
        let p2p = Row { job: Job { hca: None, ..job("p2p").having(Posted::default()) }, ..row("block", 64, 1.0) };
        let rows = [("put", p2p), ("p, not combined", row("thread", 64, 0.2))];
        let text = table(&rows);
        let lengths: Vec<usize> = text.lines().map(str::len).collect();
        assert_eq!(lengths.len(), 3);
        assert!(lengths.iter().all(|length| *length == lengths[0] && *length <= output::WIDTH), "{text}");
        let origin = origin(&rows);
        assert!(
            origin.lines().all(|line| line.len() <= output::WIDTH) && origin.contains("post fewer WQEs"),
            "{origin}"
        );
        assert!(
            origin.contains("`cpu` device") && origin.contains("software HCA") && origin.contains("not of a GPU"),
            "{origin}"
        );
    }
}
