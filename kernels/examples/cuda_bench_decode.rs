//! One token's kernels in the shape of Qwen3-30B-A3B, all in 4 bits: fused and apart, alone, as layers, as a whole token:
//! `cargo run --release -p assay-kernels --example cuda_bench_decode [POSITION...]`.
//!
//! Every layer has weights of its own, so none comes out of the level-2 cache. A figure is the median of 15 replays of a graph of all layers.
#![allow(clippy::unwrap_used)]

mod support;

use assay_kernels::cuda::decode::{AttendForm, HeadNorms, Projected, Rope, RoutedExperts, route_workspace_bytes};
use assay_kernels::cuda::{Cuda, CudaError, DeviceMatrix, DeviceSlice, attention_workspace_bytes};
use assay_kernels::layout::{ExpertLayout, MatrixFormat, matrix_bytes};
use assay_kernels::{Activation, KvFormat, KvLayout, Routing};
use support::Bench;

const LAYERS: usize = 48;
const HIDDEN: usize = 2048;
const INTER: usize = 768;
const EXPERTS: usize = 128;
const TOP_K: usize = 8;
const HEADS: usize = 32;
const KV_HEADS: usize = 4;
const HEAD_DIM: usize = 128;
const Q: usize = HEADS * HEAD_DIM;
const KV: usize = KV_HEADS * HEAD_DIM;
const VOCABULARY: usize = 151_936;
const EPS: f32 = 1e-6;
const SCALE: f32 = 0.088;

/// The fused kernels of a layer, in their order.
const PARTS: [&str; 6] = [
    "norm, q, k, v",
    "norm, rope, append, attention",
    "o, add",
    "norm, router, choice",
    "gate, up",
    "down, combine, add",
];

#[derive(Clone, Copy)]
struct Layer {
    q: DeviceMatrix,
    k: DeviceMatrix,
    v: DeviceMatrix,
    o: DeviceMatrix,
    router: DeviceMatrix,
    table: DeviceSlice<u64>,
    cache: DeviceSlice<u8>,
}

/// A model's weights, and one token's activations.
struct Token<'a> {
    bench: &'a Bench,
    layers: Vec<Layer>,
    head: DeviceMatrix,
    embedding: DeviceMatrix,
    experts: ExpertLayout,
    kv: KvLayout,
    position: usize,
    norm: DeviceSlice<f32>,
    head_norm: DeviceSlice<f32>,
    rope: DeviceSlice<f32>,
    x: DeviceSlice<f32>,
    normed: DeviceSlice<f32>,
    q: DeviceSlice<f32>,
    k: DeviceSlice<f32>,
    v: DeviceSlice<f32>,
    attended: DeviceSlice<f32>,
    branch: DeviceSlice<f32>,
    logits: DeviceSlice<f32>,
    router_logits: DeviceSlice<f32>,
    ids: DeviceSlice<u32>,
    weights: DeviceSlice<f32>,
    act: DeviceSlice<f32>,
    slots: DeviceSlice<f32>,
    chosen: DeviceSlice<u32>,
    token: DeviceSlice<u32>,
    scratch: DeviceSlice<u8>,
}

fn matrix(bench: &Bench, format: MatrixFormat, rows: usize, cols: usize) -> DeviceMatrix {
    let bytes = matrix_bytes(format, rows, cols).unwrap();
    DeviceMatrix::new(format, rows, cols, bench.bytes(bytes, 0x39)).unwrap()
}

impl<'a> Token<'a> {
    fn new(bench: &'a Bench, position: usize) -> Self {
        let int4 = |rows, cols| matrix(bench, MatrixFormat::Int4, rows, cols);
        let experts = ExpertLayout::new(MatrixFormat::Int4, HIDDEN, INTER, false).unwrap();
        let kv =
            KvLayout { format: KvFormat::Bf16, capacity_tokens: position + 1, kv_heads: KV_HEADS, head_dim: HEAD_DIM };
        let layer = || {
            let bank = bench.bytes(EXPERTS * experts.bytes, 0x39).address();
            // Not neighbours, as chosen experts are.
            let place = |expert: usize| expert * 37 % EXPERTS;
            let table: Vec<u64> = (0..EXPERTS).map(|e| bank + (place(e) * experts.bytes) as u64).collect();
            Layer {
                q: int4(Q, HIDDEN),
                k: int4(KV, HIDDEN),
                v: int4(KV, HIDDEN),
                o: int4(HIDDEN, Q),
                router: matrix(bench, MatrixFormat::Bf16, EXPERTS, HIDDEN),
                table: bench.upload(&table),
                cache: bench.bytes(kv.bytes().unwrap(), 0x3c),
            }
        };
        let layers = (0..LAYERS).map(|_| layer()).collect();
        let attention = attention_workspace_bytes(1, HEADS, HEAD_DIM, position + 1).unwrap();
        Self {
            bench,
            layers,
            head: int4(VOCABULARY, HIDDEN),
            embedding: matrix(bench, MatrixFormat::Bf16, 4096, HIDDEN),
            experts,
            kv,
            position,
            norm: bench.floats(HIDDEN),
            head_norm: bench.floats(HEAD_DIM),
            rope: bench.floats((position + 1) * HEAD_DIM / 2),
            x: bench.floats(HIDDEN),
            normed: bench.floats(HIDDEN),
            q: bench.floats(Q),
            k: bench.floats(KV),
            v: bench.floats(KV),
            attended: bench.floats(Q),
            branch: bench.floats(HIDDEN),
            logits: bench.floats(VOCABULARY),
            router_logits: bench.floats(EXPERTS),
            ids: bench.upload(&(0..TOP_K as u32).collect::<Vec<u32>>()),
            weights: bench.floats(TOP_K),
            act: bench.floats(TOP_K * INTER),
            slots: bench.floats(TOP_K * HIDDEN),
            chosen: bench.memory(1),
            token: bench.upload(&[77u32]),
            scratch: bench.bytes(attention.max(route_workspace_bytes(EXPERTS, HIDDEN).unwrap()), 0),
        }
    }

