//! What decides a synthetic model beside its shape, and how a folder says that it is one.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::error::{MAX_EXPONENT, SynthError};
use crate::expert_cache::{Encoding, QuantizeMethod};

/// The field of `config.json` that makes a checkpoint synthetic.
pub(super) const FIELD: &str = "assay_synthetic";
/// Version of the generator: other versions make other weights of the same recipe.
const GENERATOR_VERSION: u32 = 1;
/// The largest offset that leaves both signs.
const MAX_OFFSET: i8 = 6;
/// Branches so large that nothing of the embedding is left.
const MAX_BRANCH_GAIN: f64 = 1000.0;

/// How routes are spread over the experts of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Skew {
    /// Every expert equally often.
    #[default]
    Even,
    /// The expert of rank r (from 1, in an order of each layer's own) in proportion to `r^-S`, as far as an expert that is in at
    /// most all of the tokens allows.
    Zipf(f64),
}

impl fmt::Display for Skew {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Even => f.write_str("even"),
            Self::Zipf(exponent) => write!(f, "zipf:{exponent}"),
        }
    }
}

impl FromStr for Skew {
    type Err = SynthError;

    fn from_str(text: &str) -> Result<Self, SynthError> {
        let unknown = || SynthError::Skew { found: text.to_owned() };
        match text.split_once(':') {
            None if text == "even" => Ok(Self::Even),
            Some(("zipf", exponent)) => {
                let exponent: f64 = exponent.parse().map_err(|_| unknown())?;
                if exponent > 0.0 && exponent <= MAX_EXPONENT { Ok(Self::Zipf(exponent)) } else { Err(unknown()) }
            }
            _ => Err(unknown()),
        }
    }
}

/// Everything that decides the weights of a shape.
#[derive(Debug, Clone, PartialEq)]
pub struct Recipe {
    /// Seed of every random number.
    pub seed: u64,
    /// How routes are spread.
    pub skew: Skew,
    /// Format of the expert cache; the values are the same in each.
    pub experts: Encoding,
    /// Added to every q of every matrix: other than 0 it gives weights a mean, and hidden states collapse.
    pub nibble_offset: i8,
    /// Size of the residual branches: at 1 all of them together add about as much as the embedding has.
    pub branch_gain: f64,
}

impl Recipe {
    /// Even routing, INT4.
    pub fn new(seed: u64) -> Self {
        let experts = Encoding::Int4(QuantizeMethod::Amax);
        Self { seed, skew: Skew::Even, experts, nibble_offset: 0, branch_gain: 1.0 }
    }

    /// Refuses numbers that make no weights.
    pub(super) fn check(&self) -> Result<(), SynthError> {
        let refuse = |what, found: &dyn ToString, expected: String| {
            Err(SynthError::Recipe { what, found: found.to_string(), expected })
        };
        if self.nibble_offset.unsigned_abs() > MAX_OFFSET.unsigned_abs() {
            return refuse("the nibble offset", &self.nibble_offset, format!("-{MAX_OFFSET} to {MAX_OFFSET}"));
        }
        if !(self.branch_gain > 0.0 && self.branch_gain <= MAX_BRANCH_GAIN) {
            return refuse("the branch gain", &self.branch_gain, format!("above 0, at most {MAX_BRANCH_GAIN}"));
        }
        // The values are exact in these alone.
        if !matches!(self.experts, Encoding::Bf16 | Encoding::Int4(QuantizeMethod::Amax)) {
            return refuse("the encoding of the experts", &self.experts, "bf16 or int4-amax".to_owned());
        }
        Ok(())
    }
}

/// What a synthetic checkpoint's `config.json` says about its origin. The file is hashed into every identity, so the recipe is a
/// part of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SyntheticRecord {
    /// Version of the generator.
    pub generator_version: u32,
    /// Name of the shape.
    pub shape: String,
    /// As in [`Recipe`].
    pub seed: u64,
    /// As in [`Recipe`].
    #[serde(with = "text")]
    pub skew: Skew,
    /// As in [`Recipe`].
    #[serde(with = "text")]
    pub experts: Encoding,
    /// As in [`Recipe`].
    pub nibble_offset: i8,
    /// As in [`Recipe`].
    pub branch_gain: f64,
}

