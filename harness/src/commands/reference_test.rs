//! `assay reference-test`

use crate::config::{ConfigArgs, PrefillArithmetic};
use crate::evidence::{RunLog, open_ledger, record};
use crate::exit::Exit;
use crate::output::{Answer, Format, Table};
use crate::reference_test::observe;
use crate::repository::Repository;
use crate::runtime::{IdentityInputs, Opened, Runtime, SuiteInputs};
use anyhow::{Context, ensure};
use assay_ledgers::{CheckBody, CheckRow, Draft, EvidenceClass, Ledger, Sha256, Verdict, VerdictRow};
use assay_witness::{
    Artifact, Binding, Gate, Judgement, Observed, Outcome, Prefill, PromptFigures, Weights, WitnessError, judge,
};
use clap::Args;
use serde_json::json;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "\
Examples:
  assay reference-test tiny-moe-bf16
  assay reference-test tiny-moe --output json
  assay reference-test tiny-moe-bf16 --observed llama.json";

/// Where artifacts and gates lie, under the repository's root.
const ARTIFACTS: &str = "witness/artifacts";
const GATES: &str = "suites/gates";
/// The end of a weight file's name.
const WEIGHTS_SUFFIX: &str = ".safetensors";
const TOKENIZER_FILE: &str = "tokenizer.json";

/// Compare a config's answers with those of an independent implementation
///
/// The artifact holds exact token ids and what the witness (llama.cpp) answered: greedy tokens, and the likeliest tokens
/// at every step and at positions inside the prompt. The same ids are run, and the answers judged: by the gate for equal
/// weights in the config's arithmetic of prefill, or by the one for INT4 experts against a witness in BF16. An artifact of another checkpoint, tokenizer or schema
/// is INVALID.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ReferenceTest {
    #[command(flatten)]
    config: ConfigArgs,
    /// Artifact, instead of witness/artifacts/<model>.json
    #[arg(long, value_name = "FILE")]
    artifact: Option<PathBuf>,
    /// Gate, instead of the one in suites/gates for this comparison
    #[arg(long, value_name = "FILE")]
    gate: Option<PathBuf>,
    /// Judge answers that another program wrote, and run nothing
    #[arg(long, value_name = "FILE")]
    observed: Option<PathBuf>,
}

/// What an answer is judged by.
struct Reference {
    artifact: Artifact,
    binding: Binding,
    gate: Gate,
    gate_sha256: Sha256,
}

/// A judged answer.
struct Judged {
    observed: Observed,
    figures: Vec<PromptFigures>,
    judgements: Vec<Judgement>,
}

impl ReferenceTest {
    pub(super) fn run(self, format: Format) -> anyhow::Result<Exit> {
        let repository = Repository::find()?;
        let loaded = self.config.load(&repository)?;
        let name = loaded.name.clone();
        ensure!(
            !loaded.config.mechanics_only,
            "config {name} is for mechanics only: whether its answers are right means nothing (mechanics_only = true)"
        );
        let opened = Opened::new(loaded)?;
        opened.refuse_synthetic("whether its answers are right")?;
        let reference = match self.reference(&opened, &repository) {
            Ok(reference) => reference,
            Err(error) => return refuse(error, &name, format),
        };
        let (judged, evidence) = match &self.observed {
            Some(path) => {
                let observed = match Observed::read(path, &reference.artifact, &reference.binding) {
                    Ok(observed) => observed,
                    Err(error) => return refuse(error.into(), &name, format),
                };
                (reference.judge(observed), None)
            }
            None => {
                let ledger = open_ledger(&repository)?;
                let (judged, evidence) = replay(opened, &reference, &ledger, &repository)?;
                (judged, Some(evidence))
            }
        };
        let verdicts = verdict_rows(&judged.judgements);
        answer(&name, &reference, &judged, &verdicts, evidence, &repository)?.print(format)?;
        Ok(Exit::worst(verdicts.iter().map(|row| row.verdict)))
    }

