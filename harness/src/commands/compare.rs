//! `assay compare`.

use super::benchmark::Benchmark;
use crate::compare::{
    Gate, Noise, Process, Series, Side, baseline_rows, disturbed, noise, observations, order, rows, run,
};
use crate::corpus::PromptSet;
use crate::evidence::{RunLog, open_ledger, record_seen};
use crate::exit::{Exit, InvalidEvidence};
use crate::ledger_place::{known_records, places};
use crate::output::{Answer, Format, Table};
use crate::repository::Repository;
use crate::statistics::{Bootstrap, MIN_SAMPLES, median};
use anyhow::{Context, ensure};
use assay_ledgers::{
    Body, ComparedSide, ComparisonBody, ComparisonRow, Draft, Error, EvidenceClass, FieldDifference, Identity, Ledger,
    Observation, Run, Sha256, SpeedRow, VerdictRow, check_counts, diff,
};
use clap::Args;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  assay compare tiny-moe                          the noise of this machine
  assay compare tiny-moe 'tiny-moe --policy lru'
  assay compare tiny-moe --binary-a old/assay --binary-b new/assay --gate
  assay compare tiny-moe --baseline 3f9a1c --gate --margin 3";

/// Run two configurations, or two builds, in turns and compare their speed.
///
/// Whole processes run A B, B A, A B, … so that what drifts touches both
/// alike. The answer is the median of the ratios of B to A, pair by pair, with
/// its bootstrap interval at 95 %. Every process leaves its own speed record,
/// the comparison names them. Without B, A runs against itself: that is the
/// noise of this machine, and is shown beside later comparisons.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Compare {
    /// Config, with flags behind it in one argument
    #[arg(value_name = "A")]
    a: String,
    /// The other; A again where it is left out
    #[arg(value_name = "B", conflicts_with = "baseline")]
    b: Option<String>,
    /// Executable for A, instead of this one
    #[arg(long, value_name = "FILE", conflicts_with = "baseline")]
    binary_a: Option<PathBuf>,
    /// Executable for B, instead of this one
    #[arg(long, value_name = "FILE", conflicts_with = "baseline")]
    binary_b: Option<PathBuf>,
    /// Compare A, as it runs now, with a speed record of the local or tracked ledger
    #[arg(long, value_name = "HASH")]
    baseline: Option<String>,
    /// Fields of the identity that may differ [default with --baseline: binary, source]
    #[arg(long, value_name = "FIELD", value_delimiter = ',')]
    comparing: Vec<String>,
    /// Judge: is B slower by more than the margin?
    ///
    /// FAIL needs the whole interval beyond the margin, twice: a series that
    /// finds it is run again. INCOMPLETE where an interval is too wide.
    #[arg(long)]
    gate: bool,
    /// What the gate lets pass, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 2.0, value_parser = percent)]
    margin: f64,
    /// Processes of each side
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pairs: u16,
    /// Suite file, instead of suites/speed/compare.toml
    #[arg(long, value_name = "FILE")]
    suite: Option<PathBuf>,
    /// Prompt set, instead of the suite's own
    #[arg(long, value_enum, value_name = "SET")]
    prompts: Option<PromptSet>,
}

/// What may differ from a baseline unless the command says otherwise.
const BUILD: &[&str] = &["binary", "source"];

fn percent(text: &str) -> Result<f64, String> {
    let percent: f64 = text.parse().map_err(|error| format!("{error}"))?;
    if (0.0..100.0).contains(&percent) { Ok(percent) } else { Err("expected 0 up to less than 100".to_owned()) }
}

/// An earlier record to compare with.
struct Baseline {
    record: Sha256,
    identity: Identity,
    rows: Vec<SpeedRow>,
}

/// A series with what came of it.
struct Judged {
    body: ComparisonBody,
    identity: Identity,
    observations: BTreeMap<String, Observation>,
    log: RunLog,
}

