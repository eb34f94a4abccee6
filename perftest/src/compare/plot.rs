//! The ratios of a comparison, as SVG.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::report::{Line, Source};

const WIDTH: i32 = 1080;
/// Where bars begin to have room: left of it stand the rows' titles.
const LEFT: i32 = 410;
const RIGHT: i32 = WIDTH - 90;
const TOP: i32 = 64;
const STEP: i32 = 24;
const BETTER: RGBColor = RGBColor(46, 110, 180);
const WORSE: RGBColor = RGBColor(190, 70, 50);

/// Draws how many times better ours is, one bar for each line that has a ratio and is not a limit,
/// on a logarithmic scale.
///
/// # Errors
/// The reason why they cannot be drawn.
pub fn ratios(lines: &[Line]) -> Result<String, String> {
    let bars: Vec<(&Line, f64)> = lines
        .iter()
        .filter(|line| line.group != "link")
        .filter_map(|line| line.ratio.filter(|ratio| ratio.is_finite() && *ratio > 0.0).map(|ratio| (line, ratio)))
        .collect();
    let Some((first, _)) = bars.first() else {
        return Err("no row has figures of both sides".to_owned());
    };
    // Whole powers of two around everything, 1 among them.
    let low = bars.iter().map(|bar| bar.1).fold(1.0, f64::min).log2().floor() as i32;
    let high = bars.iter().map(|bar| bar.1).fold(2.0, f64::max).log2().ceil() as i32;
    let x = |ratio: f64| {
        LEFT + ((ratio.log2() - f64::from(low)) / f64::from(high - low) * f64::from(RIGHT - LEFT)).round() as i32
    };
    let count = i32::try_from(bars.len()).map_err(|_| "too many rows".to_owned())?;
    let bottom = TOP + count * STEP;
    let referred = bars.iter().any(|(line, _)| line.theirs_from == Some(Source::Reference));
    let size = (WIDTH as u32, (bottom + 52) as u32);

    let mut svg = String::new();
    let drawn = (|| {
        let area = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        area.fill(&WHITE)?;
        let text = |size: i32, horizontal: HPos| {
            ("sans-serif", size).into_font().color(&BLACK).pos(Pos::new(horizontal, VPos::Center))
        };
        let setting = &first.setting;
        let title = format!("How many times better: {} PEs, {}, driver {}", setting.pes, setting.gpu, setting.driver);
        area.draw(&Text::new(title, (16, 20), text(21, HPos::Left)))?;
        for power in low..=high {
            let ratio = f64::from(power).exp2();
            let line = if power == 0 { BLACK.stroke_width(2) } else { BLACK.mix(0.2).stroke_width(1) };
            area.draw(&PathElement::new([(x(ratio), TOP - 4), (x(ratio), bottom)], line))?;
            area.draw(&Text::new(format!("{ratio}x"), (x(ratio), TOP - 14), text(15, HPos::Center)))?;
        }
        for (index, (line, ratio)) in bars.iter().enumerate() {
            let middle = TOP + index as i32 * STEP + STEP / 2;
            let star = if line.theirs_from == Some(Source::Reference) { " *" } else { "" };
            area.draw(&Text::new(format!("{}{star}", line.title), (LEFT - 10, middle), text(15, HPos::Right)))?;
            let (from, to) = (x(1.0).min(x(*ratio)), x(1.0).max(x(*ratio)));
            let color = if *ratio >= 1.0 { BETTER } else { WORSE };
            area.draw(&Rectangle::new([(from, middle - 8), (to, middle + 8)], color.filled()))?;
            area.draw(&Text::new(format!("{ratio:.2}"), (to + 6, middle), text(15, HPos::Left)))?;
        }
        let note = if referred {
            "right of 1x: OxSHMEM is better; * against a reference figure"
        } else {
            "right of 1x: OxSHMEM is better"
        };
        area.draw(&Text::new(note, (16, bottom + 26), text(15, HPos::Left)))?;
        area.present()
    })();
    drawn.map_err(|error: DrawingAreaErrorKind<_>| error.to_string())?;
    Ok(svg)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::report::tests::setting;
    use super::super::table;
    use super::*;

    #[test]
    fn every_ratio_is_a_bar_and_limits_are_none() {
        let line = |name: &str, ours: u64, theirs: u64| {
            Line::new(table::find(name).unwrap(), &[ours], &[theirs], None, &setting())
        };
        let lines = [
            line("link_store_1", 10, 10),
            line("signal_ping_pong", 1_000_000, 2_000_000),
            line("put_quiet_thread_8", 3_000_000, 2_000_000),
        ];
        let svg = ratios(&lines).unwrap();
        for text in ["<svg", "signal ping-pong", "2.00", "0.67", "Model of a GPU", "0.5x", "1x"] {
            assert!(svg.contains(text), "{text}: {svg}");
        }
        assert!(!svg.contains("16-byte stores") && !svg.contains("reference"));
        assert_eq!(svg, ratios(&lines).unwrap());
    }

    #[test]
    fn nothing_to_compare_is_an_error() {
        let line = Line::new(table::find("signal_ping_pong").unwrap(), &[1000], &[], None, &setting());
        assert!(ratios(&[line]).unwrap_err().contains("both sides"));
    }
}
