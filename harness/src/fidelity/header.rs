//! What a baseline says of itself.

use crate::perplexity::Document;
use assay_ledgers::{BaselineLogits, Identity, Sha256};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// The version this code writes and reads.
pub(super) const FORMAT_VERSION: u32 = 1;

/// Ten are compared.
pub const MIN_TOP_K: u32 = super::TOP as u32;

/// Fields before the rows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BaselineHeader {
    /// [`FORMAT_VERSION`].
    pub format_version: u32,
    /// What it is called.
    pub name: String,
    /// What made it; absent where another program did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<Identity>,
    /// Tokens that there are.
    pub vocab_size: u64,
    /// Hash of `tokenizer.json`, where the checkpoint has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokenizer: Option<Sha256>,
    /// What is held of each position.
    pub logits: BaselineLogits,
    /// Name of the set of documents.
    pub set: String,
    /// Hash of every text or list, by name.
    pub texts: BTreeMap<String, Sha256>,
    /// The documents, in the order of the rows.
    pub documents: Vec<BaselineDocument>,
}

/// One document.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BaselineDocument {
    /// Its name, unique in its set.
    pub name: String,
    /// Its tokens; there is a row for each.
    pub tokens: Vec<u32>,
}

/// What is wrong with a header: what was found, and what was expected.
pub(super) type Complaint = (String, String);

impl BaselineHeader {
    /// Rows of the file: one a token. `None` on overflow.
    pub fn rows(&self) -> Option<u64> {
        self.documents.iter().try_fold(0u64, |rows, document| rows.checked_add(document.tokens.len() as u64))
    }

    /// Bytes of a row. `None` on overflow.
    pub(super) fn row_bytes(&self) -> Option<u64> {
        match self.logits {
            BaselineLogits::Full => self.vocab_size.checked_mul(4),
            // The target's log-probability in f64, then id and log-probability of each.
            BaselineLogits::TopK(k) => u64::from(k).checked_mul(8)?.checked_add(8),
        }
    }

    /// Everything that can be said without the rows.
    pub(super) fn check(&self) -> Result<(), Complaint> {
        let wrong = |found: String, expected: &str| Err((found, expected.to_owned()));
        if self.format_version != FORMAT_VERSION {
            return wrong(format!("format version {}", self.format_version), &FORMAT_VERSION.to_string());
        }
        if self.vocab_size == 0 || self.vocab_size > u64::from(u32::MAX) {
            return wrong(format!("a vocabulary of {}", self.vocab_size), "1 to 2^32 - 1");
        }
        if let BaselineLogits::TopK(k) = self.logits
            && (k < MIN_TOP_K || u64::from(k) > self.vocab_size)
        {
            return wrong(format!("the {k} largest of {}", self.vocab_size), "10 or more, and no more than there are");
        }
        if self.documents.is_empty() {
            return wrong("no document".to_owned(), "at least one");
        }
        let mut names = BTreeSet::new();
        for BaselineDocument { name, tokens } in &self.documents {
            if tokens.len() < 2 {
                return wrong(format!("document {name:?} of {} tokens", tokens.len()), "at least 2");
            }
            if let Some(token) = tokens.iter().find(|&&token| u64::from(token) >= self.vocab_size) {
                return wrong(format!("token {token} in document {name:?}"), "less than the vocabulary's size");
            }
            if !names.insert(name) {
                return wrong(format!("document {name:?} twice"), "names that differ");
            }
        }
        Ok(())
    }

    /// What keeps these documents and this vocabulary from being compared with it; `None` where nothing does.
    pub fn mismatch(&self, vocab_size: usize, tokenizer: Option<Sha256>, documents: &[Document]) -> Option<String> {
        if vocab_size as u64 != self.vocab_size {
            return Some(format!("the vocabulary has {vocab_size} tokens, the baseline's {}", self.vocab_size));
        }
        if let (Some(here), Some(there)) = (tokenizer, self.tokenizer)
            && here != there
        {
            return Some(format!("the tokenizer is {}, the baseline's {}", here.short(), there.short()));
        }
        if documents.len() != self.documents.len() {
            return Some(format!("{} documents, the baseline has {}", documents.len(), self.documents.len()));
        }
        documents.iter().zip(&self.documents).find_map(|(here, there)| {
            if here.name != there.name {
                return Some(format!("document {:?}, in the baseline {:?}", here.name, there.name));
            }
            if here.tokens.len() != there.tokens.len() {
                let (here, there, name) = (here.tokens.len(), there.tokens.len(), &here.name);
                return Some(format!("document {name:?} has {here} tokens, in the baseline {there}"));
            }
            let index = here.tokens.iter().zip(&there.tokens).position(|(here, there)| here != there)?;
            let (a, b) = (here.tokens[index], there.tokens[index]);
            Some(format!("document {:?}: token {index} is {a}, in the baseline {b}", here.name))
        })
    }
}
