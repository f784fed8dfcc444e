//! `assay perplexity`

use crate::config::ConfigArgs;
use crate::corpus::PromptSet;
use crate::evidence::{RunLog, open_ledger, record};
use crate::exit::Exit;
use crate::output::{Answer, Format, Table};
use crate::perplexity::{Comparison, DocumentScore, Documents, MIN_DOCUMENTS, SHAPE, Total, compare, score};
use crate::repository::Repository;
use crate::runtime::{IdentityInputs, Opened, Runtime};
use anyhow::ensure;
use assay_ledgers::{
    DocumentRow, Draft, EvidenceClass, Identity, PerplexityBody, PerplexityComparison, Sha256, Verdict, VerdictRow,
};
use clap::Args;
use serde_json::json;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  assay perplexity tiny-moe
  assay perplexity tiny-moe --compare tiny-moe-bf16
  assay perplexity tiny-moe-bf16 --token-ids \\
      fixtures/models/tiny-moe/perplexity_token_ids.json --output json";

/// How well a config predicts held-out text
///
/// Windows of 2,048 tokens, 1,024 apart: the first scores all its targets, each later one only those not scored yet. Nothing is added
/// to the tokens. The whole is exp(total loss / total targets). Documents come from the first three fifths of each book of a
/// prompt set, or from a file of token ids.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Perplexity {
    #[command(flatten)]
    config: ConfigArgs,
    /// Another config on the same documents: paired differences with a 95 % interval
    #[arg(long, value_name = "CONFIG")]
    compare: Option<String>,
    /// JSON object of token-id lists, one a document, instead of a prompt set
    #[arg(long, value_name = "FILE", conflicts_with = "prompts")]
    token_ids: Option<PathBuf>,
    /// Prompt set that documents are cut from
    #[arg(long, value_enum, default_value = "packaged", value_name = "SET")]
    prompts: PromptSet,
}

/// One config's losses.
struct Scored {
    name: String,
    identity: Identity,
    scores: Vec<DocumentScore>,
}

impl Perplexity {
    pub(super) fn run(self, format: Format) -> anyhow::Result<Exit> {
        let repository = Repository::find()?;
        ensure!(self.prompts != PromptSet::Random, "random token ids are no text that could be predicted");
        let from_file = self.token_ids.as_deref().map(Documents::from_token_ids).transpose()?;
        let ledger = open_ledger(&repository)?;
        let other = self.compare.as_ref().map(ConfigArgs::named);
        let mut scored = Vec::new();
        let mut documents = from_file;
        for args in std::iter::once(&self.config).chain(&other) {
            scored.push(self.score(args, &mut documents, &repository)?);
        }
        let Some(first) = scored.first() else { return Ok(Exit::worst([])) };
        let total = Total::of(&first.scores);
        let comparison = scored.get(1).map(|other| compare(&first.scores, &other.scores)).transpose()?;
        let verdicts = vec![verdict(&total, comparison.as_ref())];
        let mut log = RunLog::default();
        for scored in &scored {
            log.line(&json!({ "config": scored.name, "documents": scored.scores }));
        }
        let body = body(first, &total, scored.get(1).zip(comparison.as_ref()))?;
        let draft = Draft::new(EvidenceClass::Functional, first.identity.clone(), body);
        let evidence = record(&ledger, draft, verdicts.clone(), &log)?;

        let json = json!({
            "config": first.name, "perplexity": total.perplexity, "tokens": total.tokens, "nll_total": total.nll_total,
            "window": SHAPE.window, "stride": SHAPE.stride, "documents": first.scores, "comparison": comparison,
            "identity": first.identity, "verdicts": verdicts, "evidence": evidence,
        });
        answer(&json, first, &total, scored.get(1).zip(comparison.as_ref()), &verdicts, &evidence)?.print(format)?;
        Ok(Exit::worst(verdicts.iter().map(|row| row.verdict)))
    }

