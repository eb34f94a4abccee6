//! `make compare-transports`: IBGDA beside IBRC on this machine: put bandwidth by message size and
//! CTAs, and the rate of scalar puts by CTAs; as table, JSON lines and SVG.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use oxshmem::config::{ByteSize, Device, Transport};
use oxshmem::launch;

use crate::bench::Bench;
use crate::error::Error;
use crate::output;
use crate::plot::{self, Chart, Series};
use crate::report::{Job, JsonLines, Row, verdict};
use crate::step;

const NAME: &str = "compare_transports";

/// A job that takes longer has failed.
const LIMIT: Duration = Duration::from_secs(120);

/// The transports, in the order of the columns.
const BOTH: [Transport; 2] = [Transport::Ibgda, Transport::Ibrc];

/// Compares IBGDA with IBRC: two PEs, put bandwidth by message size and CTAs, scalar put rate by
/// CTAs.
#[derive(Debug, Parser)]
#[command(name = NAME)]
struct Arguments {
    /// Where kernels run: auto, cpu or cuda.
    #[arg(long, default_value = "auto")]
    device: Device,
    /// One small point of each, which shows that everything works.
    #[arg(long)]
    short: bool,
    /// One JSON object per line and measured point.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Both figures over sizes and CTAs.
    #[arg(long)]
    plot: Option<PathBuf>,
}

/// What is measured: the test and its options but for transport, device, CTAs and QPs.
#[derive(Debug, Clone, Copy)]
struct Sweep {
    bench: Bench,
    options: &'static str,
    ctas: &'static [u32],
}

impl Sweep {
    /// Returns a QP for each CTA: what is compared is how transports post, not how CTAs share a
    /// queue.
    fn options(&self, transport: Transport, device: Device, ctas: u32) -> String {
        format!("--transport={transport} --device={device} --ctas={ctas} --qps={ctas} {}", self.options)
    }
}

/// The published experiment's shape: as many CTAs as a GPU's share of posters, messages from a word
/// to what fills the link. The `cpu` device gets less of everything.
const ON_GPU: [Sweep; 3] = [
    Sweep {
        bench: Bench::PutBw,
        options: "--min 8 --max 4M --factor 8 --scope block --threads 256 --iters 64 --warmup 8",
        ctas: &[1, 8, 32],
    },
    Sweep {
        bench: Bench::PBw,
        options: "--min 64K --max 64K --threads 256 --iters 32 --warmup 4",
        ctas: &[1, 2, 4, 8, 16, 32],
    },
    Sweep {
        bench: Bench::PBw,
        options: "--min 64K --max 64K --threads 256 --iters 32 --warmup 4 --stride 2",
        ctas: &[1, 2, 4, 8, 16, 32],
    },
];
const ON_CPU: [Sweep; 3] = [
    Sweep {
        bench: Bench::PutBw,
        options: "--min 8 --max 256K --factor 8 --scope block --threads 32 --iters 200 --warmup 20",
        ctas: &[1, 4],
    },
    Sweep { bench: Bench::PBw, options: "--min 16K --max 16K --threads 32 --iters 200 --warmup 20", ctas: &[1, 4] },
    Sweep {
        bench: Bench::PBw,
        options: "--min 16K --max 16K --threads 32 --iters 200 --warmup 20 --stride 2",
        ctas: &[1, 4],
    },
];

const SHORT: [Sweep; 2] = [
    Sweep {
        bench: Bench::PutBw,
        options: "--min 8 --max 4K --factor 512 --scope block --threads 32 --iters 4 --warmup 1",
        ctas: &[1],
    },
    Sweep { bench: Bench::PBw, options: "--min 256 --max 256 --threads 32 --iters 4 --warmup 1", ctas: &[1] },
];

/// One line of the table: the same thing over both.
#[derive(Debug, Clone, PartialEq)]
pub struct Pair {
    rows: [Row; 2],
}

/// The titles of the table's columns.
pub const TITLES: [&str; 8] = ["operation", "CTAs", "bytes", "IBGDA", "IBRC", "unit", "ratio", "data"];

impl Pair {
    /// Returns the pair of these rows, if they are one.
    fn new(rows: [Row; 2]) -> Option<Self> {
        let shape = |row: &Row| (row.bench.clone(), row.scope.clone(), row.ctas, row.threads, row.stride, row.bytes);
        let alike = shape(&rows[0]) == shape(&rows[1]);
        let transports = BOTH.iter().zip(&rows).all(|(transport, row)| row.job.transport == transport.to_string());
        (alike && transports).then_some(Self { rows })
    }

    /// Returns where it was measured.
    pub fn job(&self) -> &Job {
        &self.rows[0].job
    }

