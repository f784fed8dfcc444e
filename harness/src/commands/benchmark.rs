//! `assay benchmark` and `assay speed-test`

use super::identity;
use crate::config::{ConfigArgs, Device, LoadedConfig};
use crate::corpus::{Corpus, PromptSet, TextSpan, check_disjoint};
use crate::evidence::{RunLog, open_ledger, record_seen};
use crate::exit::Exit;
use crate::output::{Answer, Format, Table};
use crate::repository::Repository;
use crate::runtime::{IdentityInputs, Opened, Runtime, Seen, Watch, sha256};
use crate::speed::{Cap, SpeedPlan, Summary, run, run_http, summarise, summarise_http};
use crate::suite::SpeedSuite;
use anyhow::Context;
use assay_engine::residency::Heatmap;
use assay_engine::synth::Skew;
use assay_engine::synth::routing::{RoutingCheck, THRESHOLDS};
use assay_ledgers::{
    Draft, Hcs, HostShare, Identity, LayerResidency, Measure, RooflineBody, Run, Sha256, SpeedBody, SpeedRow, Verdict,
    VerdictRow,
};
use clap::{Args, FromArgMatches};
use serde_json::json;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, Stdio};

const BENCHMARK_EXAMPLES: &str = "\
Examples:
  assay benchmark tiny-moe
  assay benchmark tiny-moe --vram 24MiB --output json
  assay benchmark tiny-moe --http
  ASSAY_CORPUS_DIR=~/books assay benchmark tiny-moe --prompts six";

const SPEED_TEST_EXAMPLES: &str = "\
Examples:
  assay speed-test
  assay speed-test --output csv";

/// Time prefill and decode of a config on pinned texts
///
/// Prompts of exact token counts are cut from Project Gutenberg books; warm-up text is never timed; every sample is kept. The headline is
/// the median with its 95 % interval. Prompt lengths above the config's cap, or above what calibration allows, give
/// way to that cap. Timing instrumentation is off.
#[derive(Debug, Args)]
#[command(after_help = BENCHMARK_EXAMPLES)]
pub struct Benchmark {
    #[command(flatten)]
    config: ConfigArgs,
    /// Prompt set, instead of the suite's own
    #[arg(long, value_enum, value_name = "SET")]
    prompts: Option<PromptSet>,
    /// Suite file, instead of suites/speed/benchmark.toml, or http.toml with --http
    #[arg(long, value_name = "FILE")]
    suite: Option<PathBuf>,
    /// Also through a server in a process of its own, timed at the client
    #[arg(long)]
    http: bool,
}

/// Time one fixed configuration, for regressions
///
/// The suite and the config are fixed, so that results of different builds compare.
#[derive(Debug, Args)]
#[command(after_help = SPEED_TEST_EXAMPLES)]
pub struct SpeedTest {}

impl Benchmark {
    pub(super) fn run(self, format: Format) -> anyhow::Result<Exit> {
        let repository = Repository::find()?;
        let (suite, suite_sha256) = self.suite(&repository)?;
        let http = self.http.then_some(&self.config);
        measure(self.config.load(&repository)?, http, &suite, suite_sha256, &repository, format)
    }

    /// The command that these words behind `assay benchmark` make.
    pub(super) fn parse(words: impl IntoIterator<Item = OsString>) -> Result<Self, clap::Error> {
        let command = Self::augment_args(clap::Command::new("assay benchmark").no_binary_name(true));
        Self::from_arg_matches(&command.try_get_matches_from(words)?)
    }

    /// What it would run; fails at whatever stops it before there is an engine.
    pub(super) fn identity(&self, repository: &Repository) -> anyhow::Result<Identity> {
        let (suite, suite_sha256) = self.suite(repository)?;
        let opened = Opened::new(self.config.load(repository)?)?;
        opened.check_budget()?;
        identity::of_benchmark(&opened, &suite, suite_sha256, repository)
    }

