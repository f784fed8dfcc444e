//! Records for tests.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use assay_ledgers::*;
use proptest::prelude::*;

pub fn identity() -> Identity {
    Identity {
        checkpoint: CheckpointIdentity {
            name: "tiny-moe".to_owned(),
            shards: BTreeMap::from([("model.safetensors".to_owned(), Sha256::of(b"weights"))]),
            config: Sha256::of(b"config"),
        },
        tokenizer: Some(Sha256::of(b"tokenizer")),
        template: None,
        source: SourceIdentity {
            commit: "0123456789abcdef0123456789abcdef01234567".to_owned(),
            dirty: None,
            inputs: None,
        },
        binary: Sha256::of(b"binary"),
        precision: PrecisionIdentity {
            experts: NumberFormat::Int4,
            expert_quantization: Some(ExpertQuantization::Amax),
            attention: NumberFormat::Bf16,
            dense: NumberFormat::Bf16,
            head: NumberFormat::Bf16,
            kv: NumberFormat::Bf16,
            prefill: ArithmeticIdentity::Exact,
        },
        heatmap: Some(Sha256::of(b"heatmap")),
        device: DeviceIdentity {
            kind: DeviceKind::Host,
            name: "a processor".to_owned(),
            driver: None,
            cuda: None,
            cpu_features: "x86-64-v3".to_owned(),
            threads: 2,
            link: Some(LinkIdentity { bandwidth_bytes_per_s: 5.5e10, latency_s: 1.04e-5 }),
            planted_slowdown: None,
        },
        memory: MemoryIdentity { vram_bytes: 48 << 20, margin_bytes: 4 << 20 },
        context: 8192,
        prefill_chunk: 512,
        residency_policy: "lru".to_owned(),
        approximation: None,
        sampling: Sampling::Greedy,
        prompts: PromptsIdentity {
            set: "packaged".to_owned(),
            texts: BTreeMap::from([
                ("alice.txt".to_owned(), Sha256::of(b"alice")),
                ("frankenstein.txt".to_owned(), Sha256::of(b"frankenstein")),
            ]),
        },
        suite: Some(SuiteIdentity { name: "benchmark".to_owned(), file: Sha256::of(b"suite") }),
        tasks: None,
        synthetic: false,
    }
}

pub fn speed_body(samples: &[f64]) -> SpeedBody {
    let hcs = Hcs { resident: 32, total: 64, hit_rate: Some(0.8125), cold_bytes: 123_456_789 };
    SpeedBody {
        rows: [(Measure::Prefill, 1024), (Measure::Decode, 50)]
            .map(|(measure, tokens)| SpeedRow {
                measure,
                tokens,
                depth: None,
                unit: "tok/s".to_owned(),
                median: samples[samples.len() / 2],
                ci95: Some([samples[0], samples[samples.len() - 1]]),
                best: samples[samples.len() - 1],
                samples: samples.to_vec(),
                hcs: Some(hcs.clone()),
                modelled_link_s: Some(0.001),
            })
            .to_vec(),
        hcs: Some(hcs),
        low_water_bytes: BTreeMap::from([("prefill".to_owned(), 1 << 20), ("decode".to_owned(), 2 << 20)]),
        modelled_link_s: Some(0.25),
        cold_path: None,
        host_share: None,
        layers: Vec::new(),
        driver: None,
        work: None,
        roofline: None,
        startup_s: BTreeMap::new(),
    }
}

pub fn speed(samples: &[f64]) -> Draft {
    Draft::speed(Run::timing_off(), identity(), speed_body(samples)).class(EvidenceClass::ControlledDevelopment)
}

pub fn check_body(figure: f64) -> CheckBody {
    let figures = BTreeMap::from([("logit_difference_max".to_owned(), figure)]);
    CheckBody {
        subject: "tiny-moe".to_owned(),
        reference: "reference.json".to_owned(),
        rows: vec![CheckRow { row: "prompt 0".to_owned(), figures }],
    }
}

