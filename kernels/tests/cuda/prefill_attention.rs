//! Causal attention on tensor cores.

use assay_kernels::cuda::{DeviceSlice, Instruction, prefill_attention_supports};
use assay_kernels::{AttentionForm, KvFormat, KvLayout, twin};
use libtest_mimic::Failed;
use rayon::prelude::*;

use super::Case;
use super::support::{Device, awkward, same_bits};
use super::tensor::{BF16_ROUNDING, rounded, tensor_error, within};

#[derive(Debug, Clone, Copy)]
struct Shape {
    format: KvFormat,
    head_dim: usize,
    heads: usize,
    kv_heads: usize,
    first_position: usize,
    tokens: usize,
    window: Option<usize>,
    sinks: bool,
}

pub(crate) fn cases() -> Vec<Case> {
    let mut shapes = Vec::new();
    for format in [KvFormat::Bf16, KvFormat::F32] {
        for head_dim in [32, 64, 128, 256] {
            let shape = |heads, kv_heads, first_position, tokens, window, sinks| Shape {
                format,
                head_dim,
                heads,
                kv_heads,
                first_position,
                tokens,
                window,
                sinks,
            };
            shapes.extend([
                shape(1, 1, 0, 1, None, false),
                shape(4, 2, 0, 17, None, false),
                shape(3, 1, 63, 127, None, true),
                shape(8, 1, 130, 127, Some(1), false),
                shape(6, 2, 500, 70, Some(100), true),
                shape(2, 2, 0, 1000, None, false),
                shape(2, 1, 24, 1000, Some(128), true),
            ]);
            // More rows than one round of persistent blocks takes.
            if format == KvFormat::Bf16 && head_dim % 64 == 0 && head_dim < 256 {
                shapes.push(shape(8, 1, 3, 2600, None, true));
            }
        }
    }
    let mut cases: Vec<Case> = Vec::new();
    for shape in shapes {
        let Shape { format, head_dim, heads, kv_heads, first_position, tokens, window, sinks } = shape;
        let name = format!(
            "prefill_attention::{format:?}::{head_dim}::{heads}on{kv_heads}::{tokens}at{first_position}::window{}{}",
            window.unwrap_or(0),
            if sinks { "::sinks" } else { "" }
        );
        cases.push((name, Box::new(move |device: &Device| bounded(device, &shape))));
        if tokens == 1000 {
            let name = format!("prefill_attention::{format:?}::{head_dim}::chunks::window{}", window.unwrap_or(0));
            cases.push((name, Box::new(move |device: &Device| chunks(device, &shape))));
        }
    }
    cases.push(("prefill_attention::supports".into(), Box::new(supports)));
    cases
}

/// Queries, a host cache whose other positions are NaN, and what was appended.
struct Input {
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    sinks: Option<Vec<f32>>,
}

impl Input {
    fn new(shape: &Shape) -> Self {
        let width = shape.kv_heads * shape.head_dim;
        let positions = shape.first_position + shape.tokens;
        // Magnitudes that leave scores of a few units: a softmax over several keys.
        let small = |len, seed| awkward(len, seed).iter().map(|x| x.clamp(-1.5, 1.5)).collect::<Vec<f32>>();
        Self {
            q: small(shape.tokens * shape.heads * shape.head_dim, 1),
            k: small(positions * width, 2),
            v: awkward(positions * width, 3),
            sinks: shape.sinks.then(|| small(shape.heads, 4)),
        }
    }

    /// The cache with positions `0..end` appended; the rest is NaN.
    fn cache(&self, shape: &Shape, end: usize) -> Result<(KvLayout, Vec<u8>), Failed> {
        let layout = KvLayout {
            format: shape.format,
            capacity_tokens: shape.first_position + shape.tokens + 40,
            kv_heads: shape.kv_heads,
            head_dim: shape.head_dim,
        };
        let width = shape.kv_heads * shape.head_dim;
        let mut cache = vec![0xFF; layout.bytes().unwrap()];
        twin::kv_append(&self.k[..end * width], &self.v[..end * width], 0, layout, &mut cache)?;
        Ok((layout, cache))
    }
}

