//! Side by side with NVSHMEM: the same kernels over both libraries, in turn, in one run.
//!
//! `perftest/compare` holds the programs: kernels and a host program, written once over a thin
//! layer of names and built once against each library. This driver builds theirs where NVSHMEM is
//! installed, runs both in turn, and reports medians and ratios. An earlier build of our program
//! can take the place of theirs.

pub mod collectives;
pub mod docs;
pub mod measure;
pub mod plot;
pub mod programs;
pub mod report;
pub mod rows;
pub mod table;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use oxshmem::Config;

use crate::error::Error;
use crate::machine::{self, Gpus};
use crate::options::{require_place, require_svg};
use crate::output;
use crate::scratch::Scratch;
use collectives::sides::Kind;
use measure::{Answers, Group, Program, Start};
use report::{Figure, Line, Setting};
use rows::Row;
use table::ROWS;

/// Compares OxSHMEM with NVSHMEM on this machine's GPUs: the same kernels, in turn, medians.
///
/// Exit status: 0 when every row that could be measured was, 1 when one has failed, 2 when the
/// arguments are wrong. Without NVSHMEM only our side is measured, which is not a failure.
#[derive(Debug, Parser)]
#[command(name = "compare", version)]
struct Arguments {
    /// PEs, each on a GPU of its own; as many as there are GPUs, but at least two and no more than
    /// four, unless set. With fewer GPUs than PEs, only the rows of the null card are measured.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=64))]
    pes: Option<u32>,
    /// How often both programs are run, in turn; 3 unless set, 7 with --collectives, and 7, which
    /// is the least, with --previous and --without-records.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    repetitions: Option<u32>,
    /// Only rows whose name contains this; may be given several times.
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
    /// Print the rows' names and shapes, and measure nothing.
    #[arg(long)]
    list: bool,
    /// Write one JSON object per line and row to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw the ratios into this SVG file.
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// Our program, if it is not beside this one.
    #[arg(long, value_name = "PROGRAM")]
    ours: Option<PathBuf>,
    /// Compare with this earlier build of our program instead of NVSHMEM. Its liboxshmem.so is
    /// looked for beside it, and so is its oxrun, which starts it if it is there: builds of
    /// another version of the bootstrap protocol need that.
    #[arg(long, value_name = "PROGRAM", conflicts_with_all = ["nvshmem", "nvcc"])]
    previous: Option<PathBuf>,
    /// Compare posting without doorbell records, as ours, with posting as usual, by one program:
    /// the rows of the null card alone.
    #[arg(long, conflicts_with_all = ["previous", "nvshmem", "nvcc"])]
    without_records: bool,
    /// NVSHMEM's folder with include and lib; else NVSHMEM_HOME, else python3's package.
    #[arg(long, value_name = "DIR")]
    nvshmem: Option<PathBuf>,
    /// The CUDA compiler.
    #[arg(long, value_name = "NVCC")]
    nvcc: Option<PathBuf>,
    /// The longest that one run of one program may take, in seconds; with --collectives, one
    /// command to it.
    #[arg(long, value_name = "S", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=3600))]
    timeout: u64,
    #[command(flatten)]
    collectives: collectives::Options,
}

/// Runs the driver's program.
pub fn main() -> ExitCode {
    let words: Vec<String> = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    if let Some((collectives::AS_PE, rest)) = words.split_first().map(|(first, rest)| (first.as_str(), rest)) {
        return collectives::as_pe(rest);
    }
    let arguments = Arguments::parse();
    let compared = check_places(&arguments).and_then(|()| {
        if arguments.collectives.collectives { compare_collectives(&arguments) } else { compare(&arguments) }
    });
    match compared {
        Ok(status) => status,
        Err(error) => error.report("compare"),
    }
}

/// Refuses files that cannot be written at the end.
fn check_places(arguments: &Arguments) -> Result<(), Error> {
    arguments.json.as_deref().map_or(Ok(()), |json| require_place("--json", json))?;
    arguments.plot.as_deref().map_or(Ok(()), require_svg)
}

