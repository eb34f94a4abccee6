//! What was measured, as lines of a table, lines of JSON and a plot.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::calls::{CALLS, Call};
use super::protocol::Way;
use crate::plot::{self, Chart};
use crate::report::rounded;

/// The machine, and when and how it was measured. The same in every line of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Setting {
    /// GPU model; null on the `cpu` device.
    pub gpu: Option<String>,
    /// The driver's version; null likewise.
    pub driver: Option<String>,
    /// PEs, each with a GPU of its own.
    pub pes: u32,
    /// Rounds: each way is measured once in each, in turn.
    pub repetitions: u32,
    /// Day, UTC.
    pub date: String,
    /// Names and versions of what was compared.
    pub libraries: Vec<String>,
}

/// The time of a way.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// Median over the rounds, of the time of one call at the PE that needs longest, in
    /// microseconds.
    pub us: f64,
    /// The lowest and the highest.
    pub range: (f64, f64),
    /// 10^9 bytes a second that every PE at least sends; null where nothing is moved.
    pub bus_gbps: Option<f64>,
    /// Whether calls were a CUDA graph.
    pub graph: bool,
}

/// A call of one size. Fields that do not apply are null.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// [`Call::name`].
    pub call: String,
    /// Bytes of the whole buffer, all parts together; 0 where nothing is moved.
    pub bytes: u64,
    /// Calls that are timed together.
    pub count: u64,
    /// By [`Way::name`].
    pub figures: BTreeMap<String, Figure>,
    /// The fastest way that is not ours.
    pub best: Option<String>,
    /// How many times faster ours is than that; above 1: ours is faster.
    pub ratio: Option<f64>,
    /// The rest.
    #[serde(flatten)]
    pub setting: Setting,
}

/// All sizes of a call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Mean {
    /// [`Call::name`].
    pub call: String,
    /// Rows that have a ratio.
    pub rows: usize,
    /// The geometric mean of their ratios.
    pub geometric_mean: f64,
    /// The lowest of them.
    pub least: f64,
    /// The bytes of that row.
    pub least_bytes: u64,
    /// The rest.
    #[serde(flatten)]
    pub setting: Setting,
}

/// The rounds of a way: the nanoseconds of all calls of each, and whether they were a graph.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Rounds {
    /// One for each round.
    pub ns: Vec<f64>,
    /// Whether they were a CUDA graph.
    pub graph: bool,
}

/// Returns the value with four significant digits.
fn digits(value: f64) -> f64 {
    format!("{value:.3e}").parse().unwrap_or(value)
}

fn median(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    if sorted.len().is_multiple_of(2) { f64::midpoint(sorted[middle - 1], sorted[middle]) } else { sorted[middle] }
}

impl Row {
    /// Returns the row of `call` with parts of `part` bytes and `count` calls a round.
    pub fn new(call: Call, part: u64, count: u64, rounds: &BTreeMap<Way, Rounds>, setting: &Setting) -> Self {
        let npes = u64::from(setting.pes);
        let bytes = call.collective.whole_bytes(part, npes);
        let moved = bytes as f64 * call.collective.bus_factor(npes);
        let measured = rounds.iter().filter(|(_, rounds)| !rounds.ns.is_empty()).map(|(way, rounds)| {
            let mut us: Vec<f64> = rounds.ns.iter().map(|ns| ns / count as f64 / 1e3).collect();
            us.sort_by(f64::total_cmp);
            let middle = median(&us);
            // Bytes in a microsecond are megabytes in a second.
            let bus_gbps = (moved > 0.0 && middle > 0.0).then(|| digits(moved / middle / 1e3));
            let range = (digits(us[0]), digits(us[us.len() - 1]));
            (*way, Figure { us: digits(middle), range, bus_gbps, graph: rounds.graph })
        });
        let measured: BTreeMap<Way, Figure> = measured.collect();
        let others = measured.iter().filter(|(way, _)| **way != Way::Ours);
        let best = others.min_by(|a, b| a.1.us.total_cmp(&b.1.us)).map(|(way, figure)| (*way, figure.us));
        let ours = measured.get(&Way::Ours).map(|figure| figure.us).filter(|us| *us > 0.0);
        Self {
            call: call.name.to_owned(),
            bytes,
            count,
            best: best.map(|(way, _)| way.name().to_owned()),
            ratio: best.zip(ours).map(|((_, best), ours)| digits(best / ours)),
            figures: measured.into_iter().map(|(way, figure)| (way.name().to_owned(), figure)).collect(),
            setting: setting.clone(),
        }
    }

    /// Returns the figure of a way.
    pub fn figure(&self, way: Way) -> Option<&Figure> {
        self.figures.get(way.name())
    }

