//! One request, traced. It is an instrumented run by its type: what it took is no speed row.

use crate::interrupt;
use crate::progress::Progress;
use anyhow::Context;
use assay_engine::Engine;
use assay_engine::device::Device;
use assay_engine::trace::{Selection, TraceTotals};
use assay_ledgers::{Identity, Run, TimingOn};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::BufWriter;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// What is traced.
#[derive(Debug, Clone)]
pub struct Request {
    /// The prompt.
    pub tokens: Vec<u32>,
    /// Tokens decoded after it, greedily.
    pub decode: usize,
    /// Which events are written.
    pub selection: Selection,
}

/// What came of it.
#[derive(Debug, Clone)]
pub struct Traced {
    /// The answer: as without a trace.
    pub answer: Vec<u32>,
    /// The file.
    pub totals: TraceTotals,
}

/// Runs `request` from an empty sequence and writes its trace to `path`, whole or not at all. The token says that the run is
/// instrumented, so nothing that measures speed can have it.
///
/// # Errors
/// When the engine fails, the file cannot be written, or the user interrupts.
pub fn trace<D: Device>(
    _run: &Run<TimingOn>,
    engine: &mut Engine<D>,
    request: &Request,
    fields: BTreeMap<String, String>,
    path: &Path,
) -> anyhow::Result<Traced> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let cannot = || format!("cannot write {}", path.display());
    // As any file that the user makes; a temporary one is for its owner alone.
    let permissions = std::fs::Permissions::from_mode(0o666);
    let file = tempfile::Builder::new().permissions(permissions).tempfile_in(folder).with_context(cannot)?;
    let sink = BufWriter::with_capacity(1 << 20, file.reopen().with_context(cannot)?);
    engine.reset();
    engine.start_trace(Box::new(sink), request.selection.clone(), fields)?;
    let ran = run(engine, request);
    let finished = engine.finish_trace();
    let (answer, totals) = (ran?, finished.with_context(cannot)?.context("the trace was finished by somebody else")?);
    interrupt::check()?;
    file.persist(path).map_err(|error| error.error).with_context(cannot)?;
    Ok(Traced { answer, totals })
}

fn run<D: Device>(engine: &mut Engine<D>, request: &Request) -> anyhow::Result<Vec<u32>> {
    let progress = Progress::start("tracing", 1 + request.decode as u64, "steps");
    let mut answer = vec![engine.prefill(&request.tokens)?];
    progress.advance(1);
    for _ in 0..request.decode {
        interrupt::check()?;
        answer.push(engine.decode(answer[answer.len() - 1])?);
        progress.advance(1);
    }
    Ok(answer)
}

/// An identity as the fields of a trace's contract: its leaves by dotted names, and its hash.
///
/// # Errors
/// An identity that cannot be hashed.
pub fn contract_fields(identity: &Identity) -> anyhow::Result<BTreeMap<String, String>> {
    let mut fields = BTreeMap::from([("identity_sha256".to_owned(), identity.hash()?.to_string())]);
    leaves("identity".to_owned(), &serde_json::to_value(identity)?, &mut fields);
    Ok(fields)
}

fn leaves(path: String, value: &Value, fields: &mut BTreeMap<String, String>) {
    match value {
        Value::Object(members) => {
            members.iter().for_each(|(name, value)| leaves(format!("{path}.{name}"), value, fields));
        }
        Value::String(text) => drop(fields.insert(path, text.clone())),
        leaf => drop(fields.insert(path, leaf.to_string())),
    }
}
