//! The command line.

use std::path::{Path, PathBuf};

use clap::{CommandFactory, FromArgMatches, Parser};
use oxshmem::Config;
use oxshmem::config::Hca;
use oxshmem::device::takes_gpu;

use crate::atomic::AtomicOp;
use crate::bench::{Bench, Scope, Scopes};
use crate::connection::Connection;
use crate::error::Error;

/// The most threads of a CTA.
const MAX_THREADS: u32 = 1024;
/// The longest message.
const MAX_BYTES: u64 = 1 << 40;
/// The most bytes between two elements of `--stride`, over all.
const MAX_HEAP: u64 = 1 << 42;

#[derive(Debug, Clone, Parser)]
struct Arguments {
    /// Smallest message in bytes, or with K, M or G.
    #[arg(short = 'b', long, value_name = "SIZE", value_parser = size)]
    min: Option<u64>,
    /// Largest message.
    #[arg(short = 'e', long, value_name = "SIZE", value_parser = size)]
    max: Option<u64>,
    /// What a size is multiplied with to get the next one.
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u64).range(2..=1 << 20))]
    factor: Option<u64>,
    /// Measured iterations of each size.
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1 << 30))]
    iters: Option<u64>,
    /// Iterations before those, not measured.
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u64).range(0..=1 << 30))]
    warmup: Option<u64>,
    /// CTAs that share each message.
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 16))]
    ctas: Option<u32>,
    /// Threads per CTA.
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_THREADS)))]
    threads: Option<u32>,
    /// Threads that call an operation together.
    #[arg(long, value_enum, default_value = "all")]
    scope: Scopes,
    #[command(flatten)]
    connection: Connection,
    /// PEs to start, when no launcher has started this one. PE 0 and PE 1 take part, others wait.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(2..=1024))]
    npes: u32,
    /// Write one JSON object per line and measured point to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw the figures over the message size into this SVG file.
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// Words from one element to the next: with 1 lanes put to adjacent words and combine, with
    /// more they do not.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    stride: Option<u64>,
    /// Microseconds of silence before each iteration: shows what it costs when the threads that
    /// serve it have fallen asleep (shmem_p_latency).
    #[arg(long, value_name = "MICROSECONDS", value_parser = clap::value_parser!(u64).range(..=1_000_000))]
    pause: Option<u64>,
    /// Measure also how fast the HCA executes requests of this size that were posted before
    /// (shmem_p_bw and shmem_put_bw, over IBGDA).
    #[arg(long)]
    ceiling: bool,
    /// The atomic.
    #[arg(long, value_enum)]
    op: Option<AtomicOp>,
    /// Change this byte of what arrived before it is checked: shows that the check works.
    #[arg(long, value_name = "OFFSET", hide = true)]
    corrupt: Option<u64>,
}

/// What to measure, and how; every default filled in.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// The test.
    pub bench: Bench,
    /// Message sizes, ascending.
    pub sizes: Vec<u64>,
    /// Scopes to run in.
    pub scopes: Vec<Scope>,
    /// Measured iterations.
    pub iters: u64,
    /// Iterations before.
    pub warmup: u64,
    /// CTAs.
    pub ctas: u32,
    /// Threads per CTA, in scopes where that is free.
    pub threads: u32,
    /// Words between the elements of p.
    pub stride: u64,
    /// Microseconds of silence before each iteration.
    pub pause: u64,
    /// The atomic.
    pub op: Option<AtomicOp>,
    /// Whether to measure the HCA's own ceiling as well.
    pub ceiling: bool,
    /// PEs to start.
    pub npes: u32,
    /// An HCA that must be in use.
    pub hca: Option<Hca>,
    /// Where JSON lines go.
    pub json: Option<PathBuf>,
    /// Where the plot goes.
    pub plot: Option<PathBuf>,
    /// A byte to change before the check.
    pub corrupt: Option<u64>,
    /// The library's configuration.
    pub config: Config,
}

