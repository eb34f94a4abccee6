//! The tables and plots of `docs/performance.md` (a summary) and `docs/notes/figures.md` (every
//! figure), from the JSON of the baselines.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde::de::DeserializeOwned;

use super::plot;
use super::report::{Line, REFERENCE, Setting, Source, titles};
use crate::connection::NULL;
use crate::error::Error;
use crate::report::{Job, Row, rounded};
use crate::transports::{self, Pair};

/// The page with the summary, below the root of the repository.
pub const PAGE: &str = "docs/performance.md";
/// The page with every figure.
pub const FIGURES: &str = "docs/notes/figures.md";
/// The results: one file of JSON lines for each model and number of GPUs.
pub const BASELINES: &str = "perftest/baselines";
/// Where plots go.
pub const PLOTS: &str = "docs/performance";

const BEGIN: &str = "<!-- made by `make performance-docs`: begin -->";
const END: &str = "<!-- made by `make performance-docs`: end -->";

/// Results of one machine.
#[derive(Debug, Clone, PartialEq)]
pub struct Baseline {
    /// The file's name without its end.
    pub name: String,
    /// What it holds.
    pub results: Results,
}

/// The lines of a file, at least one.
#[derive(Debug, Clone, PartialEq)]
pub enum Results {
    /// Lines of a comparison.
    Comparison(Vec<Line>),
    /// Lines of the `shmem_*` tests, on a GPU.
    Tests(Vec<Row>),
    /// Lines of IBGDA beside IBRC, on a GPU.
    Transports(Vec<Pair>),
}

/// The rows of a comparison that the summary shows.
const SUMMARY: [&str; 14] = [
    "put_bw_block_32",
    "get_bw_block_4",
    "p_bw_32",
    "put_quiet_thread_8",
    "put_quiet_warp_64k",
    "get_warp_64k",
    "signal_ping_pong",
    "put_signal_ping_pong_1k",
    "barrier_all_block",
    "alltoall_block_8",
    "sum_block_1m",
    "moe_2k",
    "jacobi_put_4096",
    "post_p_32",
];

/// The groups of lines and what stands above each.
const GROUPS: [(&str, &str); 3] = [
    ("p2p", "Over the link (P2P)"),
    ("null-card", "Posting to the null card"),
    ("link", "What plain kernels and the null card reach: the limits"),
];

fn usage(path: &Path, what: impl std::fmt::Display) -> Error {
    Error::Usage(format!("{}: {what}", path.display()))
}

impl Baseline {
    /// Reads a file.
    ///
    /// # Errors
    /// It cannot be read, or a line of it is not one of a comparison.
    pub fn read(path: &Path) -> Result<Self, Error> {
        fn lines<T: DeserializeOwned>(path: &Path, text: &str) -> Result<Vec<T>, Error> {
            let parse = |(at, line)| {
                serde_json::from_str(line).map_err(|error| usage(path, format!("line {}: {error}", at + 1)))
            };
            text.lines().enumerate().map(parse).collect()
        }
        let text = std::fs::read_to_string(path).map_err(|error| usage(path, error))?;
        let results = if text.is_empty() {
            return Err(usage(path, "there is no line in it"));
        } else if text.starts_with("{\"bench\":") {
            let rows: Vec<Row> = lines(path, &text)?;
            // The null card moves nothing that could be verified.
            let counts = |row: &Row| row.job.gpu.is_some() && (row.verified || row.job.hca.as_deref() == Some(NULL));
            if let Some(row) = rows.iter().find(|row| !counts(row)) {
                return Err(usage(path, format!("{}: not of a GPU, or not verified", row.bench)));
            }
            transports::pairs(&rows).map_or(Results::Tests(rows), Results::Transports)
        } else {
            Results::Comparison(lines(path, &text)?)
        };
        let name = path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
        Ok(Self { name, results })
    }