    fn suite(&self, repository: &Repository) -> anyhow::Result<(SpeedSuite, Sha256)> {
        // What a server adds is a small part of a token: it takes many pairs to see.
        let own = if self.http { "suites/speed/http.toml" } else { "suites/speed/benchmark.toml" };
        let suite = self.suite.clone().unwrap_or_else(|| repository.path(own));
        let (mut suite, suite_sha256) = SpeedSuite::read(&suite)?;
        suite.prompt_set = self.prompts.unwrap_or(suite.prompt_set);
        Ok((suite, suite_sha256))
    }
}

impl SpeedTest {
    pub(super) fn run(self, format: Format) -> anyhow::Result<Exit> {
        let repository = Repository::find()?;
        let path = repository.path("suites/speed/speed-test.toml");
        let (suite, suite_sha256) = SpeedSuite::read(&path)?;
        let config = suite.config.clone().with_context(|| format!("suite {} fixes no config", path.display()))?;
        measure(ConfigArgs::named(config).load(&repository)?, None, &suite, suite_sha256, &repository, format)
    }
}

fn measure(
    loaded: LoadedConfig,
    http: Option<&ConfigArgs>,
    suite: &SpeedSuite,
    suite_sha256: Sha256,
    repository: &Repository,
    format: Format,
) -> anyhow::Result<Exit> {
    let ledger = open_ledger(repository)?;
    // Texts first: they are the likeliest to be missing, and the cheapest to check.
    let corpus = Corpus::load(suite.prompt_set, repository)?;
    let name = loaded.name.clone();
    let config_tokens = loaded.config.benchmark.max_prompt_tokens;
    let timing = Run::timing_off();
    let device = loaded.config.device;
    // In a process of its own and before the engine is there: it takes memory of the card, and gives it back.
    let roofline = if device == Device::Cuda { roofline()? } else { None };
    let mut runtime = Runtime::start(loaded, repository)?;
    let calibrated_tokens = runtime.engine.calibration().map_or(0, |calibration| calibration.max_prompt_tokens);
    let cap = Cap { config_tokens, calibrated_tokens };
    let context = runtime.engine.options().context_tokens;
    let plan = SpeedPlan::new(suite, cap, context, &corpus, &runtime.tokenizer()?)?;
    let heatmap_texts = runtime.heatmap.as_ref().map(heatmap_spans).transpose()?.unwrap_or_default();
    check_disjoint(&plan.timed_spans(), &heatmap_texts)?;
    eprintln!(
        "prompt lengths up to {} tokens: the config's cap is {config_tokens}, calibration allows {calibrated_tokens}",
        cap.tokens()
    );

    let mut log = RunLog::default();
    log.line(&json!({ "config": name, "calibration": runtime.engine.calibration(), "cap": cap }));
    runtime.engine.take_layer_use();
    let mut watch = Watch::start(device);
    let measured = run(&timing, &mut runtime.engine, &plan, &mut watch, &mut log)?;
    let mut summary = summarise(&measured, &mut runtime.engine, suite.repetitions.timed, runtime.startup_s.clone())?;
    summary.body.roofline = roofline;
    let mut notes = Vec::new();
    if let Some(config) = http {
        let tokenizer = runtime.tokenizer()?;
        let measured = run_http(&timing, config, &mut runtime.engine, &tokenizer, &plan, &mut log)?;
        let over_http = summarise_http(&measured)?;
        summary.body.rows.extend(over_http.rows);
        summary.verdicts.extend(over_http.verdicts);
        notes = over_http.lines;
    }
    summary.verdicts.push(disjoint(runtime.heatmap.as_ref()));
    summary
        .verdicts
        .extend(runtime.opened.folder.synthetic.is_some().then(|| routing(&runtime.opened, suite.prompt_set)));
    let experts = runtime.engine.plan().sizes.num_experts as u64;
    summary.verdicts.extend(even_layers(&runtime.opened, &summary.body.layers, experts));
    let identity = runtime.opened.identity(
        repository,
        runtime.heatmap.as_ref(),
        IdentityInputs::speed(suite, suite_sha256, &corpus),
    )?;
    let seen = watch.finish();
    log.line(&json!({ "seen": seen }));
    let draft = Draft::speed(timing, identity.clone(), summary.body.clone());
    let evidence = record_seen(&ledger, draft, summary.verdicts.clone(), &log, seen.observations())?;
    let answer = match format {
        Format::Csv => Answer::new(&())?.table(all_rows(&summary.body)),
        _ => answer(&name, suite, cap, &identity, &summary, &seen, &evidence)?,
    };
    notes.into_iter().fold(answer, Answer::line).print(format)?;
    Ok(Exit::worst(summary.verdicts.iter().map(|row| row.verdict)))
}