/// Returns the rows of `only`, and the limits that they refer to; all if it names none.
fn select(only: &[String]) -> Result<Vec<&'static Row>, Error> {
    if let Some(text) = only.iter().find(|text| ROWS.iter().all(|row| !row.name.contains(text.as_str()))) {
        return Err(Error::Usage(format!("--only {text}: no row's name contains that; --list prints them")));
    }
    let named = |row: &Row| only.is_empty() || only.iter().any(|text| row.name.contains(text.as_str()));
    let limits: Vec<&str> = ROWS.iter().filter(|row| named(row)).filter_map(|row| row.limit).collect();
    Ok(ROWS.iter().filter(|row| named(row) || limits.contains(&row.name)).collect())
}

/// Divides `rows` into those that `pes` PEs on `gpus` GPUs can measure and those that need a GPU
/// for each PE. PEs may share a GPU over the null card, where only PE 0 runs kernels.
fn split_by_gpus(rows: Vec<&'static Row>, pes: u32, gpus: u32) -> (Vec<&'static Row>, Vec<&'static Row>) {
    rows.into_iter().partition(|row| pes <= gpus || row.path != rows::Path::P2p)
}

/// Returns those of `rows` that post to the null card.
fn posting(rows: Vec<&'static Row>) -> Result<Vec<&'static Row>, Error> {
    let rows: Vec<_> = rows.into_iter().filter(|row| row.path != rows::Path::P2p).collect();
    if rows.is_empty() {
        let text =
            "--without-records: no selected row posts to the null card; select such rows by --only post_ or context_";
        return Err(Error::Usage(text.to_owned()));
    }
    Ok(rows)
}

fn list(rows: &[&Row]) -> Result<(), Error> {
    for row in rows {
        let goal = row.goal.map_or_else(|| "-".to_owned(), |goal| goal.text(row.unit));
        output::line(format_args!("{:<24} {:<52} {:<5} goal {goal}", row.name, row.title, row.unit.name()))?;
    }
    Ok(())
}

/// The least repetitions with which two builds of one program, or two ways of posting, are
/// compared: they differ by less than two libraries do.
const LEAST_OF_ONE_PROGRAM: u32 = 7;

/// What is said of libraries that could use multicast over the switch, and are run without it.
const WITHOUT_MULTICAST: &str = "multicast (NVLS) off";

/// The variable that says whether device code writes doorbell records.
const RECORDS: &str = "OXSHMEM_IBGDA_DOORBELL_RECORD";

impl Arguments {
    /// Returns whether both sides are our program.
    fn is_of_one_program(&self) -> bool {
        self.previous.is_some() || self.without_records
    }

    /// Returns how often both programs are run.
    fn repetitions(&self) -> Result<u32, Error> {
        match (self.repetitions, self.is_of_one_program()) {
            (Some(n), true) if n < LEAST_OF_ONE_PROGRAM => Err(Error::Usage(format!(
                "--repetitions {n}: two builds, or two ways of posting, are told apart by at least {LEAST_OF_ONE_PROGRAM} runs each; leave \
                 --repetitions out, or give more"
            ))),
            (Some(n), _) => Ok(n),
            (None, true) => Ok(LEAST_OF_ONE_PROGRAM),
            (None, false) => Ok(if self.collectives.collectives { 7 } else { 3 }),
        }
    }

    /// Returns what the other side is called in the table.
    fn other(&self) -> &'static str {
        match (&self.previous, self.without_records) {
            (Some(_), _) => "previous",
            (None, true) => "records",
            (None, false) => "theirs",
        }
    }

    /// Returns the variables of our program, and of it as the other side: those that decide whether
    /// it writes doorbell records, if that is compared.
    fn variables(&self) -> [Vec<(String, String)>; 2] {
        ["never", "always"].map(|records| match self.without_records {
            true => vec![(RECORDS.to_owned(), records.to_owned())],
            false => Vec::new(),
        })
    }
}

