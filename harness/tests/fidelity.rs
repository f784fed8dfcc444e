//! Baselines: an exact one tells no difference from itself, a damaged or foreign one is none.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod faulty;
mod subject;

use std::collections::BTreeMap;
use std::path::Path;

use assay_engine::Engine;
use assay_harness::fidelity::{
    Baseline, BaselineDocument, BaselineHeader, BaselineWriter, Fidelity, compare, write_baseline,
};
use assay_harness::perplexity::Document;
use assay_ledgers::{BaselineLogits, Sha256};
use faulty::Faulty;
use subject::Subject;

fn documents() -> Vec<Document> {
    let tokens = |seed: u32| (0..24).map(|index| (index * 37 + seed * 101 + 11) % 4096).collect();
    (0..8).map(|seed| Document { name: format!("document {seed}"), tokens: tokens(seed) }).collect()
}

fn header(logits: BaselineLogits) -> BaselineHeader {
    BaselineHeader {
        format_version: 1,
        name: "bf16".to_owned(),
        identity: None,
        vocab_size: 4096,
        tokenizer: Some(Sha256::of(b"tokenizer")),
        logits,
        set: "made up".to_owned(),
        texts: BTreeMap::new(),
        documents: documents().into_iter().map(|Document { name, tokens }| BaselineDocument { name, tokens }).collect(),
    }
}

fn write(engine: &mut Engine<Faulty>, logits: BaselineLogits, path: &Path) -> Sha256 {
    let writer = BaselineWriter::create(path, header(logits)).unwrap();
    write_baseline(engine, &documents(), writer).unwrap()
}

fn against(engine: &mut Engine<Faulty>, path: &Path) -> (Fidelity, Sha256) {
    compare(engine, &documents(), Baseline::open(path).unwrap()).unwrap()
}

#[test]
fn nothing_differs_from_itself_and_rounded_experts_do() {
    let folder = tempfile::tempdir().unwrap();
    let (full, top) = (folder.path().join("full"), folder.path().join("top"));
    let mut exact = Subject::bf16("tiny-moe").engine(1.0);
    let full_hash = write(&mut exact, BaselineLogits::Full, &full);
    let top_hash = write(&mut exact, BaselineLogits::TopK(64), &top);

    let (same, hash) = against(&mut exact, &full);
    assert_eq!(hash, full_hash);
    assert_eq!((same.positions, same.kl.max, same.first_token_js.max), (8 * 24, 0.0, 0.0));
    assert_eq!((same.top1_flips.all, same.top10_containment, same.top10_overlap), (0, 1.0, 1.0));
    assert_eq!((same.nll_difference.value, same.nll_difference.ci95), (0.0, Some([0.0, 0.0])));
    let (half, _) = against(&mut Subject::bf16("tiny-moe").engine(0.3), &full);
    assert_eq!(half, same, "where experts lie changes nothing");

    let mut rounded = Subject::int4("tiny-moe").engine(1.0);
    let (far, _) = against(&mut rounded, &full);
    println!("INT4 from BF16: {:?}, {:?}, {:?}", far.kl, far.top1_flips, far.nll_difference);
    assert!(far.kl.mean > 1e-4 && far.kl.mean < 0.2 && far.kl.p99 <= far.kl.max && far.kl.median <= far.kl.p99);
    assert!(far.top1_flips.all > 0 && far.top10_containment > 0.8 && far.top10_overlap < 1.0);
    assert!(far.first_token_js.max > 0.0 && far.nll_difference.ci95.is_some());
    let (part, hash) = against(&mut rounded, &top);
    assert_eq!(hash, top_hash);
    assert!(part.kl.mean < far.kl.mean + 1e-6 && part.kl.mean > 0.5 * far.kl.mean, "{:?} of {:?}", part.kl, far.kl);
    assert_eq!((part.top1_flips, part.top10_overlap), (far.top1_flips, far.top10_overlap));
    assert!((part.nll_difference.value - far.nll_difference.value).abs() < 1e-12);
}

#[test]
fn another_vocabulary_or_other_tokens_are_named() {
    let header = header(BaselineLogits::Full);
    let tokenizer = header.tokenizer;
    assert_eq!(header.mismatch(4096, tokenizer, &documents()), None);
    assert_eq!(header.mismatch(4096, None, &documents()), None, "a checkpoint without a tokenizer says nothing");
    let says = |vocab_size, tokenizer, documents: &[Document], part: &str| {
        let mismatch = header.mismatch(vocab_size, tokenizer, documents).unwrap();
        assert!(mismatch.contains(part), "{mismatch}");
    };
    says(4095, tokenizer, &documents(), "4095 tokens, the baseline's 4096");
    says(4096, Some(Sha256::of(b"other")), &documents(), "the tokenizer is");
    says(4096, tokenizer, &documents()[..7], "7 documents, the baseline has 8");
    let changed = |change: &dyn Fn(&mut Document)| {
        let mut documents = documents();
        change(&mut documents[2]);
        documents
    };
    says(
        4096,
        tokenizer,
        &changed(&|document| document.tokens[3] = 0),
        "\"document 2\": token 3 is 0, in the baseline 324",
    );
    says(4096, tokenizer, &changed(&|document| document.tokens.truncate(23)), "23 tokens, in the baseline 24");
    says(4096, tokenizer, &changed(&|document| document.name.push('x')), "\"document 2x\"");
}

#[test]
fn a_bit_that_changes_anywhere_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("baseline");
    let mut engine = Subject::bf16("tiny-moe").engine(1.0);
    write(&mut engine, BaselineLogits::TopK(10), &path);
    let bytes = std::fs::read(&path).unwrap();
    for place in (0..bytes.len()).step_by(bytes.len() / 40) {
        let mut damaged = bytes.clone();
        damaged[place] ^= 4;
        std::fs::write(&path, &damaged).unwrap();
        let found = Baseline::open(&path).map_err(anyhow::Error::from).and_then(|baseline| {
            anyhow::ensure!(baseline.header.mismatch(4096, None, &documents()).is_none(), "other documents");
            compare(&mut engine, &documents(), baseline)
        });
        assert!(found.is_err(), "byte {place}");
    }
}