impl SyntheticRecord {
    /// Of a shape and a recipe.
    pub(super) fn new(shape: &str, recipe: &Recipe) -> Self {
        let Recipe { seed, skew, experts, nibble_offset, branch_gain } = *recipe;
        let shape = shape.to_owned();
        Self { generator_version: GENERATOR_VERSION, shape, seed, skew, experts, nibble_offset, branch_gain }
    }

    /// Reads it out of a `config.json`; `None` where the checkpoint is not synthetic.
    ///
    /// # Errors
    /// A field of that name with other content.
    pub fn read(config: &[u8], path: &Path) -> Result<Option<Self>, SynthError> {
        /// The rest of the config is the family's.
        #[derive(Deserialize)]
        struct Marked {
            #[serde(default)]
            assay_synthetic: Option<SyntheticRecord>,
        }
        let marked: Marked = serde_json::from_slice(config).map_err(|error| SynthError::Malformed {
            path: path.to_owned(),
            found: error.to_string(),
            expected: format!("a configuration whose {FIELD}, if it is there, is a recipe"),
        })?;
        Ok(marked.assay_synthetic)
    }
}

/// Values that are written as text.
mod text {
    use std::fmt::Display;
    use std::str::FromStr;

    use serde::de::Error as _;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<T: Display, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(value)
    }

    pub(super) fn deserialize<'de, T, D>(deserializer: D) -> Result<T, D::Error>
    where
        T: FromStr<Err: Display>,
        D: Deserializer<'de>,
    {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn skews_are_read_as_written() {
        for text in ["even", "zipf:0.5", "zipf:1", "zipf:4"] {
            assert_eq!(text.parse::<Skew>().unwrap().to_string(), text);
        }
        for text in ["", "Even", "even:1", "zipf", "zipf:", "zipf:0", "zipf:-1", "zipf:NaN", "zipf:inf", "zipf:5"] {
            let message = text.parse::<Skew>().unwrap_err().to_string();
            assert!(message.contains("expected even or zipf:S"), "{message}");
        }
    }

    #[test]
    fn a_record_is_read_as_written_and_nothing_else_is() {
        let path = Path::new("config.json");
        let record = SyntheticRecord::new("tiny", &Recipe { skew: Skew::Zipf(1.5), ..Recipe::new(u64::MAX) });
        let config = serde_json::json!({ "model_type": "qwen3_moe", FIELD: record });
        let read = |config: &serde_json::Value| SyntheticRecord::read(config.to_string().as_bytes(), path);
        assert_eq!(read(&config).unwrap(), Some(record));
        assert_eq!(read(&serde_json::json!({ "model_type": "qwen3_moe" })).unwrap(), None);
        let check = |pointer: &str, value: serde_json::Value| {
            let mut changed = config.clone();
            *changed.pointer_mut(pointer).unwrap() = value;
            assert!(read(&changed).unwrap_err().to_string().contains("config.json"), "{pointer}");
        };
        check("/assay_synthetic/skew", "zipf:x".into());
        check("/assay_synthetic/experts", "int5".into());
        check("/assay_synthetic/seed", (-1).into());
        check("/assay_synthetic", true.into());
    }

    #[test]
    fn recipes_that_make_no_weights_are_refused() {
        let check = |recipe: Recipe, part: &str| {
            let message = recipe.check().unwrap_err().to_string();
            assert!(message.contains(part), "{message}");
        };
        let good = Recipe::new(1);
        good.check().unwrap();
        check(Recipe { nibble_offset: -7, ..good.clone() }, "offset is -7, expected -6 to 6");
        check(Recipe { branch_gain: f64::NAN, ..good.clone() }, "branch gain is NaN");
        check(Recipe { branch_gain: 0.0, ..good.clone() }, "branch gain is 0");
        for experts in [Encoding::Int4(QuantizeMethod::Search), Encoding::Int8] {
            check(Recipe { experts, ..good }, "expected bf16 or int4-amax");
        }
    }
}