/// Returns the program of the other side: an earlier build of ours, or theirs, built in `folder`;
/// or why there is none. An NVSHMEM that is there and cannot be used is an error.
fn other(arguments: &Arguments, ours: &Program, folder: &Path) -> Result<Result<Program, String>, Error> {
    if arguments.without_records {
        let [_, env] = arguments.variables();
        return Ok(Ok(Program { side: arguments.other(), env, ..ours.clone() }));
    }
    let Some(path) = &arguments.previous else { return theirs(arguments, folder) };
    let path = path.canonicalize().map_err(|error| Error::Usage(format!("--previous {}: {error}", path.display())))?;
    let oxrun = Some(path.with_file_name("oxrun")).filter(|oxrun| oxrun.is_file());
    Ok(Ok(Program { side: arguments.other(), path, env: Vec::new(), fresh_file: None, oxrun }))
}

/// Returns their program, built in `folder`; or why there is none.
fn theirs(arguments: &Arguments, folder: &Path) -> Result<Result<Program, String>, Error> {
    // Room for the largest mesh; ours grows as needed.
    let built = nvshmem(arguments, folder, (programs::ROWS, 4 << 30))?;
    Ok(built.map(|(path, env)| Program {
        side: "theirs",
        path,
        env,
        fresh_file: Some("COMPARE_UNIQUE_ID"),
        oxrun: None,
    }))
}

/// Returns the program that is built from `source` against NVSHMEM in `folder`, and the variables
/// that it needs, with a symmetric heap of `heap` bytes; or why there is none.
fn nvshmem(arguments: &Arguments, folder: &Path, (source, heap): (&str, u64)) -> Result<Result<Built, String>, Error> {
    let nvshmem = match programs::Nvshmem::find(arguments.nvshmem.as_deref()) {
        Ok(nvshmem) => nvshmem,
        Err(reason) if arguments.nvshmem.is_none() => return Ok(Err(reason)),
        Err(reason) => return Err(Error::Usage(reason)),
    };
    let nvcc = match programs::find_nvcc(arguments.nvcc.as_deref()) {
        Ok(nvcc) => nvcc,
        Err(reason) => return Ok(Err(reason)),
    };
    let lib = nvshmem.lib.display();
    output::line(format_args!("building the NVSHMEM side with {} against {lib}", nvcc.display()))?;
    let path = programs::build_theirs(&nvcc, &nvshmem, folder, source).map_err(Error::Usage)?;
    let env = [
        // Its bootstrap plugin lies beside its library.
        ("LD_LIBRARY_PATH", nvshmem.lib.display().to_string()),
        ("NVSHMEM_REMOTE_TRANSPORT", "none".to_owned()),
        // Not every machine lends out multicast over the switch, and ours uses none.
        ("NVSHMEM_DISABLE_NVLS", "1".to_owned()),
        ("NVSHMEM_SYMMETRIC_SIZE", heap.to_string()),
    ];
    Ok(Ok((path, env.map(|(name, value)| (name.to_owned(), value)).to_vec())))
}

/// A program, and the variables that it needs.
type Built = (PathBuf, Vec<(String, String)>);

/// Compares collectives on streams instead.
fn compare_collectives(arguments: &Arguments) -> Result<ExitCode, Error> {
    let scratch = Scratch::new("oxshmem-compare")?;
    let request = collectives::Request {
        options: &arguments.collectives,
        pes: arguments.pes,
        repetitions: arguments.repetitions()?,
        only: &arguments.only,
        list: arguments.list,
        json: arguments.json.as_deref(),
        plot: arguments.plot.as_deref(),
        timeout: Duration::from_secs(arguments.timeout),
        others_are: WITHOUT_MULTICAST,
        folder: scratch.path().to_owned(),
    };
    collectives::compare(&request, draw, |most| {
        let (mut kinds, mut missing) = (Vec::new(), Vec::new());
        // Two buffers, and as much as the library takes for itself.
        let heap = 2 * most + (1 << 30);
        match nvshmem(arguments, scratch.path(), (programs::COLLECTIVES, heap))? {
            Ok((program, env)) => kinds.push(Kind::Nvshmem { program, env }),
            Err(reason) => missing.push(reason),
        }
        match collectives::sides::without_torch() {
            None => kinds.push(collectives::sides::torch(scratch.path()).map_err(Error::Usage)?),
            Some(reason) => missing.push(format!("NCCL and torch's symmetric memory: {reason}")),
        }
        Ok((kinds, missing))
    })
}