/// What the card allows, measured now; none, which the record shows, where the card has no room for it.
fn roofline() -> anyhow::Result<Option<RooflineBody>> {
    let program = std::env::current_exe().context("finding this program")?;
    let mut command = Command::new(program);
    command.args(["roofline", "--no-record", "--output", "json"]).stdin(Stdio::null()).stderr(Stdio::inherit());
    let output = command.output().context("starting assay roofline")?;
    crate::interrupt::check()?;
    if !output.status.success() {
        eprintln!("warning: `assay roofline` ended with {}: this run has no limit beside its figures", output.status);
        return Ok(None);
    }
    let body = serde_json::from_slice(&output.stdout).context("reading what assay roofline answered")?;
    Ok(Some(body))
}

/// The texts that a heatmap was built from.
fn heatmap_spans(heatmap: &Heatmap) -> anyhow::Result<Vec<TextSpan>> {
    let span = |text: &assay_engine::residency::HeatmapText| {
        Ok(TextSpan {
            book: text.name.clone(),
            canonical_sha256: sha256(&text.text_sha256)?,
            start: usize::try_from(text.from_byte)?,
            end: usize::try_from(text.to_byte)?,
        })
    };
    heatmap.texts.iter().map(span).collect()
}

fn disjoint(heatmap: Option<&Heatmap>) -> VerdictRow {
    let reason = match heatmap {
        None => "no heatmap".to_owned(),
        Some(heatmap) => format!("no prompt shares a byte with the heatmap's {} texts", heatmap.texts.len()),
    };
    VerdictRow { row: "prompts apart from heatmap".to_owned(), verdict: Verdict::Pass, reason }
}

/// A speed row on a synthetic model means nothing unless its routing was checked, and holds for what was run.
fn routing(opened: &Opened, prompts: PromptSet) -> VerdictRow {
    let row = |verdict, reason| VerdictRow { row: "synthetic routing".to_owned(), verdict, reason };
    if prompts != PromptSet::Random {
        let reason = format!("prompt set {}: a made-up tokenizer gives text few tokens; use random", prompts.name());
        return row(Verdict::Invalid, reason);
    }
    match RoutingCheck::load(opened.folder.checkpoint.dir(), &opened.folder.sha256()) {
        Ok(check) if check.as_stated == Some(true) => {
            row(Verdict::Pass, format!("{}, stated {}: {}", check.spread, check.stated, check.reason))
        }
        Ok(check) => row(Verdict::Invalid, format!("{}, stated {}: {}", check.spread, check.stated, check.reason)),
        Err(error) => row(Verdict::Invalid, format!("not checked, see `assay synth check`: {error}")),
    }
}

/// Where routing is stated to be even, each layer's hit rate is its resident share at the routes: a cache that found more, or less,
/// than its share would not have met even routes.
fn even_layers(opened: &Opened, layers: &[LayerResidency], experts: u64) -> Option<VerdictRow> {
    let even = opened.folder.synthetic.as_ref().is_some_and(|record| record.skew == Skew::Even);
    let widest = layers.iter().enumerate().filter(|(_, layer)| layer.hits + layer.misses > 0).map(|(index, layer)| {
        let routes = layer.hits + layer.misses;
        let share = layer.resident_sum.map_or(layer.resident as f64, |sum| sum as f64 / routes as f64) / experts as f64;
        (index, layer.hits as f64 / routes as f64, share, routes)
    });
    let widest = widest.max_by(|a, b| (a.1 - a.2).abs().total_cmp(&(b.1 - b.2).abs())).filter(|_| even)?;
    let (layer, rate, share, routes) = widest;
    let tolerance = THRESHOLDS.hit_rate_difference;
    // With too few routes the chance of counting is as wide as the tolerance.
    let chance = THRESHOLDS.standard_errors * (share * (1.0 - share) / routes as f64).sqrt();
    let verdict = match (rate - share).abs() <= tolerance {
        true => Verdict::Pass,
        false if chance > tolerance => Verdict::Incomplete,
        false => Verdict::Fail,
    };
    let reason = format!(
        "furthest apart in layer {layer}: {:.2} % of {routes} routes hit, {:.2} % of its experts were resident at them; allowed {tolerance}",
        rate * 100.0,
        share * 100.0
    );
    Some(VerdictRow { row: "hit rate of each layer".to_owned(), verdict, reason })
}

