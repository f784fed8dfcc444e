//! Folders: what is missing, what an index says, hashes.

use std::sync::atomic::{AtomicU64, Ordering};

use super::{entry, fixture, folder, open_error, safetensors, source};
use crate::checkpoint::{Checkpoint, FileHash};

/// One F32 tensor of one element.
fn one(name: &str) -> Vec<u8> {
    safetensors(&format!("{{{}}}", entry(name, "F32", &[1], (0, 4))), &1f32.to_le_bytes())
}

const INDEX: &str = "model.safetensors.index.json";

#[test]
fn missing_parts_are_named() {
    let empty = folder(&[]);
    let missing = empty.path().join("nowhere");
    let error = Checkpoint::open(&missing).unwrap_err().to_string();
    assert_eq!(error, format!("{}: expected a checkpoint folder, found nothing", missing.display()));
    let file = empty.path().join("config.json");
    let error = Checkpoint::open(&file).unwrap_err().to_string();
    assert_eq!(error, format!("{}: expected a checkpoint folder, found something else", file.display()));
    let error = Checkpoint::open(empty.path()).unwrap_err().to_string();
    let expected = "found neither model.safetensors nor model.safetensors.index.json";
    assert_eq!(error, format!("{}: {expected}", empty.path().display()));

    let no_config = folder(&[("model.safetensors", &one("a"))]);
    std::fs::remove_file(no_config.path().join("config.json")).unwrap();
    assert!(open_error(&no_config).starts_with("cannot open config.json: No such file"));
    let folder_for_file = folder(&[]);
    std::fs::create_dir(folder_for_file.path().join("model.safetensors")).unwrap();
    assert_eq!(open_error(&folder_for_file), "model.safetensors: a folder, expected an ordinary file");
    let huge_config = folder(&[("model.safetensors", &one("a"))]);
    std::fs::File::create(huge_config.path().join("config.json")).unwrap().set_len(1 << 40).unwrap();
    assert_eq!(open_error(&huge_config), "config.json: 16777217 bytes or more, expected at most 16777216");
}

/// Downloads often keep the files elsewhere and link to them.
#[cfg(unix)]
#[test]
fn links_are_followed_to_ordinary_files_only() {
    let target = folder(&[("blob", &one("a"))]);
    let links = folder(&[]);
    std::os::unix::fs::symlink(target.path().join("blob"), links.path().join("model.safetensors")).unwrap();
    assert_eq!(Checkpoint::open(links.path()).unwrap().num_tensors(), 1);
    let device = folder(&[]);
    std::os::unix::fs::symlink("/dev/zero", device.path().join("model.safetensors")).unwrap();
    assert_eq!(open_error(&device), "model.safetensors: a special file, expected an ordinary file");
}

/// 2^19 tensors in one file are read, one more in another shard is not.
#[test]
fn tensors_of_all_shards_have_a_limit() {
    let entries: Vec<String> = (0..1 << 19).map(|i| entry(&format!("t{i}"), "U8", &[0], (0, 0))).collect();
    let full = safetensors(&format!("{{{}}}", entries.join(",")), &[]);
    let index = br#"{"weight_map":{"t0":"s1","b":"s2"}}"#;
    let folder = folder(&[(INDEX, index), ("s1", &full), ("s2", &one("b"))]);
    let expected = "s2: number of tensors up to this file of 524289, expected at most 524288";
    assert_eq!(open_error(&folder), expected);
}