impl Compare {
    pub(super) fn run(self, format: Format) -> anyhow::Result<Exit> {
        let repository = Repository::find()?;
        let own = std::env::current_exe().context("asking for the running executable")?;
        let baseline = self.baseline.as_deref().map(|hash| find_baseline(hash, &repository)).transpose()?;
        let ledger = open_ledger(&repository)?;
        let a = Side::new(&self.a, self.binary_a.clone().unwrap_or_else(|| own.clone()));
        let b = Side::new(self.b.as_deref().unwrap_or(&self.a), self.binary_b.clone().unwrap_or(own));
        if usize::from(self.pairs) < MIN_SAMPLES {
            eprintln!("warning: fewer than {MIN_SAMPLES} processes of a side carry no interval");
        }
        let more = self.more(baseline.as_ref(), &repository)?;
        self.check_sides(&a, &b, baseline.as_ref(), &more, &repository)?;
        let series = |log| self.series(&a, &b, baseline.as_ref(), &more, log);
        let first = series(RunLog::default())?;
        let gate = self.gate.then_some(Gate { margin: self.margin / 100.0 });
        let mut evidence = Vec::new();
        let mut rerun = None;
        if gate.is_some_and(|gate| gate.needs_rerun(&first.body.rows)) {
            eprintln!("slower: running the whole series again, to see whether it stays so");
            let again = series(RunLog::default())?;
            rerun = Some(again.body.rows.clone());
            evidence.push(again.keep(&ledger, Vec::new())?);
        }
        let verdicts = gate.map_or_else(Vec::new, |gate| gate.verdicts(&first.body.rows, rerun.as_deref()));
        let known = known_records(&repository)?;
        let noises: Vec<Option<Noise>> =
            first.body.rows.iter().map(|row| noise(&known, &first.identity.device, row)).collect();
        let answer = answer(&first, &noises, &verdicts)?;
        evidence.push(first.keep(&ledger, verdicts.clone())?);
        let names = evidence.iter().map(Sha256::short).collect::<Vec<_>>().join(", ");
        answer.with("evidence", &evidence)?.line(format!("record {names}")).print(format)?;
        Ok(if gate.is_some() { Exit::worst(verdicts.iter().map(|row| row.verdict)) } else { Exit::DONE })
    }

    /// Further arguments of every process: suite and prompts, those of the baseline where there is one.
    fn more(&self, baseline: Option<&Baseline>, repository: &Repository) -> anyhow::Result<Vec<String>> {
        let of_baseline = baseline.and_then(|baseline| baseline.identity.suite.as_ref());
        let name = of_baseline.map_or("compare", |suite| suite.name.as_str());
        let suite = self.suite.clone().unwrap_or_else(|| repository.path(format!("suites/speed/{name}.toml")));
        ensure!(suite.is_file(), "{} is no file: name the suite with --suite", suite.display());
        let mut more = vec!["--suite".to_owned(), suite.display().to_string()];
        let prompts = self.prompts.map(|set| set.name().to_owned());
        let prompts = prompts.or_else(|| baseline.map(|baseline| baseline.identity.prompts.set.clone()));
        more.extend(prompts.into_iter().flat_map(|set| ["--prompts".to_owned(), set]));
        Ok(more)
    }

    /// Finds what would stop a process of either side, or make the two no comparison, before the first one is timed.
    fn check_sides(
        &self,
        a: &Side,
        b: &Side,
        baseline: Option<&Baseline>,
        more: &[String],
        repository: &Repository,
    ) -> anyhow::Result<()> {
        let of = |side: &Side, binary: &Option<PathBuf>, letter: char| {
            // What another build makes of a config and of flags, it alone knows.
            if binary.is_some() {
                return side.check_binary().map(|()| None);
            }
            let words = side.arguments.iter().cloned().chain(more.iter().map(OsString::from));
            let identity = Benchmark::parse(words).map_err(Into::into).and_then(|side| side.identity(repository));
            identity.map(Some).with_context(|| format!("side {letter}, {:?}", side.name))
        };
        let (a, b) = (of(a, &self.binary_a, 'A')?, of(b, &self.binary_b, 'B')?);
        match (baseline, a, b) {
            (Some(baseline), Some(a), _) => self.check(&baseline.identity, &a, BUILD).map(drop),
            (None, Some(a), Some(b)) => self.check(&a, &b, &[]).map(drop),
            _ => Ok(()),
        }
    }

