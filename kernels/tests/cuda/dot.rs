//! Products in the contract's order: one matrix, and the routed experts.

use assay_kernels::cuda::{DeviceMatrix, DeviceSlice, Fault};
use assay_kernels::layout::{ExpertLayout, MatrixFormat, int4_planes_mut, int8_planes_mut, matrix_bytes};
use assay_kernels::{Activation, GateUp, Matrix, Projection, twin};
use half::bf16;
use libtest_mimic::Failed;

use super::Case;
use super::support::{Device, awkward, same, same_bits};

/// gpt-oss's alpha, and a limit that many of the operands pass.
pub(crate) const CLAMPED: Activation = Activation::ClampedSwiGlu { alpha: 1.702, limit: 2.0 };

pub(crate) fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    for format in MatrixFormat::ALL {
        let mut shapes = Vec::new();
        for cols in [1, 31, 32, 33, 96, 127, 128, 129, 260, 1000, 2048, 2880] {
            shapes.extend([(1, 40, cols), (17, 17, cols)]);
        }
        // Many tokens; more columns than a block holds at a time; more tiles than two for each multiprocessor, and an odd
        // number of them.
        shapes.extend([(127, 33, 160), (1000, 50, 96), (1, 24, 8192), (2, 24, 8193), (1, 20, 14_336), (1, 20, 16_800)]);
        shapes.extend([(1, 8516, 130), (1, 8516, 640), (3, 4300, 33)]);
        for (tokens, rows, cols) in shapes {
            let with_bias = (tokens + rows + cols) % 2 == 0;
            let name = format!("linear::{format:?} {tokens}x{rows}x{cols}, bias {with_bias}");
            cases.push((name, Box::new(move |device| linear(device, format, (tokens, rows, cols), with_bias))));
        }
        for spread in [Spread::Even, Spread::AllOnOne, Spread::Half] {
            for (activation, biases) in [(Activation::SwiGlu, false), (CLAMPED, true)] {
                for sizes in [
                    [1, 8, 24, 2048, 768],
                    [1, 4, 32, 256, 128],
                    [1, 1, 2, 1, 31],
                    [17, 3, 5, 96, 20],
                    [17, 2, 9, 130, 33],
                    [127, 2, 3, 36, 17],
                    [1000, 2, 4, 40, 24],
                    [1, 2, 4, 2880, 1000],
                ] {
                    let case = Experts { format, spread, activation, biases, sizes };
                    let [tokens, top_k, experts, hidden, inner] = sizes;
                    let name = format!(
                        "experts::{format:?} {spread:?} {tokens} top {top_k} of {experts}, {hidden}x{inner}, biases {biases}"
                    );
                    cases.push((name, Box::new(move |device| case.run(device))));
                }
            }
        }
        let faults = move |device: &Device| faults(device, format);
        cases.push((format!("experts::{format:?} absent and impossible ones are reported"), Box::new(faults)));
    }
    cases
}

/// Fills a packed matrix with random weights, and its padding with what must not reach a result.
pub(crate) fn fill(format: MatrixFormat, rows: usize, cols: usize, seed: u64, bytes: &mut [u8]) {
    let random = awkward(bytes.len(), seed);
    match format {
        MatrixFormat::Bf16 => {
            for (at, pair) in bytes.chunks_exact_mut(2).enumerate() {
                let row = at / (16 * cols) * 16 + at % 16;
                let value = if row < rows { bf16::from_f32(random[at]) } else { bf16::NAN };
                pair.copy_from_slice(&value.to_le_bytes());
            }
        }
        MatrixFormat::Int4 | MatrixFormat::Int8 => {
            let groups = cols.div_ceil(128);
            let planes = if format == MatrixFormat::Int4 { int4_planes_mut } else { int8_planes_mut };
            let (integers, scales) = planes(bytes, rows, cols).unwrap();
            for (at, byte) in integers.iter_mut().enumerate() {
                let of = |x: f32, values: u8| (x.to_bits() >> 3) as u8 % values;
                *byte = match format {
                    MatrixFormat::Int8 => of(random[at], 255).wrapping_sub(127),
                    _ => (1 + of(random[at], 15)) | (1 + of(random[at] * 3.0, 15)) << 4,
                };
            }
            for (at, pair) in scales.chunks_exact_mut(2).enumerate() {
                let row = at / (16 * groups) * 16 + at % 16;
                let value = if row < rows { bf16::from_f32(random[at].abs()) } else { bf16::NAN };
                pair.copy_from_slice(&value.to_le_bytes());
            }
        }
    }
}

