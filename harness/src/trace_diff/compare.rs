//! When two events are equal.

use super::tolerance::{Size, Tolerance, compare as compare_tensors};
use assay_engine::trace::{Event, Logits, Op, Routes, Tensor};
use serde::Serialize;

/// What differs in an event.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Finding {
    /// `output out`, `input x`, `tokens`, `routes`, `chosen token`, …
    pub what: String,
    /// By how much, for a tensor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<Size>,
    /// In words, for anything else.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub words: Option<String>,
}

/// Whether an event is to blame for its difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Blame {
    /// All it read was equal: what it wrote, it made different.
    InputsEqual,
    /// Something it read differed already, and these traces do not say where that came from.
    InputsDiffer,
    /// It is no launch: it says what other events made.
    NotALaunch,
}

/// The differences of two events of the same key; none where they are equal.
pub(super) fn compare(expected: &Event<'_>, found: &Event<'_>, tolerance: Tolerance) -> (Vec<Finding>, Blame) {
    match (expected, found) {
        (Event::Op(expected), Event::Op(found)) => ops(expected, found, tolerance),
        (Event::Input(expected), Event::Input(found)) => {
            let findings = if expected == found { vec![] } else { vec![tokens(&expected.tokens, &found.tokens)] };
            (findings, Blame::NotALaunch)
        }
        (Event::Routes(expected), Event::Routes(found)) => (routes(expected, found, tolerance), Blame::NotALaunch),
        (Event::Logits(expected), Event::Logits(found)) => (logits(expected, found, tolerance), Blame::NotALaunch),
        // A retry is its key; how many lines there are was checked on each side.
        _ => (Vec::new(), Blame::NotALaunch),
    }
}

fn ops(expected: &Op<'_>, found: &Op<'_>, tolerance: Tolerance) -> (Vec<Finding>, Blame) {
    let mut outputs = tensors("output", &expected.outputs, &found.outputs, tolerance);
    let inputs = tensors("input", &expected.inputs, &found.inputs, tolerance);
    if expected.kernel != found.kernel {
        outputs.push(words("kernel", format!("{} became {}", expected.kernel, found.kernel)));
    }
    let blame = if inputs.is_empty() { Blame::InputsEqual } else { Blame::InputsDiffer };
    outputs.extend(inputs);
    (outputs, blame)
}

fn tensors(role: &str, expected: &[Tensor<'_>], found: &[Tensor<'_>], tolerance: Tolerance) -> Vec<Finding> {
    let mut findings = Vec::new();
    for tensor in expected {
        let what = format!("{role} {}", tensor.name);
        match found.iter().find(|other| other.name == tensor.name) {
            None => findings.push(words(&what, "is missing".to_owned())),
            Some(other) if other.shape != tensor.shape || other.dtype != tensor.dtype => {
                let form = |tensor: &Tensor<'_>| format!("{}{:?}", tensor.dtype, tensor.shape);
                findings.push(words(&what, format!("{} became {}", form(tensor), form(other))));
            }
            Some(other) => findings.extend(compare_tensors(tensor, other, tolerance).map(|size| Finding {
                what,
                size: Some(size),
                words: None,
            })),
        }
    }
    for tensor in found.iter().filter(|tensor| !expected.iter().any(|other| other.name == tensor.name)) {
        findings.push(words(&format!("{role} {}", tensor.name), "was not expected".to_owned()));
    }
    findings
}

fn words(what: &str, words: String) -> Finding {
    Finding { what: what.to_owned(), size: None, words: Some(words) }
}

fn tokens(expected: &[u32], found: &[u32]) -> Finding {
    let index = expected.iter().zip(found).position(|(a, b)| a != b);
    let text = match index {
        Some(index) => format!("token {index} is {}, expected {}", found[index], expected[index]),
        None if expected.len() != found.len() => format!("{} tokens, expected {}", found.len(), expected.len()),
        None => "at another position or in another phase".to_owned(),
    };
    words("tokens", text)
}

fn routes(expected: &Routes, found: &Routes, tolerance: Tolerance) -> Vec<Finding> {
    let mut findings = Vec::new();
    let top_k = usize::try_from(expected.top_k).unwrap_or(usize::MAX).max(1);
    if expected.top_k != found.top_k || expected.ids.len() != found.ids.len() {
        findings.push(words("routes", format!("{} experts, expected {}", found.ids.len(), expected.ids.len())));
    } else if let Some(index) = expected.ids.iter().zip(&found.ids).position(|(a, b)| a != b) {
        let differing = expected.ids.chunks(top_k).zip(found.ids.chunks(top_k)).filter(|(a, b)| a != b).count();
        let (token, rank) = (index / top_k, index % top_k);
        let text = format!(
            "token {token}, rank {rank}: expert {}, expected {}; {differing} tokens in all",
            found.ids[index], expected.ids[index]
        );
        findings.push(words("routes", text));
    }
    let weights = expected.weights.iter().zip(&found.weights);
    let beyond = weights.filter(|(a, b)| !tolerance.accepts(a.0, b.0)).count();
    if beyond > 0 || expected.weights.len() != found.weights.len() {
        findings.push(words("route weights", format!("{beyond} of {} differ", expected.weights.len())));
    }
    findings
}

fn logits(expected: &Logits<'_>, found: &Logits<'_>, tolerance: Tolerance) -> Vec<Finding> {
    let mut findings = Vec::new();
    if expected.chosen != found.chosen {
        findings.push(words("chosen token", format!("{}, expected {}", found.chosen, expected.chosen)));
    }
    let both = [expected.logits.clone()];
    findings.extend(tensors("the", &both, std::slice::from_ref(&found.logits), tolerance));
    findings
}
