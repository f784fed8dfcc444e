//! Markdown tables. Every row ends with the short hash of the record it comes from, as it was first written.

use std::cmp::Reverse;
use std::fmt::Write as _;

use assay_ledgers::{
    BaselineLogits, Body, ExpertQuantization, FidelityBody, Identity, Measure, NumberFormat, PerplexityBody, Record,
    SpeedRow, Verdict,
};

use crate::figures::{bytes, difference, figure, interval, percent};
use crate::limits::Limits;

/// The speed rows of `records` (others are passed over): the median with its interval, the best beside it.
pub fn speed_table_markdown<'a>(records: impl IntoIterator<Item = &'a Record>) -> String {
    let mut table = Table::new(&[
        "Configuration",
        "Machine",
        "Suite",
        "Measure",
        "#Tokens",
        "#Median",
        "#95 % interval",
        "#Best",
        "Unit",
        "#Of the limit",
        "#Resident",
        "#Hits",
        "Record",
    ]);
    let records: Vec<&Record> = records.into_iter().collect();
    let limits = Limits::new(&records);
    for record in records {
        let (Body::Speed(body), Some(identity)) = (&record.body, &record.identity) else { continue };
        for row in &body.rows {
            table.row(&speed_cells(record, identity, row, limits.of(identity, body, row)));
        }
        table.findings(record);
    }
    table.finish()
}

/// The longest prompt and the longest answer of each speed record: what a reader wants to see first.
pub fn headline_table_markdown<'a>(records: impl IntoIterator<Item = &'a Record>) -> String {
    let mut table =
        Table::new(&["Configuration", "Machine", "Suite", "#Prefill, tok/s", "#Decode, tok/s", "#Resident", "Record"]);
    for record in records {
        let (Body::Speed(body), Some(identity)) = (&record.body, &record.identity) else { continue };
        let of = |measure| body.rows.iter().filter(move |row| row.measure == measure);
        let longest = |measure| of(measure).max_by_key(|row| (row.tokens, Reverse(row.depth)));
        let cell = |row: Option<&SpeedRow>| match row {
            None => "–".to_owned(),
            Some(row) => {
                let ci95 = row.ci95.map_or_else(String::new, |ci95| format!(" ({})", interval(Some(ci95), figure)));
                format!("{}{ci95} at {}", figure(row.median), row.key().lengths())
            }
        };
        let decode = longest(Measure::Decode);
        let resident = decode.and_then(|row| row.hcs.as_ref());
        table.row(&[
            configuration(identity),
            machine(identity),
            suite(identity),
            cell(longest(Measure::Prefill)),
            cell(decode),
            resident.map_or_else(|| "–".to_owned(), |hcs| format!("{} of {}", hcs.resident, hcs.total)),
            reference(record),
        ]);
        table.findings(record);
    }
    table.finish()
}

/// The distances of `records` from their baselines (others are passed over).
pub fn fidelity_table_markdown<'a>(records: impl IntoIterator<Item = &'a Record>) -> String {
    let mut table = Table::new(&[
        "Configuration",
        "Baseline",
        "#Positions",
        "#KL mean, nats",
        "#median",
        "#99th percentile",
        "#largest",
        "#Likeliest differs",
        "#Ten overlap",
        "#JS at the first token",
        "#ΔNLL, nats",
        "#95 % interval",
        "Record",
    ]);
    for record in records {
        let (Body::Fidelity(body), Some(identity)) = (&record.body, &record.identity) else { continue };
        table.row(&fidelity_cells(record, identity, body));
        table.findings(record);
    }
    table.finish()
}

fn fidelity_cells(record: &Record, identity: &Identity, body: &FidelityBody) -> [String; 13] {
    let logits = match body.baseline_logits {
        BaselineLogits::Full => String::new(),
        BaselineLogits::TopK(k) => format!(", the {k} largest: divergences are lower bounds"),
    };
    let nats = |value: f64| format!("{value:.2e}");
    let flips = body.top1_flips;
    let loss = body.nll_difference;
    [
        configuration(identity),
        format!("{}{logits}", body.baseline_name),
        body.positions.to_string(),
        nats(body.kl.mean),
        nats(body.kl.median),
        nats(body.kl.p99),
        nats(body.kl.max),
        format!("{} ({} to wrong, {} to right)", flips.all, flips.to_wrong, flips.to_right),
        percent(body.top10_overlap),
        nats(body.first_token_js.mean),
        loss.map_or_else(|| "–".to_owned(), |loss| difference(loss.value)),
        interval(loss.and_then(|loss| loss.ci95), difference),
        reference(record),
    ]
}

/// The perplexities of `records` (others are passed over), a row a record; where one was compared, the difference from the other
/// identity with its interval.
pub fn perplexity_table_markdown<'a>(records: impl IntoIterator<Item = &'a Record>) -> String {
    let mut table = Table::new(&[
        "Configuration",
        "Texts",
        "#Documents",
        "#Targets",
        "#Perplexity",
        "Compared with",
        "#ΔNLL, nats",
        "#95 % interval",
        "Record",
    ]);
    for record in records {
        let (Body::Perplexity(body), Some(identity)) = (&record.body, &record.identity) else { continue };
        table.row(&perplexity_cells(record, identity, body));
        table.findings(record);
    }
    table.finish()
}