    /// Returns its line of the table.
    pub fn line(&self) -> String {
        let us = |ways: &[Way]| {
            let found = ways.iter().filter_map(|way| self.figure(*way));
            rounded(found.map(|figure| figure.us).min_by(f64::total_cmp))
        };
        // A figure of calls that are no graph beside graphs.
        let mark = |way: Way| {
            let of = |way| self.figure(way).is_some_and(|figure| figure.graph);
            if of(Way::Ours) && self.figure(way).is_some() && !of(way) { "*" } else { "" }
        };
        let cells = [
            self.call.clone(),
            self.bytes.to_string(),
            us(&[Way::Ours]),
            us(&[Way::Nvshmem]) + mark(Way::Nvshmem),
            us(&[Way::Nccl]),
            us(&[Way::OneShot, Way::TwoShot, Way::SymmBarrier]),
            rounded(self.figure(Way::Ours).and_then(|figure| figure.bus_gbps)),
            self.ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}")),
            self.best.clone().unwrap_or_else(|| "-".to_owned()),
        ];
        layout(&cells)
    }
}

/// Widths of columns; the first and the last are words.
const WIDTHS: [usize; 9] = [13, 10, 9, 9, 9, 9, 9, 6, 13];

fn layout(cells: &[String; 9]) -> String {
    let last = cells.len() - 1;
    let laid = cells.iter().zip(WIDTHS).enumerate().map(|(column, (cell, width))| {
        if column == 0 || column == last { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
    });
    laid.collect::<Vec<_>>().join("  ").trim_end().to_owned()
}

/// Returns the titles of the table's columns.
pub fn titles() -> String {
    let titles =
        ["call", "bytes", "ours us", "NVSHMEM", "NCCL", "symm", "bus GB/s", "ratio", "of the best"].map(str::to_owned);
    layout(&titles)
}

/// Returns the mean of each call, in the order of the table.
pub fn means(rows: &[Row]) -> Vec<Mean> {
    let of = |call: Call| {
        let rows = rows.iter().filter(|row| row.call == call.name);
        let ratios: Vec<(f64, &Row)> =
            rows.filter_map(|row| Some((row.ratio.filter(|ratio| *ratio > 0.0)?, row))).collect();
        let (least, row) = *ratios.iter().min_by(|a, b| a.0.total_cmp(&b.0))?;
        let logarithms: f64 = ratios.iter().map(|(ratio, _)| ratio.ln()).sum();
        Some(Mean {
            call: call.name.to_owned(),
            rows: ratios.len(),
            geometric_mean: digits((logarithms / ratios.len() as f64).exp()),
            least,
            least_bytes: row.bytes,
            setting: row.setting.clone(),
        })
    };
    CALLS.into_iter().filter_map(of).collect()
}

impl Mean {
    /// Returns its line below the table.
    pub fn line(&self) -> String {
        format!(
            "{:<13}  {:.2} times as fast as the best of the others in the geometric mean of {} rows; the least: {:.2}, of {} bytes",
            self.call, self.geometric_mean, self.rows, self.least, self.least_bytes
        )
    }
}

/// Draws time and bus bandwidth of every call over the size, as SVG.
///
/// # Errors
/// No call has two sizes, or the backend refuses.
pub fn plot(rows: &[Row]) -> Result<String, String> {
    let of = |call: Call, value: fn(&Figure) -> Option<f64>| {
        let rows = rows.iter().filter(move |row| row.call == call.name && row.bytes > 0);
        plot::lines(rows.flat_map(move |row| {
            let point = move |way: Way| (way.name().to_owned(), row.bytes, row.figure(way).and_then(value));
            Way::ALL.into_iter().map(point)
        }))
    };
    let drawn: Vec<(Call, [Vec<plot::Series>; 2])> = CALLS
        .into_iter()
        .map(|call| (call, [of(call, |figure| Some(figure.us)), of(call, |figure| figure.bus_gbps)]))
        .filter(|(_, [times, _])| times.iter().any(|line| line.points.len() > 1))
        .collect();
    if drawn.is_empty() {
        return Err("figures are drawn over the size, and no call has two sizes".to_owned());
    }
    let charts = drawn.iter().flat_map(|(call, [times, rates])| {
        let chart = |y, lines| Chart { title: call.name, x: "buffer [bytes]", y, lines };
        [chart("time of a call [us]", times), chart("bus bandwidth [GB/s]", rates)]
    });
    let charts: Vec<Chart<'_>> = charts.collect();
    let rows = u32::try_from(drawn.len()).map_err(|error| error.to_string())?;
    plot::svg_in_columns((1600, 480 * rows), 2, &charts)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::report::to_json;

    fn setting() -> Setting {
        Setting {
            gpu: Some("Model of a GPU".to_owned()),
            driver: Some("1.2.3".to_owned()),
            pes: 2,
            repetitions: 3,
            date: "2026-11-21".to_owned(),
            libraries: vec!["OxSHMEM 0.1.0".to_owned()],
        }
    }

    fn row(call: &str, part: u64, times: &[(Way, &[f64])]) -> Row {
        let rounds = times.iter().map(|(way, ns)| (*way, Rounds { ns: ns.to_vec(), graph: *way != Way::Nvshmem }));
        Row::new(Call::named(call).unwrap(), part, 10, &rounds.collect(), &setting())
    }

    #[test]
    fn ratios_are_to_the_best_of_the_others() {
        let row = row(
            "reduce",
            1 << 20,
            &[
                (Way::Ours, &[90e3, 100e3, 500e3]),
                (Way::Nvshmem, &[200e3, 210e3, 220e3]),
                (Way::Nccl, &[150e3, 160e3]),
                (Way::OneShot, &[400e3]),
                (Way::TwoShot, &[120e3]),
            ],
        );
        assert_eq!((row.bytes, row.best.as_deref(), row.ratio), (1 << 20, Some("symm_two_shot"), Some(1.2)));
        let ours = row.figure(Way::Ours).unwrap();
        assert_eq!((ours.us, ours.range), (10.0, (9.0, 50.0)));
        // An all-reduce of two sends each byte once.
        assert_eq!(ours.bus_gbps, Some(104.9));
        assert_eq!(row.figure(Way::Nccl).unwrap().us, 15.5);
        let cells: Vec<String> = row.line().split_whitespace().map(str::to_owned).collect();
        assert_eq!(cells, ["reduce", "1048576", "10.00", "21.00*", "15.50", "12.00", "104.9", "1.20", "symm_two_shot"]);
        assert!(titles().find("ratio").is_some_and(|at| row.line().find(" 1.20").is_some_and(|place| place == at)));
    }

    #[test]
    fn what_was_not_measured_has_no_figure() {
        let alone = row("alltoall", 512, &[(Way::Ours, &[1e4]), (Way::Nvshmem, &[])]);
        assert_eq!((alone.bytes, alone.ratio, alone.best.as_deref()), (1024, None, None));
        assert_eq!(alone.line().split_whitespace().filter(|cell| *cell == "-").count(), 5, "{}", alone.line());
        let none = row("alltoall", 512, &[(Way::Nccl, &[1e4])]);
        assert_eq!((none.ratio, none.best.as_deref()), (None, Some("nccl")));
        let barrier = row("barrier", 0, &[(Way::Ours, &[4e4]), (Way::SymmBarrier, &[2e4])]);
        assert_eq!((barrier.bytes, barrier.ratio), (0, Some(0.5)));
        assert_eq!(barrier.figure(Way::Ours).unwrap().bus_gbps, None);
        assert!(means(&[alone, none]).is_empty());
    }

    #[test]
    fn means_are_geometric_and_name_the_least() {
        let of = |call: &str, part, ours: f64| row(call, part, &[(Way::Ours, &[ours]), (Way::Nccl, &[1e4])]);
        let rows = [of("reduce", 8, 0.5e4), of("reduce", 32, 2e4), of("reduce", 128, 1e4), of("broadcast", 8, 1e4)];
        let found = means(&rows);
        assert_eq!(found.iter().map(|mean| mean.call.as_str()).collect::<Vec<_>>(), ["broadcast", "reduce"]);
        let mean = &found[1];
        assert_eq!((mean.rows, mean.geometric_mean, mean.least, mean.least_bytes), (3, 1.0, 0.5, 32));
        assert!(mean.line().contains("1.00 times") && mean.line().contains("32 bytes"), "{}", mean.line());
    }

    #[test]
    fn json_can_be_read_back() {
        let rows = [row("reduce", 8, &[(Way::Ours, &[1.0, 3.0]), (Way::Nccl, &[1e4])])];
        let means = means(&rows);
        let (row, mean) = (to_json(&rows[0]).unwrap(), to_json(&means[0]).unwrap());
        assert_eq!(serde_json::from_str::<Row>(&row).unwrap(), rows[0]);
        assert_eq!(serde_json::from_str::<Mean>(&mean).unwrap(), means[0]);
        for field in ["gpu", "driver", "pes", "repetitions", "date", "libraries"] {
            assert!([&row, &mean].iter().all(|line| line.contains(&format!("\"{field}\":"))), "{field}: {row} {mean}");
        }
    }

    #[test]
    fn every_call_is_drawn_twice() {
        let of = |call: &str, part| row(call, part, &[(Way::Ours, &[1e4]), (Way::Nvshmem, &[2e4])]);
        let svg = plot(&[of("reduce", 8), of("reduce", 4096), of("alltoall", 8), of("alltoall", 64), of("sync", 0)]);
        let svg = svg.unwrap();
        let labels: Vec<&str> = svg.lines().map(str::trim).collect();
        for (label, times) in [("reduce", 2), ("alltoall", 2), ("sync", 0), ("nvshmem", 4), ("nccl", 0)] {
            assert_eq!(labels.iter().filter(|found| **found == label).count(), times, "{label}");
        }
        assert!(svg.contains("bus bandwidth [GB/s]") && svg.contains("time of a call [us]"));
        assert!(plot(&[of("reduce", 8)]).unwrap_err().contains("two sizes"));
    }
}
