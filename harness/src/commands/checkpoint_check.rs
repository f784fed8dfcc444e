//! `assay checkpoint-check`

use crate::checkpoint_check::{PromptRow, REFERENCE_FILE, read_reference};
use crate::config::{Config, LoadedConfig};
use crate::evidence::{RunLog, open_ledger, record};
use crate::exit::Exit;
use crate::output::{Answer, Format, Table};
use crate::repository::Repository;
use crate::runtime::{IdentityInputs, Opened, Runtime};
use assay_engine::memory::MemoryPlan;
use assay_ledgers::{CheckBody, CheckRow, Draft, EvidenceClass, Sha256, Verdict, VerdictRow};
use clap::Args;
use serde_json::json;
use std::collections::BTreeMap;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  assay checkpoint-check fixtures/models/tiny-moe
  assay checkpoint-check ~/models/qwen3-30b-a3b --output json";

/// Tokens of a prefill chunk: references are short.
const CHUNK: usize = 256;

/// Compare a checkpoint with the reference.json in its folder
///
/// Runs the reference's prompts with BF16 weights, f32 arithmetic and F32 KV, and compares the argmax at every position, the greedy
/// continuation, and the complete last logits where the reference has them.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct CheckpointCheck {
    /// Folder with config.json, weights and reference.json
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

impl CheckpointCheck {
    pub(super) fn run(self, format: Format) -> anyhow::Result<Exit> {
        let repository = Repository::find()?;
        let reference = read_reference(&self.dir)?;
        let ledger = open_ledger(&repository)?;
        let reference_sha256 = Sha256::of_file(&self.dir.join(REFERENCE_FILE))?;
        let dir = std::path::absolute(&self.dir)?;
        let context = reference.context_tokens();
        let config = Config::exact(dir, context, CHUNK.min(context));
        let loaded = LoadedConfig::of(REFERENCE_FILE, config, &repository);
        let mut opened = Opened::new(loaded)?;
        let plan = MemoryPlan::new(&opened.folder.spec, &opened.options)?;
        opened.set_vram(plan.resident_budget(opened.options.max_chunk));
        let mut runtime = Runtime::load(opened, None, &repository)?;
        let rows = reference.check(&mut runtime.engine)?;

        let verdicts: Vec<VerdictRow> = rows.iter().map(verdict_row).collect();
        let verdict = if rows.iter().all(|row| row.pass) { Verdict::Pass } else { Verdict::Fail };
        let name = runtime.opened.model_name();
        let identity = runtime.opened.identity(
            &repository,
            None,
            IdentityInputs {
                suite: None,
                prompt_set: REFERENCE_FILE.to_owned(),
                texts: BTreeMap::from([(REFERENCE_FILE.to_owned(), reference_sha256)]),
                tokenized: false,
                sampled: true,
            },
        )?;
        let body = CheckBody {
            subject: name.clone(),
            reference: REFERENCE_FILE.to_owned(),
            rows: rows.iter().map(check_row).collect(),
        };
        let mut log = RunLog::default();
        rows.iter().for_each(|row| log.line(row));
        let evidence = record(&ledger, Draft::new(EvidenceClass::Functional, identity, body), verdicts, &log)?;

        let json = json!({ "checkpoint": name, "prompts": rows, "verdict": verdict, "evidence": evidence });
        let last = format!("{verdict}  record {}", evidence.short());
        Answer::new(&json)?.table(table(&name, &rows)).line(last).print(format)?;
        Ok(verdict.into())
    }
}

fn verdict_row(row: &PromptRow) -> VerdictRow {
    let (verdict, reason) = if row.pass {
        (Verdict::Pass, "argmax, greedy tokens and last logits agree".to_owned())
    } else {
        let reason = format!(
            "argmax {}/{}, greedy {}/{}, last logits {}",
            row.argmax_equal,
            row.positions,
            row.greedy_equal,
            row.greedy_tokens,
            row.last_logits_rms.map_or("not compared".to_owned(), |rms| format!("{rms:.1e} of their deviation"))
        );
        (Verdict::Fail, reason)
    };
    VerdictRow { row: format!("prompt {}", row.prompt), verdict, reason }
}

fn check_row(row: &PromptRow) -> CheckRow {
    let mut figures = BTreeMap::from([
        ("positions".to_owned(), row.positions as f64),
        ("argmax_equal".to_owned(), row.argmax_equal as f64),
        ("greedy_tokens".to_owned(), row.greedy_tokens as f64),
        ("greedy_equal".to_owned(), row.greedy_equal as f64),
    ]);
    if let Some(rms) = row.last_logits_rms {
        figures.insert("last_logits_rms_std".to_owned(), rms);
    }
    CheckRow { row: format!("prompt {}", row.prompt), figures }
}

fn table(name: &str, rows: &[PromptRow]) -> Table {
    let headings = ["#prompt", "#argmax equal", "#greedy equal", "#last logits, RMS", "verdict"];
    let mut table = Table::new(format!("{name} against {REFERENCE_FILE}"), &headings);
    for row in rows {
        table.row([
            row.prompt.to_string(),
            format!("{}/{}", row.argmax_equal, row.positions),
            format!("{}/{}", row.greedy_equal, row.greedy_tokens),
            row.last_logits_rms.map_or("–".to_owned(), |rms| format!("{rms:.1e} std")),
            if row.pass { "PASS" } else { "FAIL" }.to_owned(),
        ]);
    }
    table
}
