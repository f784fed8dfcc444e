//! `assay fidelity`

use crate::config::ConfigArgs;
use crate::corpus::PromptSet;
use crate::evidence::{RunLog, open_ledger, record};
use crate::exit::{Exit, InvalidEvidence};
use crate::fidelity::{
    Baseline, BaselineDocument, BaselineError, BaselineHeader, BaselineWriter, Fidelity, MIN_TOP_K, compare,
    write_baseline,
};
use crate::output::{Answer, Format, Table};
use crate::perplexity::{Documents, MIN_DOCUMENTS};
use crate::repository::Repository;
use crate::runtime::{IdentityInputs, Opened, Runtime};
use anyhow::ensure;
use assay_ledgers::{
    BaselineLogits, Draft, EvidenceClass, FidelityBody, Identity, Sha256, Spread, Verdict, VerdictRow, diff,
};
use clap::{Args, Subcommand};
use serde_json::json;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  assay fidelity baseline tiny-moe-bf16 --to tiny-moe.logits
  assay fidelity compare tiny-moe --baseline tiny-moe.logits
  assay fidelity baseline tiny-moe-bf16 --top-k 64 --to tiny-moe.top64";

/// How far a config's distributions are from a stored baseline's
///
/// At every position of the same token ids: KL divergence, flips of the likeliest token both ways, containment and overlap of the
/// ten likeliest, Jensen-Shannon drift at the first token that follows a document, and the paired difference of the loss. A
/// baseline of another vocabulary or other tokens is INVALID.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct FidelityCommand {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Store what a config says at every position
    Baseline(MakeBaseline),
    /// Compare a config with a stored baseline
    Compare(Compare),
}

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
struct MakeBaseline {
    #[command(flatten)]
    config: ConfigArgs,
    /// File to write
    #[arg(long, value_name = "FILE")]
    to: PathBuf,
    /// Keep the K largest log-probabilities of each position, instead of every logit
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u32).range(i64::from(MIN_TOP_K)..))]
    top_k: Option<u32>,
    #[command(flatten)]
    documents: DocumentArgs,
}

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
struct Compare {
    #[command(flatten)]
    config: ConfigArgs,
    /// What `assay fidelity baseline` wrote
    #[arg(long, value_name = "FILE")]
    baseline: PathBuf,
    #[command(flatten)]
    documents: DocumentArgs,
}

/// The texts.
#[derive(Debug, Args)]
struct DocumentArgs {
    /// JSON object of token-id lists, one a document, instead of a prompt set
    #[arg(long, value_name = "FILE", conflicts_with = "prompts")]
    token_ids: Option<PathBuf>,
    /// Prompt set that documents are cut from
    #[arg(long, value_enum, default_value = "packaged", value_name = "SET")]
    prompts: PromptSet,
    /// Tokens of a document, at most
    #[arg(long, default_value_t = 256, value_name = "N", value_parser = at_least_two)]
    document_tokens: usize,
}

fn at_least_two(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|&count| count >= 2).ok_or_else(|| "expected a number of at least 2".to_owned())
}

impl DocumentArgs {
    fn documents(&self, repository: &Repository, runtime: &Runtime) -> anyhow::Result<Documents> {
        ensure!(self.prompts != PromptSet::Random, "random token ids are no text whose distributions mean anything");
        let documents = match &self.token_ids {
            Some(path) => Documents::from_token_ids(path)?,
            None => Documents::from_set(self.prompts, repository, &runtime.tokenizer()?)?,
        };
        Ok(documents.first_tokens(self.document_tokens))
    }
}

impl FidelityCommand {
    pub(super) fn run(self, format: Format) -> anyhow::Result<Exit> {
        match self.action {
            Action::Baseline(command) => command.run(format),
            Action::Compare(command) => command.run(format),
        }
    }
}

/// A loaded config with its documents.
struct Subject {
    name: String,
    runtime: Runtime,
    documents: Documents,
    identity: Identity,
    tokenizer: Option<Sha256>,
}

