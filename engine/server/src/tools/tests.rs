#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn schemas() -> ToolSchemas {
    let tool = json!({"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {
        "text": {"type": "string"}, "count": {"type": "integer"}, "flag": {"type": "boolean"},
        "list": {"type": "array"}, "maybe": {"type": ["string", "null"]}, "any": {},
    }}}});
    ToolSchemas::new(&[tool]).unwrap()
}

/// Everything found, neighbouring texts joined: how a text was cut must not show.
fn parse(grammar: Grammar, pieces: &[&str], ended: bool) -> Vec<Found> {
    let mut parser = Parser::new(grammar, schemas());
    let mut all: Vec<Found> = Vec::new();
    let found = pieces.iter().flat_map(|piece| parser.push(piece)).collect::<Vec<_>>();
    for found in found.into_iter().chain(parser.finish(ended)) {
        match (all.last_mut(), found) {
            (Some(Found::Text(before)), Found::Text(text)) => before.push_str(&text),
            (Some(Found::Reasoning(before)), Found::Reasoning(text)) => before.push_str(&text),
            (_, found) => all.push(found),
        }
    }
    all
}

fn text(words: &str) -> Found {
    Found::Text(words.to_owned())
}

fn call(name: &str, arguments: &str) -> Found {
    Found::Call(Call { name: name.to_owned(), arguments: arguments.to_owned() })
}

#[track_caller]
fn check(grammar: Grammar, written: &str, expected: &[Found]) {
    assert_eq!(parse(grammar, &[written], true), expected, "{written}");
    // Character by character as well.
    let pieces: Vec<String> = written.chars().map(String::from).collect();
    let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
    assert_eq!(parse(grammar, &pieces, true), expected, "{written}, cut");
}

#[test]
fn qwen_json() {
    let check = |written: &str, expected: &[Found]| check(Grammar::QwenJson, written, expected);
    check("no call <b> at all", &[text("no call <b> at all")]);
    check(
        "I look.\n\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"text\": \"a < b\", \"count\": 1.50}}\n</tool_call>",
        &[text("I look."), call("f", "{\"text\": \"a < b\", \"count\": 1.50}")],
    );
    let two = "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>\n<tool_call>{\"arguments\":{\"a\":[1]},\"name\":\"g\"}</tool_call>\n";
    check(two, &[call("f", "{}"), call("g", "{\"a\":[1]}")]);
    // A closing tag within a string does not close.
    let tag = "<tool_call>{\"name\": \"f\", \"arguments\": {\"text\": \"</tool_call> é\"}}</tool_call> done ";
    check(tag, &[call("f", "{\"text\": \"</tool_call> é\"}"), text("done ")]);
    // Arguments as a text, and none.
    check("<tool_call>{\"name\": \"f\", \"arguments\": \"{\\\"a\\\": 1}\"}</tool_call>", &[call("f", "{\"a\": 1}")]);
    check("<tool_call>{\"name\": \"f\"}</tool_call>", &[call("f", "{}")]);
    // What is no call stays as it was written.
    for malformed in [
        "<tool_call>{\"name\": \"f\", \"arguments\": [1]}</tool_call>",
        "<tool_call>{name: f}</tool_call> and on",
        "<tool_call>{\"name\": \"\", \"arguments\": {}}</tool_call>",
        "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"text\": \"cut",
        "<tool_call>",
        "<tool_cal",
        "a <tool_call> <tool_call>\n",
        "<tool_call>{\"name\": \"f\", \"arguments\": {}, \"x\": 1}</tool_call>",
    ] {
        check(malformed, &[text(malformed)]);
    }
    // A broken call does not hide the next one.
    let recovered = "<tool_call>{oops}</tool_call>\n<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>";
    check(recovered, &[text("<tool_call>{oops}</tool_call>"), call("f", "{}")]);
}