    fn reference(&self, opened: &Opened, repository: &Repository) -> anyhow::Result<Reference> {
        let default = || repository.path(format!("{ARTIFACTS}/{}.json", opened.model_name()));
        let path = self.artifact.clone().unwrap_or_else(default);
        let (artifact, binding) = Artifact::read(&path)?;
        let files = &opened.folder.hashes;
        let weights = files
            .iter()
            .filter(|file| file.name.ends_with(WEIGHTS_SUFFIX))
            .map(|file| (file.name.clone(), file.sha256.clone()))
            .collect();
        let tokenizer = files.iter().find(|file| file.name == TOKENIZER_FILE).map(|file| file.sha256.as_str());
        let experts = opened.options.precision.experts.name();
        let compared = artifact.check_fingerprints(&path, &weights, tokenizer, experts)?;
        artifact.check_vocab_size(&path, opened.folder.spec.vocab_size)?;
        let (gate_path, gate) = match &self.gate {
            Some(path) => (path.clone(), Gate::read(path)?),
            None => find_gate(&repository.path(GATES), compared, self.prefill(opened))?,
        };
        let gate_sha256 = Sha256::of_file(&gate_path)?;
        Ok(Reference { artifact, binding, gate, gate_sha256 })
    }
}

impl ReferenceTest {
    /// The arithmetic of what is judged: another program's answers are held to f32.
    fn prefill(&self, opened: &Opened) -> Prefill {
        match opened.loaded.config.precision.prefill {
            PrefillArithmetic::Tensor if self.observed.is_none() => Prefill::Tensor,
            _ => Prefill::Exact,
        }
    }
}

impl Reference {
    fn judge(&self, observed: Observed) -> Judged {
        let (figures, judgements) = judge(&self.artifact, &observed, &self.gate);
        Judged { observed, figures, judgements }
    }
}

/// The gate for a comparison.
fn find_gate(folder: &Path, weights: Weights, prefill: Prefill) -> anyhow::Result<(PathBuf, Gate)> {
    let entries = std::fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))?;
    let mut paths: Vec<PathBuf> =
        entries.collect::<Result<Vec<_>, _>>()?.into_iter().map(|entry| entry.path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "toml"));
    paths.sort();
    for path in paths {
        let gate = Gate::read(&path)?;
        if gate.is_for(weights, prefill) {
            return Ok((path, gate));
        }
    }
    anyhow::bail!("no gate in {} is for this comparison: weights {weights:?}, prefill {prefill:?}", folder.display())
}

/// Broken evidence is a verdict; anything else is the user's mistake.
fn refuse(error: anyhow::Error, name: &str, format: Format) -> anyhow::Result<Exit> {
    if !error.downcast_ref::<WitnessError>().is_some_and(WitnessError::is_invalid_evidence) {
        return Err(error);
    }
    let row = VerdictRow { row: "artifact".to_owned(), verdict: Verdict::Invalid, reason: error.to_string() };
    let json = json!({ "config": name, "verdicts": [row] });
    Answer::new(&json)?.line(format!("{}  {}: {}", row.verdict, row.row, row.reason)).print(format)?;
    Ok(row.verdict.into())
}

/// Runs the engine and records what came out.
fn replay(
    opened: Opened,
    reference: &Reference,
    ledger: &Ledger,
    repository: &Repository,
) -> anyhow::Result<(Judged, Sha256)> {
    opened.check_budget()?;
    let heatmap = opened.heatmap()?;
    let mut runtime = Runtime::load(opened, heatmap, repository)?;
    let observed = observe(&mut runtime.engine, &reference.artifact, &reference.binding, "assay".to_owned())?;
    let judged = reference.judge(observed);
    let artifact_name = repository.display(&reference.binding.path).display().to_string();
    let artifact_sha256 = crate::runtime::sha256(&reference.binding.sha256)?;
    let identity = runtime.opened.identity(
        repository,
        runtime.heatmap.as_ref(),
        IdentityInputs {
            suite: Some(SuiteInputs {
                name: format!("reference-test, gate {} version {}", reference.gate.name, reference.gate.version),
                sha256: reference.gate_sha256,
            }),
            prompt_set: "witness".to_owned(),
            texts: BTreeMap::from([(artifact_name.clone(), artifact_sha256)]),
            tokenized: false,
            sampled: true,
        },
    )?;
    let rows = judged.figures.iter().map(check_row).collect();
    let body = CheckBody { subject: runtime.opened.loaded.name.clone(), reference: artifact_name, rows };
    let mut log = RunLog::default();
    judged.observed.prompts.iter().for_each(|prompt| log.line(prompt));
    judged.judgements.iter().for_each(|judgement| log.line(judgement));
    let draft = Draft::new(EvidenceClass::Functional, identity, body);
    let evidence = record(ledger, draft, verdict_rows(&judged.judgements), &log)?;
    Ok((judged, evidence))
}

/// What is only reported has no verdict.
fn verdict_rows(judgements: &[Judgement]) -> Vec<VerdictRow> {
    let row = |judgement: &Judgement| {
        let verdict = match judgement.outcome {
            Outcome::Pass => Verdict::Pass,
            Outcome::Fail => Verdict::Fail,
            Outcome::Incomplete => Verdict::Incomplete,
            Outcome::Reported => return None,
        };
        Some(VerdictRow { row: judgement.row(), verdict, reason: judgement.reason.clone() })
    };
    judgements.iter().filter_map(row).collect()
}

