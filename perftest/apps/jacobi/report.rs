//! What a run is reported as.

use oxshmem_perftest::report::{self, Column, number, rounded, setting};
use serde::{Deserialize, Serialize};

use crate::options::Check;

/// One run. Fields that do not apply are null in JSON.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// `jacobi`.
    pub app: String,
    /// `p`, `put` or `overlap`.
    pub variant: String,
    /// `cpu` or `cuda`.
    pub device: String,
    /// What executed work requests; null when no path uses any.
    pub hca: Option<String>,
    /// How PE 0 reaches the others.
    pub transport: String,
    /// PEs.
    pub npes: usize,
    /// QPs to each peer; null without a network.
    pub qps: Option<u32>,
    /// CTAs.
    pub ctas: u32,
    /// Threads per CTA.
    pub threads: u32,
    /// Columns.
    pub nx: u64,
    /// Rows.
    pub ny: u64,
    /// Iterations that were done.
    pub niter: u64,
    /// After so many each the norm was computed.
    pub norm_every: u64,
    /// The norm of the change, computed last; null if it never was.
    pub norm: Option<f64>,
    /// Milliseconds of all iterations, of the slowest PE.
    pub ms: f64,
    /// Microseconds of one.
    pub us_per_iteration: f64,
    /// 10^9 points per second, of all PEs.
    pub gpoints: f64,
    /// Work requests that PE 0's HCA executed; null without a network.
    pub wqes: Option<u64>,
    /// Doorbells that PE 0 rang; null likewise.
    pub doorbells: Option<u64>,
    /// `serial`, `single` or `off`: what the result was compared with.
    pub check: String,
    /// Whether it was right; null if it was compared with nothing.
    pub verified: Option<bool>,
    /// `strong` or `weak`; null outside of tables of scaling.
    pub scaling: Option<String>,
    /// How many times the points per second of one PE; null likewise.
    pub speedup: Option<f64>,
    /// The same by PE.
    pub efficiency: Option<f64>,
    /// GPU model; null without a GPU.
    pub gpu: Option<String>,
    /// The driver's version; null likewise.
    pub driver: Option<String>,
    /// Day, UTC.
    pub date: String,
}

impl From<Check> for String {
    fn from(check: Check) -> Self {
        match check {
            Check::Auto | Check::Serial => "serial",
            Check::Single => "single",
            Check::Off => "off",
        }
        .to_owned()
    }
}

const COLUMNS: [Column<Row>; 10] = [
    Column("variant", 8, |row| row.variant.clone()),
    Column("PEs", 5, |row| row.npes.to_string()),
    Column("iterations", 10, |row| row.niter.to_string()),
    Column("time [ms]", 10, |row| rounded(Some(row.ms))),
    Column("us/iteration", 12, |row| rounded(Some(row.us_per_iteration))),
    Column("Gpoints/s", 10, |row| rounded(Some(row.gpoints))),
    Column("norm", 10, |row| row.norm.map_or_else(|| "-".to_owned(), |norm| format!("{norm:.3e}"))),
    Column("WQEs", 9, |row| number(row.wqes)),
    Column("doorbells", 9, |row| number(row.doorbells)),
    Column("result", 9, |row| {
        match row.verified {
            Some(true) => "verified",
            Some(false) => "WRONG",
            None => "unchecked",
        }
        .to_owned()
    }),
];

const SCALING: [Column<Row>; 2] =
    [Column("speedup", 8, |row| rounded(row.speedup)), Column("efficiency", 10, |row| rounded(row.efficiency))];

/// The table's columns; with those of scaling if that is what it shows.
fn columns(scaling: bool) -> impl Iterator<Item = &'static Column<Row>> {
    COLUMNS.iter().chain(SCALING.iter().filter(move |_| scaling))
}

/// The titles.
pub fn header(scaling: bool) -> String {
    report::header(columns(scaling))
}

/// What was solved, and on what.
pub fn title(row: &Row) -> String {
    let setting = setting(&row.device, &row.transport, row.hca.as_deref(), row.qps);
    let check = match row.check.as_str() {
        "serial" => "; compared with a serial solution",
        "single" => "; compared with the solution of one PE",
        _ => "",
    };
    format!("# jacobi: {} x {} points, {} CTAs x {} threads, {setting}{check}", row.nx, row.ny, row.ctas, row.threads)
}

impl Row {
    /// The row as a line of the table.
    pub fn text(&self) -> String {
        report::line(columns(self.scaling.is_some()), self)
    }
}
