//! `make demo`: two PEs on this machine, p and put through P2P and through IBGDA, data verified, one table at the end.

use std::io::Write;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use oxshmem::launch::{self, LaunchOptions, Output};
use oxshmem::{Pe, config::Transport};

use crate::bench::Bench;
use crate::error::Error;
use crate::job;
use crate::options::Options;
use crate::report::Row;
use crate::run::Session;

const NAME: &str = "demo";

/// A job that takes longer has failed.
const LIMIT: Duration = Duration::from_secs(60);

/// What is measured over each transport: what it is called, the test, and its options.
const STEPS: [(&str, Bench, &str); 3] = [
    ("put, 64 KiB by four blocks", Bench::PutBw, "--min 64K --max 64K --scope block --iters 4000 --warmup 400"),
    ("p, 8 bytes, lanes combine", Bench::PBw, "--min 16K --max 16K --iters 4000 --warmup 400"),
    ("p, 8 bytes, not combined", Bench::PBw, "--min 16K --max 16K --iters 4000 --warmup 400 --stride 2"),
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
        return as_pe();
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
    ] {
        println!("{transport}: {how}");
        for (what, bench, options) in STEPS {
            let begin = Instant::now();
            print!("  {what:<28}");
            // A line that is not seen yet is no reason to stop.
            let _ = std::io::stdout().flush();
            match step(bench, options, transport)? {
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

/// Measures one thing in a job of two PEs; what the PEs complained about if it failed.
fn step(bench: Bench, options: &str, transport: Transport) -> Result<Result<Row, Vec<String>>, Error> {
    let args = [bench.name().to_owned(), format!("--transport={transport}")];
    let options = LaunchOptions {
        output: Output::Captured,
        timeout: Some(LIMIT),
        forward_signals: true,
        ..LaunchOptions::new(2, job::this_program()?)
            .args(args.into_iter().chain(options.split(' ').map(str::to_owned)))
    };
    let outcome = launch::run(&options)?;
    if !outcome.is_success() {
        return Ok(Err(job::complaints(&outcome)));
    }
    let text = String::from_utf8_lossy(&outcome.pes[0].stdout);
    Ok(match text.lines().map(serde_json::from_str::<Row>).collect::<Result<Vec<_>, _>>() {
        Ok(rows) if rows.len() == 1 => rows.into_iter().next().ok_or_else(Vec::new),
        _ => Err(vec![format!("PE 0 has not answered with one row of figures: {text:?}")]),
    })
}

/// The part of a PE: the arguments are a test's name and its options, the answer is a line of JSON.
fn as_pe() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let Some(bench) = Bench::ALL.into_iter().find(|bench| args.first().is_some_and(|name| name == bench.name())) else {
        eprintln!("{NAME}: start this program without a launcher, it starts its own PEs");
        return ExitCode::from(2);
    };
    let options = match Options::parse(bench, &args) {
        Ok(options) => options,
        Err(error) => error.exit(),
    };
    match measure(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Read by rank in `step`; what only follows from another PE's error stays untold.
            if !error.is_consequence() {
                eprintln!("{error}");
            }
            ExitCode::FAILURE
        }
    }
}

fn measure(options: &Options) -> Result<(), Error> {
    crate::in_job(options, |pe: &Pe| {
        let mut session = Session::new(pe, options)?;
        session.run(&mut |row| {
            println!("{}", row.to_json()?);
            Ok(())
        })?;
        session.close()
    })
}

fn table(rows: &[(&str, Row)]) -> String {
    let mut lines = vec![format!(
        "{:<10}  {:<26}  {:>7}  {:>8}  {:>9}  {:>9}  {:>9}",
        "transport", "operation", "GB/s", "M ops/s", "WQEs", "doorbells", "data"
    )];
    for (what, row) in rows {
        let count = |value: Option<u64>| value.map_or_else(|| "-".to_owned(), |value| value.to_string());
        lines.push(format!(
            "{:<10}  {what:<26}  {:>7.3}  {:>8.2}  {:>9}  {:>9}  {:>9}",
            row.transport,
            row.gbps.unwrap_or_default(),
            row.mops.unwrap_or_default(),
            count(row.wqes),
            count(row.doorbells),
            if row.verified { "verified" } else { "WRONG" },
        ));
    }
    lines.join("\n") + "\n"
}

/// What the figures are figures of.
fn origin(rows: &[(&str, Row)]) -> String {
    let device = rows.first().map_or("", |(_, row)| row.device.as_str());
    let hca = rows.iter().find_map(|(_, row)| row.hca.as_deref()).unwrap_or("none");
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
    use crate::report::tests::row;

    #[test]
    fn every_step_has_options_that_its_test_takes() {
        for (_, bench, options) in STEPS {
            let args = std::iter::once(bench.name()).chain(options.split(' '));
            assert!(Options::parse(bench, args).is_ok_and(|options| options.sizes.len() * options.scopes.len() == 1));
        }
    }

    #[test]
    fn the_table_is_aligned_and_says_what_ran() {
        let p2p = Row { transport: "p2p".into(), hca: None, wqes: None, doorbells: None, ..row("block", 64, 1.0) };
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
