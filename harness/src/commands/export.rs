//! `assay export`

use crate::exit::{Exit, Interrupted};
use crate::interrupt;
use crate::output::{Answer, Format};
use crate::progress::Progress;
use crate::repository::Repository;
use crate::runtime::open_folder;
use anyhow::Context;
use assay_engine::checkpoint::Checkpoint;
use assay_engine::expert_cache::{Encoding, ExpertCache};
use assay_engine::gguf::{ExportOptions, ExportSource, GgufError, GgufType, export};
use assay_engine::model::load_spec;
use assay_engine::synth::SyntheticRecord;
use clap::{Args, Subcommand, ValueEnum};
use serde_json::json;
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "\
Examples:
  assay export gguf fixtures/models/tiny-moe tiny-moe.gguf
  assay export gguf fixtures/models/tiny-moe f32.gguf --dtype f32
  assay export gguf MODEL int4.gguf --dtype f32 --experts int4-search
  assay export gguf SYNTHETIC q4.gguf --dtype q4-0";

/// A checkpoint in another program's format.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Export {
    #[command(subcommand)]
    target: Target,
}

#[derive(Debug, Subcommand)]
enum Target {
    /// Write a checkpoint as GGUF, for llama.cpp
    ///
    /// The tensors hold the bits that llama.cpp's own converter writes: norms, biases and routers in F32, the other
    /// matrices in the type that is asked for, a layer's experts stacked into one tensor. A synthetic model's experts come
    /// out of its expert cache: Q4_0 holds those in INT4 exactly.
    #[command(after_help = EXAMPLES)]
    Gguf {
        /// Folder with config.json, weights and tokenizer.json
        #[arg(value_name = "MODEL_DIR")]
        model: PathBuf,
        /// The file to write
        #[arg(value_name = "OUT")]
        out: PathBuf,
        /// Type of the matrices
        #[arg(long, value_enum, default_value_t, value_name = "TYPE")]
        dtype: Dtype,
        /// Type of the experts' matrices, where it is another [default: q4-0 for INT4 that Q4_0 can hold]
        #[arg(long, value_enum, value_name = "TYPE")]
        expert_dtype: Option<Dtype>,
        /// What the experts are rounded to: bf16, int4-amax, int4-search or int8 [default: bf16, or a synthetic model's own]
        #[arg(long, value_name = "ENCODING")]
        experts: Option<Encoding>,
        /// Overwrite the file if it is there
        #[arg(long)]
        replace: bool,
    },
}

#[derive(Debug, Clone, Copy, Default, ValueEnum)]
enum Dtype {
    /// As most checkpoints have it
    #[default]
    Bf16,
    /// Twice the size, the same values
    F32,
    /// Blocks of 32 four-bit integers: what INT4 leaves of the weights
    #[value(name = "q4-0", alias = "q4_0")]
    Q4_0,
}

impl From<Dtype> for GgufType {
    fn from(dtype: Dtype) -> Self {
        match dtype {
            Dtype::Bf16 => GgufType::Bf16,
            Dtype::F32 => GgufType::F32,
            Dtype::Q4_0 => GgufType::Q4_0,
        }
    }
}

/// What is written.
struct Types {
    matrices: Dtype,
    experts: Option<Encoding>,
    expert_matrices: Option<Dtype>,
}

impl Types {
    /// INT4 goes to F32 where the other matrices are in F32, else to Q4_0; INT8 goes to F32.
    fn options(&self, experts: Encoding) -> ExportOptions {
        let default = match (experts, self.matrices) {
            (Encoding::Int4(_), Dtype::Bf16) => Dtype::Q4_0,
            (Encoding::Int8, _) => Dtype::F32,
            (_, matrices) => matrices,
        };
        let expert_matrices = self.expert_matrices.unwrap_or(default).into();
        ExportOptions { matrices: self.matrices.into(), expert_matrices, experts }
    }
}

impl Export {
    pub(super) fn run(self, format: Format) -> anyhow::Result<Exit> {
        let Target::Gguf { model, out, dtype, expert_dtype, experts, replace } = self.target;
        anyhow::ensure!(replace || !out.exists(), "{} is there already; --replace overwrites it", out.display());
        gguf(&model, &out, &Types { matrices: dtype, experts, expert_matrices: expert_dtype }, format)
    }
}

fn gguf(model: &Path, out: &Path, types: &Types, format: Format) -> anyhow::Result<Exit> {
    let checkpoint = Checkpoint::open(model)?;
    if let Some(record) = SyntheticRecord::read(checkpoint.config_bytes(), &checkpoint.config_path())? {
        return synthetic(model, &record, out, types, format);
    }
    let spec = load_spec(checkpoint.config_bytes(), &checkpoint.config_path())?;
    let source = ExportSource { checkpoint: &checkpoint, spec: &spec, experts: None };
    write(source, types.options(types.experts.unwrap_or(Encoding::Bf16)), out, format)
}

/// A synthetic model: its experts are in a cache beside its checkpoint.
fn synthetic(
    model: &Path,
    record: &SyntheticRecord,
    out: &Path,
    types: &Types,
    format: Format,
) -> anyhow::Result<Exit> {
    let own = record.experts;
    if let Some(other) = types.experts.filter(|experts| *experts != own) {
        anyhow::bail!("{} is synthetic and has its experts in {own}, not in {other}", model.display());
    }
    let folder = open_folder(model, None)?;
    let path = folder.own_cache(own).context("a synthetic model without a cache")?;
    let cache = ExpertCache::open(&path, &folder.cache_identity(own)?)?;
    let source = ExportSource { checkpoint: &folder.checkpoint, spec: &folder.spec, experts: Some(&cache) };
    write(source, types.options(own), out, format)
}

fn write(source: ExportSource<'_>, options: ExportOptions, out: &Path, format: Format) -> anyhow::Result<Exit> {
    let model = std::path::absolute(source.checkpoint.dir())?;
    let name = model.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    let mut progress: Option<Progress> = None;
    let mut advance = |done: u64, total: u64| {
        progress.get_or_insert_with(|| Progress::start("writing GGUF", total, "bytes")).set(done);
        interrupt::check().is_ok()
    };
    let report = export(source, options, &name, out, &mut advance).map_err(|error| match error {
        GgufError::Interrupted => anyhow::Error::from(Interrupted),
        other => other.into(),
    })?;
    drop(progress);
    let shown = Repository::find().map_or(out.to_owned(), |repository| repository.display(out).to_owned());
    let line = format!("{}: {} tensors, {} keys, {} bytes", shown.display(), report.tensors, report.keys, report.bytes);
    Answer::new(&json!({ "file": shown, "report": report }))?.line(line).print(format)?;
    Ok(Exit::DONE)
}