/// Returns a size on a command line: bytes, or a number with K, M or G (powers of 1024).
///
/// # Errors
/// The text is not a size, or the size is less than 1 byte or more than 1024G.
pub fn size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match text[digits.len()..].to_ascii_uppercase().as_str() {
        "" | "B" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        _ => return Err("expected bytes, or a number with K, M or G, like 4096, 64K or 1M".to_owned()),
    };
    let number: u64 =
        digits.parse().map_err(|_| "expected bytes, or a number with K, M or G, like 4096, 64K or 1M".to_owned())?;
    match number.checked_mul(1 << shift) {
        Some(bytes) if (1..=MAX_BYTES).contains(&bytes) => Ok(bytes),
        _ => Err("expected 1 byte to 1024G".to_owned()),
    }
}

/// Threads of a CTA that the applications' kernels are compiled for (kernels/grid.h).
pub const APPLICATION_THREADS: i64 = 768;

/// Returns every size from `--min` to `--max`, each `factor` times the one before; the last itself
/// is always among them. What was not `given` is taken from `defaults`, as far as they go with what
/// was. Sizes are called `what`, and are multiples of `unit`.
///
/// # Errors
/// The smallest is larger than the largest, or one of them is not a multiple.
pub fn sizes(
    (min, max): (Option<u64>, Option<u64>),
    defaults: (u64, u64),
    factor: u64,
    (what, unit): (&str, u64),
) -> Result<Vec<u64>, Error> {
    let min = min.unwrap_or_else(|| defaults.0.min(max.unwrap_or(u64::MAX)));
    let max = max.unwrap_or_else(|| defaults.1.max(min));
    if min > max {
        return Err(Error::Usage(format!("--min {min} is larger than --max {max}")));
    }
    if let Some(odd) = [min, max].into_iter().find(|size| size % unit != 0) {
        return Err(Error::Usage(format!("{odd} bytes: {what} must be multiples of {unit} bytes")));
    }
    Ok(ascending(min, max, factor))
}

/// Refuses a file that is written at the end if its folder does not exist, or the name is a
/// folder's: nothing is measured in vain then.
///
/// # Errors
/// Fails if the file cannot be there.
pub fn require_place(option: &str, file: &Path) -> Result<(), Error> {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let why = if file.is_dir() {
        "it is a folder; give a file".to_owned()
    } else if !folder.is_dir() {
        format!("the folder {} does not exist; make it, or give another file", folder.display())
    } else {
        return Ok(());
    };
    Err(Error::Usage(format!("{option} {}: {why}", file.display())))
}

/// Refuses the file of `--plot` if it is not named as one of SVG, or cannot be where it is to be.
///
/// # Errors
/// The name does not end in .svg.
pub fn require_svg(plot: &Path) -> Result<(), Error> {
    if plot.extension().is_none_or(|end| end != "svg") {
        let why = "plots are SVG files, so the name must end in .svg";
        return Err(Error::Usage(format!("--plot {}: {why}", plot.display())));
    }
    require_place("--plot", plot)
}

fn ascending(min: u64, max: u64, factor: u64) -> Vec<u64> {
    let mut sizes: Vec<u64> =
        std::iter::successors(Some(min), |size| size.checked_mul(factor)).take_while(|size| *size < max).collect();
    sizes.push(max);
    sizes
}

impl Options {
    /// Returns what the command line of `bench`'s program may have.
    pub fn command(bench: Bench) -> clap::Command {
        let mut command =
            Arguments::command().name(bench.name()).version(env!("CARGO_PKG_VERSION")).about(bench.about());
        if !bench.is_atomic() {
            command = command.mut_arg("op", |arg| arg.hide(true));
        }
        if bench != Bench::PBw {
            command = command.mut_arg("stride", |arg| arg.hide(true));
        }
        if bench != Bench::PLatency {
            command = command.mut_arg("pause", |arg| arg.hide(true));
        }
        command
    }

