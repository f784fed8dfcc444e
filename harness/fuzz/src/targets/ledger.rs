//! Ledgers: a head and a chain.

use std::path::Path;

use assay_ledgers::{
    CheckBody, CheckRow, Draft, EvidenceClass, Identity, Ledger, Sha256, Verdict as Judgement, VerdictRow, hash,
    read as records, verify,
};
use serde_json::{Value, json};

use super::{Change, Target, Verdict, nothing, promise, write};
use crate::random::Random;

pub(super) const TARGET: Target =
    Target { name: "ledger", seeds, prepare: nothing, change, read, bytes_per_input_byte: 64, bytes: 4 << 20 };

const WRITER: &str = "0123456789abcdef";

fn identity() -> anyhow::Result<Identity> {
    let digest = "00".repeat(32);
    Ok(serde_json::from_value(json!({
        "checkpoint": { "name": "tiny", "shards": { "model.safetensors": digest }, "config": digest },
        "source": { "commit": "0" }, "binary": digest,
        "precision": { "experts": "bf16", "attention": "bf16", "dense": "bf16", "head": "bf16", "kv": "f32" },
        "device": { "kind": "host", "name": "cpu", "cpu_features": "scalar", "threads": 1 },
        "memory": { "vram_bytes": 1, "margin_bytes": 0 }, "context": 1, "prefill_chunk": 1, "residency_policy": "lru",
        "sampling": "none", "prompts": { "set": "none", "texts": {} }, "synthetic": true
    }))?)
}

fn draft() -> anyhow::Result<Draft> {
    let row = CheckRow { row: "one".to_owned(), figures: [("a".to_owned(), 0.5)].into() };
    let body = CheckBody { subject: "tiny".to_owned(), reference: "none".to_owned(), rows: vec![row] };
    let verdict = VerdictRow { row: "one".to_owned(), verdict: Judgement::Pass, reason: "equal".to_owned() };
    Ok(Draft::new(EvidenceClass::Functional, identity()?, body).verdicts(vec![verdict]))
}

/// The head's line, then the chain's.
fn seeds() -> anyhow::Result<Vec<Vec<u8>>> {
    let folder = tempfile::tempdir()?;
    std::fs::write(folder.path().join("writer"), format!("{WRITER}\n"))?;
    let ledger = Ledger::open(folder.path())?;
    ledger.append(draft()?)?;
    ledger.append(draft()?)?;
    let file = |extension: &str| std::fs::read(folder.path().join(format!("{WRITER}.{extension}")));
    Ok(vec![[file("head")?, file("jsonl")?].concat()])
}

/// Changes a line, most often the last, and seals it and the head again, most of the time.
fn change(random: &mut Random, input: &mut Vec<u8>, change: Change<'_>) {
    let mut lines: Vec<Vec<u8>> = input.split_inclusive(|&byte| byte == b'\n').map(<[u8]>::to_vec).collect();
    let last = lines.len().saturating_sub(1);
    let place = if random.one_in(3) { random.below(lines.len()) } else { last };
    let Some(line) = lines.get_mut(place) else { return change(random, input, true) };
    line.pop();
    change(random, line, true);
    if place > 0 && !random.one_in(4) {
        seal(line);
    }
    line.push(b'\n');
    if place > 0 && !random.one_in(4) {
        lines[0] = head(&lines[1..]);
    }
    *input = lines.concat();
}

/// Gives a line that is an object its canonical form and its hash.
fn seal(line: &mut Vec<u8>) {
    let Ok(Value::Object(mut object)) = serde_json::from_slice(line) else { return };
    object.remove("hash");
    let Ok(mut canonical) = hash::canonical(&object) else { return };
    let sha256 = Sha256::of(&canonical);
    canonical.pop();
    canonical.extend(format!(",\"hash\":\"{sha256}\"}}").bytes());
    *line = canonical;
}

/// The head of a chain.
fn head(lines: &[Vec<u8>]) -> Vec<u8> {
    let last: Option<Value> = lines.last().and_then(|line| serde_json::from_slice(line).ok());
    let bytes: usize = lines.iter().map(Vec::len).sum();
    let head = json!({
        "writer": WRITER, "count": lines.len(), "bytes": bytes, "hash": last.map_or(Value::Null, |last| last["hash"].clone())
    });
    let mut line = hash::canonical(&head).unwrap_or_default();
    line.push(b'\n');
    line
}

fn read(folder: &Path, input: &[u8]) -> Result<Verdict, String> {
    let place = folder.join("ledger");
    let text = |error: std::io::Error| error.to_string();
    if place.exists() {
        std::fs::remove_dir_all(&place).map_err(text)?;
    }
    std::fs::create_dir(&place).map_err(text)?;
    let end = input.iter().position(|&byte| byte == b'\n').map_or(input.len(), |end| end + 1);
    write(&place.join("writer"), format!("{WRITER}\n").as_bytes())?;
    write(&place.join(format!("{WRITER}.head")), &input[..end])?;
    write(&place.join(format!("{WRITER}.jsonl")), &input[end..])?;
    let report = verify(&place).map_err(|error| error.to_string())?;
    let listed: Result<Vec<_>, _> = records(&place).and_then(Iterator::collect);
    let appended = Ledger::open(&place).and_then(|ledger| ledger.append(draft().map_err(not_canonical)?));
    if report.verdict != Judgement::Pass {
        let problems: Vec<String> = report.problems.iter().map(ToString::to_string).collect();
        return Ok(Verdict::Refused(problems.join("; ")));
    }
    let listed = listed.map_err(|error| format!("a ledger that verifies and cannot be read: {error}"))?;
    promise(listed.len() as u64 == report.records, "as many records read as verified")?;
    appended.map_err(|error| format!("a ledger that verifies and cannot be appended to: {error}"))?;
    let after = verify(&place).map_err(|error| error.to_string())?;
    promise(
        after.verdict == Judgement::Pass && after.records == report.records + 1,
        "one record more, which verifies",
    )?;
    Ok(Verdict::Accepted)
}

fn not_canonical(error: anyhow::Error) -> assay_ledgers::Error {
    assay_ledgers::Error::NotCanonical(error.to_string())
}
