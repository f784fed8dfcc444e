//! Chat templates and the messages that they render: an input is a template, a zero byte, and messages in JSON.

use std::path::Path;

use assay_server::template::{Chat, ChatTemplate, SpecialTokens};
use minijinja::value::Value;
use serde::Deserialize;

use super::{Change, Target, Verdict, nothing, promise};
use crate::random::Random;
use crate::run::root;

pub(super) const TARGET: Target = Target {
    name: "templates",
    seeds,
    prepare: nothing,
    change,
    read,
    // A loop may write a message many times, and a filter may make one text of them.
    bytes_per_input_byte: 16 << 10,
    bytes: 64 << 20,
};

#[derive(Deserialize)]
struct Table {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    template: String,
    messages: serde_json::Value,
}

fn seeds() -> anyhow::Result<Vec<Vec<u8>>> {
    let table: Table = serde_json::from_slice(&std::fs::read(root().join("fixtures/templates/cases.json"))?)?;
    Ok(table.cases.into_iter().map(|case| format!("{}\0{}", case.template, case.messages).into_bytes()).collect())
}

fn change(random: &mut Random, input: &mut Vec<u8>, change: Change<'_>) {
    let Some(place) = input.iter().position(|&byte| byte == 0) else { return change(random, input, true) };
    let mut messages = input.split_off(place + 1);
    input.pop();
    match random.below(4) {
        0 => change(random, &mut messages, true),
        // Words of a template are no values of JSON: most changes are to bytes.
        1 => change(random, input, true),
        _ => change(random, input, false),
    }
    input.push(0);
    input.extend(messages);
}

fn read(_: &Path, input: &[u8]) -> Result<Verdict, String> {
    let (source, messages) = match input.iter().position(|&byte| byte == 0) {
        Some(place) => (&input[..place], &input[place + 1..]),
        None => (input, &b"[]"[..]),
    };
    let Ok(source) = std::str::from_utf8(source) else { return Ok(Verdict::Refused("no text".to_owned())) };
    let template = match ChatTemplate::new(source, &SpecialTokens::default()) {
        Ok(template) => template,
        Err(error) => return Ok(Verdict::Refused(error.to_string())),
    };
    let messages: Vec<Value> = match serde_json::from_slice(messages) {
        Ok(messages) => messages,
        Err(error) => return Ok(Verdict::Refused(error.to_string())),
    };
    let chat = Chat { messages, add_generation_prompt: true, ..Chat::default() };
    let rendered = template.render(&chat);
    if let Ok(text) = &rendered
        && !template.mentions("strftime_now")
    {
        promise(template.render(&chat).as_ref().ok() == Some(text), "the same text every time")?;
    }
    Ok(Verdict::of(rendered))
}
