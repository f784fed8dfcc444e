//! Traces: the same on every budget, and a fault planted in any launch is found in its layer and component.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod faulty;
mod subject;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::{Path, PathBuf};

use assay_engine::Engine;
use assay_engine::device::Device;
use assay_engine::trace::{Component, Event, MAX_VALUES, Selection};
use assay_harness::trace_diff::{Blame, Comparison, Tolerance, diff};
use assay_harness::tracing::{Request, trace};
use assay_ledgers::{Run, Verdict};
use faulty::{Fault, Faulty};
use subject::Subject;

/// Families that have every component between them: shared experts with and without a gate, a dense layer, multipliers.
const MODELS: [&str; 4] = ["tiny-moe", "families/qwen2_moe", "families/glm4_moe", "families/granitemoe"];

/// Two chunks of a prompt, and two tokens after it.
fn request() -> Request {
    let tokens = (0..12).map(|index| (index * 37 + 11) % 300).collect();
    Request { tokens, decode: 2, selection: Selection::default() }
}

fn traced<D: Device>(engine: &mut Engine<D>, request: &Request, path: &Path) -> Vec<u32> {
    trace(&Run::timing_on(), engine, request, BTreeMap::new(), path).unwrap().answer
}

fn lines(path: &Path) -> Vec<String> {
    std::fs::read_to_string(path).unwrap().lines().map(str::to_owned).collect()
}

fn verdict(comparison: &Comparison, row: &str) -> Verdict {
    comparison.verdicts.iter().find(|verdict| verdict.row == row).unwrap().verdict
}

fn exact(expected: &Path, found: &Path) -> Comparison {
    diff(expected, found, Tolerance::Exact, &Selection::default()).unwrap()
}

/// Every launch of the prompt's last chunk and of a decoded token, spoiled one after another.
fn each_fault_is_located(model: &str, seen: &mut BTreeSet<String>) {
    let (subject, folder) = (Subject::int4(model), tempfile::tempdir().unwrap());
    let file = |name: &str| folder.path().join(name);
    let mut engine = subject.engine(1.0);
    traced(&mut engine, &request(), &file("expected"));
    // The launches in order; each is one event.
    let launches: Vec<_> = lines(&file("expected"))
        .iter()
        .filter_map(|line| match serde_json::from_str(line).unwrap() {
            Event::Op(op) => Some((op.step, op.layer, op.component.into_owned(), op.position)),
            _ => None,
        })
        .collect();
    for (number, (step, layer, component, position)) in launches.iter().enumerate() {
        if *step == 2 || *position < 8 {
            continue;
        }
        engine.device_mut().plant(Fault::Spoiled { launch: number as u64 });
        traced(&mut engine, &request(), &file("actual"));
        engine.device_mut().plant(Fault::None);
        let comparison = exact(&file("expected"), &file("actual"));
        let first = comparison.first_difference.unwrap_or_else(|| panic!("{model}: {component} makes no difference"));
        assert_eq!(first.blame, Blame::InputsEqual, "{model}, launch {number}, {component}: {first:?}");
        let at = &first.at;
        assert_eq!(
            (at.step, at.layer, &at.component, at.position),
            (Some(*step), *layer, component, Some(*position)),
            "{model}, launch {number}: {first:?}"
        );
        assert!(first.findings[0].what.starts_with("output "), "{first:?}");
        assert!(comparison.last_match.is_some());
        seen.insert(component.clone());
    }
    traced(&mut engine, &request(), &file("again"));
    assert_eq!(lines(&file("expected")), lines(&file("again")), "{model} without a fault");
}

#[test]
fn a_fault_in_any_component_is_located() {
    let mut seen = BTreeSet::new();
    for model in MODELS {
        each_fault_is_located(model, &mut seen);
    }
    let no_launches = [Component::Routes, Component::Logits];
    // The one is a part of a captured token, which is not traced, the other of a sampled one; what is traced here is greedy.
    let elsewhere = [Component::FetchExperts, Component::Sample];
    for component in Component::ALL.iter().filter(|component| !elsewhere.contains(component)) {
        assert_eq!(seen.contains(component.name()), !no_launches.contains(component), "{}", component.name());
    }
}

#[test]
fn a_trace_changes_no_bit_and_is_the_same_on_every_budget() {
    let (subject, folder) = (Subject::int4("tiny-moe"), tempfile::tempdir().unwrap());
    let mut first: Option<(Vec<u32>, Vec<u32>)> = None;
    for (index, share) in [0.0, 0.4, 1.0].into_iter().enumerate() {
        let mut engine = subject.engine(share);
        let mut answer = vec![engine.prefill(&request().tokens).unwrap()];
        for _ in 0..2 {
            answer.push(engine.decode(answer[answer.len() - 1]).unwrap());
        }
        let bits = |engine: &mut Engine<Faulty>| -> Vec<u32> {
            engine.last_logits().unwrap().iter().map(|logit| logit.to_bits()).collect()
        };
        let plain = (answer, bits(&mut engine));
        let path = folder.path().join(index.to_string());
        assert!((traced(&mut engine, &request(), &path), bits(&mut engine)) == plain, "with a trace at {share}");
        assert!(!engine.is_traced());
        assert!(*first.get_or_insert_with(|| plain.clone()) == plain, "at {share}");
        let comparison = exact(&folder.path().join("0"), &path);
        assert!(comparison.verdicts.iter().all(|row| row.verdict == Verdict::Pass), "{comparison:?}");
        assert!(comparison.matching > 200 && (share == 0.0 || !comparison.contract.is_empty()));
    }
}

