//! The fields of a `config.json` about rope, as old and new transformers write them.
//!
//! Old: `rope_theta`, and `rope_scaling` (null, or an object whose kind is `type` or `rope_type`). New: one object
//! `rope_parameters` that holds `rope_theta` too. A field that is not understood is refused, never ignored.

use super::config::Config;
use super::error::ModelError;
use super::rope::yarn_attention_factor;
use super::spec::{RopeScaling, RopeSpec};

/// The largest context that a config may claim, in tokens.
pub(super) const MAX_POSITIONS: usize = 1 << 27;
/// The largest factor by which YaRN may lengthen a context.
const MAX_YARN_FACTOR: f64 = 65536.0;
/// The kinds that are implemented.
const KINDS: &str = "default or yarn";
/// Fields of every kind.
const COMMON_FIELDS: &[&str] = &["rope_theta", "rope_type", "type", "partial_rotary_factor"];
/// Fields of YaRN.
const YARN_FIELDS: &[&str] = &[
    "factor",
    "original_max_position_embeddings",
    "attention_factor",
    "beta_fast",
    "beta_slow",
    "mscale",
    "mscale_all_dim",
    "truncate",
];
/// transformers' `beta_fast` where the config has none.
const DEFAULT_BETA_FAST: f64 = 32.0;
/// transformers' `beta_slow` where the config has none.
const DEFAULT_BETA_SLOW: f64 = 1.0;

/// Reads the one rope that all layers of the model use, of a family that turns whole heads.
pub(super) fn read(config: &Config<'_>, max_position_embeddings: usize) -> Result<RopeSpec, ModelError> {
    whole_head(config)?;
    for object in objects(config)? {
        whole_head(&object)?;
    }
    read_rope(config, max_position_embeddings)
}

/// Reads the rope of a family that turns the first part of each head: also how many elements that is. Where the config does
/// not say, it is the share `default_factor`.
pub(super) fn read_partial(
    config: &Config<'_>,
    max_position_embeddings: usize,
    head_dim: usize,
    default_factor: f64,
) -> Result<(RopeSpec, usize), ModelError> {
    const FACTOR: &str = "partial_rotary_factor";
    let mut rotary_dim = config.optional_usize("rotary_dim", 1..=head_dim)?;
    let mut objects = objects(config)?;
    objects.push(config.clone());
    for object in objects {
        let Some(factor) = object.optional_positive(FACTOR)? else { continue };
        // transformers cuts off what is behind the point.
        let turned = (head_dim as f64 * factor) as usize;
        if factor > 1.0 || rotary_dim.is_some_and(|known| known != turned) {
            let expected = match rotary_dim {
                Some(known) => {
                    format!("a share of head_dim, {head_dim}, that comes to {known} as elsewhere in the config")
                }
                None => "a number up to 1".to_owned(),
            };
            return Err(object.wrong(FACTOR, factor, expected));
        }
        rotary_dim = Some(turned);
    }
    let rotary_dim = rotary_dim.unwrap_or((head_dim as f64 * default_factor) as usize);
    if rotary_dim == 0 || !rotary_dim.is_multiple_of(2) {
        let expected = format!("an even number above 0 of the {head_dim} elements of a head to turn");
        return Err(config.wrong(FACTOR, format!("{rotary_dim} elements"), expected));
    }
    Ok((read_rope(config, max_position_embeddings)?, rotary_dim))
}

/// The objects about rope that the config has, under their names of either style.
fn objects<'a>(config: &Config<'a>) -> Result<Vec<Config<'a>>, ModelError> {
    let objects = ["rope_parameters", "rope_scaling"].map(|field| config.object(field)).into_iter();
    objects.filter_map(Result::transpose).collect()
}

fn read_rope(config: &Config<'_>, max_position_embeddings: usize) -> Result<RopeSpec, ModelError> {
    let mut found: Option<RopeSpec> = None;
    for field in ["rope_parameters", "rope_scaling"] {
        let Some(object) = config.object(field)? else { continue };
        // An empty object counts as none for transformers.
        if object.names().next().is_none() {
            continue;
        }
        let rope = read_object(config, &object, max_position_embeddings)?;
        if found.as_ref().is_some_and(|first| *first != rope) {
            return Err(config.wrong(field, "another rope than rope_parameters", "one of the two, or both the same"));
        }
        found = Some(rope);
    }
    match found {
        Some(rope) => Ok(rope),
        None => Ok(RopeSpec { theta: theta(config, config)?, scaling: RopeScaling::Default }),
    }
}