/// Instructions that this device has for the shape.
fn instructions(device: &Device, shape: &Shape) -> Vec<Instruction> {
    let &Shape { format, head_dim, kv_heads, .. } = shape;
    let layout = KvLayout { format, capacity_tokens: 1, kv_heads, head_dim };
    match device.cuda.prefill_attention_instruction(&layout) {
        Instruction::Mma => vec![Instruction::Mma],
        Instruction::Wgmma => vec![Instruction::Mma, Instruction::Wgmma],
    }
}

fn scale(shape: &Shape) -> f32 {
    2.0 / (shape.head_dim as f32).sqrt()
}

/// Queries `from..to` in one call.
fn run(
    device: &Device,
    instruction: Instruction,
    shape: &Shape,
    input: &Input,
    from: usize,
    to: usize,
) -> Result<Vec<f32>, Failed> {
    let width = shape.heads * shape.head_dim;
    let (layout, cache) = input.cache(shape, shape.first_position + to)?;
    let q = device.upload(&input.q[from * width..to * width]);
    let out: DeviceSlice<f32> = device.poisoned(q.len());
    let sinks = input.sinks.as_ref().map(|sinks| device.upload(sinks));
    let form = (scale(shape), shape.window);
    let first = shape.first_position + from;
    device.cuda.prefill_attention_by(
        device.stream,
        instruction,
        q,
        shape.heads,
        first,
        layout,
        device.upload(&cache),
        form,
        sinks,
        out,
    )?;
    Ok(device.download(out))
}

fn bounded(device: &Device, shape: &Shape) -> Result<(), Failed> {
    let input = Input::new(shape);
    let width = shape.heads * shape.head_dim;
    // Every row of the first and last tokens, and of some between.
    let tokens: Vec<usize> = (0..shape.tokens).filter(|&t| t < 20 || t + 20 > shape.tokens || t % 23 == 0).collect();
    let rows: Vec<(usize, usize)> =
        tokens.iter().flat_map(|&token| (0..shape.heads).map(move |head| (token, head))).collect();
    let expected: Vec<(f64, f64)> =
        rows.par_iter().flat_map_iter(|&(token, head)| exact(shape, &input, token, head)).collect();

    // The twin rounds nothing but the cache; its own error is far below the bound's other terms.
    let (layout, cache) = input.cache(shape, shape.first_position + shape.tokens)?;
    let last = (shape.tokens - 1) * width;
    let mut twin_out = vec![0.0; width];
    let form = AttentionForm { scale: scale(shape), window: shape.window, sinks: input.sinks.as_deref() };
    let position = shape.first_position + shape.tokens - 1;
    twin::attention(&input.q[last..], shape.heads, position, layout, &cache, form, &mut twin_out)?;
    let bounds = &expected[expected.len() - width..];
    for instruction in instructions(device, shape) {
        let name = instruction.name();
        let found = run(device, instruction, shape, &input, 0, shape.tokens)?;
        let some: Vec<f32> = tokens.iter().flat_map(|&t| &found[t * width..(t + 1) * width]).copied().collect();
        within(&format!("{name}, rows of tokens {tokens:?}"), &some, |at| expected[at])?;
        within(&format!("{name}, the last token against the twin"), &found[last..], |at| {
            (f64::from(twin_out[at]), 1.01 * bounds[at].1 + 1e-6 * bounds[at].0.abs())
        })?;
    }
    Ok(())
}

