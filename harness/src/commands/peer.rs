//! `assay peer`

use crate::compare::{Process, Side, disturbed, observations, order};
use crate::config::ConfigArgs;
use crate::evidence::{RunLog, open_ledger, record_seen};
use crate::exit::Exit;
use crate::output::{Answer, Format, Table};
use crate::peer::search::{Found, Room, Watched, search};
use crate::peer::{CardWatch, LlamaBench, Setting, Workload, build};
use crate::repository::Repository;
use crate::runtime::{Opened, Seen, Watch};
use crate::statistics::{Bootstrap, median};
use crate::suite::{SpeedSuite, capped_lengths};
use anyhow::{Context, bail, ensure};
use assay_engine::device::DeviceKind;
use assay_engine::expert_cache::Encoding;
use assay_engine::file;
use assay_engine::gguf::MAGIC;
use assay_engine::memory::MemoryPlan;
use assay_ledgers::{
    ComparedSide, ComparisonBody, ComparisonRow, Draft, EvidenceClass, ExternalBody, ExternalRow, Interval95, Ledger,
    Measure, RowKey, Run, Sha256, Verdict, VerdictRow,
};
use clap::{Args, Subcommand};
use serde_json::json;
use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;

const EXAMPLES: &str = "\
Examples:
  assay peer llama-cpp tiny-moe --suite suites/speed/benchmark.toml
  assay peer llama-cpp qwen3-30b-a3b-synthetic --suite suites/speed/gpu.toml --vram 8GiB
  assay peer llama-cpp tiny-moe --source ~/llama.cpp";

/// Time another program on the same weights, in turns with Assay
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Peer {
    #[command(subcommand)]
    peer: Which,
}

#[derive(Debug, Subcommand)]
enum Which {
    /// llama.cpp, by its llama-bench
    ///
    /// Builds llama-bench, writes the config's weights as GGUF with as many bits a weight, and looks for llama.cpp's best
    /// setting inside the config's memory budget: layers whose experts fit, micro-batch, load mode, threads. Then both
    /// run in turns, a whole process at a time, in the order A B B A. Records: one for each turn, and the comparison.
    #[command(after_help = EXAMPLES)]
    LlamaCpp(LlamaCpp),
}

#[derive(Debug, Args)]
struct LlamaCpp {
    #[command(flatten)]
    config: ConfigArgs,
    /// Suite file, whose lengths both sides run
    #[arg(long, value_name = "FILE")]
    suite: Option<PathBuf>,
    /// A llama.cpp source tree, or an unpacked package that has one [default: llama-cpp-python's, by pip]
    #[arg(long, value_name = "DIR")]
    source: Option<PathBuf>,
    /// Where it is built
    #[arg(long, value_name = "DIR")]
    build: Option<PathBuf>,
    /// A llama-bench that is built already, instead of building one
    #[arg(long, value_name = "FILE", conflicts_with_all = ["source", "build"])]
    llama_bench: Option<PathBuf>,
    /// The weights as GGUF [default: written into cache/ where they are not there yet]
    #[arg(long, value_name = "FILE")]
    gguf: Option<PathBuf>,
    /// Rounds of two turns each; every second one starts with the other side
    #[arg(long, default_value_t = 2, value_name = "N")]
    rounds: usize,
}

impl Peer {
    pub(super) fn run(self, format: Format) -> anyhow::Result<Exit> {
        let Which::LlamaCpp(command) = self.peer;
        command.run(format)
    }
}

/// A workload with the setting that was found for it.
struct Chosen {
    workload: Workload,
    found: Found,
}

/// One turn of the peer.
struct PeerTurn {
    samples: Vec<Vec<f64>>,
    record: Sha256,
    /// Most that the card held, bytes.
    peak_bytes: Option<u64>,
    /// What else happened meanwhile.
    seen: Seen,
}

