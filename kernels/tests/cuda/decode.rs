//! The fused kernels of decode against the composition of their twins.

use assay_kernels::cuda::decode::{AttendForm, HeadNorms, Projected, Rope, RoutedExperts, route_workspace_bytes};
use assay_kernels::cuda::{DeviceMatrix, DeviceSlice, Fault, attention_workspace_bytes};
use assay_kernels::layout::{MatrixFormat, matrix_bytes, pack_bf16};
use assay_kernels::{
    Activation, AttentionForm, GateUp, KvFormat, KvLayout, Matrix, Projection, Routing, Scoring, twin,
};
use libtest_mimic::Failed;

use super::Case;
use super::dot::{Bank, CLAMPED, fill};
use super::support::{Device, awkward, same, same_bits};

const EPS: f32 = 1e-6;

pub(crate) fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    let mut case = |name: String, run: super::Run| cases.push((name, run));
    for cols in [4, 96, 128, 260, 1000, 2048, 2880, 4096] {
        for (rows, bias) in [(vec![40, 17, 16], true), (vec![17], false), (vec![512, 128], false)] {
            let name = format!("decode::norm, linear {rows:?}x{cols}, bias {bias}");
            case(name, Box::new(move |device| norm_linear(device, &rows, cols, bias)));
        }
        for (rows, bias) in [(40, true), (2048, false)] {
            let name = format!("decode::linear, add {rows}x{cols}, bias {bias}");
            case(name, Box::new(move |device| linear_add(device, rows, cols, bias)));
        }
    }
    case("decode::norm, linear with many tiles".into(), Box::new(|device| norm_linear(device, &[20_011], 260, false)));
    // So many columns that one pair of tiles fits.
    case("decode::norm, linear with a place".into(), Box::new(|device| norm_linear(device, &[30_000], 4096, true)));
    case("decode::linear, add with many tiles".into(), Box::new(|device| linear_add(device, 30_000, 128, true)));
    case("decode::a form that is not there".into(), Box::new(absent_form));
    for scoring in [Scoring::Softmax, Scoring::SoftmaxOfChosen, Scoring::Sigmoid] {
        for (experts, cols, top_k) in
            [(1, 4, 1), (10, 96, 4), (60, 2880, 4), (128, 2048, 8), (256, 1000, 8), (1024, 128, 32)]
        {
            for biases in [false, true] {
                let name = format!("decode::route {scoring:?} {top_k} of {experts}, {cols} columns, biases {biases}");
                case(name, Box::new(move |device| route(device, scoring, (experts, cols, top_k), biases)));
            }
        }
    }
    case("decode::route reports a NaN".into(), Box::new(route_nan));
    for top_k in [1, 8, 31, 32] {
        case(
            format!("decode::route {top_k} of many that are nearly equal"),
            Box::new(move |device| near_ties(device, top_k)),
        );
    }
    for (activation, biases) in [(Activation::SwiGlu, false), (CLAMPED, true)] {
        for sizes in [
            [8, 128, 2048, 768],
            [4, 32, 256, 128],
            [1, 2, 4, 32],
            [3, 5, 96, 20],
            [2, 4, 2880, 1000],
            [8, 9, 1000, 1200],
            [32, 40, 128, 64],
        ] {
            for by_host in [false, true] {
                let name = format!("decode::experts {sizes:?}, biases {biases}, some by the host {by_host}");
                case(name, Box::new(move |device| experts(device, sizes, (activation, biases), by_host)));
            }
        }
    }
    case("decode::absent and impossible experts are reported".into(), Box::new(expert_faults));
    for shape in Attend::shapes() {
        case(format!("decode::attend {shape:?}"), Box::new(move |device| shape.run(device)));
    }
    cases
}

fn int4(device: &Device, rows: usize, cols: usize, seed: u64) -> Result<(Vec<u8>, DeviceMatrix), Failed> {
    matrix(device, MatrixFormat::Int4, rows, cols, seed)
}

fn matrix(
    device: &Device,
    format: MatrixFormat,
    rows: usize,
    cols: usize,
    seed: u64,
) -> Result<(Vec<u8>, DeviceMatrix), Failed> {
    let mut bytes = vec![0; matrix_bytes(format, rows, cols).unwrap()];
    fill(format, rows, cols, seed, &mut bytes);
    let there = DeviceMatrix::new(format, rows, cols, device.upload(&bytes))?;
    Ok((bytes, there))
}