fn answer(
    name: &str,
    suite: &SpeedSuite,
    cap: Cap,
    identity: &Identity,
    summary: &Summary,
    seen: &Seen,
    evidence: &Sha256,
) -> anyhow::Result<Answer> {
    let body = &summary.body;
    let json = json!({
        "config": name,
        "identity": identity,
        "identity_sha256": identity.hash()?,
        "suite": { "name": suite.name, "version": suite.version, "prompt_set": suite.prompt_set.name() },
        "cap": { "tokens": cap.tokens(), "config_tokens": cap.config_tokens, "calibrated_tokens": cap.calibrated_tokens },
        "rows": body.rows,
        "hcs": body.hcs,
        "low_water_bytes": body.low_water_bytes,
        "modelled_link_s": body.modelled_link_s,
        "cold_path": body.cold_path,
        "host_share": body.host_share,
        "layers": body.layers,
        "driver": body.driver,
        "work": body.work,
        "roofline": body.roofline,
        "seen": seen,
        "startup_s": body.startup_s,
        "verdicts": summary.verdicts,
        "evidence": evidence,
    });
    let mut answer = Answer::new(&json)?.table(rows_table(name, body));
    if let Some(table) = times_table(&body.rows) {
        answer = answer.table(table);
    }
    answer = answer.table(memory_table(&body.low_water_bytes));
    if let Some(hcs) = &body.hcs {
        answer = answer.line(hcs_line(hcs));
    }
    if let Some(path) = &body.cold_path {
        answer = answer.line(format!("cold experts by {path}: measured to be the fastest at startup"));
    }
    if let Some(share) = &body.host_share {
        answer = answer.line(host_line(share));
    }
    if let Some(line) = seen.line() {
        answer = answer.line(line);
    }
    for row in &summary.verdicts {
        answer = answer.line(format!("{}  {}: {}", row.verdict, row.row, row.reason));
    }
    Ok(answer.line(format!("record {}", evidence.short())))
}

fn host_line(share: &HostShare) -> String {
    let HostShare { threads, by_host, token_s, token_without_s, experts, given_up, .. } = share;
    let of: Vec<String> = by_host.iter().skip(1).enumerate().map(|(i, n)| format!("{n}/{}", i + 1)).collect();
    let since = given_up.map_or(String::new(), |given_up| {
        format!(
            "; done without after {} tokens, when its part took {:.2} ms a token and the link would have taken {:.2} for all",
            given_up.tokens,
            given_up.host_s * 1e3,
            given_up.link_s * 1e3
        )
    });
    format!(
        "the host computed {experts} of them by {threads} threads, of a layer's cold experts {}: a token took {:.2} ms at startup, {:.2} without{since}",
        of.join(" "),
        token_s * 1e3,
        token_without_s * 1e3
    )
}