impl Subject {
    fn load(config: &ConfigArgs, documents: &DocumentArgs, repository: &Repository) -> anyhow::Result<Self> {
        let loaded = config.load(repository)?;
        let name = loaded.name.clone();
        ensure!(
            !loaded.config.mechanics_only,
            "config {name} is for mechanics only: its quality figures would mean nothing (mechanics_only = true)"
        );
        let opened = Opened::new(loaded)?;
        opened.refuse_synthetic("what it says of text")?;
        let heatmap = opened.heatmap()?;
        let runtime = Runtime::load(opened, heatmap, repository)?;
        let documents = documents.documents(repository, &runtime)?;
        let inputs = IdentityInputs {
            suite: None,
            prompt_set: documents.set.clone(),
            texts: documents.texts.clone(),
            tokenized: documents.tokenized,
            sampled: false,
        };
        let identity = runtime.opened.identity(repository, runtime.heatmap.as_ref(), inputs)?;
        // It says what token ids mean, also where they were not made with it.
        let tokenizer = runtime.opened.tokenizer_hash()?;
        Ok(Subject { name, runtime, documents, identity, tokenizer })
    }

    fn vocab_size(&self) -> usize {
        self.runtime.opened.folder.spec.vocab_size
    }
}

impl MakeBaseline {
    fn run(self, format: Format) -> anyhow::Result<Exit> {
        let repository = Repository::find()?;
        let mut subject = Subject::load(&self.config, &self.documents, &repository)?;
        let documents = &subject.documents.documents;
        let header = BaselineHeader {
            format_version: 1,
            name: subject.name.clone(),
            identity: Some(subject.identity.clone()),
            vocab_size: subject.vocab_size() as u64,
            tokenizer: subject.tokenizer,
            logits: self.top_k.map_or(BaselineLogits::Full, BaselineLogits::TopK),
            set: subject.documents.set.clone(),
            texts: subject.documents.texts.clone(),
            documents: documents
                .iter()
                .map(|document| BaselineDocument { name: document.name.clone(), tokens: document.tokens.clone() })
                .collect(),
        };
        let (rows, logits) = (header.rows(), header.logits);
        let writer = BaselineWriter::create(&self.to, header)?;
        let sha256 = write_baseline(&mut subject.runtime.engine, documents, writer)?;
        let json = json!({
            "path": self.to, "sha256": sha256, "name": subject.name, "logits": logits, "positions": rows,
            "documents": documents.len(),
        });
        Answer::new(&json)?
            .line(format!(
                "{}: {} positions of {} documents, {}",
                self.to.display(),
                rows.unwrap_or(0),
                documents.len(),
                logits_words(logits)
            ))
            .line(format!("baseline {}", sha256.short()))
            .print(format)?;
        Ok(Exit::DONE)
    }
}

impl Compare {
    fn run(self, format: Format) -> anyhow::Result<Exit> {
        let repository = Repository::find()?;
        let baseline = Baseline::open(&self.baseline).map_err(broken)?;
        let ledger = open_ledger(&repository)?;
        let mut subject = Subject::load(&self.config, &self.documents, &repository)?;
        let documents = &subject.documents.documents;
        let header = baseline.header.clone();
        if let Some(mismatch) = header.mismatch(subject.vocab_size(), subject.tokenizer, documents) {
            return Err(InvalidEvidence(format!("{}: {mismatch}", self.baseline.display())).into());
        }
        let (fidelity, sha256) = compare(&mut subject.runtime.engine, documents, baseline)
            .map_err(|error| error.downcast::<BaselineError>().map_or_else(|error| error, broken))?;
        let verdicts = vec![verdict(&fidelity)];
        let mut log = RunLog::default();
        fidelity.documents.iter().for_each(|row| log.line(row));
        let body = body(&header, sha256, &fidelity)?;
        let draft = Draft::new(EvidenceClass::Functional, subject.identity.clone(), body.clone());
        let evidence = record(&ledger, draft, verdicts.clone(), &log)?;
        let differences: Option<Vec<_>> =
            header.identity.as_ref().map(|other| diff(other, &subject.identity)).transpose()?;
        let json = json!({
            "config": subject.name, "baseline": { "path": self.baseline, "sha256": sha256, "name": header.name },
            "fidelity": body, "identity": subject.identity, "identity_differences": differences,
            "verdicts": verdicts, "evidence": evidence,
        });
        let mut answer = Answer::new(&json)?.table(table(&subject.name, &header, &fidelity));
        if let Some(differences) = differences {
            let fields: Vec<&str> = differences.iter().map(|difference| difference.path.as_str()).collect();
            answer = answer.line(match fields.as_slice() {
                [] => "the baseline is of the same identity".to_owned(),
                fields => format!("the identities differ in {}", fields.join(", ")),
            });
        }
        for row in &verdicts {
            answer = answer.line(format!("{}  {}: {}", row.verdict, row.row, row.reason));
        }
        answer.line(format!("record {}", evidence.short())).print(format)?;
        Ok(Exit::worst(verdicts.iter().map(|row| row.verdict)))
    }
}