    /// One fused kernel of a layer.
    fn part(&self, part: usize, layer: usize) -> Result<(), CudaError> {
        let (cuda, stream, layer) = (&self.bench.cuda, self.bench.stream, self.layers[layer]);
        let norm = (self.norm, EPS);
        let experts = RoutedExperts { ids: self.ids, table: layer.table, layout: self.experts };
        let projected = |weight, out| Projected { weight, bias: None, out };
        let fused = match part {
            0 => {
                let outputs = [projected(layer.q, self.q), projected(layer.k, self.k), projected(layer.v, self.v)];
                cuda.norm_linear(stream, self.x, norm, self.normed, &outputs)?
            }
            1 => {
                let norms = HeadNorms { q: Some(self.head_norm), k: Some(self.head_norm), eps: EPS };
                let rope = Rope { rotary_dim: HEAD_DIM, cos: self.rope, sin: self.rope };
                let form = AttendForm { scale: SCALE, window: None, sinks: None };
                let (rows, cache) = ([self.q, self.k, self.v], (self.kv, layer.cache));
                let position = (self.position, None);
                cuda.attend(stream, rows, norms, rope, position, cache, form, self.scratch, self.attended)?
            }
            2 => cuda.linear_add(stream, self.attended, layer.o, None, 1.0, self.x)?,
            3 => {
                let (router, how) = ((layer.router, None), (TOP_K, &Routing::softmax(true)));
                let chosen = (self.ids, self.weights);
                cuda.norm_route(stream, self.x, norm, self.normed, router, None, how, self.scratch, chosen)?
            }
            4 => cuda.token_gate_up(stream, self.normed, experts, Activation::SwiGlu, self.act)?,
            _ => cuda.token_down(stream, self.act, experts, self.weights, 1.0, self.x)?,
        };
        assert!(fused, "no form for {}", PARTS[part]);
        Ok(())
    }

    /// What a fused kernel does, by the kernels that it is composed of.
    fn apart(&self, part: usize, layer: usize) -> Result<(), CudaError> {
        let (cuda, stream, layer) = (&self.bench.cuda, self.bench.stream, self.layers[layer]);
        match part {
            0 => {
                cuda.rms_norm(stream, self.x, self.norm, EPS, self.normed)?;
                cuda.linear(stream, self.normed, layer.q, None, self.q)?;
                cuda.linear(stream, self.normed, layer.k, None, self.k)?;
                cuda.linear(stream, self.normed, layer.v, None, self.v)
            }
            1 => {
                let (norm, table, at) = (Some(self.head_norm), self.rope, (self.position, None));
                cuda.head_norm_rope(stream, self.q, HEADS, HEAD_DIM, HEAD_DIM, norm, EPS, table, table, at)?;
                cuda.head_norm_rope(stream, self.k, KV_HEADS, HEAD_DIM, HEAD_DIM, norm, EPS, table, table, at)?;
                cuda.kv_append(stream, self.k, self.v, at, self.kv, layer.cache)?;
                let form = (SCALE, None);
                let (kv, cache, scratch) = (self.kv, layer.cache, self.scratch);
                cuda.attention(stream, self.q, HEADS, at, kv, cache, form, None, scratch, self.attended)
            }
            2 => {
                cuda.linear(stream, self.attended, layer.o, None, self.branch)?;
                cuda.add_assign(stream, self.x, self.branch, 1.0)
            }
            3 => {
                cuda.rms_norm(stream, self.x, self.norm, EPS, self.normed)?;
                cuda.linear(stream, self.normed, layer.router, None, self.router_logits)?;
                let (logits, routing) = (self.router_logits, Routing::softmax(true));
                cuda.router_topk(stream, logits, None, EXPERTS, TOP_K, &routing, self.ids, self.weights)
            }
            4 => {
                let (x, table, form) = (self.normed, layer.table, Activation::SwiGlu);
                cuda.grouped_gate_up(stream, x, TOP_K, self.ids, table, &self.experts, form, self.act)
            }
            _ => {
                cuda.grouped_down(stream, self.act, self.ids, layer.table, &self.experts, self.slots)?;
                cuda.combine(stream, self.slots, self.weights, TOP_K, self.branch)?;
                cuda.add_assign(stream, self.x, self.branch, 1.0)
            }
        }
    }

