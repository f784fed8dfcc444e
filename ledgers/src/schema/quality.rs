//! Results about answers: perplexity, distance from a baseline, equality between ways and between runs.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Sha256;

/// A figure with its interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Interval95 {
    /// The estimate.
    pub value: f64,
    /// 95 % interval, low and high; absent where the samples carry none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ci95: Option<[f64; 2]>,
}

/// Perplexity, and how it was windowed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PerplexityBody {
    /// Tokens of a window.
    pub window: u64,
    /// Tokens from one window's start to the next.
    pub stride: u64,
    /// A row a document.
    pub documents: Vec<DocumentRow>,
    /// Targets scored in all.
    pub tokens: u64,
    /// Negative log-likelihood of all of them, nats.
    pub nll_total: f64,
    /// `exp(nll_total / tokens)`.
    pub perplexity: f64,
    /// Paired with another identity, if one was run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comparison: Option<PerplexityComparison>,
}

/// One document.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DocumentRow {
    /// Its name.
    pub document: String,
    /// Targets scored.
    pub tokens: u64,
    /// Their negative log-likelihood, nats.
    pub nll_total: f64,
    /// `nll_total / tokens`.
    pub nll_mean: f64,
    /// `exp(nll_mean)`.
    pub perplexity: f64,
}

/// This identity less another, over the same documents.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PerplexityComparison {
    /// Hash of the other identity.
    pub against: Sha256,
    /// What the other is called.
    pub against_name: String,
    /// The other's record, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub against_record: Option<Sha256>,
    /// Documents paired.
    pub documents: u64,
    /// The other's perplexity.
    pub against_perplexity: f64,
    /// Mean difference of the negative log-likelihood of a token, nats; above 0 is worse than the other.
    pub nll_difference: f64,
    /// Its 95 % interval, clustered by document; absent where the documents are too few.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nll_difference_ci95: Option<[f64; 2]>,
    /// Each document's mean difference, nats a token.
    pub document_differences: BTreeMap<String, f64>,
}

/// Distance from a baseline's logits over the same positions of the same token ids.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FidelityBody {
    /// Hash of the baseline's file.
    pub baseline: Sha256,
    /// What the baseline is called.
    pub baseline_name: String,
    /// Hash of the identity that the baseline is of; absent where this project did not make it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub baseline_identity: Option<Sha256>,
    /// What the baseline holds of each position.
    pub baseline_logits: BaselineLogits,
    /// Positions compared.
    pub positions: u64,
    /// Kullback–Leibler divergence of this identity from the baseline, nats a position.
    pub kl: Spread,
    /// Positions at which the likeliest token differs.
    pub top1_flips: Top1Flips,
    /// Share of positions at which the baseline's likeliest token is among this identity's ten, 0 to 1.
    pub top10_containment: f64,
    /// Mean share of the baseline's ten likeliest tokens that are among this identity's ten, 0 to 1.
    pub top10_overlap: f64,
    /// Jensen–Shannon divergence at the first token of every document, nats.
    pub first_token_js: Spread,
    /// Mean of this identity's negative log-likelihood less the baseline's, nats a target, clustered by document; above 0
    /// is worse than the baseline. Absent where the baseline's logits cannot give it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nll_difference: Option<Interval95>,
    /// A row a document.
    pub documents: Vec<FidelityRow>,
}

/// What a baseline holds of each position.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum BaselineLogits {
    /// Every logit, as F32.
    Full,
    /// The k largest, and the probability of all others together. Divergences are then those of k + 1 outcomes: a lower bound.
    TopK(u32),
}

/// Positions at which the likeliest token differs from the baseline's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Top1Flips {
    /// All of them.
    pub all: u64,
    /// The baseline's was the text's next token, this identity's is not.
    pub to_wrong: u64,
    /// This identity's is the text's next token, the baseline's was not.
    pub to_right: u64,
}

/// One document against the baseline.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FidelityRow {
    /// Its name.
    pub document: String,
    /// Positions compared.
    pub positions: u64,
    /// Mean Kullback–Leibler divergence, nats.
    pub kl_mean: f64,
    /// Positions at which the likeliest token differs.
    pub top1_flips: u64,
    /// Jensen–Shannon divergence at the first token, nats.
    pub first_token_js: f64,
    /// Mean difference of the negative log-likelihood, nats a target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nll_difference: Option<f64>,
}

/// Spread of a quantity.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Spread {
    /// Mean.
    pub mean: f64,
    /// Median.
    pub median: f64,
    /// 99th percentile.
    pub p99: f64,
    /// Largest.
    pub max: f64,
}

/// The same answer by different ways.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EquivalenceBody {
    /// What every case is compared with, such as `fresh full history`.
    pub reference: String,
    /// A row a case; the record's verdicts name the same rows.
    pub cases: Vec<EquivalenceCase>,
}

/// One way to the answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EquivalenceCase {
    /// Its name.
    pub case: String,
    /// The conversation that it answers.
    pub conversation: String,
    /// Tokens compared.
    pub tokens: u64,
    /// The first token that differs, from 0; absent where none does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_token_difference: Option<u64>,
    /// Logits compared.
    pub logits: u64,
    /// Logits whose bits differ.
    pub logit_bit_differences: u64,
    /// Largest difference of a logit.
    pub logit_difference_max: f64,
    /// Tokens taken from stored state and not computed again: the proof that the case reused something.
    pub tokens_reused: u64,
    /// Tokens computed.
    pub tokens_computed: u64,
    /// Bytes of state restored.
    pub bytes_restored: u64,
    /// The case that has the same chunks and no cache, and so explains a difference; it never waives one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control: Option<String>,
    /// Other figures by name, unit last.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub figures: BTreeMap<String, f64>,
}

/// The same answer run after run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DeterminismBody {
    /// What was asked, such as the prompt's name.
    pub subject: String,
    /// The run that all others are compared with, such as `fresh process`.
    pub reference: String,
    /// A row a run, the reference first; the record's verdicts name the same rows.
    pub runs: Vec<DeterminismRun>,
}

/// One run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DeterminismRun {
    /// Its name, such as `cold first` or `replay`.
    pub run: String,
    /// Tokens that came out.
    pub tokens: u64,
    /// SHA-256 of their ids, each as four little-endian bytes.
    pub tokens_sha256: Sha256,
    /// SHA-256 of all logits, each as four little-endian bytes of an F32; absent where an endpoint gives none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logits_sha256: Option<Sha256>,
    /// The first token that differs from the reference's, from 0; absent where none does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_token_difference: Option<u64>,
}
