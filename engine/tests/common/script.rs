//! Scripts that are played on several engines: whatever they ask for, the answers are the same.
#![allow(unreachable_pub, clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::sync::Arc;

use assay_engine::device::{Device, DeviceError};
use assay_engine::residency::{LayerUse, Recorded, ResidencyCounters};
use assay_engine::sampling::Sampling;
use assay_engine::session::{Scope, Sessions, Store, StoreOptions};
use assay_engine::trace::Selection;
use assay_engine::{Engine, EngineError};

use super::common::{Model, poisoned};

/// Context of the engines, in tokens.
pub const CONTEXT: usize = 200;

/// Families with a head of its own and a router in the first layer: one of their tokens can be made to overflow.
pub const POISONABLE: [&str; 4] = ["qwen3_moe-a", "mixtral", "olmoe", "qwen2_moe"];

/// A token of their vocabularies that neither a script nor calibration comes upon.
pub const POISONED: u32 = 93;

/// Everything that decode feeds.
pub type Counted = (ResidencyCounters, Vec<LayerUse>, Option<Vec<Vec<u64>>>, Option<Recorded>);

pub fn counted<D: Device>(engine: &mut Engine<D>) -> Counted {
    let recorded = engine.take_recorded().map(|(_, recorded)| recorded);
    (engine.take_counters(), engine.take_layer_use(), engine.take_observed(), recorded)
}

/// Whose prompts a script has.
#[derive(Debug, Clone, Copy)]
pub struct Vocabulary {
    pub size: u32,
    /// A token that no prompt has.
    pub absent: u32,
}

impl Vocabulary {
    /// `len` ids that depend on where they begin.
    pub fn prompt(self, from: u32, len: u32) -> Vec<u32> {
        let ids = (from..from + len).map(|id| (id * 37 + 5) % self.size);
        ids.map(|id| if id == self.absent { (id + 1) % self.size } else { id }).collect()
    }
}

/// One part of a script.
#[derive(Debug, Clone, Copy)]
pub enum Act {
    Prefill(u32),
    Decode(usize),
    /// A token whose kernels find a NaN.
    Fault,
    /// A token that nobody chose.
    Other(u32),
    Sampled,
    Logits,
    Sample,
    /// The same, in a trace.
    Traced(usize),
    /// The sequence as a turn of a session, which is kept.
    Session(u32),
    Refused,
    Truncate(usize),
    Counters,
    Layers,
    Observe,
    Observed,
    Record,
    Recorded,
}

fn sessions<D: Device>(engine: &Engine<D>) -> Sessions {
    let options = StoreOptions { limit_bytes: 1 << 30, reserve_bytes: 0 };
    Sessions::new(engine, "c", Arc::new(Store::with_headroom(options, Box::new(|| None))))
}