fn linear(
    device: &Device,
    format: MatrixFormat,
    (tokens, rows, cols): (usize, usize, usize),
    with_bias: bool,
) -> Result<(), Failed> {
    let mut bytes = vec![0; matrix_bytes(format, rows, cols).unwrap()];
    fill(format, rows, cols, 1, &mut bytes);
    let (x, bias) = (awkward(tokens * cols, 2), awkward(rows, 3));
    let bias = with_bias.then_some(bias.as_slice());
    let mut expected = vec![0.0; tokens * rows];
    twin::linear(&x, Matrix::new(format, rows, cols, &bytes)?, bias, &mut expected)?;
    let matrix = DeviceMatrix::new(format, rows, cols, device.upload(&bytes))?;
    let (out, bias) = (device.poisoned(tokens * rows), bias.map(|bias| device.upload(bias)));
    device.cuda.linear(device.stream, device.upload(&x), matrix, bias, out)?;
    same_bits("out", &device.download(out), &expected)?;
    // What is not a number or not finite stays within its token.
    let mut bad = x;
    bad[0] = f32::NAN;
    bad[tokens * cols - 1] = f32::INFINITY;
    twin::linear(&bad, Matrix::new(format, rows, cols, &bytes)?, None, &mut expected)?;
    device.cuda.linear(device.stream, device.upload(&bad), matrix, None, out)?;
    same_bits("out of NaN and inf", &device.download(out), &expected)
}

/// How tokens choose experts.
#[derive(Debug, Clone, Copy)]
enum Spread {
    Even,
    AllOnOne,
    /// Only the even experts; the odd ones have no weights.
    Half,
}

#[derive(Clone, Copy)]
struct Experts {
    format: MatrixFormat,
    spread: Spread,
    activation: Activation,
    biases: bool,
    /// Tokens, top_k, experts, hidden, intermediate.
    sizes: [usize; 5],
}

/// A layer's experts on the host and on the device.
pub(crate) struct Bank {
    pub(crate) layout: ExpertLayout,
    bytes: Vec<u8>,
    biases: Vec<f32>,
    pub(crate) table: Vec<u64>,
}

impl Bank {
    pub(crate) fn new(
        device: &Device,
        format: MatrixFormat,
        experts: usize,
        hidden: usize,
        inner: usize,
        biases: bool,
    ) -> Self {
        let layout = ExpertLayout::new(format, hidden, inner, biases).unwrap();
        // Between the parts, and where biases are padded, lie NaNs.
        let mut bytes = vec![0xFF; experts * layout.bytes];
        let values = awkward(experts * (2 * inner + hidden), 7);
        for (expert, bytes) in bytes.chunks_exact_mut(layout.bytes).enumerate() {
            let seed = 100 + 3 * expert as u64;
            fill(format, inner, hidden, seed, &mut bytes[layout.gate()]);
            fill(format, inner, hidden, seed + 1, &mut bytes[layout.up()]);
            fill(format, hidden, inner, seed + 2, &mut bytes[layout.down()]);
            if let Some(ranges) = layout.biases() {
                let mut from = &values[expert * (2 * inner + hidden)..];
                for range in ranges {
                    let count = range.len() / 4;
                    bytes[range].copy_from_slice(bytemuck::cast_slice(&from[..count]));
                    from = &from[count..];
                }
            }
        }
        let first = device.upload(&bytes).address();
        let table = (0..experts).map(|expert| first + (expert * layout.bytes) as u64).collect();
        Self { layout, bytes, biases: values, table }
    }

    /// Gate, up and down of an expert.
    pub(crate) fn projections(&self, expert: usize) -> [Projection<'_>; 3] {
        let ExpertLayout { format, hidden_size: hidden, moe_intermediate_size: inner, .. } = self.layout;
        let bytes = &self.bytes[expert * self.layout.bytes..][..self.layout.bytes];
        let biases = &self.biases[expert * (2 * inner + hidden)..][..2 * inner + hidden];
        let projection = |rows, cols, range: std::ops::Range<usize>, first: usize| Projection {
            weight: Matrix::new(format, rows, cols, &bytes[range]).unwrap(),
            bias: self.layout.bias_offsets.map(|_| &biases[first..first + rows]),
        };
        [
            projection(inner, hidden, self.layout.gate(), 0),
            projection(inner, hidden, self.layout.up(), inner),
            projection(hidden, inner, self.layout.down(), 2 * inner),
        ]
    }
}

/// What the host has computed of some slots' experts.
pub(crate) struct Answers {
    /// Each slot's, `[hidden]`, where its expert is one of the host's.
    slots: Vec<Option<Vec<f32>>>,
}

impl Answers {
    /// What is not computed here stays as it was.
    pub(crate) fn leave_alone(&self, act: &mut [f32], inner: usize) {
        for (row, _) in act.chunks_exact_mut(inner).zip(&self.slots).filter(|(_, answer)| answer.is_some()) {
            row.fill(f32::from_bits(u32::MAX));
        }
    }

    pub(crate) fn put_in(&self, rows: &mut [f32], hidden: usize) {
        for (row, answer) in rows.chunks_exact_mut(hidden).zip(&self.slots) {
            if let Some(answer) = answer {
                row.copy_from_slice(answer);
            }
        }
    }
}

