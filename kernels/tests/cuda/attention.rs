//! Attention in the contract's order.

use assay_kernels::cuda::{DeviceSlice, attention_workspace_bytes};
use assay_kernels::{AttentionForm, KvFormat, KvLayout, twin};
use libtest_mimic::Failed;

use super::Case;
use super::support::{Device, awkward, same_bits};

#[derive(Debug, Clone, Copy)]
struct Shape {
    format: KvFormat,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    first_position: usize,
    tokens: usize,
    window: Option<usize>,
    sinks: bool,
}

pub(crate) fn cases() -> Vec<Case> {
    let mut shapes = Vec::new();
    for format in [KvFormat::F32, KvFormat::Bf16] {
        let base = Shape {
            format,
            heads: 8,
            kv_heads: 1,
            head_dim: 128,
            first_position: 0,
            tokens: 1,
            window: None,
            sinks: false,
        };
        // One query at the borders of splits, and heads of every width.
        for position in [0, 1, 126, 127, 128, 129, 255, 256, 1000] {
            shapes.push(Shape { first_position: position, ..base });
            shapes.push(Shape { first_position: position, heads: 3, head_dim: 34, sinks: true, ..base });
        }
        for head_dim in [2, 16, 32, 64, 66, 130, 256] {
            shapes.push(Shape { head_dim, first_position: 300, heads: 6, kv_heads: 3, ..base });
            shapes.push(Shape { head_dim, first_position: 250, tokens: 17, heads: 2, kv_heads: 2, ..base });
        }
        // Query heads that share a key-value head: 1, 5, 12, 16 and 32.
        for (heads, kv_heads) in [(4, 4), (5, 1), (24, 2), (16, 1), (32, 1)] {
            shapes.push(Shape { heads, kv_heads, head_dim: 64, first_position: 400, sinks: true, ..base });
            shapes.push(Shape { heads, kv_heads, head_dim: 64, first_position: 100, tokens: 40, ..base });
        }
        // Windows that start anywhere in a split.
        for window in [1, 2, 31, 100, 127, 128, 129, 200, 1000, 5000] {
            let shape = Shape { heads: 4, kv_heads: 2, head_dim: 64, window: Some(window), ..base };
            for (first_position, tokens, sinks) in [(383, 1, true), (500, 4, false), (90, 60, true)] {
                shapes.push(Shape { first_position, tokens, sinks, ..shape });
            }
        }
        // Many queries, and more splits than the merge takes at a time.
        shapes.push(Shape { heads: 4, kv_heads: 2, head_dim: 64, tokens: 127, ..base });
        shapes.push(Shape { heads: 2, kv_heads: 1, head_dim: 32, tokens: 1000, sinks: true, ..base });
        shapes.push(Shape { heads: 1, head_dim: 16, first_position: 70_000, sinks: true, ..base });
    }
    let mut cases: Vec<Case> = Vec::new();
    for shape in shapes {
        let Shape { format, heads, kv_heads, head_dim, first_position, tokens, window, sinks } = shape;
        let name = format!(
            "attention::{format:?} {heads}/{kv_heads}x{head_dim}, {tokens} at {first_position}, window {}, sinks {sinks}",
            window.unwrap_or(0)
        );
        cases.push((name, Box::new(move |device| equal(device, shape))));
    }
    cases.push(("attention::what is not seen does not matter".into(), Box::new(unseen)));
    cases.push(("attention::too little scratch is refused".into(), Box::new(scratch)));
    cases
}

/// Queries, keys and values. `wild` ones have scores of any size; others leave a softmax over several keys.
fn operands(shape: Shape, wild: bool) -> [Vec<f32>; 3] {
    let positions = shape.first_position + shape.tokens;
    let (q, kv) = (shape.tokens * shape.heads * shape.head_dim, positions * shape.kv_heads * shape.head_dim);
    let tame = |values: Vec<f32>| values.into_iter().map(|x| if wild { x } else { x.clamp(-1.5, 1.5) }).collect();
    [tame(awkward(q, 1)), tame(awkward(kv, 2)), awkward(kv, 3)]
}

/// A cache whose other positions and padding are NaN.
fn filled(shape: Shape, k: &[f32], v: &[f32]) -> Result<(KvLayout, Vec<u8>), Failed> {
    let layout = KvLayout {
        format: shape.format,
        capacity_tokens: shape.first_position + shape.tokens + 130,
        kv_heads: shape.kv_heads,
        head_dim: shape.head_dim,
    };
    let mut cache = vec![0xFF; layout.bytes().unwrap()];
    twin::kv_append(k, v, 0, layout, &mut cache)?;
    Ok((layout, cache))
}

