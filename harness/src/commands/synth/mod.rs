//! `assay synth`

mod answers;
mod check;
mod write;

use crate::exit::Exit;
use crate::output::Format;
use clap::{Args, Subcommand};

const EXAMPLES: &str = "\
Examples:
  assay synth tiny --out /tmp/tiny
  assay synth check /tmp/tiny
  assay synth qwen3-30b-a3b --layers 4 --out models/q30-4
  assay synth mixtral-8x22b --skew zipf:1.0 --seed 7 --out models/m22
  assay export gguf /tmp/tiny tiny.gguf";

/// Made-up weights in the shape of a real model
///
/// Writes a model folder that every command opens like any other: seeded weights, the experts straight as an expert
/// cache. Routing is even, or skewed as stated, which `assay synth check` measures on a forward pass. All matrices are
/// exact in BF16, INT4 and llama.cpp's Q4_0. What such a model says means nothing: quality commands refuse it.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Synth {
    #[command(subcommand)]
    action: Option<Action>,
    #[command(flatten)]
    write: Option<write::Write>,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Whether routing is as the model states, on random prompts
    Check(check::Check),
    /// Token ids of random prompts and the likeliest tokens after them
    Answers(answers::Answers),
}

impl Synth {
    pub(super) fn run(self, format: Format) -> anyhow::Result<Exit> {
        match (self.action, self.write) {
            (Some(Action::Check(check)), _) => check.run(format),
            (Some(Action::Answers(answers)), _) => answers.run(format),
            (None, Some(write)) => write.run(format),
            (None, None) => anyhow::bail!("a shape and --out DIR are needed, or a subcommand: see --help"),
        }
    }
}
