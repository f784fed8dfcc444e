//! Configs, suites and gates.

use crate::place::Place;
use crate::table::{Case, case, check_all};

const CONFIG: &str = "suites/configs/small.toml";
const SUITE: &str = "suites/speed/benchmark.toml";
const GATE: &str = "suites/gates/same.toml";
const BUILD: &[&str] = &["cache", "build", "small"];
const PERPLEXITY: &[&str] = &["perplexity", "small", "--token-ids", "ids.json"];
const BENCHMARK: &[&str] = &["benchmark", "small"];
const REFERENCE: &[&str] = &["reference-test", "small", "--artifact", "artifact.json"];

#[test]
fn configs() {
    insta::assert_snapshot!(check_all(config_files().into_iter().chain(config_numbers()).chain(flags())));
}

#[test]
fn suites_and_gates() {
    insta::assert_snapshot!(check_all(suites().into_iter().chain(gates())));
}

fn config_files() -> Vec<Case> {
    let on = |name, damage| case(name, BUILD, CONFIG, damage);
    vec![
        on("absent", |place| place.remove(CONFIG)).names("small"),
        on("a folder", |place| place.folder(CONFIG)).names("small"),
        on("empty", |place| place.write(CONFIG, "")),
        on("not TOML", |place| place.write(CONFIG, "{}")),
        on("not UTF-8", |place| place.write(CONFIG, b"model = \"\xff\"")),
        on("an unknown field", |place| place.replace(CONFIG, "device", "colour = 1\ndevice")),
        on("an unknown field in a table", |place| place.replace(CONFIG, "vram", "dram = 1\nvram")),
        on("one field twice", |place| place.replace(CONFIG, "vram", "vram = 1\nvram")),
        on("a field is missing", |place| place.replace(CONFIG, "max_chunk = 64\n", "")),
        on("lists nested 100,000 deep", |place| place.write(CONFIG, format!("model = {}", "[".repeat(100_000)))),
        on("tables nested 100,000 deep", |place| place.write(CONFIG, format!("a{} = 1", ".a".repeat(100_000)))),
        on("2 MiB of it", |place| place.write(CONFIG, "#".repeat(2 << 20))),
        on("a checkpoint that is not there", |place| place.replace(CONFIG, "\"model\"", "\"models\"")).names("models"),
        on("the device of another machine", |place| place.replace(CONFIG, "\"host\"", "\"abacus\"")),
    ]
}

fn config_numbers() -> Vec<Case> {
    let on = |name, damage| case(name, PERPLEXITY, CONFIG, damage);
    fn set(place: &Place, from: &str, to: &str) {
        place.write("ids.json", "{\"a\": [1, 2, 3]}");
        place.replace(CONFIG, from, to);
    }
    vec![
        on("a negative context", |place| set(place, "tokens = 256", "tokens = -1")),
        on("a context of 2^63 - 1", |place| set(place, "tokens = 256", "tokens = 9223372036854775807"))
            .names("context_tokens is"),
        on("a context of 2^63", |place| set(place, "tokens = 256", "tokens = 9223372036854775808")),
        on("a context longer than the checkpoint's", |place| set(place, "tokens = 256", "tokens = 8193")).names("8192"),
        on("a chunk longer than the context", |place| set(place, "max_chunk = 64", "max_chunk = 257")),
        on("a chunk of nothing", |place| set(place, "min_chunk = 16", "min_chunk = 0")),
        on("chunks the wrong way round", |place| set(place, "min_chunk = 16", "min_chunk = 65")),
        on("a budget of nothing", |place| set(place, "32MiB", "0")),
        on("a budget of 2^64 - 1 bytes", |place| set(place, "\"32MiB\"", "\"18446744073709551615\""))
            .names("small.toml"),
        on("a budget of a terabyte", |place| set(place, "32MiB", "1TiB")),
        on("a budget that is none", |place| set(place, "32MiB", "plenty")),
        on("a budget too small for the model", |place| set(place, "32MiB", "2MiB")).names("budget"),
        on("a margin above the budget", |place| set(place, "1MiB", "64MiB")),
        on("no bandwidth", |place| set(place, "25.0", "0.0")),
        on("a bandwidth of NaN", |place| set(place, "25.0", "nan")),
        on("an infinite bandwidth", |place| set(place, "25.0", "inf")),
        on("a bandwidth of 1e-300", |place| set(place, "25.0", "1e-300")),
        on("a negative latency", |place| set(place, "10.0", "-1.0")),
        on("a latency of 1e300", |place| set(place, "10.0", "1e300")),
        on("a share above 1", |place| set(place, "policy", "max_resident_share = 1.5\npolicy")),
        on("a share of NaN", |place| set(place, "policy", "max_resident_share = nan\npolicy")),
        on("scales for weights without any", |place| {
            set(place, "attention", "expert_quantization = \"amax\"\nattention")
        }),
    ]
}

