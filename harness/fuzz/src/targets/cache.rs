//! Expert caches.

use std::path::Path;

use assay_engine::checkpoint::Checkpoint;
use assay_engine::expert_cache::{BuildOptions, CacheIdentity, Encoding, ExpertCache, build, info, verify};
use assay_engine::model::load_spec;
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::{Change, Target, Verdict, promise, tiny, write};
use crate::random::Random;

pub(super) const TARGET: Target =
    Target { name: "cache", seeds, prepare: tiny::write, change, read, bytes_per_input_byte: 64, bytes: 4 << 20 };

/// Magic, length and hash of the header.
const PREFIX: usize = 48;
const PAGE: usize = 4096;

fn identity(folder: &Path, encoding: Encoding) -> anyhow::Result<CacheIdentity> {
    let checkpoint = Checkpoint::open(folder)?;
    let spec = load_spec(checkpoint.config_bytes(), &checkpoint.config_path())?;
    Ok(CacheIdentity::new(&checkpoint, &spec, encoding, &checkpoint.file_hashes(None, &|_| ())?)?)
}

fn seeds() -> anyhow::Result<Vec<Vec<u8>>> {
    let folder = tempfile::tempdir()?;
    tiny::write(folder.path())?;
    let checkpoint = Checkpoint::open(folder.path())?;
    let spec = load_spec(checkpoint.config_bytes(), &checkpoint.config_path())?;
    let mut seeds = Vec::new();
    for encoding in Encoding::ALL {
        let path = folder.path().join(encoding.name());
        let identity = identity(folder.path(), encoding)?;
        build(&checkpoint, &spec, &identity, &path, &BuildOptions::default(), |_, _| ())?;
        seeds.push(std::fs::read(path)?);
    }
    Ok(seeds)
}

fn change(random: &mut Random, input: &mut Vec<u8>, change: Change<'_>) {
    let Some((mut header, mut payload)) = split(input).filter(|_| !random.one_in(4)) else {
        return change(random, input, false);
    };
    if random.one_in(2) {
        change(random, &mut payload, false);
        reseal(&mut header, &payload);
    } else {
        change(random, &mut header, true);
    }
    input.truncate(8);
    input.extend((header.len() as u64).to_le_bytes());
    input.extend(Sha256::digest(&header));
    input.extend(header);
    input.resize(input.len().next_multiple_of(PAGE), 0);
    input.extend(payload);
}

/// Header and payload.
fn split(input: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
    let length = u64::from_le_bytes(*input.get(8..16)?.first_chunk()?);
    let end = PREFIX.checked_add(usize::try_from(length).ok()?)?;
    let payload = input.get(end.checked_next_multiple_of(PAGE)?..)?;
    Some((input.get(PREFIX..end)?.to_vec(), payload.to_vec()))
}

/// Gives the first layer the hash of what it holds now.
fn reseal(header: &mut Vec<u8>, payload: &[u8]) {
    let Ok(mut value) = serde_json::from_slice::<Value>(header) else { return };
    let Some(layer) = value.pointer_mut("/layers/0") else { return };
    let size = |name: &str| layer[name].as_u64().and_then(|size| usize::try_from(size).ok()).unwrap_or(0);
    let bytes = size("num_experts").saturating_mul(size("expert_bytes"));
    let hash = Sha256::digest(&payload[..bytes.min(payload.len())]);
    let hash: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    let Some(layer) = layer.as_object_mut() else { return };
    layer.insert("sha256".to_owned(), hash.into());
    *header = value.to_string().into_bytes();
}

fn read(folder: &Path, input: &[u8]) -> Result<Verdict, String> {
    let path = folder.join("cache.experts");
    write(&path, input)?;
    let info = match info(&path) {
        Ok(info) => info,
        Err(error) => return Ok(Verdict::Refused(error.to_string())),
    };
    promise(info.file_bytes == input.len() as u64, "a file as long as its header says")?;
    let again =
        serde_json::to_value(&info.header).and_then(serde_json::from_value::<assay_engine::expert_cache::Header>);
    promise(again.is_ok_and(|again| again == info.header), "a header that reads back as itself")?;
    let verified = verify(&path, &|_| ());
    for encoding in Encoding::ALL {
        let identity = identity(folder, encoding).map_err(|error| error.to_string())?;
        let Ok(cache) = ExpertCache::open(&path, &identity) else { continue };
        // No more than the file has, as was promised above.
        let mut bytes = vec![0; cache.payload_bytes() as usize];
        let loaded = cache.read_all(&mut bytes, &|_| ());
        promise(verified.is_err() || loaded.is_ok(), "what verifies can be read")?;
    }
    Ok(Verdict::of(verified))
}
