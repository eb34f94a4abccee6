//! `oxshmem-tune`: measures the algorithms of collectives on this machine, and writes the file that
//! `OXSHMEM_TUNING` names.
//!
//! It starts jobs, one for each number of nodes and PEs and each algorithm, in which a file for
//! `OXSHMEM_TUNING` has all collectives use that algorithm. Their PEs are this program, which then
//! does what `shmem_collective_latency --on stream` does; so data is checked too.

mod choose;

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{CommandFactory, Parser};
use oxshmem::config::ByteSize;
use oxshmem::device::takes_gpu;
use oxshmem::launch::{self, LaunchOptions, Output};
use oxshmem::{Config, Tuning};

use crate::collectives::{self, Collective, Program, Row};
use crate::error::Error;
use crate::job;
use crate::machine::Gpus;
use crate::options::{require_place, size, sizes};
use crate::output;
use crate::scratch::Scratch;

pub use choose::{Choice, Reach, STEPS, Times};

const NAME: &str = "oxshmem-tune";
/// The first argument of the PEs that it starts.
const MEASURE: &str = "measure";
/// Longest time of one job.
const LIMIT: Duration = Duration::from_secs(600);

/// Measures the algorithms of collectives on this machine by size and by numbers of PEs and nodes,
/// and writes a file. With OXSHMEM_TUNING=FILE collectives use the algorithms that were fastest.
///
/// Variables like OXSHMEM_DEVICE and OXSHMEM_NETWORK apply to what is measured. Exit status: 0 when
/// the file was written, 1 when something failed, 2 when an argument is wrong.
#[derive(Debug, Clone, Parser)]
#[command(name = NAME, version)]
struct Options {
    /// The file to write.
    #[arg(short, long, value_name = "FILE", default_value = "oxshmem-tuning.txt")]
    output: PathBuf,
    /// PEs of a team; may be given several times [default: 2, and 4 and 8 where there are as many
    /// GPUs].
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=64))]
    npes: Vec<u32>,
    /// Nodes of a team; may be given several times. More than one are played on this machine: PEs
    /// of different ones reach each other over the network alone.
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u32).range(1..=64))]
    nodes: Vec<u32>,
    /// The collective; all of them unless set. May be given several times.
    #[arg(long, value_enum)]
    collective: Vec<Collective>,
    /// Smallest size in bytes, or with K, M or G: what each PE gives (to alltoall and
    /// reducescatter: for each PE).
    #[arg(short = 'b', long, value_name = "SIZE", value_parser = size)]
    min: Option<u64>,
    /// Largest size [default: 256K on the cpu device, and 256M on GPUs, or what the heap has room
    /// for].
    #[arg(short = 'e', long, value_name = "SIZE", value_parser = size)]
    max: Option<u64>,
    /// What a size is multiplied with to get the next one.
    #[arg(short, long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u64).range(2..=1 << 20))]
    factor: u64,
    /// Measured calls of each size.
    #[arg(short = 'i', long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    iters: u64,
}

/// A job to measure: a team, and what its collectives use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Team {
    nodes: u32,
    npes: u32,
}

impl Team {
    /// Returns the algorithms that such a team can use.
    fn algorithms(self) -> &'static [&'static str] {
        match (self.nodes, self.npes) {
            (1, 0..=2) => &["packets", "oneshot", "push", "copy"],
            (1, _) => &["packets", "relay", "oneshot", "push", "copy"],
            _ => &["tree", "push", "levels"],
        }
    }

    /// Returns which sizes a choice is for. Between nodes members of a collect, which contribute
    /// different lengths, use one algorithm for all.
    fn reach(self, collective: Collective) -> Reach {
        if self.nodes > 1 && collective == Collective::Collect { Reach::All } else { Reach::Measured }
    }

    fn label(self) -> String {
        let nodes = if self.nodes == 1 { "one node".to_owned() } else { format!("{} nodes", self.nodes) };
        format!("{} PEs on {nodes}", self.npes)
    }

    /// Returns the line of a file that has `collective` use algorithms, if it has them.
    fn forced(self, collective: Collective, algorithms: &str) -> Option<String> {
        let line = format!("{} {} {} {algorithms}", self.nodes, self.npes, collective.name());
        format!("oxshmem-tuning 1\n{line}\n").parse::<Tuning>().ok().map(|_| line)
    }
}

