//! A run's records: its plan when it starts, one for each attempt, one for the whole. What ends early is seen by what is
//! missing: a run without its last record is INCOMPLETE.

use super::attempt::{Attempt, Ending, Judged};
use super::grade::Grade;
use super::patch::Patch;
use super::task::Kind;
use super::transcript::Transcript;
use crate::evidence::command;
use crate::ledger_place::{LedgerPlace, known_records};
use crate::repository::Repository;
use crate::runtime::observations;
use anyhow::{Context, bail, ensure};
use assay_ledgers::{
    Body, Draft, EvidenceClass, Identity, Interval95, Ledger, LogRef, Record, Sha256, TaskAttempt, TaskBody, TaskRow,
    VerdictRow, check_counts, invalidations,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::Read;
use std::path::PathBuf;

/// Version of the rules in `attempt.rs` and `grade.rs` that judge an attempt.
pub const RULES_VERSION: u32 = 1;
/// How the name of a run's records starts.
const SUITE: &str = "adq run ";
/// The longest log that is read back, in bytes.
const MAX_LOG_BYTES: u64 = 1 << 30;
const PLAN_LOG: &str = "plan.json";
const SUMMARY_LOG: &str = "summary.json";
const TRANSCRIPT_LOG: &str = "transcript.jsonl";
const ATTEMPT_LOG: &str = "attempt.json";
const CONTROLS_LOG: &str = "controls.jsonl";

/// What a run set out to do.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// Its name: 12 hex digits.
    pub run: String,
    /// What answers: a scripted agent, a config, an endpoint.
    pub subject: String,
    /// The suite that the tasks are of, where they have no folder each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suite: Option<String>,
    /// Tokens of the tier.
    pub tier: u64,
    /// Attempts at each task.
    pub attempts: u32,
    /// Most tokens of an answer, where the run was asked for fewer than the tasks allow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion_tokens: Option<u32>,
    /// Digest of each task.
    pub tasks: BTreeMap<String, Sha256>,
    /// The Python that tests ran with.
    pub python: String,
    /// What the probe of the sandbox met.
    pub probe: Vec<assay_sandbox::ProbeRow>,
}

/// What is kept of an attempt beside its transcript: enough to judge it again.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeptAttempt {
    /// The task.
    pub task: String,
    /// What sort of work it is, where its suite says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<Kind>,
    /// From 1.
    pub attempt: u32,
    /// How the agent's part ended.
    pub ending: Ending,
    /// What it changed.
    pub patch: Patch,
    /// The changes, for readers.
    pub diff: String,
    /// What it did that the task forbids.
    pub violations: Vec<String>,
    /// The grade; absent where the sandbox failed.
    pub grade: Option<Grade>,
    /// What the probe met that proved the isolation before anything ran.
    pub probe: Vec<assay_sandbox::ProbeRow>,
    /// Tokens of the history, where there is one.
    pub history_tokens: Option<u64>,
    /// Tokens of the first request as the endpoint counts them.
    pub first_prompt_tokens: Option<u64>,
}

/// Which part of a run a record is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// What it set out to do.
    Plan,
    /// One attempt.
    Attempt,
    /// Everything.
    Whole,
}

impl Stage {
    const ALL: [Self; 3] = [Self::Plan, Self::Attempt, Self::Whole];

    const fn name(self) -> &'static str {
        match self {
            Self::Plan => "plan",
            Self::Attempt => "attempt",
            Self::Whole => "whole",
        }
    }
}

/// Where a run's records go.
#[derive(Debug)]
pub struct Notebook {
    ledger: Ledger,
    identity: Option<Identity>,
    endpoint: String,
    run: String,
}

impl Notebook {
    /// For a run; `identity` is absent where something answers that this project does not run.
    ///
    /// # Errors
    /// When the ledger cannot be opened.
    pub fn open(
        repository: &Repository,
        identity: Option<Identity>,
        endpoint: String,
        run: String,
    ) -> anyhow::Result<Self> {
        Ok(Self { ledger: Ledger::open(LedgerPlace::Local.folder(repository))?, identity, endpoint, run })
    }

