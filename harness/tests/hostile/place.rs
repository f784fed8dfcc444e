//! A small repository in a temporary folder, and the binary run in it.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// The checkpoint that is broken: three layers of ten experts, 1.7 MB.
const MODEL: &str = "fixtures/models/families/olmoe";
/// Address space of a child, in KiB. A sound run takes less than 400,000; a size that is believed takes far more.
const ADDRESS_SPACE_KIB: u64 = 512 << 10;

/// What a config of the checkpoint looks like.
pub(crate) const CONFIG: &str = r#"model = "model"
device = "host"

[precision]
experts = "bf16"
attention = "bf16"
dense = "bf16"
head = "bf16"
kv = "f32"

[memory]
vram = "32MiB"
margin = "1MiB"

[context]
tokens = 256
max_chunk = 64
min_chunk = 16

[residency]
policy = "lru"
max_promotions_per_token = 4

[benchmark]
max_prompt_tokens = 128

[link]
bandwidth_gb_s = 25.0
latency_us = 10.0

[sampling]
kind = "greedy"
"#;

const SUITE: &str = r#"format = 1
name = "benchmark"
version = 1
prompt_set = "packaged"

[prefill]
tokens = [16, 24]

[decode]
prompt_tokens = 16
tokens = [2, 4]

[repetitions]
warm_up = 1
timed = 6
"#;

/// A repository of one checkpoint, one config and two books of a page.
pub(crate) struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    pub(crate) fn new() -> Self {
        let place = Self { folder: tempfile::tempdir().unwrap() };
        for file in ["config.json", "model.safetensors", "reference.json"] {
            place.link(&format!("{MODEL}/{file}"), &format!("model/{file}"));
        }
        for suite in ["gates/same.toml", "gates/int4.toml"] {
            place.link(&format!("suites/{suite}"), &format!("suites/{suite}"));
        }
        place.write("suites/speed/benchmark.toml", SUITE);
        place.write("suites/configs/small.toml", CONFIG);
        place.write_json("model/tokenizer.json", &tokenizer());
        let book = book();
        place.write("books/one.txt", &book);
        place.write("books/two.txt", &book);
        place.write("fixtures/corpus/manifest.toml", manifest(&book));
        place
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A link to a file of the repository that is tested: reading follows it, writing replaces it.
    pub(crate) fn link(&self, from: &str, to: &str) {
        let to = self.path(to);
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        symlink(root().join(from).canonicalize().unwrap(), to).unwrap();
    }

    pub(crate) fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.path(name)).unwrap()
    }

    pub(crate) fn text(&self, name: &str) -> String {
        String::from_utf8(self.read(name)).unwrap()
    }

    pub(crate) fn write(&self, name: &str, bytes: impl AsRef<[u8]>) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        // A link is replaced, never what it leads to.
        let _ = fs::remove_file(&path);
        fs::write(path, bytes).unwrap();
    }

    pub(crate) fn remove(&self, name: &str) {
        fs::remove_file(self.path(name)).unwrap();
    }

    pub(crate) fn folder(&self, name: &str) {
        let _ = fs::remove_file(self.path(name));
        fs::create_dir_all(self.path(name)).unwrap();
    }

    pub(crate) fn json(&self, name: &str) -> Value {
        serde_json::from_slice(&self.read(name)).unwrap()
    }

    pub(crate) fn write_json(&self, name: &str, value: &Value) {
        self.write(name, serde_json::to_vec(value).unwrap());
    }

    /// Changes a JSON file.
    pub(crate) fn edit_json(&self, name: &str, edit: impl FnOnce(&mut Value)) {
        let mut value = self.json(name);
        edit(&mut value);
        self.write_json(name, &value);
    }

    /// Replaces text that must be there.
    pub(crate) fn replace(&self, name: &str, from: &str, to: &str) {
        let text = self.text(name);
        assert!(text.contains(from), "{name} has no {from:?}");
        self.write(name, text.replacen(from, to, 1));
    }

    pub(crate) fn truncate(&self, name: &str, bytes: usize) {
        self.write(name, &self.read(name)[..bytes]);
    }

    /// A file of zeros that takes no room.
    pub(crate) fn sparse(&self, name: &str, bytes: u64) {
        self.write(name, "");
        fs::File::options().write(true).open(self.path(name)).unwrap().set_len(bytes).unwrap();
    }

    /// Replaces the first bytes of a file.
    pub(crate) fn overwrite(&self, name: &str, bytes: &[u8]) {
        let mut file = fs::File::options().write(true).open(self.path(name)).unwrap();
        std::io::Write::write_all(&mut file, bytes).unwrap();
    }

    /// Copies a file or folder of a place where everything was built: the cache, the heatmap, a ledger of two records.
    pub(crate) fn copy_prepared(&self, name: &str) {
        static PREPARED: OnceLock<Place> = OnceLock::new();
        let prepared = PREPARED.get_or_init(|| {
            let place = Self::new();
            place.write("ids.json", "{\"a\": [1, 2, 3]}");
            place.must(&["perplexity", "small", "--token-ids", "ids.json"]);
            place.must(&["perplexity", "small", "--token-ids", "ids.json"]);
            let baseline =
                ["fidelity", "baseline", "small", "--token-ids", "ids.json", "--top-k", "10", "--to", "base.logits"];
            place.must(&baseline);
            place.must(&["heatmap", "build", "small", "--to", "heat.json"]);
            place
        });
        copy(&prepared.path(name), &self.path(name));
    }

    /// Name of the only file whose name ends like this, below `folder`.
    pub(crate) fn find(&self, folder: &str, suffix: &str) -> String {
        let names = fs::read_dir(self.path(folder)).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names = names.map(|name| name.into_string().unwrap()).filter(|name| name.ends_with(suffix));
        let name = names.next().unwrap_or_else(|| panic!("no {suffix} in {folder}"));
        assert_eq!(names.next(), None);
        format!("{folder}/{name}")
    }

    /// Runs a command that must work.
    pub(crate) fn must(&self, arguments: &[&str]) {
        let output = self.run(arguments, "");
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// Runs the binary here. `limits` are shell commands that come before it.
    pub(crate) fn run(&self, arguments: &[&str], limits: &str) -> Output {
        let script = format!("ulimit -v {ADDRESS_SPACE_KIB}; ulimit -c 0; {limits}\nexec \"$0\" \"$@\"");
        Command::new("sh")
            .args(["-c", &script, env!("CARGO_BIN_EXE_assay")])
            .args(arguments)
            .current_dir(self.folder.path())
            .env("ASSAY_CORPUS_DIR", self.path("books"))
            // Every thread has a stack and an arena of its own, which count as address space.
            .env("RAYON_NUM_THREADS", "2")
            .env("MALLOC_ARENA_MAX", "2")
            .output()
            .unwrap()
    }

    /// Without what differs from run to run and machine to machine.
    pub(crate) fn redact(&self, text: &str) -> String {
        let mut text = text.replace(self.folder.path().to_str().unwrap(), "PLACE");
        text = text.replace(root().canonicalize().unwrap().to_str().unwrap(), "ROOT");
        let mut redacted = String::new();
        let mut digits = String::new();
        let flush = |digits: &mut String, redacted: &mut String| {
            redacted.push_str(if matches!(digits.len(), 64 | 12 | 16) { "HEX" } else { digits.as_str() });
            digits.clear();
        };
        for char in text.chars() {
            if matches!(char, '0'..='9' | 'a'..='f') {
                digits.push(char);
                continue;
            }
            flush(&mut digits, &mut redacted);
            redacted.push(char);
        }
        flush(&mut digits, &mut redacted);
        redacted
    }
}

