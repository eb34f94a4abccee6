//! The command line.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};
use oxshmem::Config;
use oxshmem_perftest::connection::{self, Connection};
use oxshmem_perftest::error::Error;
use oxshmem_perftest::options::APPLICATION_THREADS;

use crate::mesh::Mesh;

/// Meshes are smaller than what can be counted.
const MAX_SIDE: i64 = 1 << 24;

/// How rows travel to the neighbours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Variant {
    /// Scalar `p`, two values a word, of the rows that are computed first, while the others are
    /// computed.
    P,
    /// Block puts when an iteration is done.
    Put,
    /// Block puts of the rows that are computed first, while the others are computed.
    Overlap,
}

impl Variant {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::P, Self::Put, Self::Overlap];

    /// Returns the name on the command line and in kernels' names.
    pub fn name(self) -> &'static str {
        match self {
            Self::P => "p",
            Self::Put => "put",
            Self::Overlap => "overlap",
        }
    }
}

/// A selection of variants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Variants {
    P,
    Put,
    Overlap,
    All,
}

/// What a result is compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Check {
    /// `serial` for what takes seconds, else `single`.
    Auto,
    /// The solution by one thread of the host.
    Serial,
    /// The solution that each PE computes alone.
    Single,
    /// Nothing.
    Off,
}

/// Which sizes a table of scaling is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Scaling {
    /// The same mesh for all numbers of PEs.
    Strong,
    /// The same rows for each PE.
    Weak,
}

/// Solves Laplace's equation by Jacobi's method, rows of the mesh split over PEs, neighbouring rows
/// exchanged by device code.
///
/// The field starts as 0, its left and right side are held at half a sine wave, its top and bottom
/// at 0. Results are checked. One line per variant is printed.
#[derive(Debug, Clone, Parser)]
#[command(name = "jacobi", version)]
pub struct Options {
    /// PEs to start, when no launcher has started this one; with --scaling the most of them.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub npes: u32,
    /// Columns of the mesh, with the fixed ones.
    #[arg(long, value_name = "X", default_value_t = 1024, value_parser = clap::value_parser!(u64).range(3..=MAX_SIDE as u64))]
    pub nx: u64,
    /// Rows of the mesh, with the fixed ones.
    #[arg(long, value_name = "Y", default_value_t = 1024, value_parser = clap::value_parser!(u64).range(3..=MAX_SIDE as u64))]
    pub ny: u64,
    /// Iterations.
    #[arg(long, value_name = "I", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=1 << 40))]
    pub niter: u64,
    /// How rows travel to the neighbours.
    #[arg(long, value_enum, default_value = "all")]
    variant: Variants,
    /// The norm of the change over all PEs is computed each time after this many iterations; 0:
    /// never.
    #[arg(long, value_name = "K", default_value_t = 100)]
    pub norm_every: u64,
    /// Stop when the norm of the change is not above this.
    #[arg(long, value_name = "NORM", default_value_t = 0.0, value_parser = tolerance)]
    pub tolerance: f64,
    /// Iterations before those that count, to warm up.
    #[arg(short, long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(0..=1 << 30))]
    pub warmup: u64,
    /// What the result is compared with.
    #[arg(long, value_enum, default_value = "auto")]
    pub check: Check,
    /// CTAs; on a GPU one for each multiprocessor unless set.
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 16))]
    pub ctas: Option<u32>,
    /// Threads per CTA; 512 on a GPU unless set. A CTA works on pieces of rows of four times as
    /// many columns.
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=APPLICATION_THREADS))]
    pub threads: Option<u32>,
    #[command(flatten)]
    pub connection: Connection,
    /// Run with 1, 2, ... --npes PEs, one job after the other, and print how the time changes.
    /// Weak: --ny is for one PE.
    #[arg(long, value_enum)]
    pub scaling: Option<Scaling>,
    /// Write one JSON object per line and run to this file.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Draw the field of the last variant into this PNG file; or with --scaling the speedup over
    /// the number of PEs into this SVG file.
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,
    /// Print lines of JSON instead of a table: for the jobs of --scaling.
    #[arg(long, hide = true)]
    pub lines: bool,
    /// Change this value of the last PE's before the check: shows that the check works.
    #[arg(long, value_name = "PLACE", hide = true)]
    pub corrupt: Option<u64>,
}

fn tolerance(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|norm: &f64| norm.is_finite() && *norm >= 0.0)
        .ok_or_else(|| "expected a number from 0 on".to_owned())
}

impl Options {
    /// Returns the mesh.
    pub fn mesh(&self) -> Mesh {
        Mesh { nx: self.nx, ny: self.ny }
    }

