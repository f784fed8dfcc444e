//! The corpus: its manifest and its books, and lists of token ids.

use serde_json::json;

use crate::table::{Case, case, check_all};

const MANIFEST: &str = "fixtures/corpus/manifest.toml";
const BOOK: &str = "books/one.txt";
const BENCHMARK: &[&str] = &["benchmark", "small"];
const IDS: &str = "ids.json";
const PERPLEXITY: &[&str] = &["perplexity", "small", "--token-ids", IDS];

#[test]
fn texts() {
    insta::assert_snapshot!(check_all(manifests().into_iter().chain(books()).chain(token_ids())));
}

fn manifests() -> Vec<Case> {
    let on = |name, damage| case(name, BENCHMARK, MANIFEST, damage);
    vec![
        on("not TOML", |place| place.write(MANIFEST, "{\"format\": 1}")),
        on("not UTF-8", |place| place.write(MANIFEST, b"format = \"\xff\"")),
        on("another format", |place| place.replace(MANIFEST, "format = 1", "format = 2")),
        on("an unknown field", |place| place.replace(MANIFEST, "format = 1", "format = 1\ncolour = 2")),
        on("a set is missing", |place| place.write(MANIFEST, place.text(MANIFEST).split("[six]").next().unwrap())),
        on("a digest that is none", |place| {
            let text = place.text(MANIFEST);
            let start = text.find("sha256 = \"").unwrap() + 10;
            place.write(MANIFEST, [&text[..start], &text[start + 1..]].concat());
        }),
        on("a book in the folder above", |place| {
            place.write("secret.txt", "secret");
            place.replace(MANIFEST, "\"one.txt\"", "\"../secret.txt\"");
        }),
        on("a book by its absolute path", |place| place.replace(MANIFEST, "\"one.txt\"", "\"/etc/passwd\"")),
        on("a canonical length that is not the text's", |place| {
            place.replace(MANIFEST, "canonical_bytes = ", "canonical_bytes = 1");
        })
        .names(BOOK),
        on("lists nested 100,000 deep", |place| place.write(MANIFEST, format!("format = {}", "[".repeat(100_000)))),
        on("2 MiB of it", |place| place.write(MANIFEST, "#".repeat(2 << 20))),
    ]
}

fn books() -> Vec<Case> {
    let on = |name, damage| case(name, BENCHMARK, BOOK, damage);
    vec![
        on("a book is absent", |place| place.remove(BOOK)).names("one.txt"),
        on("a book is a folder", |place| place.folder(BOOK)).names("one.txt"),
        on("a book is not UTF-8", |place| place.write(BOOK, [place.read(BOOK), vec![0xff]].concat())),
        on("a book is empty", |place| place.write(BOOK, "")),
        on("a book was changed", |place| place.replace(BOOK, "other", "Other")),
        on("a book is larger than any", |place| place.sparse(BOOK, 129 << 20)),
        on("the folder is none", |place| {
            std::fs::remove_dir_all(place.path("books")).unwrap();
            place.write("books", "");
        })
        .names("ASSAY_CORPUS_DIR"),
    ]
}

fn token_ids() -> Vec<Case> {
    let on = |name, damage| case(name, PERPLEXITY, IDS, damage);
    vec![
        on("token ids: absent", |_| ()),
        on("token ids: a folder", |place| place.folder(IDS)),
        on("token ids: not JSON", |place| place.write(IDS, "1 2 3")),
        on("token ids: a list", |place| place.write_json(IDS, &json!([1, 2, 3]))),
        on("token ids: none", |place| place.write_json(IDS, &json!({}))),
        on("token ids: one token", |place| place.write_json(IDS, &json!({ "a": [1] }))),
        on("token ids: negative", |place| place.write_json(IDS, &json!({ "a": [1, -2] }))),
        on("token ids: one name twice", |place| place.write(IDS, "{\"a\": [1, 2], \"a\": [3, 4]}")),
        on("token ids: past the vocabulary", |place| place.write_json(IDS, &json!({ "a": [1, 2, 301] })))
            .names("token id 301"),
        on("token ids: a text longer than the context", |place| {
            place.write_json(IDS, &json!({ "a": vec![1; 300] }));
        })
        .names("context"),
    ]
}
