//! `/tokenize`, `/detokenize`, `/apply-template`: fields as llama.cpp's server has them.

use super::{Fields, chat};
use crate::error::ApiError;
use crate::model::ServedModel;
use crate::template::Chat;

/// `/tokenize`
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TokenizeRequest {
    pub(crate) content: String,
    /// Whether each token comes with its text.
    pub(crate) with_pieces: bool,
}

impl TokenizeRequest {
    pub(crate) fn parse(body: &[u8]) -> Result<Self, ApiError> {
        let mut fields = Fields::parse(body)?;
        fields.only("add_special", &false, "false: nothing is added to a text")?;
        fields.only("parse_special", &true, "true: special tokens that a text spells out become their ids")?;
        let content = fields.require("content")?;
        let with_pieces = fields.take("with_pieces")?.unwrap_or(false);
        fields.finish()?;
        Ok(Self { content, with_pieces })
    }
}

/// `/detokenize`
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DetokenizeRequest {
    pub(crate) tokens: Vec<u32>,
}

impl DetokenizeRequest {
    pub(crate) fn parse(body: &[u8]) -> Result<Self, ApiError> {
        let mut fields = Fields::parse(body)?;
        let tokens = fields.require("tokens")?;
        fields.finish()?;
        Ok(Self { tokens })
    }
}

/// `/apply-template`
#[derive(Debug)]
pub(crate) struct ApplyTemplateRequest {
    pub(crate) chat: Chat,
}

impl ApplyTemplateRequest {
    pub(crate) fn parse(body: &[u8], model: &ServedModel) -> Result<Self, ApiError> {
        let mut fields = Fields::parse(body)?;
        fields.ignore(&["model"]);
        let add_generation_prompt = fields.take("add_generation_prompt")?.unwrap_or(true);
        let (chat, _) = chat::chat(&mut fields, model)?;
        fields.finish()?;
        Ok(Self { chat: Chat { add_generation_prompt, ..chat } })
    }
}
