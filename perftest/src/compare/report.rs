//! What a compared row is reported as: a line of the table, and a line of JSON.

use serde::{Deserialize, Serialize};

use super::rows::{Path, Row};
use crate::report::rounded;

/// The machine, and when and how it was measured. The same in every line of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Setting {
    /// GPU model.
    pub gpu: String,
    /// The driver's version.
    pub driver: String,
    /// PEs, each with a GPU of its own.
    pub pes: u32,
    /// How often the programs were run, in turn.
    pub repetitions: u32,
    /// Day, UTC.
    pub date: String,
    /// The libraries' names and versions; null where one was not run.
    pub our_library: Option<String>,
    /// The same for the other side.
    pub their_library: Option<String>,
}

/// Where their figure comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// Measured in this run.
    Run,
    /// Measured before, elsewhere: [`Row::reference`].
    Reference,
}

/// Median and extremes of a side's samples.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Figure {
    /// Median.
    pub median: f64,
    /// The lowest.
    pub low: f64,
    /// The highest.
    pub high: f64,
}

impl Figure {
    /// Returns the figure for the times of `row`'s samples; `None` if there are none.
    pub fn of(row: &Row, nanoseconds: &[u64]) -> Option<Self> {
        let mut figures: Vec<f64> = nanoseconds.iter().map(|ns| row.figure(*ns)).collect();
        figures.sort_by(f64::total_cmp);
        let middle = figures.len() / 2;
        let median = match figures.len() % 2 {
            _ if figures.is_empty() => return None,
            0 => f64::midpoint(figures[middle - 1], figures[middle]),
            _ => figures[middle],
        };
        Some(Self { median, low: figures[0], high: figures[figures.len() - 1] })
    }
}

/// A compared row, as one line of JSON. Fields that do not apply are null.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// [`Row::name`].
    pub row: String,
    /// [`Row::title`].
    pub title: String,
    /// `link`: a limit; `p2p`: over the GPUs' link; `null-card`: posting alone.
    pub group: String,
    /// Median of our samples.
    pub ours: Option<f64>,
    /// Median of theirs.
    pub theirs: Option<f64>,
    /// What both are in.
    pub unit: String,
    /// How many times better ours is; above 1: ours is better.
    pub ratio: Option<f64>,
    /// What ours should reach.
    pub goal: Option<String>,
    /// Whether it does; null where what the goal is relative to was not measured, or where the goal
    /// is for another number of PEs.
    pub met: Option<bool>,
    /// What a plain kernel of the same shape reached in the same run, the better of both programs'
    /// medians.
    pub limit: Option<f64>,
    /// Lowest and highest of our samples.
    pub our_range: Option<(f64, f64)>,
    /// The same of theirs.
    pub their_range: Option<(f64, f64)>,
    /// Where their figure comes from.
    pub theirs_from: Option<Source>,
    /// Samples on each side.
    pub samples: usize,
    /// The rest.
    #[serde(flatten)]
    pub setting: Setting,
}

/// Returns the value with four significant digits, as a reader takes them; more would be noise.
fn digits(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    let scale = 10f64.powi(3 - value.abs().log10().floor() as i32);
    (value * scale).round() / scale
}

impl Line {
    /// Returns the line of `row` from both sides' samples and its limit.
    pub fn new(row: &Row, ours: &[u64], theirs: &[u64], limit: Option<f64>, setting: &Setting) -> Self {
        let (our_figure, their_figure) = (Figure::of(row, ours), Figure::of(row, theirs));
        let our_median = our_figure.map(|figure| figure.median);
        let measured = their_figure.map(|figure| figure.median);
        let their_median = measured.or(row.reference);
        let theirs_from = match (measured, row.reference) {
            (Some(_), _) => Some(Source::Run),
            (None, Some(_)) => Some(Source::Reference),
            (None, None) => None,
        };
        let goal = row.goal.filter(|_| row.goal_pes.is_none_or(|pes| pes == setting.pes));
        let group = match row.path {
            _ if row.is_limit() => "link",
            Path::P2p => "p2p",
            Path::NullCard { .. } => "null-card",
        };
        let range = |figure: Option<Figure>| figure.map(|figure| (digits(figure.low), digits(figure.high)));
        Self {
            row: row.name.to_owned(),
            title: row.title.to_owned(),
            group: group.to_owned(),
            ours: our_median.map(digits),
            theirs: their_median.map(digits),
            unit: row.unit.name().to_owned(),
            ratio: our_median.zip(their_median).map(|(ours, theirs)| digits(row.unit.ratio(ours, theirs))),
            goal: goal.map(|goal| goal.text(row.unit)),
            met: goal.zip(our_median).and_then(|(goal, ours)| goal.is_met(ours, their_median, limit)),
            limit: limit.map(digits),
            our_range: range(our_figure),
            their_range: range(their_figure),
            theirs_from,
            samples: ours.len(),
            setting: setting.clone(),
        }
    }

