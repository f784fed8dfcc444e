#![allow(clippy::unwrap_used)]

use minijinja::value::Value;
use serde::Deserialize;

use super::*;

/// Made by `fixtures/templates/make.py`.
const CASES: &str = include_str!("../../../../fixtures/templates/cases.json");

#[derive(Deserialize)]
struct Table {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    template: String,
    messages: Vec<Value>,
    tools: Option<Vec<Value>>,
    documents: Option<Vec<Value>>,
    variables: Value,
    rendered: Option<String>,
    error: Option<String>,
}

fn render(case: &Case) -> Result<String, TemplateError> {
    let now = || jiff::civil::date(2026, 3, 7).at(9, 5, 3, 0);
    let template = ChatTemplate::with_clock(&case.template, &SpecialTokens::default(), now)?;
    let variables = case.variables.try_iter().unwrap();
    let variables = variables.map(|name| (name.to_string(), case.variables.get_item(&name).unwrap()));
    let (own, variables): (Vec<_>, Vec<_>) = variables.partition(|(name, _)| name == "add_generation_prompt");
    template.render(&Chat {
        messages: case.messages.clone(),
        tools: case.tools.clone(),
        documents: case.documents.clone(),
        add_generation_prompt: own.iter().any(|(_, value)| value.is_true()),
        variables,
    })
}

#[test]
fn every_case_is_rendered_byte_for_byte_as_transformers_renders_it() {
    let table: Table = serde_json::from_str(CASES).unwrap();
    assert!(table.cases.len() > 60);
    let mut wrong = Vec::new();
    for case in &table.cases {
        let rendered = render(case);
        let right = match (&case.rendered, &case.error, &rendered) {
            (Some(expected), _, Ok(found)) => expected == found,
            (None, Some(expected), Err(TemplateError::Refused(found))) => expected == found,
            _ => false,
        };
        if !right {
            let expected = case.rendered.as_ref().or(case.error.as_ref());
            wrong.push(format!("{}:\n  expected {expected:?}\n  found    {rendered:?}", case.name));
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), table.cases.len(), wrong.join("\n"));
}

fn message(json: &str) -> Value {
    serde_json::from_str(json).unwrap()
}

fn template(source: &str) -> ChatTemplate {
    ChatTemplate::new(source, &SpecialTokens::default()).unwrap()
}

#[test]
fn arguments_as_text_become_objects_in_their_order() {
    let template = template("{{ messages[0].tool_calls[0].function.arguments | tojson }}");
    let render = |arguments: &str| {
        let call = format!(
            r#"{{"role": "assistant", "tool_calls": [{{"function": {{"name": "f", "arguments": {arguments}}}}}]}}"#
        );
        template.render(&Chat { messages: vec![message(&call)], ..Chat::default() })
    };
    assert_eq!(render(r#""{\"z\": 1, \"a\": 1.0}""#).unwrap(), r#"{"z": 1, "a": 1.0}"#);
    assert_eq!(render(r#""""#).unwrap(), "{}");
    for wrong in [r#""[1]""#, r#""{""#, "3"] {
        let error = render(wrong).unwrap_err().to_string();
        assert!(error.contains("messages[0].tool_calls[0].function.arguments"), "{error}");
    }
}

#[test]
fn parts_are_joined_where_a_template_knows_none() {
    let parts =
        message(r#"{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}"#);
    let chat = Chat { messages: vec![parts], ..Chat::default() };
    let check =
        |source: &str, expected: &str| assert_eq!(template(source).render(&chat).unwrap(), expected, "{source}");
    check("{{ messages[0].content }}", "a\nb");
    check("{% for p in messages[0].content %}<{{ p.text }}>{% endfor %}", "<a><b>");
    let image = message(r#"{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}"#);
    let error = template("").render(&Chat { messages: vec![image], ..Chat::default() }).unwrap_err().to_string();
    assert!(error.contains("messages[0].content: expected a text"), "{error}");
}

#[test]
fn what_cannot_be_rendered_says_why() {
    let user = Chat { messages: vec![message(r#"{"role": "user", "content": "x"}"#)], ..Chat::default() };
    let check = |source: &str, part: &str| {
        let error = ChatTemplate::new(source, &SpecialTokens::default()).and_then(|template| template.render(&user));
        let error = error.unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    };
    check("{% if %}", "does not compile");
    check("{{ messages.x.y }}", "failed");
    check("{% for a in range(100000) %}{% for b in range(100000) %}x{% endfor %}{% endfor %}", "too many steps");
    check("{% include 'other' %}", "failed");
    check("{{ nothing | tojson }}", "undefined value");
    let none = template("x").render(&Chat::default()).unwrap_err().to_string();
    assert!(none.contains("at least one"), "{none}");
}

#[test]
fn a_template_is_found_where_transformers_finds_it() {
    let folder = tempfile::tempdir().unwrap();
    let read = || TemplateSource::read(folder.path());
    assert_eq!(read().unwrap(), TemplateSource::default());
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    let text =
        |source: TemplateSource| source.template.map(|(path, text)| (path.file_name().unwrap().to_owned(), text));
    write(
        "tokenizer_config.json",
        r#"{"chat_template": "one", "bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": false}}"#,
    );
    let source = read().unwrap();
    assert_eq!(
        (source.special_tokens.get("bos_token"), source.special_tokens.get("eos_token")),
        (Some("<s>"), Some("</s>"))
    );
    assert_eq!(text(source), Some(("tokenizer_config.json".into(), "one".to_owned())));
    write(
        "tokenizer_config.json",
        r#"{"chat_template": [{"name": "rag", "template": "r"}, {"name": "default", "template": "d"}]}"#,
    );
    assert_eq!(text(read().unwrap()).unwrap().1, "d");
    write("chat_template.jinja", "own");
    assert_eq!(text(read().unwrap()), Some(("chat_template.jinja".into(), "own".to_owned())));
    for wrong in ["{", r#"{"chat_template": 5}"#, r#"{"eos_token": "a", "eos_token": "b"}"#] {
        write("tokenizer_config.json", wrong);
        let error = read().unwrap_err().to_string();
        assert!(error.contains("tokenizer_config.json: "), "{error}");
    }
}

#[test]
fn a_source_that_is_too_long_to_count_is_refused() {
    let check = |source: String, taken: bool| {
        assert_eq!(ChatTemplate::new(&source, &SpecialTokens::default()).is_ok(), taken, "{}", source.len());
    };
    check("x".repeat(65_000), true);
    check("x".repeat(65_535), false);
    check("\n".repeat(65_000), true);
    check("\n".repeat(65_536), false);
    check(format!("{{{{ '{}' }}}}", "x".repeat(65_535)), false);
}