    /// Returns what was done.
    fn title(&self) -> String {
        let row = &self.rows[0];
        match row.stride {
            None => format!("put_nbi by {}s", row.scope),
            Some(1) => "p, 8 bytes, lanes combine".to_owned(),
            Some(_) => "p, 8 bytes, not combined".to_owned(),
        }
    }

    /// Returns what the columns of [`TITLES`] show.
    pub fn cells(&self) -> [String; 8] {
        let ([ibgda, ibrc], unit) = self.figures();
        let row = &self.rows[0];
        let bytes = if self.is_rate() { 8 } else { row.bytes };
        [
            self.title(),
            row.ctas.to_string(),
            ByteSize(bytes).to_string(),
            format!("{ibgda:.3}"),
            format!("{ibrc:.3}"),
            unit.to_owned(),
            format!("{:.2}x", ibgda / ibrc.max(f64::MIN_POSITIVE)),
            verdict(self.rows.iter().all(|row| row.verified)),
        ]
    }

    /// Returns the figure that is compared, and its unit: GB/s of puts, million operations per
    /// second of scalar puts.
    fn figures(&self) -> ([f64; 2], &'static str) {
        let [first, second] = &self.rows;
        let pick = |row: &Row| if self.is_rate() { row.mops } else { row.gbps }.unwrap_or_default();
        ([pick(first), pick(second)], if self.is_rate() { "M ops/s" } else { "GB/s" })
    }

    fn is_rate(&self) -> bool {
        self.rows[0].bench == Bench::PBw.name()
    }
}

/// Runs the program.
pub fn main() -> ExitCode {
    if launch::in_job() {
        return step::as_pe(NAME);
    }
    let arguments = Arguments::parse();
    match compare(&arguments) {
        Ok(status) => status,
        Err(error) => error.report(NAME),
    }
}