    /// Returns the rows of the mesh in a job of `npes` PEs.
    pub fn height(&self, npes: u32) -> u64 {
        match self.scaling {
            Some(Scaling::Weak) => (self.ny - 2) * u64::from(npes) + 2,
            Some(Scaling::Strong) | None => self.ny,
        }
    }

    /// Returns the variants to run.
    pub fn variants(&self) -> Vec<Variant> {
        match self.variant {
            Variants::P => vec![Variant::P],
            Variants::Put => vec![Variant::Put],
            Variants::Overlap => vec![Variant::Overlap],
            Variants::All => Variant::ALL.to_vec(),
        }
    }

    /// Returns what to compare with, decided.
    pub fn check(&self) -> Check {
        self.check_of(self.ny)
    }

    /// Returns the same for a mesh of `ny` rows.
    fn check_of(&self, ny: u64) -> Check {
        /// Points that one thread computes in a few seconds.
        const FEW: u64 = 1 << 32;
        match self.check {
            Check::Auto if self.nx.saturating_mul(ny).saturating_mul(self.niter) <= FEW => Check::Serial,
            Check::Auto => Check::Single,
            check => check,
        }
    }

    /// Refuses what does not go together; the library's configuration.
    ///
    /// # Errors
    /// What is wrong, and what to do instead.
    pub fn config(&self) -> Result<Config, Error> {
        let config = self.connection.config(std::env::vars_os())?;
        let (what, end) =
            if self.scaling.is_some() { ("the speedup is drawn", "svg") } else { ("the field is drawn", "png") };
        if let Some(plot) = self.plot.as_ref().filter(|path| path.extension().is_none_or(|found| found != end)) {
            return Err(Error::Usage(format!(
                "--plot {}: {what} as {}, so the name must end in .{end}",
                plot.display(),
                end.to_uppercase()
            )));
        }
        connection::refuse_null(&config, "no PE would ever get its neighbours' rows")?;
        if self.tolerance > 0.0 && self.norm_every == 0 {
            return Err(Error::Usage("--tolerance needs the norm, and --norm-every 0 computes none".to_owned()));
        }
        if self.scaling.is_some() && self.plot.is_some() && self.npes < 2 {
            return Err(Error::Usage(
                "--plot draws the speedup over the number of PEs: give --scaling at least --npes 2".to_owned(),
            ));
        }
        // With --scaling one PE has the most rows of a mesh that stays as it is, and the most PEs
        // have the largest one that grows.
        for npes in if self.scaling.is_some() { [1, self.npes] } else { [self.npes; 2] } {
            let mesh = Mesh { nx: self.nx, ny: self.height(npes) };
            mesh.check(npes as usize, self.check_of(mesh.ny) == Check::Single, config.heap_max())?;
        }
        Ok(config)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Options, String> {
        let args = std::iter::once("jacobi").chain(line.split_whitespace());
        let options = Options::try_parse_from(args).map_err(|error| error.to_string())?;
        options.config().map_err(|error| error.to_string())?;
        Ok(options)
    }

    #[test]
    fn options_are_read() {
        let options = parse("--npes 3 --nx 10 --ny 20 --niter 5 --variant p --device cpu --transport ibgda").unwrap();
        assert_eq!((options.npes, options.mesh(), options.niter), (3, Mesh { nx: 10, ny: 20 }, 5));
        assert_eq!(options.variants(), [Variant::P]);
        assert_eq!(options.check(), Check::Serial);
        let large = parse("--nx 16384 --ny 16384 --niter 1000").unwrap();
        assert_eq!((large.variants(), large.check()), (Variant::ALL.to_vec(), Check::Single));
    }

    #[test]
    fn what_does_not_fit_is_refused_with_the_reason() {
        for (line, reason) in [
            ("--nx 2", "--nx"),
            ("--threads 769", "1..=768"),
            ("--npes 9 --ny 10", "at most 8 PEs"),
            ("--nx 16000000 --ny 16000000 --check off", "OXSHMEM_HEAP_MAX"),
            ("--variant get", "--variant"),
            ("--tolerance=-1", "from 0 on"),
            ("--tolerance 1e-3 --norm-every 0", "--norm-every"),
            ("--plot field.svg", "end in .png"),
            ("--scaling weak --npes 2 --plot a.png", "end in .svg"),
            ("--hca null", "moves nothing"),
            ("--scaling strong --npes 1 --plot a.svg", "--npes 2"),
            ("--transport tcp", "auto, p2p, ibgda or ibrc"),
        ] {
            let error = parse(line).unwrap_err();
            assert!(error.contains(reason), "{line}: {error}");
        }
    }
}
