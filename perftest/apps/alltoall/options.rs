//! The command line.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};
use oxshmem::Config;
use oxshmem::device::takes_gpu;
use oxshmem_perftest::connection::{self, Connection};
use oxshmem_perftest::error::Error;
use oxshmem_perftest::options::{APPLICATION_THREADS, require_svg, size, sizes};

use crate::routing::Routing;

/// `kMostPes` in kernels.cu.
const MOST_PES: usize = 1024;

/// What is exchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// A message of one size from every PE to every PE.
    Fixed,
    /// Tokens to the experts that were chosen for them, and back.
    Moe,
}

/// What exchanges messages of one size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Via {
    /// Puts with signal, by many CTAs.
    Put,
    /// The same, each CTA or warp that sends through a context of its own.
    Context,
    /// The collective `alltoall`, which one CTA calls.
    Collective,
}

/// All-to-all: every PE sends to every PE, by device code. Data is verified. One line per size is
/// printed, for moe two.
#[derive(Debug, Clone, Parser)]
#[command(name = "alltoall", version)]
pub struct Options {
    /// What is exchanged.
    #[arg(long, value_enum, default_value = "fixed")]
    pub mode: Mode,
    /// fixed: what the messages travel by.
    #[arg(long, value_enum)]
    via: Option<Via>,
    /// PEs to start, when no launcher has started this one.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub npes: u32,
    /// Smallest message from PE to PE in bytes, or with K, M or G; with moe the smallest token.
    #[arg(short = 'b', long, value_name = "SIZE", value_parser = size)]
    min: Option<u64>,
    /// Largest message, or token.
    #[arg(short = 'e', long, value_name = "SIZE", value_parser = size)]
    max: Option<u64>,
    /// What a size is multiplied with to get the next one.
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u64).range(2..=1 << 20))]
    factor: Option<u64>,
    /// Measured iterations of each size.
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    iters: Option<u64>,
    /// Iterations before those, not measured.
    #[arg(short, long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(0..=1 << 20))]
    pub warmup: u64,
    /// CTAs. With fixed, messages of less than 1 KiB are sent by one.
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 16))]
    ctas: Option<u32>,
    /// Threads per CTA, whole warps.
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(32..=APPLICATION_THREADS))]
    threads: Option<u32>,
    /// moe: tokens of each PE.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    tokens: u64,
    /// moe: experts, over all PEs; 8 for each PE unless set.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    experts: Option<u64>,
    /// moe: experts of a token.
    #[arg(long, value_name = "K", default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=1024))]
    top_k: u64,
    /// moe: what the choice of experts depends on.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    pub connection: Connection,
    /// Write one JSON object per line to this file.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Draw the times over the size into this SVG file; needs at least two sizes.
    #[arg(long, value_name = "FILE.svg")]
    pub plot: Option<PathBuf>,
    /// Change this byte of what PE 0 got before it is checked: shows that the check works.
    #[arg(long, value_name = "OFFSET", hide = true)]
    pub corrupt: Option<u64>,
}

/// What does not come from the command line alone.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// Message sizes, ascending.
    pub sizes: Vec<u64>,
    /// Measured iterations.
    pub iters: u64,
    /// CTAs.
    pub ctas: u32,
    /// Threads per CTA.
    pub threads: u32,
    /// The library's configuration.
    pub config: Config,
}

impl Options {
    /// Returns what messages travel by.
    pub fn via(&self) -> Via {
        self.via.unwrap_or(Via::Put)
    }

    /// Returns the choice of experts among `npes` PEs.
    ///
    /// # Errors
    /// More experts for a token than there are, or more PEs than the kernel has room for.
    pub fn routing(&self, npes: usize) -> Result<Routing, Error> {
        if npes > MOST_PES {
            let text = format!("--mode moe takes at most {MOST_PES} PEs, and there are {npes}; use --mode fixed");
            return Err(Error::Usage(text));
        }
        let experts = self.experts.unwrap_or(8 * npes as u64);
        if self.top_k > experts {
            return Err(Error::Usage(format!("--top-k {}: there are only {experts} experts", self.top_k)));
        }
        Ok(Routing { npes, tokens: self.tokens, experts, top: self.top_k, seed: self.seed })
    }

