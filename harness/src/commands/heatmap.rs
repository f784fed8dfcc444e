//! `assay heatmap`

use crate::config::ConfigArgs;
use crate::corpus::{Corpus, PromptCutter, PromptSet, Region};
use crate::exit::Exit;
use crate::interrupt;
use crate::output::{Answer, Format, Table};
use crate::progress::Progress;
use crate::repository::Repository;
use crate::runtime::{Opened, Runtime};
use anyhow::{Context, bail};
use assay_engine::memory::MemoryPlan;
use assay_engine::residency::{Heatmap, HeatmapText, LayerUse, RouteTrace};
use clap::{Args, Subcommand};
use serde_json::json;
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "\
Examples:
  assay heatmap build tiny-moe --to suites/heatmaps/tiny-moe.json
  assay heatmap verify tiny-moe
  assay heatmap trace tiny-moe --to routes.trace";

/// Texts from each book.
const PER_BOOK: usize = 4;

/// Tokens of each, at most.
const TOKENS: usize = 1024;

/// How often each expert is routed to, as a prior for residency
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct HeatmapCommand {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Count routes on the last fifth of each book, which no prompt reaches
    Build(Build),
    /// Check a config's heatmap: checksum, identity, texts
    Verify(Verify),
    /// Record which experts decode chooses, for hcs-sim
    Trace(Trace),
}

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
struct Build {
    #[command(flatten)]
    config: ConfigArgs,
    /// File to write, instead of the one that the config names
    #[arg(long, value_name = "FILE")]
    to: Option<PathBuf>,
    /// Prompt set whose books are read
    #[arg(long, value_enum, default_value = "packaged", value_name = "SET")]
    prompts: PromptSet,
}

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
struct Verify {
    #[command(flatten)]
    config: ConfigArgs,
    /// Prompt set that it was built from
    #[arg(long, value_enum, default_value = "packaged", value_name = "SET")]
    prompts: PromptSet,
}

/// Record which experts decode chooses, for hcs-sim
///
/// Prompts come from warm-up text, which neither heatmaps nor timed prompts touch, and are answered greedily.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
struct Trace {
    #[command(flatten)]
    config: ConfigArgs,
    /// File to write
    #[arg(long, value_name = "FILE")]
    to: PathBuf,
    /// Tokens of each prompt
    #[arg(long, default_value_t = 256, value_name = "N")]
    prompt_tokens: usize,
    /// Tokens decoded after each
    #[arg(long, default_value_t = 128, value_name = "N")]
    decode_tokens: usize,
    /// Prompt set that prompts are cut from
    #[arg(long, value_enum, default_value = "packaged", value_name = "SET")]
    prompts: PromptSet,
}

impl HeatmapCommand {
    pub(super) fn run(self, format: Format) -> anyhow::Result<Exit> {
        match self.action {
            Action::Build(build) => build.run(format),
            Action::Verify(verify) => verify.run(format),
            Action::Trace(trace) => trace.run(format),
        }
    }
}

impl Build {
    fn run(self, format: Format) -> anyhow::Result<Exit> {
        let repository = Repository::find()?;
        let loaded = self.config.load(&repository)?;
        let Some(path) = self.to.or_else(|| loaded.heatmap_path()) else {
            bail!("config {} names no heatmap: say where to write one with --to FILE", loaded.name)
        };
        if self.prompts == PromptSet::Random {
            bail!("random token ids say nothing about which experts are wanted: give a prompt set of texts")
        }
        let corpus = Corpus::load(self.prompts, &repository)?;
        let opened = Opened::new(loaded)?;
        let identity = opened.heatmap_identity();
        let mut runtime = Runtime::load(opened, None, &repository)?;
        let tokens = TOKENS.min(runtime.engine.options().context_tokens);
        let prompts = PromptCutter::new(&corpus, &runtime.tokenizer()?).spread(Region::Heatmap, PER_BOOK, tokens)?;
        runtime.engine.observe_routes();
        let progress = Progress::start("counting routes", prompts.len() as u64, "texts");
        let mut texts = Vec::with_capacity(prompts.len());
        for prompt in &prompts {
            interrupt::check()?;
            runtime.engine.reset();
            runtime.engine.prefill(&prompt.tokens)?;
            texts.push(HeatmapText {
                name: prompt.span.book.clone(),
                text_sha256: prompt.span.canonical_sha256.to_string(),
                from_byte: prompt.span.start as u64,
                to_byte: prompt.span.end as u64,
            });
            progress.advance(1);
        }
        drop(progress);
        let counts = runtime.engine.take_observed().context("no routes were counted")?;
        let routed = (prompts.len() * tokens) as u64;
        let heatmap = Heatmap::new(identity, texts, routed, counts);
        heatmap.save(&path)?;
        answer(&heatmap, &path, "written")?.print(format)?;
        Ok(Exit::DONE)
    }
}

impl Verify {
    fn run(self, format: Format) -> anyhow::Result<Exit> {
        let repository = Repository::find()?;
        let loaded = self.config.load(&repository)?;
        let Some(path) = loaded.heatmap_path() else { bail!("config {} names no heatmap", loaded.name) };
        let corpus = Corpus::load(self.prompts, &repository)?;
        let opened = Opened::new(loaded)?;
        let sizes = MemoryPlan::new(&opened.folder.spec, &opened.options)?.sizes;
        let heatmap = Heatmap::load(&path, sizes.moe_layers, sizes.num_experts, sizes.top_k)?;
        heatmap.check_identity(&path, &opened.heatmap_identity())?;
        for text in &heatmap.texts {
            check_text(text, &corpus, &path)?;
        }
        answer(&heatmap, &path, "valid")?.print(format)?;
        Ok(Exit::DONE)
    }
}