/// Reads `rope_parameters` or `rope_scaling`.
fn read_object(
    config: &Config<'_>,
    object: &Config<'_>,
    max_position_embeddings: usize,
) -> Result<RopeSpec, ModelError> {
    let (kind_field, kind) = match (object.optional_str("rope_type")?, object.optional_str("type")?) {
        (Some(kind), Some(other)) if kind != other => {
            return Err(object.wrong("type", other, format!("{kind}, the value of rope_type")));
        }
        (Some(kind), _) => ("rope_type", kind),
        (None, Some(kind)) => ("type", kind),
        (None, None) => ("rope_type", "default"),
    };
    object.require(matches!(kind, "default" | "yarn"), kind_field, KINDS)?;
    let known = if kind == "yarn" { YARN_FIELDS } else { &[] };
    for name in object.names() {
        let supported = COMMON_FIELDS.contains(&name) || known.contains(&name) || object.get(name).is_none();
        object.require(supported, name, format!("no such field for rope type {kind}"))?;
    }
    let theta = theta(config, object)?;
    let scaling = if kind == "yarn" { yarn(config, object, max_position_embeddings)? } else { RopeScaling::Default };
    Ok(RopeSpec { theta, scaling })
}

/// `rope_theta` in the object, else beside it.
fn theta(config: &Config<'_>, object: &Config<'_>) -> Result<f64, ModelError> {
    let theta = match object.optional_positive("rope_theta")? {
        Some(theta) => theta,
        None => config.positive("rope_theta")?,
    };
    // YaRN divides by its logarithm, and frequencies must fall.
    if theta > 1.0 { Ok(theta) } else { Err(config.wrong("rope_theta", theta, "a number above 1")) }
}

/// Refuses rope that covers less than the whole head.
fn whole_head(object: &Config<'_>) -> Result<(), ModelError> {
    let factor = object.optional_positive("partial_rotary_factor")?;
    object.require(factor.is_none_or(|factor| factor == 1.0), "partial_rotary_factor", "1, or no such field")
}

/// transformers' reading of a YaRN object (`_compute_yarn_parameters`), defaults included.
fn yarn(config: &Config<'_>, object: &Config<'_>, max_position_embeddings: usize) -> Result<RopeScaling, ModelError> {
    const ORIGINAL: &str = "original_max_position_embeddings";
    // Where a config says it outside the object too, transformers prefers that.
    let original_max_position_embeddings = match config.optional_usize(ORIGINAL, 1..=MAX_POSITIONS)? {
        Some(outside) => outside,
        None => object.optional_usize(ORIGINAL, 1..=MAX_POSITIONS)?.unwrap_or(max_position_embeddings),
    };
    let factor = object
        .optional_positive("factor")?
        .unwrap_or(max_position_embeddings as f64 / original_max_position_embeddings as f64);
    // Below 1 the context would shrink, which no checkpoint means.
    if !(1.0..=MAX_YARN_FACTOR).contains(&factor) {
        return Err(object.wrong(
            "factor",
            format_args!("{factor:e}"),
            format!("a number from 1 to {MAX_YARN_FACTOR}"),
        ));
    }
    let attention_factor = match object.optional_positive("attention_factor")? {
        Some(attention_factor) => attention_factor,
        None => yarn_attention_factor(factor, number(object, "mscale")?, number(object, "mscale_all_dim")?),
    };
    if !(attention_factor.is_finite() && (attention_factor as f32).is_normal() && attention_factor > 0.0) {
        return Err(object.wrong(
            "attention_factor",
            format_args!("{attention_factor:e}"),
            "a number that f32 can hold",
        ));
    }
    let beta_fast = number(object, "beta_fast")?.unwrap_or(DEFAULT_BETA_FAST);
    let beta_slow = number(object, "beta_slow")?.unwrap_or(DEFAULT_BETA_SLOW);
    if beta_fast < beta_slow {
        return Err(object.wrong("beta_fast", beta_fast, format!("at least beta_slow, {beta_slow}")));
    }
    let truncate = object.bool_or("truncate", true)?;
    Ok(RopeScaling::Yarn { factor, original_max_position_embeddings, beta_fast, beta_slow, attention_factor, truncate })
}

/// A number above 0. 0 counts as absent, as it does for transformers.
fn number(object: &Config<'_>, field: &str) -> Result<Option<f64>, ModelError> {
    if object.get(field).and_then(serde_json::Value::as_f64) == Some(0.0) {
        Ok(None)
    } else {
        object.optional_positive(field)
    }
}
