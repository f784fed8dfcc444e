//! Traces: each input is compared with a whole one, in both roles.

use std::path::Path;

use assay_engine::trace::Selection;
use assay_harness::trace_diff::{Tolerance, diff};

use super::{Target, Verdict, as_text, promise, write};

pub(super) const TARGET: Target =
    Target { name: "trace", seeds, prepare, change: as_text, read, bytes_per_input_byte: 64, bytes: 8 << 20 };

const WHOLE: &str = concat!(
    r#"{"contract":{"format_version":1,"fields":{"engine.layers":"2"},"selection":"all","values":2}}"#,
    "\n",
    r#"{"input":{"step":0,"phase":"prefill","position":0,"tokens":[1,2]}}"#,
    "\n",
    r#"{"op":{"step":0,"phase":"prefill","layer":1,"component":"q_proj","kernel":"linear","position":0,"tokens":2,"inputs":[{"name":"x","dtype":"f32","shape":[2,4],"hash":"00","min":-1.5,"max":"inf","mean":0.5,"l2":2.0,"non_finite":1,"values":[0.5,"nan"]}],"outputs":[{"name":"out","dtype":"f32","shape":[2,4],"hash":"01","min":-1.0,"max":1.0,"mean":0.0,"l2":1.0,"values":[0.25,-1.0]}]}}"#,
    "\n",
    r#"{"routes":{"step":0,"phase":"prefill","layer":1,"position":0,"top_k":2,"ids":[3,1,0,2],"weights":[0.75,0.25,0.5,0.5]}}"#,
    "\n",
    r#"{"retry":{"step":0,"chunk":32}}"#,
    "\n",
    r#"{"logits":{"step":0,"phase":"prefill","position":1,"chosen":7,"top":[{"id":7,"logit":1.5}],"logits":{"name":"logits","dtype":"f32","shape":[9],"hash":"02","min":-1.0,"max":1.5,"mean":0.0,"l2":1.0,"values":[0.25,-1.0]}}}"#,
    "\n",
    r#"{"end":{"events":7}}"#,
    "\n",
);

fn seeds() -> anyhow::Result<Vec<Vec<u8>>> {
    Ok(vec![WHOLE.as_bytes().to_vec()])
}

fn prepare(folder: &Path) -> anyhow::Result<()> {
    Ok(std::fs::write(folder.join("whole.trace"), WHOLE)?)
}

fn read(folder: &Path, input: &[u8]) -> Result<Verdict, String> {
    let (path, whole) = (folder.join("input.trace"), folder.join("whole.trace"));
    write(&path, input)?;
    let compare = |a: &Path, b: &Path, tolerance| diff(a, b, tolerance, &Selection::default());
    let same = match compare(&path, &path, Tolerance::Exact) {
        Ok(same) => same,
        Err(error) => return Ok(Verdict::Refused(error.to_string())),
    };
    promise(same.differing == 0 && same.expected.alone == 0, "a trace that equals itself")?;
    for tolerance in [Tolerance::Exact, Tolerance::Ulp(2), Tolerance::Rel(0.5)] {
        for (a, b) in [(&whole, &path), (&path, &whole)] {
            let found = compare(a, b, tolerance).map_err(|error| error.to_string())?;
            let events = found.matching + found.differing + found.expected.alone;
            promise(events <= found.expected.lines, "no more events than lines")?;
            promise(found.differing == 0 || found.first_difference.is_some(), "a first of those that differ")?;
        }
    }
    let (matching, judged) = (same.matching, same.verdicts.len());
    Ok(if same.expected.complete { Verdict::Accepted } else { Verdict::Refused(format!("{judged} rows, {matching}")) })
}