/// A baseline that is there and is none is broken evidence; one that cannot be opened is a slip of the user's.
fn broken(error: BaselineError) -> anyhow::Error {
    match error {
        BaselineError::Malformed { .. } => InvalidEvidence(error.to_string()).into(),
        other => other.into(),
    }
}

fn verdict(fidelity: &Fidelity) -> VerdictRow {
    let documents = fidelity.documents.len();
    let (verdict, reason) = if fidelity.has_interval {
        (Verdict::Pass, format!("{} positions of {documents} documents, each of the same tokens", fidelity.positions))
    } else {
        (Verdict::Incomplete, format!("{documents} documents carry no interval: {MIN_DOCUMENTS} or more are needed"))
    };
    VerdictRow { row: "fidelity".to_owned(), verdict, reason }
}

fn body(header: &BaselineHeader, baseline: Sha256, fidelity: &Fidelity) -> anyhow::Result<FidelityBody> {
    Ok(FidelityBody {
        baseline,
        baseline_name: header.name.clone(),
        baseline_identity: header.identity.as_ref().map(Identity::hash).transpose()?,
        baseline_logits: header.logits,
        positions: fidelity.positions,
        kl: fidelity.kl,
        top1_flips: fidelity.top1_flips,
        top10_containment: fidelity.top10_containment,
        top10_overlap: fidelity.top10_overlap,
        first_token_js: fidelity.first_token_js,
        nll_difference: Some(fidelity.nll_difference),
        documents: fidelity.documents.clone(),
    })
}

fn logits_words(logits: BaselineLogits) -> String {
    match logits {
        BaselineLogits::Full => "every logit".to_owned(),
        BaselineLogits::TopK(k) => format!("the {k} largest log-probabilities: divergences from it are lower bounds"),
    }
}

fn table(name: &str, header: &BaselineHeader, fidelity: &Fidelity) -> Table {
    let title = format!("{name} against {} ({})", header.name, logits_words(header.logits));
    let mut table = Table::new(title, &["measure", "#value"]);
    let mut spread = |what: &str, spread: &Spread| {
        let Spread { mean, median, p99, max } = spread;
        table.row([format!("{what}, mean"), format!("{mean:.3e}")]);
        table.row([format!("{what}, median"), format!("{median:.3e}")]);
        table.row([format!("{what}, 99th percentile"), format!("{p99:.3e}")]);
        table.row([format!("{what}, largest"), format!("{max:.3e}")]);
    };
    spread("KL divergence, nats", &fidelity.kl);
    spread("JS at the first token, nats", &fidelity.first_token_js);
    let flips = fidelity.top1_flips;
    let share = |count: u64| format!("{count} of {}", fidelity.positions);
    table.row(["likeliest token differs".to_owned(), share(flips.all)]);
    table.row(["  the baseline was right".to_owned(), share(flips.to_wrong)]);
    table.row(["  the baseline was wrong, now right".to_owned(), share(flips.to_right)]);
    table.row(["baseline's likeliest in the ten".to_owned(), format!("{:.3} %", 100.0 * fidelity.top10_containment)]);
    table.row(["overlap of the ten".to_owned(), format!("{:.3} %", 100.0 * fidelity.top10_overlap)]);
    let interval = fidelity
        .nll_difference
        .ci95
        .map_or("no interval".to_owned(), |[low, high]| format!("95 %: {low:+.5} to {high:+.5}"));
    let difference = format!("{:+.5} ({interval})", fidelity.nll_difference.value);
    table.row(["difference of the loss, nats a target".to_owned(), difference]);
    table
}
