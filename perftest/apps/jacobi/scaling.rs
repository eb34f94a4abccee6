//! Strong and weak scaling: one job after the other, with more and more PEs.

use std::path::Path;
use std::process::ExitCode;

use oxshmem_perftest::error::Error;
use oxshmem_perftest::plot::{self, Chart};
use oxshmem_perftest::report::Table;
use oxshmem_perftest::step;

use crate::options::{Options, Scaling};
use crate::report::Row;

/// Up to this many PEs every number of them is measured, above only powers of two and the most.
const EVERY: u32 = 8;

fn numbers(most: u32) -> Vec<u32> {
    (1..=most).filter(|n| *n <= EVERY || n.is_power_of_two() || *n == most).collect()
}

/// Measures, prints the table, and writes the requested files. `args` are the command line's,
/// without the program's name.
///
/// # Errors
/// A job cannot be started, or a file cannot be written.
pub fn run(options: &Options, scaling: Scaling, args: &[String]) -> Result<ExitCode, Error> {
    let mut table = Table::new(Row::title, Row::columns(true), options.json.as_deref())?;
    let name = match scaling {
        Scaling::Strong => "strong",
        Scaling::Weak => "weak",
    };
    for npes in numbers(options.npes) {
        let own = ["--npes".to_owned(), npes.to_string(), "--ny".to_owned(), options.height(npes).to_string()];
        let more = own.into_iter().chain(["--lines".to_owned()]);
        let answer = match step::rows::<Row>(npes, plain(args).into_iter().chain(more), None)? {
            Ok(answer) => answer,
            Err(complaints) => {
                complaints.iter().for_each(|line| eprintln!("jacobi: {npes} PEs: {line}"));
                return Ok(ExitCode::FAILURE);
            }
        };
        for row in answer {
            let first = table.rows().iter().find(|first| first.variant == row.variant);
            let alone = first.map_or(row.gpoints, |first| first.gpoints);
            let speedup = row.gpoints / alone;
            table.add(Row {
                scaling: Some(name.to_owned()),
                speedup: Some(speedup),
                efficiency: Some(speedup / f64::from(npes)),
                ..row
            })?;
        }
    }
    if let Some(path) = &options.plot {
        draw(path, table.rows(), name)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the arguments of one job: without those of the table, and without the PEs and the rows,
/// which follow.
fn plain(args: &[String]) -> Vec<String> {
    const LEFT_OUT: [&str; 5] = ["--scaling", "--json", "--plot", "--npes", "--ny"];
    let mut rest = args.iter();
    let mut kept = Vec::new();
    while let Some(arg) = rest.next() {
        let name = arg.split('=').next().unwrap_or(arg);
        if LEFT_OUT.contains(&name) {
            if name == arg {
                rest.next();
            }
        } else {
            kept.push(arg.clone());
        }
    }
    kept
}

/// Speedup over the number of PEs, one line for each variant, and what would be perfect. Both axes
/// are logarithmic, so that is a straight line.
fn draw(path: &Path, rows: &[Row], name: &str) -> Result<(), Error> {
    let Some(Row { nx, ny, variant, job, .. }) = rows.first() else { return Ok(()) };
    let transport = rows.last().map_or("", |row| row.job.transport.as_str());
    let title = format!("jacobi, {name} scaling: {nx} x {ny} points on one PE, device {}, {transport}", job.device);
    let jobs = rows.iter().filter(|row| row.variant == *variant);
    let perfect = jobs.map(|row| ("perfect".to_owned(), row.job.npes as u64, Some(row.job.npes as f64)));
    let measured = rows.iter().map(|row| (row.variant.clone(), row.job.npes as u64, row.speedup));
    let lines = plot::lines(measured.chain(perfect));
    let chart = Chart { title: &title, x: "PEs", y: "speedup (points per second)", lines: &lines };
    plot::draw_charts(path, (960, 600), &[chart])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_of_pes_or_powers_of_two() {
        assert_eq!(numbers(1), [1]);
        assert_eq!(numbers(5), [1, 2, 3, 4, 5]);
        assert_eq!(numbers(20), [1, 2, 3, 4, 5, 6, 7, 8, 16, 20]);
    }

    #[test]
    fn jobs_get_the_options_that_are_theirs() {
        let args: Vec<String> = "--scaling weak --nx 8 --json=a --ny 9 --npes 4 --plot b.svg --variant p"
            .split(' ')
            .map(str::to_owned)
            .collect();
        assert_eq!(plain(&args), ["--nx", "8", "--variant", "p"]);
    }
}
