//! What a measured way is reported as.

use serde::{Deserialize, Serialize};

use crate::report::{Column, Job, number, rounded, verdict};

/// One way. Fields that do not apply are null in JSON.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// `gups` or `histogram`.
    pub app: String,
    /// `put`, `xor` or `add`: what an update does.
    pub op: String,
    /// `direct` or `aggregate`.
    pub via: String,
    /// The job; what was posted is the sum over all PEs.
    #[serde(flatten)]
    pub job: Job,
    /// Nodes: sets of PEs that reach each other by load and store.
    pub nodes: usize,
    /// CTAs.
    pub ctas: u32,
    /// Threads per CTA.
    pub threads: u32,
    /// Words of the table, over all PEs.
    pub words: u64,
    /// Updates of each PE.
    pub updates: u64,
    /// What places depended on.
    pub seed: u64,
    /// How uneven they were.
    pub skew: u64,
    /// Launches that were timed; one in files of earlier releases.
    #[serde(default = "once")]
    pub rounds: u64,
    /// Milliseconds until all updates of all PEs were complete: the median of the launches.
    pub ms: f64,
    /// 10^9 updates per second, over all PEs.
    pub gups: f64,
    /// Payload bytes that the HCAs moved, over all PEs; null without a network.
    pub payload: Option<u64>,
    /// Bytes of a segment; null without aggregation, as the next four.
    pub segment: Option<u64>,
    /// Microseconds that a record waits.
    pub age_us: Option<u64>,
    /// Writes that left rings, over all PEs.
    pub writes: Option<u64>,
    /// Bytes of records in them.
    pub record_bytes: Option<u64>,
    /// Acknowledgements, over all PEs.
    pub acknowledgements: Option<u64>,
    /// Whether all data was right.
    pub verified: bool,
}

fn once() -> u64 {
    1
}

impl Row {
    /// Returns the columns of the table.
    pub fn columns() -> Vec<Column<Self>> {
        let mut columns = vec![
            Column::new("via", 9, |row: &Self| row.via.clone()),
            Column::new("ms", 8, |row: &Self| rounded(Some(row.ms))),
            Column::new("GUPS", 9, |row: &Self| rounded(Some(row.gups))),
            Column::new("bytes", 11, |row: &Self| number(row.payload)),
        ];
        columns.extend(Column::posted(|row: &Self| row.job.posted));
        columns.push(Column::new("data", 8, |row: &Self| verdict(row.verified)));
        columns
    }

    /// Returns what was measured, and on what.
    pub fn title(&self) -> String {
        let Self { app, op, updates, words, nodes, .. } = self;
        let (npes, setting) = (self.job.npes, self.job.setting());
        format!("# {app}, {op}: {npes} PEs on {nodes} nodes, {updates} updates each, {words} words, {setting}")
    }
}