fn check_row(figures: &PromptFigures) -> CheckRow {
    let counts = [
        ("input_tokens", figures.input_tokens),
        ("steps", figures.steps),
        ("prefill_positions", figures.prefill_positions),
        ("first_token_equal", usize::from(figures.first_token_equal)),
        ("prefill_argmax_equal", figures.prefill_argmax_equal),
        ("teacher_forced_equal", figures.teacher_forced_equal),
        ("top_k_contained", figures.contained),
        ("top_k_overlap_min", figures.overlap_min),
        ("exact_run", figures.exact_run),
    ];
    let mut named: BTreeMap<String, f64> =
        counts.into_iter().map(|(name, count)| (name.to_owned(), count as f64)).collect();
    named.insert("first_token_margin_nats".to_owned(), figures.first_token_margin);
    named.insert("top_k_overlap_mean".to_owned(), figures.overlap_mean);
    named.insert("logprob_difference_max_nats".to_owned(), figures.logprob_difference_max);
    named.insert("logprob_difference_mean_nats".to_owned(), figures.logprob_difference_mean);
    // A margin without a second token is infinite, which JSON cannot say.
    named.retain(|_, value| value.is_finite());
    CheckRow { row: figures.prompt.clone(), figures: named }
}

fn answer(
    name: &str,
    reference: &Reference,
    judged: &Judged,
    verdicts: &[VerdictRow],
    evidence: Option<Sha256>,
    repository: &Repository,
) -> anyhow::Result<Answer> {
    let Reference { artifact, binding, gate, gate_sha256 } = reference;
    let path = repository.display(&binding.path);
    let json = json!({
        "config": name,
        "artifact": { "file": path, "sha256": binding.sha256, "model": artifact.model.name, "witness": artifact.witness },
        "gate": { "name": gate.name, "version": gate.version, "sha256": gate_sha256 },
        "runtime": judged.observed.runtime,
        "prompts": judged.figures,
        "verdicts": verdicts,
        "evidence": evidence,
    });
    let witness = &artifact.witness;
    let mut answer = Answer::new(&json)?
        .line(format!("witness {} ({}), {}", witness.runtime, witness.package, witness.arithmetic))
        .line(format!("gate {} version {}, answers of {}", gate.name, gate.version, judged.observed.runtime))
        .table(table(name, path, judged, verdicts));
    let counted = |verdict: Verdict| verdicts.iter().filter(|row| row.verdict == verdict).count();
    for row in verdicts.iter().filter(|row| row.verdict != Verdict::Pass) {
        answer = answer.line(format!("{}  {}: {}", row.verdict, row.row, row.reason));
    }
    let counts = [Verdict::Pass, Verdict::Fail, Verdict::Incomplete]
        .map(|verdict| format!("{} {verdict}", counted(verdict)))
        .join(", ");
    answer = answer.line(format!("{} rows: {counts}", verdicts.len()));
    let last = match evidence {
        Some(evidence) => format!("record {}", evidence.short()),
        None => "not recorded: another program's answers have no identity here".to_owned(),
    };
    Ok(answer.line(last))
}

fn table(name: &str, artifact: &Path, judged: &Judged, verdicts: &[VerdictRow]) -> Table {
    let headings = ["prompt", "first", "#inside", "#forced", "#in top", "#shared", "#logp", "#run", "rows"];
    let mut table = Table::new(format!("{name} against {}", artifact.display()), &headings);
    for figures in &judged.figures {
        let prefix = format!("{}: ", figures.prompt);
        let own = || verdicts.iter().filter(|row| row.row.starts_with(&prefix));
        let failed = own().filter(|row| row.verdict != Verdict::Pass).count();
        table.row([
            figures.prompt.clone(),
            if figures.first_token_equal { "same" } else { "other" }.to_owned(),
            format!("{}/{}", figures.prefill_argmax_equal, figures.prefill_positions),
            format!("{}/{}", figures.teacher_forced_equal, figures.steps),
            format!("{}/{}", figures.contained, figures.steps),
            format!("{:.1}", figures.overlap_mean),
            format!("{:.0e}", figures.logprob_difference_mean),
            figures.exact_run.to_string(),
            if failed == 0 { format!("{} PASS", own().count()) } else { format!("{failed} FAIL") },
        ]);
    }
    table
}