impl LlamaCpp {
    fn run(self, format: Format) -> anyhow::Result<Exit> {
        ensure!(self.rounds > 0, "--rounds is 0, expected 1 or more");
        self.check_named()?;
        let repository = Repository::find()?;
        let suite_path = self.suite.clone().unwrap_or_else(|| repository.path("suites/speed/benchmark.toml"));
        let (suite, _) = SpeedSuite::read(&suite_path)?;
        let ledger = open_ledger(&repository)?;
        let opened = Opened::new(self.config.load(&repository)?)?;
        opened.check_budget()?;
        let on_card = opened.options.device == DeviceKind::Cuda;
        let bench =
            LlamaBench { program: self.program(&repository, on_card)?, model: self.gguf(&opened, &repository)? };
        let watch = on_card.then(CardWatch::start).transpose()?;
        let room = on_card.then(|| room(&opened)).transpose()?;

        let workloads = workloads(&suite, opened.loaded.config.benchmark.max_prompt_tokens)?;
        let mut log = RunLog::default();
        let chosen = choose(&bench, watch.as_ref(), room, workloads, &mut log)?;
        let timed = u32::try_from(suite.repetitions.timed)?;
        let side = self.own_side(&suite_path)?;
        let (mut peers, mut own) = (Vec::new(), Vec::new());
        for (turn, is_own) in order(self.rounds).enumerate() {
            crate::interrupt::check()?;
            if is_own {
                eprintln!("turn {}: assay", turn + 1);
                own.push(side.run(&[])?);
            } else {
                eprintln!("turn {}: llama.cpp", turn + 1);
                peers.push(peer_turn(&bench, self.origin(), &chosen, watch.as_ref(), timed, &opened, &ledger)?);
            }
        }
        let bootstrap = Bootstrap::default();
        let rows = rows(&chosen, &peers, &own, bootstrap)?;
        let verdicts = vec![same_identity(&own)?, inside(&peers, room)];
        let body = body(&bench, &side, &peers, &own, rows, self.rounds, bootstrap)?;
        let turns: Vec<&Seen> =
            peers.iter().map(|turn| &turn.seen).chain(own.iter().map(|process| &process.seen)).collect();
        let seen = observations(&turns);
        log.line(&json!({ "settings": chosen.iter().map(|chosen| &chosen.found.best).collect::<Vec<_>>() }));
        let identity = own.first().map(|process| process.identity.clone()).context("no turn of Assay")?;
        let draft = Draft::comparison(Run::timing_off(), identity, body.clone());
        let evidence = record_seen(&ledger, draft, verdicts.clone(), &log, seen.clone())?;
        let answer = answer(&opened.loaded.name, &chosen, &body, &verdicts, &evidence)?;
        disturbed(&seen).into_iter().fold(answer, Answer::line).print(format)?;
        Ok(Exit::worst(verdicts.iter().map(|row| row.verdict)))
    }

    /// What was named by hand, before anything is read or built for it.
    fn check_named(&self) -> anyhow::Result<()> {
        if let Some(path) = &self.gguf {
            let mut start = Vec::new();
            let whole = file::open(path).context("--gguf")?;
            whole.take(MAGIC.len() as u64).read_to_end(&mut start).with_context(|| path.display().to_string())?;
            ensure!(
                start == MAGIC,
                "--gguf {}: begins with \"{}\", expected \"{}\", as a GGUF file does",
                path.display(),
                start.escape_ascii(),
                MAGIC.escape_ascii()
            );
        }
        if let Some(program) = &self.llama_bench {
            ensure!(program.is_file(), "--llama-bench {}: there is no such file", program.display());
        }
        self.source.as_deref().map(build::find_source).transpose().context("--source").map(drop)
    }

    /// Assay's turns: a process of its own each, as the peer has.
    fn own_side(&self, suite: &Path) -> anyhow::Result<Side> {
        let binary = std::env::current_exe().context("finding this program")?;
        let mut arguments = self.config.to_args();
        arguments.extend(["--suite".into(), suite.as_os_str().to_owned()]);
        Ok(Side { name: "assay".to_owned(), binary, arguments })
    }

