//! Which charts there are, and what of the ledger each one shows. A chart without records is not drawn empty: what is missing
//! is said in its place.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::UNIX_EPOCH;

use assay_ledgers::{
    Body, Hcs, Identity, Measure, NumberFormat, PerplexityBody, Record, SpeedBody, SpeedRow, Verdict, invalidations,
};

use crate::figures::{bytes, figure};
use crate::limits::Limits;
use crate::plot::{Axis, Chart, Point, Scale, Series, Vertical};
use crate::tables::{format_name, quantization_name, reference_hash};
use crate::work::works;

/// A chart, or what is missing for it.
pub(crate) struct Exhibit {
    /// In the page's links.
    pub(crate) id: &'static str,
    pub(crate) title: &'static str,
    /// How to read it.
    pub(crate) words: &'static str,
    pub(crate) chart: Result<Chart, String>,
}

/// Every chart. `latest` is what still counts, `all` every record there is.
pub(crate) fn exhibits(latest: &[&Record], all: &[Record]) -> Vec<Exhibit> {
    let limits = Limits::new(latest);
    let exhibit = |id, title, words, chart: Option<Chart>, missing: &str| {
        let drawable = chart.filter(|chart| chart.points().next().is_some());
        Exhibit { id, title, words, chart: drawable.ok_or_else(|| missing.to_owned()) }
    };
    vec![
        exhibit(
            "decode",
            "Decode speed",
            "Median of each configuration with its 95 % interval. The short line is what the machine would allow: on a card its link for \
             the bytes that were moved or its memory for the weights that were read, whichever takes longer, as measured in the same \
             run or, for older records, by the newest roofline of that card; on the host device the declared link.",
            Some(speed(latest, Measure::Decode, &limits)),
            "no speed record has a decode row",
        ),
        exhibit(
            "prefill",
            "Prefill speed",
            "As above, for prompts; here a card's matrix product stands in the place of its memory.",
            Some(speed(latest, Measure::Prefill, &limits)),
            "no speed record has a prefill row",
        ),
        exhibit(
            "residency",
            "Decode against residency",
            "How fast tokens come as more of the experts stay on the device: the longest decode row of each record.",
            residency(latest),
            "no speed record has a decode row that says how many experts were resident",
        ),
        exhibit(
            "length",
            "Prefill against length",
            "How fast prompts of each length are read. Longer prompts spread the cost of streaming over more tokens.",
            length(latest),
            "no speed record has prefill rows",
        ),
        exhibit(
            "depth",
            "Decode against depth",
            "How fast tokens come behind prompts of each length: each reads the keys and values of all before it.",
            depth(latest),
            "no speed record has decode rows that say how long the prompt before them was",
        ),
        exhibit(
            "memory",
            "Least free memory by phase",
            "How little of the budget was left in each phase. The short line is the margin that must stay free.",
            memory(latest),
            "no speed record says how much memory was free",
        ),
        exhibit(
            "perplexity",
            "Perplexity against bits",
            "What fewer bits in an expert's weights cost, on the same texts; scales included. Lower is better.",
            perplexity(latest),
            "no perplexity record",
        ),
        exhibit(
            "work",
            "Work against fidelity",
            "Share of tasks solved by each precision, with its 95 % interval over tasks, against the mean divergence of its distributions from the \
             model as it was trained, on held-out transcripts of the same kind of work. The line is the model as it was trained.",
            work(latest),
            "no run of tasks whose precision has a fidelity record",
        ),
        exhibit(
            "hits",
            "Hit rate by policy",
            "How often decode finds an expert resident. The line is what chance would give: the share that is resident.",
            hits(latest),
            "no decode row has a hit rate",
        ),
        exhibit(
            "timeline",
            "The ledger in time",
            "Every record, by kind, when it was first written and by its worst verdict. Nothing is ever deleted.",
            timeline(all),
            "no record",
        ),
    ]
}

