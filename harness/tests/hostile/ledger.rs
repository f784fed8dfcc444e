//! Ledgers, and the heads that vouch for the tracked one.

use crate::place::Place;
use crate::table::{Case, case, check_all, invalid};

const VERIFY: &[&str] = &["ledger", "verify", "ledgers/local"];
const LIST: &[&str] = &["ledger", "list", "--ledger", "ledgers/local"];
const RUN: &[&str] = &["perplexity", "small", "--token-ids", "ids.json"];
const IMPORT: &[&str] = &["ledger", "import", "other"];
const FOLDER: &str = "ledgers/local";

#[test]
fn ledgers() {
    let said = check_all(verified().into_iter().chain(read()).chain(appended()).chain(anchors()).chain(imported()));
    insta::assert_snapshot!(without_lengths(&said));
}

/// Records hold clocks and loads, whose digits differ in number: so do the lengths of lines, which have four digits.
fn without_lengths(said: &str) -> String {
    let words: Vec<&str> = said.split_inclusive(char::is_whitespace).collect();
    let is_length = |place: usize| {
        let digits = words[place].trim_end();
        digits.len() == 4
            && digits.bytes().all(|digit| digit.is_ascii_digit())
            && words.get(place + 1).is_some_and(|next| next.starts_with("bytes"))
    };
    let shown = |place: usize| {
        if is_length(place) { words[place].replace(words[place].trim_end(), "LENGTH") } else { words[place].to_owned() }
    };
    (0..words.len()).map(shown).collect()
}

/// Two records.
fn recorded(place: &Place) {
    place.write("ids.json", "{\"a\": [1, 2, 3]}");
    place.copy_prepared("ledgers");
}

/// Changes the chain.
fn changed(place: &Place, change: impl FnOnce(String) -> String) {
    recorded(place);
    let name = place.find(FOLDER, ".jsonl");
    place.write(&name, change(place.text(&name)));
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap()
}

fn verified() -> Vec<Case> {
    let on = |name, damage| invalid(name, VERIFY, FOLDER, damage);
    vec![
        case("absent", VERIFY, FOLDER, |_| ()),
        case("the head is a folder", VERIFY, ".head", |place| {
            recorded(place);
            let head = place.find(FOLDER, ".head");
            place.folder(&head);
        }),
        case("a file", VERIFY, FOLDER, |place| place.write(FOLDER, "")),
        on("a record edited", |place| changed(place, |text| text.replacen("\"tokens\":2", "\"tokens\":3", 1))),
        on("a field added", |place| changed(place, |text| text.replacen("{\"body\"", "{\"a\":1,\"body\"", 1))),
        on("the first record removed", |place| changed(place, |text| text.lines().nth(1).unwrap().to_owned() + "\n")),
        on("the last record removed", |place| changed(place, |text| first_line(&text).to_owned() + "\n")),
        on("a record twice", |place| changed(place, |text| format!("{}\n{text}", first_line(&text)))),
        on("torn before the head", |place| changed(place, |text| text[..text.len() - 20].to_owned())),
        on("a line that is not JSON", |place| changed(place, |text| format!("hello\n{text}"))),
        on("a line nested 100,000 deep", |place| changed(place, |text| format!("{}\n{text}", "[".repeat(100_000)))),
        on("not UTF-8", |place| {
            recorded(place);
            let name = place.find(FOLDER, ".jsonl");
            place.write(&name, [b"\xff\xfe\n".to_vec(), place.read(&name)].concat());
        }),
        on("a newer version", |place| {
            changed(place, |text| text.replacen("\"format_version\":2", "\"format_version\":9", 1));
        }),
        on("the chain of another writer", |place| {
            recorded(place);
            let name = place.find(FOLDER, ".jsonl");
            place.write("ledgers/local/0123456789abcdef.jsonl", place.read(&name));
        }),
        on("a raw log changed", |place| {
            recorded(place);
            change_logs(place, |log| [log, b" ".to_vec()].concat());
        }),
        on("the head is not one", |place| {
            recorded(place);
            let head = place.find(FOLDER, ".head");
            place.write(&head, "{}");
        }),
        on("2 MiB of head", |place| {
            recorded(place);
            let head = place.find(FOLDER, ".head");
            place.write(&head, " ".repeat(2 << 20));
        }),
        on("a line of 17 MiB", |place| changed(place, |text| format!("\"{}\"\n{text}", "a".repeat(17 << 20)))),
    ]
}