    /// Returns the cells of a table: what, ours, theirs, unit, ratio, goal, whether it is met,
    /// limit. A figure that was not measured in the run has a `*`.
    pub fn cells(&self) -> [String; 8] {
        let star = if self.theirs_from == Some(Source::Reference) { "*" } else { "" };
        let met = match self.met {
            Some(true) => "yes",
            Some(false) => "no",
            None => "-",
        };
        [
            self.title.clone(),
            rounded(self.ours),
            format!("{}{star}", rounded(self.theirs)),
            self.unit.clone(),
            self.ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}")),
            self.goal.clone().unwrap_or_else(|| "-".to_owned()),
            met.to_owned(),
            rounded(self.limit),
        ]
    }
}

/// Returns the titles of [`Line::cells`]; `other` is what the other side is called.
#[must_use]
pub fn titles(other: &str) -> [&str; 8] {
    ["row", "ours", other, "unit", "ratio", "goal", "met", "limit"]
}

/// What a `*` says.
pub const REFERENCE: &str = "* not of this run: NVSHMEM 3.4.5's public device API on one H200, posting to a null card like ours (queues, doorbells and \
                             CQs in GPU memory), one QP per CTA; each with its default depth (ours 8192, theirs 1024) unless the row says otherwise, but theirs with 8192 where that was faster";

