//! `assay trace-diff`

use super::trace::SelectionArgs;
use crate::exit::{Exit, InvalidEvidence};
use crate::output::{Answer, Format};
use crate::trace_diff::{Blame, Comparison, ContractDifference, Finding, First, Side, Size, Tolerance, diff};
use clap::Args;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  assay trace-diff expected.trace actual.trace
  assay trace-diff host.trace cuda.trace --tolerance rel:0.01 --output json
  assay trace-diff a.trace b.trace --layers 2 --components attention";

/// Find the first launch in which two traces part
///
/// Prints the last match, the first difference with its size, and what followed. A launch is blamed only if everything it
/// read was equal. Events that one trace alone has are passed over and named. Under a tolerance, whatever a trace holds of a tensor
/// must keep it: selected values, extremes, mean and norm; indices and routes must be the same.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct TraceDiff {
    /// The trace to be met
    #[arg(value_name = "EXPECTED")]
    expected: PathBuf,
    /// The trace that is judged
    #[arg(value_name = "ACTUAL")]
    actual: PathBuf,
    /// exact, ulp:N, abs:X or rel:X
    #[arg(long, default_value_t = Tolerance::Exact, value_name = "T")]
    tolerance: Tolerance,
    #[command(flatten)]
    selection: SelectionArgs,
}

impl TraceDiff {
    pub(super) fn run(self, format: Format) -> anyhow::Result<Exit> {
        let comparison = diff(&self.expected, &self.actual, self.tolerance, &self.selection.selection());
        let comparison = comparison.map_err(|error| match error.is_broken_evidence() {
            true => InvalidEvidence(error.to_string()).into(),
            false => anyhow::Error::from(error),
        })?;
        answer(&comparison)?.print(format)?;
        Ok(Exit::worst(comparison.verdicts.iter().map(|row| row.verdict)))
    }
}

fn answer(comparison: &Comparison) -> anyhow::Result<Answer> {
    let mut answer = Answer::new(comparison)?;
    if let Some(line) = contract_line(&comparison.contract) {
        answer = answer.line(line);
    }
    answer = answer.line(match &comparison.last_match {
        Some(site) => format!("last match: {site} (line {})", site.line),
        None => "last match: none".to_owned(),
    });
    if let Some(first) = &comparison.first_difference {
        for line in first_lines(first) {
            answer = answer.line(line);
        }
    }
    if let Some(followed) = &comparison.followed {
        answer =
            answer.line(format!("followed by {} events, {} of them different", followed.events, followed.differing));
        for site in &followed.next {
            answer = answer.line(format!("  {site}"));
        }
        if let Some(step) = followed.first_chosen_step {
            answer = answer.line(format!("  the chosen token first differs in step {step}"));
        }
    }
    for (name, side) in [("expected", &comparison.expected), ("actual", &comparison.found)] {
        answer = alone(answer, name, side);
    }
    for row in &comparison.verdicts {
        answer = answer.line(format!("{}  {}: {}", row.verdict, row.row, row.reason));
    }
    Ok(answer)
}

fn contract_line(differences: &[ContractDifference]) -> Option<String> {
    let fields: Vec<&str> = differences.iter().map(|difference| difference.field.as_str()).collect();
    (!fields.is_empty()).then(|| format!("contracts differ in {}", fields.join(", ")))
}

fn first_lines(first: &First) -> Vec<String> {
    let blame = match first.blame {
        Blame::InputsEqual => "its inputs were equal",
        Blame::InputsDiffer => "its inputs differed already, and nothing in these traces says where",
        Blame::NotALaunch => "it is no launch",
    };
    let head = format!("first difference: {} (line {}, {}): {blame}", first.at, first.at.line, first.found_line);
    std::iter::once(head).chain(first.findings.iter().map(finding_line)).collect()
}

fn finding_line(finding: &Finding) -> String {
    match (&finding.size, &finding.words) {
        (Some(size), _) => format!("  {}: {}", finding.what, size_words(size)),
        (None, words) => format!("  {}: {}", finding.what, words.as_deref().unwrap_or("differs")),
    }
}

fn size_words(size: &Size) -> String {
    let [expected, found] = size.l2;
    if size.differing == 0 {
        return format!("by its hash; none of {} values differs, norm {expected} and {found}", size.values);
    }
    format!(
        "{} of {} values, most {} and {}: by {:.3e} ({:.1e} of it, {} ulp); norm {expected:.6} and {found:.6}",
        size.differing, size.values, size.expected, size.found, size.max_abs, size.rel, size.ulps
    )
}

fn alone(mut answer: Answer, name: &str, side: &Side) -> Answer {
    if side.alone > 0 {
        answer = answer.line(format!("only in the {name} trace: {} events", side.alone));
        for site in &side.first_alone {
            answer = answer.line(format!("  {site} (line {})", site.line));
        }
    }
    answer
}