fn launched(fused: bool) -> Result<(), Failed> {
    if fused { Ok(()) } else { Err("there is no form, expected a launch".into()) }
}

fn norm_linear(device: &Device, rows: &[usize], cols: usize, with_bias: bool) -> Result<(), Failed> {
    let (x, norm) = (awkward(cols, 1), awkward(cols, 2));
    let mut normed = vec![0.0; cols];
    twin::rms_norm(&x, &norm, EPS, &mut normed)?;
    let (mut outputs, mut expected) = (Vec::new(), Vec::new());
    for (index, &rows) in rows.iter().enumerate() {
        let (bytes, weight) = int4(device, rows, cols, 3 + index as u64)?;
        let bias = with_bias.then(|| awkward(rows, 9 + index as u64));
        let mut answer = vec![0.0; rows];
        twin::linear(&normed, Matrix::new(MatrixFormat::Int4, rows, cols, &bytes)?, bias.as_deref(), &mut answer)?;
        expected.push(answer);
        let bias = bias.map(|bias| device.upload(&bias));
        outputs.push(Projected { weight, bias, out: device.poisoned(rows) });
    }
    let (x, norm, there) = (device.upload(&x), device.upload(&norm), device.poisoned(cols));
    for _ in 0..2 {
        launched(device.cuda.norm_linear(device.stream, x, (norm, EPS), there, &outputs)?)?;
        same_bits("normed", &device.download(there), &normed)?;
        for (index, (output, expected)) in outputs.iter().zip(&expected).enumerate() {
            same_bits(&format!("output {index}"), &device.download(output.out), expected)?;
        }
    }
    Ok(())
}

fn linear_add(device: &Device, rows: usize, cols: usize, with_bias: bool) -> Result<(), Failed> {
    let (bytes, weight) = int4(device, rows, cols, 1)?;
    let (x, bias) = (awkward(cols, 2), with_bias.then(|| awkward(rows, 3)));
    let (mut residual, mut answer) = (awkward(rows, 4), vec![0.0; rows]);
    let there = device.upload(&residual);
    twin::linear(&x, Matrix::new(MatrixFormat::Int4, rows, cols, &bytes)?, bias.as_deref(), &mut answer)?;
    let (x, bias) = (device.upload(&x), bias.map(|bias| device.upload(&bias)));
    for factor in [1.0, 0.22] {
        twin::add_assign(&mut residual, &answer, factor)?;
        launched(device.cuda.linear_add(device.stream, x, weight, bias, factor, there)?)?;
    }
    same_bits("residual", &device.download(there), &residual)
}

/// Two tokens, BF16, and columns that sixteen bytes do not divide: nothing is launched.
fn absent_form(device: &Device) -> Result<(), Failed> {
    for (format, tokens, cols) in [
        (MatrixFormat::Int4, 2, 128),
        (MatrixFormat::Bf16, 1, 128),
        (MatrixFormat::Int8, 1, 128),
        (MatrixFormat::Int4, 1, 130),
    ] {
        let (_, weight) = matrix(device, format, 16, cols, 1)?;
        let (x, norm) = (device.upload(&awkward(tokens * cols, 2)), device.upload(&awkward(cols, 3)));
        let (normed, out) = (device.poisoned::<f32>(tokens * cols), device.poisoned::<f32>(tokens * 16));
        let output = Projected { weight, bias: None, out };
        let norm_linear = device.cuda.norm_linear(device.stream, x, (norm, EPS), normed, &[output])?;
        let linear_add = device.cuda.linear_add(device.stream, x, weight, None, 1.0, out)?;
        same("launched", &[norm_linear, linear_add], &[false, false])?;
        same("written", &[device.download(out).iter().all(|x| x.is_nan())], &[true])?;
    }
    Ok(())
}

fn routing(scoring: Scoring) -> Routing {
    Routing { scoring, scaling_factor: 2.5, ..Routing::softmax(true) }
}

