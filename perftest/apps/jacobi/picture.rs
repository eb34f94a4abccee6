//! The field as a picture.

use std::path::Path;

use oxshmem_perftest::error::Error;
use plotters::prelude::*;

use crate::mesh::Mesh;

/// Most cells in a row or a column of a picture.
const CELLS: u64 = 96;

/// The rows (or columns) of `n` that a picture shows: evenly spaced, the first and the last among them.
pub fn places(n: u64) -> Vec<u64> {
    let cells = n.min(CELLS);
    (0..cells).map(|cell| cell * (n - 1) / (cells - 1)).collect()
}

/// From cold to hot.
fn color(value: f32) -> RGBColor {
    const STOPS: [(f32, f32, f32); 5] =
        [(0.0, 0.0, 64.0), (64.0, 32.0, 160.0), (208.0, 48.0, 96.0), (248.0, 160.0, 40.0), (255.0, 248.0, 208.0)];
    let at = value.clamp(0.0, 1.0) * (STOPS.len() - 1) as f32;
    let low = (at as usize).min(STOPS.len() - 2);
    let part = at - low as f32;
    let mix = |from: f32, to: f32| (from + (to - from) * part).round() as u8;
    let (a, b) = (STOPS[low], STOPS[low + 1]);
    RGBColor(mix(a.0, b.0), mix(a.1, b.1), mix(a.2, b.2))
}

/// Draws `values`, the field at the crossings of [`places`] of its rows and columns, into `path`.
///
/// # Errors
/// The file cannot be written.
pub fn draw(path: &Path, mesh: Mesh, iterations: u64, values: &[Vec<f32>]) -> Result<(), Error> {
    let area = SVGBackend::new(path, (820, 800)).into_drawing_area();
    let result = (|| {
        area.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&area)
            .caption(format!("jacobi: {} x {} points, {iterations} iterations", mesh.nx, mesh.ny), ("sans-serif", 20))
            .margin(16)
            .x_label_area_size(48)
            .y_label_area_size(72)
            .build_cartesian_2d(0.0..mesh.nx as f64, mesh.ny as f64..0.0)?;
        chart
            .configure_mesh()
            .disable_mesh()
            .x_desc("column")
            .y_desc("row")
            .x_label_formatter(&|value| format!("{value:.0}"))
            .y_label_formatter(&|value| format!("{value:.0}"))
            .draw()?;
        let (height, width) = (mesh.ny as f64 / values.len() as f64, mesh.nx as f64 / values[0].len() as f64);
        let cells = values.iter().enumerate().flat_map(|(row, values)| {
            values.iter().enumerate().map(move |(column, value)| {
                let (left, top) = (column as f64 * width, row as f64 * height);
                Rectangle::new([(left, top), (left + width, top + height)], color(*value).filled())
            })
        });
        chart.draw_series(cells)?;
        area.present()
    })();
    result.map_err(|error: DrawingAreaErrorKind<_>| Error::Plot { path: path.to_owned(), reason: error.to_string() })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn pictures_reach_from_the_first_to_the_last() {
        for n in [3, 5, 96, 97, 16384] {
            let places = places(n);
            assert_eq!((places[0], *places.last().unwrap()), (0, n - 1));
            assert!(places.len() <= 96 && places.windows(2).all(|pair| pair[0] < pair[1]));
        }
    }

    #[test]
    fn a_picture_has_a_cell_for_each_value() {
        let path = std::env::temp_dir().join(format!("oxshmem-jacobi-{}.svg", std::process::id()));
        draw(&path, Mesh { nx: 3, ny: 4 }, 7, &[vec![0.0, 0.5, 1.0], vec![1.0, 0.25, 0.0]]).unwrap();
        let svg = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(svg.contains("3 x 4 points, 7 iterations") && svg.matches("<rect").count() >= 6, "{svg}");
        assert_ne!(color(0.0), color(1.0));
        let error = draw(Path::new("/nonexistent/x.svg"), Mesh { nx: 3, ny: 3 }, 1, &[vec![0.0]]).unwrap_err();
        assert!(error.to_string().contains("/nonexistent/x.svg"));
    }
}