    fn series(
        &self,
        a: &Side,
        b: &Side,
        baseline: Option<&Baseline>,
        more: &[String],
        mut log: RunLog,
    ) -> anyhow::Result<Judged> {
        let pairs = usize::from(self.pairs);
        let bootstrap = Bootstrap::default();
        let finished = match baseline {
            None => {
                let check = |series: &Series| self.check(&series.a[0].identity, &series.b[0].identity, &[]);
                let series = run(a, Some(b), pairs, more, &mut log, |series| check(series).map(drop))?;
                let differences = check(&series)?;
                let rows = rows(&series.a, &series.b, bootstrap)?;
                let order: String = order(pairs).map(|is_b| if is_b { 'B' } else { 'A' }).collect();
                let body = |a, b| body(a, b, &differences, order, rows, bootstrap);
                let processes: Vec<&Process> = series.a.iter().chain(&series.b).collect();
                (body(side(a, &series.a), side(b, &series.b)), series.b[0].identity.clone(), seen(&processes))
            }
            Some(baseline) => {
                let check = |series: &Series| self.check(&baseline.identity, &series.a[0].identity, BUILD);
                let series = run(a, None, pairs, more, &mut log, |series| check(series).map(drop))?;
                let differences = check(&series)?;
                let rows = baseline_rows(&baseline.rows, &series.a, bootstrap)?;
                let earlier = ComparedSide {
                    name: format!("record {}", baseline.record.short()),
                    identity: Some(baseline.identity.hash()?),
                    binary: baseline.identity.binary,
                    records: vec![baseline.record],
                };
                let processes: Vec<&Process> = series.a.iter().collect();
                let order = "baseline".to_owned();
                let body = body(earlier, side(a, &series.a), &differences, order, rows, bootstrap);
                (body, series.a[0].identity.clone(), seen(&processes))
            }
        };
        let (body, identity, observations) = finished;
        Ok(Judged { body, identity, observations, log })
    }

    /// The fields in which two identities differ; refused where one of them is not what is compared.
    fn check(&self, a: &Identity, b: &Identity, default: &[&str]) -> anyhow::Result<Vec<FieldDifference>> {
        let differences = diff(a, b)?;
        let mut compared: Vec<&str> = self.comparing.iter().map(String::as_str).collect();
        if compared.is_empty() {
            compared = default.to_vec();
        }
        if compared.is_empty() {
            return Ok(differences);
        }
        let belongs = |path: &str, field: &str| {
            path.strip_prefix(field).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        };
        let strange: Vec<String> = differences
            .iter()
            .filter(|field| !compared.iter().any(|compared| belongs(&field.path, compared)))
            .map(|field| field.path.clone())
            .collect();
        if strange.is_empty() {
            return Ok(differences);
        }
        let (strange, compared) = (strange.join(", "), compared.join(", "));
        Err(InvalidEvidence(format!("the identities differ in {strange}, and only {compared} may")).into())
    }
}

impl Judged {
    fn keep(self, ledger: &Ledger, verdicts: Vec<VerdictRow>) -> anyhow::Result<Sha256> {
        // The engines ran in processes of their own, each of which kept the same promise.
        let draft =
            Draft::comparison(Run::timing_off(), self.identity, self.body).class(EvidenceClass::ControlledDevelopment);
        record_seen(ledger, draft, verdicts, &self.log, self.observations)
    }
}