#[test]
fn bad_indices_are_refused() {
    let many = format!(
        r#"{{"weight_map":{{{}}}}}"#,
        (0..4097).map(|i| format!(r#""t{i}":"s{i}""#)).collect::<Vec<_>>().join(",")
    );
    for (index, expected) in [
        (
            "",
            "the index cannot be read (EOF while parsing a value at line 1 column 0), expected an object with weight_map",
        ),
        ("{}", "the index cannot be read (missing field `weight_map`"),
        (r#"{"weight_map":{"a":1}}"#, "the index cannot be read (invalid type: integer `1`, expected a string"),
        (r#"{"weight_map":{}}"#, "weight_map is empty, expected at least one tensor"),
        (r#"{"weight_map":{"a":"../x"}}"#, "weight_map names the file \"../x\", expected a plain file name"),
        (
            r#"{"weight_map":{"a":"/etc/passwd"}}"#,
            "weight_map names the file \"/etc/passwd\", expected a plain file name",
        ),
        (r#"{"weight_map":{"a":"sub\\x"}}"#, "weight_map names the file \"sub\\\\x\", expected a plain file name"),
        (r#"{"weight_map":{"a":".."}}"#, "weight_map names the file \"..\", expected a plain file name"),
        (r#"{"weight_map":{"a":""}}"#, "weight_map names the file \"\", expected a plain file name"),
        (&many, "number of shards of 4097, expected at most 4096"),
    ] {
        let error = open_error(&folder(&[(INDEX, index.as_bytes())]));
        assert!(error.starts_with(&format!("{INDEX}: {expected}")), "found    {error}\nexpected {expected}");
    }
}

#[test]
fn shards_are_checked_against_the_index_and_each_other() {
    let index = br#"{"metadata":{"total_size":8},"weight_map":{"a":"s1","b":"s2"}}"#;
    let good = folder(&[(INDEX, index), ("s1", &one("a")), ("s2", &one("b"))]);
    let checkpoint = Checkpoint::open(good.path()).unwrap();
    let names: Vec<_> = checkpoint.shards().iter().map(|shard| shard.path().file_name().unwrap().to_owned()).collect();
    assert_eq!(names, ["s1", "s2"]);
    assert!(checkpoint.contains("b") && !checkpoint.contains("c"));
    assert_eq!(checkpoint.tensor(&source("b", &[1])).unwrap().to_f32_vec().unwrap(), [1.0]);

    // transformers prefers the single file too.
    let both = folder(&[(INDEX, index), ("model.safetensors", &one("only"))]);
    assert_eq!(Checkpoint::open(both.path()).unwrap().num_tensors(), 1);

    let absent = folder(&[(INDEX, index), ("s1", &one("a"))]);
    assert!(open_error(&absent).starts_with("cannot open s2: No such file"));
    let elsewhere = folder(&[(INDEX, index), ("s1", &one("b")), ("s2", &one("a"))]);
    assert_eq!(open_error(&elsewhere), format!("s1: tensor a is not in it, although {INDEX} says so"));
    let twice = folder(&[(INDEX, index), ("s1", &one("a")), ("s2", &one("a"))]);
    assert_eq!(open_error(&twice), "tensor a is in s1 and again in s2, expected it once");
    let entries = format!("{{{},{}}}", entry("a", "F32", &[1], (0, 4)), entry("a", "F32", &[1], (4, 8)));
    let same_file = folder(&[("model.safetensors", &safetensors(&entries, &[0; 8]))]);
    assert_eq!(
        open_error(&same_file),
        "tensor a is in model.safetensors and again in model.safetensors, expected it once"
    );
    let truncated = folder(&[(INDEX, index), ("s1", &one("a")), ("s2", &one("b")[..20])]);
    assert!(open_error(&truncated).starts_with("s2: a header of"));
}

#[test]
fn tensors_are_checked_against_the_model() {
    let header = format!("{{{},{}}}", entry("a", "F32", &[2, 3], (0, 24)), entry("q", "F8_E4M3", &[2], (24, 26)));
    let folder = folder(&[("model.safetensors", &safetensors(&header, &[0; 26]))]);
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let dir = folder.path().display();
    for (name, shape, expected) in [
        ("b", &[1][..], format!("{dir}: no tensor b (expected shape [1]) among 2 tensors")),
        ("a", &[3, 2], format!("{dir}/model.safetensors: tensor a has shape [2, 3], expected [3, 2]")),
        ("a", &[6], format!("{dir}/model.safetensors: tensor a has shape [2, 3], expected [6]")),
        ("q", &[2], format!("{dir}/model.safetensors: tensor q is F8_E4M3, expected BF16, F16 or F32")),
    ] {
        assert_eq!(checkpoint.tensor(&source(name, shape)).unwrap_err().to_string(), expected);
    }
}

/// Against `sha256sum`, and the README of the model.
#[test]
fn hashes_are_those_of_the_files() {
    let checkpoint = Checkpoint::open(&fixture("tiny-moe")).unwrap();
    let seen = AtomicU64::new(0);
    let hashes = checkpoint.file_hashes(None, &|bytes| _ = seen.fetch_add(bytes, Ordering::Relaxed)).unwrap();
    let expected = [
        ("config.json", 975, "aa937329ff6fad7f2243f555d48d19e17c054080d3c70c31f6458054bd45dcd2"),
        ("tokenizer.json", 264_598, "4267c24c0d8f9e369179ef0953e1c95c8687caf3df925e1f4f3647079c30e873"),
        ("model.safetensors", 28_956_216, "936278a38e8fb51bbb2226d16caadac38be19f4b4701ad25dfb309eb2743ff30"),
    ]
    .map(|(name, bytes, sha256)| FileHash { name: name.into(), bytes, sha256: sha256.into() });
    assert_eq!(hashes, expected);
    assert_eq!(seen.into_inner(), expected.iter().map(|file| file.bytes).sum::<u64>());
    assert_eq!(checkpoint.shards()[0].bytes(), 28_956_216);
}
