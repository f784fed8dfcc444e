//! `assay synth answers`

use super::EXAMPLES;
use crate::config::Device;
use crate::exit::Exit;
use crate::interrupt;
use crate::output::{Answer, Format, Table};
use crate::progress::Progress;
use crate::repository::Repository;
use crate::runtime::Runtime;
use crate::synth::open;
use anyhow::Context;
use assay_engine::synth::routing::random_ids;
use assay_witness::TopK;
use clap::Args;
use serde::Serialize;
use std::path::PathBuf;

/// Likeliest tokens kept for each prompt.
const TOP_K: usize = 10;

/// Token ids of random prompts and the likeliest tokens after them
///
/// Another implementation that runs the same weights can be asked the same: witness/capture/synthetic.py asks llama.cpp.
/// Prompts are as long as --tokens says, then one token shorter, and so on.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Answers {
    /// Folder of a synthetic model
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Where it runs
    #[arg(long, value_enum, default_value = "host", value_name = "DEVICE")]
    device: Device,
    /// Prompts
    #[arg(long, default_value_t = 8, value_name = "N")]
    prompts: usize,
    /// Tokens of the longest
    #[arg(long, default_value_t = 64, value_name = "N")]
    tokens: usize,
}

/// What is written.
#[derive(Debug, Serialize)]
struct Answered {
    checkpoint_sha256: String,
    prompts: Vec<AnsweredPrompt>,
}

#[derive(Debug, Serialize)]
struct AnsweredPrompt {
    input_token_ids: Vec<u32>,
    top: TopK,
}

impl Answers {
    pub(super) fn run(self, format: Format) -> anyhow::Result<Exit> {
        anyhow::ensure!(self.tokens > 0, "--tokens is 0, expected at least 1");
        let repository = Repository::find()?;
        let (opened, _) = open(&self.dir, self.device, self.tokens + 1, &repository)?;
        let checkpoint_sha256 = opened.folder.sha256();
        let mut runtime = Runtime::load(opened, None, &repository)?;
        let vocab_size = runtime.engine.spec().vocab_size;
        let progress = Progress::start("answering", self.prompts as u64, "prompts");
        let mut prompts = Vec::with_capacity(self.prompts);
        for index in 0..self.prompts {
            interrupt::check()?;
            let tokens = self.tokens.saturating_sub(index).max(1);
            let input_token_ids = random_ids(index, tokens, vocab_size);
            runtime.engine.reset();
            runtime.engine.prefill(&input_token_ids)?;
            let logits = runtime.engine.last_logits()?;
            let top = TopK::from_logits(&logits, TOP_K).context("a logit is not a number")?;
            prompts.push(AnsweredPrompt { input_token_ids, top });
            progress.advance(1);
        }
        drop(progress);
        let mut table = Table::new("Answers", &["#prompt", "#tokens", "#first", "#margin, nats"]);
        for (index, prompt) in prompts.iter().enumerate() {
            let first = prompt.top.first().map_or("–".to_owned(), |id| id.to_string());
            let tokens = prompt.input_token_ids.len();
            table.row([index.to_string(), tokens.to_string(), first, format!("{:.4}", prompt.top.margin())]);
        }
        Answer::new(&Answered { checkpoint_sha256, prompts })?.table(table).print(format)?;
        Ok(Exit::DONE)
    }
}
