//! What contexts take of a PE.

use std::process::ExitCode;

use oxshmem::{ContextCost, ContextError, ContextOptions, Sharing};
use serde::Serialize;

use crate::output::show;

/// Which contexts are asked about.
#[derive(Debug, clap::Args)]
pub struct Question {
    /// The threads that use one at a time: thread, warp, block or device (any threads).
    #[arg(long, value_name = "THREADS", value_parser = sharing, default_value = "block")]
    sharing: Sharing,
    /// Number of contexts.
    #[arg(long, value_name = "N", default_value_t = 1)]
    count: usize,
    /// Blocks of 64 bytes of each send queue.
    #[arg(long, value_name = "N", default_value_t = 1024)]
    depth: u32,
    /// PEs of the team.
    #[arg(short = 'n', long = "npes", value_name = "N", default_value_t = 8)]
    npes: usize,
    /// PEs of the team that have queue pairs: those that are not reached by load and store. All but
    /// one, unless it is given.
    #[arg(long, value_name = "N")]
    far: Option<usize>,
}

fn sharing(text: &str) -> Result<Sharing, String> {
    let all = [Sharing::Thread, Sharing::Warp, Sharing::Block, Sharing::Device];
    let found = all.into_iter().find(|sharing| sharing.to_string() == text);
    found.ok_or_else(|| "expected thread, warp, block or device".into())
}

#[derive(Debug, Serialize)]
struct Report {
    contexts: String,
    npes: usize,
    far: usize,
    queue_pairs: u64,
    bytes: u64,
    bytes_of_each_queue_pair: u64,
}

/// Shows what the contexts take. Exit status 2 where there cannot be such.
pub fn run(question: &Question, json: bool) -> ExitCode {
    match Report::new(question) {
        Ok(report) => ExitCode::from(u8::from(!show(json, &report, || report.text()))),
        Err(error) => {
            eprintln!("oxshmem-info: {error}");
            ExitCode::from(2)
        }
    }
}

impl Report {
    fn new(question: &Question) -> Result<Self, ContextError> {
        let Question { sharing, count, depth, npes, far } = question;
        let options = ContextOptions::new(*sharing).count(*count).depth(*depth);
        let far = far.unwrap_or_else(|| npes.saturating_sub(1));
        let ContextCost { queue_pairs, bytes } = options.cost(*npes, far)?;
        let (none, pairs) = (options.cost(*npes, 0)?.bytes, queue_pairs.max(1));
        Ok(Self {
            contexts: options.to_string(),
            npes: *npes,
            far,
            queue_pairs,
            bytes,
            bytes_of_each_queue_pair: (bytes - none) / pairs,
        })
    }

    fn text(&self) -> String {
        let Self { contexts, npes, far, queue_pairs, bytes, bytes_of_each_queue_pair } = self;
        let mib = *bytes as f64 / f64::from(1 << 20);
        format!(
            "{contexts}, at a PE of a team of {npes}, {far} of which have queue pairs:\n\
             {queue_pairs} queue pairs: contexts x PEs that have them\n\
             {bytes} bytes of the device's memory ({mib:.1} MiB), {bytes_of_each_queue_pair} for each queue pair:\n\
             68 x depth + 68 x landing slots (depth / 8, 64 to 256) + 1152 for records\n"
        )
    }
}
