//! The results.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::Sha256;

/// A result, by kind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Body {
    /// How fast. Only a run without timing instrumentation gets here: see [`crate::Draft::speed`].
    Speed(SpeedBody),
    /// Perplexity over documents.
    Perplexity(PerplexityBody),
    /// Distance from a baseline's logits.
    Fidelity(FidelityBody),
    /// The same answer by different ways.
    Equivalence(EquivalenceBody),
    /// Device memory.
    Memory(MemoryBody),
    /// Named rows of a comparison, such as a checkpoint against its reference.
    Check(CheckBody),
    /// A choice made on evidence.
    Decision(DecisionBody),
}

impl Body {
    /// The kind's name, as written.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Speed(_) => "speed",
            Self::Perplexity(_) => "perplexity",
            Self::Fidelity(_) => "fidelity",
            Self::Equivalence(_) => "equivalence",
            Self::Memory(_) => "memory",
            Self::Check(_) => "check",
            Self::Decision(_) => "decision",
        }
    }
}

/// How fast one identity ran one suite.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SpeedBody {
    /// A row a measure and length.
    pub rows: Vec<SpeedRow>,
    /// Expert residency over the whole suite; absent for a dense model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hcs: Option<Hcs>,
    /// The least free device memory of every phase, bytes.
    pub low_water_bytes: BTreeMap<String, u64>,
    /// Seconds that the modelled link would have taken over the whole suite, apart from wall time; absent for a real link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub modelled_link_s: Option<f64>,
    /// How decode brought cold experts in, where the device has a choice: measured at startup.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cold_path: Option<String>,
    /// Each MoE layer in decode, in order, warm-ups included; empty in records that did not count them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub layers: Vec<LayerResidency>,
    /// What of the budget the driver had; absent where there is no driver.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver: Option<DriverMemory>,
}

/// One MoE layer in decode.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerResidency {
    /// Its experts on the device, at the end.
    pub resident: u64,
    /// Routes that found their expert there.
    pub hits: u64,
    /// Routes that did not.
    pub misses: u64,
}

/// What a driver takes of the budget, bytes, as its gauge of the whole card sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DriverMemory {
    /// Context, code and streams.
    pub context_bytes: u64,
    /// Kept for captured graphs.
    pub graphs_reserved_bytes: u64,
    /// What the card's free memory shrank by after the arena was taken.
    pub graphs_bytes: u64,
}

/// What a speed row measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Measure {
    /// Prompt processing, inside the engine.
    Prefill,
    /// Token by token generation, inside the engine.
    Decode,
    /// HTTP request start to first token.
    HttpFirstToken,
    /// HTTP request start to last token.
    HttpLastToken,
    /// Between two tokens over HTTP.
    HttpInterToken,
}

impl Measure {
    /// As written.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Prefill => "prefill",
            Self::Decode => "decode",
            Self::HttpFirstToken => "http_first_token",
            Self::HttpLastToken => "http_last_token",
            Self::HttpInterToken => "http_inter_token",
        }
    }
}

/// One measure at one length.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SpeedRow {
    /// What is measured.
    pub measure: Measure,
    /// Exact tokens of each repetition.
    pub tokens: u64,
    /// Unit of every figure, such as `tok/s`.
    pub unit: String,
    /// The headline.
    pub median: f64,
    /// 95 % interval of the median, low and high; absent where the samples are too few for one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ci95: Option<[f64; 2]>,
    /// The best repetition, shown beside the headline and never instead of it.
    pub best: f64,
    /// Every repetition, in the order they ran.
    pub samples: Vec<f64>,
    /// Expert residency during this row.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hcs: Option<Hcs>,
    /// Seconds that the modelled link would have taken during this row.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub modelled_link_s: Option<f64>,
}

/// Expert residency.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hcs {
    /// Experts resident.
    pub resident: u64,
    /// Experts in all.
    pub total: u64,
    /// Share of expert uses that found the expert resident, 0 to 1; absent where none was used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hit_rate: Option<f64>,
    /// Bytes copied for experts that were not.
    pub cold_bytes: u64,
}

/// Perplexity, and how it was windowed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
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
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
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
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
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

/// Distance from a baseline's logits over the same positions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FidelityBody {
    /// Hash of the baseline's record or artifact.
    pub baseline: Sha256,
    /// Positions compared.
    pub positions: u64,
    /// Kullback–Leibler divergence from the baseline, nats.
    pub kl: Spread,
    /// Positions at which the likeliest token differs.
    pub top1_flips: u64,
    /// Mean share of the baseline's ten likeliest tokens that are among this identity's ten, 0 to 1.
    pub top10_containment: f64,
}

/// Spread of a quantity.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
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
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EquivalenceBody {
    /// What every case is compared with, such as `fresh full history`.
    pub reference: String,
    /// A row a case.
    pub cases: Vec<EquivalenceCase>,
}

/// One way to the answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EquivalenceCase {
    /// Its name.
    pub case: String,
    /// Tokens compared.
    pub tokens: u64,
    /// The first token that differs, from 0; absent where none does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_token_difference: Option<u64>,
    /// Logits whose bits differ.
    pub logit_bit_differences: u64,
    /// Largest difference of a logit.
    pub logit_difference_max: f64,
    /// Tokens taken from stored state and not computed again: the proof that the case reused something.
    pub tokens_reused: u64,
    /// Bytes of state restored.
    pub bytes_restored: u64,
}

/// Device memory.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemoryBody {
    /// The budget, bytes.
    pub budget_bytes: u64,
    /// The least free memory of every phase, bytes.
    pub low_water_bytes: BTreeMap<String, u64>,
    /// What each phase was measured to need, bytes.
    pub requirement_bytes: BTreeMap<String, u64>,
}

/// Named rows of a comparison.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CheckBody {
    /// What was checked.
    pub subject: String,
    /// What it was checked against, such as `reference.json`.
    pub reference: String,
    /// Rows; the record's verdicts name the same rows.
    pub rows: Vec<CheckRow>,
}

/// One row of a comparison.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CheckRow {
    /// Its name, such as `prompt 3`.
    pub row: String,
    /// Figures by name, unit last.
    pub figures: BTreeMap<String, f64>,
}

/// A choice made on evidence.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DecisionBody {
    /// What had to be chosen.
    pub question: String,
    /// What was chosen.
    pub choice: String,
    /// Why.
    pub reason: String,
    /// Hashes of the records that it rests on.
    pub evidence: Vec<Sha256>,
}