#[test]
fn a_selection_is_a_part_of_the_whole() {
    let (subject, folder) = (Subject::int4("tiny-moe"), tempfile::tempdir().unwrap());
    let (whole, part) = (folder.path().join("whole"), folder.path().join("part"));
    let mut engine = subject.engine(1.0);
    traced(&mut engine, &request(), &whole);
    let selection = Selection {
        layers: Some("1-2".parse().unwrap()),
        components: Some(vec![Component::Attention, Component::Routes, Component::Norm]),
        steps: Some("1".parse().unwrap()),
        ..Selection::default()
    };
    traced(&mut engine, &Request { selection: selection.clone(), ..request() }, &part);
    // A contract, the step's token, attention and routes of two layers, the final norm, the end.
    assert_eq!(lines(&part).len(), 1 + 1 + 4 + 1 + 1);
    let comparison = diff(&whole, &part, Tolerance::Exact, &selection).unwrap();
    assert_eq!((comparison.matching, verdict(&comparison, "structure")), (6, Verdict::Pass));
    let comparison = exact(&whole, &part);
    assert_eq!((comparison.matching, verdict(&comparison, "structure")), (6, Verdict::Fail));
    assert!(comparison.expected.alone > 200 && comparison.found.alone == 0);
}

#[test]
fn who_read_something_different_is_not_blamed() {
    let (subject, folder) = (Subject::int4("tiny-moe"), tempfile::tempdir().unwrap());
    let file = |name: &str| folder.path().join(name);
    let selection = Selection { components: Some(vec![Component::OProj]), ..Selection::default() };
    let request = Request { selection, ..request() };
    let mut engine = subject.engine(1.0);
    traced(&mut engine, &request, &file("expected"));
    // The first launch of the second layer: 19 of the first, and the embedding.
    engine.device_mut().plant(Fault::Spoiled { launch: 20 });
    traced(&mut engine, &request, &file("actual"));
    let first = exact(&file("expected"), &file("actual")).first_difference.unwrap();
    assert_eq!((first.at.component.as_str(), first.blame), ("o_proj", Blame::InputsDiffer));
}

#[test]
fn one_ulp_is_within_one_ulp_where_it_arises() {
    let (subject, folder) = (Subject::int4("tiny-moe"), tempfile::tempdir().unwrap());
    let file = |name: &str| folder.path().join(name);
    let mut engine = subject.engine(1.0);
    let selection = Selection { steps: Some("0".parse().unwrap()), values: MAX_VALUES, ..Selection::default() };
    let request = Request { selection, ..request() };
    traced(&mut engine, &request, &file("expected"));
    engine.device_mut().plant(Fault::Spoiled { launch: 0 });
    traced(&mut engine, &request, &file("actual"));
    let with = |tolerance: &str| {
        diff(&file("expected"), &file("actual"), tolerance.parse().unwrap(), &Selection::default()).unwrap()
    };
    let first = with("exact").first_difference.unwrap();
    let size = first.findings[0].size.as_ref().unwrap();
    assert_eq!((first.at.component.as_str(), size.differing, size.ulps), ("embed_tokens", 1, 1));
    let later = with("ulp:1").first_difference.unwrap();
    assert_ne!(later.at.component, "embed_tokens");
    let loose = with("abs:0.001");
    assert!(loose.first_difference.is_none(), "{loose:?}");
    assert_eq!(verdict(&loose, "values"), Verdict::Pass);
}

