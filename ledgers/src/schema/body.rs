//! The results: the sum of all kinds, speed, memory, checks, and what is said of other records.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    ComparisonBody, DeterminismBody, EquivalenceBody, ExternalBody, FidelityBody, PerplexityBody, RooflineBody,
    TaskBody, TokenWork,
};
use crate::Sha256;

/// A result, by kind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Body {
    /// How fast. Only a run without timing instrumentation gets here: see [`crate::Draft::speed`].
    Speed(SpeedBody),
    /// Two configurations or builds, run in turns. As [`Body::Speed`], without timing instrumentation only.
    Comparison(ComparisonBody),
    /// Perplexity over documents.
    Perplexity(PerplexityBody),
    /// Distance from a baseline's logits.
    Fidelity(FidelityBody),
    /// The same answer by different ways.
    Equivalence(EquivalenceBody),
    /// The same answer run after run.
    Determinism(DeterminismBody),
    /// Device memory.
    Memory(MemoryBody),
    /// What a card allows, measured. Its record has no identity: the body says which card.
    Roofline(RooflineBody),
    /// Work done by an agent that a model drives.
    Task(TaskBody),
    /// What another program gave, or somebody else reported.
    External(ExternalBody),
    /// Named rows of a comparison, such as a checkpoint against its reference.
    Check(CheckBody),
    /// A choice made on evidence.
    Decision(DecisionBody),
    /// Why an earlier record no longer counts.
    Invalidation(InvalidationBody),
}

impl Body {
    /// Every kind's name, in the order of the variants.
    pub const KINDS: [&str; 13] = [
        "speed",
        "comparison",
        "perplexity",
        "fidelity",
        "equivalence",
        "determinism",
        "memory",
        "roofline",
        "task",
        "external",
        "check",
        "decision",
        "invalidation",
    ];

    /// The kind's name, as written.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Speed(_) => "speed",
            Self::Comparison(_) => "comparison",
            Self::Perplexity(_) => "perplexity",
            Self::Fidelity(_) => "fidelity",
            Self::Equivalence(_) => "equivalence",
            Self::Determinism(_) => "determinism",
            Self::Memory(_) => "memory",
            Self::Roofline(_) => "roofline",
            Self::Task(_) => "task",
            Self::External(_) => "external",
            Self::Check(_) => "check",
            Self::Decision(_) => "decision",
            Self::Invalidation(_) => "invalidation",
        }
    }

    /// Whether a record of this kind may lack an identity: it is about something that this project did not run, or
    /// about other records.
    pub const fn may_lack_identity(&self) -> bool {
        matches!(
            self,
            Self::Roofline(_) | Self::Task(_) | Self::External(_) | Self::Decision(_) | Self::Invalidation(_)
        )
    }
}

/// How fast one identity ran one suite.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
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
    /// What the host's processors computed of them, where they did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_share: Option<HostShare>,
    /// Each MoE layer in decode, in order, warm-ups included; empty in records that did not count them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub layers: Vec<LayerResidency>,
    /// What of the budget the driver had; absent where there is no driver.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver: Option<DriverMemory>,
    /// What a token takes of the device; absent in older records.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub work: Option<TokenWork>,
    /// What the card allowed when this ran; absent on the host device and in older records.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub roofline: Option<RooflineBody>,
    /// Seconds that each step of starting took, by its name; empty in records that did not time them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub startup_s: BTreeMap<String, f64>,
}

/// Cold experts that the host computed where they lay, while the link carried others.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HostShare {
    /// Of the host.
    pub threads: u64,
    /// Of 0, 1, 2, ... cold experts in a layer, how many it computed.
    pub by_host: Vec<u64>,
    /// Seconds of one expert over the link, as measured at startup.
    pub copy_s: f64,
    /// Seconds of 1, 2, ... experts on the host, likewise.
    pub host_s: Vec<f64>,
    /// Seconds of a token so shared, likewise.
    pub token_s: f64,
    /// Seconds of a token without the host, likewise.
    pub token_without_s: f64,
    /// Experts that it computed over the whole suite.
    pub experts: u64,
    /// Where it became too slow and was done without from then on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub given_up: Option<HostGivenUp>,
}

/// A host that took longer for its part of the cold experts than the link would have taken for all.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HostGivenUp {
    /// Tokens that it had a share in, startup's not among them.
    pub tokens: u64,
    /// Seconds that it took for its part of a token, of late.
    pub host_s: f64,
    /// Seconds that the link would have taken for all cold experts of those layers.
    pub link_s: f64,
}

/// One MoE layer in decode.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LayerResidency {
    /// Its experts on the device, at the end.
    pub resident: u64,
    /// Its experts on the device at each route, summed over the routes; absent in records that know the end alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resident_sum: Option<u64>,
    /// Routes that found their expert there.
    pub hits: u64,
    /// Routes that did not.
    pub misses: u64,
}

/// What a driver takes of the budget, bytes, as its gauge of the whole card sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
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
    /// A request that continues a conversation, inside the engine and without reuse, to its first token.
    FreshFirstToken,
    /// The same request with earlier state reused, its restoration included.
    ContinuedFirstToken,
    /// The same where that state was still on the device.
    ActiveFirstToken,
    /// Keeping a request's state behind its answer.
    SessionSave,
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
            Self::FreshFirstToken => "fresh_first_token",
            Self::ContinuedFirstToken => "continued_first_token",
            Self::ActiveFirstToken => "active_first_token",
            Self::SessionSave => "session_save",
        }
    }
}

/// One measure at one length.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SpeedRow {
    /// What is measured.
    pub measure: Measure,
    /// Exact tokens of each repetition.
    pub tokens: u64,
    /// Tokens of the prompt before them; absent where they are the prompt, and in records that did not keep it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub depth: Option<u64>,
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
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
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

/// Device memory.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
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
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
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
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CheckRow {
    /// Its name, such as `prompt 3`.
    pub row: String,
    /// Figures by name, unit last.
    pub figures: BTreeMap<String, f64>,
}

/// A choice made on evidence.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
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

/// Why an earlier record no longer counts. The record itself stays: nothing is ever deleted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct InvalidationBody {
    /// Hash of that record, as it was first written.
    pub record: Sha256,
    /// Why.
    pub reason: String,
    /// The record that takes its place, as it was first written; absent where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replacement: Option<Sha256>,
}