/// Runs the program.
pub fn main() -> ExitCode {
    if let Some(status) = oxshmem_manual::requested(Options::command) {
        return status;
    }
    let mut arguments = std::env::args_os();
    if arguments.nth(1).is_some_and(|first| first == MEASURE) {
        return collectives::main_with(Program::Latency, std::iter::once(OsString::from(NAME)).chain(arguments));
    }
    let options = Options::parse();
    match tune(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Error::Usage(text)) => Options::command().error(clap::error::ErrorKind::ValueValidation, text).exit(),
        Err(error) => error.report(NAME),
    }
}

fn tune(options: &Options) -> Result<(), Error> {
    let config = Config::from_env()?;
    if config.collectives_sms() == 0 {
        return Err(Error::Usage(
            "OXSHMEM_COLLECTIVES_SMS is 0: copy engines carry out what they can then, whatever the file says, so there is \
             little to choose; unset it to measure"
                .to_owned(),
        ));
    }
    let on_gpus = takes_gpu(config.device());
    let teams = teams(options, on_gpus)?;
    let collectives: Vec<Collective> =
        if options.collective.is_empty() { Collective::ALL[2..].to_vec() } else { options.collective.clone() };
    let default = largest_default(&teams, &collectives, if on_gpus { 256 << 20 } else { 256 << 10 }, &config);
    let sizes = sizes((options.min, options.max), (8, default), options.factor, ("sizes", 8))?;
    if let Some(meeting) = collectives.iter().find(|one| matches!(one, Collective::Barrier | Collective::Sync)) {
        return Err(Error::Usage(format!(
            "--collective {}: it has one algorithm, so there is nothing to choose",
            meeting.name()
        )));
    }
    require_place("--output", &options.output)?;
    let scratch = Scratch::new(NAME)?;
    let jobs: usize = teams.iter().map(|team| 4 + team.algorithms().len()).sum();
    eprintln!(
        "{NAME}: at most {jobs} jobs, each with {} collectives of {} sizes from {} to {} bytes",
        collectives.len(),
        sizes.len(),
        sizes[0],
        sizes[sizes.len() - 1]
    );
    let begin = Instant::now();
    let mut jobs = Jobs { options, sizes: &sizes, folder: scratch.path(), done: 0, all: jobs };
    let mut text = format!(
        "# Algorithms of collectives that oxshmem-tune {} has measured on {} ({}).\n# Use: OXSHMEM_TUNING=THIS FILE\noxshmem-tuning 1\n# nodes PEs collective algorithms\n",
        env!("CARGO_PKG_VERSION"),
        hostname(),
        if on_gpus { "GPUs" } else { "cpu device" },
    );
    for team in teams {
        text += &rows_of(&mut jobs, team, &collectives, &config)?;
    }
    // What is written is what is read.
    let tuning: Tuning = text.parse().map_err(|error| Error::Usage(format!("a wrong file was made: {error}")))?;
    publish(&text, &options.output)?;
    eprintln!("{NAME}: {:.0} s in all", begin.elapsed().as_secs_f64());
    output::line(format_args!(
        "{}: {} collectives use other algorithms than without it; set OXSHMEM_TUNING to it",
        options.output.display(),
        tuning.len()
    ))
}

/// Returns the largest size that is measured unless another is given: `most`, or what the heap has
/// room for.
fn largest_default(teams: &[Team], collectives: &[Collective], most: u64, config: &Config) -> u64 {
    let room = collectives::room_of(config);
    let fits =
        |bytes: u64| teams.iter().all(|team| collectives::needed(collectives, bytes, u64::from(team.npes)) <= room);
    std::iter::successors(Some(most), |bytes| Some(bytes / 2)).find(|bytes| *bytes <= 8 || fits(*bytes)).unwrap_or(8)
}

