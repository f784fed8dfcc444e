//! Weight files, and the index of several.

use std::path::Path;

use assay_engine::checkpoint::{Checkpoint, CheckpointError};
use assay_engine::model::spec::{ModelSpec, TensorSource};
use serde_json::json;

use super::{Change, Target, Verdict, tiny, write};
use crate::random::Random;

pub(super) const TARGET: Target =
    Target { name: "safetensors", seeds, prepare, change, read, bytes_per_input_byte: 64, bytes: 1 << 20 };

const INDEX: &str = "model.safetensors.index.json";
const FILE: &str = "model.safetensors";

fn seeds() -> anyhow::Result<Vec<Vec<u8>>> {
    let index =
        json!({ "metadata": { "total_size": 1 }, "weight_map": { "a": "a.safetensors", "b": "b.safetensors" } });
    Ok(vec![
        tiny::weights(&tiny::spec(&tiny::config())?)?,
        tiny::weights(&tiny::spec(&tiny::mxfp4_config())?)?,
        shard("a"),
        serde_json::to_vec(&index)?,
    ])
}

fn shard(name: &str) -> Vec<u8> {
    let entry =
        |dtype: &str, start: usize| json!({ "dtype": dtype, "shape": [2, 2], "data_offsets": [start, start + 16] });
    let header = json!({ name: entry("F32", 0), format!("{name}2"): { "dtype": "F16", "shape": [8], "data_offsets": [16, 32] } });
    tiny::frame(header.to_string().as_bytes(), &[0; 32])
}

fn prepare(folder: &Path) -> anyhow::Result<()> {
    std::fs::write(folder.join("config.json"), "{}")?;
    std::fs::write(folder.join("a.safetensors"), shard("a"))?;
    Ok(std::fs::write(folder.join("b.safetensors"), shard("b"))?)
}

fn change(random: &mut Random, input: &mut Vec<u8>, change: Change<'_>) {
    let Some((header, data)) = split(input).filter(|_| !random.one_in(4)) else {
        return change(random, input, input.starts_with(b"{"));
    };
    let (mut header, mut data) = (header.to_vec(), data.to_vec());
    if random.one_in(4) {
        change(random, &mut data, false);
    } else {
        change(random, &mut header, true);
    }
    *input = tiny::frame(&header, &data);
}

fn split(input: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = input.split_first_chunk()?;
    rest.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)
}

fn read(folder: &Path, input: &[u8]) -> Result<Verdict, String> {
    let index = input.starts_with(b"{");
    let (used, other) = if index { (INDEX, FILE) } else { (FILE, INDEX) };
    // What the last input left.
    let _ = std::fs::remove_file(folder.join(other));
    write(&folder.join(used), input)?;
    let checkpoint = match Checkpoint::open(folder) {
        Ok(checkpoint) => checkpoint,
        Err(error) => return Ok(Verdict::Refused(error.to_string())),
    };
    let bytes: u64 = checkpoint.shards().iter().map(|shard| shard.bytes()).sum();
    if !index && bytes != input.len() as u64 {
        return Err("a shard of another size than its file".to_owned());
    }
    let mut last = Verdict::Accepted;
    for config in [tiny::config(), tiny::mxfp4_config()] {
        let spec: ModelSpec = tiny::spec(&config).map_err(|error| error.to_string())?;
        let result = spec.for_each_source(true, &mut |source| values(&checkpoint, source));
        match result {
            Ok(()) => return Ok(Verdict::Accepted),
            Err(Wrong::Refused(error)) => last = Verdict::Refused(error.to_string()),
            Err(Wrong::Broken(promise)) => return Err(promise),
        }
    }
    Ok(last)
}

enum Wrong {
    Refused(CheckpointError),
    Broken(String),
}

/// As many values as the source's shape says, all finite.
fn values(checkpoint: &Checkpoint, source: &TensorSource) -> Result<(), Wrong> {
    let view = checkpoint.tensor(source).map_err(Wrong::Refused)?;
    let values = view.to_f32_vec().map_err(Wrong::Refused)?;
    let expected: usize = source.shape.iter().product();
    if values.len() != expected || values.iter().any(|value| !value.is_finite()) {
        return Err(Wrong::Broken("values of another number, or not finite".to_owned()));
    }
    Ok(())
}
