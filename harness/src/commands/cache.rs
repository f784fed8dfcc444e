//! `assay cache`: routed experts, packed once.

use crate::config::ConfigArgs;
use crate::exit::{Exit, InvalidEvidence};
use crate::output::{Answer, Format, Table};
use crate::progress::Progress;
use crate::repository::Repository;
use crate::runtime::{Opened, build_cache};
use assay_engine::expert_cache::{self, BuildReport, CacheError, CacheInfo, ExpertCache};
use clap::{Args, Subcommand};
use serde::Serialize;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  assay cache build tiny-moe
  assay cache build tiny-moe --expert-quantization amax
  assay cache verify tiny-moe
  assay cache info tiny-moe --output json";

/// Routed experts, packed once into the layout that every device reads.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Cache {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Pack the config's experts, unless that was done before
    #[command(after_help = EXAMPLES)]
    Build {
        #[command(flatten)]
        config: ConfigArgs,
        /// Pack them again even if a file is there, whatever it holds
        #[arg(long)]
        replace: bool,
    },
    /// Read the whole file and check every hash, scale and nibble
    #[command(after_help = EXAMPLES)]
    Verify {
        #[command(flatten)]
        config: ConfigArgs,
    },
    /// What the file says about itself
    #[command(after_help = EXAMPLES)]
    Info {
        #[command(flatten)]
        config: ConfigArgs,
    },
}

#[derive(Serialize)]
struct Built {
    cache: PathBuf,
    built: bool,
    bytes: u64,
    seconds: f64,
    layers: Vec<BuiltLayer>,
}

#[derive(Serialize)]
struct BuiltLayer {
    layer: usize,
    mean_squared_error: f64,
}

impl Cache {
    pub(super) fn run(self, format: Format) -> anyhow::Result<Exit> {
        match self.action {
            Action::Build { config, replace } => build(&config, replace, format),
            Action::Verify { config } => verify(&config, format),
            Action::Info { config } => info(&config, format),
        }
    }
}

/// The config's checkpoint, and where its cache lies.
fn open(config: &ConfigArgs) -> anyhow::Result<(Repository, Opened, PathBuf)> {
    let repository = Repository::find()?;
    let opened = Opened::new(config.load(&repository)?)?;
    let path = opened.cache_path(&repository)?;
    Ok((repository, opened, path))
}

fn build(config: &ConfigArgs, replace: bool, format: Format) -> anyhow::Result<Exit> {
    let (repository, opened, path) = open(config)?;
    let encoding = opened.options.precision.experts;
    let BuildReport { built, bytes, seconds, layers } = build_cache(&opened.folder, encoding, &path, replace)?;
    if built {
        opened.name_stale_caches(&repository)?;
    }
    let layers: Vec<BuiltLayer> = layers
        .iter()
        .map(|report| BuiltLayer { layer: report.layer, mean_squared_error: report.error.mean() })
        .collect();
    let cache = repository.display(&path).to_owned();
    let how = if built { format!("packed in {seconds:.1} s") } else { "was there already".to_owned() };
    let mut table = Table::new("distance from the checkpoint's weights", &["#layer", "#mean squared error"]);
    for layer in &layers {
        table.row([layer.layer.to_string(), format!("{:.4e}", layer.mean_squared_error)]);
    }
    let line = format!("{}: {how}, {bytes} bytes", cache.display());
    let mut answer = Answer::new(&Built { cache, built, bytes, seconds, layers })?.line(line);
    // CSV has the same columns whether or not there was anything to do.
    if built || format == Format::Csv {
        answer = answer.table(table);
    }
    answer.print(format)?;
    Ok(Exit::DONE)
}

fn verify(config: &ConfigArgs, format: Format) -> anyhow::Result<Exit> {
    let (repository, opened, path) = open(config)?;
    let identity = opened.folder.cache_identity(opened.options.precision.experts)?;
    let bytes = ExpertCache::open(&path, &identity).map_err(judge)?.file_bytes();
    let progress = Progress::start("verifying", bytes, "bytes");
    let report = expert_cache::verify(&path, &|bytes| progress.advance(bytes)).map_err(judge)?;
    drop(progress);
    let line = format!(
        "PASS: {} holds {} experts in {} layers, {} bytes",
        repository.display(&path).display(),
        report.experts,
        report.layers,
        report.bytes
    );
    Answer::new(&serde_json::json!({ "cache": repository.display(&path), "verdict": "PASS", "report": report }))?
        .line(line)
        .print(format)?;
    Ok(Exit::DONE)
}

/// A cache that is not there is a mistake of the user's; one that is there and wrong is broken evidence.
fn judge(error: CacheError) -> anyhow::Error {
    match error {
        CacheError::Io { .. } => {
            anyhow::Error::new(error).context("there is no cache of this config; `assay cache build` makes it")
        }
        other => InvalidEvidence(other.to_string()).into(),
    }
}

fn info(config: &ConfigArgs, format: Format) -> anyhow::Result<Exit> {
    let (repository, _, path) = open(config)?;
    let info = expert_cache::info(&path).map_err(judge)?;
    let CacheInfo { file_bytes, header, .. } = &info;
    let headings = ["#layer", "#experts", "#hidden_size", "#moe_intermediate_size", "#bytes of an expert"];
    let mut table = Table::new("layers", &headings);
    for layer in &header.layers {
        let sizes =
            [layer.layer, layer.num_experts, layer.hidden_size, layer.moe_intermediate_size, layer.expert_bytes];
        table.row(sizes);
    }
    Answer::new(&info)?
        .line(format!("{}: {file_bytes} bytes, {}", repository.display(&path).display(), header.encoding))
        .line(format!("format {}, layout {}", header.format_version, header.layout_version))
        .table(table)
        .print(format)?;
    Ok(Exit::DONE)
}
