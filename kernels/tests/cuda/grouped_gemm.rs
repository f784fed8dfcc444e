//! The routed experts' products on tensor cores.

use assay_kernels::cuda::{DeviceImage, DevicePlan, Fault, Instruction, plan_words, slot_image_bytes};
use assay_kernels::layout::{ExpertLayout, MatrixFormat};
use assay_kernels::{Activation, GateUp, Matrix, Projection, simd, twin};
use libtest_mimic::Failed;
use rayon::prelude::*;

use super::Case;
use super::support::{Device, awkward, same_bits};
use super::tensor::{BF16_ROUNDING, Weights, instructions, panel_element, rounded, tensor_error, within};

const CLAMPED: Activation = Activation::ClampedSwiGlu { alpha: 1.702, limit: 7.0 };

pub(crate) fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    for format in MatrixFormat::ALL {
        for (tokens, top_k, experts, spread) in [
            (1, 1, 1, Spread::Even),
            (1, 4, 8, Spread::Even),
            (17, 3, 8, Spread::Even),
            (127, 2, 5, Spread::Gaps),
            (300, 2, 300, Spread::Even),
            (1000, 1, 4, Spread::One),
            (1000, 2, 6, Spread::Gaps),
        ] {
            for (hidden, inter) in [(64, 48), (300, 130), (512, 384)] {
                let name = format!(
                    "grouped_gemm::{}::{tokens}x{top_k}of{experts}::{spread:?}::{hidden}x{inter}",
                    format.name()
                );
                let shape = Shape { format, tokens, top_k, experts, spread, hidden, inter };
                cases.push((name, Box::new(move |device: &Device| products(device, &shape))));
            }
        }
        let shape = Shape { format, tokens: 1000, top_k: 2, experts: 6, spread: Spread::Even, hidden: 300, inter: 200 };
        let name = format!("grouped_gemm::{}::chunks", format.name());
        cases.push((name, Box::new(move |device: &Device| chunks(device, &shape))));
        // Chunks whose slots are few for their experts, and all of one.
        let shape = Shape { format, tokens: 1000, top_k: 1, experts: 40, spread: Spread::One, hidden: 300, inter: 200 };
        let name = format!("grouped_gemm::{}::chunks of one expert", format.name());
        cases.push((name, Box::new(move |device: &Device| chunks(device, &shape))));
    }
    cases.push(("grouped_gemm::absent".into(), Box::new(absent)));
    cases
}

/// Which experts tokens go to.
#[derive(Debug, Clone, Copy)]
enum Spread {
    /// All of them.
    Even,
    /// Every other one.
    Gaps,
    /// The second, all of them.
    One,
}

#[derive(Debug, Clone, Copy)]
struct Shape {
    format: MatrixFormat,
    tokens: usize,
    top_k: usize,
    experts: usize,
    spread: Spread,
    hidden: usize,
    inter: usize,
}

impl Shape {
    /// `[tokens, top_k]`
    fn ids(&self) -> Vec<u32> {
        let id = |slot: usize| {
            let (token, rank) = (slot / self.top_k, slot % self.top_k);
            match self.spread {
                Spread::Even => (token * 7 + token / 3 + rank) % self.experts,
                Spread::Gaps => 2 * ((token * 5 + rank) % self.experts.div_ceil(2)),
                Spread::One => 1,
            }
        };
        (0..self.tokens * self.top_k).map(|slot| id(slot) as u32).collect()
    }
}

/// An expert's matrices and biases, and its bytes.
struct Expert {
    gate: Weights,
    up: Weights,
    down: Weights,
    biases: Option<[Vec<f32>; 3]>,
    bytes: Vec<u8>,
}

impl Expert {
    fn new(shape: &Shape, layout: &ExpertLayout, seed: u64) -> Self {
        let gate = Weights::new(shape.format, shape.inter, shape.hidden, seed);
        let up = Weights::new(shape.format, shape.inter, shape.hidden, seed + 2);
        let down = Weights::new(shape.format, shape.hidden, shape.inter, seed + 4);
        let mut bytes = vec![0; layout.bytes];
        for (range, weights) in [(layout.gate(), &gate), (layout.up(), &up), (layout.down(), &down)] {
            bytes[range].copy_from_slice(&weights.packed);
        }
        let biases = layout.biases().map(|ranges| {
            let rows = [shape.inter, shape.inter, shape.hidden];
            [0, 1, 2].map(|part| {
                let bias = awkward(rows[part], seed + 6 + part as u64);
                bytes[ranges[part].clone()].copy_from_slice(bytemuck::cast_slice(&bias));
                bias
            })
        });
        Self { gate, up, down, biases, bytes }
    }