#[test]
fn qwen_xml() {
    let check = |written: &str, expected: &[Found]| check(Grammar::QwenXml, written, expected);
    let written = "Well.\n<tool_call>\n<function=f>\n<parameter=text>\n12\n</parameter>\n<parameter=count>\n12\n</parameter>\n\
        <parameter=flag>\nTrue\n</parameter>\n<parameter=list>\n[1, \"<\"]\n</parameter>\n<parameter=any>\nx\ny\n</parameter>\n</function>\n</tool_call>";
    let arguments = r#"{"text": "12", "count": 12, "flag": true, "list": [1, "<"], "any": "x\ny"}"#;
    check(written, &[text("Well."), call("f", arguments)]);
    check("<tool_call><function=g></function></tool_call>", &[call("g", "{}")]);
    // Line breaks of the value's own stay.
    let code = "<tool_call>\n<function=f>\n<parameter=text>\n\n  if a < b:\n\n</parameter>\n</function>\n</tool_call>";
    check(code, &[call("f", r#"{"text": "\n  if a < b:\n"}"#)]);
    for malformed in [
        "<tool_call>\n<function=f>\n<parameter=text>\nnever closed",
        "<tool_call>\n<function=f>\n<parameter=text>\n1\n</parameter>\n<parameter=text>\n2\n</parameter>\n</function>\n</tool_call>",
        "<tool_call>\n<function>\n</function>\n</tool_call>",
        "<tool_call>\nwords\n</tool_call>",
        "<tool_call>\n</tool_call>",
    ] {
        check(malformed, &[text(malformed)]);
    }
}

#[test]
fn minimax() {
    let check = |written: &str, expected: &[Found]| check(Grammar::MiniMax, written, expected);
    let written = "<minimax:tool_call>\n<invoke name=\"f\">\n<parameter name=\"text\">a\nb</parameter>\n<parameter name=\"count\">3</parameter>\n\
        </invoke>\n<invoke name=\"g\">\n<parameter name=\"u\">true</parameter>\n</invoke>\n</minimax:tool_call>";
    check(written, &[call("f", r#"{"text": "a\nb", "count": 3}"#), call("g", r#"{"u": true}"#)]);
    let cut = "x <minimax:tool_call>\n<invoke name=\"f\">\n";
    check(cut, &[text(cut)]);
}

#[test]
fn deepseek() {
    let check = |written: &str, expected: &[Found]| check(Grammar::DeepSeek, written, expected);
    for block in ["function_calls", "tool_calls"] {
        let written = format!(
            "So.\n\n<｜DSML｜{block}>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"text\" string=\"true\">12</｜DSML｜parameter>\n\
             <｜DSML｜parameter name=\"count\" string=\"false\">12</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜{block}>"
        );
        check(&written, &[text("So."), call("f", r#"{"text": "12", "count": 12}"#)]);
    }
    let no_json = "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"count\" string=\"false\">x</｜DSML｜parameter>\n";
    check(no_json, &[text(no_json)]);
    let partial = "a ｜DSML <｜DSML｜tool";
    check(partial, &[text(partial)]);
}

#[test]
fn glm() {
    let check = |written: &str, expected: &[Found]| check(Grammar::Glm, written, expected);
    let written = "Hm.\n<tool_call>f\n<arg_key>text</arg_key>\n<arg_value>12</arg_value>\n<arg_key>list</arg_key>\n<arg_value>[1, 2]</arg_value>\n</tool_call>\n<tool_call>g</tool_call>";
    check(written, &[text("Hm."), call("f", r#"{"text": "12", "list": [1, 2]}"#), call("g", "{}")]);
    for malformed in
        ["<tool_call>f\n<arg_key>text</arg_key>\n", "<tool_call>f and so on\nwords", "<tool_call>\n</tool_call>"]
    {
        check(malformed, &[text(malformed)]);
    }
}

#[test]
fn gemma() {
    let check = |written: &str, expected: &[Found]| check(Grammar::Gemma, written, expected);
    let written = "<|tool_call>call:f{text:<|\"|>a, {b}: \"c\"<|\"|>,count:-3,list:[1,<|\"|>x<|\"|>,{k:true}],any:null}<tool_call|>";
    check(
        written,
        &[call("f", r#"{"text": "a, {b}: \"c\"", "count": -3, "list": [1, "x", {"k": true}], "any": null}"#)],
    );
    check("<|tool_call>call:g{}<tool_call|>", &[call("g", "{}")]);
    for malformed in
        ["<|tool_call>call:f{text:<|\"|>x", "<|tool_call>f{}<tool_call|>", "<|tool_call>call:f{a}<tool_call|>"]
    {
        check(malformed, &[text(malformed)]);
    }
    super::tests::check(
        Grammar::FunctionGemma,
        "<start_function_call>call:f{text:<escape>12<escape>,count:12}<end_function_call>",
        &[call("f", r#"{"text": "12", "count": 12}"#)],
    );
}

#[test]
fn gpt_oss() {
    let check = |written: &str, expected: &[Found]| check(Grammar::GptOss, written, expected);
    let thought = Found::Reasoning("I think.".to_owned());
    check(
        "<|channel|>analysis<|message|>I think.<|end|><|start|>assistant<|channel|>final<|message|>Yes.",
        &[thought.clone(), text("Yes.")],
    );
    let called = "<|channel|>analysis<|message|>I think.<|end|><|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"text\": \"a\"}<|call|>";
    check(called, &[thought.clone(), call("f", "{\"text\": \"a\"}")]);
    // The end token is no part of the text; the recipient may stand in front of the channel.
    check("<|start|>assistant to=functions.f<|channel|>commentary json<|message|>{}", &[call("f", "{}")]);
    check("<|channel|>commentary<|message|>First I look.<|end|>", &[text("First I look.")]);
    // Cut off, or no JSON: visible.
    let cut = "<|channel|>commentary to=functions.f<|message|>{\"text\": ";
    assert_eq!(parse(Grammar::GptOss, &[cut], false), [text(cut)]);
    let broken = "<|channel|>commentary to=functions.f<|message|>{oops}";
    check(broken, &[text(broken)]);
    check("plain words", &[text("plain words")]);
}

#[test]
fn a_template_tells_its_grammar() {
    let check = |source: &str, grammar| assert_eq!(Grammar::of_template(source), grammar, "{source}");
    check("{{ '<tool_call>' }} name arguments", Some(Grammar::QwenJson));
    check("<tool_call><function=x><parameter=y> arguments", Some(Grammar::QwenXml));
    check("<tool_call>{name}<arg_key>k</arg_key><arg_value>v</arg_value> arguments", Some(Grammar::Glm));
    check("<minimax:tool_call><invoke name=", Some(Grammar::MiniMax));
    check("<｜DSML｜invoke", Some(Grammar::DeepSeek));
    check("<|tool_call>call:f{}<tool_call|>", Some(Grammar::Gemma));
    check("<start_function_call>", Some(Grammar::FunctionGemma));
    check("<|channel|>commentary to=functions.f", Some(Grammar::GptOss));
    check("{{ message.content }}", None);
    check("[TOOL_CALLS]", None);
}

#[test]
fn tools_that_cannot_be_used_are_named() {
    let tool = |name: &str| json!({"type": "function", "function": {"name": name}});
    assert!(ToolSchemas::new(&[tool("a-b_1")]).unwrap().has("a-b_1"));
    let check = |tools: &[Value], part: &str| {
        let message = ToolSchemas::new(tools).unwrap_err().to_string();
        assert!(message.contains(part), "{message}");
    };
    check(&[tool("f"), tool("f")], "tools[1]: the name \"f\" stands twice");
    check(&[tool("a b")], "tools[0]: expected");
    check(&[json!({"type": "code"})], "tools[0]");
    check(&[json!(3)], "tools[0]");
}

/// Pieces that texts are made of: whole calls of every grammar, halves of them, marks, words.
const FRAGMENTS: [&str; 30] = [
    "words ",
    "\n\n",
    " ",
    "<",
    "é｜",
    "{",
    "\"",
    "</",
    "<tool_call>",
    "</tool_call>",
    "{\"name\": \"f\", \"arguments\": {\"text\": \"</tool_call>\"}}",
    "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"count\": 1}}\n</tool_call>",
    "<function=f>",
    "<parameter=text>\na\n</parameter>",
    "</function>",
    "<tool_call>\n<function=f>\n<parameter=count>\n7\n</parameter>\n</function>\n</tool_call>",
    "<tool_call>f\n<arg_key>text</arg_key>\n<arg_value>v</arg_value>\n</tool_call>",
    "<arg_key>",
    "<minimax:tool_call>\n<invoke name=\"f\">\n</invoke>\n</minimax:tool_call>",
    "<minimax:tool_call>",
    "<invoke name=\"f\">",
    "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
    "<｜DSML｜function_calls>",
    "<|tool_call>call:f{text:<|\"|>x<|\"|>}<tool_call|>",
    "<|tool_call>",
    "call:f{",
    "<|channel|>analysis<|message|>",
    "<|channel|>commentary to=functions.f<|message|>{}",
    "<|end|>",
    "<|start|>assistant",
];

#[test]
fn an_opening_and_the_rest_of_a_call_are_a_call() {
    let dsml =
        "<｜DSML｜parameter name=\"count\" string=\"false\">1</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜";
    let rest = |grammar: Grammar| match grammar {
        Grammar::QwenJson => " {\"count\": 1}}\n</tool_call>".to_owned(),
        Grammar::QwenXml => "<parameter=count>\n1\n</parameter>\n</function>\n</tool_call>".to_owned(),
        Grammar::DeepSeek => format!("{dsml}function_calls>"),
        Grammar::Glm => "<arg_key>count</arg_key>\n<arg_value>1</arg_value>\n</tool_call>".to_owned(),
        Grammar::Gemma => "count:1}<tool_call|>".to_owned(),
        Grammar::FunctionGemma => "count:1}<end_function_call>".to_owned(),
        Grammar::MiniMax => "<parameter name=\"count\">1</parameter>\n</invoke>\n</minimax:tool_call>".to_owned(),
        Grammar::GptOss => "{\"count\": 1}".to_owned(),
    };
    for grammar in Grammar::ALL {
        let opening = grammar.opening("function_calls", Some("f"));
        assert!(opening.starts_with(&grammar.opening("function_calls", None)), "{opening}");
        check(grammar, &format!("{opening}{}", rest(grammar)), &[call("f", "{\"count\": 1}")]);
    }
    let newer = format!("{}{dsml}tool_calls>", Grammar::DeepSeek.opening("", Some("f")));
    check(Grammar::DeepSeek, &newer, &[call("f", "{\"count\": 1}")]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, ..ProptestConfig::default() })]

    /// How a text is cut changes nothing, and nothing of it is lost that is no call.
    #[test]
    fn any_split_gives_the_same_events(
        grammar in prop::sample::select(Grammar::ALL.to_vec()),
        fragments in prop::collection::vec(prop::sample::select(FRAGMENTS.to_vec()), 0..12),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
        ended in any::<bool>(),
    ) {
        let written = fragments.concat();
        let whole = parse(grammar, &[&written], ended);
        let places: Vec<usize> = written.char_indices().map(|(place, _)| place).collect();
        let mut cuts: Vec<usize> = cuts.iter().filter(|_| !places.is_empty()).map(|cut| *cut.get(&places)).collect();
        cuts.extend([0, written.len()]);
        cuts.sort_unstable();
        let pieces: Vec<&str> = cuts.windows(2).map(|pair| &written[pair[0]..pair[1]]).collect();
        prop_assert_eq!(parse(grammar, &pieces, ended), whole.clone());
        let each: Vec<String> = written.chars().map(String::from).collect();
        let each: Vec<&str> = each.iter().map(String::as_str).collect();
        prop_assert_eq!(parse(grammar, &each, ended), whole.clone());
        for found in &whole {
            if let Found::Call(call) = found {
                prop_assert!(serde_json::from_str::<Value>(&call.arguments).is_ok_and(|value| value.is_object()), "{call:?}");
            }
        }
        if grammar != Grammar::GptOss && !whole.iter().any(|found| matches!(found, Found::Call(_))) {
            let words: String = whole.iter().map(|found| match found { Found::Text(text) => text.as_str(), _ => "" }).collect();
            prop_assert_eq!(words, written);
        }
    }
}
