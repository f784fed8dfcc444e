//! From a chart to SVG. Colours are placeholders that become the page's variables.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::axis::Mapping;
use super::{Axis, Chart, Point, Vertical};

/// Colours of series, as the page names them.
pub(crate) const SERIES_COLOURS: usize = 8;
/// Shapes of series, as text has them.
pub(crate) const MARKERS: [char; 4] = ['●', '■', '▲', '◆'];

/// No colour of the page: each stands for a variable of its own.
const INK: RGBColor = RGBColor(1, 2, 1);
const QUIET: RGBColor = RGBColor(1, 2, 2);
const GRID: RGBColor = RGBColor(1, 2, 3);
const LIMIT: RGBColor = RGBColor(1, 2, 4);

const fn series_colour(index: usize) -> RGBColor {
    RGBColor(1, 3, (index % SERIES_COLOURS) as u8 + 1)
}

/// Why nothing could be drawn.
pub(crate) type DrawError = DrawingAreaErrorKind<std::io::Error>;

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

/// Pixels of the parts.
const RIGHT: i32 = 16;
const TOP: i32 = 10;
const BOTTOM: i32 = 46;
/// Of a row beside its words, and of a line of words.
const ROW: i32 = 18;
const LINE: i32 = 18;
const HALF_MARKER: i32 = 4;
const TEXT: i32 = 15;

/// The chart `width` pixels wide, as an SVG element that scales. `None` where no point has a place on the axes.
pub(crate) fn svg(chart: &Chart, width: u32, title: &str) -> Result<Option<String>, DrawError> {
    let height = match &chart.y {
        Vertical::Axis(_) => (width * 6 / 10).clamp(280, 400) as i32,
        Vertical::Rows(rows) => TOP + BOTTOM + row_tops(rows, width as i32).last().copied().unwrap_or(0),
    };
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, (width, height.unsigned_abs())).into_drawing_area();
        let Some(frame) = Frame::new(chart, width as i32, height) else { return Ok(None) };
        frame.axes(&root, chart)?;
        frame.reference(&root, chart)?;
        for (index, series) in chart.series.iter().enumerate() {
            frame.series(&root, index, series.joined, &series.points)?;
        }
        root.present()?;
    }
    Ok(Some(themed(&text, width, height, title)))
}

/// The page's colours for the placeholders, and its width for the fixed one.
fn themed(text: &str, width: u32, height: i32, title: &str) -> String {
    let hex = |colour: RGBColor| format!("#{:02X}{:02X}{:02X}", colour.0, colour.1, colour.2);
    let mut text = text.to_owned();
    for (colour, name) in [(INK, "ink"), (QUIET, "quiet"), (GRID, "grid"), (LIMIT, "limit")] {
        text = text.replace(&hex(colour), &format!("var(--{name})"));
    }
    for index in 0..SERIES_COLOURS {
        text = text.replace(&hex(series_colour(index)), &format!("var(--s{index})"));
    }
    let start = text.find("<svg").unwrap_or(0);
    let body = text[start..].find('>').map_or("", |end| &text[start + end + 1..]);
    let title = crate::html::escape(title);
    format!(
        "<svg viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"{title}\" xmlns=\"http://www.w3.org/2000/svg\">{}",
        body.trim_start()
    )
}

