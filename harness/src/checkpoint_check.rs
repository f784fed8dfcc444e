//! A checkpoint against the `reference.json` in its folder: what another implementation computed from the same weights.
//!
//! BF16 weights, f32 arithmetic, F32 KV. Every position's argmax and every greedy token must be equal; complete last logits,
//! where the reference has them, must agree within [`LOGITS_TOLERANCE`] of their standard deviation.

use crate::interrupt;
use crate::progress::Progress;
use anyhow::{Context, bail, ensure};
use assay_engine::device::Device;
use assay_engine::file;
use assay_engine::{Engine, EngineError};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// The file's name.
pub const REFERENCE_FILE: &str = "reference.json";

/// No reference of a few prompts comes near this many bytes.
const MAX_REFERENCE_BYTES: u64 = 256 << 20;

/// Root mean square of the differences of the last logits, in their standard deviations. Two f32 implementations that
/// add in different orders differ by about 1e-6 of it in each layer; a wrong operation differs by far more than 1e-3.
pub const LOGITS_TOLERANCE: f64 = 1e-3;

/// A reference. Fields that another comparison reads (perplexity, expert load) are left alone.
#[derive(Debug, Deserialize)]
pub struct Reference {
    /// The prompts, each with its answers.
    pub prompts: Vec<ReferencePrompt>,
}

/// One prompt and what the reference implementation made of it.
#[derive(Debug, Deserialize)]
pub struct ReferencePrompt {
    /// The prompt.
    pub input_token_ids: Vec<u32>,
    /// The likeliest next token at every position.
    pub argmax_per_position: Vec<u32>,
    /// Greedy continuation.
    pub greedy_token_ids: Vec<u32>,
    /// Difference between the two largest logits at each greedy step.
    #[serde(default)]
    pub greedy_margin: Vec<f64>,
    /// Complete logits after the last position.
    #[serde(default)]
    pub last_logits_f32: Vec<f64>,
    /// Their standard deviation.
    #[serde(default)]
    pub logits_std: Option<f64>,
}

/// A row of the answer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PromptRow {
    /// From 0.
    pub prompt: usize,
    /// Positions of the prompt.
    pub positions: usize,
    /// Positions whose argmax is the reference's.
    pub argmax_equal: usize,
    /// The first position whose argmax is another.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_argmax_difference: Option<usize>,
    /// Greedy tokens compared.
    pub greedy_tokens: usize,
    /// Greedy tokens equal up to the first difference.
    pub greedy_equal: usize,
    /// The reference's margin at the first greedy difference.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub greedy_margin_at_difference: Option<f64>,
    /// Root mean square of the differences of the last logits, in their standard deviations.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_logits_rms: Option<f64>,
    /// Whether all of it agrees.
    pub pass: bool,
}

/// Reads a folder's reference.
///
/// # Errors
/// When there is none, or it is not one.
pub fn read_reference(dir: &Path) -> anyhow::Result<Reference> {
    let path = dir.join(REFERENCE_FILE);
    let name = path.display();
    let text = file::read(&path, MAX_REFERENCE_BYTES)?;
    let reference: Reference = serde_json::from_slice(&text).with_context(|| format!("{name}: not a reference"))?;
    ensure!(!reference.prompts.is_empty(), "{name}: no prompt, expected at least one");
    for (index, prompt) in reference.prompts.iter().enumerate() {
        if let Some(problem) = problem(prompt) {
            bail!("{name}: prompt {index}: {problem}");
        }
    }
    Ok(reference)
}

fn problem(prompt: &ReferencePrompt) -> Option<String> {
    let (positions, argmax) = (prompt.input_token_ids.len(), prompt.argmax_per_position.len());
    if positions == 0 || positions != argmax {
        return Some(format!("{positions} tokens and {argmax} argmaxes, expected as many and at least one"));
    }
    if prompt.greedy_token_ids.is_empty() {
        return Some("no greedy token, expected at least one".to_owned());
    }
    let needs_std = !prompt.last_logits_f32.is_empty();
    let std = prompt.logits_std.is_some_and(|std| std.is_finite() && std > 0.0);
    (needs_std && !std).then(|| format!("logits_std is {:?}, expected a positive number", prompt.logits_std))
}

impl Reference {
    /// Tokens of the longest prompt with its continuation.
    pub fn context_tokens(&self) -> usize {
        let tokens = |prompt: &ReferencePrompt| prompt.input_token_ids.len() + prompt.greedy_token_ids.len();
        self.prompts.iter().map(tokens).max().unwrap_or(0)
    }

    /// Runs every prompt.
    ///
    /// # Errors
    /// When the engine refuses a prompt, or the user interrupts.
    pub fn check<D: Device>(&self, engine: &mut Engine<D>) -> anyhow::Result<Vec<PromptRow>> {
        let progress = Progress::start("checking", self.prompts.len() as u64, "prompts");
        let mut rows = Vec::with_capacity(self.prompts.len());
        for (index, prompt) in self.prompts.iter().enumerate() {
            interrupt::check()?;
            rows.push(check_prompt(engine, index, prompt)?);
            progress.advance(1);
        }
        Ok(rows)
    }
}

fn check_prompt<D: Device>(
    engine: &mut Engine<D>,
    index: usize,
    prompt: &ReferencePrompt,
) -> anyhow::Result<PromptRow> {
    let mut argmaxes = Vec::with_capacity(prompt.input_token_ids.len());
    engine.reset();
    let mut token = engine.prefill_logits(&prompt.input_token_ids, 0, &mut |_, logits| {
        argmaxes.push(assay_kernels::simd::argmax(logits).map_err(|error| EngineError::Device(error.into()))?);
        Ok(())
    })?;
    let last_logits_rms = logits_rms(&engine.last_logits()?, prompt)?;
    let mut generated = vec![token];
    while generated.len() < prompt.greedy_token_ids.len() {
        token = engine.decode(token)?;
        generated.push(token);
    }
    let argmax_equal = argmaxes.iter().zip(&prompt.argmax_per_position).filter(|(a, b)| a == b).count();
    let first_argmax_difference = argmaxes.iter().zip(&prompt.argmax_per_position).position(|(a, b)| a != b);
    let greedy_equal = generated.iter().zip(&prompt.greedy_token_ids).take_while(|(a, b)| a == b).count();
    let greedy_tokens = prompt.greedy_token_ids.len();
    let close = last_logits_rms.is_none_or(|rms| rms <= LOGITS_TOLERANCE);
    Ok(PromptRow {
        prompt: index,
        positions: argmaxes.len(),
        argmax_equal,
        first_argmax_difference,
        greedy_tokens,
        greedy_equal,
        greedy_margin_at_difference: prompt.greedy_margin.get(greedy_equal).copied(),
        last_logits_rms,
        pass: first_argmax_difference.is_none() && greedy_equal == greedy_tokens && close,
    })
}

fn logits_rms(logits: &[f32], prompt: &ReferencePrompt) -> anyhow::Result<Option<f64>> {
    let (expected, Some(std)) = (&prompt.last_logits_f32, prompt.logits_std) else { return Ok(None) };
    if expected.is_empty() {
        return Ok(None);
    }
    ensure!(
        expected.len() == logits.len(),
        "the reference has {} logits, the model has {}: they are of different vocabularies",
        expected.len(),
        logits.len()
    );
    let squares: f64 = logits.iter().zip(expected).map(|(&a, b)| (f64::from(a) - b).powi(2)).sum();
    Ok(Some((squares / logits.len() as f64).sqrt() / std))
}
