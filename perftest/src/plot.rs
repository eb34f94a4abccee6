//! Figures over the message size or another number, as SVG.

use std::path::Path;

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::error::Error;
use crate::report::Row;

/// One line of a plot.
#[derive(Debug, Clone)]
pub struct Series {
    /// What it shows.
    pub label: String,
    /// Where, message size or another number, and the value.
    pub points: Vec<(f64, f64)>,
}

fn label_of_size(bytes: &f64) -> String {
    oxshmem::config::ByteSize(bytes.round() as u64).to_string()
}

/// Returns the lines that points make, each named with the line that it is on; points without a
/// value, or with one that a logarithmic axis cannot show, are left out.
pub fn lines(points: impl IntoIterator<Item = (String, u64, Option<f64>)>) -> Vec<Series> {
    let mut found: Vec<Series> = Vec::new();
    for (label, x, value) in points {
        let Some(value) = value.filter(|value| *value > 0.0) else { continue };
        let point = (x as f64, value);
        match found.iter_mut().find(|series| series.label == label) {
            Some(series) => series.points.push(point),
            None => found.push(Series { label, points: vec![point] }),
        }
    }
    found
}

/// Returns rates, or percentiles, by scope.
fn series(rows: &[Row]) -> Vec<Series> {
    lines(rows.iter().flat_map(|row| {
        [
            (format!("{} scope", row.scope), row.bytes, row.gbps),
            (format!("{} scope, p50", row.scope), row.bytes, row.times.us_p50),
            (format!("{} scope, p99", row.scope), row.bytes, row.times.us_p99),
        ]
    }))
}

/// Draws `rows`, which belong to one run of one test, into `path`.
///
/// # Errors
/// The file cannot be written, or there are fewer than two sizes.
pub fn draw(path: &Path, rows: &[Row]) -> Result<(), Error> {
    let Some(first) = rows.first() else { return draw_series(path, "", "", &[]) };
    let unit = if first.gbps.is_some() { "GB/s (10^9 bytes per second)" } else { "time per iteration [us]" };
    let title = format!(
        "{}: device {}, {}{}, {} CTAs x {} threads",
        first.bench,
        first.job.device,
        first.job.transport,
        first.job.hca.as_ref().map(|hca| format!(" ({hca} HCA)")).unwrap_or_default(),
        first.ctas,
        first.threads,
    );
    draw_series(path, &title, unit, &series(rows))
}

/// Draws lines over the message size into `path`.
///
/// # Errors
/// The file cannot be written, or there are fewer than two sizes.
pub fn draw_series(path: &Path, title: &str, unit: &str, lines: &[Series]) -> Result<(), Error> {
    let chart = Chart { title, x: MESSAGE_SIZE, y: unit, lines };
    if chart.ranges().is_none() {
        let reason = "figures are drawn over the message size, and there are fewer than two sizes".to_owned();
        return Err(Error::Plot { path: path.to_owned(), reason });
    }
    draw_charts(path, (960, 600), &[chart])
}

/// What an axis of sizes is called.
pub const MESSAGE_SIZE: &str = "message size [bytes]";

/// Lines in a frame, both axes logarithmic.
#[derive(Debug, Clone, Copy)]
pub struct Chart<'a> {
    /// What stands above it.
    pub title: &'a str,
    /// What stands at the horizontal axis, whose numbers are powers of two.
    pub x: &'a str,
    /// What stands at the vertical axis.
    pub y: &'a str,
    /// The lines.
    pub lines: &'a [Series],
}

/// Ticks of a horizontal axis at most; with more points than that, those at powers of two are
/// named.
const MOST_X_TICKS: usize = 16;

/// Colours of lines, in turn: dark enough on white, and different for people who see some colours
/// alike.
const COLORS: [RGBColor; 7] = [
    RGBColor(0, 90, 160),
    RGBColor(213, 94, 0),
    RGBColor(0, 130, 95),
    RGBColor(40, 40, 40),
    RGBColor(150, 60, 110),
    RGBColor(180, 120, 0),
    RGBColor(60, 140, 200),
];

