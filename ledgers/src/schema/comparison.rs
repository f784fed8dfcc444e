//! Results that set one thing beside another: runs in turns, other programs, other people's reports.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Interval95, Measure};
use crate::Sha256;

/// Two configurations or builds, run in turns, a whole process at a time. The record's identity is `b`'s.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ComparisonBody {
    /// What is compared with: the denominator of every ratio.
    pub a: ComparedSide,
    /// What is compared: the numerator.
    pub b: ComparedSide,
    /// Fields in which the two identities differ. None: one configuration against itself, which says how much this
    /// machine's figures differ for no reason.
    pub differences: Vec<String>,
    /// In which order the processes ran, such as `ABBA`; `baseline` where `a` is an earlier record.
    pub order: String,
    /// A row a measure and length.
    pub rows: Vec<ComparisonRow>,
    /// Resamples of the bootstrap behind every interval.
    pub resamples: u64,
    /// Its seed, as a decimal string.
    pub seed: String,
}

/// One side of a comparison.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ComparedSide {
    /// What it is called.
    pub name: String,
    /// Hash of its identity; absent for a program that this project did not build.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<Sha256>,
    /// Hash of the executable that ran.
    pub binary: Sha256,
    /// The speed records of its processes, in the order they ran.
    pub records: Vec<Sha256>,
}

/// One measure at one length.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ComparisonRow {
    /// What is measured.
    pub measure: Measure,
    /// Exact tokens of each repetition.
    pub tokens: u64,
    /// Tokens of the prompt before them, as in [`SpeedRow`](crate::SpeedRow).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub depth: Option<u64>,
    /// Unit of the samples.
    pub unit: String,
    /// The median of each process of `a`; beside a peer, whose turns are few, each of its repetitions.
    pub a: Vec<f64>,
    /// The same of `b`; the nth is paired with the nth of `a`.
    pub b: Vec<f64>,
    /// Median of the ratios of `b` to `a`, pair by pair, with its bootstrap interval.
    pub ratio: Interval95,
}

/// What another program gave, or somebody else reported. Its record has no identity: what ran is said in words.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExternalBody {
    /// Whose result, such as a program and its version.
    pub subject: String,
    /// Where it was published, or the command that gave it.
    pub source: String,
    /// What ran, as far as it is known: model, format, machine, by name.
    pub setting: BTreeMap<String, String>,
    /// The figures.
    pub rows: Vec<ExternalRow>,
}

/// One figure of somebody else's.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExternalRow {
    /// What was measured.
    pub measure: String,
    /// Tokens of each repetition, where the figure has a length.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// Unit.
    pub unit: String,
    /// The figure.
    pub value: f64,
    /// 95 % interval, low and high.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ci95: Option<[f64; 2]>,
    /// Every repetition, where they are known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub samples: Vec<f64>,
}