    fn score(
        &self,
        args: &ConfigArgs,
        documents: &mut Option<Documents>,
        repository: &Repository,
    ) -> anyhow::Result<Scored> {
        let loaded = args.load(repository)?;
        let name = loaded.name.clone();
        ensure!(
            !loaded.config.mechanics_only,
            "config {name} is for mechanics only: its quality figures would mean nothing (mechanics_only = true)"
        );
        let opened = Opened::new(loaded)?;
        opened.refuse_synthetic("how well it predicts text")?;
        let heatmap = opened.heatmap()?;
        let mut runtime = Runtime::load(opened, heatmap, repository)?;
        if documents.is_none() {
            *documents = Some(Documents::from_set(self.prompts, repository, &runtime.tokenizer()?)?);
        }
        let Some(set) = documents else { anyhow::bail!("no documents") };
        let scores = score(&mut runtime.engine, &set.documents, &name)?;
        let inputs = IdentityInputs {
            suite: None,
            prompt_set: set.set.clone(),
            texts: set.texts.clone(),
            tokenized: set.tokenized,
            sampled: false,
        };
        let identity = runtime.opened.identity(repository, runtime.heatmap.as_ref(), inputs)?;
        Ok(Scored { name, identity, scores })
    }
}

fn verdict(total: &Total, comparison: Option<&Comparison>) -> VerdictRow {
    let (row, verdict, reason) = match comparison {
        None => ("perplexity", Verdict::Pass, format!("{} targets scored, each once", total.tokens)),
        Some(comparison) if comparison.documents < MIN_DOCUMENTS => (
            "comparison",
            Verdict::Incomplete,
            format!("{} documents carry no interval: {MIN_DOCUMENTS} or more are needed", comparison.documents),
        ),
        Some(comparison) => {
            ("comparison", Verdict::Pass, format!("{} documents, paired and clustered", comparison.documents))
        }
    };
    VerdictRow { row: row.to_owned(), verdict, reason }
}

fn body(first: &Scored, total: &Total, comparison: Option<(&Scored, &Comparison)>) -> anyhow::Result<PerplexityBody> {
    let comparison = comparison
        .map(|(other, comparison)| {
            anyhow::Ok(PerplexityComparison {
                against: other.identity.hash()?,
                against_name: other.name.clone(),
                against_record: None,
                documents: comparison.documents as u64,
                against_perplexity: comparison.against_perplexity,
                nll_difference: comparison.nll_difference,
                nll_difference_ci95: comparison.nll_difference_ci95,
                document_differences: comparison.document_differences.clone(),
            })
        })
        .transpose()?;
    let documents = first.scores.iter().map(|score| DocumentRow {
        document: score.document.clone(),
        tokens: score.tokens,
        nll_total: score.nll_total,
        nll_mean: score.nll_mean,
        perplexity: score.perplexity,
    });
    Ok(PerplexityBody {
        window: SHAPE.window as u64,
        stride: SHAPE.stride as u64,
        documents: documents.collect(),
        tokens: total.tokens,
        nll_total: total.nll_total,
        perplexity: total.perplexity,
        comparison,
    })
}

fn answer(
    json: &serde_json::Value,
    first: &Scored,
    total: &Total,
    comparison: Option<(&Scored, &Comparison)>,
    verdicts: &[VerdictRow],
    evidence: &Sha256,
) -> anyhow::Result<Answer> {
    let mut table = Table::new(format!("Perplexity of {}", first.name), &["document", "#targets", "#perplexity"]);
    for score in &first.scores {
        table.row([score.document.clone(), score.tokens.to_string(), format!("{:.3}", score.perplexity)]);
    }
    table.row(["all".to_owned(), total.tokens.to_string(), format!("{:.3}", total.perplexity)]);
    let mut answer = Answer::new(json)?.table(table);
    if let Some((other, comparison)) = comparison {
        let percent = |ratio: f64| format!("{:+.2} %", (ratio - 1.0) * 100.0);
        let interval = comparison
            .ratio_ci95
            .map_or("no interval".to_owned(), |[low, high]| format!("95 %: {} to {}", percent(low), percent(high)));
        answer = answer.line(format!(
            "against {}: {:.3}; perplexity {} ({interval}, {} documents)",
            other.name,
            comparison.against_perplexity,
            percent(comparison.ratio),
            comparison.documents
        ));
    }
    for row in verdicts {
        answer = answer.line(format!("{}  {}: {}", row.verdict, row.row, row.reason));
    }
    Ok(answer.line(format!("record {}", evidence.short())))
}
