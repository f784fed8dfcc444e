//! `assay session-equivalence`

use crate::config::ConfigArgs;
use crate::corpus::{Corpus, PromptCutter, PromptSet, PromptUse};
use crate::evidence::{RunLog, open_ledger, record};
use crate::exit::Exit;
use crate::output::{Answer, Format, Table};
use crate::progress::Progress;
use crate::repository::Repository;
use crate::runtime::{IdentityInputs, Opened, Runtime};
use crate::session_equivalence::{Case, Conversation, Embedded, Endpoint, EndpointOptions, Subject, run};
use anyhow::ensure;
use assay_engine::checkpoint::tokenizer::Tokenizer;
use assay_ledgers::{Draft, EquivalenceBody, EquivalenceCase, EvidenceClass, Ledger, Verdict, VerdictRow};
use clap::Args;
use serde_json::json;
use std::collections::BTreeMap;

const EXAMPLES: &str = "\
Examples:
  assay session-equivalence tiny-moe
  assay session-equivalence tiny-moe --kv int4 --no-heatmap --output json
  assay session-equivalence tiny-moe-long --tokens 20000
  assay session-equivalence tiny-moe --endpoint http://127.0.0.1:8080";

/// The environment variable that holds an endpoint's key.
const API_KEY: &str = "ASSAY_ENDPOINT_API_KEY";
/// Cases that every conversation has, and those that only an embedded engine has besides.
const CASES: u64 = 13;

/// Whether continued conversations answer as fresh ones do, to the bit
///
/// A conversation's next answer is computed in every way that there is: afresh (twice), afresh in the pieces of a continuation,
/// from state on the device, from restored state, after an eviction, a branch, a cancelled request, another tenant's request. Tokens and
/// complete F32 logits of every step are compared with the fresh ones; a case that was to reuse something and cannot prove it is
/// INCOMPLETE.
///
/// With --endpoint a server is asked instead, by token ids: its tokens and log-probabilities are compared. The config's tokenizer
/// cuts the prompts. A bearer token is taken from ASSAY_ENDPOINT_API_KEY.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct SessionEquivalence {
    #[command(flatten)]
    config: ConfigArgs,
    /// Ask this server, such as http://127.0.0.1:8080
    #[arg(long, value_name = "URL")]
    endpoint: Option<String>,
    /// The model's name in requests to the server, instead of the config's
    #[arg(long, value_name = "NAME", requires = "endpoint")]
    model: Option<String>,
    /// Request field that, when false, keeps the server from reusing state
    #[arg(long, value_name = "FIELD", default_value = "cache_prompt", requires = "endpoint")]
    cache_field: String,
    /// Tokens of each conversation's first prompt
    #[arg(long, value_delimiter = ',', default_value = "1,15,127,128,129,1000", value_name = "LIST")]
    tokens: Vec<usize>,
    /// Tokens of the message that follows
    #[arg(long, default_value_t = 40, value_name = "TOKENS")]
    message: usize,
    /// Tokens of each answer
    #[arg(long, default_value_t = 8, value_name = "TOKENS")]
    answer: usize,
    /// Prompt set that prompts are cut from
    #[arg(long, value_enum, default_value = "packaged", value_name = "SET")]
    prompts: PromptSet,
}

impl SessionEquivalence {
    pub(super) fn run(self, format: Format) -> anyhow::Result<Exit> {
        ensure!(self.answer > 0 && self.message > 0, "answers and messages have at least one token");
        ensure!(!self.tokens.contains(&0), "a prompt has at least one token");
        let repository = Repository::find()?;
        let loaded = self.config.load(&repository)?;
        let context = loaded.config.context.tokens;
        let longest = self.tokens.iter().max().copied().unwrap_or(0);
        let needed = longest.saturating_add(self.message).saturating_add(2 * self.answer);
        ensure!(
            needed <= context,
            "a prompt of {longest} tokens, its answer, a message and the next answer are {needed} tokens; the context has {context}"
        );
        let corpus = Corpus::load(self.prompts, &repository)?;
        match &self.endpoint {
            Some(url) => self.ask_endpoint(url, &Opened::new(loaded)?, &corpus, format),
            None => {
                let ledger = open_ledger(&repository)?;
                self.ask_engine(Runtime::start(loaded, &repository)?, &corpus, &ledger, &repository, format)
            }
        }
    }

    fn ask_engine(
        &self,
        mut runtime: Runtime,
        corpus: &Corpus,
        ledger: &Ledger,
        repository: &Repository,
        format: Format,
    ) -> anyhow::Result<Exit> {
        let conversations = self.conversations(corpus, &runtime.tokenizer()?)?;
        let sha256 = runtime.opened.folder.sha256();
        let mut log = RunLog::default();
        let mut subject = Embedded::new(&mut runtime.engine, &sha256);
        let cases = self.go(&mut subject, &conversations, &mut log)?;
        let inputs = IdentityInputs::of_corpus(corpus);
        let identity = runtime.opened.identity(repository, runtime.heatmap.as_ref(), inputs)?;
        let verdicts = verdict_rows(&cases);
        let draft = Draft::new(EvidenceClass::Functional, identity.clone(), body(&cases, self.answer));
        let evidence = record(ledger, draft, verdicts.clone(), &log)?;
        let name = &runtime.opened.loaded.name;
        let json = json!({
            "config": name, "endpoint": null, "kv": runtime.opened.options.precision.kv.name(),
            "prefill": runtime.opened.options.prefill.name(), "paths": cases, "verdict": overall(&verdicts),
            "verdicts": verdicts, "identity": identity, "evidence": evidence,
        });
        let answer = answer(&json, name, &cases, &verdicts)?;
        answer.line(format!("record {}", evidence.short())).print(format)?;
        Ok(Exit::worst(verdicts.iter().map(|row| row.verdict)))
    }

