//! Exact arithmetic: the host device's bits, in prefill and decode, for every family, format and budget.

use std::path::Path;

use assay_engine::EngineOptions;
use assay_engine::engine::ColdPath;
use assay_engine::expert_cache::Encoding;
use assay_kernels::KvFormat;
use libtest_mimic::{Failed, Trial};

use super::common::{INT4, Model};
use super::support::{answer, least_arena, models, on_cuda, prompt, resident_arena, same};

const CONTEXT: usize = 512;
const ANSWER: usize = 8;

pub fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for (name, dir) in models() {
        for (experts, encoding) in [("bf16", Encoding::Bf16), ("int4", INT4)] {
            // Whatever the experts are, a cache of codes is read the same way: once is enough.
            let caches = if encoding == INT4 { &KvFormat::ALL[..] } else { &[KvFormat::F32, KvFormat::Bf16] };
            for &kv in caches {
                let dir = dir.clone();
                let name = format!("exact::{name}, {experts} experts, {kv:?} kv");
                trials.push(Trial::test(name, move || equals_host(&dir, encoding, Encoding::Bf16, kv)));
            }
        }
        // What the fused kernels of decode have most forms for.
        for (label, encoding) in [("int4", INT4), ("int8", Encoding::Int8)] {
            let dir = dir.clone();
            let name = format!("exact::{name}, {label} everywhere, Bf16 kv");
            trials.push(Trial::test(name, move || equals_host(&dir, encoding, encoding, KvFormat::Bf16)));
        }
    }
    trials.push(Trial::test("exact::first, warmed and after promotions", promotions));
    trials.push(Trial::test("exact::a prompt longer than several splits", long_prompt));
    trials
}

/// Whole prompt, pieces, and one token at a time; resident, part resident, none resident.
fn equals_host(dir: &Path, encoding: Encoding, others: Encoding, kv: KvFormat) -> Result<(), Failed> {
    let model = Model::open(dir, encoding);
    let mut options = model.options(kv, CONTEXT);
    options.precision.attention = others;
    options.precision.dense = others;
    options.precision.head = others;
    let prompt = prompt(dir, 150);
    let expected = answer(&mut model.resident(options.clone()), &prompt, &[], ANSWER)?;
    let (least, resident) = (least_arena(&model, &options), resident_arena(&model, &options));
    let arenas = [resident, least + (resident - least) / 2, least];
    let paths = [ColdPath::CopyEngine, ColdPath::Multiprocessors, ColdPath::WithHost];
    for (arena, path) in arenas.into_iter().flat_map(|arena| paths.map(|path| (arena, path))) {
        let mut engine = on_cuda(&model, &EngineOptions { cold_path: Some(path), ..options.clone() }, arena)?;
        for pieces in [vec![], vec![7, 1, 40], vec![1; prompt.len()]] {
            let found = answer(&mut engine, &prompt, &pieces, ANSWER)?;
            same(&found, &expected).map_err(|error| {
                let how =
                    if pieces.len() == prompt.len() { "token by token".to_owned() } else { format!("{pieces:?}") };
                Failed::from(format!("arena {arena}, {path:?}, pieces {how}: {}", error.message().unwrap_or_default()))
            })?;
        }
    }
    Ok(())
}

fn long_prompt() -> Result<(), Failed> {
    let dir = super::common::fixture("tiny-moe");
    let model = Model::open(&dir, INT4);
    let mut options = EngineOptions { max_chunk: 333, ..model.options(KvFormat::Bf16, 1200) };
    options.precision.attention = INT4;
    let short = prompt(&dir, 250);
    let long: Vec<u32> = short.iter().copied().cycle().take(1100).collect();
    check(&model, &options, &long)
}

/// Many tokens with half the experts resident, twice: the cache is another one each time, across several graphs.
fn promotions() -> Result<(), Failed> {
    let dir = super::common::fixture("tiny-moe");
    let model = Model::open(&dir, INT4);
    let options = model.options(KvFormat::Bf16, CONTEXT);
    let prompt = prompt(&dir, 20);
    let expected = answer(&mut model.resident(options.clone()), &prompt, &[], 300)?;
    let (least, resident) = (least_arena(&model, &options), resident_arena(&model, &options));
    for path in [ColdPath::CopyEngine, ColdPath::Multiprocessors, ColdPath::WithHost] {
        let options = EngineOptions { cold_path: Some(path), ..options.clone() };
        let mut engine = on_cuda(&model, &options, least + (resident - least) / 2)?;
        for _ in 0..2 {
            same(&answer(&mut engine, &prompt, &[], 300)?, &expected)?;
        }
        let counters = engine.take_counters();
        println!("{path:?}: {counters:?}");
        if counters.promotions == 0 || counters.misses == 0 || counters.hits == 0 {
            return Err(format!("{counters:?}, expected hits, misses and promotions").into());
        }
    }
    Ok(())
}

fn check(model: &Model, options: &EngineOptions, prompt: &[u32]) -> Result<(), Failed> {
    let expected = answer(&mut model.resident(options.clone()), prompt, &[], ANSWER)?;
    let mut engine = on_cuda(model, options, resident_arena(model, options))?;
    same(&answer(&mut engine, prompt, &[], ANSWER)?, &expected)
}