    /// Which release its source is of, where that is known.
    fn origin(&self) -> &'static str {
        if self.source.is_none() && self.llama_bench.is_none() { build::RELEASE } else { "" }
    }

    fn program(&self, repository: &Repository, cuda: bool) -> anyhow::Result<PathBuf> {
        if let Some(program) = &self.llama_bench {
            return Ok(program.clone());
        }
        let place = repository.path("target/peers");
        let source = match &self.source {
            Some(dir) => build::find_source(dir)?,
            None => build::fetch_source(&place)?,
        };
        let dir = self.build.clone().unwrap_or_else(|| place.join(if cuda { "llama-cpp-cuda" } else { "llama-cpp" }));
        eprintln!("building llama-bench in {} (minutes, once)", repository.display(&dir).display());
        let built = build::build(&source, &repository.path("harness/peers/llama-cpp"), &dir, cuda)?;
        Ok(built.llama_bench)
    }

    /// The weights for the peer, in as many bits as Assay has them in.
    fn gguf(&self, opened: &Opened, repository: &Repository) -> anyhow::Result<PathBuf> {
        if let Some(path) = &self.gguf {
            return Ok(path.clone());
        }
        let precision = &opened.options.precision;
        let name = |encoding: Encoding| match encoding {
            Encoding::Bf16 => Ok("bf16"),
            Encoding::Int4(_) => Ok("q4-0"),
            Encoding::Int8 => bail!("no file for the peer is written with weights in int8: name one with --gguf"),
        };
        let (matrices, experts) = (name(precision.attention)?, name(precision.experts)?);
        let path = repository.path(format!("cache/{}.{matrices}.experts-{experts}.gguf", opened.model_name()));
        if !path.exists() {
            let mut export = Command::new(std::env::current_exe().context("finding this program")?);
            export.args(["export", "gguf"]).arg(opened.folder.checkpoint.dir()).arg(&path);
            export.args(["--dtype", matrices, "--expert-dtype", experts]);
            export.args(["--experts", precision.experts.name()]);
            let status = export.stdout(std::process::Stdio::null()).status().context("starting assay export")?;
            ensure!(status.success(), "`assay export gguf` ended with {status}");
        }
        Ok(path)
    }
}

/// What the peer may take, and what a layer's experts are in its file.
fn room(opened: &Opened) -> anyhow::Result<Room> {
    let spec = &opened.folder.spec;
    let plan = MemoryPlan::new(spec, &opened.options)?;
    // A block of 32 weights in Q4_0 is 18 bytes, in Q8_0 34.
    let bytes = |weights: usize| match opened.options.precision.experts {
        Encoding::Bf16 => weights * 2,
        Encoding::Int4(_) => weights / 32 * 18,
        Encoding::Int8 => weights / 32 * 34,
    };
    let expert = plan.bank.map_or(0, |bank| bytes(3 * bank.expert.hidden_size * bank.expert.moe_intermediate_size));
    Ok(Room {
        budget_bytes: opened.loaded.config.memory.vram.0,
        layers: u32::try_from(spec.layers.len())?,
        layer_bytes: (expert * plan.sizes.num_experts) as u64,
    })
}

fn workloads(suite: &SpeedSuite, most: usize) -> anyhow::Result<Vec<Workload>> {
    let tokens = |tokens: usize| u32::try_from(tokens);
    let prefill = suite.prefill.tokens.iter().filter(|&&length| length <= most);
    let prefill = prefill.map(|&length| Ok(Workload::Prefill { tokens: tokens(length)? }));
    let depths = capped_lengths(&suite.decode.prompt_tokens, most);
    let decode = depths.iter().flat_map(|&depth| suite.decode.tokens.iter().map(move |&length| (length, depth)));
    let decode = decode.map(|(length, depth)| Ok(Workload::Decode { tokens: tokens(length)?, depth: tokens(depth)? }));
    prefill.chain(decode).collect()
}

fn choose(
    bench: &LlamaBench,
    watch: Option<&CardWatch>,
    room: Option<Room>,
    workloads: Vec<Workload>,
    log: &mut RunLog,
) -> anyhow::Result<Vec<Chosen>> {
    let cores = u32::try_from(std::thread::available_parallelism().map_or(1, usize::from))?;
    let mut runner = Watched { bench, watch, raw: String::new() };
    let mut chosen = Vec::with_capacity(workloads.len());
    for workload in workloads {
        crate::interrupt::check()?;
        let found = search(&mut runner, room, workload, cores)?;
        eprintln!("llama.cpp, {workload:?}: {:?} gives {:.1} tok/s", found.best.setting, found.best.tokens_per_s);
        log.line(&json!({ "workload": workload, "search": found, "raw": std::mem::take(&mut runner.raw) }));
        chosen.push(Chosen { workload, found });
    }
    Ok(chosen)
}