    /// Reads every baseline below `root`, by name.
    ///
    /// # Errors
    /// Fails like [`Baseline::read`].
    pub fn read_all(root: &Path) -> Result<Vec<Self>, Error> {
        let folder = root.join(BASELINES);
        let entries = std::fs::read_dir(&folder).map_err(|error| usage(&folder, error))?;
        let mut paths: Vec<PathBuf> = entries
            .map(|entry| entry.map(|entry| entry.path()).map_err(|error| usage(&folder, error)))
            .collect::<Result<_, _>>()?;
        paths.retain(|path| path.extension().is_some_and(|end| end == "jsonl"));
        paths.sort();
        paths.iter().map(|path| Self::read(path)).collect()
    }

    /// Returns the name of its plot.
    pub fn plot_name(&self) -> String {
        format!("{}.svg", self.name)
    }

    /// Returns its plot; `None` if no row has figures of both sides.
    ///
    /// # Errors
    /// It cannot be drawn.
    pub fn plot(&self) -> Result<Option<String>, Error> {
        match &self.results {
            Results::Comparison(lines) if is_comparable(lines) => {
                plot::ratios(lines).map(Some).map_err(|reason| Error::Plot { path: "the ratios".into(), reason })
            }
            Results::Transports(pairs) => {
                let failed = |reason| Error::Plot { path: self.plot_name().into(), reason };
                transports::svg(pairs).map(Some).map_err(failed)
            }
            Results::Comparison(_) | Results::Tests(_) => Ok(None),
        }
    }

    fn section(&self) -> String {
        match &self.results {
            Results::Comparison(lines) => self.comparison(lines),
            Results::Tests(rows) => tests_section(rows),
            Results::Transports(pairs) => self.transports(pairs),
        }
    }

    fn transports(&self, pairs: &[Pair]) -> String {
        let mut text = heading(pairs[0].job(), "IBGDA beside IBRC");
        text += &format!("![Both](../performance/{})\n\n", self.plot_name());
        text += &table_head(&transports::TITLES);
        for pair in pairs {
            text += &format!("| {} |\n", pair.cells().join(" | "));
        }
        text
    }

    fn comparison(&self, lines: &[Line]) -> String {
        let setting = &lines[0].setting;
        let library = |name: &Option<String>| name.clone().unwrap_or_else(|| "not run".to_owned());
        let mut text = format!(
            "## {} x {}\n\nDriver {}, {}. Ours: {}; theirs: {}. {} PEs, each on a GPU of its own; {} runs of each program, in turn.\n",
            setting.pes,
            setting.gpu,
            setting.driver,
            setting.date,
            library(&setting.our_library),
            library(&setting.their_library),
            setting.pes,
            setting.repetitions,
        );
        let goals: Vec<bool> = lines.iter().filter_map(|line| line.met).collect();
        if !goals.is_empty() {
            let met = goals.iter().filter(|met| **met).count();
            text += &format!("Goals met: {met} of {}.\n", goals.len());
        }
        if is_comparable(lines) {
            text += &format!("\n![Ratios](../performance/{})\n", self.plot_name());
        }
        for (group, title) in GROUPS {
            let lines: Vec<&Line> = lines.iter().filter(|line| line.group == group).collect();
            if lines.is_empty() {
                continue;
            }
            text += &format!("\n### {title}\n\n{}", table_head(&titles("theirs")));
            for line in &lines {
                text += &format!("| {} |\n", line.cells().join(" | ").replace('*', "\\*"));
            }
            if lines.iter().any(|line| line.theirs_from == Some(Source::Reference)) {
                text += &format!("\n{}.\n", REFERENCE.replace('*', "\\*"));
            }
        }
        text
    }
}

fn is_comparable(lines: &[Line]) -> bool {
    lines.iter().any(|line| line.group != "link" && line.ratio.is_some())
}

/// Returns a table's titles, and the line below them.
fn table_head(titles: &[&str]) -> String {
    format!("| {} |\n|{}\n", titles.join(" | "), "---|".repeat(titles.len()))
}

/// Returns where and when this was measured, and what.
fn heading(job: &Job, what: &str) -> String {
    let unknown = || "unknown".to_owned();
    format!(
        "## {} PEs on {}: {what}\n\nDriver {}, {}.\n\n",
        job.npes,
        job.gpu.clone().unwrap_or_else(unknown),
        job.driver.clone().unwrap_or_else(unknown),
        job.date,
    )
}

