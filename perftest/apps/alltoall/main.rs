//! All-to-all by device code: messages of one size, or tokens to experts and back. See
//! `docs/applications.md`.

mod experts;
mod fixed;
mod options;
mod report;
mod routing;
mod session;

use std::path::Path;
use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use oxshmem::Pe;
use oxshmem_perftest::error::Error;
use oxshmem_perftest::plot;
use oxshmem_perftest::report::Table;
use oxshmem_perftest::verdicts::end_if_wrong;

use experts::Experts;
use fixed::Exchange;
use options::{Mode, Options, Plan};
use report::Row;
use session::Session;

const NAME: &str = "alltoall";

fn main() -> ExitCode {
    if let Some(status) = oxshmem_manual::requested(Options::command) {
        return status;
    }
    let options = Options::parse();
    let plan = match options.plan() {
        Ok(plan) => plan,
        Err(error) => Options::command().error(clap::error::ErrorKind::ValueValidation, error).exit(),
    };
    oxshmem_perftest::start_or_join(NAME, options.npes, &plan.config, |pe| measure(pe, &options, &plan))
}

/// Measures every size as one PE of the job, and shows the figures.
fn measure(pe: &Pe, options: &Options, plan: &Plan) -> Result<(), Error> {
    let session = Session::new(pe, options, plan)?;
    let json = options.json.as_deref().filter(|_| pe.my_pe() == 0);
    let mut table = Table::new(Row::title, Row::columns(), json)?;
    match options.mode {
        Mode::Fixed => {
            let mut exchange = Exchange::new(&session)?;
            plan.sizes.iter().try_for_each(|bytes| show(pe, &mut table, exchange.run(*bytes)?))?;
            exchange.close()?;
        }
        Mode::Moe => {
            let mut experts = Experts::new(&session)?;
            plan.sizes.iter().try_for_each(|bytes| show(pe, &mut table, experts.run(*bytes)?))?;
            experts.close()?;
        }
    }
    if let Some(path) = &options.plot {
        draw(path, table.rows())?;
    }
    session.close()
}

/// Shows the rows of a size, which PE 0 has; then ends the job if data was wrong. Collective.
fn show(pe: &Pe, table: &mut Table<Row>, (rows, wrong): (Vec<Row>, Option<Error>)) -> Result<(), Error> {
    rows.into_iter().try_for_each(|row| table.add(row))?;
    end_if_wrong(pe, wrong)
}

/// Draws the times over the size; nothing where there are no rows.
fn draw(path: &Path, rows: &[Row]) -> Result<(), Error> {
    let Some(Row { mode, job, .. }) = rows.first() else { return Ok(()) };
    let lines = plot::lines(rows.iter().flat_map(|row| {
        [
            (format!("{}, p50", row.phase), row.bytes, row.times.us_p50),
            (format!("{}, p99", row.phase), row.bytes, row.times.us_p99),
        ]
    }));
    plot::draw_series(path, &format!("alltoall, {mode}: {}", job.parties()), "time per iteration [us]", &lines)
}
