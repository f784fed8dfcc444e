//! What a model writes, in every form of calls: however it is cut into pieces, the same is found.

use std::path::Path;

use assay_server::tools::{Call, Found, Grammar, Parser, ToolSchemas};
use serde_json::json;
use serde_json::value::RawValue;

use super::{Target, Verdict, as_text, nothing, promise};
use crate::random::Random;

pub(super) const TARGET: Target = Target {
    name: "tool-calls",
    seeds,
    prepare: nothing,
    change: as_text,
    read,
    bytes_per_input_byte: 256,
    bytes: 1 << 20,
};

/// The longest pieces of a text, in characters, for each way in which it is cut.
const LONGEST_PIECES: [usize; 2] = [1, 12];
/// What is left in a text where a call is none, in any form that has such a mark.
const MARKS: [&str; 2] = ["<parameter", "</tool_call>"];

fn seeds() -> anyhow::Result<Vec<Vec<u8>>> {
    let seeds = [
        "I look.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"text\": \"\\u00e9 \\\" </tool_call>\", \"count\": 1.5}}\n</tool_call>\nDone.",
        "<tool_call>\n<function=f>\n<parameter=text>\na\n</parameter>\n<parameter=list>\n[1, \"<\"]\n</parameter>\n</function>\n</tool_call>",
        "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"count\" string=\"false\">12</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
        "<tool_call>f\n<arg_key>text</arg_key>\n<arg_value>12</arg_value>\n</tool_call>\n<tool_call>g</tool_call>",
        "Well. <|tool_call>call:f{text:<|\"|>x{<|\"|>,list:[1,{a:true}]}<tool_call|>",
        "<start_function_call>call:f{text:<escape>x<escape>,count:3}<end_function_call>",
        "<minimax:tool_call>\n<invoke name=\"f\">\n<parameter name=\"text\">a\nb</parameter>\n</invoke>\n<invoke name=\"g\">\n</invoke>\n</minimax:tool_call>",
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"text\": \"a\"}<|call|>",
    ];
    Ok(seeds.iter().map(|seed| seed.as_bytes().to_vec()).collect())
}

fn schemas() -> Result<ToolSchemas, String> {
    let tool = json!({"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {
        "text": {"type": "string"}, "count": {"type": "integer"}, "list": {"type": "array"}, "any": {}}}}});
    ToolSchemas::new(&[tool]).map_err(|error| error.to_string())
}

/// Everything found, neighbouring texts joined.
fn found<'t>(grammar: Grammar, pieces: impl Iterator<Item = &'t str>, ended: bool) -> Result<Vec<Found>, String> {
    let mut parser = Parser::new(grammar, schemas()?);
    let mut all: Vec<Found> = Vec::new();
    let mut add = |found: Vec<Found>| {
        for found in found {
            match (all.last_mut(), found) {
                (Some(Found::Text(before)), Found::Text(text)) => before.push_str(&text),
                (Some(Found::Reasoning(before)), Found::Reasoning(text)) => before.push_str(&text),
                (_, found) => all.push(found),
            }
        }
    };
    for piece in pieces {
        add(parser.push(piece));
    }
    add(parser.finish(ended));
    Ok(all)
}

/// The pieces of a text, of up to `longest` characters each.
fn cut<'t>(text: &'t str, random: &mut Random, longest: usize) -> Vec<&'t str> {
    let (mut rest, mut pieces) = (text, Vec::new());
    while !rest.is_empty() {
        let characters = 1 + random.below(longest);
        let end = rest.char_indices().nth(characters).map_or(rest.len(), |(place, _)| place);
        let (piece, more) = rest.split_at(end);
        pieces.push(piece);
        rest = more;
    }
    pieces
}

fn read(_: &Path, input: &[u8]) -> Result<Verdict, String> {
    let text = String::from_utf8_lossy(input);
    let seed = input.iter().fold(input.len() as u64, |seed, &byte| seed.wrapping_mul(31).wrapping_add(u64::from(byte)));
    let (mut random, mut words, mut calls, mut left) = (Random::new(seed), Vec::new(), 0, false);
    for grammar in Grammar::ALL {
        let ended = random.one_in(2);
        let whole = found(grammar, std::iter::once(&*text), ended)?;
        for longest in LONGEST_PIECES {
            let pieces = cut(&text, &mut random, longest);
            let same = found(grammar, pieces.into_iter(), ended)? == whole;
            promise(same, &format!("{} finds the same however a text is cut", grammar.name()))?;
        }
        for one in &whole {
            match one {
                Found::Call(Call { name, arguments }) => {
                    calls += 1;
                    promise(!name.is_empty(), "a name")?;
                    // However deep.
                    let is_json = serde_json::from_str::<&RawValue>(arguments).is_ok();
                    promise(is_json && arguments.trim_start().starts_with('{'), "arguments that are a JSON object")?;
                }
                Found::Text(text) | Found::Reasoning(text) => left |= has_mark(text),
            }
        }
        words.push(whole.iter().map(kind).collect::<String>());
    }
    // Where something looks like a call and is none, what is found in its stead is the answer.
    Ok(if calls > 0 && !left { Verdict::Accepted } else { Verdict::Refused(words.join(" ")) })
}

/// A letter that says what was found: text, in capitals where it holds a mark of a call; reasoning; a call, by how much its arguments hold.
fn kind(found: &Found) -> char {
    match found {
        Found::Text(text) if has_mark(text) => 'T',
        Found::Text(_) => 't',
        Found::Reasoning(_) => 'r',
        Found::Call(call) => {
            let opened = call.arguments.bytes().filter(|byte| matches!(byte, b'{' | b'[' | b':')).count();
            char::from(b'a' + opened.min(16) as u8)
        }
    }
}

fn has_mark(text: &str) -> bool {
    MARKS.iter().any(|mark| text.contains(mark))
}