/// Every workload once, in its setting; kept as a record of its own.
fn peer_turn(
    bench: &LlamaBench,
    origin: &str,
    chosen: &[Chosen],
    watch: Option<&CardWatch>,
    timed: u32,
    opened: &Opened,
    ledger: &Ledger,
) -> anyhow::Result<PeerTurn> {
    let (mut log, mut rows, mut samples, mut peak_bytes) = (RunLog::default(), Vec::new(), Vec::new(), None);
    let mut setting = BTreeMap::from([
        ("model".to_owned(), opened.model_name()),
        ("budget_bytes".to_owned(), opened.loaded.config.memory.vram.0.to_string()),
    ]);
    let (mut subject, mut commands) = (String::new(), Vec::new());
    let mut seen = Watch::start(opened.loaded.config.device);
    for Chosen { workload, found } in chosen {
        let best: &Setting = &found.best.setting;
        if let Some(watch) = watch {
            watch.take_peak();
        }
        let finished = bench.run(best, &[best.n_ubatch], &[best.threads], *workload, timed, watch)?;
        seen.look();
        log.line(&json!({ "command": finished.command, "raw": finished.raw }));
        let row = &finished.rows[0];
        subject = format!("llama.cpp {}{origin}", row.build_commit);
        setting.insert("weights".to_owned(), format!("{}, {} bytes", row.model_type, row.model_size));
        let name = key(*workload).to_string();
        setting.insert(format!("setting of {name}"), serde_json::to_string(best)?);
        peak_bytes = peak_bytes.max(row.peak_bytes);
        let estimate = median(&row.samples_ts)?;
        rows.push(ExternalRow {
            measure: name,
            tokens: Some(workload.tokens().into()),
            unit: "tok/s".to_owned(),
            value: estimate.value,
            ci95: estimate.ci95.map(|interval| [interval.low, interval.high]),
            samples: row.samples_ts.clone(),
        });
        samples.push(row.samples_ts.clone());
        commands.push(finished.command);
    }
    let seen = seen.finish();
    let body = ExternalBody { subject, source: commands.join("\n"), setting, rows };
    let draft = Draft::without_identity(EvidenceClass::ControlledDevelopment, body);
    let record = record_seen(ledger, draft, Vec::new(), &log, seen.observations())?;
    Ok(PeerTurn { samples, record, peak_bytes, seen })
}

/// Assay's row for the same.
fn key(workload: Workload) -> RowKey {
    let (measure, depth) = match workload {
        Workload::Prefill { .. } => (Measure::Prefill, None),
        Workload::Decode { depth, .. } => (Measure::Decode, Some(depth.into())),
    };
    RowKey { measure, tokens: workload.tokens().into(), depth }
}

/// As in `assay compare`, but of repetitions, since turns are few: they are paired in the order they ran, the nth of a round's turn
/// with the nth of the other's.
fn rows(
    chosen: &[Chosen],
    peers: &[PeerTurn],
    own: &[Process],
    bootstrap: Bootstrap,
) -> anyhow::Result<Vec<ComparisonRow>> {
    let row = |(index, chosen): (usize, &Chosen)| {
        let key = key(chosen.workload);
        let RowKey { measure, tokens, depth } = key;
        let a: Vec<f64> = peers.iter().flat_map(|turn| turn.samples[index].iter().copied()).collect();
        let found = own.iter().map(|process| {
            let row = process.rows.iter().find(|row| row.key().is(&key));
            row.map(|row| row.samples.clone())
        });
        // A length that calibration did not allow gave way to a shorter one.
        let Some(b) = found.collect::<Option<Vec<_>>>() else { return Ok(None) };
        let b = b.concat();
        let ratio = bootstrap.paired_ratio(&b, &a)?;
        let ratio = Interval95 { value: ratio.value, ci95: ratio.ci95.map(|interval| [interval.low, interval.high]) };
        Ok(Some(ComparisonRow { measure, tokens, depth, unit: "tok/s".to_owned(), a, b, ratio }))
    };
    chosen.iter().enumerate().map(row).filter_map(Result::transpose).collect()
}

