//! One page with every chart, complete in itself: no script, no font, nothing from elsewhere.

use std::fmt::Write as _;

use assay_ledgers::{Head, Record, Result};

use crate::charts::{Exhibit, exhibits};
use crate::figures::{figure, interval};
use crate::plot::{Chart, MARKERS, SERIES_COLOURS, Vertical, shape, svg};
use crate::select::latest;

/// Widths that charts are drawn at: one of the two is shown.
const WIDE: u32 = 860;
const NARROW: u32 = 358;

/// The page could not be made.
#[derive(Debug, thiserror::Error)]
pub enum PageError {
    /// The ledger's words.
    #[error(transparent)]
    Ledger(#[from] assay_ledgers::Error),
    /// A chart could not be drawn.
    #[error("cannot draw the chart {chart:?}: {reason}")]
    Chart {
        /// Which.
        chart: &'static str,
        /// Why.
        reason: String,
    },
}

/// The page about `records`, whose chains end at `heads`.
///
/// # Errors
/// An identity that cannot be hashed; a chart that cannot be drawn.
pub fn page(records: &[Record], heads: &[Head]) -> std::result::Result<String, PageError> {
    let latest: Result<Vec<&Record>> = latest(records);
    let exhibits = exhibits(&latest?, records);
    let mut body = String::new();
    for exhibit in &exhibits {
        section(&mut body, exhibit)?;
    }
    let links: Vec<String> =
        exhibits.iter().map(|exhibit| format!("<a href=\"#{}\">{}</a>", exhibit.id, exhibit.title)).collect();
    let chains: Vec<String> = heads
        .iter()
        .map(|head| {
            let hash = head.hash.map_or_else(|| "–".to_owned(), |hash| hash.short());
            format!("{} ends after {} records at <code>{hash}</code>", escape(&head.writer.to_string()), head.count)
        })
        .collect();
    let chains = if chains.is_empty() { "no chain".to_owned() } else { chains.join("; ") };
    Ok(format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>Assay: results</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n<h1>Assay: results</h1>\n\
         <p>Every figure comes from a record of the tracked ledger: <code>assay ledger show HASH --ledger tracked</code> prints it, \
         with the command that made it. <code>assay report</code> writes this page, nobody types a number.</p>\n\
         <p class=\"quiet\">{} records; chain {chains}.</p>\n<nav>{}</nav>\n{body}</main>\n</body>\n</html>\n",
        records.len(),
        links.join(" ")
    ))
}

fn section(page: &mut String, exhibit: &Exhibit) -> std::result::Result<(), PageError> {
    let Exhibit { id, title, words, chart } = exhibit;
    let _ = write!(page, "<section id=\"{id}\">\n<h2>{title}</h2>\n<p>{}</p>\n", escape(words));
    let drawn = |width| match chart {
        Err(missing) => Ok(Err(missing.clone())),
        Ok(chart) => match svg(chart, width, title) {
            Ok(Some(svg)) => Ok(Ok((chart, svg))),
            Ok(None) => Ok(Err("no figure has a place on its axes".to_owned())),
            Err(error) => Err(PageError::Chart { chart: title, reason: error.to_string() }),
        },
    };
    match (drawn(WIDE)?, drawn(NARROW)?) {
        (Ok((chart, wide)), Ok((_, narrow))) => {
            let _ = write!(
                page,
                "<figure>\n<div class=\"wide\">{wide}</div>\n<div class=\"narrow\">{narrow}</div>\n{}</figure>\n{}",
                legend(chart),
                table(chart)
            );
        }
        (Err(missing), _) | (_, Err(missing)) => {
            let _ = writeln!(page, "<p class=\"missing\">Not drawn: {}.</p>", escape(&missing));
        }
    }
    page.push_str("</section>\n");
    Ok(())
}

fn legend(chart: &Chart) -> String {
    let mut items: Vec<String> = chart
        .series
        .iter()
        .enumerate()
        .map(|(index, series)| {
            let (colour, marker) = (index % SERIES_COLOURS, MARKERS[shape(index)]);
            format!("<li><span style=\"color:var(--s{colour})\">{marker}</span> {}</li>", escape(&series.name))
        })
        .collect();
    let line = |words: &str| format!("<li><span class=\"limit\">━</span> {}</li>", escape(words));
    items.extend(chart.limit.as_deref().map(line));
    items.extend(chart.reference.as_ref().map(|(_, _, words)| line(words)));
    format!("<figcaption><ul>{}</ul></figcaption>\n", items.concat())
}

