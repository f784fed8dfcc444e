//! Changes to a file that keep most of it: bits and bytes, and for texts (JSON, TOML) numbers, words and whole values.

use std::ops::Range;

use crate::random::Random;

/// What stands in place of a number: the ends of every width, what only some readers take, what is no number at all.
const NUMBERS: &[&str] = &[
    "0",
    "-0",
    "1",
    "-1",
    "2",
    "127",
    "128",
    "255",
    "256",
    "301",
    "4096",
    "65535",
    "65536",
    "1048576",
    "16777216",
    "2147483647",
    "2147483648",
    "4294967295",
    "4294967296",
    "9007199254740993",
    "9223372036854775807",
    "9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "1e3",
    "0.5",
    "1.0",
    "-1.5",
    "1e-45",
    "1e-308",
    "5e-324",
    "1e38",
    "1e300",
    "1e308",
    "1e400",
    "-1e400",
    "NaN",
    "nan",
    "inf",
    "-inf",
    "null",
    "0x10",
    "1_000",
    "007",
    "1.",
];
/// What stands in place of a text.
const TEXTS: &[&str] = &[
    "\"\"",
    "\"a\"",
    "\"../../etc/passwd\"",
    "\"/\"",
    "\"..\"",
    "\"\\u0000\"",
    "\"\\ud800\"",
    "\"\u{fffd}\u{1f600}\"",
    "\"default\"",
    "\"yarn\"",
    "\"bf16\"",
    "\"int4\"",
    "\"int4-amax\"",
    "\"sliding_attention\"",
    "\"F32\"",
    "\"I64\"",
    "\"U8\"",
    "\"0000000000000000000000000000000000000000000000000000000000000000\"",
    "\"18446744073709551615\"",
    "\"1EiB\"",
    "\"1e400\"",
];
/// What stands in place of any value.
const VALUES: &[&str] =
    &["null", "true", "false", "[]", "{}", "[[]]", "{\"a\":1}", "[0]", "\"\"", "0", "-1", "[1,2,3]"];
/// How deep a value is nested on purpose.
const DEPTHS: &[usize] = &[2, 60, 130, 5000];

/// Changes `bytes` once. `text` says that they are JSON or TOML.
pub fn mutate(random: &mut Random, bytes: &mut Vec<u8>, text: bool) {
    if text
        && !random.one_in(5)
        && let Ok(mut changed) = String::from_utf8(bytes.clone())
    {
        mutate_text(random, &mut changed);
        *bytes = changed.into_bytes();
        return;
    }
    mutate_bytes(random, bytes);
}

fn mutate_bytes(random: &mut Random, bytes: &mut Vec<u8>) {
    let at = random.below(bytes.len());
    let length = 1 + random.below(16);
    let span = at..(at + length).min(bytes.len());
    match random.below(8) {
        0 if !bytes.is_empty() => bytes[at] ^= 1 << random.below(8),
        1 if !bytes.is_empty() => bytes[at] = random.bits() as u8,
        2 => bytes.truncate(at),
        3 => drop(bytes.drain(span)),
        4 => {
            let copy = bytes[span].to_vec();
            let to = random.below(bytes.len() + 1);
            bytes.splice(to..to, copy);
        }
        5 => bytes.insert(at, random.bits() as u8),
        6 => {
            // Eight bytes that a length or an offset may be.
            let numbers =
                [0, 1, u64::MAX, 1 << 63, 1 << 32, 1 << 31, (1 << 31) - 1, bytes.len() as u64, random.bits() % 4096];
            let number = numbers[random.below(numbers.len())].to_le_bytes();
            let end = (at + 8).min(bytes.len());
            bytes[at..end].copy_from_slice(&number[..end - at]);
        }
        _ => bytes.extend(std::iter::repeat_n(random.bits() as u8, length)),
    }
}

