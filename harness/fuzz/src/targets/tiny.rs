//! A checkpoint of a few kilobytes.

use std::collections::BTreeMap;
use std::path::Path;

use assay_engine::model::load_spec;
use assay_engine::model::spec::{ModelSpec, TensorSource};
use half::bf16;
use serde_json::{Map, Value, json};

/// One layer of two experts.
pub(super) fn config() -> Value {
    json!({
        "model_type": "qwen3_moe", "hidden_act": "silu", "vocab_size": 16, "hidden_size": 8, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4, "intermediate_size": 8, "num_experts": 2,
        "num_experts_per_tok": 1, "moe_intermediate_size": 4, "norm_topk_prob": true, "rms_norm_eps": 1e-6,
        "max_position_embeddings": 64, "rope_theta": 10000.0, "tie_word_embeddings": true, "eos_token_id": 0,
    })
}

/// One layer of two MXFP4 experts.
pub(super) fn mxfp4_config() -> Value {
    json!({
        "model_type": "gpt_oss", "vocab_size": 16, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 4, "intermediate_size": 32, "num_local_experts": 2, "num_experts_per_tok": 1,
        "rms_norm_eps": 1e-6, "max_position_embeddings": 64, "rope_theta": 10000.0, "layer_types": ["full_attention"],
        "quantization_config": { "quant_method": "mxfp4" },
    })
}

/// The model that a config describes.
pub(super) fn spec(config: &Value) -> anyhow::Result<ModelSpec> {
    Ok(load_spec(&serde_json::to_vec(config)?, Path::new("config.json"))?)
}

/// A safetensors file with everything that the model needs.
pub(super) fn weights(spec: &ModelSpec) -> anyhow::Result<Vec<u8>> {
    let mut tensors = BTreeMap::new();
    spec.for_each_source(true, &mut |source| {
        add(&mut tensors, source);
        anyhow::Ok(())
    })?;
    let (mut header, mut data) = (Map::new(), Vec::new());
    for (name, (dtype, shape)) in tensors {
        let start = data.len();
        let elements: usize = shape.iter().product();
        for element in 0..elements {
            match dtype {
                "BF16" => data.extend(bf16::from_f32((element % 13) as f32 / 8.0 - 0.7).to_le_bytes()),
                _ => data.push((element % 127) as u8),
            }
        }
        header.insert(name, json!({ "dtype": dtype, "shape": shape, "data_offsets": [start, data.len()] }));
    }
    Ok(frame(&serde_json::to_vec(&header)?, &data))
}

fn add(tensors: &mut BTreeMap<String, (&'static str, Vec<usize>)>, source: &TensorSource) {
    let Some(part) = &source.part else {
        tensors.insert(source.name.clone(), ("BF16", source.shape.clone()));
        return;
    };
    let Some(scales) = &part.mxfp4_scales else {
        tensors.insert(source.name.clone(), ("BF16", part.file_shape.clone()));
        return;
    };
    let (last, rest) = part.file_shape.split_last().map_or((0, &[][..]), |(last, rest)| (*last, rest));
    let blocks = [rest, &[last / 32]].concat();
    tensors.insert(source.name.clone(), ("U8", [&blocks[..], &[16]].concat()));
    tensors.insert(scales.clone(), ("U8", blocks));
}

/// Length, header, data.
pub(super) fn frame(header: &[u8], data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes()[..], header, data].concat()
}

/// Writes the checkpoint's config and weights.
pub(super) fn write(folder: &Path) -> anyhow::Result<()> {
    std::fs::write(folder.join("config.json"), serde_json::to_vec(&config())?)?;
    std::fs::write(folder.join("model.safetensors"), weights(&spec(&config())?)?)?;
    Ok(())
}
