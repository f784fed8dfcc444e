//! Files that are not what they should be: an error with both values, never a panic, never a large allocation.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use proptest::prelude::*;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::super::*;
use super::support::Model;

const AMAX: Encoding = Encoding::Int4(QuantizeMethod::Amax);

/// A good cache, and what it is of.
struct Good {
    _model: Model,
    identity: CacheIdentity,
    bytes: Vec<u8>,
    payload_start: usize,
}

fn good() -> &'static Good {
    static GOOD: OnceLock<Good> = OnceLock::new();
    GOOD.get_or_init(|| {
        let model = Model::synthetic(20);
        let (identity, path, report) = model.build(AMAX);
        let bytes = fs::read(&path).unwrap();
        let payload_start = (report.bytes - info(&path).unwrap().payload_bytes) as usize;
        Good { _model: model, identity, bytes, payload_start }
    })
}

impl Good {
    fn header_end(&self) -> usize {
        48 + u64::from_le_bytes(self.bytes[8..16].try_into().unwrap()) as usize
    }

    /// The file with another header, whose length and hash are right.
    fn with_header(&self, json: &[u8]) -> Vec<u8> {
        let mut bytes = self.bytes[..8].to_vec();
        bytes.extend_from_slice(&(json.len() as u64).to_le_bytes());
        bytes.extend_from_slice(&Sha256::digest(json));
        bytes.extend_from_slice(json);
        bytes.resize(bytes.len().next_multiple_of(4096), 0);
        bytes.extend_from_slice(&self.bytes[self.payload_start..]);
        bytes
    }

    fn edit_header(&self, edit: impl FnOnce(&mut Value)) -> Vec<u8> {
        let mut header: Value = serde_json::from_slice(&self.bytes[48..self.header_end()]).unwrap();
        edit(&mut header);
        self.with_header(&serde_json::to_vec(&header).unwrap())
    }

    /// The file with other bytes in layer 0, whose hash is right.
    fn edit_layer(&self, edit: impl FnOnce(&mut [u8])) -> Vec<u8> {
        let mut layer = self.bytes[self.payload_start..][..3 * self.identity.layers[0].expert.bytes].to_vec();
        edit(&mut layer);
        let hash: String = Sha256::digest(&layer).iter().map(|byte| format!("{byte:02x}")).collect();
        let mut bytes = self.edit_header(|header| header["layers"][0]["sha256"] = json!(hash));
        bytes[self.payload_start..][..layer.len()].copy_from_slice(&layer);
        bytes
    }
}

/// Results of everything that reads a cache: open, open and read, verify, info.
struct Read {
    open: Result<(), CacheError>,
    all: Result<(), CacheError>,
    verify: Result<(), CacheError>,
    info: Result<(), CacheError>,
}

fn read(bytes: &[u8]) -> Read {
    let folder = tempfile::tempdir().unwrap();
    let path: PathBuf = folder.path().join("x.experts");
    fs::write(&path, bytes).unwrap();
    read_path(&path)
}

fn read_path(path: &Path) -> Read {
    let opened = ExpertCache::open(path, &good().identity);
    let read_all = |cache: &ExpertCache| {
        let mut out = vec![0; cache.payload_bytes() as usize];
        cache.read_all(&mut out, &|_| ())
    };
    Read {
        all: opened.as_ref().map_or(Ok(()), read_all),
        open: opened.map(|_| ()),
        verify: verify(path, &|_| ()).map(|_| ()),
        info: info(path).map(|_| ()),
    }
}

#[test]
fn the_good_one_is_good() {
    let read = read(&good().bytes);
    assert!(read.open.is_ok() && read.all.is_ok() && read.verify.is_ok() && read.info.is_ok());
}