fn flags() -> Vec<Case> {
    vec![
        case(
            "--context 2^64 - 1",
            &["perplexity", "small", "--token-ids", "ids.json", "--context", "18446744073709551615"],
            "context",
            |place| {
                place.write("ids.json", "{\"a\": [1, 2, 3]}");
            },
        ),
        case(
            "--max-chunk 2^64 - 1",
            &["perplexity", "small", "--token-ids", "ids.json", "--max-chunk", "18446744073709551615"],
            "max_chunk",
            |place| {
                place.write("ids.json", "{\"a\": [1, 2, 3]}");
            },
        ),
    ]
}

fn suites() -> Vec<Case> {
    let on = |name, damage| case(name, BENCHMARK, SUITE, damage);
    vec![
        on("absent", |place| place.remove(SUITE)),
        on("not TOML", |place| place.write(SUITE, "[[[")),
        on("not UTF-8", |place| place.write(SUITE, b"\xff")),
        on("an unknown field", |place| place.replace(SUITE, "format = 1", "format = 1\ncolour = 1")),
        on("a newer format", |place| place.replace(SUITE, "format = 1", "format = 2")),
        on("no lengths", |place| {
            place.replace(SUITE, "[16, 24]", "[]");
            place.replace(SUITE, "[2, 4]", "[]");
        }),
        on("a length of 0", |place| place.replace(SUITE, "[16,", "[0,")),
        on("lengths that fall", |place| place.replace(SUITE, "[16, 24]", "[24, 16]")),
        on("2^63 - 1 repetitions", |place| place.replace(SUITE, "timed = 6", "timed = 9223372036854775807")),
        on("2^63 - 1 warm-ups", |place| place.replace(SUITE, "warm_up = 1", "warm_up = 9223372036854775807")),
        on("2^63 - 1 tokens", |place| place.replace(SUITE, "[2, 4]", "[2, 9223372036854775807]")),
        on("a prompt of 2^63 - 1 tokens", |place| {
            place.replace(SUITE, "prompt_tokens = 16", "prompt_tokens = 9223372036854775807");
        }),
        on("an answer longer than the context", |place| place.replace(SUITE, "[2, 4]", "[2, 400]")).names("context"),
        on("2 MiB of it", |place| place.write(SUITE, "#".repeat(2 << 20))),
    ]
}

fn gates() -> Vec<Case> {
    fn on(name: &'static str, damage: fn(&Place)) -> Case {
        case(name, REFERENCE, GATE, damage)
    }
    fn set(place: &Place, from: &str, to: &str) {
        crate::witness::artifact(place);
        place.replace(GATE, from, to);
    }
    vec![
        on("gate: not TOML", |place| {
            crate::witness::artifact(place);
            place.write(GATE, "{}");
        }),
        on("gate: an unknown field", |place| set(place, "format = 1", "format = 1\ncolour = 1")),
        on("gate: a newer format", |place| set(place, "format = 1", "format = 2")),
        on("gate: a share above 1", |place| set(place, "min_share = 1.0", "min_share = 1.5")),
        on("gate: a share of NaN", |place| set(place, "min_share = 1.0", "min_share = nan")),
        on("gate: a margin of NaN", |place| set(place, "excused_below_margin = 0.02", "excused_below_margin = nan")),
        on("gate: an infinite margin", |place| set(place, "excused_below_margin = 0.02", "excused_below_margin = inf")),
        on("gate: an infinite difference", |place| set(place, "max_difference = 0.001", "max_difference = inf")),
        on("gate: a negative difference", |place| set(place, "mean_difference = 0.0001", "mean_difference = -1.0")),
        on("gate: no gate for the comparison", |place| {
            set(place, "weights = \"same\"", "weights = \"int4_against_bf16\"")
        })
        .names("suites/gates"),
    ]
}