    fn head(&self) -> Result<(), CudaError> {
        let (cuda, stream) = (&self.bench.cuda, self.bench.stream);
        let output = Projected { weight: self.head, bias: None, out: self.logits };
        assert!(cuda.norm_linear(stream, self.x, (self.norm, EPS), self.normed, &[output])?);
        Ok(())
    }

    /// Bytes of weights and cache that a part reads.
    fn bytes(&self, part: usize) -> usize {
        let int4 = |rows, cols| matrix_bytes(MatrixFormat::Int4, rows, cols).unwrap();
        match part {
            0 => int4(Q, HIDDEN) + 2 * int4(KV, HIDDEN),
            1 => self.kv.bytes().unwrap(),
            2 => int4(HIDDEN, Q),
            3 => matrix_bytes(MatrixFormat::Bf16, EXPERTS, HIDDEN).unwrap(),
            4 => 2 * TOP_K * self.experts.gate().len(),
            _ => TOP_K * self.experts.down().len(),
        }
    }

    fn layer(&self, layer: usize, without: Option<usize>) -> Result<(), CudaError> {
        (0..PARTS.len()).filter(|&part| Some(part) != without).try_for_each(|part| self.part(part, layer))
    }

    fn token(&self) -> Result<(), CudaError> {
        let (cuda, stream) = (&self.bench.cuda, self.bench.stream);
        cuda.embed(stream, self.token, self.embedding, self.x)?;
        (0..LAYERS).try_for_each(|layer| self.layer(layer, None))?;
        self.head()?;
        cuda.argmax(stream, self.logits, self.chosen)
    }
}

fn at(bench: &Bench, position: usize) {
    let token = Token::new(bench, position);
    let all: usize = (0..PARTS.len()).map(|part| token.bytes(part)).sum();
    println!("position {position}:");
    for early in [true, false] {
        bench.cuda.start_early(early);
        let how = if early { "started early" } else { "one by one" };
        for (part, name) in PARTS.iter().enumerate() {
            bench.show(&format!("{name}, {how}"), token.bytes(part), LAYERS, |layer| token.part(part, layer));
        }
        bench.show(&format!("layer, {how}"), all, LAYERS, |layer| token.layer(layer, None));
        for (part, name) in PARTS.iter().enumerate() {
            let what = format!("layer without {name}, {how}");
            bench.show(&what, all - token.bytes(part), LAYERS, |layer| token.layer(layer, Some(part)));
        }
        let head = matrix_bytes(MatrixFormat::Int4, VOCABULARY, HIDDEN).unwrap();
        bench.show(&format!("norm, head, {how}"), head, 4, |_| token.head());
        bench.show(&format!("argmax, {how}"), 4 * VOCABULARY, 16, |_| {
            bench.cuda.argmax(bench.stream, token.logits, token.chosen)
        });
        bench.show(&format!("token, {how}"), LAYERS * all + head, 1, |_| token.token());
    }
    bench.cuda.start_early(true);
    for (part, name) in PARTS.iter().enumerate() {
        bench.show(&format!("{name}, apart"), token.bytes(part), LAYERS, |layer| token.apart(part, layer));
    }
    bench.show("layer, apart", all, LAYERS, |layer| (0..PARTS.len()).try_for_each(|part| token.apart(part, layer)));
    bench.free();
}

fn main() {
    if Cuda::count() == 0 {
        eprintln!("not run: no CUDA device");
        return;
    }
    let bench = Bench::open();
    println!("{}: reads {:.0} GB/s", bench.cuda.properties().name, bench.bandwidth);
    bench.show("nothing", 0, 256, |_| bench.cuda.nothing(bench.stream));
    for early in [true, false] {
        bench.cuda.start_early(early);
        bench.show(&format!("a block a multiprocessor hands over, early {early}"), 0, 256, |_| {
            bench.cuda.hand_over(bench.stream)
        });
    }
    bench.cuda.start_early(true);
    let counter = bench.bytes(4, 0);
    // SAFETY: the same memory, as one element.
    let counter = unsafe { DeviceSlice::new(counter.address(), 1) };
    for count in [0, 100] {
        bench.show(&format!("{count} barriers of all blocks"), 0, 16, |_| {
            bench.cuda.barriers(bench.stream, counter, count)
        });
    }
    bench.free();
    let given: Vec<usize> = std::env::args().skip(1).map(|position| position.parse().unwrap()).collect();
    for position in if given.is_empty() { vec![100, 200, 1000, 16_384] } else { given } {
        at(&bench, position);
    }
}
