//! Heatmaps.

use std::path::Path;

use assay_engine::residency::{Heatmap, HeatmapIdentity};
use serde_json::Value;

use super::{Change, Target, Verdict, nothing, promise, write};
use crate::random::Random;

pub(super) const TARGET: Target =
    Target { name: "heatmap", seeds, prepare: nothing, change, read, bytes_per_input_byte: 64, bytes: 1 << 20 };

const LAYERS: usize = 2;
const EXPERTS: usize = 3;
const TOP_K: usize = 2;

fn seeds() -> anyhow::Result<Vec<Vec<u8>>> {
    let text = serde_json::json!({ "name": "a.txt", "text_sha256": "ab", "from_byte": 1, "to_byte": 9 });
    let heatmap = Heatmap::new(identity(), vec![serde_json::from_value(text)?], 4, vec![vec![3, 4, 1], vec![8, 0, 0]]);
    Ok(vec![serde_json::to_vec(&heatmap)?])
}

fn identity() -> HeatmapIdentity {
    HeatmapIdentity {
        checkpoint_sha256: "cd".to_owned(),
        experts: "bf16".to_owned(),
        attention: "bf16".to_owned(),
        dense: "bf16".to_owned(),
        kv: "f32".to_owned(),
    }
}

/// Gives what is still a heatmap the checksum of what it says now.
fn change(random: &mut Random, input: &mut Vec<u8>, change: Change<'_>) {
    change(random, input, true);
    if random.one_in(4) {
        return;
    }
    let Ok(changed) = serde_json::from_slice::<Heatmap>(input) else { return };
    let version = changed.format_version;
    let mut sealed = Heatmap::new(changed.identity, changed.texts, changed.tokens, changed.counts);
    sealed.format_version = version;
    if let Ok(bytes) = serde_json::to_vec(&sealed) {
        *input = bytes;
    }
}

fn read(folder: &Path, input: &[u8]) -> Result<Verdict, String> {
    let path = folder.join("heat.json");
    write(&path, input)?;
    let heatmap = match Heatmap::load(&path, LAYERS, EXPERTS, TOP_K) {
        Ok(heatmap) => heatmap,
        Err(error) => return Ok(Verdict::Refused(error.to_string())),
    };
    for counts in &heatmap.counts {
        let sum = counts.iter().try_fold(0u64, |sum, &count| sum.checked_add(count));
        promise(sum.is_some() && sum == heatmap.tokens.checked_mul(TOP_K as u64), "as many routes as tokens ask for")?;
    }
    heatmap.save(&path).map_err(|error| error.to_string())?;
    let again = Heatmap::load(&path, LAYERS, EXPERTS, TOP_K);
    promise(again.is_ok_and(|again| again == heatmap), "a heatmap that reads back as itself")?;
    let value: Result<Value, _> = serde_json::to_value(&heatmap);
    promise(value.is_ok(), "a heatmap that can be written")?;
    Ok(Verdict::of(heatmap.check_identity(&path, &identity())))
}
