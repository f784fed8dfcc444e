#![allow(clippy::unwrap_used)]
use super::*;

fn answer() -> Answer {
    let mut table = Table::new("speed", &["measure", "#tokens", "note"]);
    table.row(["prefill", "1000", "a|b, \"c\""]);
    table.row(["decode", "50"]);
    Answer::new(&serde_json::json!({"suite": "speed", "rows": [1, 2]}))
        .unwrap()
        .line("config tiny-moe")
        .line("corpus packaged")
        .table(table)
        .line("verdict PASS")
}

#[test]
fn text_and_markdown_read_well() {
    insta::assert_snapshot!("text", answer().render(Format::Text).unwrap());
    insta::assert_snapshot!("markdown", answer().render(Format::Md).unwrap());
}

#[test]
fn csv_is_the_first_table() {
    let expected = "measure,tokens,note\nprefill,1000,\"a|b, \"\"c\"\"\"\ndecode,50,\n";
    assert_eq!(answer().render(Format::Csv).unwrap(), expected);
}

#[test]
fn csv_without_a_table_is_the_answer_s_fields() {
    let answer = Answer::new(&serde_json::json!({"file": "a.gguf", "report": {"bytes": 3, "verdicts": []}})).unwrap();
    let expected = "field,value\nfile,a.gguf\nreport.bytes,3\nreport.verdicts,\n";
    assert_eq!(answer.line("a.gguf: 3 bytes").render(Format::Csv).unwrap(), expected);
}

#[test]
fn json_is_one_object_with_nothing_added() {
    let parsed: serde_json::Value = serde_json::from_str(&answer().render(Format::Json).unwrap()).unwrap();
    assert_eq!(parsed, serde_json::json!({"suite": "speed", "rows": [1, 2]}));
}

#[test]
fn a_wide_table_fits_eighty_columns() {
    let mut table = Table::new("identity", &["field", "value"]);
    table.row(["checkpoint", &"0123456789abcdef".repeat(8)]);
    table.row(["note", &"several words ".repeat(20)]);
    let text = Answer::new(&0).unwrap().table(table).render(Format::Text).unwrap();
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
}
