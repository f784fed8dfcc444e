//! One token ahead on the GPU: whatever is asked for, the answers are those without.

use std::time::Instant;

use assay_engine::device::DeviceError;
use assay_engine::device::cuda::CudaDevice;
use assay_engine::engine::ColdPath;
use assay_engine::expert_cache::Encoding;
use assay_engine::{Engine, EngineError, EngineOptions};
use assay_kernels::KvFormat;
use libtest_mimic::{Failed, Trial};

use super::common::{INT4, Model, fixture, poisoned};
use super::script::{Act, CONTEXT, POISONABLE, POISONED, SCRIPTS, Vocabulary, counted, overflowing_ahead, play};
use super::support::{least_arena, on_cuda, resident_arena};

pub fn trials() -> Vec<Trial> {
    let mut trials: Vec<Trial> =
        POISONABLE.map(|name| Trial::test(format!("ahead::{name}, every script"), move || scripts(name))).into();
    trials.push(Trial::test("ahead::a NaN is said of the token that has it", not_a_number));
    trials.push(Trial::test("ahead::where experts are fetched nothing is ahead", fetched));
    trials.push(Trial::test("ahead::tiny-moe, 40 tokens past a graph's positions, dropped in the middle", dropped));
    trials.push(Trial::test("ahead::the time of a token", time));
    trials
}

fn options(model: &Model) -> EngineOptions {
    EngineOptions { cold_path: Some(ColdPath::Multiprocessors), ..model.options(KvFormat::Bf16, CONTEXT) }
}

fn resident(model: &Model) -> Result<Engine<CudaDevice>, Failed> {
    let engine = on_cuda(model, &options(model), resident_arena(model, &options(model)))?;
    let residents = engine.residents();
    match residents.resident == residents.total {
        true => Ok(engine),
        false => Err(format!("{residents:?}, expected all of them").into()),
    }
}

/// An engine that decodes one by one, one that goes ahead, and the host device: the same answers.
fn scripts(name: &str) -> Result<(), Failed> {
    // Each engine registers the memory of its experts: two cannot share a model.
    let [(model, _folder), (other, _other)] = [(); 2].map(|()| poisoned(name, POISONED));
    let vocabulary = Vocabulary { size: model.folder.spec.vocab_size as u32, absent: POISONED };
    let mut host = model.resident(model.options(KvFormat::Bf16, CONTEXT));
    let (mut alone, mut ahead) = (resident(&model)?, resident(&other)?);
    for engine in [&mut alone, &mut ahead] {
        counted(engine);
    }
    counted(&mut host);
    for script in SCRIPTS {
        host.reset();
        let expected = play(&mut host, (vocabulary, script), false, |engine, _| {
            assert!(engine.decode(POISONED).is_err());
        });
        for (engine, more) in [(&mut alone, false), (&mut ahead, true)] {
            engine.reset();
            let found = play(engine, (vocabulary, script), more, |engine, _| {
                let error = engine.decode_ahead(POISONED, more).unwrap_err();
                assert!(matches!(error, EngineError::Device(DeviceError::Data { .. })), "{error}");
            });
            if let Some(place) = found.iter().zip(&expected).position(|(found, expected)| found != expected) {
                let short = |text: &String| text.chars().take(400).collect::<String>();
                let (found, expected) = (short(&found[place]), short(&expected[place]));
                return Err(format!("{script:?}, more {more}, answer {place}: {found}, expected {expected}").into());
            }
        }
    }
    Ok(())
}

fn not_a_number() -> Result<(), Failed> {
    overflowing_ahead("qwen3_moe-a", |model| resident(model).unwrap());
    Ok(())
}

fn fetched() -> Result<(), Failed> {
    let model = Model::open(&fixture("tiny-moe"), INT4);
    let vocabulary = Vocabulary { size: 4096, absent: u32::MAX };
    let script = [Act::Record, Act::Prefill(20), Act::Decode(60), Act::Logits];
    let options = options(&model);
    let (least, most) = (least_arena(&model, &options), resident_arena(&model, &options));
    let mut answers = Vec::new();
    for more in [false, true] {
        let mut engine = on_cuda(&model, &options, least + (most - least) / 2)?;
        counted(&mut engine);
        answers.push(play(&mut engine, (vocabulary, &script), more, |_, _| ()));
    }
    if answers[0] == answers[1] { Ok(()) } else { Err("answers or counts differ".into()) }
}

fn dropped() -> Result<(), Failed> {
    let [model, other] = [(); 2].map(|()| Model::open(&fixture("tiny-moe"), Encoding::Bf16));
    let vocabulary = Vocabulary { size: 4096, absent: u32::MAX };
    for tokens in [1, 18, 40] {
        let (mut alone, mut ahead) = (resident(&model)?, resident(&other)?);
        let prompt = vocabulary.prompt(0, 110);
        let mut token = [alone.prefill(&prompt)?, ahead.prefill(&prompt)?];
        for step in 0..tokens {
            token = [alone.decode(token[0])?, ahead.decode_ahead(token[1], true)?];
            if token[0] != token[1] {
                return Err(format!("token {step} is {}, expected {}", token[1], token[0]).into());
            }
        }
        // With a token ahead.
        drop(ahead);
    }
    Ok(())
}

/// Says what the host's share of a token is. No bound: that is what a benchmark is for.
fn time() -> Result<(), Failed> {
    let model = Model::open(&fixture("tiny-moe"), INT4);
    let options = EngineOptions { context_tokens: 1000, ..options(&model) };
    let mut engine = on_cuda(&model, &options, resident_arena(&model, &options))?;
    for round in 0..3 {
        for more in [false, true] {
            engine.reset();
            let mut token = engine.prefill(&[1, 2, 3])?;
            let start = Instant::now();
            for left in (0..600).rev() {
                token = engine.decode_ahead(token, more && left > 0)?;
            }
            println!("round {round}, ahead {more}: {:.1} us a token", start.elapsed().as_secs_f64() * 1e6 / 600.0);
        }
    }
    Ok(())
}