/// Rates of the engine, each beside the share that it is of what the card or the declared link would allow.
fn rows_table(name: &str, body: &SpeedBody) -> Table {
    let headings = ["measure", "#tokens", "#median", "#95 % interval", "#best", "#n", "#hits", "#of limit"];
    let mut table = Table::new(format!("Speed of {name}, tok/s of wall time"), &headings);
    let rates: Vec<&SpeedRow> = body.rows.iter().filter(|row| is_rate(row)).collect();
    let several_depths = rates.iter().filter_map(|row| row.depth).collect::<BTreeSet<u64>>().len() > 1;
    for row in rates {
        let hit_rate = row.hcs.as_ref().and_then(|hcs| hcs.hit_rate);
        let limit = body.limit(row, body.roofline.as_ref());
        table.row([
            row.measure.as_str().to_owned(),
            match several_depths {
                true => row.key().lengths(),
                false => row.tokens.to_string(),
            },
            rate(row.median),
            row.ci95.map_or("–".to_owned(), |[low, high]| format!("{}–{}", rate(low), rate(high))),
            rate(row.best),
            row.samples.len().to_string(),
            hit_rate.map_or("–".to_owned(), |rate| format!("{:.1} %", rate * 100.0)),
            limit.map_or("–".to_owned(), |limit| format!("{:.1} %", row.median / limit * 100.0)),
        ]);
    }
    table
}

/// Times at the client of a server, where it was timed.
fn times_table(rows: &[SpeedRow]) -> Option<Table> {
    let headings = ["measure", "#tokens", "#median", "#95 % interval", "#best", "#n"];
    let mut table = Table::new("Over HTTP, ms at the client", &headings);
    let times: Vec<&SpeedRow> = rows.iter().filter(|row| !is_rate(row)).collect();
    for row in &times {
        let ms = |value: f64| format!("{value:.3}");
        table.row([
            row.measure.as_str().trim_start_matches("http_").replace('_', " "),
            row.tokens.to_string(),
            ms(row.median),
            row.ci95.map_or("–".to_owned(), |[low, high]| format!("{}–{}", ms(low), ms(high))),
            ms(row.best),
            row.samples.len().to_string(),
        ]);
    }
    (!times.is_empty()).then_some(table)
}

/// Every row in full, for a spreadsheet.
fn all_rows(body: &SpeedBody) -> Table {
    let headings = [
        "measure",
        "tokens",
        "depth",
        "unit",
        "median",
        "ci95_low",
        "ci95_high",
        "best",
        "samples",
        "hit_rate",
        "cold_bytes",
        "limit",
    ];
    let mut table = Table::new("speed", &headings);
    let number = |value: Option<f64>| value.map_or(String::new(), |value| value.to_string());
    for row in &body.rows {
        let hcs = row.hcs.as_ref();
        table.row([
            row.measure.as_str().to_owned(),
            row.tokens.to_string(),
            row.depth.map_or(String::new(), |depth| depth.to_string()),
            row.unit.clone(),
            row.median.to_string(),
            number(row.ci95.map(|ci95| ci95[0])),
            number(row.ci95.map(|ci95| ci95[1])),
            row.best.to_string(),
            row.samples.len().to_string(),
            number(hcs.and_then(|hcs| hcs.hit_rate)),
            hcs.map_or(String::new(), |hcs| hcs.cold_bytes.to_string()),
            number(body.limit(row, body.roofline.as_ref())),
        ]);
    }
    table
}

fn is_rate(row: &SpeedRow) -> bool {
    matches!(row.measure, Measure::Prefill | Measure::Decode)
}

/// Four digits are more than a sample carries.
fn rate(tokens_per_s: f64) -> String {
    if tokens_per_s < 1000.0 { format!("{tokens_per_s:.1}") } else { format!("{tokens_per_s:.0}") }
}

fn memory_table(low_water: &std::collections::BTreeMap<String, u64>) -> Table {
    let mut table = Table::new("Least free device memory", &["phase", "#bytes"]);
    for (phase, bytes) in low_water {
        table.row([phase.clone(), bytes.to_string()]);
    }
    table
}

fn hcs_line(hcs: &Hcs) -> String {
    let rate = hcs.hit_rate.map_or("no routes".to_owned(), |rate| format!("{:.1} % hits", rate * 100.0));
    format!(
        "experts resident in decode: {} of {} ({rate}, {} bytes over the link)",
        hcs.resident, hcs.total, hcs.cold_bytes
    )
}
