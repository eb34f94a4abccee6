//! What measured points are reported as: lines of a table, and lines of JSON.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use oxshmem::{Operations, Pe};
use serde::{Deserialize, Serialize};

use crate::connection::NULL;
use crate::error::Error;
use crate::machine::{self, Gpus};
use crate::output;
use crate::stats::Percentiles;

/// Where figures come from, and what was posted for them: fields that the rows of all programs
/// have.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// `cpu` or `cuda`.
    pub device: String,
    /// `soft`, `mlx5`, `verbs`, or `null` for the HCA that moves nothing; null when no path uses
    /// any.
    pub hca: Option<String>,
    /// How PE 0 reaches the PEs that it works with: `p2p`, `ibgda` or `ibrc`, joined by `+` if it
    /// is not the same for all.
    pub transport: String,
    /// PEs.
    pub npes: usize,
    /// QPs to each peer; null without a network.
    pub qps: Option<u32>,
    /// What PE 0 posted in the measured iterations.
    #[serde(flatten)]
    pub posted: Posted,
    /// GPU model; null without a GPU.
    pub gpu: Option<String>,
    /// The driver's version; null likewise.
    pub driver: Option<String>,
    /// Day, UTC.
    pub date: String,
}

/// Work requests and doorbells.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Posted {
    /// Work requests that the HCA executed; null without a network.
    pub wqes: Option<u64>,
    /// Doorbells that were rung; null likewise.
    pub doorbells: Option<u64>,
}

impl Posted {
    /// Returns what a PE has posted so far, including what a barrier has posted without waiting for
    /// it.
    ///
    /// # Errors
    /// The job has failed.
    pub fn so_far(pe: &Pe) -> Result<Self, Error> {
        pe.quiet()?;
        Ok(Self { wqes: pe.hca_counters().map(|counters| counters.wqes), doorbells: pe.doorbells() })
    }

    /// Returns what was added since `before`.
    pub fn since(self, before: Self) -> Self {
        let added = |before: Option<u64>, after: Option<u64>| Some(after?.saturating_sub(before?));
        Self { wqes: added(before.wqes, self.wqes), doorbells: added(before.doorbells, self.doorbells) }
    }
}

impl Job {
    /// Returns the report of a PE that reaches its partners over `transport`, with nothing posted.
    /// PE 0 asks for the GPU's model and driver.
    pub fn of(pe: &Pe, transport: impl Into<String>) -> Self {
        let gpus = if pe.my_pe() == 0 && pe.gpu().is_some() { Gpus::find() } else { None };
        Self {
            device: pe.device_name().to_owned(),
            hca: pe.hca_name().map(str::to_owned),
            transport: transport.into(),
            npes: pe.n_pes(),
            qps: pe.hca_name().map(|_| pe.config().qps_per_peer()),
            posted: Posted::default(),
            gpu: gpus.as_ref().map(|gpus| gpus.model.clone()),
            driver: gpus.map(|gpus| gpus.driver),
            date: machine::today(),
        }
    }

    /// Returns the same, with what was posted.
    pub fn having(&self, posted: Posted) -> Self {
        Self { posted, ..self.clone() }
    }

    /// Returns which PEs took part and where, for the title of a plot.
    pub fn parties(&self) -> String {
        format!("{} PEs, device {}, {}", self.npes, self.device, self.transport)
    }

    /// Returns how something was measured, for the title of a table: figures of a software model
    /// must not pass for those of hardware.
    pub fn setting(&self) -> String {
        let device = &self.device;
        let transport = if self.npes == 1 { "no other PE" } else { &self.transport };
        let qps = self.qps.unwrap_or_default();
        let hca = self.hca.as_ref().map(|hca| format!(", {hca} HCA, {qps} QPs")).unwrap_or_default();
        let model = if device == "cpu" { " (no hardware: figures of the SIMT executor)" } else { "" };
        format!("device {device}, {transport}{hca}{model}")
    }
}

