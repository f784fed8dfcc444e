//! `assay hcs-sim`

use crate::config::Policy;
use crate::exit::Exit;
use crate::output::{Answer, Format, Table};
use anyhow::{Context, ensure};
use assay_engine::residency::simulate::{fixed_set, oracle, usage_counts};
use assay_engine::residency::{Heatmap, LayerHits, RouteTrace, SimulateOptions, Simulated, simulate};
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use rayon::prelude::*;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::str::FromStr;

const EXAMPLES: &str = "\
Examples:
  assay heatmap trace tiny-moe --to routes.trace
  assay hcs-sim routes.trace
  assay hcs-sim routes.trace --slots 16,25%,50% --promotions 0,1,4 \\
      --heatmap suites/heatmaps/tiny-moe.json
  assay hcs-sim routes.trace --policy lru --layers --output csv";

/// Replay recorded routes through residency policies, without a model
///
/// Every policy with every number of slots and every bound on promotions, by the engine's own code. Beside them stand two
/// bounds that know the future: the best fixed set of experts, and the best that any cache could do (promotions unbounded).
/// Slots are kept through prefill; the tier that prefill borrows is not replayed.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct HcsSim {
    /// Trace that `assay heatmap trace` wrote
    #[arg(value_name = "TRACE")]
    trace: PathBuf,
    /// Policies [default: all]
    #[arg(long, value_delimiter = ',', value_parser = policy_parser(), value_name = "POLICY")]
    policy: Vec<Policy>,
    /// Experts that can be resident: numbers, or shares of all
    #[arg(long, value_delimiter = ',', default_value = "25%,50%,75%", value_name = "N")]
    slots: Vec<Slots>,
    /// Most experts promoted between two tokens
    #[arg(long, value_delimiter = ',', default_value = "4", value_name = "N")]
    promotions: Vec<usize>,
    /// Heatmap that seeds residency
    #[arg(long, value_name = "FILE")]
    heatmap: Option<PathBuf>,
    /// Policies run behind the token, as where a token is one graph
    #[arg(long)]
    behind: bool,
    /// Hit rate of each layer, instead of all together
    #[arg(long)]
    layers: bool,
}

fn policy_parser() -> impl TypedValueParser<Value = Policy> {
    PossibleValuesParser::new(Policy::ALL.map(Policy::name))
        .map(|name| Policy::ALL.into_iter().find(|kind| kind.name() == name).unwrap_or_default())
}

/// A number of slots, or a share of the experts.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Slots {
    Number(usize),
    Percent(f64),
}

impl FromStr for Slots {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || format!("{text:?} is no number of slots: expected 64, or 25% of the experts");
        match text.strip_suffix('%') {
            None => text.parse().map(Slots::Number).map_err(|_| expected()),
            Some(percent) => {
                let percent: f64 = percent.parse().map_err(|_| expected())?;
                if (0.0..=100.0).contains(&percent) { Ok(Slots::Percent(percent)) } else { Err(expected()) }
            }
        }
    }
}

impl Slots {
    fn of(self, total: usize) -> usize {
        match self {
            Slots::Number(slots) => slots.min(total),
            Slots::Percent(percent) => (total as f64 * percent / 100.0).round() as usize,
        }
    }
}

/// What a row replays.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
enum Subject {
    /// A policy as the engine runs it.
    Policy(SimulateOptions),
    /// The heatmap's most used experts, never changed.
    FixedByHeatmap { slots: usize },
    /// The trace's own most used experts, never changed: no fixed set is better.
    BestFixed { slots: usize },
    /// Belady's, with bypass.
    Oracle { slots: usize },
}

impl Subject {
    fn name(self) -> String {
        match self {
            Subject::Policy(options) => options.policy.name().to_owned(),
            Subject::FixedByHeatmap { .. } => "heatmap alone".to_owned(),
            Subject::BestFixed { .. } => "best fixed".to_owned(),
            Subject::Oracle { .. } => "oracle".to_owned(),
        }
    }

    fn slots(self) -> usize {
        match self {
            Subject::Policy(options) => options.slots,
            Subject::FixedByHeatmap { slots } | Subject::BestFixed { slots } | Subject::Oracle { slots } => slots,
        }
    }
}

#[derive(Debug, Serialize)]
struct Row {
    subject: Subject,
    resident_share: f64,
    hit_rate: Option<f64>,
    cold_bytes_per_token: f64,
    promotions_per_token: f64,
    layer_hit_rates: Vec<Option<f64>>,
    result: Simulated,
}