/// Returns round numbers from `low` to `high`, which are above 0: as many in each power of ten as
/// keep the axis readable.
fn ticks(low: f64, high: f64) -> Vec<f64> {
    const STEPS: [&[&str]; 3] = [&["1", "1.5", "2", "3", "4", "5", "7"], &["1", "2", "5"], &["1"]];
    const MOST: usize = 12;
    let powers = low.log10().floor() as i32..=high.log10().ceil() as i32;
    let within = |steps: &[&str]| -> Vec<f64> {
        let numbers = powers.clone().flat_map(|power| steps.iter().map(move |step| format!("{step}e{power}")));
        numbers.filter_map(|number| number.parse().ok()).filter(|value| (low..=high).contains(value)).collect()
    };
    STEPS.iter().map(|steps| within(steps)).find(|ticks| ticks.len() <= MOST).unwrap_or_else(|| within(STEPS[2]))
}

impl Chart<'_> {
    /// Returns where points are, or powers of two if that is too many places.
    fn x_ticks(&self) -> Vec<f64> {
        let mut places: Vec<f64> = self.lines.iter().flat_map(|line| line.points.iter().map(|point| point.0)).collect();
        places.sort_by(f64::total_cmp);
        places.dedup();
        if places.len() > MOST_X_TICKS {
            places.retain(|place| (*place as u64).is_power_of_two());
        }
        places
    }

    /// Returns from where to where the points go, or nothing if they lie above each other.
    fn ranges(&self) -> Option<[(f64, f64); 2]> {
        let range = |pick: fn(&(f64, f64)) -> f64| {
            let values = self.lines.iter().flat_map(|line| line.points.iter().map(pick));
            values.fold((f64::INFINITY, 0f64), |(low, high), value| (low.min(value), high.max(value)))
        };
        let (x, y) = (range(|point| point.0), range(|point| point.1));
        (x.0 < x.1).then_some([x, y])
    }
}