fn speeds<'a>(records: &'a [&Record]) -> impl Iterator<Item = (&'a Record, &'a Identity, &'a SpeedBody)> {
    records.iter().filter_map(|record| match (&record.body, &record.identity) {
        (Body::Speed(body), Some(identity)) => Some((*record, identity, body)),
        _ => None,
    })
}

fn rows(body: &SpeedBody, measure: Measure) -> impl Iterator<Item = &SpeedRow> {
    body.rows.iter().filter(move |row| row.measure == measure)
}

/// The row of the longest repetition, behind the shortest prompt.
fn longest(body: &SpeedBody, measure: Measure) -> Option<&SpeedRow> {
    rows(body, measure).max_by_key(|row| (row.tokens, Reverse(row.depth)))
}

/// `128 tokens`, or `128 tokens behind 16,384`.
fn lengths(row: &SpeedRow) -> String {
    let depth = row.depth.map_or_else(String::new, |depth| format!(" behind {}", figure_short(depth as f64)));
    format!("{} tokens{depth}", row.tokens)
}

fn rate_axis(label: &str, scale: Scale) -> Axis {
    Axis { label: label.to_owned(), scale, print: figure_short, least: None }
}

/// A tick has no more digits than it needs.
fn figure_short(value: f64) -> String {
    let text = figure(value);
    match text.split_once('.') {
        Some((whole, part)) if part.chars().all(|digit| digit == '0') => whole.to_owned(),
        Some(_) => text.trim_end_matches('0').to_owned(),
        None => text,
    }
}

fn percent_tick(share: f64) -> String {
    format!("{}%", figure_short(100.0 * share))
}

/// A row for each configuration and length.
fn speed(records: &[&Record], measure: Measure, limits: &Limits<'_>) -> Chart {
    let mut names = Vec::new();
    let mut series: BTreeMap<String, Vec<Point>> = BTreeMap::new();
    for (record, identity, body) in speeds(records) {
        for row in rows(body, measure) {
            let budget = bytes(identity.memory.vram_bytes);
            let suite = identity.suite.as_ref().map_or_else(String::new, |suite| format!(" ({})", suite.name));
            let resident = resident(row.hcs.as_ref());
            names.push((format!("{}, {budget}{resident}: {}", model(identity), lengths(row)), suite));
            let mut point = Point::new(row.median, (names.len() - 1) as f64, reference_hash(record));
            (point.ci95, point.limit) = (row.ci95, limits.of(identity, body, row));
            series.entry(identity.device.name.clone()).or_default().push(point);
        }
    }
    // The suite says what else differs, such as the prompt before an answer.
    let is_ambiguous = |name: &str| names.iter().filter(|(other, _)| other == name).count() > 1;
    let named_rows = names.iter().map(|(name, suite)| format!("{name}{}", if is_ambiguous(name) { suite } else { "" }));
    Chart {
        x: rate_axis("tok/s", Scale::Log),
        y: Vertical::Rows(named_rows.collect()),
        limit: series
            .values()
            .flatten()
            .any(|point| point.limit.is_some())
            .then(|| "what the machine allows".to_owned()),
        series: named(series, false),
        reference: None,
    }
}

fn residency(records: &[&Record]) -> Option<Chart> {
    let mut series: BTreeMap<String, Vec<Point>> = BTreeMap::new();
    for (record, identity, body) in speeds(records) {
        let Some((row, hcs)) = longest(body, Measure::Decode).and_then(|row| Some((row, row.hcs.as_ref()?))) else {
            continue;
        };
        if hcs.total > 0 {
            let mut point = Point::new(share(hcs.resident, hcs.total), row.median, reference_hash(record));
            point.ci95 = row.ci95;
            series.entry(format!("{}, {}", model(identity), identity.device.name)).or_default().push(point);
        }
    }
    (!series.is_empty()).then(|| Chart {
        x: share_axis("experts resident"),
        y: Vertical::Axis(rate_axis("tok/s", Scale::Log)),
        series: named(series, true),
        limit: None,
        reference: None,
    })
}