    fn bias(&self, part: usize, row: usize) -> f64 {
        self.biases.as_ref().map_or(0.0, |biases| f64::from(biases[part][row]))
    }

    fn projection(&self, part: usize) -> Result<Projection<'_>, Failed> {
        let w = [&self.gate, &self.up, &self.down][part];
        let bias = self.biases.as_ref().map(|biases| biases[part].as_slice());
        Ok(Projection { weight: Matrix::new(w.format, w.rows, w.cols, &w.packed)?, bias })
    }
}

/// What the kernels made of it: the middle image's bytes, and `[slots, hidden]`.
struct Found {
    middle: Vec<u8>,
    out: Vec<f32>,
}

/// Runs both halves over experts that the device knows by `table`.
fn run(
    device: &Device,
    instruction: Instruction,
    (shape, layout, activation): (&Shape, &ExpertLayout, Activation),
    x: &[f32],
    ids: &[u32],
    table: &[u64],
) -> Result<Found, Failed> {
    let (slots, stream) = (ids.len(), device.stream);
    let (order, offsets) = permuted(ids, shape.experts)?;
    let (order, offsets, table) = (device.upload(&order), device.upload(&offsets), device.upload(table));
    let plan = DevicePlan::new(slots, shape.experts, device.poisoned(plan_words(slots, shape.experts).unwrap()))?;
    let bytes = |cols| device.poisoned(slot_image_bytes(slots, shape.experts, cols).unwrap());
    let middle_bytes = bytes(shape.inter);
    let input = DeviceImage::new(shape.hidden, bytes(shape.hidden))?;
    let middle = DeviceImage::new(shape.inter, middle_bytes)?;
    let out = device.poisoned(slots * shape.hidden);
    let cuda = &device.cuda;
    cuda.grouped_plan(stream, offsets, plan)?;
    cuda.pack_slots(stream, device.upload(x), shape.top_k, order, plan, input)?;
    cuda.grouped_gemm_gate_up(stream, instruction, table, layout, plan, input, activation, middle)?;
    cuda.grouped_gemm_down(stream, instruction, table, layout, plan, order, middle, out)?;
    let out = device.download(out);
    Ok(Found { middle: device.download(middle_bytes), out })
}

fn permuted(ids: &[u32], experts: usize) -> Result<(Vec<u32>, Vec<u32>), Failed> {
    let (mut order, mut offsets) = (vec![0; ids.len()], vec![0; experts + 1]);
    twin::permute(ids, experts, &mut order, &mut offsets)?;
    Ok((order, offsets))
}

/// Experts with slots, on the device; the others have no address.
fn uploaded(device: &Device, experts: &[Expert], ids: &[u32]) -> Vec<u64> {
    let used = |expert: usize| ids.contains(&(expert as u32));
    let address = |(at, expert): (usize, &Expert)| if used(at) { device.upload(&expert.bytes).address() } else { 0 };
    experts.iter().enumerate().map(address).collect()
}

fn products(device: &Device, shape: &Shape) -> Result<(), Failed> {
    for (biases, activation) in [(false, Activation::SwiGlu), (true, CLAMPED)] {
        let layout = ExpertLayout::new(shape.format, shape.hidden, shape.inter, biases).unwrap();
        let experts: Vec<Expert> =
            (0..shape.experts).into_par_iter().map(|e| Expert::new(shape, &layout, 10 + 10 * e as u64)).collect();
        let x = awkward(shape.tokens * shape.hidden, 3);
        let ids = shape.ids();
        let table = uploaded(device, &experts, &ids);
        for instruction in instructions(device) {
            let found = run(device, instruction, (shape, &layout, activation), &x, &ids, &table)?;
            let name = format!("{}, {activation:?}", instruction.name());
            halves(&name, shape, activation, &experts, &x, &ids, &found)?;
        }
        against_twin(device, (shape, &layout, activation), &experts, &x, &ids, &table)?;
    }
    Ok(())
}

