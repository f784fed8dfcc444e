//! The record around a result.

use std::collections::BTreeMap;
use std::time::SystemTime;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Body, Identity, VerdictRow};
use crate::Sha256;

/// How much a result can carry: the white paper's six descriptions of evidence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum EvidenceClass {
    /// A timing-off run of a current build with its raw log kept.
    CurrentBenchmark,
    /// A measured comparison on a narrower model, machine or workload.
    ControlledDevelopment,
    /// Correctness, portability or memory behaviour; no claim about speed.
    Functional,
    /// Measured components and arithmetic that bound an idea before it is built.
    MeasuredPlanning,
    /// Was valid for an earlier architecture or format.
    Historical,
    /// Published by somebody else.
    CommunityReported,
}

impl EvidenceClass {
    /// Every class.
    pub const ALL: [Self; 6] = [
        Self::CurrentBenchmark,
        Self::ControlledDevelopment,
        Self::Functional,
        Self::MeasuredPlanning,
        Self::Historical,
        Self::CommunityReported,
    ];

    /// As written.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::CurrentBenchmark => "current_benchmark",
            Self::ControlledDevelopment => "controlled_development",
            Self::Functional => "functional",
            Self::MeasuredPlanning => "measured_planning",
            Self::Historical => "historical",
            Self::CommunityReported => "community_reported",
        }
    }
}

/// One line of a ledger: one result of one identity, linked to its writer's record before it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// [`super::FORMAT_VERSION`] of the build that wrote it.
    pub format_version: u32,
    /// Whose chain this is.
    pub writer: WriterId,
    /// Place in the chain, from 1.
    pub sequence: u64,
    /// Hash of the record before it; absent in the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous: Option<Sha256>,
    /// When it was appended: an observation, no part of the identity.
    pub time_utc: TimeUtc,
    /// Where the record was first written, if it was published here out of another ledger.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
    /// How much it can carry.
    pub evidence_class: EvidenceClass,
    /// The result.
    pub body: Body,
    /// What ran. Absent only where [`Body::may_lack_identity`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<Identity>,
    /// What was seen beside the result.
    pub observations: Observations,
    /// Judgements, a row each.
    pub verdicts: Vec<VerdictRow>,
    /// The command line, one argument an element.
    pub command: Vec<String>,
    /// Raw logs.
    pub logs: Vec<LogRef>,
    /// SHA-256 of the canonical JSON of all the above. Zero (and not written) only while a record is being sealed.
    #[serde(default, skip_serializing_if = "Sha256::is_zero")]
    pub hash: Sha256,
}

impl Record {
    /// The hash that the record was first written under, which publishing does not change.
    pub fn original_hash(&self) -> Sha256 {
        self.origin.as_ref().map_or(self.hash, |origin| origin.hash)
    }

    /// The record as it was first written, rebuilt from [`Origin`]; a record that was not published is itself.
    pub fn original(&self) -> Record {
        let mut record = self.clone();
        if let Some(origin) = record.origin.take() {
            record.format_version = origin.format_version;
            record.writer = origin.writer;
            record.sequence = origin.sequence;
            record.previous = origin.previous;
            record.time_utc = origin.time_utc;
            record.hash = origin.hash;
        }
        record
    }
}

/// The links of a record in the ledger that it was first written to. Everything else of a published record is as it
/// was, so the original can be rebuilt and its hash checked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Origin {
    /// As in [`Record`].
    pub format_version: u32,
    /// As in [`Record`].
    pub writer: WriterId,
    /// As in [`Record`].
    pub sequence: u64,
    /// As in [`Record`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous: Option<Sha256>,
    /// As in [`Record`].
    pub time_utc: TimeUtc,
    /// As in [`Record`].
    pub hash: Sha256,
}

/// A raw log, kept by content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LogRef {
    /// Hash of its content.
    pub sha256: Sha256,
    /// Its length.
    pub bytes: u64,
    /// What it is, such as `stderr.log`.
    pub name: String,
}

/// What was seen beside a result; never part of an identity.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Observations {
    /// One-minute load average at the start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load_average_1m: Option<f64>,
    /// Clock of the CPU, MHz.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_mhz: Option<f64>,
    /// Anything else, by name with its unit last.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub other: BTreeMap<String, Observation>,
}

/// One observation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Observation {
    /// Yes or no.
    Flag(bool),
    /// A number, in the unit that its name ends with.
    Number(f64),
    /// Text.
    Text(String),
}

/// A writer: 16 lowercase hex digits, drawn once for each ledger folder on each machine.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
pub struct WriterId(String);

impl WriterId {
    /// As written.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Display for WriterId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for WriterId {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if text.len() == 16 && text.bytes().all(hex) {
            Ok(Self(text))
        } else {
            Err(format!("expected a writer id of 16 lowercase hex digits, found {text:?}"))
        }
    }
}

impl From<WriterId> for String {
    fn from(writer: WriterId) -> Self {
        writer.0
    }
}

/// A time in UTC, as RFC 3339 writes it with milliseconds and `Z`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
pub struct TimeUtc(String);

impl TimeUtc {
    /// Now.
    pub fn now() -> Self {
        Self::from(SystemTime::now())
    }

    /// As written.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<SystemTime> for TimeUtc {
    fn from(time: SystemTime) -> Self {
        Self(humantime::format_rfc3339_millis(time).to_string())
    }
}

impl TryFrom<String> for TimeUtc {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match humantime::parse_rfc3339(&text) {
            Ok(_) => Ok(Self(text)),
            Err(error) => Err(format!("expected an RFC 3339 time in UTC, found {text:?}: {error}")),
        }
    }
}

impl From<TimeUtc> for String {
    fn from(time: TimeUtc) -> Self {
        time.0
    }
}

/// Where one writer's chain ends.
///
/// It is kept beside the chain and can be copied anywhere else (a report, a commit): whatever comes later, the chain must
/// still hold record `count` under `hash`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Head {
    /// Whose chain.
    pub writer: WriterId,
    /// Records in it.
    pub count: u64,
    /// Bytes of it.
    pub bytes: u64,
    /// Hash of the last; absent where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hash: Option<Sha256>,
}
