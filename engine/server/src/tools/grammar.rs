//! Which form a template has.

use super::{Attempt, ToolSchemas, gemma, json_call, xml_call};

/// Forms of a tool call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Grammar {
    /// Qwen 2.5 and 3, Hermes: a JSON object between `<tool_call>` and `</tool_call>`.
    QwenJson,
    /// Qwen3-Coder: `<function=…>` with `<parameter=…>` between the same tags.
    QwenXml,
    /// DeepSeek V3.2 and later: `<｜DSML｜invoke …>` in a block.
    DeepSeek,
    /// GLM 4.5 and later: a name, then `<arg_key>` and `<arg_value>`.
    Glm,
    /// Gemma 4: `<|tool_call>call:name{…}<tool_call|>`.
    Gemma,
    /// FunctionGemma: `<start_function_call>call:name{…}<end_function_call>`.
    FunctionGemma,
    /// MiniMax M2: `<invoke name=…>` in a block.
    MiniMax,
    /// gpt-oss: a message on the channel `commentary` to `functions.name`.
    GptOss,
}

impl Grammar {
    /// Every one.
    pub const ALL: [Grammar; 8] = [
        Grammar::QwenJson,
        Grammar::QwenXml,
        Grammar::DeepSeek,
        Grammar::Glm,
        Grammar::Gemma,
        Grammar::FunctionGemma,
        Grammar::MiniMax,
        Grammar::GptOss,
    ];

    /// The form that a template teaches, told by what its source spells out. `None` for one that is not known here.
    pub fn of_template(source: &str) -> Option<Self> {
        let has = |text: &str| source.contains(text);
        // From the most special mark to the least: several templates use `<tool_call>`.
        let known = [
            (has("｜DSML｜"), Grammar::DeepSeek),
            (has("<minimax:tool_call>"), Grammar::MiniMax),
            (has("<arg_key>") && has("<arg_value>"), Grammar::Glm),
            (has("<start_function_call>"), Grammar::FunctionGemma),
            (has("<|tool_call>") && has("<tool_call|>"), Grammar::Gemma),
            (has("<|channel|>") && has("functions"), Grammar::GptOss),
            (has("<function=") && has("<parameter="), Grammar::QwenXml),
            (has("<tool_call>") && has("arguments"), Grammar::QwenJson),
        ];
        known.into_iter().find_map(|(matches, grammar)| matches.then_some(grammar))
    }

    /// As in messages and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Grammar::QwenJson => "qwen-json",
            Grammar::QwenXml => "qwen-xml",
            Grammar::DeepSeek => "deepseek-dsml",
            Grammar::Glm => "glm",
            Grammar::Gemma => "gemma",
            Grammar::FunctionGemma => "function-gemma",
            Grammar::MiniMax => "minimax",
            Grammar::GptOss => "gpt-oss",
        }
    }

    /// How a call begins in a template's form, up to the function's name, and through it where it is given: what an answer is made
    /// to begin with when the request asks for a call. Each piece ends where the form's own words end, so that its tokens are those that a
    /// model would write.
    pub(crate) fn opening(self, template: &str, function: Option<&str>) -> String {
        let (before, after) = match self {
            Grammar::QwenJson => ("<tool_call>\n{\"name\": \"", "\", \"arguments\":"),
            Grammar::QwenXml => ("<tool_call>\n<function=", ">\n"),
            Grammar::DeepSeek if template.contains("function_calls") => {
                ("<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"", "\">\n")
            }
            Grammar::DeepSeek => ("<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"", "\">\n"),
            Grammar::Glm => ("<tool_call>", "\n"),
            Grammar::Gemma => ("<|tool_call>call:", "{"),
            Grammar::FunctionGemma => ("<start_function_call>call:", "{"),
            Grammar::MiniMax => ("<minimax:tool_call>\n<invoke name=\"", "\">\n"),
            Grammar::GptOss => ("<|channel|>commentary to=functions.", " <|constrain|>json<|message|>"),
        };
        function.map_or(before.to_owned(), |name| format!("{before}{name}{after}"))
    }

    /// Marks that a call may begin with.
    pub(super) fn openers(self) -> &'static [&'static str] {
        match self {
            Grammar::QwenJson | Grammar::QwenXml | Grammar::Glm => &["<tool_call>"],
            Grammar::DeepSeek => &["<｜DSML｜function_calls>", "<｜DSML｜tool_calls>"],
            Grammar::Gemma => &["<|tool_call>"],
            Grammar::FunctionGemma => &["<start_function_call>"],
            Grammar::MiniMax => &["<minimax:tool_call>"],
            // Its channels are found by a parser of their own.
            Grammar::GptOss => &[],
        }
    }

    /// Marks that a call ends with: in front of the first of them none is whole.
    pub(super) fn closers(self) -> &'static [&'static str] {
        match self {
            Grammar::QwenJson | Grammar::QwenXml | Grammar::Glm => &["</tool_call>"],
            Grammar::DeepSeek => &["</｜DSML｜function_calls>", "</｜DSML｜tool_calls>"],
            Grammar::Gemma => &["<tool_call|>"],
            Grammar::FunctionGemma => &["<end_function_call>"],
            Grammar::MiniMax => &["</minimax:tool_call>"],
            Grammar::GptOss => &[],
        }
    }

    /// What `text`, which begins with `opener`, is.
    pub(super) fn attempt(self, text: &str, opener: &str, tools: &ToolSchemas) -> Attempt {
        match self {
            Grammar::QwenJson => json_call::attempt(text, opener),
            Grammar::QwenXml => xml_call::QWEN.attempt(text, opener, tools),
            Grammar::DeepSeek if opener.contains("function") => xml_call::DSML_FUNCTIONS.attempt(text, opener, tools),
            Grammar::DeepSeek => xml_call::DSML_TOOLS.attempt(text, opener, tools),
            Grammar::Glm => xml_call::glm(text, opener, tools),
            Grammar::Gemma => gemma::attempt(text, opener, &gemma::GEMMA),
            Grammar::FunctionGemma => gemma::attempt(text, opener, &gemma::FUNCTION_GEMMA),
            Grammar::MiniMax => xml_call::MINIMAX.attempt(text, opener, tools),
            Grammar::GptOss => Attempt::Malformed,
        }
    }
}