    fn ask_endpoint(&self, url: &str, opened: &Opened, corpus: &Corpus, format: Format) -> anyhow::Result<Exit> {
        let tokenizer = Tokenizer::open(opened.folder.checkpoint.dir())?;
        let conversations = self.conversations(corpus, &tokenizer)?;
        let options = EndpointOptions {
            url: url.to_owned(),
            model: self.model.clone().unwrap_or_else(|| opened.loaded.name.clone()),
            api_key: std::env::var(API_KEY).ok(),
            cache_field: self.cache_field.clone(),
        };
        let mut subject = Endpoint::new(options, &tokenizer);
        let cases = self.go(&mut subject, &conversations, &mut RunLog::default())?;
        let verdicts = verdict_rows(&cases);
        let json = json!({
            "config": opened.loaded.name, "endpoint": url, "paths": cases, "verdict": overall(&verdicts),
            "verdicts": verdicts, "evidence": null,
        });
        answer(&json, url, &cases, &verdicts)?.print(format)?;
        Ok(Exit::worst(verdicts.iter().map(|row| row.verdict)))
    }

    fn conversations(&self, corpus: &Corpus, tokenizer: &Tokenizer) -> anyhow::Result<Vec<Conversation>> {
        let cutter = PromptCutter::new(corpus, tokenizer);
        let cut = |prompt_use, tokens, nth| anyhow::Ok(cutter.cut(prompt_use, tokens, nth)?.tokens);
        let lengths = self.tokens.iter().enumerate();
        lengths
            .map(|(index, &tokens)| {
                let message = cut(PromptUse::WarmUp, self.message, 2 * index)?;
                let mut branch = cut(PromptUse::WarmUp, self.message, 2 * index + 1)?;
                if branch[0] == message[0] {
                    branch.rotate_left(1);
                }
                let (first, other) = (cut(PromptUse::Timed, tokens, 0)?, cut(PromptUse::Timed, tokens, 1)?);
                Ok(Conversation { first, message, branch, other })
            })
            .collect()
    }

    fn go<S: Subject>(
        &self,
        subject: &mut S,
        conversations: &[Conversation],
        log: &mut RunLog,
    ) -> anyhow::Result<Vec<Case>> {
        let progress = Progress::start("continuing conversations", conversations.len() as u64 * CASES, "cases");
        let mut cases = Vec::new();
        for conversation in conversations {
            cases.extend(run(subject, conversation, self.answer, |case| {
                log.line(case);
                progress.advance(1);
            })?);
        }
        Ok(cases)
    }
}

fn row(case: &Case) -> String {
    format!("{}, {} tokens", case.path, case.first_tokens)
}

fn verdict_rows(cases: &[Case]) -> Vec<VerdictRow> {
    let rows = cases.iter();
    rows.map(|case| VerdictRow { row: row(case), verdict: case.verdict, reason: case.reason.clone() }).collect()
}

/// What the process answers with, by name.
fn overall(rows: &[VerdictRow]) -> Verdict {
    let code = assay_ledgers::process_exit_code(rows.iter().map(|row| row.verdict));
    let verdicts = [Verdict::Pass, Verdict::Fail, Verdict::Incomplete, Verdict::Invalid];
    verdicts.into_iter().find(|verdict| verdict.exit_code() == code).unwrap_or(Verdict::Incomplete)
}

fn body(cases: &[Case], answer: usize) -> EquivalenceBody {
    let case = |case: &Case| EquivalenceCase {
        case: row(case),
        conversation: format!(
            "first prompt of {} tokens, {} with its answer and message",
            case.first_tokens, case.prompt_tokens
        ),
        tokens: answer as u64,
        first_token_difference: case.comparison.first_token_difference.map(|step| step as u64),
        logits: case.comparison.values,
        logit_bit_differences: case.comparison.bit_differences,
        logit_difference_max: case.comparison.difference_max,
        tokens_reused: case.reused_tokens.unwrap_or(0),
        tokens_computed: (case.prompt_tokens as u64).saturating_sub(case.reused_tokens.unwrap_or(0)),
        bytes_restored: case.restored_bytes.unwrap_or(0),
        control: Some(format!("control, {} tokens", case.first_tokens)),
        figures: BTreeMap::new(),
    };
    EquivalenceBody { reference: "fresh full history".to_owned(), cases: cases.iter().map(case).collect() }
}

fn answer(json: &serde_json::Value, name: &str, cases: &[Case], verdicts: &[VerdictRow]) -> anyhow::Result<Answer> {
    let headings = ["path", "#prompt", "#reused", "#restored", "tokens", "logits", "verdict"];
    let mut table = Table::new(format!("Ways to one answer of {name}"), &headings);
    let said = |number: Option<u64>| number.map_or("not said".to_owned(), |number| number.to_string());
    let equal = |equal: bool| if equal { "equal" } else { "differ" }.to_owned();
    for case in cases {
        table.row([
            case.path.to_owned(),
            case.prompt_tokens.to_string(),
            said(case.reused_tokens),
            said(case.restored_bytes),
            equal(case.tokens_equal),
            equal(case.logits_equal),
            case.verdict.to_string(),
        ]);
    }
    let mut answer = Answer::new(json)?.table(table);
    for row in verdicts.iter().filter(|row| row.verdict != Verdict::Pass) {
        answer = answer.line(format!("{}  {}: {}", row.verdict, row.row, row.reason));
    }
    Ok(answer.line(format!("{}  {} cases", overall(verdicts), cases.len())))
}