impl Trace {
    fn run(self, format: Format) -> anyhow::Result<Exit> {
        let repository = Repository::find()?;
        let corpus = Corpus::load(self.prompts, &repository)?;
        let opened = Opened::new(self.config.load(&repository)?)?;
        let (identity, heatmap) = (opened.heatmap_identity(), opened.heatmap()?);
        let mut runtime = Runtime::load(opened, heatmap, &repository)?;
        let tokenizer = runtime.tokenizer()?;
        let prompts = PromptCutter::new(&corpus, &tokenizer).spread(Region::WarmUp, 1, self.prompt_tokens)?;
        let progress = Progress::start("recording routes", (prompts.len() * self.decode_tokens) as u64, "tokens");
        let engine = &mut runtime.engine;
        engine.record_routes();
        engine.take_counters();
        engine.take_layer_use();
        for prompt in &prompts {
            engine.reset();
            let mut token = engine.prefill(&prompt.tokens)?;
            for _ in 0..self.decode_tokens {
                interrupt::check()?;
                token = engine.decode(token)?;
                progress.advance(1);
            }
        }
        drop(progress);
        let (counters, residents, layers) = (engine.take_counters(), engine.residents(), engine.take_layer_use());
        let (shape, recorded) = engine.take_recorded().context("no routes were recorded")?;
        let trace = RouteTrace::new(identity, shape, recorded);
        trace.save(&self.to)?;
        let routes = counters.hits + counters.misses;
        let by_layer = layers.iter().map(|layer| json!(layer));
        let json = json!({
            "path": self.to, "header": trace.header, "counters": counters, "resident": residents.resident,
            "layers": by_layer.collect::<Vec<_>>(),
        });
        Answer::new(&json)?
            .table(layer_table(&layers, trace.header.num_experts))
            .line(format!("{}: {} tokens of {} prompts", self.to.display(), trace.tokens(), prompts.len()))
            .line(format!(
                "this run: {} of {} experts resident at its end, {} of {routes} routes hit, {} promotions",
                residents.resident, residents.total, counters.hits, counters.promotions
            ))
            .print(format)?;
        Ok(Exit::DONE)
    }
}

/// Each layer's hit rate beside the share of its experts that were resident when it was routed to.
fn layer_table(layers: &[LayerUse], num_experts: usize) -> Table {
    let headings = ["#layer", "#routes", "#hits", "#resident", "#hits - share"];
    let mut table = Table::new("Decode by MoE layer", &headings);
    for (index, layer) in layers.iter().enumerate() {
        let rate = layer.hits.hit_rate().unwrap_or(0.0);
        let share = layer.resident_share(num_experts).unwrap_or(0.0);
        table.row([
            index.to_string(),
            (layer.hits.hits + layer.hits.misses).to_string(),
            format!("{:.1} %", rate * 100.0),
            format!("{:.1} %", share * 100.0),
            format!("{:+.4}", rate - share),
        ]);
    }
    table
}

/// A text must be a pinned book's, and lie in its last fifth.
fn check_text(text: &HeatmapText, corpus: &Corpus, path: &Path) -> anyhow::Result<()> {
    let Some(book) = corpus.books.iter().find(|book| book.canonical_sha256.to_string() == text.text_sha256) else {
        bail!(
            "heatmap {}: {} has SHA-256 {}, which no book of the set has",
            path.display(),
            text.name,
            text.text_sha256
        )
    };
    let allowed = book.range(Region::Heatmap);
    let (from, to) = (text.from_byte, text.to_byte);
    if from < allowed.start as u64 || to > allowed.end as u64 {
        bail!("heatmap {}: bytes {from}..{to} of {}, expected within {allowed:?}", path.display(), text.name)
    }
    Ok(())
}

fn answer(heatmap: &Heatmap, path: &Path, state: &str) -> anyhow::Result<Answer> {
    let mut table = Table::new("Routes by MoE layer", &["#layer", "#routes", "#top eighth of experts", "#unused"]);
    for (layer, counts) in heatmap.counts.iter().enumerate() {
        let mut sorted = counts.clone();
        sorted.sort_unstable_by(|a, b| b.cmp(a));
        let total: u64 = sorted.iter().sum();
        let top: u64 = sorted.iter().take(sorted.len().div_ceil(8)).sum();
        let unused = sorted.iter().filter(|&&count| count == 0).count();
        let share = if total == 0 { 0.0 } else { top as f64 / total as f64 * 100.0 };
        table.row([layer.to_string(), total.to_string(), format!("{share:.1} %"), unused.to_string()]);
    }
    let json = json!({ "path": path, "state": state, "sha256": heatmap.sha256, "tokens": heatmap.tokens, "texts": heatmap.texts, "counts": heatmap.counts });
    let line = format!("{}: {state}, {} tokens of {} texts", path.display(), heatmap.tokens, heatmap.texts.len());
    Ok(Answer::new(&json)?.table(table).line(line))
}