/// One row in f64 with the error that the kernel may have.
///
/// Scores: q is rounded to BF16, k too unless it is stored so, and the dot product is off by the tensor core's error; scaling, the
/// maximum's and the exponential's argument round in f32, within 2^-22 of the largest score. A score that is off by d
/// multiplies its weight by at most e^d, numerator and sum alike: the weights change by at most e^2d - 1 in all. Weights are
/// rounded to BF16 for the product (not for the sum), values too unless they are stored so, and the product and the rescalings are f32.
fn exact(shape: &Shape, input: &Input, token: usize, head: usize) -> Vec<(f64, f64)> {
    let (dim, width) = (shape.head_dim, shape.kv_heads * shape.head_dim);
    let q = &input.q[(token * shape.heads + head) * dim..][..dim];
    let kv_head = head / (shape.heads / shape.kv_heads);
    let position = shape.first_position + token;
    let first = shape.window.map_or(0, |window| (position + 1).saturating_sub(window));
    let stored = |x: f32| f64::from(if shape.format == KvFormat::Bf16 { rounded(x) } else { x });
    let stored_error = if shape.format == KvFormat::Bf16 { 0.0 } else { BF16_ROUNDING };
    let scale = f64::from(scale(shape));
    let (mut scores, mut largest, mut error) = (Vec::new(), f64::NEG_INFINITY, 0.0f64);
    let mut magnitude = 0.0f64;
    for at in first..=position {
        let k = &input.k[at * width + kv_head * dim..][..dim];
        let (mut dot, mut size) = (0.0, 0.0);
        for (&q, &k) in q.iter().zip(k) {
            let product = f64::from(q) * stored(k);
            dot += product;
            size += product.abs();
        }
        scores.push(dot * scale);
        largest = largest.max(dot * scale);
        magnitude = magnitude.max((dot * scale).abs());
        let relative = (1.0 + BF16_ROUNDING) * (1.0 + stored_error) - 1.0 + 2.0 * tensor_error(dim);
        error = error.max(relative * size * scale);
    }
    let sink = input.sinks.as_ref().map(|sinks| f64::from(sinks[head]));
    largest = largest.max(sink.unwrap_or(f64::NEG_INFINITY));
    error += (magnitude + largest.abs()) * 2f64.powi(-21);
    let weights: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
    let sum: f64 = weights.iter().sum::<f64>() + sink.map_or(0.0, |sink| (sink - largest).exp());
    let positions = scores.len() as f64;
    let relative = (2.0 * error).exp_m1() + BF16_ROUNDING + stored_error + positions * 2f64.powi(-21);
    let each = |d: usize| {
        let value = |at: usize| stored(input.v[(first + at) * width + kv_head * dim + d]);
        let out: f64 = weights.iter().enumerate().map(|(at, w)| w * value(at)).sum::<f64>() / sum;
        let size: f64 = weights.iter().enumerate().map(|(at, w)| w * value(at).abs()).sum::<f64>() / sum;
        (out, 1.01 * relative * size + 2f64.powi(-100))
    };
    (0..dim).map(each).collect()
}

/// A row has the same bits whatever chunk it comes in.
fn chunks(device: &Device, shape: &Shape) -> Result<(), Failed> {
    let input = Input::new(shape);
    for instruction in instructions(device, shape) {
        let whole = run(device, instruction, shape, &input, 0, shape.tokens)?;
        for chunk in [16, 17, 64, 333] {
            let mut parts = Vec::with_capacity(whole.len());
            for from in (0..shape.tokens).step_by(chunk) {
                parts.extend(run(device, instruction, shape, &input, from, (from + chunk).min(shape.tokens))?);
            }
            same_bits(&format!("{}, chunks of {chunk}", instruction.name()), &parts, &whole)?;
        }
    }
    Ok(())
}

fn supports(device: &Device) -> Result<(), Failed> {
    let shape = Shape {
        format: KvFormat::Bf16,
        head_dim: 48,
        heads: 1,
        kv_heads: 1,
        first_position: 0,
        tokens: 1,
        window: None,
        sinks: false,
    };
    if prefill_attention_supports(48) {
        return Err("48 is not supported".into());
    }
    match run(device, Instruction::Mma, &shape, &Input::new(&shape), 0, 1) {
        Err(error) if format!("{error:?}").contains("head_dim is 48") => Ok(()),
        other => {
            Err(format!("expected a refusal of head_dim 48, found {:?}", other.map_err(|e| format!("{e:?}"))).into())
        }
    }
}