fn route(
    device: &Device,
    scoring: Scoring,
    (experts, cols, top_k): (usize, usize, usize),
    biases: bool,
) -> Result<(), Failed> {
    let (bytes, router) = matrix(device, MatrixFormat::Bf16, experts, cols, 1)?;
    let (x, norm) = (awkward(cols, 2), awkward(cols, 3));
    // Small enough for a softmax to have several that are not 0.
    let norm: Vec<f32> = norm.iter().map(|x| x.clamp(-1.0, 1.0) * 1e-3).collect();
    let router_bias = biases.then(|| awkward(experts, 4).iter().map(|x| x.clamp(-1.0, 1.0)).collect::<Vec<f32>>());
    let bias = biases.then(|| awkward(experts, 5).iter().map(|x| x.clamp(-0.1, 0.1)).collect::<Vec<f32>>());
    let mut normed = vec![0.0; cols];
    twin::rms_norm(&x, &norm, EPS, &mut normed)?;
    let (mut logits, mut ids, mut weights) = (vec![0.0; experts], vec![0; top_k], vec![0.0; top_k]);
    let weight = Matrix::new(MatrixFormat::Bf16, experts, cols, &bytes)?;
    twin::linear(&normed, weight, router_bias.as_deref(), &mut logits)?;
    twin::router_topk(&logits, bias.as_deref(), experts, top_k, &routing(scoring), &mut ids, &mut weights)?;
    let (x, norm) = (device.upload(&x), device.upload(&norm));
    let (router_bias, bias) = (router_bias.map(|x| device.upload(&x)), bias.map(|x| device.upload(&x)));
    let scratch = device.poisoned(route_workspace_bytes(experts, cols).unwrap());
    // Twice: the ticket is as it was.
    for _ in 0..2 {
        let (normed_there, ids_there, weights_there) =
            (device.poisoned(cols), device.poisoned(top_k), device.poisoned(top_k));
        let (how, chosen) = ((top_k, &routing(scoring)), (ids_there, weights_there));
        let fused = device.cuda.norm_route(
            device.stream,
            x,
            (norm, EPS),
            normed_there,
            (router, router_bias),
            bias,
            how,
            scratch,
            chosen,
        )?;
        launched(fused)?;
        same_bits("normed", &device.download(normed_there), &normed)?;
        same("ids", &device.download(ids_there), &ids)?;
        same_bits("weights", &device.download(weights_there), &weights)?;
        same("fault", &[device.cuda.take_fault()], &[None])?;
    }
    Ok(())
}

/// Logits that are equal, or different while their scores are equal: the lower index comes first.
fn near_ties(device: &Device, top_k: usize) -> Result<(), Failed> {
    const EXPERTS: usize = 128;
    const COLS: usize = 4;
    // 1 and 2^-22 times the norm's 1: logits are neighbours above 1.
    let (x, norm) = ([1.0f32; COLS], [1.0, 2.0f32.powi(-22), 0.0, 0.0]);
    let values: Vec<f32> = (0..EXPERTS).flat_map(|e| [1.0, ((e * 5 + 3) % 7) as f32, 0.0, 0.0]).collect();
    let mut bytes = vec![0; matrix_bytes(MatrixFormat::Bf16, EXPERTS, COLS).unwrap()];
    pack_bf16(&values, EXPERTS, COLS, &mut bytes)?;
    let weight = Matrix::new(MatrixFormat::Bf16, EXPERTS, COLS, &bytes)?;
    let (mut normed, mut logits) = ([0.0; COLS], [0.0; EXPERTS]);
    twin::rms_norm(&x, &norm, EPS, &mut normed)?;
    twin::linear(&normed, weight, None, &mut logits)?;
    let (mut ids, mut weights) = (vec![0; top_k], vec![0.0; top_k]);
    let routing = routing(Scoring::Softmax);
    twin::router_topk(&logits, None, EXPERTS, top_k, &routing, &mut ids, &mut weights)?;
    let distinct: std::collections::BTreeSet<u32> = logits.iter().map(|logit| logit.to_bits()).collect();
    let first = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let by_logit = (0..EXPERTS).find(|&e| logits[e] == first);
    same("several logits", &[distinct.len() > 3], &[true])?;
    println!("{} logits, the largest of {by_logit:?}, chosen {ids:?}", distinct.len());
    let router = DeviceMatrix::new(MatrixFormat::Bf16, EXPERTS, COLS, device.upload(&bytes))?;
    let scratch = device.poisoned(route_workspace_bytes(EXPERTS, COLS).unwrap());
    let (ids_there, weights_there) = (device.poisoned(top_k), device.poisoned(top_k));
    let (x, norm) = (device.upload(&x), (device.upload(&norm), EPS));
    let (how, chosen, normed) = ((top_k, &routing), (ids_there, weights_there), device.poisoned(COLS));
    launched(device.cuda.norm_route(device.stream, x, norm, normed, (router, None), None, how, scratch, chosen)?)?;
    same("ids", &device.download(ids_there), &ids)?;
    same_bits("weights", &device.download(weights_there), &weights)?;
    same("fault", &[device.cuda.take_fault()], &[None])
}