/// A trace of `events` launches, some of them left out.
fn write_synthetic(path: &Path, events: u64, left_out: impl Fn(u64) -> bool, digit: impl Fn(u64) -> char) -> u64 {
    let mut file = std::io::BufWriter::new(std::fs::File::create(path).unwrap());
    let contract = r#"{"contract":{"format_version":1,"fields":{},"selection":"all","values":8}}"#;
    writeln!(file, "{contract}").unwrap();
    let mut lines = 2;
    for event in (0..events).filter(|&event| !left_out(event)) {
        let (step, layer) = (event / 32, event % 32);
        let tensor = format!(
            r#"{{"name":"x","dtype":"f32","shape":[1,2048],"hash":"{:032x}","min":-1.5,"max":1.25,"mean":0.001,"l2":3.5,"values":[0.1,0.2,0.3,0.4,0.5,0.6,0.7,0.{}]}}"#,
            event,
            digit(event)
        );
        writeln!(
            file,
            r#"{{"op":{{"step":{step},"phase":"decode","layer":{layer},"component":"q_proj","kernel":"linear","position":{step},"tokens":1,"inputs":[{tensor}],"outputs":[{}]}}}}"#,
            tensor.replace("00000", &format!("0000{}", digit(event)))
        )
        .unwrap();
        lines += 1;
    }
    writeln!(file, r#"{{"end":{{"events":{lines}}}}}"#).unwrap();
    file.flush().unwrap();
    lines
}

#[test]
fn insertions_are_passed_over_and_named() {
    let folder = tempfile::tempdir().unwrap();
    let (a, b): (PathBuf, PathBuf) = (folder.path().join("a"), folder.path().join("b"));
    // 60 MB each: one lacks two events, the other a long stretch; one event differs.
    let expected = write_synthetic(&a, 100_000, |event| event == 500 || event == 501, |_| '8');
    let found = write_synthetic(
        &b,
        100_000,
        |event| (2000..9000).contains(&event),
        |event| if event == 70_000 { '9' } else { '8' },
    );
    let comparison = exact(&a, &b);
    assert_eq!((comparison.expected.lines, comparison.found.lines), (expected, found));
    assert_eq!((comparison.expected.alone, comparison.found.alone), (7000, 2));
    assert_eq!((comparison.matching, comparison.differing), (100_000 - 7002 - 1, 1));
    let first = comparison.first_difference.unwrap();
    assert_eq!((first.at.step, first.at.layer), (Some(70_000 / 32), Some(70_000 % 32)));
    assert_eq!(comparison.last_match.unwrap().layer, Some(70_000 % 32 - 1));
    assert_eq!(comparison.found.first_alone[0].layer, Some(500 % 32));
}

#[test]
fn a_trace_that_is_cut_short_is_incomplete() {
    let folder = tempfile::tempdir().unwrap();
    let (whole, cut) = (folder.path().join("whole"), folder.path().join("cut"));
    write_synthetic(&whole, 100, |_| false, |_| '8');
    let bytes = std::fs::read(&whole).unwrap();
    for end in [bytes.len() - 20, bytes.len() / 2] {
        std::fs::write(&cut, &bytes[..end]).unwrap();
        let comparison = exact(&whole, &cut);
        assert_eq!(verdict(&comparison, "values"), Verdict::Pass);
        assert_eq!(verdict(&comparison, "completeness"), Verdict::Incomplete);
        // What lies behind the cut is not missing: nobody knows.
        assert_ne!(verdict(&comparison, "structure"), Verdict::Fail);
    }
}

#[test]
fn the_order_in_which_a_device_takes_slots_is_no_difference() {
    let (subject, folder) = (Subject::int4("tiny-moe"), tempfile::tempdir().unwrap());
    let file = |name: &str| folder.path().join(name);
    traced(&mut subject.engine(1.0), &request(), &file("expected"));
    // As a device writes it that needs no such order, and the same by one that should have.
    let kept: Vec<String> =
        lines(&file("expected")).into_iter().filter(|line| !line.contains(r#""component":"permute""#)).collect();
    let count = lines(&file("expected")).len();
    let ended = |events: &[String]| {
        let (end, others) = events.split_last().unwrap();
        let end = end.replace(&format!(r#""events":{count}"#), &format!(r#""events":{}"#, events.len()));
        others.join("\n") + "\n" + &end + "\n"
    };
    assert!(kept.len() < count);
    std::fs::write(file("same device"), ended(&kept)).unwrap();
    let device = |name: &str| format!(r#""engine.device":"{name}""#);
    std::fs::write(file("other device"), ended(&kept).replace(&device("host"), &device("cuda"))).unwrap();
    assert_eq!(verdict(&exact(&file("expected"), &file("same device")), "structure"), Verdict::Fail);
    for (a, b) in [("expected", "other device"), ("other device", "expected")] {
        let comparison = exact(&file(a), &file(b));
        assert!(comparison.verdicts.iter().all(|row| row.verdict == Verdict::Pass), "{:?}", comparison.verdicts);
        assert_eq!((comparison.expected.alone, comparison.found.alone), (0, 0));
    }
}

#[test]
fn different_tokens_are_no_comparison() {
    let (subject, folder) = (Subject::int4("tiny-moe"), tempfile::tempdir().unwrap());
    let file = |name: &str| folder.path().join(name);
    let mut engine = subject.engine(1.0);
    traced(&mut engine, &request(), &file("expected"));
    let mut other = request();
    other.tokens[3] += 1;
    traced(&mut engine, &other, &file("actual"));
    let comparison = exact(&file("expected"), &file("actual"));
    assert_eq!(verdict(&comparison, "inputs"), Verdict::Invalid);
    assert_eq!(comparison.first_difference.unwrap().findings[0].words.as_deref(), Some("token 3 is 123, expected 122"));
}
