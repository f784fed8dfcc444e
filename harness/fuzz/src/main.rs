//! The long run over one parser.

use std::fs::OpenOptions;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use assay_fuzz::allocate::Counting;
use assay_fuzz::run::{Fuzzer, catch_panics, corpus, name, processor_time, root};
use assay_fuzz::targets::TARGETS;
use clap::Parser;
use serde::Serialize;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Inputs that are kept of one parser, and the longest of them, in bytes.
const KEPT: usize = 40;
const KEPT_BYTES: usize = 4096;

/// Change valid files of one kind and read them, for a given processor time
#[derive(Debug, Parser)]
struct Arguments {
    /// Which reader
    parser: String,
    /// Processor time
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Decides every choice
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Folder for findings and for inputs with distinct answers, instead of fixtures/fuzz/<parser>
    #[arg(long)]
    corpus: Option<PathBuf>,
    /// Add a line about this run to fixtures/fuzz/runs.csv, and keep inputs with distinct answers
    #[arg(long)]
    record: bool,
}

/// A line of `runs.csv`.
#[derive(Serialize)]
struct Run<'a> {
    parser: &'a str,
    seed: u64,
    cpu_seconds: u64,
    executions: u64,
    accepted: u64,
    distinct_answers: usize,
    peak_allocation_bytes: usize,
    findings: usize,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// The number of findings.
fn run(arguments: &Arguments) -> anyhow::Result<usize> {
    let Some(target) = TARGETS.iter().find(|target| target.name == arguments.parser) else {
        let known: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
        bail!("no parser is called {:?}: there are {}", arguments.parser, known.join(", "));
    };
    let folder = arguments.corpus.clone().unwrap_or_else(|| corpus(target.name));
    std::fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
    catch_panics();
    let mut fuzzer = Fuzzer::new(target, arguments.seed)?;
    for entry in std::fs::read_dir(&folder)? {
        fuzzer.read(std::fs::read(entry?.path())?);
    }
    let (start, budget) = (processor_time(), Duration::from_secs(arguments.seconds));
    let mut known = 0;
    while processor_time().saturating_sub(start) < budget {
        (0..64).for_each(|_| fuzzer.step());
        for finding in fuzzer.report.findings.values().skip(known) {
            println!("{}: {} ({} bytes)", target.name, finding.what, finding.input.len());
        }
        known = fuzzer.report.findings.len();
    }
    for finding in fuzzer.report.findings.values() {
        let path = folder.join(format!("found-{}", name(finding.what.as_bytes())));
        std::fs::write(&path, &finding.input).with_context(|| format!("writing {}", path.display()))?;
        println!("{}: {}: {}", target.name, path.display(), finding.what);
    }
    let report = &fuzzer.report;
    let run = Run {
        parser: target.name,
        seed: arguments.seed,
        cpu_seconds: processor_time().saturating_sub(start).as_secs(),
        executions: report.executions,
        accepted: report.accepted,
        distinct_answers: report.answers,
        peak_allocation_bytes: report.peak_bytes,
        findings: report.findings.len(),
    };
    if arguments.record {
        let known = std::fs::read_dir(&folder)?.count();
        let new = fuzzer.kept(KEPT_BYTES).into_iter().filter(|(name, _)| !folder.join(name).exists());
        for (name, input) in new.take(KEPT.saturating_sub(known)) {
            std::fs::write(folder.join(name), input)?;
        }
        append(&run)?;
    }
    println!("{}", serde_json::to_string(&run)?);
    Ok(report.findings.len())
}

fn append(run: &Run<'_>) -> anyhow::Result<()> {
    let path = root().join("fixtures/fuzz/runs.csv");
    let new = !path.exists();
    let file = OpenOptions::new().append(true).create(true).open(&path)?;
    let mut writer = csv::WriterBuilder::new().has_headers(new).from_writer(file);
    writer.serialize(run)?;
    Ok(writer.flush()?)
}