fn route_nan(device: &Device) -> Result<(), Failed> {
    let (experts, cols, top_k) = (40, 256, 4);
    let (_, router) = matrix(device, MatrixFormat::Bf16, experts, cols, 1)?;
    let (x, norm) = (device.upload(&awkward(cols, 2)), device.upload(&awkward(cols, 3)));
    let mut bias = vec![0.0; experts];
    bias[33] = f32::NAN;
    let scratch = device.poisoned(route_workspace_bytes(experts, cols).unwrap());
    let (ids, weights) = (device.poisoned(top_k), device.poisoned(top_k));
    let (router, how) = ((router, Some(device.upload(&bias))), (top_k, &routing(Scoring::Sigmoid)));
    let normed = device.poisoned(cols);
    let (norm, chosen) = ((norm, EPS), (ids, weights));
    launched(device.cuda.norm_route(device.stream, x, norm, normed, router, None, how, scratch, chosen)?)?;
    let possible = device.download(ids).iter().all(|&id: &u32| (id as usize) < experts);
    same("ids in range", &[possible], &[true])?;
    same("fault", &[device.cuda.take_fault()], &[Some(Fault::NotANumber(33))])
}

fn experts(
    device: &Device,
    [top_k, experts, hidden, inner]: [usize; 4],
    (activation, biases): (Activation, bool),
    by_host: bool,
) -> Result<(), Failed> {
    let mut bank = Bank::new(device, MatrixFormat::Int4, experts, hidden, inner, biases);
    let ids: Vec<u32> = (0..top_k).map(|rank| ((3 + rank * 7) % experts) as u32).collect();
    let (mut order, mut offsets) = (vec![0; top_k], vec![0; experts + 1]);
    twin::permute(&ids, experts, &mut order, &mut offsets)?;
    let answers = by_host.then(|| bank.answer(device, &ids));
    let parts: Vec<[Projection<'_>; 3]> = (0..experts).map(|expert| bank.projections(expert)).collect();
    let gate_up: Vec<_> = parts.iter().map(|&[gate, up, _]| Some(GateUp { gate, up })).collect();
    let down: Vec<_> = parts.iter().map(|&[_, _, down]| Some(down)).collect();
    let (x, weights) = (awkward(hidden, 4), awkward(top_k, 5));
    let mut act = vec![0.0; top_k * inner];
    twin::grouped_gate_up(&x, top_k, &order, &offsets, &gate_up, activation, &mut act)?;
    let routed = RoutedExperts { ids: device.upload(&ids), table: device.upload(&bank.table), layout: bank.layout };
    let there = device.poisoned(act.len());
    let (cuda, stream) = (&device.cuda, device.stream);
    launched(cuda.token_gate_up(stream, device.upload(&x), routed, activation, there)?)?;
    if let Some(answers) = &answers {
        answers.leave_alone(&mut act, inner);
    }
    same_bits("gate and up", &device.download(there), &act)?;
    // From the range of an activation, whatever gate and up gave.
    let act = awkward(act.len(), 6);
    let (mut slots, mut combined, mut residual) = (vec![0.0; top_k * hidden], vec![0.0; hidden], awkward(hidden, 7));
    let residual_there = device.upload(&residual);
    twin::grouped_down(&act, &order, &offsets, &down, &mut slots)?;
    if let Some(answers) = &answers {
        answers.put_in(&mut slots, hidden);
    }
    twin::combine(&slots, &weights, top_k, &mut combined)?;
    let (act, weights) = (device.upload(&act), device.upload(&weights));
    for factor in [1.0, 0.22] {
        twin::add_assign(&mut residual, &combined, factor)?;
        launched(cuda.token_down(stream, act, routed, weights, factor, residual_there)?)?;
    }
    same_bits("residual", &device.download(residual_there), &residual)?;
    same("fault", &[cuda.take_fault()], &[None])
}

fn expert_faults(device: &Device) -> Result<(), Failed> {
    let (hidden, inner) = (64, 48);
    let mut bank = Bank::new(device, MatrixFormat::Int4, 4, hidden, inner, false);
    bank.table[2] = 0;
    bank.table[3] = u64::MAX;
    let (cuda, stream, table) = (&device.cuda, device.stream, device.upload(&bank.table));
    let (x, act) = (device.upload(&awkward(hidden, 6)), device.upload(&awkward(3 * inner, 7)));
    for (ids, fault) in
        [([1, 0, 2], Fault::ExpertAbsent(2)), ([1, 3, 0], Fault::ExpertAbsent(3)), ([1, 0, 4], Fault::Index(2))]
    {
        let routed = RoutedExperts { ids: device.upload(&ids), table, layout: bank.layout };
        let out: DeviceSlice<f32> = device.poisoned(3 * inner);
        launched(cuda.token_gate_up(stream, x, routed, Activation::SwiGlu, out)?)?;
        device.download(out);
        same("fault of gate and up", &[cuda.take_fault()], &[Some(fault)])?;
        let residual = awkward(hidden, 8);
        let there = device.upload(&residual);
        launched(cuda.token_down(stream, act, routed, device.upload(&[0.5; 3]), 1.0, there)?)?;
        same_bits("what an absent expert leaves alone", &device.download(there), &residual)?;
        same("fault of down", &[cuda.take_fault()], &[Some(fault)])?;
    }
    Ok(())
}

/// One token's attention, with what stands before it.
#[derive(Clone, Copy)]
struct Attend {
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    rotary_dim: usize,
    position: usize,
    /// Positions behind it that there is room for: a captured launch is made for the last of them.
    room: usize,
    window: Option<usize>,
    sinks: bool,
    norms: bool,
}

impl std::fmt::Debug for Attend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { heads, kv_heads, head_dim, rotary_dim, position, room, window, sinks, norms } = self;
        let window = window.unwrap_or(0);
        write!(f, "{heads}/{kv_heads}x{head_dim} (rotary {rotary_dim}) at {position} + {room}, window {window}, ")?;
        write!(f, "sinks {sinks}, norms {norms}")
    }
}