impl Bank {
    /// Has the table say of every third expert, and of that of the first slot, what it gives instead of where its weights lie.
    pub(crate) fn answer(&mut self, device: &Device, ids: &[u32]) -> Answers {
        let hidden = self.layout.hidden_size;
        let chosen = |expert: usize| expert % 3 == 1 || expert == ids[0] as usize;
        let answer = |expert: usize| awkward(hidden, 40 + expert as u64);
        for (expert, entry) in self.table.iter_mut().enumerate().filter(|(expert, _)| chosen(*expert)) {
            *entry = device.upload(&answer(expert)).address() + 1;
        }
        let slots = ids.iter().map(|&id| chosen(id as usize).then(|| answer(id as usize))).collect();
        Answers { slots }
    }
}

impl Experts {
    fn ids(&self) -> Vec<u32> {
        let [tokens, top_k, experts, ..] = self.sizes;
        (0..tokens * top_k)
            .map(|slot| {
                let (first, rank) = (slot / top_k * 5, slot % top_k);
                (match self.spread {
                    Spread::Even => (first + rank * 7) % experts,
                    Spread::AllOnOne => experts - 1,
                    Spread::Half => (first + rank) % experts / 2 * 2,
                }) as u32
            })
            .collect()
    }

    fn run(&self, device: &Device) -> Result<(), Failed> {
        self.run_with(device, false)?;
        self.run_with(device, true)
    }

    fn run_with(&self, device: &Device, by_host: bool) -> Result<(), Failed> {
        let [tokens, top_k, experts, hidden, inner] = self.sizes;
        let mut bank = Bank::new(device, self.format, experts, hidden, inner, self.biases);
        if matches!(self.spread, Spread::Half) {
            bank.table.iter_mut().skip(1).step_by(2).for_each(|entry| *entry = u64::MAX);
        }
        let ids = self.ids();
        let (mut order, mut offsets) = (vec![0; ids.len()], vec![0; experts + 1]);
        twin::permute(&ids, experts, &mut order, &mut offsets)?;
        let answers = by_host.then(|| bank.answer(device, &ids));
        let parts: Vec<[Projection<'_>; 3]> = (0..experts).map(|expert| bank.projections(expert)).collect();
        let gate_up: Vec<_> = parts.iter().map(|&[gate, up, _]| Some(GateUp { gate, up })).collect();
        let down: Vec<_> = parts.iter().map(|&[_, _, down]| Some(down)).collect();

        let (ids, table) = (device.upload(&ids), device.upload(&bank.table));
        let x = awkward(tokens * hidden, 4);
        let mut act = vec![0.0; tokens * top_k * inner];
        twin::grouped_gate_up(&x, top_k, &order, &offsets, &gate_up, self.activation, &mut act)?;
        let out = device.poisoned(act.len());
        let x = device.upload(&x);
        device.cuda.grouped_gate_up(device.stream, x, top_k, ids, table, &bank.layout, self.activation, out)?;
        if let Some(answers) = &answers {
            answers.leave_alone(&mut act, inner);
        }
        same_bits("gate and up", &device.download(out), &act)?;

        // From the range of an activation, whatever gate and up gave.
        let act = awkward(act.len(), 5);
        let mut rows = vec![0.0; tokens * top_k * hidden];
        twin::grouped_down(&act, &order, &offsets, &down, &mut rows)?;
        if let Some(answers) = &answers {
            answers.put_in(&mut rows, hidden);
        }
        let out = device.poisoned(rows.len());
        device.cuda.grouped_down(device.stream, device.upload(&act), ids, table, &bank.layout, out)?;
        same_bits("down", &device.download(out), &rows)?;
        same("fault", &[device.cuda.take_fault()], &[None])
    }
}

fn faults(device: &Device, format: MatrixFormat) -> Result<(), Failed> {
    let (hidden, inner) = (64, 48);
    let mut bank = Bank::new(device, format, 4, hidden, inner, false);
    bank.table[2] = 0;
    bank.table[3] = u64::MAX;
    let table = device.upload(&bank.table);
    let x = device.upload(&awkward(hidden, 6));
    for (ids, fault) in [
        ([1, 0, 2], Fault::ExpertAbsent(2)),
        ([1, 0, 3], Fault::ExpertAbsent(3)),
        ([1, 0, 4], Fault::Index(2)),
        ([1, 0, u32::MAX], Fault::Index(2)),
    ] {
        let ids = device.upload(&ids);
        let act: DeviceSlice<f32> = device.poisoned(3 * inner);
        device.cuda.grouped_gate_up(device.stream, x, 3, ids, table, &bank.layout, Activation::SwiGlu, act)?;
        let found = device.download(act);
        same("fault of gate and up", &[device.cuda.take_fault()], &[Some(fault)])?;
        // The other slots are done, this one is left alone.
        let done: Vec<bool> = found.iter().map(|x| !x.is_nan()).collect();
        same("slots done", &done, &(0..3 * inner).map(|at| at < 2 * inner).collect::<Vec<bool>>())?;
        let out = device.poisoned(3 * hidden);
        device.cuda.grouped_down(device.stream, act, ids, table, &bank.layout, out)?;
        device.download(out);
        same("fault of down", &[device.cuda.take_fault()], &[Some(fault)])?;
    }
    Ok(())
}