const TEST_TITLES: [&str; 12] = [
    "test",
    "path",
    "scope",
    "CTAs x threads",
    "bytes",
    "stride",
    "GB/s",
    "M ops/s",
    "HCA GB/s",
    "HCA M/s",
    "p50 [us]",
    "p99 [us]",
];

/// Returns the figures of the `shmem_*` tests, one table.
fn tests_section(rows: &[Row]) -> String {
    let mut text = heading(&rows[0].job, "`shmem_*` tests");
    text += &table_head(&TEST_TITLES);
    for row in rows {
        let Job { hca, transport, .. } = &row.job;
        let path = hca.as_ref().map_or_else(|| transport.clone(), |hca| format!("{transport}, {hca} HCA"));
        text += &format!(
            "| {} | {path} | {} | {} x {} | {} | {} | {} | {} | {} | {} | {} | {} |\n",
            row.bench,
            row.scope,
            row.ctas,
            row.threads,
            row.bytes,
            row.stride.map_or_else(|| "-".to_owned(), |stride| stride.to_string()),
            rounded(row.gbps),
            rounded(row.mops),
            rounded(row.ceiling_gbps),
            rounded(row.ceiling_mops),
            rounded(row.times.us_p50),
            rounded(row.times.us_p99),
        );
    }
    if rows.iter().any(|row| row.ceiling_gbps.is_some()) {
        text += "\nHCA: its own ceiling, requests of this size that were posted before the clock started.\n";
    }
    text
}

const NOTHING: &str = "Nothing has been measured on GPUs yet: `perftest/baselines` is empty.\n";

/// Returns the sections of every baseline, in the order of their names.
pub fn figures(baselines: &[Baseline]) -> String {
    if baselines.is_empty() {
        return NOTHING.to_owned();
    }
    baselines.iter().map(Baseline::section).collect::<Vec<_>>().join("\n")
}

/// Returns the summary: a table with some rows of each comparison, and the plot of the first one.
pub fn summary(baselines: &[Baseline]) -> String {
    let compared: Vec<(&Baseline, &[Line])> = baselines
        .iter()
        .filter_map(|baseline| match &baseline.results {
            Results::Comparison(lines) if is_comparable(lines) => Some((baseline, lines.as_slice())),
            _ => None,
        })
        .collect();
    let Some((first, lines)) = compared.first() else { return NOTHING.to_owned() };
    let mut titles = vec!["row".to_owned(), "unit".to_owned()];
    for (_, lines) in &compared {
        let pes = lines[0].setting.pes;
        titles.extend([format!("ours, {pes} GPUs"), "theirs".to_owned(), "ratio".to_owned()]);
    }
    let mut text = table_head(&titles.iter().map(String::as_str).collect::<Vec<_>>());
    for name in SUMMARY {
        let found = compared.iter().map(|(_, lines)| lines.iter().find(|line| line.row == name));
        let cells: Vec<Option<&Line>> = found.collect();
        let Some(line) = cells.iter().flatten().next() else { continue };
        text += &format!("| {} | {} |", line.title, line.unit);
        for cell in &cells {
            let reference = cell.is_some_and(|line| line.theirs_from == Some(Source::Reference));
            text += &format!(
                " {} | {}{} | {} |",
                rounded(cell.and_then(|line| line.ours)),
                rounded(cell.and_then(|line| line.theirs)),
                if reference { "\\*" } else { "" },
                cell.and_then(|line| line.ratio).map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}")),
            );
        }
        text += "\n";
    }
    text += &format!(
        "\n\\* not of this run: measured before, on one H200; see [the figures](notes/{}).\n",
        FIGURES.rsplit('/').next().unwrap_or(FIGURES),
    );
    let Setting { pes, gpu, .. } = &lines[0].setting;
    text + &format!("\n![Ratios of all rows on {pes} x {gpu}](performance/{})\n", first.plot_name())
}

