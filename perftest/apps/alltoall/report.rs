//! What a measured size is reported as.

use oxshmem_perftest::report::{self, Column, line, number, rounded, setting};
use serde::{Deserialize, Serialize};

/// One size. Fields that do not apply are null in JSON.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// `alltoall`.
    pub app: String,
    /// `fixed` or `moe`.
    pub mode: String,
    /// `put` or `collective`: what messages travelled by.
    pub via: String,
    /// `exchange`; with moe `dispatch` (until all tokens have come) and `combine` (until all have come back and are added up).
    pub phase: String,
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
    /// Bytes of a message, or of a token.
    pub bytes: u64,
    /// Tokens of each PE; null with fixed, like the next three.
    pub tokens: Option<u64>,
    /// Experts.
    pub experts: Option<u64>,
    /// Experts of a token.
    pub top_k: Option<u64>,
    /// What their choice depended on.
    pub seed: Option<u64>,
    /// Measured iterations.
    pub iters: u64,
    /// Median time of an iteration at PE 0.
    pub us_p50: f64,
    /// 99th percentile.
    pub us_p99: f64,
    /// 10^9 bytes per second that PE 0 sent to other PEs, by the median time.
    pub gbps: f64,
    /// Work requests that PE 0's HCA executed, in all phases; null without a network.
    pub wqes: Option<u64>,
    /// Doorbells that PE 0 rang; null likewise.
    pub doorbells: Option<u64>,
    /// Whether all data was right.
    pub verified: bool,
    /// GPU model; null without a GPU.
    pub gpu: Option<String>,
    /// The driver's version; null likewise.
    pub driver: Option<String>,
    /// Day, UTC.
    pub date: String,
}

const COLUMNS: [Column<Row>; 9] = [
    Column("bytes", 10, |row| row.bytes.to_string()),
    Column("phase", 8, |row| row.phase.clone()),
    Column("iters", 7, |row| row.iters.to_string()),
    Column("p50 [us]", 10, |row| rounded(Some(row.us_p50))),
    Column("p99 [us]", 10, |row| rounded(Some(row.us_p99))),
    Column("GB/s", 9, |row| rounded(Some(row.gbps))),
    Column("WQEs", 9, |row| number(row.wqes)),
    Column("doorbells", 9, |row| number(row.doorbells)),
    Column("data", 8, |row| if row.verified { "verified" } else { "WRONG" }.to_owned()),
];

/// The titles.
pub fn header() -> String {
    report::header(&COLUMNS)
}

/// What was measured, and on what.
pub fn title(row: &Row) -> String {
    let setting = setting(&row.device, &row.transport, row.hca.as_deref(), row.qps);
    let moe = match (row.tokens, row.top_k, row.experts, row.seed) {
        (Some(tokens), Some(top), Some(experts), Some(seed)) => {
            format!(", {tokens} tokens each to {top} of {experts} experts (seed {seed})")
        }
        _ => String::new(),
    };
    format!("# alltoall, {} by {}: {} PEs{moe}, {setting}", row.mode, row.via, row.npes)
}

impl Row {
    /// The row as a line of the table.
    pub fn text(&self) -> String {
        line(&COLUMNS, self)
    }
}