pub fn check(figure: f64) -> Draft {
    Draft::new(EvidenceClass::Functional, identity(), check_body(figure)).verdicts(vec![VerdictRow {
        row: "prompt 0".to_owned(),
        verdict: Verdict::Pass,
        reason: "argmax equal at every position".to_owned(),
    }])
}

pub fn perplexity_body(nll_mean: f64) -> PerplexityBody {
    let row = |document: &str| DocumentRow {
        document: document.to_owned(),
        tokens: 2047,
        nll_total: nll_mean * 2047.0,
        nll_mean,
        perplexity: nll_mean.exp(),
    };
    PerplexityBody {
        window: 2048,
        stride: 1024,
        documents: vec![row("alice"), row("frankenstein")],
        tokens: 4094,
        nll_total: nll_mean * 4094.0,
        perplexity: nll_mean.exp(),
        comparison: Some(PerplexityComparison {
            against: Sha256::of(b"other"),
            against_name: "tiny-moe-bf16".to_owned(),
            against_record: None,
            documents: 2,
            against_perplexity: 71.0,
            nll_difference: 0.01,
            nll_difference_ci95: None,
            document_differences: BTreeMap::from([("alice".to_owned(), 0.01), ("frankenstein".to_owned(), 0.01)]),
        }),
    }
}

/// The kinds that [`other_draft`] makes.
pub const OTHER_KINDS: u8 = 9;

/// The identity of a precision.
pub fn of_precision(experts: NumberFormat, kv: NumberFormat) -> Identity {
    let mut identity = identity();
    let scales = (experts == NumberFormat::Int4).then_some(ExpertQuantization::Search);
    (identity.precision.experts, identity.precision.expert_quantization, identity.precision.kv) = (experts, scales, kv);
    identity
}

/// A whole run of tasks, of which each was solved or not.
pub fn tasks_body(solved: &[bool]) -> TaskBody {
    let row = |(task, &solved): (usize, &bool)| {
        let attempt = TaskAttempt {
            outcome: if solved { TaskOutcome::Solved } else { TaskOutcome::Unsolved },
            reason: String::new(),
            tool_calls: 3,
            prompt_tokens: 900,
            completion_tokens: 90,
            seconds: 0.5,
            transcript: None,
            figures: BTreeMap::new(),
        };
        let attempts = vec![attempt];
        TaskRow { task: format!("task-{task}"), fixture: Sha256::of(b"fixture"), context_tokens: 4096, attempts }
    };
    let value = solved.iter().filter(|&&solved| solved).count() as f64 / solved.len() as f64;
    let share = Interval95 { value, ci95: Some([value / 2.0, f64::midpoint(value, 1.0)]) };
    TaskBody {
        suite: "small".to_owned(),
        rules_version: 1,
        endpoint: "config small".to_owned(),
        tasks: solved.iter().enumerate().map(row).collect(),
        shares: ["pass@1", "pass^3", "pass@1 of trained kinds"].map(|name| (name.to_owned(), share)).into(),
    }
}

/// Such a run as a draft.
pub fn tasks(identity: Identity, solved: &[bool]) -> Draft {
    Draft::new(EvidenceClass::Functional, identity, tasks_body(solved))
}