fn length(records: &[&Record]) -> Option<Chart> {
    let mut series: BTreeMap<String, Vec<Point>> = BTreeMap::new();
    for (record, identity, body) in speeds(records) {
        for row in rows(body, Measure::Prefill) {
            let mut point = Point::new(row.tokens as f64, row.median, reference_hash(record));
            point.ci95 = row.ci95;
            let budget = bytes(identity.memory.vram_bytes);
            let arithmetic = match identity.precision.prefill {
                assay_ledgers::ArithmeticIdentity::Exact => "",
                assay_ledgers::ArithmeticIdentity::Tensor => ", tensor cores",
            };
            let resident = resident(row.hcs.as_ref());
            let name = format!("{}, {budget}{resident}{arithmetic}, {}", model(identity), identity.device.name);
            series.entry(name).or_default().push(point);
        }
    }
    (!series.is_empty()).then(|| Chart {
        x: Axis { label: "prompt tokens".to_owned(), scale: Scale::Log, print: figure_short, least: None },
        y: Vertical::Axis(rate_axis("tok/s", Scale::Log)),
        series: named(series, true),
        limit: None,
        reference: None,
    })
}

fn depth(records: &[&Record]) -> Option<Chart> {
    let mut series: BTreeMap<String, Vec<Point>> = BTreeMap::new();
    for (record, identity, body) in speeds(records) {
        for (row, depth) in rows(body, Measure::Decode).filter_map(|row| Some((row, row.depth?))) {
            let mut point = Point::new(depth as f64, row.median, reference_hash(record));
            point.ci95 = row.ci95;
            let (budget, resident) = (bytes(identity.memory.vram_bytes), resident(row.hcs.as_ref()));
            let name =
                format!("{}, {budget}{resident}, {}: {} tokens", model(identity), identity.device.name, row.tokens);
            series.entry(name).or_default().push(point);
        }
    }
    (!series.is_empty()).then(|| Chart {
        x: Axis { label: "tokens before".to_owned(), scale: Scale::Log, print: figure_short, least: None },
        y: Vertical::Axis(rate_axis("tok/s", Scale::Log)),
        series: named(series, true),
        limit: None,
        reference: None,
    })
}

/// Phases in the order in which they happen.
const PHASES: [&str; 5] = ["startup", "calibration", "prefill", "decode", "restore"];

fn memory(records: &[&Record]) -> Option<Chart> {
    let mut names = Vec::new();
    let mut series: Vec<Series> =
        PHASES.map(|phase| Series { name: phase.to_owned(), joined: false, points: Vec::new() }).into();
    for (record, identity, body) in speeds(records) {
        let budget = identity.memory.vram_bytes;
        if body.low_water_bytes.is_empty() || budget == 0 {
            continue;
        }
        let row = names.len() as f64;
        let resident = resident(body.hcs.as_ref());
        names.push(format!("{}, {}{resident} on {}", model(identity), bytes(budget), identity.device.name));
        for (series, phase) in series.iter_mut().zip(PHASES) {
            if let Some(&free) = body.low_water_bytes.get(phase) {
                let mut point = Point::new(share(free, budget), row, reference_hash(record));
                point.limit = Some(share(identity.memory.margin_bytes, budget));
                series.points.push(point);
            }
        }
    }
    series.retain(|series| !series.points.is_empty());
    (!names.is_empty()).then(|| Chart {
        x: Axis { least: Some([0.0, 0.05]), ..share_axis("least free, of the budget") },
        y: Vertical::Rows(names),
        series,
        limit: Some("the margin".to_owned()),
        reference: None,
    })
}