#[test]
fn every_truncation_is_refused_at_once() {
    let good = good();
    let length = good.bytes.len();
    let ends =
        [0, 1, 7, 8, 15, 16, 47, 48, 49, good.header_end() - 1, good.header_end(), good.payload_start, length - 1];
    for end in ends.into_iter().chain((0..length).step_by(997)) {
        let read = read(&good.bytes[..end]);
        assert!(read.open.is_err() && read.verify.is_err() && read.info.is_err(), "{end} bytes");
    }
    let mut longer = good.bytes.clone();
    longer.push(0);
    let error = read(&longer).open.unwrap_err().to_string();
    assert!(error.contains(&(length + 1).to_string()) && error.contains(&length.to_string()), "{error}");
}

#[test]
fn another_checkpoint_is_refused_with_both_values() {
    let good = good();
    let other = Model::synthetic(21).identity(AMAX);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.experts");
    fs::write(&path, &good.bytes).unwrap();
    let name = "model.safetensors";
    let mut cases = vec![(
        other.clone(),
        good.identity.source.shards_sha256[name].clone(),
        other.source.shards_sha256[name].clone(),
    )];
    let mut edited = |edit: fn(&mut CacheIdentity), found: &str, expected: &str| {
        let mut identity = good.identity.clone();
        edit(&mut identity);
        cases.push((identity, found.to_owned(), expected.to_owned()));
    };
    edited(|it| it.source.config_sha256 = "ab".repeat(32), &good.identity.source.config_sha256, &"ab".repeat(32));
    edited(|it| it.encoding = Encoding::Bf16, "int4 g128 amax", "bf16");
    edited(|it| it.encoding = Encoding::Int8, "int4 g128 amax", "int8 g128");
    edited(
        |it| it.encoding = Encoding::Int4(QuantizeMethod::Search),
        "int4 g128 amax",
        "int4 g128 search over [100, 99",
    );
    edited(|it| it.layers.truncate(1), "MoE layers is 2", "expected 1");
    edited(|it| it.layers[1].layer = 7, "layer 2 with 3 experts of 18 x 130", "layer 7 with 3 experts of 18 x 130");
    edited(|it| it.layers[0].num_experts = 4, "layer 0 with 3 experts", "layer 0 with 4 experts");
    edited(
        |it| drop(it.source.shards_sha256.insert("more.safetensors".into(), "cd".repeat(32))),
        "none (no such file)",
        &"cd".repeat(32),
    );
    edited(|it| it.source.shards_sha256.clear(), &good.identity.source.shards_sha256[name], "none (no such file)");
    for (identity, found, expected) in cases {
        let error = ExpertCache::open(&path, &identity).unwrap_err();
        assert!(matches!(error, CacheError::Mismatch { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains(&found) && text.contains(&expected) && text.contains("x.experts"), "{text}");
    }
    assert_eq!(fs::read(&path).unwrap(), good.bytes, "nothing was rebuilt");
}

#[test]
fn absurd_headers_are_refused() {
    let huge = json!(1_000_000_000_u64);
    let check = |bytes: Vec<u8>, expected: &[&str]| {
        let read = read(&bytes);
        for error in [read.open.unwrap_err(), read.verify.unwrap_err(), read.info.unwrap_err()] {
            let text = error.to_string();
            assert!(expected.iter().all(|part| text.contains(part)), "{text}, expected {expected:?}");
        }
    };
    let edit =
        |edit: &dyn Fn(&mut Value), expected: &[&str]| check(good().edit_header(|header| edit(header)), expected);
    edit(&|it| it["format_version"] = json!(1), &["format version is 1, expected 2"]);
    edit(&|it| it["layout_version"] = json!(9), &["layout version is 9, expected 2"]);
    // A newer version is called newer, whatever else it has.
    edit(&|it| (it["format_version"], it["colour"]) = (json!(3), json!("blue")), &["format version is 3, expected 2"]);
    edit(&|it| it["colour"] = json!("blue"), &["colour"]);
    edit(&|it| it["encoding"]["colour"] = json!("blue"), &["colour"]);
    edit(&|it| it["encoding"] = json!({"format": "bf16", "group_cols": 128}), &["group_cols"]);
    edit(&|it| it["encoding"]["format"] = json!("int3"), &["int3"]);
    edit(&|it| it["layers"][0]["num_experts"] = huge.clone(), &["offset", "layer 2"]);
    edit(&|it| it["layers"][1]["num_experts"] = huge.clone(), &["bytes as the header says"]);
    edit(&|it| it["layers"][1]["num_experts"] = json!(u64::MAX), &["18446744073709551615 experts", "fits in memory"]);
    edit(&|it| it["layers"][1]["num_experts"] = json!(0), &["0 experts", "at least one"]);
    edit(&|it| it["layers"][1]["hidden_size"] = json!(1_u64 << 62), &["4611686018427387904", "fits in memory"]);
    edit(&|it| it["layers"][1]["hidden_size"] = huge.clone(), &["bytes for experts of 18 x 1000000000"]);
    edit(&|it| it["layers"][0]["hidden_size"] = json!(0), &["18 x 0", "fits in memory"]);
    edit(&|it| it["layers"][0]["hidden_size"] = json!(-1), &["-1"]);
    edit(&|it| it["layers"][1]["expert_bytes"] = json!(256), &["256 bytes for experts of 18 x 130"]);
    edit(&|it| it["layers"][1]["offset"] = json!(0), &["layer 2: offset 0"]);
    edit(&|it| it["layers"][1]["layer"] = json!(0), &["layer 0: it follows layer 0"]);
    edit(&|it| it["layers"][0]["sha256"] = json!("XYZ"), &["XYZ", "64 lowercase"]);
    edit(&|it| it["source"]["config_sha256"] = json!(""), &["config.json", "64 lowercase"]);
    edit(&|it| it["source"]["shards_sha256"]["a/b"] = json!("0"), &["a/b", "64 lowercase"]);
    edit(&|it| it["layers"] = json!([]), &["bytes as the header says"]);
    edit(
        &|it| {
            let layers = it["layers"].as_array_mut().unwrap();
            let last = layers[1].clone();
            layers.extend((3..20_000).map(|layer| {
                let mut more = last.clone();
                (more["layer"], more["offset"]) = (json!(layer), json!(0));
                more
            }));
        },
        &["layer 3: offset 0"],
    );
    for json in [&b""[..], b"{", b"[]", b"null", &[0xff; 40], &[b'['; 100_000]] {
        check(good().with_header(json), &["header: "]);
    }
    let mut long = good().bytes.clone();
    long[8..16].copy_from_slice(&(1_u64 << 60).to_le_bytes());
    check(long.clone(), &["1152921504606846976"]);
    long[8..16].copy_from_slice(&u64::MAX.to_le_bytes());
    check(long, &["18446744073709551615"]);
    let mut other = good().bytes.clone();
    other[..8].copy_from_slice(b"SOMETHIN");
    check(other, &["SOMETHIN", "ASSAYXPT"]);
}

#[test]
fn bad_content_under_a_right_hash_is_named() {
    let expert = good().identity.layers[0].expert;
    let check = |edit: &dyn Fn(&mut [u8]), expected: &str| {
        let read = read(&good().edit_layer(edit));
        assert!(read.all.is_ok(), "the hash is right");
        let error = read.verify.unwrap_err().to_string();
        assert!(error.contains(expected), "{error}, expected {expected}");
    };
    check(&|it| it[64] &= 0xf0, "layer 0, expert 0, gate_proj: row 1, column 0: quantised weight -8");
    let up = expert.bytes + expert.up_offset;
    check(&|it| it[up] &= 0x0f, "layer 0, expert 1, up_proj: row 0, column 2: quantised weight -8");
    let down_scale = 2 * expert.bytes + expert.down().end - 32;
    check(
        &|it| it[down_scale..down_scale + 2].copy_from_slice(&[0x80, 0x7f]),
        "layer 0, expert 2, down_proj: row 128, group 0: scale inf",
    );
    check(&|it| it[expert.gate().end] = 1, "layer 0, expert 0: padding between its parts");
    check(&|it| it[3 * expert.bytes - 1] = 1, "layer 0, expert 2: padding between its parts");
}

#[test]
fn requests_that_do_not_fit_are_refused() {
    let good = good();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.experts");
    fs::write(&path, &good.bytes).unwrap();
    let cache = ExpertCache::open(&path, &good.identity).unwrap();
    let mut layer = vec![0; cache.layers()[0].bytes()];
    let text = cache.read_layer(1, &mut layer).unwrap_err().to_string();
    assert!(text.contains("layer 1, expected one of [0, 2]"), "{text}");
    layer.push(0);
    assert!(matches!(cache.read_layer(0, &mut layer), Err(CacheError::Request { .. })));
    assert!(matches!(cache.read_all(&mut layer, &|_| ()), Err(CacheError::Request { .. })));
    // The file is cut while it is open.
    fs::File::options().write(true).open(&path).unwrap().set_len(5000).unwrap();
    assert!(matches!(cache.read_layer(2, &mut layer[1..]), Err(CacheError::Io { .. })));

    let nothing = folder.path().join("nothing");
    assert!(matches!(info(&nothing), Err(CacheError::Io { .. })));
    let text = info(folder.path()).unwrap_err().to_string();
    assert!(text.contains("not an ordinary file"), "{text}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// Every bit counts, padding too.
    #[test]
    fn every_flipped_bit_is_found(place in any::<prop::sample::Index>(), bit in 0..8_u8, in_header in any::<bool>()) {
        let good = good();
        let mut bytes = good.bytes.clone();
        let place = place.index(if in_header { good.header_end() } else { bytes.len() });
        bytes[place] ^= 1 << bit;
        let read = read(&bytes);
        prop_assert!(read.verify.is_err(), "byte {}", place);
        if place < good.header_end() {
            prop_assert!(read.open.is_err() && read.info.is_err(), "byte {}", place);
        }
        let layer = 3 * good.identity.layers[0].expert.bytes;
        if (good.payload_start..good.payload_start + layer).contains(&place) {
            prop_assert!(matches!(read.all, Err(CacheError::Damaged { layer: 0, .. })), "byte {}", place);
        }
    }

    /// Anything at all: only that nothing panics, and that what opens has the right hashes or says so.
    #[test]
    fn mutations_never_panic(
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        cut in prop::option::of(any::<prop::sample::Index>()),
        extra in 0..3000_usize,
        rehash in any::<bool>(),
    ) {
        let good = good();
        let mut bytes = if rehash {
            let mut json = good.bytes[48..good.header_end()].to_vec();
            for (place, value) in &edits {
                let place = place.index(json.len());
                // A digit mostly becomes another digit, so that numbers change as well as syntax.
                json[place] = if json[place].is_ascii_digit() { b'0' + value % 10 } else { *value };
            }
            good.with_header(&json)
        } else {
            let mut bytes = good.bytes.clone();
            for (place, value) in &edits {
                let place = place.index(bytes.len());
                bytes[place] = *value;
            }
            bytes
        };
        if let Some(cut) = cut {
            let end = cut.index(bytes.len());
            bytes.truncate(end);
            bytes.resize(end + extra, 0x5a);
        }
        let read = read(&bytes);
        if read.verify.is_ok() {
            prop_assert!(read.info.is_ok());
            prop_assert!(read.open.is_err() || read.all.is_ok());
        }
    }

    #[test]
    fn noise_is_refused(bytes in prop::collection::vec(any::<u8>(), 0..9000), magic in any::<bool>()) {
        let mut bytes = bytes;
        if magic && bytes.len() > 16 {
            bytes[..8].copy_from_slice(b"ASSAYXPT");
            bytes[10..16].fill(0);
        }
        let read = read(&bytes);
        prop_assert!(read.open.is_err() && read.verify.is_err() && read.info.is_err());
    }
}