/// A draft of each kind that is neither speed, check nor perplexity, in turn.
pub fn other_draft(kind: u8, identity: Identity, figure: f64, text: &str) -> Draft {
    let figures = BTreeMap::from([("figure_ms".to_owned(), figure)]);
    let interval = Interval95 { value: figure, ci95: Some([figure, figure]) };
    let spread = Spread { mean: figure, median: figure, p99: figure, max: figure };
    let class = EvidenceClass::Functional;
    match kind {
        0 => {
            let side = |name: &str| ComparedSide {
                name: name.to_owned(),
                identity: Some(Sha256::of(b"identity")),
                binary: Sha256::of(b"binary"),
                records: vec![Sha256::of(b"record")],
            };
            let row = ComparisonRow {
                measure: Measure::Decode,
                tokens: 50,
                depth: None,
                unit: "tok/s".to_owned(),
                a: vec![figure],
                b: vec![figure],
                ratio: interval,
            };
            let body = ComparisonBody {
                a: side("one"),
                b: side("two"),
                differences: vec!["binary".to_owned()],
                order: "ABBA".to_owned(),
                rows: vec![row],
                resamples: 10_000,
                seed: "1".to_owned(),
            };
            Draft::comparison(Run::timing_off(), identity, body)
        }
        1 => {
            let row = FidelityRow {
                document: text.to_owned(),
                positions: 7,
                kl_mean: figure,
                top1_flips: 1,
                first_token_js: figure,
                nll_difference: None,
            };
            let body = FidelityBody {
                baseline: Sha256::of(b"baseline"),
                baseline_name: text.to_owned(),
                baseline_identity: None,
                baseline_logits: BaselineLogits::TopK(10),
                positions: 7,
                kl: spread,
                top1_flips: Top1Flips { all: 1, to_wrong: 1, to_right: 0 },
                top10_containment: 1.0,
                top10_overlap: 0.9,
                first_token_js: spread,
                nll_difference: Some(interval),
                documents: vec![row],
            };
            Draft::new(class, identity, body)
        }
        2 => {
            let case = EquivalenceCase {
                case: "restored from memory".to_owned(),
                conversation: text.to_owned(),
                tokens: 64,
                first_token_difference: None,
                logits: 64 * 1024,
                logit_bit_differences: 0,
                logit_difference_max: 0.0,
                tokens_reused: 512,
                tokens_computed: 128,
                bytes_restored: 1 << 20,
                control: Some("same chunks, no cache".to_owned()),
                figures,
            };
            let body = EquivalenceBody { reference: "fresh full history".to_owned(), cases: vec![case] };
            Draft::new(class, identity, body)
        }
        3 => {
            let run = DeterminismRun {
                run: "replay".to_owned(),
                tokens: 64,
                tokens_sha256: Sha256::of(b"tokens"),
                logits_sha256: None,
                first_token_difference: Some(3),
            };
            let body =
                DeterminismBody { subject: text.to_owned(), reference: "fresh process".to_owned(), runs: vec![run] };
            Draft::new(class, identity, body)
        }
        4 => {
            let attempt = TaskAttempt {
                outcome: TaskOutcome::Unsolved,
                reason: text.to_owned(),
                tool_calls: 12,
                prompt_tokens: 8_000,
                completion_tokens: 900,
                seconds: 12.5,
                transcript: Some(Sha256::of(b"transcript")),
                figures,
            };
            let task = TaskRow {
                task: "mend a parser".to_owned(),
                fixture: Sha256::of(b"fixture"),
                context_tokens: 8192,
                attempts: vec![attempt],
            };
            let body = TaskBody {
                suite: "first".to_owned(),
                rules_version: 1,
                endpoint: "a peer".to_owned(),
                tasks: vec![task],
                shares: BTreeMap::from([("pass@1".to_owned(), interval)]),
            };
            Draft::without_identity(class, body)
        }
        5 => {
            let row = ExternalRow {
                measure: "decode".to_owned(),
                tokens: Some(128),
                unit: "tok/s".to_owned(),
                value: figure,
                ci95: None,
                samples: vec![figure],
            };
            let body = ExternalBody {
                subject: "another program".to_owned(),
                source: text.to_owned(),
                setting: BTreeMap::from([("card".to_owned(), text.to_owned())]),
                rows: vec![row],
            };
            Draft::without_identity(EvidenceClass::CommunityReported, body)
        }
        6 => {
            let bytes = BTreeMap::from([("prefill".to_owned(), 1_u64 << 20)]);
            let body = MemoryBody { budget_bytes: 1 << 30, low_water_bytes: bytes.clone(), requirement_bytes: bytes };
            Draft::new(class, identity, body)
        }
        7 => {
            let rate =
                LinkRate { copy_bytes: 1 << 20, copy_engine_bytes_per_s: figure, multiprocessors_bytes_per_s: figure };
            let body = RooflineBody {
                device: text.to_owned(),
                driver: text.to_owned(),
                cuda: "13.0".to_owned(),
                memory_read_bytes_per_s: figure,
                link: vec![rate],
                bf16_product_flop_per_s: None,
                launch_s: figure,
                graph_node_s: figure,
                round_trip_s: figure,
            };
            Draft::without_identity(EvidenceClass::MeasuredPlanning, body)
        }
        _ => {
            let record = Sha256::of(b"record");
            let body = InvalidationBody { record, reason: text.to_owned(), replacement: None };
            Draft::without_identity(class, body)
        }
    }
}