impl Attend {
    fn shapes() -> Vec<Self> {
        let base = Self {
            heads: 32,
            kv_heads: 4,
            head_dim: 128,
            rotary_dim: 128,
            position: 0,
            room: 140,
            window: None,
            sinks: false,
            norms: true,
        };
        let mut shapes = Vec::new();
        // Borders of runs, splits and of what the last block merges by itself.
        for position in [0, 1, 31, 32, 100, 127, 128, 129, 255, 256, 1000, 1023, 1024, 1100, 2100, 4200] {
            shapes.push(Self { position, ..base });
            shapes.push(Self { position, heads: 6, kv_heads: 2, head_dim: 64, rotary_dim: 32, sinks: true, ..base });
        }
        for (heads, kv_heads, head_dim) in
            [(4, 4, 32), (3, 1, 32), (5, 1, 96), (24, 2, 64), (16, 1, 128), (40, 1, 32), (8, 1, 128)]
        {
            for position in [40, 300, 1500] {
                let shape = Self { heads, kv_heads, head_dim, rotary_dim: head_dim, position, ..base };
                shapes.push(Self { norms: false, ..shape });
                shapes.push(Self { sinks: true, ..shape });
            }
        }
        // Many splits of wide heads, more of them than blocks too; heads that do not fill a block, of which a part turns; a window's first split.
        for (heads, kv_heads, rotary_dim) in [(8, 1, 128), (32, 4, 64), (24, 4, 128), (20, 5, 128), (12, 1, 32)] {
            for (position, window) in [(4200, Some(3000)), (9000, None), (13_000, Some(12_345))] {
                let shape = Self { heads, kv_heads, rotary_dim, position, window, ..base };
                shapes.push(Self { sinks: true, norms: heads != 12, ..shape });
            }
        }
        for position in [3, 128, 700, 3000] {
            shapes.push(Self { position, room: 6000, ..base });
            shapes.push(Self { position, room: 6000, heads: 16, sinks: true, ..base });
        }
        for window in [1, 31, 100, 128, 129, 200, 1000] {
            for position in [90, 383, 1300] {
                let window = Some(window);
                shapes.push(Self { heads: 4, kv_heads: 2, head_dim: 64, rotary_dim: 64, position, window, ..base });
            }
        }
        shapes
    }