fn speed_cells(record: &Record, identity: &Identity, row: &SpeedRow, limit: Option<f64>) -> [String; 13] {
    let dash = || "–".to_owned();
    let hcs = row.hcs.as_ref();
    [
        configuration(identity),
        machine(identity),
        suite(identity),
        row.measure.as_str().replace('_', " "),
        row.key().lengths(),
        figure(row.median),
        interval(row.ci95, figure),
        figure(row.best),
        row.unit.clone(),
        limit.map_or_else(dash, |limit| percent(row.median / limit)),
        hcs.map_or_else(dash, |hcs| format!("{} of {}", hcs.resident, hcs.total)),
        hcs.and_then(|hcs| hcs.hit_rate).map_or_else(dash, percent),
        reference(record),
    ]
}

fn perplexity_cells(record: &Record, identity: &Identity, body: &PerplexityBody) -> [String; 9] {
    let dash = || "–".to_owned();
    let comparison = body.comparison.as_ref();
    [
        configuration(identity),
        identity.prompts.set.clone(),
        body.documents.len().to_string(),
        body.tokens.to_string(),
        format!("{:.3}", body.perplexity),
        comparison.map_or_else(dash, |other| format!("{} ({:.3})", other.against_name, other.against_perplexity)),
        comparison.map_or_else(dash, |other| difference(other.nll_difference)),
        interval(comparison.and_then(|other| other.nll_difference_ci95), difference),
        reference(record),
    ]
}

/// `tiny-moe, experts int4 (amax), KV bf16, 48 MiB`.
pub(crate) fn configuration(identity: &Identity) -> String {
    let precision = &identity.precision;
    let scales = match precision.expert_quantization {
        None => "",
        Some(method) => &format!(" ({})", quantization_name(method)),
    };
    let mut text = format!(
        "{}, experts {}{scales}, KV {}, {}",
        identity.checkpoint.name,
        format_name(precision.experts),
        format_name(precision.kv),
        bytes(identity.memory.vram_bytes)
    );
    if let Some(approximation) = &identity.approximation {
        let _ = write!(text, ", approximate: {approximation}");
    }
    if identity.synthetic {
        text.push_str(", synthetic");
    }
    if identity.source.dirty.is_some() {
        text.push_str(", uncommitted source");
    }
    text
}

pub(crate) const fn format_name(format: NumberFormat) -> &'static str {
    match format {
        NumberFormat::F32 => "f32",
        NumberFormat::Bf16 => "bf16",
        NumberFormat::Int8 => "int8",
        NumberFormat::Int6 => "int6",
        NumberFormat::Int4 => "int4",
    }
}

pub(crate) const fn quantization_name(method: ExpertQuantization) -> &'static str {
    match method {
        ExpertQuantization::Amax => "amax",
        ExpertQuantization::Search => "search",
    }
}

pub(crate) fn machine(identity: &Identity) -> String {
    let device = &identity.device;
    let threads = device.threads;
    format!("{}, {threads} thread{}", device.name, if threads == 1 { "" } else { "s" })
}

/// What decides lengths, prompts and repetitions.
fn suite(identity: &Identity) -> String {
    identity.suite.as_ref().map_or_else(|| "–".to_owned(), |suite| suite.name.clone())
}

/// A record as it was first written.
pub(crate) fn reference_hash(record: &Record) -> String {
    record.original_hash().short()
}

pub(crate) fn reference(record: &Record) -> String {
    format!("`{}`", reference_hash(record))
}

/// A Markdown table; a header that starts with `#` is a column of numbers.
pub(crate) struct Table {
    text: String,
    findings: Vec<String>,
    is_empty: bool,
}

impl Table {
    pub(crate) fn new(headers: &[&str]) -> Self {
        let names: Vec<&str> = headers.iter().map(|header| header.trim_start_matches('#')).collect();
        let rules: Vec<&str> =
            headers.iter().map(|header| if header.starts_with('#') { "---:" } else { "---" }).collect();
        let text = format!("| {} |\n| {} |\n", names.join(" | "), rules.join(" | "));
        Self { text, findings: Vec::new(), is_empty: true }
    }

    pub(crate) fn row(&mut self, cells: &[String]) {
        let cells: Vec<String> = cells.iter().map(|cell| escape(cell)).collect();
        let _ = writeln!(self.text, "| {} |", cells.join(" | "));
        self.is_empty = false;
    }

    /// What was not judged PASS stands below the table, so that no figure is shown without it.
    pub(crate) fn findings(&mut self, record: &Record) {
        for row in record.verdicts.iter().filter(|row| row.verdict != Verdict::Pass) {
            self.findings.push(format!(
                "- {} {}: {} ({})",
                reference(record),
                escape(&row.row),
                row.verdict,
                escape(&row.reason)
            ));
        }
    }

    pub(crate) fn finish(mut self) -> String {
        if self.is_empty {
            return "No record yet.\n".to_owned();
        }
        if !self.findings.is_empty() {
            let _ = write!(self.text, "\nNot PASS:\n\n{}\n", self.findings.join("\n"));
        }
        self.text
    }
}

fn escape(cell: &str) -> String {
    cell.replace('\\', "\\\\").replace('|', "\\|").replace(['\n', '\r'], " ").replace('<', "&lt;")
}