fn mutate_text(random: &mut Random, text: &mut String) {
    let values = values(text);
    let Some(span) = random.pick(&values).cloned() else { return text.push_str("{}") };
    let value = text[span.clone()].to_owned();
    let number = value.starts_with(|first: char| first.is_ascii_digit() || first == '-');
    match random.below(10) {
        0..=2 if number => replace(text, span, random.pick(NUMBERS)),
        0..=2 if value.starts_with('"') => replace(text, span, random.pick(TEXTS)),
        0 | 1 => replace(text, span, random.pick(VALUES)),
        2 | 3 => {
            // Another value of the same file.
            let other = random.pick(&values).map(|other| text[other.clone()].to_owned());
            replace(text, span, other.as_ref());
        }
        4 => {
            let depth = DEPTHS[random.below(DEPTHS.len())];
            let (open, close) = if random.one_in(2) { ("[", "]") } else { ("{\"a\":", "}") };
            text.replace_range(span, &format!("{}{value}{}", open.repeat(depth), close.repeat(depth)));
        }
        5 => remove_member(text, &span),
        6 => repeat_member(random, text, &span),
        7 => {
            let lines: Vec<String> = text.lines().map(str::to_owned).collect();
            let line = random.pick(&lines).cloned().unwrap_or_default();
            if random.one_in(2) {
                *text = text.replacen(&line, "", 1);
            } else {
                let at = text.char_indices().map(|(at, _)| at).nth(random.below(text.len())).unwrap_or(0);
                text.insert_str(at, &line);
            }
        }
        8 if number => {
            // Off by a little.
            let changed =
                value.parse::<i64>().map(|number| number.wrapping_add(random.below(5) as i64 - 2).to_string());
            replace(text, span, changed.ok().as_ref());
        }
        _ => {
            let longer = value.trim_matches(|c| matches!(c, '[' | ']')).to_owned();
            text.replace_range(span, &format!("[{}]", [longer.as_str(); 3].join(",")));
        }
    }
}

fn replace(text: &mut String, span: Range<usize>, with: Option<impl AsRef<str>>) {
    if let Some(with) = with {
        text.replace_range(span, with.as_ref());
    }
}

/// Removes a value with the name and the comma or line end that belong to it.
fn remove_member(text: &mut String, span: &Range<usize>) {
    let (start, end) = member(text, span);
    text.replace_range(start..end, "");
}

/// Repeats a member, with the same name or another.
fn repeat_member(random: &mut Random, text: &mut String, span: &Range<usize>) {
    let (start, end) = member(text, span);
    let mut copy = text[start..end].trim().trim_matches(',').to_owned();
    if random.one_in(2) {
        copy = copy.replacen('"', "\"x", 1);
    }
    let glue = if text.trim_start().starts_with('{') { "," } else { "\n" };
    text.insert_str(start, &format!("{copy}{glue}"));
}

/// From a value's name (where it has one) to the comma behind it.
fn member(text: &str, span: &Range<usize>) -> (usize, usize) {
    let before = text[..span.start].trim_end();
    let start = match before.chars().next_back() {
        Some(':') => before[..before.len() - 1].trim_end().rfind([',', '{', '\n']).map_or(0, |at| at + 1),
        Some('=') => before.rfind('\n').map_or(0, |at| at + 1),
        _ => span.start,
    };
    let after = text[span.end..].len() - text[span.end..].trim_start().len() + span.end;
    let end = if text[after..].starts_with(',') { after + 1 } else { span.end };
    (start, end)
}

/// Every value of a text, roughly: quoted texts, numbers and words, bracketed groups.
fn values(text: &str) -> Vec<Range<usize>> {
    let bytes = text.as_bytes();
    let (mut spans, mut open) = (Vec::new(), Vec::new());
    let mut at = 0;
    while at < bytes.len() {
        let start = at;
        at += 1;
        match bytes[start] {
            b'"' => {
                while at < bytes.len() && bytes[at] != b'"' {
                    at += if bytes[at] == b'\\' { 2 } else { 1 };
                }
                at = (at + 1).min(bytes.len());
                spans.push(start..at);
            }
            b'[' | b'{' => open.push(start),
            b']' | b'}' => spans.extend(open.pop().map(|open| open..at)),
            first if first.is_ascii_alphanumeric() || first == b'-' => {
                let word = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'+' | b'_');
                at += bytes[at..].iter().take_while(|byte| word(byte)).count();
                spans.push(start..at);
            }
            _ => {}
        }
    }
    spans.retain(|span| text.is_char_boundary(span.start) && text.is_char_boundary(span.end));
    spans
}