/// A measured point of a `shmem_*` test of two PEs. Fields that do not apply are null in JSON.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The program.
    pub bench: String,
    /// The job; two of its PEs take part.
    #[serde(flatten)]
    pub job: Job,
    /// CTAs.
    pub ctas: u32,
    /// Threads per CTA.
    pub threads: u32,
    /// `thread`, `warp` or `block`.
    pub scope: String,
    /// The atomic; null in other tests.
    pub op: Option<String>,
    /// Words between elements; null in tests other than `shmem_p_bw`.
    pub stride: Option<u64>,
    /// Payload of one iteration.
    pub bytes: u64,
    /// Measured iterations.
    pub iters: u64,
    /// 10^9 bytes of payload per second; null in latency tests.
    pub gbps: Option<f64>,
    /// 10^6 operations per second; null in latency tests.
    pub mops: Option<f64>,
    /// GB/s at which the HCA executes requests of this size that were posted before, if that was
    /// measured.
    #[serde(default)]
    pub ceiling_gbps: Option<f64>,
    /// The same in million operations per second.
    #[serde(default)]
    pub ceiling_mops: Option<f64>,
    /// The times of an iteration; null in bandwidth tests.
    #[serde(flatten)]
    pub times: Percentiles,
    /// Whether all data was found right.
    pub verified: bool,
}

impl Row {
    /// Returns the columns that a test of this kind fills.
    pub fn columns(latency: bool, network: bool, ceiling: bool) -> Vec<Column<Self>> {
        let mut columns = vec![
            Column::new("bytes", 10, |row: &Self| row.bytes.to_string()),
            Column::new("scope", 6, |row: &Self| row.scope.clone()),
        ];
        if !latency {
            columns.push(Column::new("CTAs", 4, |row: &Self| row.ctas.to_string()));
        }
        columns.push(Column::new("threads", 7, |row: &Self| row.threads.to_string()));
        columns.push(Column::new("iters", 6, |row: &Self| row.iters.to_string()));
        if latency {
            columns.extend(Column::times(|row: &Self| row.times));
        } else {
            columns.push(Column::new("GB/s", 6, |row: &Self| rounded(row.gbps)));
            columns.push(Column::new("M ops/s", 7, |row: &Self| rounded(row.mops)));
        }
        if ceiling {
            columns.push(Column::new("HCA GB/s", 8, |row: &Self| rounded(row.ceiling_gbps)));
            columns.push(Column::new("HCA M/s", 7, |row: &Self| rounded(row.ceiling_mops)));
        } else if network {
            columns.extend(Column::posted(|row: &Self| row.job.posted));
        }
        columns.push(Column::new("data", 8, |row: &Self| match row.job.hca.as_deref() {
            Some(NULL) if !row.verified => "unmoved".to_owned(),
            _ => verdict(row.verified),
        }));
        columns
    }

    /// Returns what was measured, and on what.
    pub fn title(&self) -> String {
        let op = self.op.as_ref().map(|op| format!(", {op}")).unwrap_or_default();
        let stride = self.stride.filter(|stride| *stride != 1);
        let stride = stride.map(|stride| format!(", stride {stride}")).unwrap_or_default();
        format!("# {}{op}{stride}: {} PEs, {}", self.bench, self.job.npes, self.job.setting())
    }
}

/// Returns a row of figures as one line of JSON.
///
/// # Errors
/// A figure is not a number.
pub fn to_json(row: &impl Serialize) -> Result<String, Error> {
    serde_json::to_string(row).map_err(|error| Error::System { what: "writing figures as JSON", source: error.into() })
}

/// A file of JSON lines.
#[derive(Debug)]
pub struct JsonLines {
    path: PathBuf,
    file: File,
}

impl JsonLines {
    /// Creates the file, or empties it.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn create(path: &Path) -> Result<Self, Error> {
        let file = File::create(path).map_err(|source| Error::Output { path: path.to_owned(), source })?;
        Ok(Self { path: path.to_owned(), file })
    }

    /// Appends a line, at once.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write(&mut self, row: &impl Serialize) -> Result<(), Error> {
        let line = to_json(row)?;
        writeln!(self.file, "{line}").map_err(|source| Error::Output { path: self.path.clone(), source })
    }
}

/// A column of a table.
pub struct Column<R> {
    title: &'static str,
    width: usize,
    cell: Box<dyn Fn(&R) -> String>,
}