/// Any draft: every kind, any finite figures, any text.
pub fn any_draft() -> impl Strategy<Value = Draft> {
    let figure = prop::num::f64::NORMAL | prop::num::f64::ZERO | prop::num::f64::SUBNORMAL;
    let text = any::<String>();
    (0..4 + OTHER_KINDS, prop::collection::vec(figure, 1..8), text, 0..(1_u64 << 53), any::<u64>(), any::<bool>())
        .prop_map(|(kind, figures, text, bytes, seed, flag)| {
            let mut identity = identity();
            identity.memory.vram_bytes = bytes;
            identity.template = flag.then(|| Sha256::of(text.as_bytes()));
            identity.sampling =
                Sampling::Random(RandomSampling { temperature: figures[0], top_k: None, top_p: None, seed });
            identity.prompts.texts.insert(text.clone(), Sha256::of(b"text"));
            let draft = match kind {
                0 => Draft::speed(Run::timing_off(), identity, speed_body(&figures)),
                1 => Draft::new(EvidenceClass::Functional, identity, check_body(figures[0])),
                2 => {
                    let mut body = perplexity_body(1.0);
                    body.nll_total = figures[0];
                    Draft::new(EvidenceClass::Historical, identity, body)
                }
                other @ 4.. => other_draft(other - 4, identity, figures[0], &text),
                3 => Draft::new(
                    EvidenceClass::MeasuredPlanning,
                    identity,
                    DecisionBody {
                        question: text.clone(),
                        choice: "this".to_owned(),
                        reason: text.clone(),
                        evidence: vec![Sha256::of(b"record")],
                    },
                ),
            };
            let other = BTreeMap::from([
                ("flag".to_owned(), Observation::Flag(flag)),
                ("number_mhz".to_owned(), Observation::Number(figures[0])),
                (text.clone(), Observation::Text(text.clone())),
            ]);
            draft
                .class(EvidenceClass::ControlledDevelopment)
                .observations(Observations { load_average_1m: Some(figures[0]), cpu_mhz: None, other })
                .command(["assay", "benchmark", text.as_str()])
        })
}

pub fn chain_of(ledger: &Ledger) -> PathBuf {
    ledger.dir().join(format!("{}.jsonl", ledger.writer()))
}

pub fn kinds(dir: &Path) -> Vec<ProblemKind> {
    verify(dir).unwrap().problems.into_iter().map(|problem| problem.kind).collect()
}

/// A ledger of `count` small records and a log each for the first two.
pub fn filled(dir: &Path, count: usize) -> Ledger {
    let ledger = Ledger::open(dir).unwrap();
    for number in 0..count {
        let mut draft = check(number as f64);
        if number < 2 {
            draft = draft.log(ledger.store_log("stderr.log", format!("log {number}\n").as_bytes()).unwrap());
        }
        ledger.append(draft).unwrap();
    }
    ledger
}
