//! Small updates of a table that is spread over all PEs, with and without aggregation: what the
//! programs `gups` and `histogram` measure. See `docs/applications.md`.

mod options;
mod report;
mod run;
mod stream;

use std::process::ExitCode;

use clap::CommandFactory;
use oxshmem::Pe;

pub use options::{GupsOptions, HistogramOptions, Op, Via};
pub use report::Row;

use crate::error::Error;
use crate::report::Table;
use crate::verdicts::end_if_wrong;
use options::Plan;
use run::Session;

/// Does what a program of updates does.
pub fn main<O: CommandFactory>(parse: impl FnOnce() -> O, plan: impl FnOnce(&O) -> Result<Plan, Error>) -> ExitCode {
    if let Some(status) = oxshmem_manual::requested(O::command) {
        return status;
    }
    match plan(&parse()) {
        Ok(plan) => crate::start_or_join(plan.app, plan.npes, &plan.config.clone(), |pe| measure(pe, &plan)),
        Err(error) => O::command().error(clap::error::ErrorKind::ValueValidation, error).exit(),
    }
}

/// Measures each way as one PE of the job, and shows the figures.
fn measure(pe: &Pe, plan: &Plan) -> Result<(), Error> {
    let session = Session::new(pe, plan)?;
    let mut table = Table::new(Row::title, Row::columns(), plan.json.as_deref().filter(|_| pe.my_pe() == 0))?;
    for via in &plan.via {
        let (row, wrong) = session.run(*via)?;
        row.map_or(Ok(()), |row| table.add(row))?;
        end_if_wrong(pe, wrong)?;
    }
    session.close()
}
