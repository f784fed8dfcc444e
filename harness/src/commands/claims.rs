//! `assay claims`.

use crate::claims::{Claim, Status, problems, read};
use crate::exit::Exit;
use crate::ledger_place::LedgerPlace;
use crate::output::{Answer, Format, Table};
use crate::repository::Repository;
use assay_ledgers::{Record, Verdict};
use clap::Args;

const EXAMPLES: &str = "\
Examples:
  assay claims
  assay claims --status reproduced
  assay claims S04 F52
  assay claims --class current_benchmark --output csv";

/// The white paper's decisions and negative results, and where we stand.
///
/// Each has the paper's figure and evidence, and a status: reproduced or
/// contradicted (by a record of the tracked ledger), implemented, open, not
/// applicable. FAIL where a status names no record, an unknown one, or one that
/// no longer counts. The table is ledgers/claims.csv.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Claims {
    /// Only these keys, such as S04; S, HS or F for a whole inventory
    #[arg(value_name = "KEY")]
    keys: Vec<String>,
    /// Only claims of this status
    #[arg(long, value_enum, value_name = "STATUS")]
    status: Option<Status>,
    /// Only claims of this evidence class: current_benchmark, functional, …
    #[arg(long, value_name = "CLASS")]
    class: Option<String>,
}

impl Claims {
    pub(super) fn run(self, format: Format) -> anyhow::Result<Exit> {
        let repository = Repository::find()?;
        let all = read(&repository)?;
        let tracked = LedgerPlace::Tracked.folder(&repository);
        let records: Vec<Record> = match tracked.exists() {
            true => assay_ledgers::read(tracked)?.collect::<Result<_, _>>()?,
            false => Vec::new(),
        };
        let problems = problems(&all, &records);
        let chosen: Vec<&Claim> = all.iter().filter(|claim| self.is_wanted(claim)).collect();
        anyhow::ensure!(!chosen.is_empty(), "no claim is asked for: keys are S01 to S56, HS01 to HS04, F01 to F86");
        let verdict = if problems.is_empty() { Verdict::Pass } else { Verdict::Fail };
        answer(&chosen, &problems, verdict, format)?.print(format)?;
        Ok(verdict.into())
    }

    fn is_wanted(&self, claim: &Claim) -> bool {
        let inventory = claim.id.trim_end_matches(|c: char| c.is_ascii_digit());
        let named = |key: &String| key.eq_ignore_ascii_case(&claim.id) || key.eq_ignore_ascii_case(inventory);
        (self.keys.is_empty() || self.keys.iter().any(named))
            && self.status.is_none_or(|status| status == claim.status)
            && self.class.as_ref().is_none_or(|class| class == claim.evidence_class.as_str())
    }
}

fn answer(claims: &[&Claim], problems: &[String], verdict: Verdict, format: Format) -> anyhow::Result<Answer> {
    let count = |status| claims.iter().filter(|claim| claim.status == status).count();
    let counts: serde_json::Map<String, serde_json::Value> =
        Status::ALL.iter().map(|&status| (status.as_str().to_owned(), count(status).into())).collect();
    let json = serde_json::json!({
        "claims": claims, "counts": counts, "problems": problems, "verdict": verdict,
    });
    let mut answer = Answer::new(&json)?.table(table(claims, format));
    let counted: Vec<String> = Status::ALL
        .iter()
        .filter(|&&status| count(status) > 0)
        .map(|&status| format!("{} {}", count(status), status.as_str()))
        .collect();
    answer = answer.line(format!("{} claims: {}", claims.len(), counted.join(", ")));
    for problem in problems {
        answer = answer.line(problem);
    }
    Ok(answer.line(verdict.as_str()))
}

/// Everything for a spreadsheet; what fits 80 columns for a reader.
fn table(claims: &[&Claim], format: Format) -> Table {
    if format == Format::Csv {
        let headings = ["id", "claim", "figure", "evidence_class", "status", "record", "note"];
        let mut table = Table::new("claims", &headings);
        for claim in claims {
            let class = claim.evidence_class.as_str();
            let status = claim.status.as_str();
            table.row([&claim.id, &claim.claim, &claim.figure, class, status, &claim.record, &claim.note]);
        }
        return table;
    }
    let mut table = Table::new("claims of the white paper", &["key", "claim", "its figure", "status"]);
    for claim in claims {
        let behind = if claim.record.is_empty() { &claim.note } else { &claim.record };
        let status = claim.status.as_str();
        let status = if behind.is_empty() { status.to_owned() } else { format!("{status}: {behind}") };
        table.row([claim.id.clone(), claim.claim.clone(), claim.figure.clone(), status]);
    }
    table
}
