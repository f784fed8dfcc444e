//! The lines of a trace. Each is one JSON object with one member, the event's kind:
//!
//! | line | says |
//! |---|---|
//! | `contract` | the first: format version, what ran, which events were chosen |
//! | `input` | a call of prefill or decode: its tokens |
//! | `op` | a launch: where it stands, its inputs and outputs |
//! | `routes` | the experts of a layer's tokens, and their weights |
//! | `logits` | the largest logits, and the chosen token |
//! | `retry` | an allocation failed, the step begins again with a smaller chunk |
//! | `end` | the last: how many lines there are |
//!
//! A line that lacks its end, a field that is unknown, a newer version: refused by who reads them.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The version this code writes and reads.
pub const FORMAT_VERSION: u32 = 1;

/// A line is never longer: 65,536 values of each of eight tensors.
pub const MAX_LINE_BYTES: usize = 16 << 20;

/// One line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Event<'a> {
    /// The first line.
    Contract(Contract),
    /// A step begins.
    Input(Input),
    /// A launch.
    #[serde(borrow)]
    Op(Op<'a>),
    /// Chosen experts.
    Routes(Routes),
    /// The end of a step.
    #[serde(borrow)]
    Logits(Logits<'a>),
    /// A step begins again.
    Retry(Retry),
    /// The last line.
    End(End),
}

/// What the engine was doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// A prompt.
    Prefill,
    /// One token.
    Decode,
}

impl Phase {
    /// As written.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Prefill => "prefill",
            Self::Decode => "decode",
        }
    }
}

/// What ran: two traces compare as far as these agree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Contract {
    /// [`FORMAT_VERSION`] of who wrote it.
    pub format_version: u32,
    /// The runtime contract, by dotted names: model, precision, arithmetic, device, memory.
    pub fields: BTreeMap<String, String>,
    /// Which events were chosen, in words.
    pub selection: String,
    /// Values that are written of each tensor, at most.
    pub values: u64,
}

/// A call of prefill or decode.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Input {
    /// Calls before it in this trace.
    pub step: u64,
    /// Which of the two.
    pub phase: Phase,
    /// Tokens in the sequence before it.
    pub position: u64,
    /// Its tokens.
    pub tokens: Vec<u32>,
}

/// A launch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Op<'a> {
    /// As in [`Input`].
    pub step: u64,
    /// As in [`Input`].
    pub phase: Phase,
    /// Absent outside the layers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layer: Option<u64>,
    /// [`super::Component::name`].
    #[serde(borrow)]
    pub component: Cow<'a, str>,
    /// Name of the kernel.
    #[serde(borrow)]
    pub kernel: Cow<'a, str>,
    /// Position of its first token.
    pub position: u64,
    /// Its tokens.
    pub tokens: u64,
    /// Activations that it read, as they were before it. Weights are the contract's.
    #[serde(borrow)]
    pub inputs: Vec<Tensor<'a>>,
    /// What it wrote.
    #[serde(borrow)]
    pub outputs: Vec<Tensor<'a>>,
}

/// A tensor in short.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tensor<'a> {
    /// The kernel's name for it.
    #[serde(borrow)]
    pub name: Cow<'a, str>,
    /// `f32` or `u32`. Rows of a BF16 KV cache are written as the f32 values that they stand for.
    #[serde(borrow)]
    pub dtype: Cow<'a, str>,
    /// Slowest dimension first.
    pub shape: Vec<u64>,
    /// First 128 bits of the SHA-256 of its little-endian bytes, in hex.
    #[serde(borrow)]
    pub hash: Cow<'a, str>,
    /// Smallest value; NaNs are passed over.
    pub min: Number,
    /// Largest value; NaNs are passed over.
    pub max: Number,
    /// Mean of the finite values.
    pub mean: f64,
    /// Root of the sum of squares of the finite values.
    pub l2: f64,
    /// Values that are not finite.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub non_finite: u64,
    /// Selected values: of `n` written, number `i` is element `i * len / n`.
    pub values: Vec<Number>,
}

/// The experts of a layer's tokens.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Routes {
    /// As in [`Input`].
    pub step: u64,
    /// As in [`Input`].
    pub phase: Phase,
    /// The layer.
    pub layer: u64,
    /// Position of the first token.
    pub position: u64,
    /// Experts of a token.
    pub top_k: u64,
    /// `[tokens, top_k]`, likeliest first.
    pub ids: Vec<u32>,
    /// `[tokens, top_k]`
    pub weights: Vec<Number>,
}

/// What a step came to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Logits<'a> {
    /// As in [`Input`].
    pub step: u64,
    /// As in [`Input`].
    pub phase: Phase,
    /// Position of the token that they follow.
    pub position: u64,
    /// The greedy choice.
    pub chosen: u32,
    /// The largest, in falling order, ties by id.
    pub top: Vec<TopLogit>,
    /// All of them.
    #[serde(borrow)]
    pub logits: Tensor<'a>,
}

/// A token and its logit.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TopLogit {
    /// The token.
    pub id: u32,
    /// Its logit.
    pub logit: Number,
}

/// A step begins again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Retry {
    /// Which.
    pub step: u64,
    /// Tokens of a chunk from here on.
    pub chunk: u64,
}

/// The last line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct End {
    /// Lines of the trace, this one included.
    pub events: u64,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde's signature
fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// An f32 that comes back with the same bits: a JSON number, or a string where JSON has no number for it. All NaNs are one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Number(pub f32);

impl Serialize for Number {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            value if value.is_finite() => serializer.serialize_f32(value),
            value if value.is_nan() => serializer.serialize_str("nan"),
            value => serializer.serialize_str(if value > 0.0 { "inf" } else { "-inf" }),
        }
    }
}

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Numbers;
        impl Visitor<'_> for Numbers {
            type Value = Number;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a number, \"nan\", \"inf\" or \"-inf\"")
            }
            fn visit_f64<E>(self, value: f64) -> Result<Number, E> {
                Ok(Number(value as f32))
            }
            fn visit_u64<E>(self, value: u64) -> Result<Number, E> {
                Ok(Number(value as f32))
            }
            fn visit_i64<E>(self, value: i64) -> Result<Number, E> {
                Ok(Number(value as f32))
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Number, E> {
                match text {
                    "nan" => Ok(Number(f32::NAN)),
                    "inf" => Ok(Number(f32::INFINITY)),
                    "-inf" => Ok(Number(f32::NEG_INFINITY)),
                    other => Err(E::invalid_value(de::Unexpected::Str(other), &self)),
                }
            }
        }
        deserializer.deserialize_any(Numbers)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back_with_their_bits() {
        let subnormal = f32::from_bits(1);
        for value in
            [0.0, -0.0, 0.1, 1.0 / 3.0, f32::MAX, f32::MIN_POSITIVE, subnormal, f32::INFINITY, f32::NEG_INFINITY]
        {
            let text = serde_json::to_string(&Number(value)).unwrap();
            let back: Number = serde_json::from_str(&text).unwrap();
            assert_eq!(back.0.to_bits(), value.to_bits(), "{text}");
        }
        assert!(serde_json::from_str::<Number>("\"nan\"").unwrap().0.is_nan());
        assert!(serde_json::from_str::<Number>("\"1\"").is_err());
    }
}
