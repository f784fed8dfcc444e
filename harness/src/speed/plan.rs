//! Which prompts of which lengths.

use crate::corpus::{Corpus, Prompt, PromptCutter, PromptUse, TextSpan};
use crate::suite::{SpeedSuite, capped_lengths};
use anyhow::ensure;
use assay_engine::checkpoint::tokenizer::Tokenizer;
use assay_ledgers::Measure;
use serde::Serialize;

/// What bounds prompt lengths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Cap {
    /// The config's.
    pub config_tokens: usize,
    /// What calibration allows.
    pub calibrated_tokens: usize,
}

impl Cap {
    /// The smaller of the two.
    pub fn tokens(self) -> usize {
        self.config_tokens.min(self.calibrated_tokens)
    }
}

/// One measure at one length.
#[derive(Debug, Clone)]
pub struct PlannedRow {
    /// What is measured.
    pub measure: Measure,
    /// Tokens that are timed: of the prompt in prefill, generated in decode.
    pub tokens: usize,
    /// Tokens of the prompt before them, in decode.
    pub depth: Option<usize>,
    /// Prompts that are thrown away.
    pub warm_up: Vec<Prompt>,
    /// Prompts that are timed.
    pub timed: Vec<Prompt>,
}

/// Everything that will be run, tokenized.
#[derive(Debug, Clone)]
pub struct SpeedPlan {
    /// What bounded prompt lengths.
    pub cap: Cap,
    /// The rows, prefill first.
    pub rows: Vec<PlannedRow>,
}

impl SpeedPlan {
    /// Cuts every prompt.
    ///
    /// # Errors
    /// When no text is long enough, or the context cannot hold a prompt and its answer.
    pub fn new(
        suite: &SpeedSuite,
        cap: Cap,
        context_tokens: usize,
        corpus: &Corpus,
        tokenizer: &Tokenizer,
    ) -> anyhow::Result<Self> {
        let cutter = PromptCutter::new(corpus, tokenizer);
        let cut = |prompt_use, tokens, count| -> anyhow::Result<Vec<Prompt>> {
            (0..count).map(|repetition| Ok(cutter.cut(prompt_use, tokens, repetition)?)).collect()
        };
        let row = |measure, tokens, depth: Option<usize>| -> anyhow::Result<PlannedRow> {
            let prompt_tokens = depth.unwrap_or(tokens);
            Ok(PlannedRow {
                measure,
                tokens,
                depth,
                warm_up: cut(PromptUse::WarmUp, prompt_tokens, suite.repetitions.warm_up)?,
                timed: cut(PromptUse::Timed, prompt_tokens, suite.repetitions.timed)?,
            })
        };
        let mut rows = Vec::new();
        for tokens in capped_lengths(&suite.prefill.tokens, cap.tokens()) {
            rows.push(row(Measure::Prefill, tokens, None)?);
        }
        for depth in capped_lengths(&suite.decode.prompt_tokens, cap.tokens()) {
            for &tokens in &suite.decode.tokens {
                ensure!(
                    depth + tokens <= context_tokens,
                    "decoding {tokens} tokens after {depth} needs a context of {}, the config has {context_tokens}",
                    depth + tokens
                );
                rows.push(row(Measure::Decode, tokens, Some(depth))?);
            }
        }
        Ok(SpeedPlan { cap, rows })
    }

    /// Where every timed prompt was cut from.
    pub fn timed_spans(&self) -> Vec<TextSpan> {
        self.rows.iter().flat_map(|row| &row.timed).map(|prompt| prompt.span.clone()).collect()
    }

    /// Runs in all.
    pub fn runs(&self) -> usize {
        self.rows.iter().map(|row| row.warm_up.len() + row.timed.len()).sum()
    }
}