fn change_logs(place: &Place, change: fn(Vec<u8>) -> Vec<u8>) {
    for folder in std::fs::read_dir(place.path("ledgers/local/logs")).unwrap() {
        for log in std::fs::read_dir(folder.unwrap().path()).unwrap() {
            let path = log.unwrap().path();
            let changed = change(std::fs::read(&path).unwrap());
            std::fs::write(path, changed).unwrap();
        }
    }
}

fn read() -> Vec<Case> {
    vec![
        invalid("listed: a record edited", LIST, FOLDER, |place| {
            changed(place, |text| text.replacen("\"tokens\":2", "\"tokens\":3", 1));
        }),
        invalid("listed: a line of 17 MiB", LIST, FOLDER, |place| {
            changed(place, |text| format!("\"{}\"\n{text}", "a".repeat(17 << 20)));
        }),
    ]
}

fn appended() -> Vec<Case> {
    let on = |name, damage| case(name, RUN, FOLDER, damage);
    vec![
        invalid("appended: records were lost", RUN, FOLDER, |place| {
            changed(place, |text| first_line(&text).to_owned() + "\n");
        }),
        on("appended: the writer's id is not one", |place| {
            recorded(place);
            place.write("ledgers/local/writer", "../../../etc\n");
        }),
        on("appended: 2 MiB of writer's id", |place| {
            recorded(place);
            place.write("ledgers/local/writer", "0".repeat(2 << 20));
        }),
        on("appended: the ledger is a file", |place| {
            place.write("ids.json", "{\"a\": [1, 2, 3]}");
            place.write(FOLDER, "");
        }),
    ]
}

fn anchors() -> Vec<Case> {
    const HEADS: &str = "reports/heads.json";
    vec![
        case("anchors: not JSON", VERIFY, HEADS, |place| place.write(HEADS, "heads")),
        case("anchors: 2 MiB", VERIFY, HEADS, |place| place.write(HEADS, " ".repeat(2 << 20))),
        invalid("anchors: what they vouch for is gone", &["ledger", "verify"], "ledgers/tracked", |place| {
            place.write(HEADS, "[{\"bytes\":1,\"count\":1,\"writer\":\"0123456789abcdef\"}]");
        }),
    ]
}

/// Another machine's ledger of two records, its chain changed.
fn other(place: &Place, change: impl FnOnce(String) -> String) {
    recorded(place);
    std::fs::rename(place.path(FOLDER), place.path("other")).unwrap();
    let name = place.find("other", ".jsonl");
    place.write(&name, change(place.text(&name)));
}

fn imported() -> Vec<Case> {
    vec![
        case("imported: absent", IMPORT, "other", |_| ()),
        case("imported: no ledger", IMPORT, "other", |place| place.folder("other")),
        invalid("imported: a record edited", IMPORT, "other", |place| {
            other(place, |text| text.replacen("\"tokens\":2", "\"tokens\":3", 1));
        }),
        invalid("imported: a chain that forked", IMPORT, "other", |place| {
            recorded(place);
            std::fs::rename(place.path(FOLDER), place.path("other")).unwrap();
            std::fs::create_dir_all(place.path(FOLDER)).unwrap();
            // Another chain under the same name.
            place.write("ledgers/local/writer", place.read("other/writer"));
            place.must(RUN);
        }),
        invalid("imported: into a ledger that lost records", IMPORT, FOLDER, |place| {
            other(place, |text| text);
            changed(place, |text| first_line(&text).to_owned() + "\n");
        }),
    ]
}
