//! Calls whose arguments stand between tags: Qwen's function form, DeepSeek's DSML, MiniMax's invoke, GLM's keys and values.

use super::reader::{Reader, Step};
use super::values::{object, quoted};
use super::{Attempt, Call, ToolSchemas};

/// Tags of one form. A call is `<call_open>name<name_close>`, parameters, `<call_close>`.
pub(super) struct Tags {
    block_close: &'static str,
    call_open: &'static str,
    call_close: &'static str,
    parameter_open: &'static str,
    parameter_close: &'static str,
    /// After a name: of a function, of a parameter.
    name_close: &'static str,
    /// Whether a value has a line of its own, so that one line break on each side is not of it.
    own_line: bool,
    /// Whether a parameter says `string="true"` after its name.
    says_string: bool,
}

/// `<tool_call>\n<function=f>\n<parameter=p>\nvalue\n</parameter>\n</function>\n</tool_call>`
pub(super) const QWEN: Tags = Tags {
    block_close: "</tool_call>",
    call_open: "<function=",
    call_close: "</function>",
    parameter_open: "<parameter=",
    parameter_close: "</parameter>",
    name_close: ">",
    own_line: true,
    says_string: false,
};

/// `<minimax:tool_call>\n<invoke name="f">\n<parameter name="p">value</parameter>\n</invoke>\n</minimax:tool_call>`
pub(super) const MINIMAX: Tags = Tags {
    block_close: "</minimax:tool_call>",
    call_open: "<invoke name=\"",
    call_close: "</invoke>",
    parameter_open: "<parameter name=\"",
    parameter_close: "</parameter>",
    name_close: "\">",
    own_line: false,
    says_string: false,
};

/// `<｜DSML｜function_calls>\n<｜DSML｜invoke name="f">\n<｜DSML｜parameter name="p" string="true">value</｜DSML｜parameter>` …
pub(super) const DSML_FUNCTIONS: Tags = Tags {
    block_close: "</｜DSML｜function_calls>",
    call_open: "<｜DSML｜invoke name=\"",
    call_close: "</｜DSML｜invoke>",
    parameter_open: "<｜DSML｜parameter name=\"",
    parameter_close: "</｜DSML｜parameter>",
    name_close: "\">",
    own_line: false,
    says_string: true,
};

/// The same within `<｜DSML｜tool_calls>`.
pub(super) const DSML_TOOLS: Tags = Tags { block_close: "</｜DSML｜tool_calls>", ..DSML_FUNCTIONS };

impl<'t> Reader<'t> {
    /// Text up to the next `mark`, which is taken.
    fn until(&mut self, mark: &str) -> Step<&'t str> {
        let place = self.rest().find(mark).ok_or(Attempt::Incomplete)?;
        let text = &self.rest()[..place];
        self.at += place + mark.len();
        Ok(text)
    }

    /// A name up to `mark`: on one line, not empty, without a bracket.
    fn name(&mut self, mark: &str) -> Step<&'t str> {
        let seen = self.rest().find(mark).map_or(self.rest(), |place| &self.rest()[..place]);
        if seen.contains(['\n', '<', '>']) {
            return Err(Attempt::Malformed);
        }
        let name = self.until(mark)?.trim();
        if name.is_empty() { Err(Attempt::Malformed) } else { Ok(name) }
    }
}

impl Tags {
    pub(super) fn attempt(&self, text: &str, opener: &str, tools: &ToolSchemas) -> Attempt {
        self.block(text, opener, tools).unwrap_or_else(|attempt| attempt)
    }

    fn block(&self, text: &str, opener: &str, tools: &ToolSchemas) -> Step<Attempt> {
        let mut reader = Reader { text, at: opener.len() };
        let mut calls = Vec::new();
        loop {
            reader.skip_space();
            if !calls.is_empty() && reader.take(self.block_close)? {
                return Ok(Attempt::Calls(calls, reader.at));
            }
            reader.expect(self.call_open)?;
            calls.push(self.call(&mut reader, tools)?);
        }
    }

    fn call(&self, reader: &mut Reader<'_>, tools: &ToolSchemas) -> Step<Call> {
        let name = reader.name(self.name_close)?;
        let mut fields: Vec<(String, String)> = Vec::new();
        loop {
            reader.skip_space();
            if reader.take(self.call_close)? {
                return Ok(Call { name: name.to_owned(), arguments: object(&fields) });
            }
            reader.expect(self.parameter_open)?;
            let field = self.parameter(reader, name, tools)?;
            if fields.iter().any(|(name, _)| *name == field.0) {
                return Err(Attempt::Malformed);
            }
            fields.push(field);
        }
    }

    fn parameter(&self, reader: &mut Reader<'_>, function: &str, tools: &ToolSchemas) -> Step<(String, String)> {
        let mut name = reader.name(self.name_close)?;
        let mut is_string = None;
        if self.says_string {
            let (own, says) = name.split_once("\" string=\"").ok_or(Attempt::Malformed)?;
            (name, is_string) = match says {
                "true" => (own, Some(true)),
                "false" => (own, Some(false)),
                _ => return Err(Attempt::Malformed),
            };
        }
        let mut value = reader.until(self.parameter_close)?;
        if self.own_line {
            value = value.strip_prefix('\n').unwrap_or(value);
            value = value.strip_suffix('\n').unwrap_or(value);
        }
        let json = match is_string {
            Some(true) => quoted(value),
            Some(false) if serde_json::from_str::<&serde_json::value::RawValue>(value).is_err() => {
                return Err(Attempt::Malformed);
            }
            Some(false) => value.trim().to_owned(),
            None => tools.json(function, name, value),
        };
        Ok((name.to_owned(), json))
    }
}

/// GLM: `<tool_call>f\n<arg_key>k</arg_key>\n<arg_value>v</arg_value>\n</tool_call>`.
pub(super) fn glm(text: &str, opener: &str, tools: &ToolSchemas) -> Attempt {
    glm_call(text, opener, tools).unwrap_or_else(|attempt| attempt)
}

fn glm_call(text: &str, opener: &str, tools: &ToolSchemas) -> Step<Attempt> {
    const CLOSER: &str = "</tool_call>";
    let mut reader = Reader { text, at: opener.len() };
    reader.skip_space();
    let name_end = reader.rest().find(['\n', '<']).ok_or(Attempt::Incomplete)?;
    let name = reader.rest()[..name_end].trim();
    if name.is_empty() {
        return Err(Attempt::Malformed);
    }
    reader.at += name_end;
    let mut fields: Vec<(String, String)> = Vec::new();
    loop {
        reader.skip_space();
        if reader.take(CLOSER)? {
            let call = Call { name: name.to_owned(), arguments: object(&fields) };
            return Ok(Attempt::Calls(vec![call], reader.at));
        }
        reader.expect("<arg_key>")?;
        let key = reader.until("</arg_key>")?.trim();
        reader.skip_space();
        reader.expect("<arg_value>")?;
        let value = reader.until("</arg_value>")?;
        if key.is_empty() || fields.iter().any(|(name, _)| name == key) {
            return Err(Attempt::Malformed);
        }
        fields.push((key.to_owned(), tools.json(name, key, value)));
    }
}