    /// Reads the command line of `bench`'s program, `args` with the program's name first. Errors,
    /// help and version come as clap's.
    ///
    /// # Errors
    /// Arguments that cannot be read or do not go together, or a configuration that is refused.
    pub fn parse(
        bench: Bench,
        args: impl IntoIterator<Item = impl Into<std::ffi::OsString> + Clone>,
    ) -> Result<Self, clap::Error> {
        Self::parse_with(bench, args, std::env::vars_os())
    }

    fn parse_with<K: Into<std::ffi::OsString>, V: Into<std::ffi::OsString>>(
        bench: Bench,
        args: impl IntoIterator<Item = impl Into<std::ffi::OsString> + Clone>,
        vars: impl IntoIterator<Item = (K, V)>,
    ) -> Result<Self, clap::Error> {
        let mut command = Self::command(bench);
        let matches = command.try_get_matches_from_mut(args)?;
        let arguments = Arguments::from_arg_matches(&matches)?;
        Self::build(bench, arguments, vars)
            .map_err(|error| command.error(clap::error::ErrorKind::ValueValidation, error))
    }

    fn build<K: Into<std::ffi::OsString>, V: Into<std::ffi::OsString>>(
        bench: Bench,
        arguments: Arguments,
        vars: impl IntoIterator<Item = (K, V)>,
    ) -> Result<Self, Error> {
        let refuse = |text: String| Err(Error::Usage(text));
        let config = arguments.connection.config(vars)?;
        let defaults = bench.defaults(!takes_gpu(config.device()));

        let sizes = match bench.only_size() {
            Some(only) => {
                if arguments.min.or(arguments.max).is_some_and(|size| size != only)
                    || arguments.max.is_some_and(|max| max != only)
                {
                    return refuse(format!(
                        "{} has one message size, {only} bytes; leave --min and --max out",
                        bench.name()
                    ));
                }
                vec![only]
            }
            None => sizes(
                (arguments.min, arguments.max),
                (defaults.min, defaults.max),
                arguments.factor.unwrap_or(defaults.factor),
                (&format!("sizes of {}", bench.name()), bench.unit()),
            )?,
        };
        let scopes = arguments.scope.of(bench.scopes());
        if let Some(scope) = scopes.iter().find(|scope| !bench.scopes().contains(scope)) {
            return refuse(format!("{} has thread scope only, not {}", bench.name(), scope.name()));
        }
        if !bench.takes_ctas() && arguments.ctas.is_some_and(|ctas| ctas != 1) {
            return refuse(format!("{} runs in one CTA; leave --ctas out", bench.name()));
        }
        let threads = arguments.threads.unwrap_or(defaults.threads);
        if arguments.threads.is_some_and(|threads| threads != 1)
            && !scopes.iter().any(|scope| bench.takes_threads(*scope))
        {
            return refuse(format!(
                "--threads {threads}: with this scope, how many threads {} runs is not free",
                bench.name()
            ));
        }
        if arguments.stride.is_some() && bench != Bench::PBw {
            return refuse(format!("{} has no --stride; shmem_p_bw has", bench.name()));
        }
        if arguments.pause.is_some() && bench != Bench::PLatency {
            return refuse(format!("{} has no --pause; shmem_p_latency has", bench.name()));
        }
        if arguments.ceiling && !matches!(bench, Bench::PBw | Bench::PutBw) {
            return refuse(format!("{} has no --ceiling; shmem_p_bw and shmem_put_bw have", bench.name()));
        }
        if arguments.op.is_some() && !bench.is_atomic() {
            return refuse(format!("{} has no --op; the atomic tests have", bench.name()));
        }
        if arguments.plot.is_some() && sizes.len() < 2 {
            return refuse(match bench.only_size() {
                Some(only) => format!(
                    "--plot draws figures over the message size, and {} has only one, {only} bytes",
                    bench.name()
                ),
                None => {
                    "--plot draws figures over the message size: give it at least two with --min and --max".to_owned()
                }
            });
        }
        arguments.plot.as_deref().map_or(Ok(()), require_svg)?;
        let stride = arguments.stride.unwrap_or(1);
        let largest = sizes.last().copied().unwrap_or_default();
        if largest.saturating_mul(stride) > MAX_HEAP {
            return refuse(format!("{largest} bytes with --stride {stride} need more than {MAX_HEAP} bytes of heap"));
        }
        let iters = arguments.iters.unwrap_or(defaults.iters);
        let warmup = arguments.warmup.unwrap_or(defaults.warmup);
        if bench.is_atomic() && largest.saturating_mul(iters + warmup + 1) > MAX_HEAP {
            return refuse(format!(
                "{iters} iterations of {largest} bytes fetch more than {MAX_HEAP} bytes; lower --iters or --max"
            ));
        }
        Ok(Self {
            bench,
            sizes,
            scopes,
            iters,
            warmup,
            ctas: if bench.takes_ctas() { arguments.ctas.unwrap_or(defaults.ctas) } else { 1 },
            threads,
            stride,
            pause: arguments.pause.unwrap_or(0),
            op: arguments.op.or(bench.default_op()),
            ceiling: arguments.ceiling,
            npes: arguments.npes,
            hca: arguments.connection.hca,
            json: arguments.json,
            plot: arguments.plot,
            corrupt: arguments.corrupt,
            config,
        })
    }