/// What the script's questions were answered. With `more` every decoded token is followed by one ahead.
pub fn play<D: Device>(
    engine: &mut Engine<D>,
    (vocabulary, script): (Vocabulary, &[Act]),
    more: bool,
    fail: impl Fn(&mut Engine<D>, u32),
) -> Vec<String> {
    let (mut token, mut answers) = (0, Vec::new());
    let sampling = Sampling { temperature: 1.0, seed: 7, ..Sampling::GREEDY };
    let mut sessions = sessions(engine);
    let bits = |logits: Vec<f32>| format!("{:?}", logits.iter().map(|logit| logit.to_bits()).collect::<Vec<_>>());
    for act in script {
        match *act {
            Act::Prefill(len) => token = engine.prefill(&vocabulary.prompt(len, len)).unwrap(),
            Act::Decode(tokens) => {
                for _ in 0..tokens {
                    token = engine.decode_ahead(token, more).unwrap();
                    answers.push(token.to_string());
                }
            }
            Act::Other(other) => token = engine.decode_ahead(other, more).unwrap(),
            Act::Sampled => token = engine.decode_sampled(token, &sampling, 3).unwrap(),
            Act::Logits => answers.push(bits(engine.last_logits().unwrap())),
            Act::Sample => answers.push(engine.sample(&sampling, 5).unwrap().to_string()),
            Act::Traced(tokens) => {
                engine.start_trace(Box::new(std::io::sink()), Selection::default(), BTreeMap::new()).unwrap();
                for _ in 0..tokens {
                    token = engine.decode_ahead(token, more).unwrap();
                }
                engine.finish_trace().unwrap();
            }
            Act::Session(len) => {
                let turn = sessions.begin(engine, &Scope::default(), &vocabulary.prompt(3, len), usize::MAX).unwrap();
                token = engine.prefill(turn.rest()).unwrap();
                for _ in 0..3 {
                    token = engine.decode_ahead(token, more).unwrap();
                }
                sessions.finish(engine, turn).unwrap().commit();
            }
            Act::Fault => fail(engine, token),
            Act::Refused => assert!(engine.decode_ahead(vocabulary.size, more).is_err()),
            Act::Truncate(len) => engine.truncate(len),
            Act::Counters => answers.push(format!("{:?}", engine.take_counters())),
            Act::Layers => answers.push(format!("{:?}", engine.take_layer_use())),
            Act::Observe => engine.observe_routes(),
            Act::Observed => answers.push(format!("{:?}", engine.take_observed())),
            Act::Record => engine.record_routes(),
            Act::Recorded => answers.push(format!("{:?}", engine.take_recorded())),
        }
    }
    answers.push(format!("{:?}", counted(engine)));
    answers.push(format!("{:?}", engine.sequence()));
    answers.push(bits(engine.last_logits().unwrap()));
    answers
}

/// Every way to leave a token that is ahead behind, and every question, at any time.
pub const SCRIPTS: [&[Act]; 16] = [
    &[Act::Prefill(10), Act::Decode(3), Act::Counters, Act::Layers, Act::Decode(2)],
    &[Act::Prefill(10), Act::Decode(1), Act::Layers, Act::Counters, Act::Counters, Act::Layers],
    &[
        Act::Prefill(10),
        Act::Decode(2),
        Act::Observe,
        Act::Decode(2),
        Act::Observed,
        Act::Decode(1),
        Act::Observe,
        Act::Decode(1),
        Act::Prefill(3),
        Act::Observed,
    ],
    &[
        Act::Prefill(10),
        Act::Decode(2),
        Act::Record,
        Act::Decode(2),
        Act::Prefill(4),
        Act::Decode(3),
        Act::Recorded,
        Act::Decode(1),
    ],
    &[
        Act::Record,
        Act::Observe,
        Act::Prefill(10),
        Act::Decode(2),
        Act::Fault,
        Act::Decode(2),
        Act::Fault,
        Act::Fault,
        Act::Counters,
        Act::Decode(1),
        Act::Recorded,
    ],
    &[
        Act::Record,
        Act::Prefill(10),
        Act::Decode(2),
        Act::Refused,
        Act::Fault,
        Act::Prefill(2),
        Act::Decode(1),
        Act::Refused,
        Act::Recorded,
        Act::Layers,
    ],
    &[Act::Record, Act::Decode(2), Act::Truncate(1), Act::Decode(2), Act::Truncate(0), Act::Prefill(5), Act::Decode(1)],
    // Past the first graph's positions.
    &[Act::Record, Act::Prefill(110), Act::Decode(40), Act::Logits, Act::Decode(2)],
    &[
        Act::Record,
        Act::Prefill(10),
        Act::Decode(2),
        Act::Other(9),
        Act::Decode(1),
        Act::Logits,
        Act::Other(11),
        Act::Sample,
        Act::Decode(3),
    ],
    &[
        Act::Record,
        Act::Prefill(10),
        Act::Decode(3),
        Act::Sample,
        Act::Logits,
        Act::Sampled,
        Act::Decode(2),
        Act::Sampled,
        Act::Logits,
    ],
    &[
        Act::Record,
        Act::Prefill(10),
        Act::Decode(3),
        Act::Prefill(70),
        Act::Decode(2),
        Act::Refused,
        Act::Decode(1),
        Act::Prefill(1),
        Act::Logits,
    ],
    &[
        Act::Record,
        Act::Prefill(10),
        Act::Decode(4),
        Act::Truncate(12),
        Act::Decode(2),
        Act::Truncate(11),
        Act::Logits,
        Act::Decode(2),
        Act::Truncate(3),
        Act::Decode(5),
    ],
    &[Act::Record, Act::Prefill(10), Act::Decode(3), Act::Traced(2), Act::Decode(2), Act::Traced(1), Act::Logits],
    &[
        Act::Record,
        Act::Session(140),
        Act::Session(60),
        Act::Session(150),
        Act::Decode(2),
        Act::Session(150),
        Act::Logits,
    ],
    // To the last position of the context.
    &[Act::Record, Act::Prefill(150), Act::Decode(50), Act::Counters],
    &[Act::Decode(3), Act::Fault, Act::Refused, Act::Fault, Act::Other(5), Act::Fault, Act::Decode(1), Act::Logits],
];

