//! `assay export`

use crate::exit::{Exit, Interrupted};
use crate::interrupt;
use crate::output::{Answer, Format};
use crate::progress::Progress;
use crate::repository::Repository;
use assay_engine::checkpoint::Checkpoint;
use assay_engine::expert_cache::Encoding;
use assay_engine::gguf::{ExportOptions, GgufError, GgufType, export};
use assay_engine::model::load_spec;
use clap::{Args, Subcommand, ValueEnum};
use serde_json::json;
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "\
Examples:
  assay export gguf fixtures/models/tiny-moe tiny-moe.gguf
  assay export gguf fixtures/models/tiny-moe f32.gguf --dtype f32
  assay export gguf MODEL int4.gguf --dtype f32 --experts int4-search";

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
    /// matrices in the type that is asked for, a layer's experts stacked into one tensor.
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
        /// What the experts are rounded to: bf16, int4-amax or int4-search (with --dtype f32)
        #[arg(long, default_value = "bf16", value_name = "ENCODING")]
        experts: Encoding,
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
}

impl Export {
    pub(super) fn run(self, format: Format) -> anyhow::Result<Exit> {
        let Target::Gguf { model, out, dtype, experts, replace } = self.target;
        anyhow::ensure!(replace || !out.exists(), "{} is there already; --replace overwrites it", out.display());
        gguf(&model, &out, dtype, experts, format)
    }
}

fn gguf(model: &Path, out: &Path, dtype: Dtype, experts: Encoding, format: Format) -> anyhow::Result<Exit> {
    let checkpoint = Checkpoint::open(model)?;
    let spec = load_spec(checkpoint.config_bytes(), &checkpoint.config_path())?;
    let name =
        std::path::absolute(model)?.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    let matrices = match dtype {
        Dtype::Bf16 => GgufType::Bf16,
        Dtype::F32 => GgufType::F32,
    };
    let mut progress: Option<Progress> = None;
    let mut advance = |done: u64, total: u64| {
        progress.get_or_insert_with(|| Progress::start("writing GGUF", total, "bytes")).set(done);
        interrupt::check().is_ok()
    };
    let options = ExportOptions { matrices, experts };
    let report = export(&checkpoint, &spec, options, &name, out, &mut advance).map_err(|error| match error {
        GgufError::Interrupted => anyhow::Error::from(Interrupted),
        other => other.into(),
    })?;
    drop(progress);
    let shown = Repository::find().map_or(out.to_owned(), |repository| repository.display(out).to_owned());
    let line = format!("{}: {} tensors, {} keys, {} bytes", shown.display(), report.tensors, report.keys, report.bytes);
    Answer::new(&json!({ "file": shown, "report": report }))?.line(line).print(format)?;
    Ok(Exit::DONE)
}
