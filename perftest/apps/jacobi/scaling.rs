//! Strong and weak scaling: one job after the other, with more and more PEs.

use std::path::Path;
use std::process::ExitCode;

use oxshmem_perftest::error::Error;
use oxshmem_perftest::report::JsonLines;
use oxshmem_perftest::step;
use plotters::prelude::*;

use crate::options::{Options, Scaling};
use crate::report::{self, Row};

/// Up to this many PEs every number of them is measured, above only powers of two and the most.
const EVERY: u32 = 8;

fn numbers(most: u32) -> Vec<u32> {
    (1..=most).filter(|n| *n <= EVERY || n.is_power_of_two() || *n == most).collect()
}

/// Rows of the mesh for `npes` PEs.
fn height(options: &Options, scaling: Scaling, npes: u32) -> u64 {
    match scaling {
        Scaling::Strong => options.ny,
        Scaling::Weak => (options.ny - 2) * u64::from(npes) + 2,
    }
}

/// Measures, prints the table, and writes what was asked for. `args` are the command line's, without the program's name.
///
/// # Errors
/// A job cannot be started, or a file cannot be written.
pub fn run(options: &Options, scaling: Scaling, args: &[String]) -> Result<ExitCode, Error> {
    let mut json = options.json.as_deref().map(JsonLines::create).transpose()?;
    let name = match scaling {
        Scaling::Strong => "strong",
        Scaling::Weak => "weak",
    };
    let mut rows: Vec<Row> = Vec::new();
    for npes in numbers(options.npes) {
        let more = ["--ny".to_owned(), height(options, scaling, npes).to_string(), "--lines".to_owned()];
        let answer = match step::rows::<Row>(npes, plain(args).into_iter().chain(more), None)? {
            Ok(answer) => answer,
            Err(complaints) => {
                complaints.iter().for_each(|line| eprintln!("jacobi: {npes} PEs: {line}"));
                return Ok(ExitCode::FAILURE);
            }
        };
        for row in answer {
            let alone =
                rows.iter().find(|first| first.variant == row.variant).map_or(row.gpoints, |first| first.gpoints);
            let speedup = row.gpoints / alone;
            let row = Row {
                scaling: Some(name.to_owned()),
                speedup: Some(speedup),
                efficiency: Some(speedup / f64::from(npes)),
                ..row
            };
            if rows.is_empty() {
                println!(
                    "{}\n# {name} scaling: speedup is that of points per second\n{}",
                    report::title(&row),
                    report::header(true)
                );
            }
            println!("{}", row.text());
            if let Some(json) = &mut json {
                json.write(&row)?;
            }
            rows.push(row);
        }
    }
    if let Some(path) = &options.plot {
        draw(path, &rows, name)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The arguments of one job: without those of the table, and without the rows, which follow.
fn plain(args: &[String]) -> Vec<String> {
    const LEFT_OUT: [&str; 4] = ["--scaling", "--json", "--plot", "--ny"];
    let mut rest = args.iter();
    let mut kept = Vec::new();
    while let Some(arg) = rest.next() {
        let name = arg.split('=').next().unwrap_or(arg);
        if LEFT_OUT.contains(&name) {
            if name == arg {
                rest.next();
            }
        } else {
            kept.push(arg.clone());
        }
    }
    kept
}

/// Speedup over the number of PEs, one line for each variant, and what would be perfect.
fn draw(path: &Path, rows: &[Row], name: &str) -> Result<(), Error> {
    let most = rows.iter().map(|row| row.npes).max().unwrap_or(1) as f64;
    let highest = rows.iter().filter_map(|row| row.speedup).fold(most, f64::max);
    let first = rows.first();
    let mesh = first.map(|row| format!("{} x {} points", row.nx, row.ny)).unwrap_or_default();
    let place = first.map(|row| format!("device {}", row.device)).unwrap_or_default();
    let path_names: Vec<&str> = rows.last().map(|row| row.transport.as_str()).into_iter().collect();
    let caption = format!("jacobi, {name} scaling: {mesh} on one PE, {place}, {}", path_names.join(""));
    let area = SVGBackend::new(path, (960, 600)).into_drawing_area();
    let result = (|| {
        area.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&area)
            .caption(caption, ("sans-serif", 20))
            .margin(16)
            .x_label_area_size(48)
            .y_label_area_size(64)
            .build_cartesian_2d(0.0..most + 0.5, 0.0..highest * 1.05)?;
        chart.configure_mesh().x_desc("PEs").y_desc("speedup (points per second)").draw()?;
        chart
            .draw_series(LineSeries::new([(1.0, 1.0), (most, most)], BLACK.mix(0.4)))?
            .label("perfect")
            .legend(|(x, y)| PathElement::new([(x, y), (x + 20, y)], BLACK.mix(0.4)));
        let mut variants: Vec<&str> = rows.iter().map(|row| row.variant.as_str()).collect();
        variants.sort_unstable();
        variants.dedup();
        for (index, variant) in variants.into_iter().enumerate() {
            let color = Palette99::pick(index).to_rgba();
            let points = rows
                .iter()
                .filter(|row| row.variant == variant)
                .filter_map(|row| Some((row.npes as f64, row.speedup?)));
            chart
                .draw_series(LineSeries::new(points, color.stroke_width(2)).point_size(3))?
                .label(variant)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], color.stroke_width(2)));
        }
        chart.configure_series_labels().background_style(WHITE.mix(0.9)).border_style(BLACK).draw()?;
        area.present()
    })();
    result.map_err(|error: DrawingAreaErrorKind<_>| Error::Plot { path: path.to_owned(), reason: error.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_of_pes_or_powers_of_two() {
        assert_eq!(numbers(1), [1]);
        assert_eq!(numbers(5), [1, 2, 3, 4, 5]);
        assert_eq!(numbers(20), [1, 2, 3, 4, 5, 6, 7, 8, 16, 20]);
    }

    #[test]
    fn jobs_get_the_options_that_are_theirs() {
        let args: Vec<String> =
            "--scaling weak --nx 8 --json=a --ny 9 --plot b.svg --variant p".split(' ').map(str::to_owned).collect();
        assert_eq!(plain(&args), ["--nx", "8", "--variant", "p"]);
    }
}