fn compare(arguments: &Arguments) -> Result<ExitCode, Error> {
    let rows = select(&arguments.only)?;
    let rows = if arguments.without_records { posting(rows)? } else { rows };
    if arguments.list {
        list(&rows)?;
        return Ok(ExitCode::SUCCESS);
    }
    let ours = programs::find_ours(arguments.ours.as_deref()).map_err(Error::Usage)?;
    let [env, _] = arguments.variables();
    let ours = Program { side: "ours", path: ours, env, fresh_file: None, oxrun: None };
    let gpus = Gpus::find().ok_or_else(|| {
        Error::Usage(
            "the driver shows no GPU; the comparison needs at least two NVIDIA GPUs joined by a link, and one for the rows of the null card".to_owned(),
        )
    })?;
    let pes = arguments.pes.unwrap_or(gpus.number.clamp(2, 4));
    let (rows, without_gpus) = split_by_gpus(rows, pes, gpus.number);
    if let [first, ..] = without_gpus.as_slice() {
        let (number, name, available) = (without_gpus.len(), first.name, gpus.number);
        let text = format!(
            "{number} rows ({name}, ...) are not measured: {pes} PEs need a GPU each, and this machine has {available}"
        );
        if rows.is_empty() {
            return Err(Error::Usage(text));
        }
        output::line(format_args!("{text}"))?;
    }
    let repetitions = arguments.repetitions()?;
    let scratch = Scratch::new("oxshmem-compare")?;
    let theirs = other(arguments, &ours, scratch.path())?;
    if let Err(reason) = &theirs {
        output::line(format_args!("only ours is measured: {reason}"))?;
    }

    let start = Start { pes, timeout: Duration::from_secs(arguments.timeout), folder: scratch.path() };
    let (mut our_answers, mut their_answers) = (Answers::default(), Answers::default());
    let groups = Group::split(&rows);
    for repetition in 1..=repetitions {
        output::line(format_args!("repetition {repetition} of {repetitions}"))?;
        for group in &groups {
            our_answers.add_run(&ours, group, &start);
            // There is no null card under NVSHMEM.
            if let Ok(theirs) = &theirs
                && (arguments.is_of_one_program() || group.path == rows::Path::P2p)
            {
                their_answers.add_run(theirs, group, &start);
            }
        }
    }

    let setting = Setting {
        gpu: gpus.model,
        driver: gpus.driver,
        pes,
        repetitions,
        date: machine::today(),
        our_library: our_answers.library.clone().map(|library| match arguments.without_records {
            true => format!("{library}, without doorbell records"),
            false => library,
        }),
        their_library: their_answers.library.clone().map(|library| match arguments.other() {
            "previous" => format!("{library}, an earlier build"),
            "records" => format!("{library}, with doorbell records"),
            _ => format!("{library}, {WITHOUT_MULTICAST}"),
        }),
    };
    let lines = lines(&rows, &our_answers, &their_answers, &setting);
    let table = report::table(&lines, arguments.other());
    output::line(format_args!("\n{}", heading(&setting, arguments.other())))?;
    if !arguments.without_records && rows.iter().any(|row| row.path != rows::Path::P2p) {
        let records = Config::from_env()?.ibgda_doorbell_record();
        output::line(format_args!("posted to the null card with {RECORDS}={records}"))?;
    }
    output::line(format_args!("{table}"))?;
    let mut failed = false;
    for (side, answers) in [("ours", &our_answers), (arguments.other(), &their_answers)] {
        for (row, text) in &answers.failures {
            failed = true;
            eprintln!("compare: {side}, {row}: {text}");
        }
    }
    write(arguments, &lines)?;
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Returns what was measured where.
fn heading(setting: &Setting, other: &str) -> String {
    format!(
        "{} PEs on {}, driver {}, {}; ours: {}; {other}: {}; {} runs each in turn",
        setting.pes,
        setting.gpu,
        setting.driver,
        setting.date,
        setting.our_library.as_deref().unwrap_or("not run"),
        setting.their_library.as_deref().unwrap_or("not run"),
        setting.repetitions,
    )
}

fn lines(rows: &[&Row], ours: &Answers, theirs: &Answers, setting: &Setting) -> Vec<Line> {
    let samples = |answers: &Answers, name: &str| answers.samples.get(name).cloned().unwrap_or_default();
    // Plain kernels are the same in both programs; the limit is what the hardware was seen to do.
    let limit = |row: &Row| {
        let limit = table::find(row.limit?)?;
        let medians = [ours, theirs].map(|answers| Figure::of(limit, &samples(answers, limit.name)));
        medians.into_iter().flatten().map(|figure| figure.median).reduce(if limit.unit.is_rate() {
            f64::max
        } else {
            f64::min
        })
    };
    rows.iter()
        .map(|row| Line::new(row, &samples(ours, row.name), &samples(theirs, row.name), limit(row), setting))
        .collect()
}

fn write(arguments: &Arguments, lines: &[Line]) -> Result<(), Error> {
    if let Some(path) = &arguments.json {
        let failed = |source| Error::Output { path: path.clone(), source };
        let mut file = std::fs::File::create(path).map_err(failed)?;
        for line in lines {
            let text = serde_json::to_string(line)
                .map_err(|error| Error::System { what: "writing figures as JSON", source: error.into() })?;
            writeln!(file, "{text}").map_err(failed)?;
        }
    }
    arguments.plot.as_deref().map_or(Ok(()), |path| draw(path, plot::ratios(lines)))
}

/// Writes a plot. Where there is nothing to draw it is left out with a remark: that takes nothing
/// from what was measured.
///
/// # Errors
/// The file cannot be written.
fn draw(path: &Path, drawn: Result<String, String>) -> Result<(), Error> {
    match drawn {
        Ok(svg) => std::fs::write(path, svg).map_err(|source| Error::Output { path: path.to_owned(), source }),
        Err(reason) => {
            eprintln!("compare: --plot {} is left out: {reason}", path.display());
            Ok(())
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_sound() {
        use clap::CommandFactory;
        Arguments::command().debug_assert();
    }

    #[test]
    fn builds_are_told_apart_by_seven_runs_or_more() {
        let of = |args: &[&str]| Arguments::try_parse_from([&["compare"], args].concat()).map(|a| a.repetitions());
        assert_eq!(of(&[]).unwrap().unwrap(), 3);
        assert_eq!(of(&["--repetitions", "1"]).unwrap().unwrap(), 1);
        assert_eq!(of(&["--collectives"]).unwrap().unwrap(), 7);
        assert_eq!(of(&["--previous", "a"]).unwrap().unwrap(), 7);
        assert_eq!(of(&["--previous", "a", "--repetitions", "9"]).unwrap().unwrap(), 9);
        let error = of(&["--previous", "a", "--repetitions", "6"]).unwrap().unwrap_err().to_string();
        assert!(error.contains("at least 7"), "{error}");
        assert!(of(&["--previous", "a", "--nvshmem", "b"]).is_err());
    }

    #[test]
    fn posting_without_records_is_compared_with_posting_as_usual() {
        let arguments = Arguments::try_parse_from(["compare", "--without-records"]).unwrap();
        assert_eq!((arguments.repetitions().unwrap(), arguments.other()), (7, "records"));
        let env = |records: &str| vec![(RECORDS.to_owned(), records.to_owned())];
        assert_eq!(arguments.variables(), [env("never"), env("always")]);
        let ours = Program { side: "ours", path: "p".into(), env: env("never"), fresh_file: None, oxrun: None };
        let other = other(&arguments, &ours, Path::new("f")).unwrap().unwrap();
        assert_eq!((other.side, other.path, other.env), ("records", PathBuf::from("p"), env("always")));
        let rows = posting(select(&["post_put_1".to_owned(), "get_warp".to_owned()]).unwrap()).unwrap();
        assert_eq!(rows.iter().map(|row| row.name).collect::<Vec<_>>(), ["post_put_1"]);
        assert!(posting(select(&["get_warp".to_owned()]).unwrap()).is_err());
        assert_eq!(Arguments::try_parse_from(["compare"]).unwrap().variables(), [Vec::new(), Vec::new()]);
        assert!(Arguments::try_parse_from(["compare", "--without-records", "--previous", "a"]).is_err());
    }

    #[test]
    fn files_are_looked_at_first_and_an_empty_plot_is_left_out() {
        let error = |args: &[&str]| {
            let arguments = Arguments::try_parse_from([&["compare"], args].concat()).unwrap();
            check_places(&arguments).unwrap_err().to_string()
        };
        assert!(error(&["--json", "/nonexistent/a.jsonl"]).contains("/nonexistent"));
        assert!(error(&["--plot", "/nonexistent/a.svg"]).contains("/nonexistent"));
        assert!(error(&["--plot", "a.png"]).contains(".svg"));
        check_places(&Arguments::try_parse_from(["compare"]).unwrap()).unwrap();
        let scratch = Scratch::new("oxshmem-compare-test").unwrap();
        let path = scratch.path().join("a.svg");
        draw(&path, plot::ratios(&[])).unwrap();
        assert!(!path.exists());
        draw(&path, Ok("<svg>".to_owned())).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "<svg>");
        assert!(draw(scratch.path(), Ok(String::new())).is_err());
    }

    #[test]
    fn selected_rows_bring_their_limits() {
        let names = |only: &[&str]| -> Vec<&str> {
            let only: Vec<String> = only.iter().map(|text| (*text).to_owned()).collect();
            select(&only).unwrap().iter().map(|row| row.name).collect()
        };
        assert_eq!(names(&["put_bw_block_4", "get_warp"]), ["link_store_4", "put_bw_block_4", "get_warp_64k"]);
        assert_eq!(names(&[]).len(), ROWS.len());
        let error = select(&["nonsense".to_owned()]).unwrap_err().to_string();
        assert!(error.contains("nonsense") && error.contains("--list"), "{error}");
    }

    #[test]
    fn pes_that_share_a_gpu_measure_the_null_card_alone() {
        let all = || ROWS.iter().collect::<Vec<_>>();
        let (measured, left) = split_by_gpus(all(), 2, 1);
        assert!(!measured.is_empty() && !left.is_empty());
        assert!(measured.iter().all(|row| row.path != rows::Path::P2p));
        assert!(left.iter().all(|row| row.path == rows::Path::P2p));
        assert_eq!(split_by_gpus(all(), 2, 2), (all(), Vec::new()));
    }

    #[test]
    fn limits_are_the_better_of_both_programs() {
        let row = table::find("put_bw_block_1").unwrap();
        let limit = table::find("link_store_1").unwrap();
        let answers = |limit_ns: u64| Answers {
            samples: [(row.name, vec![15_000_000]), (limit.name, vec![limit_ns])].into(),
            ..Answers::default()
        };
        let lines = lines(&[row], &answers(15_000_000), &answers(14_000_000), &report::tests::setting());
        let expected = limit.figure(14_000_000);
        assert!((lines[0].limit.unwrap() / expected - 1.0).abs() < 1e-3);
        assert_eq!(lines[0].met, Some(false));
    }
}