fn body(
    a: ComparedSide,
    b: ComparedSide,
    differences: &[FieldDifference],
    order: String,
    rows: Vec<ComparisonRow>,
    bootstrap: Bootstrap,
) -> ComparisonBody {
    ComparisonBody {
        a,
        b,
        differences: differences.iter().map(|field| field.path.clone()).collect(),
        order,
        rows,
        resamples: u64::from(bootstrap.resamples),
        seed: bootstrap.seed.to_string(),
    }
}

fn side(side: &Side, processes: &[Process]) -> ComparedSide {
    let first = processes.first();
    ComparedSide {
        name: side.name.clone(),
        identity: first.and_then(|process| process.identity.hash().ok()),
        binary: first.map_or_else(Sha256::default, |process| process.identity.binary),
        records: processes.iter().map(|process| process.record).collect(),
    }
}

/// What was seen beside the processes, and how many were not all PASS.
fn seen(processes: &[&Process]) -> BTreeMap<String, Observation> {
    let mut seen = observations(&processes.iter().map(|process| &process.seen).collect::<Vec<_>>());
    let not_passed = processes.iter().filter(|process| process.exit_code != 0).count();
    seen.insert("processes_not_passed".to_owned(), Observation::Number(not_passed as f64));
    seen
}

/// A speed record that counts.
fn find_baseline(hash: &str, repository: &Repository) -> anyhow::Result<Baseline> {
    for folder in places(repository) {
        let record = match Ledger::find(&folder, hash) {
            Ok(record) => record,
            Err(Error::NoSuchRecord { .. }) => continue,
            Err(error) => return Err(error.into()),
        };
        let found = record.original_hash();
        check_counts(found, &known_records(repository)?)?;
        return match (record.body, record.identity) {
            (Body::Speed(body), Some(identity)) => Ok(Baseline { record: found, identity, rows: body.rows }),
            (body, _) => anyhow::bail!("record {} is of kind {}, expected speed", found.short(), body.kind()),
        };
    }
    anyhow::bail!("no record of the local or the tracked ledger has a hash that starts with {hash:?}")
}

fn answer(judged: &Judged, noises: &[Option<Noise>], verdicts: &[VerdictRow]) -> anyhow::Result<Answer> {
    let body = &judged.body;
    let noise_json: Vec<_> = noises
        .iter()
        .map(|noise| noise.map(|noise| serde_json::json!({ "half_width": noise.half_width, "record": noise.record })))
        .collect();
    let json = serde_json::json!({
        "a": body.a, "b": body.b, "differences": body.differences, "order": body.order, "rows": body.rows,
        "resamples": body.resamples, "seed": body.seed, "noise": noise_json, "observations": judged.observations,
        "verdicts": verdicts,
    });
    let headings = ["measure", "#tokens", "#A", "#B", "#B to A", "#95 % interval", "#noise"];
    let mut table = Table::new("Median of each process, tok/s", &headings);
    for (row, noise) in body.rows.iter().zip(noises) {
        table.row([
            row.measure.as_str().to_owned(),
            row.key().lengths(),
            format!("{:.1}", median(&row.a)?.value),
            format!("{:.1}", median(&row.b)?.value),
            format!("{:.4}", row.ratio.value),
            row.ratio.ci95.map_or("–".to_owned(), |[low, high]| format!("{low:.4}–{high:.4}")),
            noise.map_or("–".to_owned(), |noise| format!("±{:.1} %", noise.half_width * 100.0)),
        ]);
    }
    let mut answer = Answer::new(&json)?
        .line(format!("A  {} ({} processes)", body.a.name, body.a.records.len()))
        .line(format!("B  {} ({} processes)", body.b.name, body.b.records.len()))
        .table(table);
    answer = answer.line(match body.differences.is_empty() {
        true => "The identities are the same: the intervals are the noise of this machine.".to_owned(),
        false => format!("The identities differ in {}.", body.differences.join(", ")),
    });
    if let Some(line) = disturbed(&judged.observations) {
        answer = answer.line(line);
    }
    for row in verdicts {
        answer = answer.line(format!("{}  {}: {}", row.verdict, row.row, row.reason));
    }
    Ok(answer)
}