/// Returns the page at `path` with `made` between its two marks.
///
/// # Errors
/// The marks are not there.
pub fn page(path: &str, old: &str, made: &str) -> Result<String, Error> {
    let missing = || Error::Usage(format!("{path}: the lines `{BEGIN}` and `{END}` are not there"));
    let (before, rest) = old.split_once(BEGIN).ok_or_else(missing)?;
    let (_, after) = rest.split_once(END).ok_or_else(missing)?;
    Ok(format!("{before}{BEGIN}\n\n{made}\n{END}{after}"))
}

/// Returns what the files made from the baselines below `root` should hold: the pages, and the
/// plots.
///
/// # Errors
/// Something cannot be read or drawn.
pub fn files(root: &Path) -> Result<Vec<(PathBuf, String)>, Error> {
    let baselines = Baseline::read_all(root)?;
    let mut files = Vec::new();
    for (name, made) in [(PAGE, summary(&baselines)), (FIGURES, figures(&baselines))] {
        let path = root.join(name);
        let old = std::fs::read_to_string(&path).map_err(|error| usage(&path, error))?;
        files.push((path, page(name, &old, &made)?));
    }
    for baseline in &baselines {
        if let Some(plot) = baseline.plot()? {
            files.push((root.join(PLOTS).join(baseline.plot_name()), plot));
        }
    }
    Ok(files)
}

/// Returns the plots below `root` that no baseline has.
///
/// # Errors
/// The folder cannot be read.
pub fn strays(root: &Path, files: &[(PathBuf, String)]) -> Result<Vec<PathBuf>, Error> {
    let folder = root.join(PLOTS);
    let entries = match std::fs::read_dir(&folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(usage(&folder, error)),
    };
    let paths: Result<Vec<PathBuf>, Error> =
        entries.map(|entry| entry.map(|entry| entry.path()).map_err(|error| usage(&folder, error))).collect();
    Ok(paths?.into_iter().filter(|path| files.iter().all(|(made, _)| made != path)).collect())
}

/// Writes them.
fn write(root: &Path) -> Result<(), Error> {
    let files = files(root)?;
    for (path, text) in &files {
        let failed = |source| Error::Output { path: path.clone(), source };
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(failed)?;
        }
        std::fs::write(path, text).map_err(failed)?;
    }
    for stray in strays(root, &files)? {
        std::fs::remove_file(&stray).map_err(|source| Error::Output { path: stray.clone(), source })?;
    }
    Ok(())
}

