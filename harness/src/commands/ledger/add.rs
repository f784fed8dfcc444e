//! `assay ledger add`.

use super::LedgerArgs;
use crate::evidence::command;
use crate::exit::Exit;
use crate::output::{Answer, Format};
use anyhow::Context;
use assay_engine::file;
use assay_ledgers::{DecisionBody, Draft, EvidenceClass, ExternalBody, Ledger, check_counts};
use clap::Args;
use serde::Deserialize;
use std::path::PathBuf;

/// The longest statement that is read, in bytes: as long as a record may be.
const MAX_BYTES: u64 = 16 << 20;

const EXAMPLES: &str = "\
Examples:
  assay ledger add peer.toml --log llama-bench.txt
  assay ledger add decision.json

peer.toml:
  evidence_class = \"community_reported\"
  [body.external]
  subject = \"llama.cpp b6500\"
  source = \"llama-bench -m model.gguf -p 512 -n 64\"
  setting = { card = \"H200\", format = \"Q4_0\" }
  [[body.external.rows]]
  measure = \"decode\"
  tokens = 64
  unit = \"tok/s\"
  value = 81.5
  samples = [81.2, 81.5, 82.0]";

/// Keep a decision, or a result of somebody else's or of another program.
///
/// FILE is TOML (.toml) or JSON: evidence_class, and in body either external
/// (subject, source, setting, rows) or decision (question, choice, reason,
/// evidence: hashes of records that count). Such a record has no identity; everything
/// that this project runs gets its record by being run.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Add {
    /// What is to be kept
    #[arg(value_name = "FILE")]
    statement: PathBuf,
    /// A raw log that stands behind it; may be given again
    #[arg(long, value_name = "FILE")]
    log: Vec<PathBuf>,
    #[command(flatten)]
    ledger: LedgerArgs,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Statement {
    evidence_class: EvidenceClass,
    body: Words,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Words {
    External(ExternalBody),
    Decision(DecisionBody),
}

impl Add {
    pub(super) fn run(self, format: Format) -> anyhow::Result<Exit> {
        let text = file::read_text(&self.statement, MAX_BYTES)?;
        let is_toml = self.statement.extension().is_some_and(|extension| extension == "toml");
        let statement: Statement = match is_toml {
            true => toml::from_str(&text).map_err(anyhow::Error::from),
            false => serde_json::from_str(&text).map_err(anyhow::Error::from),
        }
        .with_context(|| format!("{} is no statement", self.statement.display()))?;
        let ledger = Ledger::open(self.ledger.folder()?)?;
        let class = statement.evidence_class;
        let mut draft = match statement.body {
            Words::External(body) => Draft::without_identity(class, body),
            Words::Decision(body) => {
                let records = assay_ledgers::read(ledger.dir())?.collect::<Result<Vec<_>, _>>()?;
                for hash in &body.evidence {
                    let record = Ledger::find(ledger.dir(), &hash.to_string())?;
                    check_counts(record.original_hash(), &records)?;
                }
                Draft::without_identity(class, body)
            }
        };
        for path in &self.log {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            draft = draft.log(ledger.store_log(&name, file::open(path)?)?);
        }
        let record = ledger.append(draft.command(command()))?.record;
        Answer::new(&record)?.line(format!("record {}", record.hash.short())).print(format)?;
        Ok(Exit::DONE)
    }
}