/// Each half against f64 of its own rounded input.
fn halves(
    name: &str,
    shape: &Shape,
    activation: Activation,
    experts: &[Expert],
    x: &[f32],
    ids: &[u32],
    found: &Found,
) -> Result<(), Failed> {
    let (order, offsets) = permuted(ids, shape.experts)?;
    let groups = shape.inter.div_ceil(128);
    let mut first_block = 0;
    let mut middle = vec![0.0f32; ids.len() * shape.inter];
    for expert in 0..shape.experts {
        let slots = &order[offsets[expert] as usize..offsets[expert + 1] as usize];
        for tile in slots.chunks(128) {
            let panel = &found.middle[first_block * groups * 2048..];
            let blocks = tile.len().div_ceil(8);
            for (row, &slot) in tile.iter().enumerate() {
                for col in 0..shape.inter {
                    middle[slot as usize * shape.inter + col] = panel_element(panel, blocks, row, col);
                }
            }
            for row in tile.len()..8 * blocks {
                for col in 0..groups * 128 {
                    let padding = panel_element(panel, blocks, row, col);
                    if padding.to_bits() != 0 {
                        return Err(format!(
                            "{name}: padding of expert {expert}, row {row}, column {col} is {padding}"
                        )
                        .into());
                    }
                }
            }
            first_block += blocks;
        }
    }
    let x: Vec<f32> = x.iter().map(|&x| rounded(x)).collect();
    within(&format!("{name}, middle"), &middle, |at| {
        let (slot, row) = (at / shape.inter, at % shape.inter);
        let expert = &experts[ids[slot] as usize];
        let x = &x[slot / shape.top_k * shape.hidden..][..shape.hidden];
        let half = |weights: &Weights, part| {
            let (dot, size) = weights.dot(row, x);
            let sum = dot + expert.bias(part, row);
            (
                sum,
                tensor_error(shape.hidden) * size + 2f64.powi(-24) * sum.abs() + shape.hidden as f64 * 2f64.powi(-126),
            )
        };
        activated(activation, half(&expert.gate, 0), half(&expert.up, 1))
    })?;
    within(&format!("{name}, out"), &found.out, |at| {
        let (slot, row) = (at / shape.hidden, at % shape.hidden);
        let expert = &experts[ids[slot] as usize];
        let (dot, size) = expert.down.dot(row, &middle[slot * shape.inter..][..shape.inter]);
        let sum = dot + expert.bias(2, row);
        (sum, tensor_error(shape.inter) * size + 2f64.powi(-24) * sum.abs() + shape.inter as f64 * 2f64.powi(-126))
    })
}

/// Activation of (value, error) pairs, and how far the kernel may be off: the errors carried through, the approximate exponential and
/// division (2^-20 of the result, from an argument that is off by 2^-22 of itself), and the rounding to BF16.
fn activated(activation: Activation, (gate, gate_error): (f64, f64), (up, up_error): (f64, f64)) -> (f64, f64) {
    let (alpha, gate, up) = match activation {
        Activation::SwiGlu => (1.0, gate, up),
        Activation::ClampedSwiGlu { alpha, limit } => {
            let limit = f64::from(limit);
            (f64::from(alpha), gate.min(limit), up.clamp(-limit, limit) + 1.0)
        }
    };
    let sigmoid = 1.0 / (1.0 + (-alpha * gate).exp());
    let (silu, exact) = (gate * sigmoid, gate * sigmoid * up);
    // x sigmoid(alpha x) has a slope of at most 1.1.
    let carried = 1.1 * gate_error * (up.abs() + up_error) + silu.abs() * up_error;
    let exponential = (2f64.powi(-20) + alpha * gate.abs() * 2f64.powi(-22) * (1.0 - sigmoid)) * exact.abs();
    let error = carried + exponential;
    (exact, error + BF16_ROUNDING * (exact.abs() + error) + 2f64.powi(-126))
}