fn same_identity(own: &[Process]) -> anyhow::Result<VerdictRow> {
    let hashes = own.iter().map(|process| Ok(process.identity.hash()?)).collect::<anyhow::Result<Vec<Sha256>>>()?;
    let same = hashes.windows(2).all(|pair| pair[0] == pair[1]);
    let verdict = if same { Verdict::Pass } else { Verdict::Invalid };
    let reason =
        format!("{} turns of Assay, {}", own.len(), if same { "one identity" } else { "of several identities" });
    Ok(VerdictRow { row: "one identity".to_owned(), verdict, reason })
}

fn inside(peers: &[PeerTurn], room: Option<Room>) -> VerdictRow {
    let peak = peers.iter().filter_map(|turn| turn.peak_bytes).max();
    let (verdict, reason) = match (room, peak) {
        (Some(room), Some(peak)) if peak <= room.budget_bytes => {
            (Verdict::Pass, format!("the peer's peak is {peak} bytes, the budget {}", room.budget_bytes))
        }
        (Some(room), peak) => {
            (Verdict::Fail, format!("the peer's peak is {peak:?} bytes, the budget {}", room.budget_bytes))
        }
        (None, _) => (Verdict::Pass, "nothing runs on a card; the peer's memory is not limited".to_owned()),
    };
    VerdictRow { row: "the peer inside the budget".to_owned(), verdict, reason }
}

fn body(
    bench: &LlamaBench,
    side: &Side,
    peers: &[PeerTurn],
    own: &[Process],
    rows: Vec<ComparisonRow>,
    rounds: usize,
    bootstrap: Bootstrap,
) -> anyhow::Result<ComparisonBody> {
    let a = ComparedSide {
        name: "llama.cpp".to_owned(),
        identity: None,
        binary: Sha256::of_file(&bench.program)?,
        records: peers.iter().map(|turn| turn.record).collect(),
    };
    let b = ComparedSide {
        name: side.name.clone(),
        identity: own.first().map(|process| process.identity.hash()).transpose()?,
        binary: Sha256::of_file(&side.binary)?,
        records: own.iter().map(|process| process.record).collect(),
    };
    let order = order(rounds).map(|is_own| if is_own { 'B' } else { 'A' }).collect();
    let (resamples, seed) = (u64::from(bootstrap.resamples), bootstrap.seed.to_string());
    Ok(ComparisonBody { a, b, differences: Vec::new(), order, rows, resamples, seed })
}

fn answer(
    name: &str,
    chosen: &[Chosen],
    body: &ComparisonBody,
    verdicts: &[VerdictRow],
    evidence: &Sha256,
) -> anyhow::Result<Answer> {
    let settings: Vec<_> =
        chosen.iter().map(|chosen| json!({ "workload": chosen.workload, "best": chosen.found.best })).collect();
    let json =
        json!({ "config": name, "settings": settings, "comparison": body, "verdicts": verdicts, "evidence": evidence });
    let headings = ["measure", "#tokens", "#llama.cpp", "#assay", "#ratio", "#95 % interval", "#n"];
    let mut table = Table::new(format!("{name} and llama.cpp, tok/s, medians"), &headings);
    for row in &body.rows {
        let interval = row.ratio.ci95.map_or("–".to_owned(), |[low, high]| format!("{low:.2}–{high:.2}"));
        table.row([
            row.measure.as_str().to_owned(),
            row.key().lengths(),
            format!("{:.1}", median(&row.a)?.value),
            format!("{:.1}", median(&row.b)?.value),
            format!("{:.2}", row.ratio.value),
            interval,
            row.a.len().to_string(),
        ]);
    }
    let mut answer = Answer::new(&json)?.table(table);
    for Chosen { workload, found } in chosen {
        let Setting { n_cpu_moe, n_ubatch, load_mode, threads, .. } = &found.best.setting;
        answer = answer.line(format!(
            "llama.cpp, {}: -ncmoe {n_cpu_moe} -ub {n_ubatch} -lm {load_mode} -t {threads}, best of {}",
            key(*workload),
            found.trials.len()
        ));
    }
    for row in verdicts {
        answer = answer.line(format!("{}  {}: {}", row.verdict, row.row, row.reason));
    }
    Ok(answer.line(format!("record {}", evidence.short())))
}