/// A row's words, in lines that fit.
fn row_lines(row: &str, width: i32) -> Vec<String> {
    // Wider than the letters of the fonts that browsers have by that name, on average.
    const LETTER: f64 = 0.48 * TEXT as f64;
    let most = ((f64::from(width - 10 - RIGHT) / LETTER) as usize).max(8);
    let mut lines: Vec<String> = Vec::new();
    for word in row.split(' ') {
        match lines.last_mut() {
            // A unit stays with its number.
            Some(line)
                if line.ends_with(|last: char| last.is_ascii_digit())
                    || line.chars().count() + 1 + word.chars().count() <= most =>
            {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// Where rows begin below the top, and after them where the last one ends.
fn row_tops(rows: &[String], width: i32) -> Vec<i32> {
    let mut tops = vec![0];
    for row in rows {
        let last = tops.last().copied().unwrap_or(0);
        tops.push(last + ROW + LINE * row_lines(row, width).len() as i32);
    }
    tops
}

/// Where values go.
struct Frame {
    x: Mapping,
    y: Option<Mapping>,
    left: i32,
    right: i32,
    top: i32,
    bottom: i32,
    /// The line of each row.
    rows: Vec<i32>,
}

impl Frame {
    fn new(chart: &Chart, width: i32, height: i32) -> Option<Self> {
        let (top, bottom, right) = (TOP, height - BOTTOM, width - RIGHT);
        let rows = match &chart.y {
            Vertical::Axis(_) => None,
            // The row's words stand above its line.
            Vertical::Rows(rows) => Some(row_tops(rows, width).into_iter().skip(1).map(|end| top + end - 10).collect()),
        };
        let ranged = |point: &Point, value: f64| {
            [Some(value), point.ci95.map(|ci| ci[0]), point.ci95.map(|ci| ci[1]), point.limit].into_iter().flatten()
        };
        let least = |axis: &Axis| axis.least.into_iter().flatten().collect::<Vec<f64>>();
        let mut xs: Vec<f64> = chart.points().map(|point| point.x).chain(least(&chart.x)).collect();
        if rows.is_some() {
            xs.extend(chart.points().flat_map(|point| ranged(point, point.x)));
        }
        let mut left = 10;
        let mut y = None;
        if let Vertical::Axis(axis) = &chart.y {
            let mut ys: Vec<f64> = chart.points().flat_map(|point| ranged(point, point.y)).collect();
            ys.extend(least(axis));
            let mapping = Mapping::over(axis.scale, ys.into_iter(), (bottom, top + TEXT + 4))?;
            let longest = mapping.ticks(6).into_iter().map(|tick| (axis.print)(tick).chars().count()).max();
            left = 14 + 8 * i32::try_from(longest.unwrap_or(0)).unwrap_or(0);
            y = Some(mapping);
        }
        let x = Mapping::over(chart.x.scale, xs.into_iter(), (left, right))?;
        Some(Self { x, y, left, right, top, bottom, rows: rows.unwrap_or_default() })
    }

    fn y(&self, point: &Point) -> i32 {
        match &self.y {
            Some(mapping) => mapping.pixel(point.y),
            None => self.rows.get(point.y as usize).copied().unwrap_or(self.bottom),
        }
    }

    fn axes(&self, root: &Area<'_>, chart: &Chart) -> Result<(), DrawError> {
        let most = usize::try_from((self.right - self.left) / 70).unwrap_or(2);
        for tick in self.x.ticks(most) {
            let x = self.x.pixel(tick);
            line(root, [(x, self.top), (x, self.bottom)], GRID, 1)?;
            let words = (chart.x.print)(tick);
            // The outermost must not run over the edge.
            let half = 4 * words.chars().count() as i32;
            let (x, side) = match () {
                () if x + half > self.right + RIGHT => (self.right + RIGHT, HPos::Right),
                () if x < half => (0, HPos::Left),
                () => (x, HPos::Center),
            };
            text(root, &words, (x, self.bottom + 6), QUIET, (side, VPos::Top))?;
        }
        text(root, &chart.x.label, (self.right, self.bottom + 26), INK, (HPos::Right, VPos::Top))?;
        match (&chart.y, &self.y) {
            (Vertical::Axis(axis), Some(mapping)) => {
                for tick in mapping.ticks(6) {
                    let y = mapping.pixel(tick);
                    line(root, [(self.left, y), (self.right, y)], GRID, 1)?;
                    text(root, &(axis.print)(tick), (self.left - 6, y), QUIET, (HPos::Right, VPos::Center))?;
                }
                text(root, &axis.label, (4, 2), INK, (HPos::Left, VPos::Top))?;
            }
            (Vertical::Rows(rows), _) => {
                for (row, &y) in rows.iter().zip(&self.rows) {
                    line(root, [(self.left, y), (self.right, y)], GRID, 1)?;
                    let lines = row_lines(row, self.right + RIGHT);
                    let top = y + 10 - ROW - LINE * lines.len() as i32;
                    for (index, words) in lines.iter().enumerate() {
                        text(root, words, (self.left, top + LINE * index as i32), INK, (HPos::Left, VPos::Top))?;
                    }
                }
            }
            (Vertical::Axis(_), None) => {}
        }
        Ok(())
    }

    fn reference(&self, root: &Area<'_>, chart: &Chart) -> Result<(), DrawError> {
        let (Some((from, to, _)), Some(y)) = (&chart.reference, &self.y) else { return Ok(()) };
        let place = |[x, value]: &[f64; 2]| (self.x.pixel(*x), y.pixel(*value));
        line(root, [place(from), place(to)], LIMIT, 1)
    }

    fn series(&self, root: &Area<'_>, index: usize, joined: bool, points: &[Point]) -> Result<(), DrawError> {
        let colour = series_colour(index);
        if joined {
            let places = points.iter().map(|point| (self.x.pixel(point.x), self.y(point)));
            root.draw(&PathElement::new(places.collect::<Vec<_>>(), colour.stroke_width(2)))?;
        }
        for point in points {
            let (x, y) = (self.x.pixel(point.x), self.y(point));
            if let Some([low, high]) = point.ci95 {
                let ends = match &self.y {
                    None => [(self.x.pixel(low), y), (self.x.pixel(high), y)],
                    Some(mapping) => [(x, mapping.pixel(low)), (x, mapping.pixel(high))],
                };
                line(root, ends, colour, 2)?;
                for end in ends {
                    let cap = if self.y.is_none() { (0, 5) } else { (5, 0) };
                    line(root, [(end.0 - cap.0, end.1 - cap.1), (end.0 + cap.0, end.1 + cap.1)], colour, 2)?;
                }
            }
            if let Some(limit) = point.limit {
                let ends = match &self.y {
                    None => [(self.x.pixel(limit), y - 9), (self.x.pixel(limit), y + 9)],
                    Some(mapping) => [(x - 9, mapping.pixel(limit)), (x + 9, mapping.pixel(limit))],
                };
                line(root, ends, LIMIT, 3)?;
            }
            marker(root, index, (x, y), colour)?;
            if let Some(label) = &point.label {
                let near = x + 8 * label.chars().count() as i32 + 12 > self.right;
                let (place, side) = if near { (x - 9, HPos::Right) } else { (x + 9, HPos::Left) };
                text(root, label, (place, y), QUIET, (side, VPos::Center))?;
            }
        }
        Ok(())
    }
}

fn line(root: &Area<'_>, ends: [(i32, i32); 2], colour: RGBColor, width: u32) -> Result<(), DrawError> {
    root.draw(&PathElement::new(ends.to_vec(), colour.stroke_width(width)))
}

fn text(
    root: &Area<'_>,
    words: &str,
    place: (i32, i32),
    colour: RGBColor,
    (h, v): (HPos, VPos),
) -> Result<(), DrawError> {
    let style = TextStyle::from(("sans-serif", TEXT).into_font()).color(&colour).pos(Pos::new(h, v));
    root.draw(&Text::new(words.to_owned(), place, style))
}

/// One of [`MARKERS`], the next one where the colours begin again.
fn marker(root: &Area<'_>, index: usize, (x, y): (i32, i32), colour: RGBColor) -> Result<(), DrawError> {
    let (fill, r) = (colour.filled(), HALF_MARKER);
    match shape(index) {
        0 => root.draw(&Circle::new((x, y), r, fill)),
        1 => root.draw(&Rectangle::new([(x - r, y - r), (x + r, y + r)], fill)),
        2 => root.draw(&Polygon::new(vec![(x, y - r - 1), (x + r + 1, y + r), (x - r - 1, y + r)], fill)),
        _ => root.draw(&Polygon::new(vec![(x, y - r - 1), (x + r + 1, y), (x, y + r + 1), (x - r - 1, y)], fill)),
    }
}

/// The shape of a series.
pub(crate) const fn shape(index: usize) -> usize {
    (index + index / SERIES_COLOURS) % MARKERS.len()
}
