//! Expert caches.

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::place::Place;
use crate::table::{Case, case, check_all, invalid};
use crate::weights::Weights;

const BUILD: &[&str] = &["cache", "build", "small"];
const USE: &[&str] = &["perplexity", "small", "--token-ids", "ids.json"];
const VERIFY: &[&str] = &["cache", "verify", "small"];
const FILE: &str = ".experts";
/// Magic, length and hash.
const PREFIX: usize = 48;

#[test]
fn caches() {
    insta::assert_snapshot!(check_all(used().into_iter().chain(verified())));
}

/// Builds the cache and changes it.
fn changed(place: &Place, change: impl FnOnce(&mut Vec<u8>)) {
    place.write("ids.json", "{\"a\": [1, 2, 3]}");
    place.copy_prepared("cache");
    let name = place.find("cache", FILE);
    let mut bytes = place.read(&name);
    change(&mut bytes);
    place.write(&name, bytes);
}

/// Changes the header and gives it a hash that fits.
fn resealed(place: &Place, edit: impl FnOnce(&mut Value)) {
    changed(place, |bytes| {
        let length = u64::from_le_bytes(bytes[8..16].try_into().unwrap()) as usize;
        let mut header: Value = serde_json::from_slice(&bytes[PREFIX..PREFIX + length]).unwrap();
        edit(&mut header);
        let json = header.to_string();
        let payload = bytes[(PREFIX + length).next_multiple_of(4096)..].to_vec();
        bytes.truncate(8);
        bytes.extend((json.len() as u64).to_le_bytes());
        bytes.extend(Sha256::digest(json.as_bytes()));
        bytes.extend(json.as_bytes());
        bytes.resize(bytes.len().next_multiple_of(4096), 0);
        bytes.extend(payload);
    });
}

/// Another file under the cache's name.
fn instead(place: &Place, bytes: &[u8]) {
    changed(place, |cache| *cache = bytes.to_vec());
}

fn on(name: &'static str, damage: fn(&Place)) -> Case {
    case(name, USE, FILE, damage)
}

fn used() -> Vec<Case> {
    vec![
        on("empty", |place| instead(place, b"")),
        on("a folder", |place| {
            changed(place, |_| ());
            let name = place.find("cache", FILE);
            place.folder(&name);
        }),
        on("something else", |place| instead(place, &[7; 10_000])),
        on("cut in the header", |place| changed(place, |bytes| bytes.truncate(300))),
        on("cut in the experts", |place| changed(place, |bytes| bytes.truncate(bytes.len() - 4096))),
        on("a page too many", |place| changed(place, |bytes| bytes.resize(bytes.len() + 4096, 0))),
        on("a bit of the header flipped", |place| changed(place, |bytes| bytes[PREFIX + 30] ^= 1)),
        on("a bit of an expert flipped", |place| {
            changed(place, |bytes| {
                let middle = bytes.len() / 2;
                bytes[middle] ^= 0x10;
            });
        }),
        on("a header of 2^64 - 1 bytes", |place| changed(place, |bytes| bytes[8..16].fill(0xff))),
        on("a header of 2^63 bytes", |place| {
            changed(place, |bytes| bytes[8..16].copy_from_slice(&(1u64 << 63).to_le_bytes()));
        }),
        on("a newer version", |place| resealed(place, |header| header["format_version"] = json!(99))),
        on("a newer layout", |place| resealed(place, |header| header["layout_version"] = json!(99))),
        on("an unknown field", |place| resealed(place, |header| header["colour"] = json!(1))),
        on("an expert of 2^63 bytes", |place| {
            resealed(place, |header| header["layers"][0]["expert_bytes"] = json!(1u64 << 63));
        }),
        on("2^62 experts", |place| resealed(place, |header| header["layers"][0]["num_experts"] = json!(1u64 << 62))),
        on("experts of 2^40 x 2^40", |place| {
            resealed(place, |header| {
                header["layers"][0]["hidden_size"] = json!(1u64 << 40);
                header["layers"][0]["moe_intermediate_size"] = json!(1u64 << 40);
            });
        }),
        on("a layer that starts elsewhere", |place| resealed(place, |header| header["layers"][1]["offset"] = json!(0))),
        on("layers out of order", |place| resealed(place, |header| header["layers"][1]["layer"] = json!(0))),
        on("another checkpoint's", |place| {
            resealed(place, |header| header["source"]["config_sha256"] = json!("0".repeat(64)));
        }),
        on("another encoding's", |place| {
            resealed(place, |header| {
                header["encoding"] = json!({ "format": "int4", "group_cols": 128, "method": { "name": "amax" } });
            });
        }),
        on("stale: the checkpoint has changed since", |place| {
            place.write("ids.json", "{\"a\": [1, 2, 3]}");
            place.copy_prepared("cache");
            let old = place.find("cache", FILE);
            let bytes = place.read(&old);
            place.remove(&old);
            Weights::edit(place, |weights| weights.set("model.norm.weight", 0, 0x3f80));
            place.must(BUILD);
            let new = place.find("cache", FILE);
            place.write(&new, bytes);
        }),
        case("the cache's folder is a file", BUILD, "cache", |place| place.write("cache", "")),
        case("the lock is a folder", BUILD, ".lock", |place| {
            place.copy_prepared("cache");
            let lock = place.find("cache", ".lock");
            place.folder(&lock);
        }),
    ]
}

fn verified() -> Vec<Case> {
    vec![
        case("verified: absent", VERIFY, "assay cache build", |_| ()),
        invalid("verified: a bit of an expert flipped", VERIFY, FILE, |place| {
            changed(place, |bytes| {
                let middle = bytes.len() / 2;
                bytes[middle] ^= 0x10;
            });
        }),
        invalid("verified: cut", VERIFY, FILE, |place| changed(place, |bytes| bytes.truncate(bytes.len() - 1))),
        invalid("verified: padding that is not zero", VERIFY, FILE, |place| {
            changed(place, |bytes| *bytes.last_mut().unwrap() = 1);
        }),
        invalid("verified: a NaN under a hash that fits", VERIFY, FILE, |place| {
            resealed(place, |_| ());
            let name = place.find("cache", FILE);
            let mut bytes = place.read(&name);
            let length = u64::from_le_bytes(bytes[8..16].try_into().unwrap()) as usize;
            let start = (PREFIX + length).next_multiple_of(4096);
            bytes[start..start + 2].copy_from_slice(&0x7fc0u16.to_le_bytes());
            let mut header: Value = serde_json::from_slice(&bytes[PREFIX..PREFIX + length]).unwrap();
            let layer = header["layers"][0].clone();
            let layer_bytes =
                (layer["num_experts"].as_u64().unwrap() * layer["expert_bytes"].as_u64().unwrap()) as usize;
            header["layers"][0]["sha256"] = json!(crate::place::hex(&bytes[start..start + layer_bytes]));
            let json = header.to_string();
            assert_eq!(json.len(), length);
            bytes[16..48].copy_from_slice(&Sha256::digest(json.as_bytes()));
            bytes[PREFIX..PREFIX + length].copy_from_slice(json.as_bytes());
            place.write(&name, bytes);
        }),
    ]
}
