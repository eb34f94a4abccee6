//! Laplace's equation on a mesh, by Jacobi's method: rows split over PEs, halo rows exchanged by
//! device code in three ways. See `docs/applications.md`.

mod mesh;
mod options;
mod picture;
mod report;
mod scaling;
mod serial;
mod solver;

use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use oxshmem::{Pe, launch};
use oxshmem_perftest::error::Error;
use oxshmem_perftest::output;
use oxshmem_perftest::report::{Table, to_json};
use oxshmem_perftest::verdicts::end_if_wrong;

use options::Options;
use report::Row;
use solver::Solver;

const NAME: &str = "jacobi";

fn main() -> ExitCode {
    if let Some(status) = oxshmem_manual::requested(Options::command) {
        return status;
    }
    let options = Options::parse();
    let refuse = |text: String| Options::command().error(clap::error::ErrorKind::ValueValidation, text).exit();
    let config = match options.config() {
        Ok(config) => config,
        Err(error) => refuse(error.to_string()),
    };
    let Some(scaling) = options.scaling else {
        return oxshmem_perftest::start_or_join(NAME, options.npes, &config, |pe| solve(pe, &options));
    };
    if launch::in_job() {
        refuse("--scaling starts jobs of its own: run it without a launcher".to_owned());
    }
    let args: Vec<String> = std::env::args().skip(1).collect();
    scaling::run(&options, scaling, &args).unwrap_or_else(|error| error.report(NAME))
}

/// Runs every variant as one PE of the job, and shows the figures.
fn solve(pe: &Pe, options: &Options) -> Result<(), Error> {
    let mut solver = Solver::new(pe, options)?;
    let json = options.json.as_deref().filter(|_| pe.my_pe() == 0);
    let mut table = Table::new(Row::title, Row::columns(false), json)?;
    let mut iterations = None;
    for variant in options.variants() {
        let (row, wrong) = solver.run(variant)?;
        if let Some(row) = row {
            iterations = Some(row.niter);
            if options.lines {
                output::line(format_args!("{}", to_json(&row)?))?;
            } else {
                table.add(row)?;
            }
        }
        end_if_wrong(pe, wrong)?;
    }
    if let (Some(path), Some(iterations)) = (&options.plot, iterations) {
        let mesh = options.mesh();
        let (rows, columns) = picture::places(mesh);
        let title = format!("jacobi: {} x {} points, {iterations} iterations", mesh.nx, mesh.ny);
        picture::draw(path, title, &solver.sample(iterations, &rows, &columns)?)?;
    }
    solver.close()
}
