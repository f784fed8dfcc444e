//! `assay synth check`

use super::EXAMPLES;
use crate::config::Device;
use crate::exit::Exit;
use crate::output::{Answer, Format, Table};
use crate::repository::Repository;
use crate::runtime::Runtime;
use crate::synth::{CheckPlan, count, open};
use assay_engine::synth::routing::RoutingCheck;
use assay_ledgers::Verdict;
use clap::Args;
use serde_json::json;
use std::path::{Path, PathBuf};

/// Tokens of a prompt.
const PROMPT_TOKENS: usize = 512;

/// Whether routing is as the model states, on random prompts
///
/// Prefills random token ids and counts each layer's routes. Even routing: every layer hits a random set of resident
/// experts as often as the set is large, within 0.02, and uses 95 % of its experts. A stated skew: the top eighth of each
/// layer's experts gets what the law gives it, within 0.05. The result is kept in the folder, bound to the checkpoint.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Check {
    /// Folder of a synthetic model
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Where it runs
    #[arg(long, value_enum, default_value = "host", value_name = "DEVICE")]
    device: Device,
    /// Tokens to prefill, in prompts of 512
    #[arg(long, default_value_t = 2048, value_name = "N")]
    tokens: usize,
    /// Tokens to decode greedily after the last prompt, to see whether they repeat
    #[arg(long, default_value_t = 64, value_name = "N")]
    decode: usize,
}

impl Check {
    pub(super) fn run(self, format: Format) -> anyhow::Result<Exit> {
        let repository = Repository::find()?;
        let prompt_tokens = PROMPT_TOKENS.min(self.tokens.max(1));
        let plan =
            CheckPlan { prompts: self.tokens.div_ceil(prompt_tokens), prompt_tokens, decode_tokens: self.decode };
        let (opened, record) = open(&self.dir, self.device, prompt_tokens + self.decode.max(1), &repository)?;
        let checkpoint_sha256 = opened.folder.sha256();
        let mut runtime = Runtime::load(opened, None, &repository)?;
        let counted = count(&mut runtime.engine, plan, checkpoint_sha256, &record)?;
        let check = RoutingCheck::new(&counted);
        let path = check.save(&self.dir)?;
        let verdict = verdict(&check);
        answer(&check, verdict, &path)?.print(format)?;
        Ok(verdict.into())
    }
}

fn verdict(check: &RoutingCheck) -> Verdict {
    match check.as_stated {
        Some(true) => Verdict::Pass,
        Some(false) => Verdict::Fail,
        None => Verdict::Incomplete,
    }
}

fn answer(check: &RoutingCheck, verdict: Verdict, path: &Path) -> anyhow::Result<Answer> {
    let headings = ["#layer", "#routes", "#used", "#of", "#top eighth", "#entropy", "#variation", "#hits - share"];
    let mut table = Table::new("Routes of each MoE layer", &headings);
    for layer in &check.layers {
        table.row([
            layer.moe_layer.to_string(),
            layer.routes.to_string(),
            layer.experts_used.to_string(),
            layer.num_experts.to_string(),
            format!("{:.1} %", layer.top_eighth * 100.0),
            format!("{:.4}", layer.entropy),
            format!("{:.3}", layer.variation),
            format!("{:.4}", layer.hit_rate_difference),
        ]);
    }
    let decoded = format!("{} tokens decoded, {} different ids", check.decode_tokens, check.decode_distinct);
    Ok(Answer::new(&json!({ "file": path, "verdict": verdict, "check": check }))?
        .table(table)
        .line(format!("{} tokens prefilled, {decoded}", check.prefill_tokens))
        .line(format!("{verdict}  {}, stated {}: {}", check.spread, check.stated, check.reason))
        .line(format!("kept in {}", path.display())))
}
