#![allow(clippy::unwrap_used)]
use super::*;
use crate::repository::Repository;
use clap::Parser;

#[derive(Parser)]
struct Command {
    #[command(flatten)]
    config: ConfigArgs,
}

fn load(arguments: &[&str]) -> Result<LoadedConfig, ConfigError> {
    let command = Command::try_parse_from([&["assay"], arguments].concat()).unwrap();
    command.config.load(&Repository::find().unwrap())
}

/// Every field, with values that differ from each other.
const SAMPLE: &str = r#"
model = "fixtures/models/tiny-moe"
device = "host"

[precision]
experts = "int4"
expert_quantization = "search"
attention = "bf16"
dense = "bf16"
head = "bf16"
kv = "bf16"

[memory]
vram = "20MiB"
margin = "1MiB"

[context]
tokens = 8192
max_chunk = 512
min_chunk = 32

[residency]
policy = "frequency_lru"
max_promotions_per_token = 4

[benchmark]
max_prompt_tokens = 4096

[link]
bandwidth_gb_s = 25.0
latency_us = 10.0

[sampling]
kind = "greedy"
"#;

fn sample_with(from: &str, to: &str) -> Result<LoadedConfig, ConfigError> {
    assert!(SAMPLE.contains(from), "{from}");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("changed.toml");
    std::fs::write(&path, SAMPLE.replace(from, to)).unwrap();
    load(&[path.to_str().unwrap()])
}

fn assert_refused(result: Result<LoadedConfig, ConfigError>, parts: &[&str]) {
    let message = result.unwrap_err().to_string();
    for part in parts {
        assert!(message.contains(part), "{message:?} does not say {part:?}");
    }
}

#[test]
fn every_config_of_the_repository_loads() {
    for (name, kv, mechanics_only) in [
        ("tiny-moe", KvFormat::Bf16, false),
        ("tiny-moe-bf16", KvFormat::F32, false),
        ("tiny-moe-long", KvFormat::Bf16, true),
    ] {
        let loaded = load(&[name]).unwrap();
        assert_eq!(loaded.name, name);
        assert_eq!((loaded.config.precision.kv, loaded.config.mechanics_only), (kv, mechanics_only));
        assert!(loaded.model_folder().join("config.json").is_file());
    }
    assert_eq!(load(&["tiny-moe-long"]).unwrap().config.context.tokens, 32_768);
}

#[test]
fn a_config_outside_the_repository_finds_its_model_in_it() {
    let loaded = sample_with("20MiB", "20971521").unwrap();
    assert_eq!(loaded.config.memory.vram, ByteSize(20_971_521));
    assert!(loaded.model_folder().join("config.json").is_file());
}

#[test]
fn flags_replace_fields() {
    let loaded = load(&["tiny-moe", "--vram", "30MiB", "--experts", "bf16", "--policy", "lru", "--kv", "f32"]).unwrap();
    assert_eq!(loaded.config.memory.vram, ByteSize(30 << 20));
    assert_eq!(loaded.config.precision.experts, WeightFormat::Bf16);
    assert_eq!(loaded.config.precision.expert_quantization, None);
    assert_eq!((loaded.config.residency.policy, loaded.config.precision.kv), (Policy::Lru, KvFormat::F32));
    assert_refused(load(&["tiny-moe", "--experts", "bf16", "--expert-quantization", "amax"]), &["int4 experts"]);
    assert!(Command::try_parse_from(["assay", "tiny-moe", "--vram", "20 parsecs"]).is_err());
}

#[test]
fn an_unknown_name_is_answered_with_the_known_ones() {
    assert_refused(load(&["tiny-mow"]), &["\"tiny-mow\"", "tiny-moe, tiny-moe-amax, tiny-moe-bf16, tiny-moe-long"]);
    assert_refused(load(&["./none.toml"]), &["./none.toml", "No such file"]);
}

#[test]
fn errors_say_what_was_found_and_what_was_expected() {
    let check = |from: &str, to: &str, parts: &[&str]| assert_refused(sample_with(from, to), parts);
    check("20MiB", "20 parsecs", &["changed.toml", "line ", "\"20 parsecs\"", "20MiB"]);
    check("\"20MiB\"", "-1", &["-1", "bytes as a number"]);
    check("\"20MiB\"", "1.5", &["1.5", "bytes as a number"]);
    check("margin = \"1MiB\"", "margin = \"1GiB\"", &["memory.margin", "20.00 MiB (20971520 bytes)"]);
    check("experts = \"int4\"", "experts = \"int3\"", &["int3", "`bf16`", "`int4`"]);
    check("expert_quantization = \"search\"\n", "", &["\"amax\" or \"search\""]);
    check("policy =", "colour = 1\npolicy =", &["colour"]);
    check("kind = \"greedy\"", "kind = \"greedy\"\ntemperature = 1.0", &["temperature"]);
    check("min_chunk = 32", "min_chunk = 513", &["513", "512"]);
    check("max_prompt_tokens = 4096", "max_prompt_tokens = 8192", &["8192", "less than context.tokens"]);
    check("bandwidth_gb_s = 25.0", "bandwidth_gb_s = 0.0", &["bandwidth_gb_s is 0"]);
    check("bandwidth_gb_s = 25.0", "bandwidth_gb_s = nan", &["bandwidth_gb_s is NaN"]);
    check("device = \"host\"", "", &["device"]);
    check("policy = \"frequency_lru\"", "policy = \"lru\"\nmax_resident_share = 1.5", &["1.5, expected 0 to 1"]);
}

#[test]
fn a_config_is_the_same_after_a_round_trip_through_json() {
    let config = sample_with("20MiB", "20MiB").unwrap().config;
    let json = serde_json::to_value(&config).unwrap();
    assert_eq!(json["memory"]["vram"], 20 << 20);
    assert_eq!(serde_json::from_value::<Config>(json).unwrap(), config);
}