impl HcsSim {
    pub(super) fn run(self, format: Format) -> anyhow::Result<Exit> {
        let trace = RouteTrace::load(&self.trace)?;
        let heatmap = self.heatmap.as_deref().map(|path| load_heatmap(path, &trace)).transpose()?;
        let total = trace.total_experts();
        let rows: Vec<Row> = self
            .subjects(total, heatmap.is_some())
            .into_par_iter()
            .map(|subject| row(subject, &trace, heatmap.as_ref()))
            .collect::<anyhow::Result<_>>()?;
        let json = serde_json::json!({
            "trace": self.trace, "header": trace.header, "tokens": trace.tokens(), "heatmap": self.heatmap, "rows": rows,
        });
        let table = if self.layers { layer_table(&rows) } else { table(&rows) };
        Answer::new(&json)?
            .line(format!(
                "{}: {} tokens decoded in {} requests; {total} experts of {} bytes in {} layers",
                self.trace.display(),
                trace.tokens(),
                trace.header.requests.len(),
                trace.header.expert_bytes,
                trace.moe_layers(),
            ))
            .table(table)
            .print(format)?;
        Ok(Exit::DONE)
    }

    /// For each number of slots the policies, then the bounds.
    fn subjects(&self, total: usize, heatmap: bool) -> Vec<Subject> {
        let behind = self.behind;
        let policies = if self.policy.is_empty() { Policy::ALL.to_vec() } else { self.policy.clone() };
        let mut subjects = Vec::new();
        for slots in self.slots.iter().map(|slots| slots.of(total)) {
            for &policy in &policies {
                for &promotions_per_token in &self.promotions {
                    subjects.push(Subject::Policy(SimulateOptions { policy, slots, promotions_per_token, behind }));
                }
            }
            if heatmap {
                subjects.push(Subject::FixedByHeatmap { slots });
            }
            subjects.extend([Subject::BestFixed { slots }, Subject::Oracle { slots }]);
        }
        subjects
    }
}

/// A heatmap of what the trace is of.
fn load_heatmap(path: &Path, trace: &RouteTrace) -> anyhow::Result<Heatmap> {
    let heatmap = Heatmap::load(
        path,
        trace.moe_layers(),
        trace.header.num_experts,
        trace.header.top_k.iter().copied().max().unwrap_or(0),
    )?;
    heatmap.check_identity(path, &trace.header.identity)?;
    Ok(heatmap)
}

fn row(subject: Subject, trace: &RouteTrace, heatmap: Option<&Heatmap>) -> anyhow::Result<Row> {
    let result = match subject {
        Subject::Policy(options) => {
            simulate(trace, heatmap, options).context("more cold experts than landing slots")?
        }
        Subject::FixedByHeatmap { slots } => {
            let counts = heatmap.map_or_else(Vec::new, |heatmap| heatmap.counts.concat());
            fixed_set(trace, slots, &counts)
        }
        Subject::BestFixed { slots } => fixed_set(trace, slots, &usage_counts(trace)),
        Subject::Oracle { slots } => oracle(trace, slots),
    };
    ensure!(result.layers.len() == trace.moe_layers(), "a replay of {} layers", result.layers.len());
    let tokens = trace.tokens().max(1) as f64;
    Ok(Row {
        subject,
        resident_share: subject.slots() as f64 / trace.total_experts().max(1) as f64,
        hit_rate: result.total().hit_rate(),
        cold_bytes_per_token: result.cold_bytes as f64 / tokens,
        promotions_per_token: result.promotions as f64 / tokens,
        layer_hit_rates: result.layers.iter().map(LayerHits::hit_rate).collect(),
        result,
    })
}

fn percent(share: Option<f64>) -> String {
    share.map_or("–".to_owned(), |share| format!("{:.1} %", share * 100.0))
}

fn promotions(subject: Subject) -> String {
    match subject {
        Subject::Policy(options) => options.promotions_per_token.to_string(),
        _ => "–".to_owned(),
    }
}

fn table(rows: &[Row]) -> Table {
    let headings = ["policy", "#slots", "#share", "#bound", "#hits", "#cold bytes", "#promoted"];
    let mut table = Table::new("Hit rate of decode; cold bytes and promotions a token", &headings);
    for row in rows {
        table.row([
            row.subject.name(),
            row.subject.slots().to_string(),
            percent(Some(row.resident_share)),
            promotions(row.subject),
            percent(row.hit_rate),
            format!("{:.0}", row.cold_bytes_per_token),
            format!("{:.2}", row.promotions_per_token),
        ]);
    }
    table
}

fn layer_table(rows: &[Row]) -> Table {
    let headings = ["policy", "#slots", "#bound", "#layer", "#hits"];
    let mut table = Table::new("Hit rate of decode, by MoE layer", &headings);
    for row in rows {
        for (layer, hit_rate) in row.layer_hit_rates.iter().enumerate() {
            table.row([
                row.subject.name(),
                row.subject.slots().to_string(),
                promotions(row.subject),
                layer.to_string(),
                percent(*hit_rate),
            ]);
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_numbers_or_shares() {
        let check =
            |text: &str, expected: usize| assert_eq!(text.parse::<Slots>().map(|slots| slots.of(64)), Ok(expected));
        check("0", 0);
        check("10", 10);
        check("100", 64);
        check("25%", 16);
        check("12.5%", 8);
        check("100%", 64);
        for text in ["", "-1", "x", "%", "101%", "NaN%"] {
            assert!(text.parse::<Slots>().is_err_and(|error| error.contains("25%")), "{text}");
        }
    }
}