    /// Returns the iterations of a point: those before the measured ones, these, and in a bandwidth
    /// test the one that is checked.
    pub fn iterations(&self) -> u64 {
        self.warmup + self.iters + u64::from(!self.bench.is_latency())
    }

    /// Returns the threads per CTA in `scope`.
    pub fn threads_in(&self, scope: Scope) -> u32 {
        match scope {
            _ if self.bench.takes_threads(scope) => self.threads,
            Scope::Warp => 32,
            _ => 1,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use oxshmem::config::{Device, Transport};
    use proptest::prelude::*;

    fn parse(bench: Bench, args: &str) -> Result<Options, String> {
        let args = std::iter::once(bench.name()).chain(args.split_whitespace());
        Options::parse_with(bench, args, [("OXSHMEM_QP_DEPTH", "256")]).map_err(|error| error.to_string())
    }

    #[test]
    fn sizes_take_suffixes() {
        for (text, bytes) in [("1", 1), ("4096", 4096), ("64K", 65536), ("2m", 2 << 20), ("1G", 1 << 30), ("8B", 8)] {
            assert_eq!(size(text), Ok(bytes));
        }
        for text in ["", "K", "-1", "0", "1.5K", "1T", "2000G", "99999999999999999999", "1KK", " 1"] {
            assert!(size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn defaults_are_filled_in() {
        for bench in Bench::ALL {
            let options = parse(bench, "--device cpu").unwrap();
            let defaults = bench.defaults(true);
            assert_eq!((options.iters, options.warmup, options.npes), (defaults.iters, defaults.warmup, 2));
            assert_eq!(options.sizes.first(), Some(&defaults.min));
            assert_eq!(options.sizes.last(), Some(&defaults.max));
            assert_eq!(options.scopes, bench.scopes());
            assert_eq!(options.config.send_queue_depth(2), 256);
            assert_eq!(options.op.is_some(), bench.is_atomic());
        }
        assert!(
            parse(Bench::PutBw, "--device cuda").unwrap().sizes.len()
                > parse(Bench::PutBw, "--device cpu").unwrap().sizes.len()
        );
    }

    #[test]
    fn options_override_defaults() {
        let line = "-b 8 -e 1K -f 4 -n 7 -w 0 -c 3 -t 96 --scope warp --device cpu --transport p2p --hca soft --qps 2 --npes 5 \
                    --json a.jsonl --plot b.svg";
        let options = parse(Bench::PutBw, line).unwrap();
        assert_eq!(options.sizes, [8, 32, 128, 512, 1024]);
        assert_eq!((options.iters, options.warmup, options.ctas, options.threads, options.npes), (7, 0, 3, 96, 5));
        assert_eq!(options.scopes, [Scope::Warp]);
        assert_eq!((options.config.device(), options.config.transport()), (Device::Cpu, Transport::P2p));
        assert_eq!((options.config.hca(), options.config.qps_per_peer()), (&Hca::Soft, 2));
        assert!(options.json.is_some() && options.plot.is_some());
        assert_eq!(parse(Bench::PBw, "--stride 16").unwrap().stride, 16);
        assert_eq!(parse(Bench::AtomicBw, "--op compare_swap").unwrap().op, Some(AtomicOp::CompareSwap));
    }

    #[test]
    fn what_does_not_fit_is_refused_with_the_reason() {
        for (bench, line, reason) in [
            (Bench::PutBw, "--min 2K --max 1K", "larger than --max"),
            (Bench::PutBw, "--min 7Q", "like 4096, 64K or 1M"),
            (Bench::PutBw, "--factor 1", "--factor"),
            (Bench::PutBw, "--iters 0", "--iters"),
            (Bench::PutBw, "--threads 2000", "--threads"),
            (Bench::PutBw, "--npes 1", "--npes"),
            (Bench::PutBw, "--device gpu", "auto, cpu or cuda"),
            (Bench::PutBw, "--transport tcp", "auto, p2p, ibgda or ibrc"),
            (Bench::PutBw, "--hca nic", "expected auto, soft, null, mlx5 or verbs"),
            (Bench::PutBw, "--qps 65", "OXSHMEM_QPS_PER_PEER"),
            (Bench::PutBw, "--scope grid", "--scope"),
            (Bench::PutBw, "--op inc", "has no --op"),
            (Bench::PutBw, "--stride 2", "has no --stride"),
            (Bench::GetBw, "--ceiling", "has no --ceiling"),
            (Bench::PutBw, "--nonsense", "--nonsense"),
            (Bench::PutBw, "--plot p.png --min 8 --max 64", "end in .svg"),
            (Bench::PutBw, "--plot p.svg --min 8 --max 8", "at least two"),
            (Bench::PutBw, "--plot /nonexistent/p.svg --min 8 --max 64", "the folder /nonexistent does not exist"),
            (Bench::SignalPingPong, "--plot p.svg", "only one"),
            (Bench::SignalPingPong, "--max 16", "one message size"),
            (Bench::SignalPingPong, "--threads 32", "not free"),
            (Bench::PBw, "--scope warp", "thread scope only"),
            (Bench::PBw, "--min 12", "multiples of 8 bytes"),
            (Bench::PutLatency, "--ctas 2", "one CTA"),
            (Bench::PutLatency, "--pause 5", "--pause"),
            (Bench::AtomicBw, "--op frob", "--op"),
        ] {
            let error = parse(bench, line).unwrap_err();
            assert!(error.contains(reason), "{} {line}: {error}", bench.name());
        }
        let vars = [("OXSHMEM_QP_DEPHT", "256")];
        let error = Options::parse_with(Bench::PutBw, ["shmem_put_bw"], vars).unwrap_err().to_string();
        assert!(error.contains("did you mean OXSHMEM_QP_DEPTH?"), "{error}");
    }

    proptest! {
        #[test]
        fn sizes_ascend_from_min_to_max(min in 1u64..5000, more in 0u64..100_000, factor in 2u64..10) {
            let sizes = sizes((Some(min), Some(min + more)), (1, 1), factor, ("sizes", 1)).unwrap();
            prop_assert_eq!(sizes[0], min);
            prop_assert_eq!(*sizes.last().unwrap(), min + more);
            prop_assert!(sizes.windows(2).all(|pair| pair[0] < pair[1]));
        }
    }
}