fn copy(from: &Path, to: &Path) {
    if from.is_dir() {
        fs::create_dir_all(to).unwrap();
        for entry in fs::read_dir(from).unwrap() {
            let name = entry.unwrap().file_name();
            copy(&from.join(&name), &to.join(&name));
        }
    } else {
        fs::copy(from, to).unwrap();
    }
}

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Words to ids below the checkpoint's 301.
pub(crate) fn tokenizer() -> Value {
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": { "type": "Whitespace" }, "post_processor": null, "decoder": null,
        "model": { "type": "WordLevel", "vocab": { "[UNK]": 0, "word": 1, "other": 2 }, "unk_token": "[UNK]" },
    })
}

fn book() -> String {
    format!("*** START OF A BOOK ***\n{}*** END OF A BOOK ***\n", "\nword other word\n".repeat(2000))
}

/// Pins both sets to the one book.
fn manifest(book: &str) -> String {
    let start = book.find('\n').unwrap() + 1;
    let canonical = &book[start..book.find("*** END").unwrap()];
    let pin = |set: &str, file: &str| {
        format!(
            "[{set}]\ntitle = \"a page\"\n[[{set}.books]]\nfile = \"{file}\"\ntitle = \"A page\"\ngutenberg = 1\nsha256 = \"{}\"\n\
             canonical_sha256 = \"{}\"\ncanonical_bytes = {}\n",
            hex(book.as_bytes()),
            hex(canonical.as_bytes()),
            canonical.len()
        )
    };
    format!("format = 1\n{}{}", pin("packaged", "one.txt"), pin("six", "two.txt"))
}