/// Returns a table of lines with a caption each for the groups.
pub fn table(lines: &[Line], other: &str) -> String {
    let titles = titles(other);
    let rows: Vec<[String; 8]> = lines.iter().map(Line::cells).collect();
    let widths: Vec<usize> = (0..titles.len())
        .map(|column| rows.iter().map(|row| row[column].len()).chain([titles[column].len()]).max().unwrap_or(0))
        .collect();
    let print = |cells: &[String]| {
        let cells: Vec<String> =
            cells
                .iter()
                .zip(&widths)
                .enumerate()
                // Words to the left, figures to the right.
                .map(|(column, (cell, width))| {
                    if matches!(column, 0 | 3 | 5 | 6) { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
                })
                .collect();
        cells.join("  ").trim_end().to_owned()
    };
    let mut text = vec![print(&titles.map(str::to_owned))];
    text.extend(rows.iter().map(|row| print(row)));
    if lines.iter().any(|line| line.theirs_from == Some(Source::Reference)) {
        text.push(REFERENCE.to_owned());
    }
    text.join("\n") + "\n"
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(crate) mod tests {
    use super::super::table;
    use super::*;
    use proptest::prelude::*;

    pub(crate) fn setting() -> Setting {
        Setting {
            gpu: "Model of a GPU".to_owned(),
            driver: "1.2.3".to_owned(),
            pes: 2,
            repetitions: 3,
            date: "2026-11-21".to_owned(),
            our_library: Some("OxSHMEM 0.1.0".to_owned()),
            their_library: Some("NVSHMEM 3.4.5".to_owned()),
        }
    }

    fn line(name: &str, ours: &[u64], theirs: &[u64], limit: Option<f64>) -> Line {
        Line::new(table::find(name).unwrap(), ours, theirs, limit, &setting())
    }

    #[test]
    fn a_line_has_medians_ratio_and_goal() {
        // 1000 round trips.
        let line = line("signal_ping_pong", &[1_000_000, 1_200_000, 9_000_000], &[2_400_000, 2_500_000], Some(1.21));
        assert_eq!((line.ours, line.theirs, line.unit.as_str()), (Some(1.2), Some(2.45), "us"));
        assert_eq!((line.ratio, line.met, line.goal.as_deref()), (Some(2.042), Some(true), Some("<= 1.3 us")));
        assert_eq!((line.our_range, line.theirs_from, line.samples), (Some((1.0, 9.0)), Some(Source::Run), 3));
    }

    #[test]
    fn what_was_not_measured_stays_unknown() {
        let without = line("put_quiet_thread_64k", &[100_000], &[], None);
        assert_eq!((without.theirs, without.ratio, without.met, without.theirs_from), (None, None, None, None));
        let nothing = line("put_quiet_thread_64k", &[], &[100_000], None);
        assert_eq!((nothing.ours, nothing.ratio, nothing.met), (None, None, None));
        let unlimited = line("put_bw_block_1", &[14_000_000], &[15_000_000], None);
        assert!(unlimited.ratio.is_some() && unlimited.met.is_none());
        let cells = without.cells();
        assert_eq!((&cells[2], &cells[4], &cells[6]), (&"-".to_owned(), &"-".to_owned(), &"-".to_owned()));
    }

    #[test]
    fn goals_for_another_number_of_pes_do_not_count() {
        let two = line("barrier_all_thread", &[1_000_000], &[3_500_000], None);
        assert_eq!((two.goal, two.met), (None, None));
        let four = Setting { pes: 4, ..setting() };
        let four = Line::new(table::find("barrier_all_thread").unwrap(), &[1_000_000], &[3_500_000], None, &four);
        assert_eq!((four.goal.as_deref(), four.met), (Some("<= 1.4 us"), Some(true)));
    }

    #[test]
    fn references_are_marked() {
        let row = table::find("post_p_1").unwrap();
        // 1024 puts an iteration.
        let line = line(row.name, &[row.iters * 1024 * 5], &[], None);
        assert_eq!((line.ours, line.theirs, line.theirs_from), (Some(200.0), Some(34.0), Some(Source::Reference)));
        assert_eq!((line.ratio, line.met, line.group.as_str()), (Some(5.882), Some(true), "null-card"));
        assert!(line.cells()[2].ends_with('*') && table(&[line], "theirs").contains("not of this run"));
    }

    #[test]
    fn json_can_be_read_back_and_has_the_setting() {
        let line = line("signal_ping_pong", &[1_000_000], &[2_400_000], Some(1.21));
        let text = serde_json::to_string(&line).unwrap();
        for field in ["row", "ours", "theirs", "unit", "ratio", "goal", "gpu", "driver", "pes", "date", "samples"] {
            assert!(text.contains(&format!("\"{field}\":")), "{field}: {text}");
        }
        assert_eq!(serde_json::from_str::<Line>(&text).unwrap(), line);
    }

    #[test]
    fn the_table_is_aligned() {
        let lines = [
            line("signal_ping_pong", &[1_000_000], &[2_400_000], Some(1.21)),
            line("put_bw_block_32", &[1_000_000], &[], None),
        ];
        let text = table(&lines, "theirs");
        let starts: Vec<usize> =
            text.lines().map(|line| line.find("  us").or(line.find("  GB/s")).unwrap_or(0)).collect();
        assert_eq!((text.lines().count(), starts[1]), (3, starts[2]));
        assert!(!text.contains("not of this run"));
    }

    proptest! {
        #[test]
        fn medians_lie_between_the_extremes(times in prop::collection::vec(1u64..1_000_000_000, 1..20)) {
            let figure = Figure::of(table::find("put_bw_block_1").unwrap(), &times).unwrap();
            prop_assert!(figure.low <= figure.median && figure.median <= figure.high);
        }

        #[test]
        fn digits_change_little(value in 1e-6f64..1e9) {
            prop_assert!((digits(value) / value - 1.0).abs() < 5.1e-4);
        }
    }
}