fn compare(arguments: &Arguments) -> Result<ExitCode, Error> {
    let mut json = arguments.json.as_deref().map(JsonLines::create).transpose()?;
    let mut pairs: Vec<Pair> = Vec::new();
    let device = match probe(arguments.device)? {
        Ok(device) => device,
        Err(complaints) => return Ok(failed(&complaints)),
    };
    let titles = line(&TITLES);
    output::line(format_args!("Two PEs on this machine, device {device}; every byte is verified.\n\n{titles}"))?;
    let sweeps: &[Sweep] = match (arguments.short, device.as_str()) {
        (true, _) => &SHORT,
        (false, "cuda") => &ON_GPU,
        (false, _) => &ON_CPU,
    };
    for sweep in sweeps {
        for ctas in sweep.ctas {
            let mut found: Vec<Vec<Row>> = Vec::new();
            for transport in BOTH {
                let options = sweep.options(transport, arguments.device, *ctas);
                match step::run(sweep.bench, &options, LIMIT)? {
                    Ok(rows) => found.push(rows),
                    Err(complaints) => {
                        eprintln!("{NAME}: {} {options}:", sweep.bench.name());
                        return Ok(failed(&complaints));
                    }
                }
            }
            let [Some(ibgda), Some(ibrc)] = [found.first(), found.get(1)] else { continue };
            for (first, second) in ibgda.iter().zip(ibrc) {
                if let Some(json) = &mut json {
                    json.write(first)?;
                    json.write(second)?;
                }
                let Some(pair) = Pair::new([first.clone(), second.clone()]) else {
                    let odd = format!("{}: IBGDA and IBRC measured different things", sweep.bench.name());
                    return Ok(failed(&[odd]));
                };
                output::line(format_args!("{}", line(&pair.cells())))?;
                pairs.push(pair);
            }
        }
    }
    if let Some(path) = &arguments.plot {
        plot::write(path, svg(&pairs))?;
    }
    let wrong = pairs.iter().any(|pair| pair.rows.iter().any(|row| !row.verified));
    Ok(if wrong { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Returns which device `auto` is here.
fn probe(device: Device) -> Result<Result<String, Vec<String>>, Error> {
    let options = format!("--transport=ibrc --device={device} --min 8 --max 8 --scope block --iters 1 --warmup 0");
    Ok(step::run(Bench::PutBw, &options, LIMIT)?
        .and_then(|rows| rows.into_iter().next().map(|row| row.job.device).ok_or_else(Vec::new)))
}

fn failed(complaints: &[String]) -> ExitCode {
    complaints.iter().for_each(|line| eprintln!("{NAME}: {line}"));
    ExitCode::FAILURE
}

/// Returns an aligned line: the operation to the left, all else to the right, except for the
/// verdict at the end.
fn line<T: std::fmt::Display>([operation, ctas, bytes, ibgda, ibrc, unit, ratio, data]: &[T; 8]) -> String {
    format!("{operation:<26}  {ctas:>5}  {bytes:>8}  {ibgda:>10}  {ibrc:>10}  {unit:>7}  {ratio:>8}  {data}")
}

/// Returns the pairs that these rows are, which stand in the order in which [`main`] writes them.
pub fn pairs(rows: &[Row]) -> Option<Vec<Pair>> {
    let (pairs, rest) = rows.as_chunks::<2>();
    if rest.is_empty() { pairs.iter().map(|rows| Pair::new(rows.clone())).collect() } else { None }
}

/// Returns the series of bandwidth over the message size, a line for each path and number of CTAs;
/// or rate over CTAs, a line for each path and kind.
fn series(pairs: &[Pair], rates: bool) -> Vec<Series> {
    plot::lines(pairs.iter().filter(|pair| pair.is_rate() == rates).flat_map(|pair| {
        pair.rows.iter().zip(pair.figures().0).map(move |(row, figure)| {
            if rates {
                (format!("{}, {}", row.job.transport, pair.title()), row.ctas.into(), Some(figure))
            } else {
                (format!("{}, {} CTAs", row.job.transport, row.ctas), row.bytes, Some(figure))
            }
        })
    }))
}

/// Returns both figures as SVG.
///
/// # Errors
/// The reason why they cannot be drawn.
pub fn svg(pairs: &[Pair]) -> Result<String, String> {
    let (bandwidth, rates) = (series(pairs, false), series(pairs, true));
    let unit = "GB/s (10^9 bytes per second)";
    let bandwidth = Chart { title: "put bandwidth", x: plot::MESSAGE_SIZE, y: unit, lines: &bandwidth };
    let rates = Chart { title: "scalar put rate", x: "CTAs", y: "million puts per second", lines: &rates };
    plot::svg((1480, 620), &[bandwidth, rates])
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::options::Options;
    use crate::report::tests::{job, row};

    #[test]
    fn every_sweep_has_options_that_its_test_takes() {
        for sweep in ON_GPU.into_iter().chain(ON_CPU).chain(SHORT) {
            for (ctas, transport) in sweep.ctas.iter().zip(BOTH.iter().cycle()) {
                let options = sweep.options(*transport, Device::Auto, *ctas);
                let args = std::iter::once(sweep.bench.name()).chain(options.split(' '));
                assert!(Options::parse(sweep.bench, args).is_ok_and(|options| options.scopes.len() == 1), "{options}");
            }
        }
    }

    fn some() -> Vec<Row> {
        let of = |bench: Bench, stride, bytes, ctas, rate: f64| {
            BOTH.map(|transport| {
                let rate = if transport == Transport::Ibgda { rate } else { rate / 4.0 };
                let (mops, gbps) = (Some(rate), Some(rate));
                let job = job(&transport.to_string());
                Row { bench: bench.name().into(), job, ctas, stride, mops, gbps, ..row("block", bytes, 1.0) }
            })
        };
        [
            of(Bench::PutBw, None, 8, 1, 1.0),
            of(Bench::PutBw, None, 4096, 1, 40.0),
            of(Bench::PBw, Some(1), 4096, 1, 20.0),
            of(Bench::PBw, Some(2), 4096, 8, 60.0),
        ]
        .concat()
    }

    #[test]
    fn lines_are_aligned_and_compare() {
        let lines: Vec<String> = pairs(&some()).unwrap().iter().map(|pair| line(&pair.cells())).collect();
        assert!(lines.iter().all(|line| line.contains("4.00x") && line.ends_with("verified")), "{lines:?}");
        assert_eq!(lines[0].find("GB/s").unwrap() + 4, line(&TITLES).find("unit").unwrap() + 4);
        for (line, title) in
            lines.iter().zip(["put_nbi by blocks ", "put_nbi by blocks ", "p, 8 bytes, lanes", "p, 8 bytes, not"])
        {
            assert!(line.starts_with(title), "{line}");
        }
    }

    #[test]
    fn rows_that_are_no_pairs_are_none() {
        let rows = some();
        assert_eq!(pairs(&rows[..3]), None);
        assert_eq!(pairs(&rows[1..5]), None);
        let mut odd = rows.clone();
        odd[1].ctas += 1;
        assert_eq!(pairs(&odd), None);
    }

    #[test]
    fn the_plot_has_both_figures_and_paths() {
        let svg = svg(&pairs(&some()).unwrap()).unwrap();
        for text in ["<svg", "scalar put rate", "put bandwidth", "CTAs", "ibgda, 1 CTAs", "ibrc, p"] {
            assert!(svg.contains(text), "{text}");
        }
    }
}
