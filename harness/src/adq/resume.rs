//! Whether a run that was stopped may go on: its records would not say that half of it was another one.

use super::evidence::Plan;
use anyhow::ensure;
use assay_ledgers::{FieldDifference, Identity, diff};
use serde_json::Value;

/// Refuses to go on with a run as something else than what it set out to be: its plan, and the identity of what answers where
/// this project runs that.
///
/// # Errors
/// With every field that differs, as it was recorded and as it is asked for.
pub fn check_same(recorded: (&Plan, Option<&Identity>), asked: (&Plan, Option<&Identity>)) -> anyhow::Result<()> {
    let plan = recorded.0;
    // Each has a name of its own, and each process probes the sandbox anew.
    let again = Plan { run: plan.run.clone(), probe: plan.probe.clone(), ..asked.0.clone() };
    let mut differences = diff(plan, &again)?;
    if let (Some(recorded), Some(asked)) = (recorded.1, asked.1) {
        differences.extend(diff(recorded, asked)?);
    }
    let lines: Vec<String> = differences.iter().map(line).collect();
    ensure!(lines.is_empty(), "run {} is another one than what is asked for:\n{}", plan.run, lines.join("\n"));
    Ok(())
}

fn line(FieldDifference { path, a, b }: &FieldDifference) -> String {
    let text = |value: &Option<Value>| match value {
        None => "nothing".to_owned(),
        Some(value) => value.as_str().map_or_else(|| value.to_string(), str::to_owned),
    };
    format!("  {path}: {} recorded, {} asked for", text(a), text(b))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use assay_ledgers::Sha256;
    use std::collections::BTreeMap;

    fn plan() -> Plan {
        Plan {
            run: "0123456789ab".to_owned(),
            subject: "config tiny-moe".to_owned(),
            suite: None,
            tier: 4096,
            attempts: 1,
            completion_tokens: None,
            tasks: BTreeMap::from([("off-by-one".to_owned(), Sha256::of(b"task"))]),
            python: "3.11.2".to_owned(),
            probe: Vec::new(),
        }
    }

    fn identity(vram_bytes: u64) -> Identity {
        let digest = "00".repeat(32);
        serde_json::from_value(serde_json::json!({
            "checkpoint": { "name": "tiny-moe", "shards": { "model.safetensors": digest }, "config": digest },
            "source": { "commit": "0" },
            "binary": digest,
            "precision": { "experts": "bf16", "attention": "bf16", "dense": "bf16", "head": "bf16", "kv": "f32" },
            "device": { "kind": "host", "name": "cpu", "cpu_features": "scalar", "threads": 1 },
            "memory": { "vram_bytes": vram_bytes, "margin_bytes": 0 },
            "context": 1,
            "prefill_chunk": 1,
            "residency_policy": "lru",
            "sampling": "none",
            "prompts": { "set": "none", "texts": {} },
            "synthetic": false,
        }))
        .unwrap()
    }

    #[test]
    fn the_same_goes_on_under_its_first_name() {
        let again = Plan { run: "another".to_owned(), ..plan() };
        check_same((&plan(), None), (&again, None)).unwrap();
        check_same((&plan(), Some(&identity(1))), (&again, Some(&identity(1)))).unwrap();
    }

    #[test]
    fn every_field_that_differs_is_named_with_both_values() {
        let mut asked = Plan { suite: Some("micro".to_owned()), completion_tokens: Some(64), attempts: 3, ..plan() };
        asked.tasks.insert("off-by-one".to_owned(), Sha256::of(b"changed"));
        let refused = check_same((&plan(), Some(&identity(1))), (&asked, Some(&identity(2)))).unwrap_err().to_string();
        let [was, is] = [b"task".as_slice(), b"changed"].map(Sha256::of);
        let expected = format!(
            "run 0123456789ab is another one than what is asked for:\n  \
             attempts: 1 recorded, 3 asked for\n  \
             completion_tokens: nothing recorded, 64 asked for\n  \
             suite: nothing recorded, micro asked for\n  \
             tasks[\"off-by-one\"]: {was} recorded, {is} asked for\n  \
             memory.vram_bytes: 1 recorded, 2 asked for"
        );
        assert_eq!(refused, expected);
    }
}
