//! All-to-all by device code: messages of one size, or tokens to experts and back. See `docs/applications.md`.

mod experts;
mod fixed;
mod options;
mod report;
mod routing;
mod session;

use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use oxshmem::Pe;
use oxshmem_perftest::error::Error;
use oxshmem_perftest::plot;
use oxshmem_perftest::report::JsonLines;

use experts::Experts;
use fixed::Exchange;
use options::{Mode, Options, Plan};
use report::Row;
use session::Session;

const NAME: &str = "alltoall";

fn main() -> ExitCode {
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
    let mut table = Table::new(pe, options)?;
    match options.mode {
        Mode::Fixed => {
            let mut exchange = Exchange::new(&session)?;
            plan.sizes.iter().try_for_each(|bytes| table.add(exchange.run(*bytes)?))?;
            exchange.close()?;
        }
        Mode::Moe => {
            let mut experts = Experts::new(&session)?;
            plan.sizes.iter().try_for_each(|bytes| table.add(experts.run(*bytes)?))?;
            experts.close()?;
        }
    }
    table.draw(options)?;
    session.close()
}

/// What has been measured and shown; at PE 0, the others have nothing to show.
struct Table<'a> {
    pe: &'a Pe,
    json: Option<JsonLines>,
    rows: Vec<Row>,
}

impl<'a> Table<'a> {
    fn new(pe: &'a Pe, options: &Options) -> Result<Self, Error> {
        let path = options.json.as_deref().filter(|_| pe.my_pe() == 0);
        Ok(Self { pe, json: path.map(JsonLines::create).transpose()?, rows: Vec::new() })
    }

    /// Shows the rows of a size; then ends the job if data was wrong. Collective.
    fn add(&mut self, (rows, wrong): (Vec<Row>, Option<Error>)) -> Result<(), Error> {
        for row in rows {
            if self.rows.is_empty() {
                println!("{}\n{}", report::title(&row), report::header());
            }
            println!("{}", row.text());
            if let Some(json) = &mut self.json {
                json.write(&row)?;
            }
            self.rows.push(row);
        }
        let together = self.pe.barrier_all();
        if let Some(wrong) = wrong {
            return Err(wrong);
        }
        Ok(together?)
    }

    fn draw(&self, options: &Options) -> Result<(), Error> {
        let (Some(path), Some(first)) = (&options.plot, self.rows.first()) else { return Ok(()) };
        let lines = plot::lines(self.rows.iter().flat_map(|row| {
            [
                (format!("{}, p50", row.phase), row.bytes, Some(row.us_p50)),
                (format!("{}, p99", row.phase), row.bytes, Some(row.us_p99)),
            ]
        }));
        let title =
            format!("alltoall, {}: {} PEs, device {}, {}", first.mode, first.npes, first.device, first.transport);
        plot::draw_series(path, &title, "time per iteration [us]", &lines)
    }
}