impl<R> std::fmt::Debug for Column<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Column").field("title", &self.title).field("width", &self.width).finish_non_exhaustive()
    }
}

impl<R: 'static> Column<R> {
    /// Returns one with this title and width, and what it shows of a row.
    pub fn new(title: &'static str, width: usize, cell: impl Fn(&R) -> String + 'static) -> Self {
        Self { title, width, cell: Box::new(cell) }
    }

    /// Returns the columns of times.
    pub fn times(of: fn(&R) -> Percentiles) -> [Self; 2] {
        [
            Self::new("p50 [us]", 8, move |row| rounded(of(row).us_p50)),
            Self::new("p99 [us]", 8, move |row| rounded(of(row).us_p99)),
        ]
    }

    /// Returns the columns of what was posted.
    pub fn posted(of: fn(&R) -> Posted) -> [Self; 2] {
        [
            Self::new("WQEs", 8, move |row| number(of(row).wqes)),
            Self::new("doorbells", 9, move |row| number(of(row).doorbells)),
        ]
    }
}

/// Returns what a table says of data.
pub fn verdict(verified: bool) -> String {
    if verified { "verified" } else { "WRONG" }.to_owned()
}

/// Returns a number, or that there is none.
pub fn number<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

/// Returns the value with four significant digits, or as many as stand before the point.
pub fn rounded(value: Option<f64>) -> String {
    let Some(value) = value else { return "-".to_owned() };
    let before = if value.abs() < 1.0 { 1 } else { value.abs().log10() as usize + 1 };
    format!("{value:.*}", 4usize.saturating_sub(before))
}

/// Rows, each printed as a line of a table and written as a line of JSON as soon as it is there.
#[derive(Debug)]
pub struct Table<R> {
    title: fn(&R) -> String,
    columns: Vec<Column<R>>,
    json: Option<JsonLines>,
    rows: Vec<R>,
}