    fn run(&self, device: &Device) -> Result<(), Failed> {
        let Self { heads, kv_heads, head_dim, rotary_dim, position, room, window, sinks, norms } = *self;
        let capacity_tokens = position + room;
        let layout = KvLayout { format: KvFormat::Bf16, capacity_tokens, kv_heads, head_dim };
        let tame = |len: usize, seed: u64| awkward(len, seed).iter().map(|x| x.clamp(-1.5, 1.5)).collect::<Vec<f32>>();
        // Other positions are NaN.
        let mut cache = vec![0xFF; layout.bytes().unwrap()];
        let width = kv_heads * head_dim;
        twin::kv_append(&tame(position * width, 1), &awkward(position * width, 2), 0, layout, &mut cache)?;
        let (mut q, mut k, v) = (tame(heads * head_dim, 3), tame(width, 4), awkward(width, 5));
        let norms = norms.then(|| (tame(head_dim, 6), tame(head_dim, 7)));
        let (cos, sin) = (tame(capacity_tokens * rotary_dim / 2, 8), tame(capacity_tokens * rotary_dim / 2, 9));
        let sinks = sinks.then(|| tame(heads, 10));
        let rows = [device.upload(&q), device.upload(&k), device.upload(&v)];
        let caches = [device.upload(&cache), device.upload(&cache)];
        let (q_norm, k_norm) = (norms.as_ref().map(|norms| &norms.0), norms.as_ref().map(|norms| &norms.1));

        let q_weight = q_norm.map(Vec::as_slice);
        let k_weight = k_norm.map(Vec::as_slice);
        twin::head_norm_rope(&mut q, heads, head_dim, rotary_dim, q_weight, EPS, &cos, &sin, position)?;
        twin::head_norm_rope(&mut k, kv_heads, head_dim, rotary_dim, k_weight, EPS, &cos, &sin, position)?;
        twin::kv_append(&k, &v, position, layout, &mut cache)?;
        let form = AttentionForm { scale: 0.3, window, sinks: sinks.as_deref() };
        let mut expected = vec![0.0; q.len()];
        twin::attention(&q, heads, position, layout, &cache, form, &mut expected)?;

        let norms = HeadNorms { q: q_norm.map(|x| device.upload(x)), k: k_norm.map(|x| device.upload(x)), eps: EPS };
        let rope = Rope { rotary_dim, cos: device.upload(&cos), sin: device.upload(&sin) };
        let form = AttendForm { scale: 0.3, window, sinks: sinks.as_ref().map(|x| device.upload(x)) };
        // The position as an argument, and out of device memory with the largest that there is room for as its bound.
        let stored = (capacity_tokens - 1, Some(device.upload(&[position as u32])));
        for (first, there) in [(position, None), stored].into_iter().zip(caches) {
            let out = device.poisoned(q.len());
            let bytes = attention_workspace_bytes(1, heads, head_dim, first.0 + 1).unwrap();
            let (scratch, cuda) = (device.poisoned(bytes), &device.cuda);
            let placed = (layout, there);
            launched(cuda.attend(device.stream, rows, norms, rope, first, placed, form, scratch, out)?)?;
            same_bits(&format!("out, {first:?}"), &device.download(out), &expected)?;
            same("cache", &device.download(there), &cache)?;
        }
        Ok(())
    }
}