/// Runs the program `performance_docs`: its one argument is the root of the repository, by default
/// the current folder.
pub fn main() -> ExitCode {
    let root = std::env::args_os().nth(1).map_or_else(|| PathBuf::from("."), PathBuf::from);
    match write(&root) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("performance_docs: {error}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::report::tests::setting;
    use super::super::table;
    use super::*;
    use crate::report::to_json;

    fn baseline() -> Baseline {
        let line = |name: &str, ours: &[u64], theirs: &[u64]| {
            Line::new(table::find(name).unwrap(), ours, theirs, None, &setting())
        };
        let lines = vec![
            line("flag_ping_pong", &[1_210_000], &[1_210_000]),
            line("signal_ping_pong", &[1_250_000], &[2_440_000]),
            line("post_p_1", &[10_000_000], &[]),
        ];
        Baseline { name: "model-x2".to_owned(), results: Results::Comparison(lines) }
    }

    fn template() -> String {
        format!("# Title\n\nBefore.\n\n{BEGIN}\nold\n{END}\n\nAfter.\n")
    }

    #[test]
    fn only_what_stands_between_the_marks_changes() {
        let made = page(FIGURES, &template(), &figures(&[baseline()])).unwrap();
        assert!(made.starts_with("# Title\n\nBefore.\n\n") && made.ends_with("\n\nAfter.\n") && !made.contains("old"));
        for text in [
            "## 2 x Model of a GPU",
            "Driver 1.2.3, 2026-11-21",
            "| signal ping-pong, round trip | 1.250 | 2.440 | us | 1.95 | <= 1.3 us | yes | - |",
            "performance/model-x2.svg",
            "34.00\\*",
            "Goals met: 2 of 2",
        ] {
            assert!(made.contains(text), "{text}: {made}");
        }
        assert_eq!(page(FIGURES, &made, &figures(&[baseline()])).unwrap(), made);
    }

    #[test]
    fn the_summary_has_a_group_of_columns_for_each_comparison() {
        let mut other = baseline();
        let Results::Comparison(lines) = &mut other.results else { unreachable!() };
        for line in lines.iter_mut() {
            line.setting.pes = 8;
        }
        lines.retain(|line| line.row != "signal_ping_pong");
        lines.push(Line::new(table::find("post_p_32").unwrap(), &[10_000_000], &[], None, &lines[0].setting.clone()));
        let made = summary(&[baseline(), other]);
        for text in [
            "| row | unit | ours, 2 GPUs | theirs | ratio | ours, 8 GPUs | theirs | ratio |",
            "| signal ping-pong, round trip | us | 1.250 | 2.440 | 1.95 | - | - | - |",
            "945.0\\*",
            "](performance/model-x2.svg)",
        ] {
            assert!(made.contains(text), "{text}: {made}");
        }
        assert!(!made.contains("flag_ping_pong") && !made.contains("post_p_1 "), "{made}");
    }

    #[test]
    fn without_results_the_pages_say_so() {
        for made in [figures(&[]), summary(&[])] {
            assert!(made.contains("Nothing has been measured on GPUs yet"), "{made}");
        }
        assert!(page(PAGE, "# Title", "").unwrap_err().to_string().contains("docs/performance.md: the lines"));
    }

    #[test]
    fn a_baseline_that_is_none_is_named() {
        let folder = std::env::temp_dir().join(format!("oxshmem-baselines-{}", std::process::id()));
        std::fs::create_dir_all(folder.join(BASELINES)).unwrap();
        let file = folder.join(BASELINES).join("odd.jsonl");
        for (text, reason) in [("", "no line"), ("{}\n", "line 1: missing field")] {
            std::fs::write(&file, text).unwrap();
            let error = Baseline::read_all(&folder).unwrap_err().to_string();
            assert!(error.contains("odd.jsonl") && error.contains(reason), "{error}");
        }
        let Results::Comparison(lines) = baseline().results else { unreachable!() };
        let json: Vec<String> = lines.iter().map(|line| serde_json::to_string(line).unwrap()).collect();
        std::fs::write(&file, json.join("\n")).unwrap();
        assert_eq!(Baseline::read_all(&folder).unwrap()[0].results, baseline().results);

        let mut row = crate::report::tests::row("warp", 64, 1.5);
        row.job.gpu = Some("Model".to_owned());
        std::fs::write(&file, to_json(&row).unwrap()).unwrap();
        let tests = Baseline::read_all(&folder).unwrap();
        let made = figures(&tests);
        for text in [
            "## 2 PEs on Model: `shmem_*` tests",
            "| shmem_put_bw | ibgda, soft HCA | warp | 4 x 32 | 64 | - | 1.500 | 1500 |",
        ] {
            assert!(made.contains(text), "{text}: {made}");
        }
        assert_eq!(tests[0].plot().unwrap(), None);

        let mut ibrc = Row { gbps: Some(0.5), ..row.clone() };
        ibrc.job.transport = "ibrc".to_owned();
        let beside = [64, 4096].map(|bytes| [&row, &ibrc].map(|row| Row { bytes, ..row.clone() })).concat();
        std::fs::write(&file, beside.iter().map(|row| to_json(row).unwrap()).collect::<Vec<_>>().join("\n")).unwrap();
        let transports = Baseline::read_all(&folder).unwrap();
        let made = figures(&transports);
        for text in [
            "## 2 PEs on Model: IBGDA beside IBRC",
            "performance/odd.svg",
            "| put_nbi by warps | 4 | 64 | 1.500 | 0.500 | GB/s | 3.00x | verified |",
        ] {
            assert!(made.contains(text), "{text}: {made}");
        }
        assert!(transports[0].plot().unwrap().is_some_and(|svg| svg.contains("put bandwidth")));

        std::fs::write(&file, to_json(&Row { verified: false, ..row }).unwrap()).unwrap();
        assert!(Baseline::read_all(&folder).unwrap_err().to_string().contains("not verified"));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
