//! `assay synth SHAPE`

use crate::exit::{Exit, Interrupted};
use crate::interrupt;
use crate::output::{Answer, Format};
use crate::progress::Progress;
use crate::repository::Repository;
use anyhow::{Context, bail};
use assay_engine::expert_cache::{Encoding, QuantizeMethod};
use assay_engine::synth::{Recipe, Shape, Skew, SynthError, SynthReport, write_model};
use clap::{Args, ValueEnum};
use serde_json::json;
use std::path::{Path, PathBuf};

/// Where shapes lie, under the repository's root.
const SHAPES: &str = "suites/shapes";

#[derive(Debug, Args)]
pub(super) struct Write {
    /// Name of a shape in suites/shapes, or a path to a config.json
    #[arg(value_name = "SHAPE")]
    shape: String,
    /// Folder to write: a new one, or an empty one
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Seed of every random number
    #[arg(long, default_value_t = 0, value_name = "N")]
    seed: u64,
    /// Only the first layers
    #[arg(long, value_name = "N")]
    layers: Option<usize>,
    /// How routes are spread: even, or zipf:S
    #[arg(long, default_value_t, value_name = "SKEW")]
    skew: Skew,
    /// Format of the expert cache
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    format: ExpertFormat,
    /// Give weights a mean, to see hidden states collapse
    #[arg(long, default_value_t = 0, allow_negative_numbers = true, value_name = "N")]
    nibble_offset: i8,
    /// Size of the residual branches, to see them collapse
    #[arg(long, default_value_t = 1.0, value_name = "X")]
    branch_gain: f64,
}

#[derive(Debug, Clone, Copy, Default, ValueEnum)]
enum ExpertFormat {
    /// Groups of 128 inputs, scales that are powers of two
    #[default]
    Int4,
    /// The same values
    Bf16,
}

impl Write {
    pub(super) fn run(self, format: Format) -> anyhow::Result<Exit> {
        let repository = Repository::find()?;
        let mut shape = find(&self.shape, &repository)?;
        if let Some(layers) = self.layers {
            shape = shape.with_layers(layers)?;
        }
        let experts = match self.format {
            ExpertFormat::Int4 => Encoding::Int4(QuantizeMethod::Amax),
            ExpertFormat::Bf16 => Encoding::Bf16,
        };
        let recipe = Recipe {
            seed: self.seed,
            skew: self.skew,
            experts,
            nibble_offset: self.nibble_offset,
            branch_gain: self.branch_gain,
        };
        let mut progress: Option<(&str, Progress)> = None;
        let report = write_model(&shape, &recipe, &self.out, interrupt::flag(), &mut |what, done, total| {
            if progress.as_ref().is_none_or(|(shown, _)| *shown != what) {
                progress = Some((what, Progress::start(format!("writing {what}"), total, "bytes")));
            }
            if let Some((_, bar)) = &progress {
                bar.set(done);
            }
        });
        drop(progress);
        let report = report.map_err(|error| match error {
            SynthError::Interrupted => anyhow::Error::from(Interrupted),
            other => other.into(),
        })?;
        answer(&self.out, &report)?.print(format)?;
        Ok(Exit::DONE)
    }
}

fn answer(dir: &Path, report: &SynthReport) -> anyhow::Result<Answer> {
    let rate =
        |bytes: u64, seconds: f64| format!("{bytes} bytes in {seconds:.1} s, {:.2} GB/s", gb_per_s(bytes, seconds));
    let json = json!({
        "folder": dir,
        "report": report,
        "tensor_gb_per_s": gb_per_s(report.tensor_bytes, report.tensor_seconds),
        "cache_gb_per_s": gb_per_s(report.cache_bytes, report.cache_seconds),
    });
    Ok(Answer::new(&json)?
        .line(format!(
            "{}: {} tensors, {}",
            dir.display(),
            report.tensors,
            rate(report.tensor_bytes, report.tensor_seconds)
        ))
        .line(format!("{}: {}", report.cache.display(), rate(report.cache_bytes, report.cache_seconds)))
        .line(format!("whether routing is as stated: assay synth check {}", dir.display())))
}

fn gb_per_s(bytes: u64, seconds: f64) -> f64 {
    bytes as f64 / 1e9 / seconds.max(1e-9)
}

/// A shape by its short name, or by its path (anything with a `/` or ending in `.json`).
fn find(name_or_path: &str, repository: &Repository) -> anyhow::Result<Shape> {
    let folder = repository.path(SHAPES);
    let path = if name_or_path.contains('/') || name_or_path.ends_with(".json") {
        PathBuf::from(name_or_path)
    } else {
        let path = folder.join(format!("{name_or_path}.json"));
        if !path.is_file() {
            bail!("no shape is called {name_or_path:?}: there are {}", names(&folder)?.join(", "));
        }
        path
    };
    let bytes = assay_engine::file::read(&path, assay_engine::checkpoint::MAX_CONFIG_BYTES)
        .with_context(|| format!("reading the shape {}", path.display()))?;
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    Ok(Shape::parse(&name, &bytes, &path)?)
}

fn names(folder: &Path) -> anyhow::Result<Vec<String>> {
    let entries = std::fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))?;
    let mut names = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "json") {
            names.push(path.file_stem().unwrap_or_default().to_string_lossy().into_owned());
        }
    }
    names.sort();
    Ok(names)
}