impl<R: Serialize> Table<R> {
    /// Returns an empty table, whose first row is what `title` says above it; `json` is the file
    /// for lines of JSON.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn new(title: fn(&R) -> String, columns: Vec<Column<R>>, json: Option<&Path>) -> Result<Self, Error> {
        Ok(Self { title, columns, json: json.map(JsonLines::create).transpose()?, rows: Vec::new() })
    }

    /// Shows a row; before the first one the title and those of the columns.
    ///
    /// # Errors
    /// Standard output or the JSON file cannot be written.
    pub fn add(&mut self, row: R) -> Result<(), Error> {
        if self.rows.is_empty() {
            output::line(format_args!("{}\n{}", output::folded(&(self.title)(&row), "# "), self.header()))?;
        }
        output::line(format_args!("{}", self.line(&row)))?;
        if let Some(json) = &mut self.json {
            json.write(&row)?;
        }
        self.rows.push(row);
        Ok(())
    }

    /// Returns the rows so far.
    pub fn rows(&self) -> &[R] {
        &self.rows
    }

    /// Returns the titles of the columns.
    fn header(&self) -> String {
        self.aligned(|column| column.title.to_owned())
    }

    /// Returns a row as a line.
    fn line(&self, row: &R) -> String {
        self.aligned(|column| (column.cell)(row))
    }

    /// Returns what `cell` returns for each column. Widths are fixed, so lines can be printed one
    /// by one.
    fn aligned(&self, cell: impl Fn(&Column<R>) -> String) -> String {
        self.columns.iter().map(|column| format!("{:>1$}", cell(column), column.width)).collect::<Vec<_>>().join(" ")
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn job(transport: &str) -> Job {
        Job {
            device: "cpu".into(),
            hca: Some("soft".into()),
            transport: transport.into(),
            npes: 2,
            qps: Some(4),
            posted: Posted { wqes: Some(400), doorbells: Some(37) },
            gpu: None,
            driver: None,
            date: "2026-11-21".into(),
        }
    }

    pub(crate) fn row(scope: &str, bytes: u64, value: f64) -> Row {
        Row {
            bench: "shmem_put_bw".into(),
            job: job("ibgda"),
            ctas: 4,
            threads: 32,
            scope: scope.into(),
            op: None,
            stride: None,
            bytes,
            iters: 100,
            gbps: Some(value),
            mops: Some(value * 1000.0),
            ceiling_gbps: None,
            ceiling_mops: None,
            times: Percentiles::default(),
            verified: true,
        }
    }

    #[test]
    fn json_has_every_field() {
        let mut value = serde_json::to_value(row("warp", 64, 1.5)).unwrap();
        let object = value.as_object_mut().unwrap();
        let fields = "bench device hca transport npes ctas threads scope bytes iters gbps mops us_p50 us_p99 us_mean wqes doorbells verified \
                      qps op stride gpu driver date ceiling_gbps ceiling_mops";
        for field in fields.split_whitespace() {
            assert!(object.remove(field).is_some(), "{field}");
        }
        assert!(object.is_empty(), "{object:?}");
    }

    fn table(latency: bool, network: bool) -> Table<Row> {
        Table::new(Row::title, Row::columns(latency, network, false), None).unwrap()
    }

    #[test]
    fn titles_say_how_it_was_measured() {
        let setting = "device cpu, ibgda, soft HCA, 4 QPs (no hardware: figures of the SIMT executor)";
        assert_eq!(job("ibgda").setting(), setting);
        let on_gpu = Job { device: "cuda".into(), hca: None, ..job("p2p") };
        assert_eq!(on_gpu.setting(), "device cuda, p2p");
        assert_eq!(Job { npes: 1, transport: "none".into(), ..on_gpu }.setting(), "device cuda, no other PE");
    }

    #[test]
    fn what_was_posted_is_a_difference() {
        let (before, after) =
            (Posted { wqes: Some(3), doorbells: None }, Posted { wqes: Some(10), doorbells: Some(1) });
        assert_eq!(after.since(before), Posted { wqes: Some(7), doorbells: None });
    }

    #[test]
    fn columns_are_aligned_and_fit_a_terminal() {
        for (latency, network) in [(false, false), (false, true), (true, false), (true, true)] {
            let table = table(latency, network);
            let header = table.header();
            assert!(header.len() <= output::WIDTH, "{header}");
            for row in [row("block", 1, 0.000_012_3), row("thread", 4 << 20, 123.456)] {
                assert_eq!(table.line(&row).len(), header.len());
            }
        }
        let ceiling = Table::<Row>::new(Row::title, Row::columns(false, true, true), None).unwrap().header();
        assert!(ceiling.len() <= output::WIDTH, "{ceiling}");
        let table = table(false, true);
        assert_eq!(
            table.line(&row("warp", 64, 1.5)).split_whitespace().collect::<Vec<_>>(),
            ["64", "warp", "4", "32", "100", "1.500", "1500", "400", "37", "verified"]
        );
        let wrong = Row { verified: false, ..row("warp", 64, 1.5) };
        assert!(table.line(&wrong).ends_with("WRONG"));
        let job = Job { hca: Some(NULL.into()), ..job("ibgda") };
        assert!(table.line(&Row { job, ..wrong }).ends_with("unmoved"));
    }

    #[test]
    fn figures_keep_their_digits() {
        for (value, text) in
            [(0.0123, "0.012"), (1.2345, "1.234"), (12.345, "12.35"), (123.45, "123.5"), (12345.6, "12346")]
        {
            assert_eq!(rounded(Some(value)), text);
        }
        assert_eq!(rounded(None), "-");
    }

    #[test]
    fn json_lines_can_be_read_back() {
        let path = std::env::temp_dir().join(format!("oxshmem-perftest-{}.jsonl", std::process::id()));
        let rows = [row("warp", 64, 1.5), row("block", 128, 2.5)];
        let mut lines = JsonLines::create(&path).unwrap();
        rows.iter().for_each(|row| lines.write(row).unwrap());
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let read: Vec<Row> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(read, rows);
    }

    #[test]
    fn a_file_that_cannot_be_written_is_named() {
        let error = JsonLines::create(Path::new("/nonexistent/x.jsonl")).unwrap_err().to_string();
        assert!(error.contains("/nonexistent/x.jsonl"), "{error}");
    }
}