/// The points once more, to read and to copy.
fn table(chart: &Chart) -> String {
    let (rows, x) = match &chart.y {
        Vertical::Rows(rows) => (Some(rows), chart.x.label.as_str()),
        Vertical::Axis(_) => (None, chart.x.label.as_str()),
    };
    let y = match &chart.y {
        Vertical::Rows(_) => "",
        Vertical::Axis(axis) => axis.label.as_str(),
    };
    let value = |print: fn(f64) -> String, value: f64| {
        // A share or a time as at its tick; a measured quantity with four digits, over many powers of ten with three.
        let tick = print(value);
        if tick.contains("e-") {
            return format!("{value:.2e}");
        }
        if tick.ends_with('%') || tick.contains(':') { tick } else { figure(value) }
    };
    let mut text = format!(
        "<details><summary>Figures</summary>\n<div class=\"scroll\"><table>\n<tr><th>{}</th><th>{}</th>{}<th>95 % interval</th><th>record</th></tr>\n",
        if rows.is_some() { "row" } else { "series" },
        escape(x),
        if rows.is_some() { "<th>series</th>".to_owned() } else { format!("<th>{}</th>", escape(y)) },
    );
    for series in &chart.series {
        for point in &series.points {
            let first = rows.and_then(|rows| rows.get(point.y as usize)).unwrap_or(&series.name);
            let third = match &chart.y {
                Vertical::Rows(_) => format!("<td>{}</td>", escape(&series.name)),
                Vertical::Axis(axis) => format!("<td class=\"number\">{}</td>", value(axis.print, point.y)),
            };
            let _ = writeln!(
                text,
                "<tr><td>{}</td><td class=\"number\">{}</td>{third}<td class=\"number\">{}</td><td><code>{}</code></td></tr>",
                escape(first),
                value(chart.x.print, point.x),
                interval(point.ci95, figure),
                escape(&point.record)
            );
        }
    }
    text.push_str("</table></div></details>\n");
    text
}

/// What a file says is text, never markup.
pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Colours of series keep apart for every eye (after Okabe and Ito), darker on white and lighter on black.
const STYLE: &str = "
:root{color-scheme:light dark;--paper:#ffffff;--ink:#1b1d21;--quiet:#585e68;--grid:#e2e5ea;--limit:#b3261e;--link:#0b57b0;
--s0:#0072b2;--s1:#c24e00;--s2:#00795a;--s3:#a8478a;--s4:#8a6a00;--s5:#5b4fb5;--s6:#3a7d99;--s7:#444a52}
@media(prefers-color-scheme:dark){:root{--paper:#14161a;--ink:#e8eaee;--quiet:#a4abb6;--grid:#30353d;--limit:#ff8a80;--link:#8ab4f8;
--s0:#6cb8f0;--s1:#ff9e5e;--s2:#4fd1a8;--s3:#f0a6d6;--s4:#f0c850;--s5:#b3a9ff;--s6:#8fd3ea;--s7:#c3c8d0}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.5 system-ui,sans-serif}
main{max-width:60rem;margin:0 auto;padding:1rem}
h1{font-size:1.7rem;margin:.5rem 0}h2{font-size:1.25rem;margin:0 0 .25rem}
p{margin:.25rem 0 .75rem;max-width:46rem}.quiet,nav{color:var(--quiet);font-size:.9rem}
a{color:var(--link)}nav a{display:inline-block;margin:.3rem 1rem .3rem 0}
section{border-top:1px solid var(--grid);padding:1.25rem 0}
figure{margin:0}svg{display:block;width:100%;height:auto}
.narrow{display:none}@media(max-width:40rem){.wide{display:none}.narrow{display:block}}
figcaption ul{list-style:none;margin:.25rem 0 .5rem;padding:0;display:flex;flex-wrap:wrap;gap:.1rem 1.25rem;font-size:.9rem}
.limit{color:var(--limit)}.missing{border-left:3px solid var(--limit);padding:.25rem .75rem}
code{font:.9em ui-monospace,monospace;overflow-wrap:anywhere}
details{font-size:.9rem}summary{cursor:pointer;color:var(--quiet);padding:.4rem 0}
.scroll{overflow-x:auto}table{border-collapse:collapse}th,td{text-align:left;padding:.2rem .9rem .2rem 0;border-bottom:1px solid var(--grid);white-space:nowrap}
.number{text-align:right;font-variant-numeric:tabular-nums}
";
