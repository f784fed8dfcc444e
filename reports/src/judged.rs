//! Markdown tables of what was set side by side and of what was judged.

use assay_ledgers::{Body, ComparisonRow, Record, Verdict};

use crate::figures::{figure, interval};
use crate::tables::{Table, configuration, machine, reference};

/// The comparisons of `records` (others are passed over), a row a measure and length.
pub fn comparison_table_markdown<'a>(records: impl IntoIterator<Item = &'a Record>) -> String {
    let mut table = Table::new(&[
        "A",
        "B",
        "Machine",
        "Measure",
        "#Tokens",
        "#Median of A",
        "#Median of B",
        "#B to A",
        "#95 % interval",
        "#Pairs",
        "Record",
    ]);
    for record in records {
        let (Body::Comparison(body), Some(identity)) = (&record.body, &record.identity) else { continue };
        let same = if body.differences.is_empty() && body.a.identity.is_some() { ", the same" } else { "" };
        for row in &body.rows {
            table.row(&[
                body.a.name.clone(),
                format!("{}{same}", body.b.name),
                machine(identity),
                row.measure.as_str().replace('_', " "),
                row.key().lengths(),
                side(&row.a, row),
                side(&row.b, row),
                ratio(row.ratio.value),
                interval(row.ratio.ci95, ratio),
                row.b.len().to_string(),
                reference(record),
            ]);
        }
        table.findings(record);
    }
    table.finish()
}

/// Ratios near 1 need their fourth decimal.
fn ratio(value: f64) -> String {
    format!("{value:.4}")
}

fn side(samples: &[f64], row: &ComparisonRow) -> String {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    let median = match (sorted.len() % 2, sorted.get(middle)) {
        (_, None) => return "–".to_owned(),
        (1, Some(value)) => *value,
        (_, Some(value)) => f64::midpoint(sorted[middle - 1], *value),
    };
    format!("{} {}", figure(median), row.unit)
}

/// What of `records` was judged and has no table of its own: checks, equivalence, determinism, tasks, other programs' runs. Verdicts are
/// counted by kind and never summed up in one.
pub fn verdict_table_markdown<'a>(records: impl IntoIterator<Item = &'a Record>) -> String {
    let mut table = Table::new(&["What", "Configuration", "Machine", "Verdicts", "Record"]);
    for record in records {
        let what = match &record.body {
            Body::Check(body) => format!("{} against {}", body.subject, body.reference),
            Body::Equivalence(body) => format!("equivalence with {}", body.reference),
            Body::Determinism(body) => format!("determinism of {}", body.subject),
            Body::Task(body) => format!("tasks of {} by {}", body.suite, body.endpoint),
            Body::External(body) => body.subject.clone(),
            _ => continue,
        };
        if record.verdicts.is_empty() {
            continue;
        }
        let setting = match &record.body {
            Body::External(body) => body.setting.get("card").or_else(|| body.setting.get("processor")).cloned(),
            _ => None,
        };
        let dash = || "–".to_owned();
        let identity = record.identity.as_ref();
        table.row(&[
            what,
            identity.map_or_else(dash, configuration),
            identity.map(machine).or(setting).unwrap_or_else(dash),
            verdicts(record),
            reference(record),
        ]);
        table.findings(record);
    }
    table.finish()
}

/// `51 PASS, 1 INCOMPLETE`
fn verdicts(record: &Record) -> String {
    let counts: Vec<String> = [Verdict::Pass, Verdict::Fail, Verdict::Incomplete, Verdict::Invalid]
        .into_iter()
        .map(|kind| (kind, record.verdicts.iter().filter(|row| row.verdict == kind).count()))
        .filter(|&(_, count)| count > 0)
        .map(|(kind, count)| format!("{count} {kind}"))
        .collect();
    counts.join(", ")
}
