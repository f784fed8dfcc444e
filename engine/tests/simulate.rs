//! A replayed trace has the engine's own hits and misses.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use assay_engine::EngineOptions;
use assay_engine::device::host::HostOptions;
use assay_engine::residency::policy::PolicyKind;
use assay_engine::residency::simulate::oracle;
use assay_engine::residency::{
    Heatmap, HeatmapIdentity, LayerHits, ResidencyCounters, RouteTrace, SimulateOptions, simulate,
};
use assay_kernels::KvFormat;
use common::{INT4, Model, fixture};

const CONTEXT: usize = 160;

fn identity() -> HeatmapIdentity {
    let text = |text: &str| text.to_owned();
    HeatmapIdentity {
        checkpoint_sha256: text("test"),
        experts: text("int4"),
        attention: text("bf16"),
        dense: text("bf16"),
        kv: text("bf16"),
    }
}

/// A trace, and what the engine itself counted.
struct Run {
    trace: RouteTrace,
    counters: ResidencyCounters,
    layers: Vec<LayerHits>,
    slots: usize,
}

/// Three requests of different lengths, the second one continued by a second prefill.
fn run(model: &Model, options: EngineOptions, heatmap: Option<&Heatmap>) -> Run {
    let budget = model.plan(&options).resident_budget(options.max_chunk) + (4 << 20);
    let mut engine = model.load(budget, HostOptions::default(), heatmap, options).unwrap();
    assert_eq!(engine.residents().soft_slots, 0, "every slot is kept through prefill");
    let slots = engine.residents().resident;
    engine.record_routes();
    engine.take_counters();
    engine.take_layer_use();
    let vocab = model.folder.spec.vocab_size as u32;
    let ids = |from: u32, tokens: u32| -> Vec<u32> { (from..from + tokens).map(|id| (id * 37 + 5) % vocab).collect() };
    for (reset, from, prompt, decode) in [(true, 0, 40, 30), (true, 9, 5, 20), (false, 50, 30, 12), (true, 3, 70, 25)] {
        if reset {
            engine.reset();
        }
        let mut token = engine.prefill(&ids(from, prompt)).unwrap();
        for _ in 0..decode {
            token = engine.decode(token).unwrap();
        }
        // A token that is refused leaves nothing in the trace.
        assert!(engine.decode(vocab).is_err());
    }
    let counters = engine.take_counters();
    let (shape, recorded) = engine.take_recorded().unwrap();
    assert!(engine.take_recorded().is_none());
    let layers = engine.take_layer_use();
    assert_eq!(layers.iter().map(|layer| layer.resident).sum::<usize>(), slots);
    let layers = layers.into_iter().map(|layer| layer.hits).collect();
    Run { trace: RouteTrace::new(identity(), shape, recorded), counters, layers, slots }
}

#[test]
fn a_replayed_trace_has_the_engine_s_hits() {
    let model = Model::open(&fixture("tiny-moe"), INT4);
    let sizes = model.plan(&model.options(KvFormat::Bf16, CONTEXT)).sizes;
    let counts = (0..sizes.moe_layers)
        .map(|layer| (0..sizes.num_experts).map(|expert| ((expert * 31 + layer * 7) % 17) as u64).collect())
        .collect();
    let heatmap = Heatmap::new(identity(), Vec::new(), 1, counts);
    let mut first: Option<RouteTrace> = None;
    for policy in PolicyKind::ALL {
        for (share, promotions_per_token, heatmap) in
            [(0.3, 4, Some(&heatmap)), (0.3, 1, None), (0.6, 2, Some(&heatmap)), (0.5, 0, None)]
        {
            let options = EngineOptions {
                policy,
                promotions_per_token,
                max_resident_share: share,
                ..model.options(KvFormat::Bf16, CONTEXT)
            };
            let Run { trace, counters, layers, slots } = run(&model, options, heatmap);
            let case = format!("{policy:?}, {share}, {promotions_per_token}, {}", heatmap.is_some());
            assert_eq!(trace.tokens(), 87, "{case}");
            // Routes are the model's: no policy changes them.
            assert!(*first.get_or_insert_with(|| trace.clone()) == trace, "{case}");
            let simulated =
                simulate(&trace, heatmap, SimulateOptions { policy, slots, promotions_per_token, behind: false })
                    .unwrap();
            let ResidencyCounters { hits, misses, cold_bytes, promotions } = counters;
            assert!(hits > 0 && misses > 0, "{case}");
            assert_eq!((simulated.total(), &simulated.layers), (LayerHits { hits, misses }, &layers), "{case}");
            assert_eq!((simulated.cold_bytes, simulated.promotions), (cold_bytes, promotions), "{case}");
            assert!(oracle(&trace, slots).total().hits >= hits, "{case}");
        }
    }
}
