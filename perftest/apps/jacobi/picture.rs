//! The field as a picture.

use std::fs::File;
use std::io::{BufWriter, Error as IoError};
use std::path::Path;

use oxshmem_perftest::error::Error;
use png::{BitDepth, ColorType, Encoder, EncodingError};

use crate::mesh::Mesh;

/// Most cells along the longer side of a picture.
const MOST: u64 = 1024;
/// Cells of small meshes are drawn so large that the longer side has about as many pixels.
const ENOUGH: u64 = 512;

/// Returns the rows and the columns of the mesh that a picture shows: evenly spaced, the first and
/// the last among them, as many as keep the mesh's shape.
pub fn places(mesh: Mesh) -> (Vec<u64>, Vec<u64>) {
    let longer = mesh.nx.max(mesh.ny);
    let places = |n: u64| {
        let cells = if longer > MOST { (n * MOST / longer).max(2) } else { n };
        (0..cells).map(|cell| cell * (n - 1) / (cells - 1)).collect()
    };
    (places(mesh.ny), places(mesh.nx))
}

/// From cold, 0, to hot, 1: red, green and blue.
fn color(value: f32) -> [u8; 3] {
    const STOPS: [[f32; 3]; 5] =
        [[0.0, 0.0, 64.0], [64.0, 32.0, 160.0], [208.0, 48.0, 96.0], [248.0, 160.0, 40.0], [255.0, 248.0, 208.0]];
    let at = value.clamp(0.0, 1.0) * (STOPS.len() - 1) as f32;
    let low = (at as usize).min(STOPS.len() - 2);
    let part = at - low as f32;
    std::array::from_fn(|i| (STOPS[low][i] + (STOPS[low + 1][i] - STOPS[low][i]) * part).round() as u8)
}

/// Draws `values`, the field at the crossings of [`places`], into the PNG file `path`, a square of
/// pixels for each. `title` is kept in the file.
///
/// # Errors
/// The file cannot be written.
pub fn draw(path: &Path, title: String, values: &[Vec<f32>]) -> Result<(), Error> {
    let (width, height) = (values.first().map_or(0, Vec::len), values.len());
    let each = (ENOUGH as usize / width.max(height).max(1)).max(1);
    let draw = || -> Result<(), EncodingError> {
        let side = |cells: usize| u32::try_from(cells * each).map_err(IoError::other);
        let file = BufWriter::new(File::create(path)?);
        let mut encoder = Encoder::new(file, side(width)?, side(height)?);
        encoder.set_color(ColorType::Rgb);
        encoder.set_depth(BitDepth::Eight);
        encoder.add_text_chunk("Title".to_owned(), title)?;
        let pixels: Vec<u8> = values
            .iter()
            .flat_map(|row| {
                let line: Vec<u8> = row.iter().flat_map(|value| color(*value).repeat(each)).collect();
                line.repeat(each)
            })
            .collect();
        let mut writer = encoder.write_header()?;
        writer.write_image_data(&pixels)?;
        writer.finish()
    };
    draw().map_err(|error| Error::Plot { path: path.to_owned(), reason: error.to_string() })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::io::BufReader;

    use super::*;

    #[test]
    fn pictures_reach_from_the_first_to_the_last_and_keep_the_shape() {
        for (nx, ny, width, height) in [
            (3, 3, 3, 3),
            (1024, 5, 1024, 5),
            (16384, 16384, 1024, 1024),
            (4096, 2048, 1024, 512),
            (3, 1 << 24, 2, 1024),
        ] {
            let (rows, columns) = places(Mesh { nx, ny });
            assert_eq!((columns.len(), rows.len()), (width, height));
            for (places, n) in [(rows, ny), (columns, nx)] {
                assert_eq!((places[0], *places.last().unwrap()), (0, n - 1));
                assert!(places.windows(2).all(|pair| pair[0] < pair[1]));
            }
        }
    }

    #[test]
    fn hot_and_cold_are_where_they_should_be() {
        let path = std::env::temp_dir().join(format!("oxshmem-jacobi-{}.png", std::process::id()));
        draw(&path, "the field".to_owned(), &[vec![0.0, 0.5, 1.0], vec![1.0, 0.25, 0.0]]).unwrap();
        let decoder = png::Decoder::new(BufReader::new(File::open(&path).unwrap()));
        let mut reader = decoder.read_info().unwrap();
        let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
        let info = reader.next_frame(&mut pixels).unwrap();
        std::fs::remove_file(&path).unwrap();
        // Each value is a square of 170 pixels a side.
        assert_eq!((info.width, info.height, info.color_type), (510, 340, ColorType::Rgb));
        assert_eq!(reader.info().uncompressed_latin1_text[0].text, "the field");
        let pixel = |x: usize, y: usize| &pixels[3 * (y * 510 + x)..][..3];
        let (cold, hot) = ([0, 0, 64], [255, 248, 208]);
        for (x, y, expected) in [
            (0, 0, cold),
            (169, 169, cold),
            (340, 0, hot),
            (509, 169, hot),
            (0, 170, hot),
            (169, 339, hot),
            (340, 170, cold),
            (509, 339, cold),
            (170, 0, [208, 48, 96]),
            (339, 339, [64, 32, 160]),
        ] {
            assert_eq!(pixel(x, y), expected, "{x}, {y}");
        }
    }

    #[test]
    fn a_file_that_cannot_be_written_is_named() {
        let error = draw(Path::new("/nonexistent/x.png"), String::new(), &[vec![0.0]]).unwrap_err();
        assert!(error.to_string().contains("/nonexistent/x.png"));
    }
}