fn perplexity(records: &[&Record]) -> Option<Chart> {
    let mut series: BTreeMap<String, Vec<Point>> = BTreeMap::new();
    for record in records {
        let (Body::Perplexity(body), Some(identity)) = (&record.body, &record.identity) else { continue };
        let PerplexityBody { perplexity, .. } = body;
        let mut point = Point::new(expert_bits(identity), *perplexity, reference_hash(record));
        point.label = identity.precision.expert_quantization.map(|method| quantization_name(method).to_owned());
        series.entry(format!("{}, texts: {}", identity.checkpoint.name, identity.prompts.set)).or_default().push(point);
    }
    (!series.is_empty()).then(|| Chart {
        x: Axis {
            label: "bits of an expert's weight".to_owned(),
            scale: Scale::Log,
            print: figure_short,
            least: Some([4.0, 16.0]),
        },
        y: Vertical::Axis(Axis {
            label: "perplexity".to_owned(),
            scale: Scale::Linear,
            print: figure_short,
            least: None,
        }),
        series: named(series, false),
        limit: None,
        reference: None,
    })
}

fn work(records: &[&Record]) -> Option<Chart> {
    let works = works(records);
    let mut series: BTreeMap<String, Vec<Point>> = BTreeMap::new();
    for work in &works {
        let Some(fidelity) = work.fidelity.filter(|fidelity| fidelity.kl.mean > 0.0) else { continue };
        let mut point = Point::new(fidelity.kl.mean, work.solved.value, reference_hash(work.record));
        point.ci95 = work.solved.ci95;
        let name = format!("{}, {}: {}", work.identity.checkpoint.name, work.identity.prompts.set, work.short());
        series.entry(name).or_default().push(point);
    }
    let divergences = || series.values().flatten().map(|point| point.x);
    let (least, most) = (divergences().reduce(f64::min)?, divergences().reduce(f64::max)?);
    let as_trained = works.iter().find(|work| work.is_as_trained()).map(|work| work.solved.value);
    Some(Chart {
        x: Axis { label: "KL divergence, nats".to_owned(), scale: Scale::Log, print: scientific, least: None },
        y: Vertical::Axis(share_axis("tasks solved")),
        reference: as_trained.map(|share| ([least, share], [most, share], "as trained".to_owned())),
        series: named(series, false),
        limit: None,
    })
}

/// For quantities over many powers of ten.
fn scientific(value: f64) -> String {
    format!("{value:.0e}")
}

fn hits(records: &[&Record]) -> Option<Chart> {
    let mut series: BTreeMap<String, Vec<Point>> = BTreeMap::new();
    for (record, identity, body) in speeds(records) {
        let row = longest(body, Measure::Decode).and_then(|row| row.hcs.as_ref());
        let Some((hcs, rate)) = row.and_then(|hcs| Some((hcs, hcs.hit_rate?))) else { continue };
        if hcs.total > 0 {
            let policy = identity.residency_policy.split(',').next().unwrap_or_default();
            let point = Point::new(share(hcs.resident, hcs.total), rate, reference_hash(record));
            series.entry(format!("{policy}: {}", model(identity))).or_default().push(point);
        }
    }
    (!series.is_empty()).then(|| Chart {
        x: share_axis("experts resident"),
        y: Vertical::Axis(share_axis("hits")),
        series: named(series, true),
        limit: None,
        reference: Some(([0.0, 0.0], [1.0, 1.0], "chance".to_owned())),
    })
}

