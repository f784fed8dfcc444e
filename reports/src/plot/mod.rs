//! Charts as SVG that takes its colours from the page around it, so that one drawing serves light and dark.
//!
//! - `mod.rs`: what a chart is
//! - `axis.rs`: scales and ticks
//! - `draw.rs`: from a chart to SVG

mod axis;
mod draw;

pub(crate) use axis::Scale;
pub(crate) use draw::{MARKERS, SERIES_COLOURS, shape, svg};

/// A chart: series of points over two axes.
#[derive(Debug, Clone)]
pub(crate) struct Chart {
    pub(crate) x: Axis,
    pub(crate) y: Vertical,
    pub(crate) series: Vec<Series>,
    /// What the short line across a row or a point is, where points have one.
    pub(crate) limit: Option<String>,
    /// A line from the first to the second point, in the axes' units, and what it is.
    pub(crate) reference: Option<([f64; 2], [f64; 2], String)>,
}

/// A scale with its words.
#[derive(Debug, Clone)]
pub(crate) struct Axis {
    pub(crate) label: String,
    pub(crate) scale: Scale,
    /// Prints a value at a tick.
    pub(crate) print: fn(f64) -> String,
    /// Values that the axis must reach, whatever the points are.
    pub(crate) least: Option<[f64; 2]>,
}

/// What goes upwards.
#[derive(Debug, Clone)]
pub(crate) enum Vertical {
    /// A quantity.
    Axis(Axis),
    /// Rows from the top, by name: a point's `y` is the row's number.
    Rows(Vec<String>),
}

/// Points of one colour and shape.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Series {
    pub(crate) name: String,
    /// Whether a line joins them.
    pub(crate) joined: bool,
    pub(crate) points: Vec<Point>,
}

/// A point with where it comes from.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Point {
    pub(crate) x: f64,
    pub(crate) y: f64,
    /// 95 % interval of the measured quantity: of x in a chart of rows, else of y.
    pub(crate) ci95: Option<[f64; 2]>,
    /// What the machine would allow: of x in a chart of rows, else of y.
    pub(crate) limit: Option<f64>,
    /// A word beside the marker.
    pub(crate) label: Option<String>,
    /// Short hash of the record.
    pub(crate) record: String,
}

impl Point {
    pub(crate) fn new(x: f64, y: f64, record: String) -> Self {
        Self { x, y, ci95: None, limit: None, label: None, record }
    }
}

impl Chart {
    /// Every point.
    pub(crate) fn points(&self) -> impl Iterator<Item = &Point> {
        self.series.iter().flat_map(|series| &series.points)
    }
}
