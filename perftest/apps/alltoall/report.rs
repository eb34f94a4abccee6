//! What a measured size is reported as.

use oxshmem_perftest::report::{Column, Job, rounded, verdict};
use oxshmem_perftest::stats::Percentiles;
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
    /// `exchange`; with moe `dispatch` (until all tokens have come) and `combine` (until all have
    /// come back and are added up).
    pub phase: String,
    /// The job; what was posted is that of all phases.
    #[serde(flatten)]
    pub job: Job,
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
    /// The times of an iteration, at PE 0.
    #[serde(flatten)]
    pub times: Percentiles,
    /// 10^9 bytes per second that PE 0 sent to other PEs, by the median time.
    pub gbps: Option<f64>,
    /// Whether all data was right.
    pub verified: bool,
}

impl Row {
    /// Returns the columns of the table.
    pub fn columns() -> Vec<Column<Self>> {
        let mut columns = vec![
            Column::new("bytes", 10, |row: &Self| row.bytes.to_string()),
            Column::new("phase", 8, |row: &Self| row.phase.clone()),
            Column::new("iters", 6, |row: &Self| row.iters.to_string()),
        ];
        columns.extend(Column::times(|row: &Self| row.times));
        columns.push(Column::new("GB/s", 6, |row: &Self| rounded(row.gbps)));
        columns.extend(Column::posted(|row: &Self| row.job.posted));
        columns.push(Column::new("data", 8, |row: &Self| verdict(row.verified)));
        columns
    }

    /// Returns what was measured, and on what.
    pub fn title(&self) -> String {
        let moe = match (self.tokens, self.top_k, self.experts, self.seed) {
            (Some(tokens), Some(top), Some(experts), Some(seed)) => {
                format!(", {tokens} tokens each to {top} of {experts} experts (seed {seed})")
            }
            _ => String::new(),
        };
        format!("# alltoall, {} by {}: {} PEs{moe}, {}", self.mode, self.via, self.job.npes, self.job.setting())
    }
}
