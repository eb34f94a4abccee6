//! What a run is reported as.

use oxshmem_perftest::report::{Column, Job, rounded, verdict};
use serde::{Deserialize, Serialize};

use crate::options::Check;

/// One run. Fields that do not apply are null in JSON.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// `jacobi`.
    pub app: String,
    /// `p`, `put` or `overlap`.
    pub variant: String,
    /// The job.
    #[serde(flatten)]
    pub job: Job,
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
    /// The norm was computed each time after this many iterations.
    pub norm_every: u64,
    /// The norm of the change, computed last; null if it never was.
    pub norm: Option<f64>,
    /// Milliseconds of all iterations, of the slowest PE.
    pub ms: f64,
    /// Microseconds of one.
    pub us_per_iteration: f64,
    /// 10^9 points per second, of all PEs.
    pub gpoints: f64,
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

impl Row {
    /// Returns the columns of the table, with those of scaling if that is what it shows. `Gpt/s` is
    /// 10^9 points per second; a result that was compared with nothing is `-`.
    pub fn columns(scaling: bool) -> Vec<Column<Self>> {
        let mut columns = vec![
            Column::new("variant", 7, |row: &Self| row.variant.clone()),
            Column::new("PEs", 4, |row: &Self| row.job.npes.to_string()),
            Column::new("iters", 6, |row: &Self| row.niter.to_string()),
            Column::new("ms", 7, |row: &Self| rounded(Some(row.ms))),
            Column::new("us/iter", 7, |row: &Self| rounded(Some(row.us_per_iteration))),
            Column::new("Gpt/s", 6, |row: &Self| rounded(Some(row.gpoints))),
        ];
        // What does not fit beside the figures of scaling is in the lines of JSON.
        if !scaling {
            let norm = |row: &Self| row.norm.map_or_else(|| "-".to_owned(), |norm| format!("{norm:.2e}"));
            columns.push(Column::new("norm", 8, norm));
            columns.extend(Column::posted(|row: &Self| row.job.posted));
        }
        columns.push(Column::new("result", 8, |row: &Self| row.verified.map_or_else(|| "-".to_owned(), verdict)));
        if scaling {
            columns.push(Column::new("path", 6, |row: &Self| row.job.transport.clone()));
            columns.push(Column::new("speedup", 8, |row: &Self| rounded(row.speedup)));
            columns.push(Column::new("efficiency", 10, |row: &Self| rounded(row.efficiency)));
        }
        columns
    }

    /// Returns what was solved, and on what.
    pub fn title(&self) -> String {
        let Self { nx, ny, ctas, threads, .. } = self;
        let check = match self.check.as_str() {
            "serial" => "; compared with a serial solution",
            "single" => "; compared with the solution of one PE",
            _ => "; compared with nothing",
        };
        let scaling =
            self.scaling.as_ref().map(|name| format!("\n# {name} scaling: speedup is that of points per second"));
        let setting = self.job.setting();
        format!(
            "# jacobi: {nx} x {ny} points, {ctas} CTAs x {threads} threads, {setting}{check}{}",
            scaling.unwrap_or_default()
        )
    }
}
