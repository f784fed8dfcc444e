//! The white paper's decisions and negative results, and where this project stands on each: `ledgers/claims.csv`.

use crate::repository::Repository;
use anyhow::Context;
use assay_engine::file;
use assay_ledgers::{EvidenceClass, Record, invalidations};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// The table, under the repository's root.
const FILE: &str = "ledgers/claims.csv";
/// The largest table that is read, in bytes.
const MAX_BYTES: u64 = 1 << 20;
/// Fewest digits by which a claim names a record.
const MIN_DIGITS: usize = 12;
/// The paper's inventories: prefix and how many there are, counted from 01.
const INVENTORIES: [(&str, usize); 3] = [("S", 56), ("HS", 4), ("F", 86)];

/// Where this project stands on a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// A record of ours shows the same.
    Reproduced,
    /// A record of ours shows otherwise.
    Contradicted,
    /// Built, or avoided, as the paper says; no record of its effect.
    Implemented,
    /// Neither built nor measured.
    Open,
    /// About something that this project does not have.
    #[serde(rename = "not applicable")]
    NotApplicable,
}

impl Status {
    /// All, in the order of how much they say.
    pub const ALL: [Status; 5] =
        [Status::Reproduced, Status::Contradicted, Status::Implemented, Status::Open, Status::NotApplicable];

    /// As written.
    pub const fn as_str(self) -> &'static str {
        match self {
            Status::Reproduced => "reproduced",
            Status::Contradicted => "contradicted",
            Status::Implemented => "implemented",
            Status::Open => "open",
            Status::NotApplicable => "not applicable",
        }
    }

    /// Whether it must name a record.
    pub const fn needs_record(self) -> bool {
        matches!(self, Status::Reproduced | Status::Contradicted)
    }
}

/// One claim.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// The paper's key, such as `S04`.
    pub id: String,
    /// The claim, in our words.
    pub claim: String,
    /// The paper's figure, with its unit; empty where it has none.
    pub figure: String,
    /// How the paper describes its evidence.
    pub evidence_class: EvidenceClass,
    /// Where this project stands.
    pub status: Status,
    /// First digits of the hash of the record in the tracked ledger that says so.
    pub record: String,
    /// What stands behind the status.
    pub note: String,
}

/// Reads the table.
///
/// # Errors
/// When it cannot be read or a row does not fit.
pub fn read(repository: &Repository) -> anyhow::Result<Vec<Claim>> {
    let path = repository.path(FILE);
    parse(&file::read(&path, MAX_BYTES)?, &path)
}

fn parse(text: &[u8], path: &Path) -> anyhow::Result<Vec<Claim>> {
    let rows = csv::Reader::from_reader(text).into_deserialize().collect::<Result<_, _>>();
    rows.with_context(|| format!("{} is no table of claims", path.display()))
}

/// What is wrong with the table, a line each: keys that are missing or strange, records that nobody finds.
pub fn problems(claims: &[Claim], records: &[Record]) -> Vec<String> {
    let expected: Vec<String> = INVENTORIES
        .iter()
        .flat_map(|&(prefix, count)| (1..=count).map(move |number| format!("{prefix}{number:02}")))
        .collect();
    let mut problems = Vec::new();
    for id in &expected {
        match claims.iter().filter(|claim| claim.id == *id).count() {
            0 => problems.push(format!("{id} is missing")),
            1 => {}
            count => problems.push(format!("{id} is there {count} times")),
        }
    }
    for claim in claims.iter().filter(|claim| !expected.contains(&claim.id)) {
        problems.push(format!("{:?} is no key of the paper", claim.id));
    }
    let invalid = invalidations(records);
    for claim in claims {
        let found = |record: &&Record| {
            record.hash.to_string().starts_with(&claim.record)
                || record.original_hash().to_string().starts_with(&claim.record)
        };
        let (id, status, hash) = (&claim.id, claim.status.as_str(), &claim.record);
        match (claim.status.needs_record(), hash.as_str()) {
            (true, "") => problems.push(format!("{id} is {status} and names no record")),
            (false, "") => {}
            (_, short) if short.len() < MIN_DIGITS => {
                problems.push(format!("{id} names record {short}, expected {MIN_DIGITS} digits or more"));
            }
            _ => match records.iter().filter(found).collect::<Vec<_>>().as_slice() {
                [] => {
                    problems.push(format!("{id} is {status} by record {hash}, which the tracked ledger does not hold"))
                }
                [record] => {
                    if let Some(by) = invalid.get(&record.original_hash()) {
                        problems.push(format!("{id} is {status} by record {hash}, which {} invalidates", by.short()));
                    }
                }
                _ => problems.push(format!("{id} names record {hash}, which is more than one")),
            },
        }
    }
    problems
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use assay_ledgers::{DecisionBody, Draft, InvalidationBody, Ledger};

    fn tracked(repository: &Repository) -> Vec<Record> {
        assay_ledgers::read(repository.path("ledgers/tracked")).unwrap().collect::<Result<_, _>>().unwrap()
    }

    #[test]
    fn the_repository_s_table_is_whole() {
        let repository = Repository::find().unwrap();
        let claims = read(&repository).unwrap();
        assert_eq!(claims.len(), 146);
        assert_eq!(problems(&claims, &tracked(&repository)), Vec::<String>::new());
    }

    #[test]
    fn what_is_said_needs_a_record_that_counts() {
        let repository = Repository::find().unwrap();
        let mut claims = read(&repository).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let ledger = Ledger::open(folder.path()).unwrap();
        let decision = |choice: &str| DecisionBody {
            question: "which".to_owned(),
            choice: choice.to_owned(),
            reason: String::new(),
            evidence: Vec::new(),
        };
        let append = |draft| ledger.append(draft).unwrap().record;
        let mut records = vec![append(Draft::without_identity(EvidenceClass::Functional, decision("this")))];
        let good = records[0].hash.to_string();
        for claim in &mut claims {
            (claim.status, claim.record) = (Status::Open, String::new());
        }
        let mut check = |status, record: &str, records: &[Record], expected: &str| {
            (claims[3].status, claims[3].record) = (status, record.to_owned());
            let found = problems(&claims, records).join("; ");
            assert!(found.is_empty() == expected.is_empty() && found.contains(expected), "{found}");
        };
        check(Status::Reproduced, &good[..12], &records, "");
        check(Status::Implemented, "", &records, "");
        check(Status::Reproduced, "", &records, "S04 is reproduced and names no record");
        check(Status::Contradicted, "0123456789ab", &records, "which the tracked ledger does not hold");
        check(Status::Open, "0123456789ab", &records, "which the tracked ledger does not hold");
        check(Status::Reproduced, &good[..6], &records, "expected 12 digits or more");
        let body = InvalidationBody { record: records[0].hash, reason: "wrong".to_owned(), replacement: None };
        records.push(append(Draft::without_identity(EvidenceClass::Functional, body)));
        check(Status::Reproduced, &good[..12], &records, "invalidates");
    }

    #[test]
    fn keys_are_the_paper_s() {
        let repository = Repository::find().unwrap();
        let mut claims = read(&repository).unwrap();
        claims.remove(0);
        claims[0].id = "S57".to_owned();
        let found = problems(&claims, &tracked(&repository));
        assert_eq!(found, ["S01 is missing", "S02 is missing", "\"S57\" is no key of the paper"]);
        let text = b"id,claim,figure,evidence_class,status,record,note\nS01,a,,functional,proven,,\n";
        let error = format!("{:#}", parse(text, Path::new("claims.csv")).unwrap_err());
        assert!(error.contains("claims.csv") && error.contains("proven"), "{error}");
    }
}
