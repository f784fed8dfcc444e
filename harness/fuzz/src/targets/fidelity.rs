//! Baselines of fidelity: the prefix is made to fit again most of the time.

use std::collections::BTreeMap;
use std::path::Path;

use assay_harness::fidelity::{Baseline, BaselineDocument, BaselineHeader, BaselineWriter, Distances};
use assay_ledgers::BaselineLogits;
use sha2::{Digest, Sha256};

use super::{Change, Target, Verdict, nothing, promise, write};
use crate::random::Random;

pub(super) const TARGET: Target =
    Target { name: "fidelity", seeds, prepare: nothing, change, read, bytes_per_input_byte: 64, bytes: 8 << 20 };

const VOCAB: usize = 12;
/// Magic, length, hash.
const PREFIX: usize = 48;

fn seeds() -> anyhow::Result<Vec<Vec<u8>>> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("baseline");
    let mut seeds = Vec::new();
    for logits in [BaselineLogits::Full, BaselineLogits::TopK(10)] {
        let document = |name: &str| BaselineDocument { name: name.to_owned(), tokens: vec![1, 2, 3] };
        let header = BaselineHeader {
            format_version: 1,
            name: "tiny".to_owned(),
            identity: None,
            vocab_size: VOCAB as u64,
            tokenizer: None,
            logits,
            set: "nowhere".to_owned(),
            texts: BTreeMap::new(),
            documents: vec![document("a"), document("b")],
        };
        let mut writer = BaselineWriter::create(&path, header)?;
        for row in 0..6u32 {
            let logits: Vec<f32> = (0..VOCAB as u32).map(|id| ((id * 7 + row) % 5) as f32).collect();
            writer.row(&logits, (row % 3 < 2).then_some(2))?;
        }
        writer.finish()?;
        seeds.push(std::fs::read(&path)?);
    }
    Ok(seeds)
}

/// Header, rows, or all of it; then length and hash are those of what is there.
fn change(random: &mut Random, input: &mut Vec<u8>, change: Change<'_>) {
    let length = input.get(8..16).and_then(|bytes| Some(u64::from_le_bytes(bytes.try_into().ok()?)));
    let split = length.and_then(|length| PREFIX.checked_add(usize::try_from(length).ok()?));
    let Some(split) = split.filter(|&split| split <= input.len() && !random.one_in(6)) else {
        return change(random, input, false);
    };
    let (mut header, mut rows) = (input[PREFIX..split].to_vec(), input[split..].to_vec());
    if random.one_in(2) {
        change(random, &mut header, true);
    } else {
        change(random, &mut rows, false);
    }
    let hash = Sha256::new().chain_update(&header).chain_update(&rows).finalize();
    *input = [b"ASSAYLGT", &(header.len() as u64).to_le_bytes()[..], &hash, &header, &rows].concat();
}

fn read(folder: &Path, input: &[u8]) -> Result<Verdict, String> {
    let path = folder.join("baseline");
    write(&path, input)?;
    let refused = |error: assay_harness::fidelity::BaselineError| Ok(Verdict::Refused(error.to_string()));
    let mut baseline = match Baseline::open(&path) {
        Ok(baseline) => baseline,
        Err(error) => return refused(error),
    };
    let header = baseline.header.clone();
    let logits: Vec<f32> = (0..header.vocab_size.min(4096)).map(|id| (id % 7) as f32).collect();
    let mut rows = 0;
    loop {
        match baseline.next_row() {
            Ok(None) => break,
            Err(error) => return refused(error),
            Ok(Some(row)) => {
                rows += 1;
                if header.vocab_size as usize == logits.len() {
                    let found = Distances::between(&row, &logits, Some(0));
                    promise(found.kl >= 0.0 && found.js >= 0.0 && found.js < 1.0, "divergences that can be")?;
                    promise((0.0..=1.0).contains(&found.overlap), "a share")?;
                }
            }
        }
    }
    promise(Some(rows) == header.rows(), "a row for each token")?;
    Ok(Verdict::of(baseline.finish()))
}