fn timeline(records: &[Record]) -> Option<Chart> {
    let kinds: Vec<&str> = {
        let mut kinds: Vec<&str> = records.iter().map(|record| record.body.kind()).collect();
        kinds.sort_unstable();
        kinds.dedup();
        kinds
    };
    let verdicts = [Verdict::Pass, Verdict::Fail, Verdict::Incomplete, Verdict::Invalid];
    let mut series: Vec<Series> = verdicts
        .map(|verdict| Series { name: verdict.to_string(), joined: false, points: Vec::new() })
        .into_iter()
        .chain([Series { name: "no verdict".to_owned(), joined: false, points: Vec::new() }])
        .collect();
    let invalid = invalidations(records);
    for record in records {
        let time = record.origin.as_ref().map_or(&record.time_utc, |origin| &origin.time_utc);
        let Some(seconds) = humantime::parse_rfc3339(time.as_str())
            .ok()
            .and_then(|time| time.duration_since(UNIX_EPOCH).ok())
            .map(|since| since.as_secs_f64())
        else {
            continue;
        };
        let row = kinds.iter().position(|&kind| kind == record.body.kind()).unwrap_or(0);
        // What a later record takes back passes no more, whatever it found.
        let taken_back = invalid.contains_key(&record.original_hash()).then_some(Verdict::Invalid);
        let worst = record.verdicts.iter().map(|row| row.verdict).max_by_key(|&verdict| gravity(verdict));
        let worst = taken_back.or(worst);
        let index = worst.map_or(verdicts.len(), |worst| verdicts.iter().position(|&v| v == worst).unwrap_or(0));
        series[index].points.push(Point::new(seconds, row as f64, reference_hash(record)));
    }
    series.retain(|series| !series.points.is_empty());
    (!records.is_empty()).then(|| Chart {
        x: Axis { label: "UTC".to_owned(), scale: Scale::Time, print: time_tick, least: None },
        y: Vertical::Rows(kinds.into_iter().map(str::to_owned).collect()),
        series,
        limit: None,
        reference: None,
    })
}

const fn gravity(verdict: Verdict) -> u8 {
    match verdict {
        Verdict::Pass => 0,
        Verdict::Incomplete => 1,
        Verdict::Fail => 2,
        Verdict::Invalid => 3,
    }
}

/// `11-30 08:16`
pub(crate) fn time_tick(seconds: f64) -> String {
    let time = UNIX_EPOCH + std::time::Duration::from_secs(seconds.max(0.0) as u64);
    let text = humantime::format_rfc3339_seconds(time).to_string();
    text.get(5..16).unwrap_or_default().replace('T', " ")
}

fn share_axis(label: &str) -> Axis {
    Axis { label: label.to_owned(), scale: Scale::Linear, print: percent_tick, least: Some([0.0, 1.0]) }
}

/// Series in the order of their names, points in the order of x.
fn named(series: BTreeMap<String, Vec<Point>>, joined: bool) -> Vec<Series> {
    let sorted = |mut points: Vec<Point>| {
        points.sort_by(|a, b| a.x.total_cmp(&b.x));
        points
    };
    series.into_iter().map(|(name, points)| Series { name, joined, points: sorted(points) }).collect()
}

fn share(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64
}

/// `, 25 % resident`
fn resident(hcs: Option<&Hcs>) -> String {
    let hcs = hcs.filter(|hcs| hcs.total > 0);
    hcs.map_or_else(String::new, |hcs| format!(", {:.0} % resident", 100.0 * share(hcs.resident, hcs.total)))
}

/// `tiny-moe int4 search`, or `qwen3-30b-a3b int4 (synthetic)`.
fn model(identity: &Identity) -> String {
    let precision = &identity.precision;
    let method =
        precision.expert_quantization.map_or(String::new(), |method| format!(" {}", quantization_name(method)));
    let synthetic = if identity.synthetic { " (synthetic)" } else { "" };
    format!("{} {}{method}{synthetic}", identity.checkpoint.name, format_name(precision.experts))
}

/// Bits of an expert's weight: with a BF16 scale for each 128 of them where there are scales.
fn expert_bits(identity: &Identity) -> f64 {
    const SCALE: f64 = 16.0 / 128.0;
    match identity.precision.experts {
        NumberFormat::F32 => 32.0,
        NumberFormat::Bf16 => 16.0,
        NumberFormat::Int8 => 8.0 + SCALE,
        // In groups of 32.
        NumberFormat::Int6 => 6.0 + 4.0 * SCALE,
        NumberFormat::Int4 => 4.0 + SCALE,
    }
}