    fn append(&self, stage: Stage, body: Parts, logs: Vec<LogRef>) -> anyhow::Result<Sha256> {
        let task = TaskBody {
            suite: format!("{SUITE}{}: {}", self.run, stage.name()),
            rules_version: RULES_VERSION,
            endpoint: self.endpoint.clone(),
            tasks: body.tasks,
            shares: body.shares,
        };
        let draft = match &self.identity {
            Some(identity) => Draft::new(EvidenceClass::Functional, identity.clone(), task),
            None => Draft::without_identity(EvidenceClass::Functional, task),
        };
        let draft = draft.verdicts(body.verdicts).observations(observations()).command(command());
        let draft = logs.into_iter().fold(draft, Draft::log);
        Ok(self.ledger.append(draft)?.record.hash)
    }

    fn log(&self, name: &str, value: &impl Serialize) -> anyhow::Result<LogRef> {
        Ok(self.ledger.store_log(name, serde_json::to_vec_pretty(value)?.as_slice())?)
    }

    /// Records what a run sets out to do; `rows` are its rows, none of them judged yet.
    ///
    /// # Errors
    /// When the ledger cannot be written.
    pub fn plan(&self, plan: &Plan, rows: Vec<VerdictRow>) -> anyhow::Result<Sha256> {
        let log = self.log(PLAN_LOG, plan)?;
        self.append(Stage::Plan, Parts { verdicts: rows, ..Parts::default() }, vec![log])
    }

    /// Records an attempt, transcript first.
    ///
    /// # Errors
    /// When the ledger cannot be written.
    pub fn attempt(
        &self,
        fixture: Sha256,
        tier: u64,
        kept: &KeptAttempt,
        made: &Attempt,
        judged: &Judged,
    ) -> anyhow::Result<(Sha256, TaskRow)> {
        let transcript = self.ledger.store_log(TRANSCRIPT_LOG, made.transcript.bytes().as_slice())?;
        let attempt = self.log(ATTEMPT_LOG, kept)?;
        let row = TaskRow {
            task: kept.task.clone(),
            fixture,
            context_tokens: tier,
            attempts: vec![TaskAttempt {
                outcome: judged.outcome,
                reason: judged.reason.clone(),
                tool_calls: made.tool_calls,
                prompt_tokens: made.prompt_tokens,
                completion_tokens: made.completion_tokens,
                seconds: made.seconds,
                transcript: Some(transcript.sha256),
                figures: BTreeMap::new(),
            }],
        };
        let verdict = VerdictRow { row: kept.task.clone(), verdict: judged.verdict, reason: judged.reason.clone() };
        let parts = Parts { tasks: vec![row.clone()], verdicts: vec![verdict], ..Parts::default() };
        Ok((self.append(Stage::Attempt, parts, vec![transcript, attempt])?, row))
    }

    /// Records the whole.
    ///
    /// # Errors
    /// When the ledger cannot be written.
    pub fn whole(
        &self,
        tasks: Vec<TaskRow>,
        shares: BTreeMap<String, Interval95>,
        verdicts: Vec<VerdictRow>,
        summary: &impl Serialize,
        controls: &[u8],
    ) -> anyhow::Result<Sha256> {
        let mut logs = vec![self.log(SUMMARY_LOG, summary)?];
        if !controls.is_empty() {
            logs.push(self.ledger.store_log(CONTROLS_LOG, controls)?);
        }
        self.append(Stage::Whole, Parts { tasks, shares, verdicts }, logs)
    }
}

#[derive(Default)]
struct Parts {
    tasks: Vec<TaskRow>,
    shares: BTreeMap<String, Interval95>,
    verdicts: Vec<VerdictRow>,
}

/// A run as the ledger has it.
#[derive(Debug)]
pub struct RecordedRun {
    /// Where its logs are.
    pub folder: PathBuf,
    /// What it set out to do.
    pub plan: Plan,
    /// The record of that.
    pub plan_record: Record,
    /// Attempts, in the order they ran.
    pub attempts: Vec<RecordedAttempt>,
    /// The last record; absent where the run ended early.
    pub whole: Option<Record>,
}

/// An attempt as the ledger has it.
#[derive(Debug)]
pub struct RecordedAttempt {
    /// Its record.
    pub record: Record,
    /// What was kept of it.
    pub kept: KeptAttempt,
    /// What was said and done.
    pub transcript: Transcript,
}

