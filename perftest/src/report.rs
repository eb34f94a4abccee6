//! What a measured point is reported as: a line of the table, and a line of JSON.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::run::NULL;

/// One measured point. Fields that do not apply are null in JSON.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The program.
    pub bench: String,
    /// `cpu` or `cuda`.
    pub device: String,
    /// `soft`, `mlx5`, or `null` for the HCA that moves nothing; no value when the path uses none.
    pub hca: Option<String>,
    /// How PE 0 reaches PE 1: `p2p`, `ibgda` or `ibrc`.
    pub transport: String,
    /// PEs in the job; two take part.
    pub npes: usize,
    /// QPs to each peer; null without a network.
    pub qps: Option<u32>,
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
    /// GB/s at which the HCA executes requests of this size that were posted before, if that was measured.
    #[serde(default)]
    pub ceiling_gbps: Option<f64>,
    /// The same in million operations per second.
    #[serde(default)]
    pub ceiling_mops: Option<f64>,
    /// Median time of an iteration; null in bandwidth tests.
    pub us_p50: Option<f64>,
    /// 99th percentile of it.
    pub us_p99: Option<f64>,
    /// Work requests that PE 0's HCA executed; null without a network.
    pub wqes: Option<u64>,
    /// Doorbells that PE 0 rang; null without a network.
    pub doorbells: Option<u64>,
    /// Whether all data was found right.
    pub verified: bool,
    /// GPU model; null without a GPU, or without nvidia-smi.
    pub gpu: Option<String>,
    /// The driver's version; null likewise.
    pub driver: Option<String>,
    /// Day, UTC.
    pub date: String,
}

impl Row {
    /// The row as one line of JSON.
    ///
    /// # Errors
    /// A figure is not a number.
    pub fn to_json(&self) -> Result<String, Error> {
        to_json(self)
    }
}

/// A row of figures as one line of JSON.
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

/// A column of a table: its title, its width, and what it shows of a row.
#[derive(Debug)]
pub struct Column<R>(pub &'static str, pub usize, pub fn(&R) -> String);

/// A line of a table: what `cell` answers for each column, aligned.
fn aligned<'a, R: 'a>(columns: impl IntoIterator<Item = &'a Column<R>>, cell: impl Fn(&Column<R>) -> String) -> String {
    columns.into_iter().map(|column| format!("{:>1$}", cell(column), column.1)).collect::<Vec<_>>().join("  ")
}

/// The titles of columns.
pub fn header<'a, R: 'a>(columns: impl IntoIterator<Item = &'a Column<R>>) -> String {
    aligned(columns, |column| column.0.to_owned())
}

/// A row as a line of the table.
pub fn line<'a, R: 'a>(columns: impl IntoIterator<Item = &'a Column<R>>, row: &R) -> String {
    aligned(columns, |column| (column.2)(row))
}

/// How something was measured, for the title of a table: figures of a software model must not pass for those of hardware.
pub fn setting(device: &str, transport: &str, hca: Option<&str>, qps: Option<u32>) -> String {
    let hca = hca.map(|hca| format!(", {hca} HCA, {} QPs", qps.unwrap_or_default())).unwrap_or_default();
    let model = if device == "cpu" { " (no hardware: figures of the SIMT executor)" } else { "" };
    format!("device {device}, {transport}{hca}{model}")
}

/// A table whose lines can be printed one by one, since widths are fixed.
pub struct Table {
    columns: Vec<Column<Row>>,
}

impl std::fmt::Debug for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.columns.iter().map(|column| column.0)).finish()
    }
}

/// A number, or that there is none.
pub fn number<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

/// With four significant digits, or as many as stand before the point.
pub fn rounded(value: Option<f64>) -> String {
    let Some(value) = value else { return "-".to_owned() };
    let before = if value.abs() < 1.0 { 1 } else { value.abs().log10() as usize + 1 };
    format!("{value:.*}", 4usize.saturating_sub(before))
}

impl Table {
    /// The columns that a test of this kind fills.
    pub fn new(latency: bool, network: bool, ceiling: bool) -> Self {
        let column = Column::<Row>;
        let mut columns = vec![
            column("bytes", 10, |row| row.bytes.to_string()),
            column("scope", 6, |row| row.scope.clone()),
            column("CTAs", 4, |row| row.ctas.to_string()),
            column("threads", 7, |row| row.threads.to_string()),
            column("iters", 7, |row| row.iters.to_string()),
        ];
        if latency {
            columns.push(column("p50 [us]", 10, |row| rounded(row.us_p50)));
            columns.push(column("p99 [us]", 10, |row| rounded(row.us_p99)));
        } else {
            columns.push(column("GB/s", 9, |row| rounded(row.gbps)));
            columns.push(column("M ops/s", 9, |row| rounded(row.mops)));
        }
        if ceiling {
            columns.push(column("HCA GB/s", 9, |row| rounded(row.ceiling_gbps)));
            columns.push(column("HCA M/s", 9, |row| rounded(row.ceiling_mops)));
        }
        if network {
            columns.push(column("WQEs", 9, |row| number(row.wqes)));
            columns.push(column("doorbells", 9, |row| number(row.doorbells)));
        }
        columns.push(column("data", 8, |row| {
            match (row.verified, row.hca.as_deref()) {
                (true, _) => "verified",
                (false, Some(NULL)) => "unmoved",
                (false, _) => "WRONG",
            }
            .to_owned()
        }));
        Self { columns }
    }

    /// The titles.
    pub fn header(&self) -> String {
        header(&self.columns)
    }

    /// A row.
    pub fn row(&self, row: &Row) -> String {
        line(&self.columns, row)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn row(scope: &str, bytes: u64, value: f64) -> Row {
        Row {
            bench: "shmem_put_bw".into(),
            device: "cpu".into(),
            hca: Some("soft".into()),
            transport: "ibgda".into(),
            npes: 2,
            qps: Some(4),
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
            us_p50: None,
            us_p99: None,
            wqes: Some(400),
            doorbells: Some(37),
            verified: true,
            gpu: None,
            driver: None,
            date: "2026-11-21".into(),
        }
    }

    #[test]
    fn json_has_every_field() {
        let mut value = serde_json::to_value(row("warp", 64, 1.5)).unwrap();
        let object = value.as_object_mut().unwrap();
        let fields = "bench device hca transport npes ctas threads scope bytes iters gbps mops us_p50 us_p99 wqes doorbells verified \
                      qps op stride gpu driver date ceiling_gbps ceiling_mops";
        for field in fields.split_whitespace() {
            assert!(object.remove(field).is_some(), "{field}");
        }
        assert!(object.is_empty(), "{object:?}");
    }

    #[test]
    fn columns_are_aligned() {
        for (latency, network) in [(false, false), (false, true), (true, false), (true, true)] {
            let table = Table::new(latency, network, false);
            let header = table.header();
            for row in [row("block", 1, 0.000_012_3), row("thread", 4 << 20, 123.456)] {
                assert_eq!(table.row(&row).len(), header.len());
            }
        }
        let table = Table::new(false, true, false);
        assert_eq!(
            table.row(&row("warp", 64, 1.5)).split_whitespace().collect::<Vec<_>>(),
            ["64", "warp", "4", "32", "100", "1.500", "1500", "400", "37", "verified"]
        );
        let wrong = Row { verified: false, ..row("warp", 64, 1.5) };
        assert!(table.row(&wrong).ends_with("WRONG"));
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