/// Both halves against the twins: the first half is off by the rounding of x and of the middle; the second carries that on.
fn against_twin(
    device: &Device,
    form: (&Shape, &ExpertLayout, Activation),
    experts: &[Expert],
    x: &[f32],
    ids: &[u32],
    table: &[u64],
) -> Result<(), Failed> {
    let (shape, _, activation) = form;
    let (order, offsets) = permuted(ids, shape.experts)?;
    let gate_ups = experts.iter().map(|e| Ok(Some(GateUp { gate: e.projection(0)?, up: e.projection(1)? })));
    let gate_ups = gate_ups.collect::<Result<Vec<_>, Failed>>()?;
    let downs = experts.iter().map(|e| e.projection(2).map(Some)).collect::<Result<Vec<_>, Failed>>()?;
    let (mut middle, mut out) = (vec![0.0; ids.len() * shape.inter], vec![0.0; ids.len() * shape.hidden]);
    // The vectorised versions have the twins' bits, sooner.
    simd::grouped_gate_up(x, shape.top_k, &order, &offsets, &gate_ups, activation, &mut middle)?;
    simd::grouped_down(&middle, &order, &offsets, &downs, &mut out)?;
    let found = run(device, device.cuda.instruction(), form, x, ids, table)?;
    // Errors of the middle, by slot and column.
    let carried: Vec<f64> = (0..middle.len())
        .into_par_iter()
        .map(|at| {
            let (slot, row) = (at / shape.inter, at % shape.inter);
            let expert = &experts[ids[slot] as usize];
            let x = &x[slot / shape.top_k * shape.hidden..][..shape.hidden];
            let half = |weights: &Weights, part| {
                let (dot, size) = weights.dot(row, x);
                let relative = BF16_ROUNDING + 2.0 * tensor_error(shape.hidden);
                (dot + expert.bias(part, row), relative * size + 2f64.powi(-23) * expert.bias(part, row).abs())
            };
            activated(activation, half(&expert.gate, 0), half(&expert.up, 1)).1
        })
        .collect();
    within("both halves against the twins", &found.out, |at| {
        let (slot, row) = (at / shape.hidden, at % shape.hidden);
        let down = &experts[ids[slot] as usize].down;
        let weights = &down.values[row * shape.inter..][..shape.inter];
        let middle = &middle[slot * shape.inter..][..shape.inter];
        let carried = &carried[slot * shape.inter..][..shape.inter];
        let own: f64 =
            weights.iter().zip(middle).zip(carried).map(|((w, &m), c)| w.abs() * (f64::from(m).abs() + c)).sum();
        let moved: f64 = weights.iter().zip(carried).map(|(w, c)| w.abs() * c).sum();
        let twin_out = f64::from(out[at]);
        (twin_out, moved + 2.0 * tensor_error(shape.inter) * own + 2f64.powi(-22) * twin_out.abs() + 2f64.powi(-100))
    })
}

/// A slot has the same bits whatever chunk its token comes in and however full its expert's tiles are.
fn chunks(device: &Device, shape: &Shape) -> Result<(), Failed> {
    let layout = ExpertLayout::new(shape.format, shape.hidden, shape.inter, false).unwrap();
    let experts: Vec<Expert> = (0..shape.experts).map(|e| Expert::new(shape, &layout, 20 + 10 * e as u64)).collect();
    let (x, ids) = (awkward(shape.tokens * shape.hidden, 4), shape.ids());
    let table = uploaded(device, &experts, &ids);
    let form = (shape, &layout, Activation::SwiGlu);
    for instruction in instructions(device) {
        let whole = run(device, instruction, form, &x, &ids, &table)?.out;
        for chunk in [16, 17, 64, 333] {
            let mut parts = Vec::with_capacity(whole.len());
            for (x, ids) in x.chunks(chunk * shape.hidden).zip(ids.chunks(chunk * shape.top_k)) {
                parts.extend(run(device, instruction, form, x, ids, &table)?.out);
            }
            same_bits(&format!("{}, chunks of {chunk}", instruction.name()), &parts, &whole)?;
        }
    }
    Ok(())
}

/// An expert that is routed to and absent is a fault that names it.
fn absent(device: &Device) -> Result<(), Failed> {
    let format = MatrixFormat::Int4;
    let shape = Shape { format, tokens: 3, top_k: 1, experts: 3, spread: Spread::Even, hidden: 128, inter: 128 };
    let layout = ExpertLayout::new(format, shape.hidden, shape.inter, false).unwrap();
    let experts: Vec<Expert> = (0..3).map(|e| Expert::new(&shape, &layout, 30 + 10 * e)).collect();
    let x = awkward(shape.tokens * shape.hidden, 5);
    let table = uploaded(device, &experts, &[0, 2]);
    device.cuda.take_fault();
    run(device, device.cuda.instruction(), (&shape, &layout, Activation::SwiGlu), &x, &[0, 2, 0], &table)?;
    if let Some(fault) = device.cuda.take_fault() {
        return Err(format!("a fault where there is none: {fault:?}").into());
    }
    run(device, device.cuda.instruction(), (&shape, &layout, Activation::SwiGlu), &x, &[0, 1, 2], &table)?;
    match device.cuda.take_fault() {
        Some(Fault::ExpertAbsent(1)) => Ok(()),
        other => Err(format!("expected ExpertAbsent(1), found {other:?}").into()),
    }
}