    /// Fills in what was left out, and refuses what does not go together.
    ///
    /// # Errors
    /// What is wrong, and what to do instead.
    pub fn plan(&self) -> Result<Plan, Error> {
        let refuse = |text: String| Err(Error::Usage(text));
        let config = self.connection.config(std::env::vars_os())?;
        let small = !takes_gpu(config.device());
        let (low, high, factor, iters) = match (self.mode, small) {
            (Mode::Fixed, true) => (8, 64 << 10, 8, 50),
            (Mode::Fixed, false) => (8, 4 << 20, 4, 200),
            (Mode::Moe, true) => (2 << 10, 8 << 10, 2, 10),
            (Mode::Moe, false) => (2 << 10, 16 << 10, 2, 200),
        };
        let unit = match self.mode {
            Mode::Fixed => ("messages", 1),
            Mode::Moe => ("tokens", 16),
        };
        let sizes = sizes((self.min, self.max), (low, high), self.factor.unwrap_or(factor), unit)?;
        let threads = self.threads.unwrap_or(if small { 64 } else { 512 });
        if !threads.is_multiple_of(32) {
            return refuse(format!("--threads {threads}: warps of 32 threads send, so give whole ones"));
        }
        if let Some(plot) = &self.plot {
            require_svg(plot)?;
            if sizes.len() < 2 {
                return refuse(
                    "--plot draws times over the size: give it at least two with --min and --max".to_owned(),
                );
            }
        }
        connection::refuse_null(&config, "no message would ever arrive")?;
        if self.via.is_some() && self.mode == Mode::Moe {
            return refuse("--via is for --mode fixed: tokens travel by puts".to_owned());
        }
        self.routing(self.npes as usize)?;
        let iters = self.iters.unwrap_or(iters);
        // Counts of tokens are kept in 32 bits.
        let most = self.tokens.saturating_mul(self.top_k).saturating_mul((iters + self.warmup) * sizes.len() as u64);
        if self.mode == Mode::Moe && most > u64::from(u32::MAX) {
            return refuse(format!(
                "{most} tokens in all iterations of all sizes: lower --tokens, --top-k or --iters to less than 2^32"
            ));
        }
        Ok(Plan { sizes, iters, ctas: self.ctas.unwrap_or(if small { 4 } else { 64 }), threads, config })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<(Options, Plan), String> {
        let args = std::iter::once("alltoall").chain(line.split_whitespace());
        let options = Options::try_parse_from(args).map_err(|error| error.to_string())?;
        let plan = options.plan().map_err(|error| error.to_string())?;
        Ok((options, plan))
    }

    #[test]
    fn options_are_read() {
        let (options, plan) =
            parse("--mode moe --npes 3 -b 32 -e 64 --tokens 5 --experts 7 --top-k 2 --seed 9 -n 4").unwrap();
        assert_eq!((options.mode, plan.sizes, plan.iters), (Mode::Moe, vec![32, 64], 4));
        assert_eq!(options.routing(3).unwrap(), Routing { npes: 3, tokens: 5, experts: 7, top: 2, seed: 9 });
        let (options, plan) = parse("--device cpu").unwrap();
        assert_eq!((options.mode, plan.sizes[0], plan.ctas), (Mode::Fixed, 8, 4));
    }

    #[test]
    fn experts_of_more_pes_than_the_kernel_has_room_for_are_refused() {
        let (options, _) = parse("--mode moe").unwrap();
        assert!(options.routing(MOST_PES).is_ok());
        let error = options.routing(MOST_PES + 1).unwrap_err().to_string();
        assert!(error.contains("at most 1024 PEs, and there are 1025"), "{error}");
    }

    #[test]
    fn what_does_not_fit_is_refused_with_the_reason() {
        for (line, reason) in [
            ("--mode some", "--mode"),
            ("--min 2K --max 1K", "larger than --max"),
            ("--mode moe -b 40 -e 40", "multiples of 16"),
            ("--mode moe --experts 3 --top-k 4", "only 3 experts"),
            ("--mode moe --tokens 1000000 --top-k 8 -n 100000", "2^32"),
            ("--threads 33", "whole ones"),
            ("--threads 800", "32..=768"),
            ("--mode moe --via collective", "--mode fixed"),
            ("--plot a.png", "end in .svg"),
            ("--plot a.svg -b 8 -e 8", "at least two"),
            ("--hca null", "moves nothing"),
            ("--transport tcp", "auto, p2p, ibgda or ibrc"),
        ] {
            let error = parse(line).unwrap_err();
            assert!(error.contains(reason), "{line}: {error}");
        }
    }
}
