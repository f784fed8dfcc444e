//! `assay trace`

use crate::config::ConfigArgs;
use crate::corpus::{Corpus, PromptCutter, PromptSet, PromptUse};
use crate::exit::Exit;
use crate::output::{Answer, Format};
use crate::repository::Repository;
use crate::runtime::{IdentityInputs, Runtime};
use crate::tracing::{Request, contract_fields, trace};
use assay_engine::trace::{Component, MAX_VALUES, Ranges, Selection};
use assay_ledgers::{Run, Sha256};
use clap::Args;
use serde_json::json;
use std::collections::BTreeMap;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  assay trace tiny-moe --to a.trace
  assay trace tiny-moe --to a.trace --tokens 1,17,42 --decode 8
  assay trace tiny-moe --to a.trace --layers 0-1 --components attention,routes
  assay trace-diff a.trace b.trace";

/// Write down what every launch of a request reads and writes
///
/// One JSON object a line: the runtime contract, each step's tokens, and for every launch its layer and component with a
/// summary (shape, hash, extremes, mean, norm, selected values) of each input and output; the chosen experts; the largest
/// logits. A trace changes no bit of an answer, and it is slow: a traced run is never a measurement of speed.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Trace {
    #[command(flatten)]
    config: ConfigArgs,
    /// File to write
    #[arg(long, value_name = "FILE")]
    to: PathBuf,
    #[command(flatten)]
    prompt: PromptArgs,
    /// Tokens decoded after the prompt
    #[arg(long, default_value_t = 4, value_name = "N")]
    decode: usize,
    #[command(flatten)]
    selection: SelectionArgs,
    /// Values that are written of each tensor, evenly spaced: a number, or all
    #[arg(long, value_parser = values, default_value = "8", value_name = "N")]
    values: usize,
}

/// Where the prompt comes from.
#[derive(Debug, Args)]
struct PromptArgs {
    /// The prompt as token ids, separated by commas
    #[arg(long, value_delimiter = ',', value_name = "IDS", conflicts_with_all = ["prompt", "prompts", "prompt_tokens"])]
    tokens: Option<Vec<u32>>,
    /// The prompt as text
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["prompts", "prompt_tokens"])]
    prompt: Option<String>,
    /// Tokens of a prompt that is cut from a prompt set
    #[arg(long, default_value_t = 64, value_name = "N")]
    prompt_tokens: usize,
    /// Prompt set that it is cut from
    #[arg(long, value_enum, default_value = "packaged", value_name = "SET")]
    prompts: PromptSet,
}

/// Which events.
#[derive(Debug, Args)]
pub(super) struct SelectionArgs {
    /// Layers, as 0,3-7; what stands outside the layers stays
    #[arg(long, value_name = "RANGES")]
    layers: Option<Ranges>,
    /// Components, separated by commas, as q_proj,attention,routes
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    components: Option<Vec<Component>>,
    /// Steps, as 0,5-9; 0 is the prompt
    #[arg(long, value_name = "RANGES")]
    steps: Option<Ranges>,
}

impl SelectionArgs {
    pub(super) fn selection(self) -> Selection {
        let SelectionArgs { layers, components, steps } = self;
        Selection { layers, components, steps, ..Selection::default() }
    }
}

fn values(text: &str) -> Result<usize, String> {
    match text {
        "all" => Ok(MAX_VALUES),
        number => number
            .parse()
            .ok()
            .filter(|&count| count <= MAX_VALUES)
            .ok_or_else(|| format!("expected 0 to {MAX_VALUES}, or all")),
    }
}

impl Trace {
    pub(super) fn run(self, format: Format) -> anyhow::Result<Exit> {
        let repository = Repository::find()?;
        let mut runtime = Runtime::start(self.config.load(&repository)?, &repository)?;
        let (tokens, inputs) = self.prompt.tokens(&runtime, &repository)?;
        let fields = contract_fields(&runtime.opened.identity(&repository, runtime.heatmap.as_ref(), inputs)?)?;
        let selection = Selection { values: self.values, ..self.selection.selection() };
        let request = Request { tokens, decode: self.decode, selection };
        let traced = trace(&Run::timing_on(), &mut runtime.engine, &request, fields, &self.to)?;
        let json = json!({
            "path": self.to, "events": traced.totals.events, "bytes": traced.totals.bytes,
            "prompt_tokens": request.tokens.len(), "answer": traced.answer, "selection": request.selection.to_string(),
        });
        let totals = traced.totals;
        Answer::new(&json)?
            .line(format!("{}: {} events, {} bytes", self.to.display(), totals.events, totals.bytes))
            .line(format!("{} prompt tokens, then {:?}", request.tokens.len(), traced.answer))
            .print(format)?;
        Ok(Exit::DONE)
    }
}

impl PromptArgs {
    fn tokens(self, runtime: &Runtime, repository: &Repository) -> anyhow::Result<(Vec<u32>, IdentityInputs)> {
        let inputs = |set: &str, texts, tokenized| IdentityInputs {
            suite: None,
            prompt_set: set.to_owned(),
            texts,
            tokenized,
            sampled: true,
        };
        let hashed = |name: &str, bytes: &[u8]| BTreeMap::from([(name.to_owned(), Sha256::of(bytes))]);
        if let Some(tokens) = self.tokens {
            let bytes: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
            return Ok((tokens, inputs("token ids", hashed("token ids", &bytes), false)));
        }
        let tokenizer = runtime.tokenizer()?;
        if let Some(text) = self.prompt {
            let tokens = tokenizer.encode(&text)?;
            return Ok((tokens, inputs("text", hashed("text", text.as_bytes()), true)));
        }
        let corpus = Corpus::load(self.prompts, repository)?;
        let prompt = PromptCutter::new(&corpus, &tokenizer).cut(PromptUse::WarmUp, self.prompt_tokens, 0)?;
        let texts = corpus.books.iter().map(|book| (book.file.clone(), book.canonical_sha256)).collect();
        Ok((prompt.tokens, inputs(corpus.set.name(), texts, true)))
    }
}