/// The stage and the run that a record belongs to.
fn place(record: &Record) -> Option<(String, Stage)> {
    let Body::Task(body) = &record.body else { return None };
    let (run, name) = body.suite.strip_prefix(SUITE)?.split_once(": ")?;
    let stage = Stage::ALL.into_iter().find(|stage| stage.name() == name)?;
    Some((run.to_owned(), stage))
}

impl RecordedRun {
    /// Reads a run by the start of its name, or the latest one.
    ///
    /// # Errors
    /// When there is none, several begin so, a record of it was invalidated, or a log is missing or changed.
    pub fn read(repository: &Repository, prefix: Option<&str>) -> anyhow::Result<Self> {
        let folder = LedgerPlace::Local.folder(repository);
        ensure!(folder.exists(), "no run is recorded here: {} does not exist", folder.display());
        let mut records = Vec::new();
        for record in assay_ledgers::read(&folder)? {
            let record = record?;
            if let Some((run, stage)) = place(&record) {
                records.push((run, stage, record));
            }
        }
        let mut runs: Vec<&String> = records.iter().map(|(run, ..)| run).collect();
        runs.dedup();
        let run = match prefix {
            None => runs.last().map(|run| (*run).clone()).context("no run is recorded here")?,
            Some(prefix) => {
                let mut found: Vec<&&String> = runs.iter().filter(|run| run.starts_with(prefix)).collect();
                found.sort();
                found.dedup();
                match found[..] {
                    [run] => (*run).clone(),
                    [] => bail!("no run starts with {prefix:?}"),
                    _ => bail!("{} runs start with {prefix:?}", found.len()),
                }
            }
        };
        records.retain(|(name, ..)| *name == run);
        let known = known_records(repository)?;
        let invalid = invalidations(&known);
        if let Some((.., record)) = records.iter().find(|(.., record)| invalid.contains_key(&record.original_hash())) {
            check_counts(record.original_hash(), &known).with_context(|| format!("run {run}"))?;
        }
        let mut parts = (None, Vec::new(), None);
        for (_, stage, record) in records {
            match stage {
                Stage::Plan => parts.0 = parts.0.or(Some(record)),
                Stage::Attempt => parts.1.push(record),
                Stage::Whole => parts.2 = Some(record),
            }
        }
        let plan_record = parts.0.with_context(|| format!("run {run} has no plan"))?;
        let plan = serde_json::from_slice(&log(&folder, &plan_record, PLAN_LOG)?).context("the plan cannot be read")?;
        let attempts = parts.1.into_iter().map(|record| RecordedAttempt::read(&folder, record));
        Ok(Self { attempts: attempts.collect::<Result<_, _>>()?, plan, plan_record, whole: parts.2, folder })
    }

    /// The last record's summary, as it was printed.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn summary(&self) -> anyhow::Result<Option<serde_json::Value>> {
        let Some(whole) = &self.whole else { return Ok(None) };
        Ok(Some(serde_json::from_slice(&log(&self.folder, whole, SUMMARY_LOG)?)?))
    }
}

impl RecordedAttempt {
    fn read(folder: &std::path::Path, record: Record) -> anyhow::Result<Self> {
        let kept = serde_json::from_slice(&log(folder, &record, ATTEMPT_LOG)?).context("an attempt cannot be read")?;
        let transcript =
            Transcript::read(&log(folder, &record, TRANSCRIPT_LOG)?).context("a transcript cannot be read")?;
        Ok(Self { record, kept, transcript })
    }
}

/// A record's log, checked against its hash.
fn log(folder: &std::path::Path, record: &Record, name: &str) -> anyhow::Result<Vec<u8>> {
    let short = record.hash.short();
    let log =
        record.logs.iter().find(|log| log.name == name).with_context(|| format!("record {short} has no {name}"))?;
    let mut content = Vec::new();
    Ledger::read_log(folder, log)?.take(MAX_LOG_BYTES).read_to_end(&mut content)?;
    ensure!(Sha256::of(&content) == log.sha256, "record {short}: {name} is not what was recorded");
    Ok(content)
}