/// Draws charts side by side into `path`, `size` pixels in all. One whose points lie above each
/// other stays empty.
///
/// # Errors
/// The file cannot be written.
pub fn draw_charts(path: &Path, size: (u32, u32), charts: &[Chart<'_>]) -> Result<(), Error> {
    write(path, svg(size, charts))
}

/// Writes what [`svg`] returns into `path`.
///
/// # Errors
/// There is no drawing, or the file cannot be written.
pub fn write(path: &Path, svg: Result<String, String>) -> Result<(), Error> {
    svg.and_then(|text| std::fs::write(path, text).map_err(|error| error.to_string()))
        .map_err(|reason| Error::Plot { path: path.to_owned(), reason })
}

/// Draws charts side by side, `size` pixels in all.
///
/// # Errors
/// The reason why they cannot be drawn.
pub fn svg(size: (u32, u32), charts: &[Chart<'_>]) -> Result<String, String> {
    svg_in_columns(size, charts.len(), charts)
}

/// Draws charts in rows of `columns`, `size` pixels in all.
///
/// # Errors
/// The reason why they cannot be drawn.
pub fn svg_in_columns(size: (u32, u32), columns: usize, charts: &[Chart<'_>]) -> Result<String, String> {
    let columns = columns.max(1);
    let mut text = String::new();
    let drawn = (|| {
        let area = SVGBackend::with_string(&mut text, size).into_drawing_area();
        area.fill(&WHITE)?;
        for (place, chart) in area.split_evenly((charts.len().div_ceil(columns), columns)).iter().zip(charts) {
            let Some([(min, max), (low, high)]) = chart.ranges() else { continue };
            let mut frame = ChartBuilder::on(place)
                .caption(chart.title, ("sans-serif", 20))
                .margin(16)
                .x_label_area_size(56)
                .y_label_area_size(76)
                .build_cartesian_2d(
                    (min..max).log_scale().base(2.0).with_key_points(chart.x_ticks()),
                    (low * 0.8..high * 1.25).log_scale().with_key_points(ticks(low * 0.8, high * 1.25)),
                )?;
            frame
                .configure_mesh()
                .x_desc(chart.x)
                .y_desc(chart.y)
                .x_labels(MOST_X_TICKS)
                .x_label_formatter(&label_of_size)
                .y_label_formatter(&|value| value.to_string())
                .x_label_style(("sans-serif", 14).into_font().color(&BLACK).pos(Pos::new(HPos::Center, VPos::Top)))
                .draw()?;
            for (index, line) in chart.lines.iter().enumerate() {
                let color = COLORS[index % COLORS.len()];
                frame
                    .draw_series(LineSeries::new(line.points.iter().copied(), color.stroke_width(3)).point_size(4))?
                    .label(line.label.as_str())
                    .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], color.stroke_width(3)));
            }
            frame.configure_series_labels().background_style(WHITE.mix(0.9)).border_style(BLACK).draw()?;
        }
        area.present()
    })();
    drawn.map_err(|error: DrawingAreaErrorKind<_>| error.to_string())?;
    Ok(text)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::report::tests::row;

    #[test]
    fn a_plot_names_its_axes_units_and_lines() {
        let path = std::env::temp_dir().join(format!("oxshmem-perftest-{}.svg", std::process::id()));
        let rows = [row("warp", 64, 0.1), row("warp", 4096, 1.5), row("block", 64, 0.2), row("block", 4096, 2.5)];
        draw(&path, &rows).unwrap();
        let svg = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        for text in ["<svg", "message size [bytes]", "GB/s", "warp scope", "block scope", "shmem_put_bw", "4K"] {
            assert!(svg.contains(text), "{text}");
        }
    }

    #[test]
    fn every_number_of_pes_and_speedups_below_one_have_ticks() {
        let line = |label: &str, values: [f64; 5]| Series {
            label: label.to_owned(),
            points: values.into_iter().enumerate().map(|(at, value)| ((at + 1) as f64, value)).collect(),
        };
        let lines = [
            line("p", [1.0, 0.55, 0.38, 0.3, 0.2]),
            line("put", [1.0, 1.06, 0.41, 0.32, 0.3]),
            line("overlap", [1.0, 1.1, 0.4, 0.3, 0.3]),
            line("perfect", [1.0, 2.0, 3.0, 4.0, 5.0]),
        ];
        let chart = Chart { title: "strong scaling", x: "PEs", y: "speedup", lines: &lines };
        let svg = svg((960, 600), &[chart]).unwrap();
        let labels: Vec<&str> = svg.lines().map(str::trim).collect();
        for label in ["1", "2", "3", "4", "5", "0.2", "0.5"] {
            assert!(labels.contains(&label), "{label}: {labels:?}");
        }
        // Yellow on white cannot be seen.
        assert!(!svg.contains("#FFE119") && svg.matches("stroke-width=\"3\"").count() >= lines.len(), "{svg}");
    }

    #[test]
    fn ticks_are_round_and_few() {
        assert_eq!(ticks(0.8, 2.5), [1.0, 1.5, 2.0]);
        assert_eq!(ticks(0.06, 6.25), [0.1, 0.2, 0.5, 1.0, 2.0, 5.0]);
        assert_eq!(ticks(1e-3, 1e6), [1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6]);
    }

    #[test]
    fn one_size_is_not_a_plot() {
        let error = draw(Path::new("x.svg"), &[row("warp", 64, 0.1)]).unwrap_err().to_string();
        assert!(error.contains("fewer than two sizes"), "{error}");
        assert!(!Path::new("x.svg").exists());
    }

    #[test]
    fn a_plot_that_cannot_be_written_is_named() {
        let rows = [row("warp", 64, 0.1), row("warp", 4096, 1.5)];
        let error = draw(Path::new("/nonexistent/x.svg"), &rows).unwrap_err().to_string();
        assert!(error.contains("/nonexistent/x.svg"), "{error}");
    }
}