/// Returns the lines of a team: for each collective its algorithms, or a remark.
fn rows_of(jobs: &mut Jobs<'_>, team: Team, collectives: &[Collective], config: &Config) -> Result<String, Error> {
    let mut measured: Vec<(Option<&'static str>, Vec<Row>)> = Vec::new();
    // The library's choice comes first and last, and the better of its times counts: the first job
    // finds everything cold.
    let algorithms = team.algorithms().iter().copied().map(Some);
    for algorithm in std::iter::once(None).chain(algorithms).chain([None]) {
        let lines: Vec<(Collective, Option<String>)> = collectives
            .iter()
            .map(|one| (*one, algorithm.and_then(|algorithm| team.forced(*one, algorithm))))
            .filter(|(_, line)| algorithm.is_none() || line.is_some())
            .collect();
        let rows = jobs.measure(team, algorithm.unwrap_or("the library's choice"), &lines)?;
        measured.push((algorithm, rows));
    }
    let mut chosen: Vec<(Collective, Choice)> = Vec::new();
    for collective in collectives {
        let Some(choice) = times(*collective, jobs.sizes, &measured)?.choose(team.reach(*collective)) else { continue };
        let is_other = !is_of_library(&choice.algorithms, &library_of(team, *collective, config), jobs.sizes);
        if is_other && choice.is_worth_a_row() {
            chosen.push((*collective, choice));
        }
    }
    let confirmed = confirmed(jobs, team, chosen)?;
    let line = |collective: &Collective| {
        let words = format!("{} {} {}", team.nodes, team.npes, collective.name());
        match confirmed.iter().find(|(one, _)| one == collective) {
            Some((_, Choice { algorithms, share })) => {
                format!("{words} {algorithms} # takes {share:.2} of the time of the library's choice\n")
            }
            None => format!("# {words}: the library's choice is as fast\n"),
        }
    };
    Ok(collectives.iter().map(line).collect())
}

/// Measures what was chosen once more, beside the library's choice, and returns what is faster
/// again, with its share there: of several algorithms the fastest in one measurement may be so by
/// chance.
fn confirmed(
    jobs: &mut Jobs<'_>,
    team: Team,
    chosen: Vec<(Collective, Choice)>,
) -> Result<Vec<(Collective, Choice)>, Error> {
    let line = |choice: &(Collective, Choice)| (choice.0, team.forced(choice.0, &choice.1.algorithms));
    let forced: Vec<_> = chosen.iter().map(line).collect();
    let left: Vec<_> = chosen.iter().map(|(collective, _)| (*collective, None)).collect();
    let ours = jobs.measure(team, "what was fastest, again", &forced)?;
    let library = jobs.measure(team, "the library's choice, again", &left)?;
    let mut confirmed = Vec::new();
    for (collective, choice) in chosen {
        let [ours, library] = [&ours, &library].map(|rows| medians(collective, jobs.sizes, rows));
        let share = choose::share(&ours?, &library?);
        if choose::is_worth_a_row(share) {
            confirmed.push((collective, Choice { share, ..choice }));
        }
    }
    Ok(confirmed)
}

/// Returns what the library uses for a collective of a team when nothing else is chosen, written as
/// in `OXSHMEM_COLLECTIVES`.
fn library_of(team: Team, collective: Collective, config: &Config) -> String {
    let all = Tuning::default().algorithms(config, team.nodes as usize, team.npes as usize);
    let own = all.split(',').find_map(|one| one.strip_prefix(collective.name())?.strip_prefix('='));
    own.unwrap_or_default().to_owned()
}

/// Returns whether a choice is what the library uses for all measured sizes. A `push` of the
/// library's is several algorithms, and the one that a user chooses is not.
fn is_of_library(chosen: &str, library: &str, sizes: &[u64]) -> bool {
    let at = |steps: &str, bytes: u64| {
        let applies = |limit: &str| limit.parse::<ByteSize>().is_ok_and(|limit| bytes <= limit.0);
        let step = steps.split('/').find(|step| step.split_once(':').is_none_or(|(_, limit)| applies(limit)));
        step.map(|step| step.split(':').next().unwrap_or_default().to_owned())
    };
    sizes
        .iter()
        .all(|bytes| at(chosen, *bytes) == at(library, *bytes) && at(chosen, *bytes).is_some_and(|a| a != "push"))
}

/// Returns the teams to measure.
fn teams(options: &Options, on_gpus: bool) -> Result<Vec<Team>, Error> {
    let gpus = if on_gpus { Gpus::find().map_or(0, |gpus| gpus.number) } else { 0 };
    let npes = if options.npes.is_empty() {
        [2, 4, 8].into_iter().filter(|npes| *npes == 2 || *npes <= gpus).collect()
    } else {
        options.npes.clone()
    };
    let mut teams: Vec<Team> = Vec::new();
    for &nodes in &options.nodes {
        for &npes in &npes {
            if nodes > npes {
                return Err(Error::Usage(format!(
                    "--nodes {nodes}: a team of {npes} PEs has at most as many nodes; give more PEs with --npes, or fewer nodes"
                )));
            }
            let team = Team { nodes, npes };
            if !teams.contains(&team) {
                teams.push(team);
            }
        }
    }
    Ok(teams)
}

/// Returns the median time of a collective in each size.
fn medians(collective: Collective, sizes: &[u64], rows: &[Row]) -> Result<Vec<f64>, Error> {
    let of = |bytes: &u64| {
        let row = rows.iter().find(|row| row.collective == collective.name() && row.bytes == *bytes);
        row.and_then(|row| row.times.us_p50).filter(|us| *us > 0.0).ok_or_else(|| {
            Error::Usage(format!(
                "no time was measured of {} of {} bytes; give more --iters",
                collective.name(),
                ByteSize(*bytes)
            ))
        })
    };
    sizes.iter().map(of).collect()
}

/// Returns the times of a collective from the rows of each job.
fn times(collective: Collective, sizes: &[u64], measured: &[(Option<&'static str>, Vec<Row>)]) -> Result<Times, Error> {
    let mut times = Times { sizes: sizes.to_vec(), library: Vec::new(), by: Vec::new() };
    for (algorithm, rows) in measured {
        match algorithm {
            None => {
                let again = medians(collective, sizes, rows)?;
                let least = |earlier: Option<&f64>, time: f64| earlier.map_or(time, |earlier| earlier.min(time));
                times.library = again.iter().enumerate().map(|(i, us)| least(times.library.get(i), *us)).collect();
            }
            Some(name) if rows.iter().any(|row| row.collective == collective.name()) => {
                times.by.push((name, medians(collective, sizes, rows)?))
            }
            Some(_) => {}
        }
    }
    Ok(times)
}

fn hostname() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// The jobs that measure.
struct Jobs<'a> {
    options: &'a Options,
    sizes: &'a [u64],
    folder: &'a Path,
    done: usize,
    all: usize,
}

impl Jobs<'_> {
    /// Measures collectives as `lines` have them, or as the library chooses, says so, and returns
    /// the rows. Without lines there is nothing to do.
    fn measure(&mut self, team: Team, what: &str, lines: &[(Collective, Option<String>)]) -> Result<Vec<Row>, Error> {
        self.done += 1;
        if lines.is_empty() {
            return Ok(Vec::new());
        }
        let started = Instant::now();
        let range = (self.sizes[0], self.sizes[self.sizes.len() - 1]);
        let rows = measure(self.folder, team, lines, self.options, range)?;
        let (done, all, label) = (self.done, self.all, team.label());
        eprintln!("{NAME}: [{done}/{all}] {label}, {what}: {:.1} s", started.elapsed().as_secs_f64());
        Ok(rows)
    }
}

/// Measures collectives as lines of a file have them, or as the library chooses, and returns
/// the rows.
fn measure(
    folder: &Path,
    team: Team,
    lines: &[(Collective, Option<String>)],
    options: &Options,
    (min, max): (u64, u64),
) -> Result<Vec<Row>, Error> {
    let (file, json) = (folder.join("tuning.txt"), folder.join("rows.json"));
    let forced: String = lines.iter().filter_map(|(_, line)| line.as_ref()).map(|line| format!("{line}\n")).collect();
    write(&file, &format!("oxshmem-tuning 1\n{forced}"))?;
    write(&json, "")?;
    let mut arguments: Vec<OsString> =
        vec![MEASURE.into(), "--on".into(), "stream".into(), "--json".into(), json.clone().into()];
    let pairs = [
        ("--min", min),
        ("--max", max),
        ("--factor", options.factor),
        ("--iters", options.iters),
        ("--warmup", options.iters.min(10)),
    ];
    arguments.extend(pairs.iter().flat_map(|(name, value)| [OsString::from(name), value.to_string().into()]));
    arguments.extend(lines.iter().flat_map(|(one, _)| ["--collective".into(), OsString::from(one.name())]));
    let mut launch = LaunchOptions::new(team.npes, job::this_program()?)
        .args(arguments)
        .env("OXSHMEM_TUNING", file.as_os_str())
        .env("OXSHMEM_COLLECTIVES", "");
    launch.nodes = if team.nodes == 1 { 0 } else { team.nodes };
    launch.output = Output::Captured;
    launch.timeout = Some(LIMIT);
    launch.forward_signals = true;
    let outcome = launch::run(&launch)?;
    if let Some(signal) = outcome.interrupted {
        let status = u8::try_from(signal).map_or(1, |signal| 128u8.saturating_add(signal));
        return Err(Error::Interrupted(status));
    }
    if !outcome.is_success() {
        let said = job::complaints(&outcome).join("; ");
        return Err(Error::Usage(format!("the job of {} has failed: {said}", team.label())));
    }
    let text = fs::read_to_string(&json).map_err(|source| Error::Output { path: json, source })?;
    let row = |line: &str| serde_json::from_str(line).map_err(|error| Error::Usage(format!("{line}: {error}")));
    text.lines().map(row).collect()
}

/// Writes the file at once, so that none is ever half there.
fn publish(text: &str, to: &Path) -> Result<(), Error> {
    let mut name = to.as_os_str().to_owned();
    name.push(".new");
    let new = PathBuf::from(name);
    write(&new, text)?;
    fs::rename(&new, to).map_err(|source| Error::Output { path: to.to_owned(), source })
}

fn write(path: &Path, text: &str) -> Result<(), Error> {
    fs::write(path, text).map_err(|source| Error::Output { path: path.to_owned(), source })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn teams_are_those_of_the_options() {
        let of = |line: &str| teams(&Options::parse_from(std::iter::once(NAME).chain(line.split_whitespace())), false);
        assert_eq!(of("").unwrap(), [Team { nodes: 1, npes: 2 }]);
        let all = of("-n 2 -n 4 --nodes 1 --nodes 2 -n 2").unwrap();
        let all: Vec<_> = all.iter().map(|team| (team.nodes, team.npes)).collect();
        assert_eq!(all, [(1, 2), (1, 4), (2, 2), (2, 4)]);
        let error = of("-n 2 --nodes 3").unwrap_err().to_string();
        assert!(error.contains("--nodes 3") && error.contains("2 PEs"), "{error}");
    }

    #[test]
    fn what_the_library_uses_is_no_other_choice() {
        assert!(is_of_library("packets", "packets:8K/push", &[8, 8192]));
        assert!(is_of_library("packets:16/packets", "packets:8K/push", &[8, 64]));
        assert!(!is_of_library("packets", "packets:8K/push", &[8, 8193]));
        assert!(!is_of_library("push", "packets:8K/push", &[8, 64]));
        assert!(!is_of_library("push", "push", &[8]));
        assert!(is_of_library("packets:4K/library", "packets:8K/push", &[8, 4096]));
        assert!(is_of_library("tree:64K/levels", "tree:64K/levels", &[8, 1 << 20]));
        let config = Config::builder().build().unwrap();
        let team = Team { nodes: 1, npes: 2 };
        assert_eq!(library_of(team, Collective::Broadcast, &config), "packets:8K/push");
    }

    #[test]
    fn an_algorithm_is_forced_where_the_collective_has_it() {
        let team = Team { nodes: 2, npes: 4 };
        assert_eq!(team.forced(Collective::Reduce, "levels").as_deref(), Some("2 4 reduce levels"));
        assert_eq!(team.forced(Collective::Alltoalls, "levels").as_deref(), Some("2 4 alltoalls levels"));
        assert_eq!(team.forced(Collective::Fcollect, "tree"), None);
        let reach = [Collective::Collect, Collective::Fcollect].map(|one| team.reach(one));
        assert_eq!(reach, [Reach::All, Reach::Measured]);
        assert_eq!(Team { nodes: 1, ..team }.reach(Collective::Collect), Reach::Measured);
        let line = "2 4 reduce library:63/tree:1K/levels:4K/library";
        assert_eq!(team.forced(Collective::Reduce, "library:63/tree:1K/levels:4K/library").as_deref(), Some(line));
    }

    #[test]
    fn the_largest_size_is_what_the_heap_has_room_for() {
        let of = |npes, heap: u64| {
            let config = Config::builder().heap_max(heap << 20).heap_chunk(1u64 << 20).build().unwrap();
            largest_default(&[Team { nodes: 1, npes }], &[Collective::Alltoalls], 256 << 20, &config)
        };
        assert_eq!(
            [of(2, 16 << 10), of(8, 16 << 10), of(16, 16 << 10), of(2, 64)],
            [256 << 20, 256 << 20, 128 << 20, 4 << 20]
        );
    }
}