/// What is wrong with a token is said of that token, when it is decoded, and never while it is ahead.
pub fn overflowing_ahead<D: Device>(name: &str, load: impl Fn(&Model) -> Engine<D>) {
    let (model, _folder) = poisoned(name, POISONED);
    let vocabulary = Vocabulary { size: model.folder.spec.vocab_size as u32, absent: POISONED };
    let mut engine = load(&model);
    // An answer with a token that came up nowhere before, in calibration's prompts neither.
    let calibration: Vec<u32> = (0..CONTEXT as u32).map(|i| (i * 7919 + 13) % vocabulary.size).collect();
    let answer = |from: u32| {
        let prompt = vocabulary.prompt(from * 31, 12);
        engine.reset();
        let mut tokens = vec![engine.prefill(&prompt).unwrap()];
        (0..30).for_each(|i| tokens.push(engine.decode(tokens[i]).unwrap()));
        let used = |at: usize| prompt.iter().chain(&tokens[..at]).chain(&calibration).any(|&id| id == tokens[at]);
        let at = (2..30).find(|&at| !used(at))?;
        Some((prompt, tokens, at))
    };
    let (prompt, tokens, at) = (0..200).find_map(answer).unwrap();
    let (model, _folder) = poisoned(name, tokens[at]);
    let mut engine = load(&model);
    for round in 0..20 {
        engine.take_counters();
        // What is kept already would not be copied.
        let mut sessions = sessions(&engine);
        let turn = sessions.begin(&mut engine, &Scope::default(), &prompt, 0).unwrap();
        assert_eq!(engine.prefill(turn.rest()).unwrap(), tokens[0]);
        for i in 0..at {
            assert_eq!(engine.decode_ahead(tokens[i], true).unwrap(), tokens[i + 1], "round {round}, token {i}");
        }
        let hits = engine.take_counters().hits;
        // It is ahead now. In half of the rounds nobody wants it.
        if round % 2 == 0 {
            let error = engine.decode_ahead(tokens[at], true).unwrap_err();
            let named = matches!(error, EngineError::Device(DeviceError::Data { .. } | DeviceError::Kernel(_)));
            assert!(named, "round {round}: {error}");
        }
        assert_eq!((engine.position(), engine.take_counters().hits), (prompt.len() + at, 0));
        // In half of these another one is decoded in its place.
        if round % 4 < 2 {
            engine.decode_ahead(tokens[0], true).unwrap();
            assert_eq!(engine.take_counters().hits, hits / at as u64);
        }
        sessions.finish(&mut engine, turn).unwrap().commit();
    }
}