fn run(
    device: &Device,
    shape: Shape,
    q: &[f32],
    layout: KvLayout,
    cache: &[u8],
    sinks: Option<&[f32]>,
) -> Result<Vec<f32>, Failed> {
    let out: DeviceSlice<f32> = device.poisoned(q.len());
    let bytes =
        attention_workspace_bytes(shape.tokens, shape.heads, shape.head_dim, shape.first_position + shape.tokens);
    let scratch = device.poisoned(bytes.unwrap());
    let (q, cache, sinks) = (device.upload(q), device.upload(cache), sinks.map(|sinks| device.upload(sinks)));
    let form = (0.3, shape.window);
    let (heads, first) = (shape.heads, (shape.first_position, None));
    device.cuda.attention(device.stream, q, heads, first, layout, cache, form, sinks, scratch, out)?;
    let found = device.download(out);
    // The position out of device memory, with the largest that the cache has room for as its bound.
    let most = layout.capacity_tokens - shape.tokens;
    let bytes = attention_workspace_bytes(shape.tokens, heads, shape.head_dim, layout.capacity_tokens);
    let (out, scratch) = (device.poisoned(q.len()), device.poisoned(bytes.unwrap()));
    let stored = (most, Some(device.upload(&[shape.first_position as u32])));
    device.cuda.attention(device.stream, q, heads, stored, layout, cache, form, sinks, scratch, out)?;
    same_bits("position out of memory", &device.download(out), &found)?;
    Ok(found)
}

fn equal(device: &Device, shape: Shape) -> Result<(), Failed> {
    let sinks = shape.sinks.then(|| awkward(shape.heads, 4));
    // Long contexts once: the twin takes its time.
    for wild in if shape.first_position + shape.tokens > 2000 { &[false][..] } else { &[false, true] } {
        let [q, k, v] = operands(shape, *wild);
        let (layout, cache) = filled(shape, &k, &v)?;
        let form = AttentionForm { scale: 0.3, window: shape.window, sinks: sinks.as_deref() };
        let mut expected = vec![0.0; q.len()];
        twin::attention(&q, shape.heads, shape.first_position, layout, &cache, form, &mut expected)?;
        let found = run(device, shape, &q, layout, &cache, sinks.as_deref())?;
        same_bits(if *wild { "out of wild scores" } else { "out" }, &found, &expected)?;
    }
    Ok(())
}

/// NaN and infinity outside a window reach nobody; within it they reach those who see them.
fn unseen(device: &Device) -> Result<(), Failed> {
    for (first_position, tokens) in [(0, 200), (140, 1), (170, 3)] {
        let shape = Shape {
            format: KvFormat::F32,
            heads: 4,
            kv_heads: 2,
            head_dim: 34,
            first_position,
            tokens,
            window: Some(30),
            sinks: false,
        };
        let [q, mut k, mut v] = operands(shape, false);
        let width = shape.kv_heads * shape.head_dim;
        for position in [3, 77, 126] {
            k[position * width..][..width].fill(f32::NAN);
            v[position * width..][..width].fill(f32::INFINITY);
        }
        let (layout, cache) = filled(shape, &k, &v)?;
        let form = AttentionForm { scale: 0.3, window: shape.window, sinks: None };
        let mut expected = vec![0.0; q.len()];
        twin::attention(&q, shape.heads, first_position, layout, &cache, form, &mut expected)?;
        same_bits("out", &run(device, shape, &q, layout, &cache, None)?, &expected)?;
    }
    Ok(())
}

fn scratch(device: &Device) -> Result<(), Failed> {
    let layout = KvLayout { format: KvFormat::Bf16, capacity_tokens: 300, kv_heads: 1, head_dim: 32 };
    let cache = device.poisoned(layout.bytes().unwrap());
    let (q, out) = (device.poisoned(64), device.poisoned(64));
    let needed = attention_workspace_bytes(1, 2, 32, 300).unwrap();
    let attend = |bytes| {
        let scratch = device.poisoned(bytes);
        device.cuda.attention(device.stream, q, 2, (299, None), layout, cache, (1.0, None), None, scratch, out)
    };
    attend(needed)?;
    let words = attend(needed - 1).map_err(|error| error.to_string());
    let expected = format!("attention: bytes of scratch is {}, expected {needed}", needed - 1);
    if words != Err(expected) {
        return Err(format!("{words:?}").into());
    }
    Ok(())
}
