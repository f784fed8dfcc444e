//! Whether routes are spread as a synthetic model says, judged from counts of a forward pass over random token ids.
//!
//! Even routing means that any set of resident experts is hit as often as it is large. It is the hardest case for a cache, and
//! made-up weights give it only with care, so a speed row on a synthetic model means nothing without this check.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::error::SynthError;
use super::random::{Name, Stream};
use super::recipe::Skew;
use super::skew::inclusion;
use crate::checkpoint::hex;
use crate::file;

/// Version of the file.
const FORMAT_VERSION: u32 = 1;
/// A thousand layers take some 200 kB.
const MAX_BYTES: u64 = 16 << 20;
/// The file's name in a synthetic model's folder.
const FILE: &str = "routing.json";
/// Seed of token ids and of resident sets: every check of a model is the same check.
const SEED: u64 = 0x00a5_5a7e_57e5_eed0;

/// What a layer must keep for its routing to be called even.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Thresholds {
    /// Most that the hit rate of a random resident set may differ from its share of the experts.
    pub hit_rate_difference: f64,
    /// Least share of the experts that are used at all.
    pub experts_used: f64,
    /// Most that the top eighth's share of the routes may differ from a stated skew's.
    pub top_eighth_difference: f64,
    /// The chance of counting must be this many times smaller than the tolerance on hit rates.
    pub standard_errors: f64,
}

/// The thresholds that are used.
pub const THRESHOLDS: Thresholds =
    Thresholds { hit_rate_difference: 0.02, experts_used: 0.95, top_eighth_difference: 0.05, standard_errors: 3.0 };

/// Shares of the experts that are taken as resident.
const RESIDENT_SHARES: [f64; 3] = [0.25, 0.5, 0.75];

/// What came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Spread {
    /// Every layer keeps the thresholds of even routing.
    Even,
    /// Some layer does not.
    Skewed,
    /// Too few routes to tell.
    Undecided,
}

impl std::fmt::Display for Spread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Even => "EVEN",
            Self::Skewed => "SKEWED",
            Self::Undecided => "UNDECIDED",
        })
    }
}

/// One MoE layer's routes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerRouting {
    /// Its number among the MoE layers.
    pub moe_layer: usize,
    /// Routes counted.
    pub routes: u64,
    /// Experts used at least once.
    pub experts_used: usize,
    /// Experts.
    pub num_experts: usize,
    /// Share of the routes that go to the most used eighth of the experts.
    pub top_eighth: f64,
    /// Entropy of the routes over that of even ones: 1 for even routing.
    pub entropy: f64,
    /// Standard deviation of an expert's share of the routes over its mean.
    pub variation: f64,
    /// Largest difference between hit rate and share, over random resident sets of a quarter, a half and three quarters.
    pub hit_rate_difference: f64,
}

impl LayerRouting {
    /// Of one layer's counts.
    fn new(moe_layer: usize, counts: &[u64]) -> Self {
        let routes: u64 = counts.iter().sum();
        let (experts, total) = (counts.len().max(1) as f64, routes.max(1) as f64);
        let shares: Vec<f64> = counts.iter().map(|&count| count as f64 / total).collect();
        let mut sorted = counts.to_vec();
        sorted.sort_unstable_by(|a, b| b.cmp(a));
        let most_used: u64 = sorted.iter().take(top_eighth(counts.len())).sum();
        let entropy: f64 = shares.iter().filter(|&&share| share > 0.0).map(|share| -share * share.ln()).sum();
        let variance = shares.iter().map(|share| (share * experts - 1.0).powi(2)).sum::<f64>() / experts;
        Self {
            moe_layer,
            routes,
            experts_used: counts.iter().filter(|&&count| count > 0).count(),
            num_experts: counts.len(),
            top_eighth: most_used as f64 / total,
            entropy: if counts.len() > 1 { entropy / experts.ln() } else { 1.0 },
            variation: variance.sqrt(),
            hit_rate_difference: hit_rate_difference(moe_layer, &shares),
        }
    }

    /// Standard deviation of the hit rate of half of the experts that counting alone gives even routes.
    fn standard_error(&self, top_k: usize) -> f64 {
        let experts = self.num_experts as f64;
        let without_repetition = (experts - top_k as f64).max(0.0) / (experts - 1.0).max(1.0);
        (0.25 / self.routes.max(1) as f64 * without_repetition).sqrt()
    }
}

/// Experts in an eighth.
fn top_eighth(num_experts: usize) -> usize {
    num_experts.div_ceil(8)
}

fn hit_rate_difference(moe_layer: usize, shares: &[f64]) -> f64 {
    let stream = Stream::of_layer(SEED, moe_layer, Name::Popularity);
    let mut order: Vec<usize> = (0..shares.len()).collect();
    order.sort_by_key(|&expert| stream.word(expert as u64));
    let difference = |resident_share: f64| {
        let resident = (shares.len() as f64 * resident_share).round() as usize;
        let hits: f64 = order[..resident].iter().map(|&expert| shares[expert]).sum();
        (hits - resident as f64 / shares.len().max(1) as f64).abs()
    };
    RESIDENT_SHARES.into_iter().map(difference).fold(0.0, f64::max)
}

/// Random token ids below `vocab_size`, those of prompt `index` of a check.
pub fn random_ids(index: usize, tokens: usize, vocab_size: usize) -> Vec<u32> {
    let stream = Stream::of_model(SEED, Name::Embedding).inner(index);
    // A vocabulary fits u32, and so does what is below it.
    (0..tokens as u64).map(|place| (stream.unit(place) * vocab_size as f64) as u32).collect()
}

/// A check of a synthetic model's routing, as a file in its folder.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RoutingCheck {
    /// Version of this format.
    pub format_version: u32,
    /// SHA-256 over the checkpoint's files.
    pub checkpoint_sha256: String,
    /// What the model was made for: `even`, or a skew.
    pub stated: String,
    /// Tokens that were prefilled.
    pub prefill_tokens: u64,
    /// Tokens that were decoded greedily after the last prompt.
    pub decode_tokens: u64,
    /// Different ids among them.
    pub decode_distinct: u64,
    /// What was demanded.
    pub thresholds: Thresholds,
    /// The layers.
    pub layers: Vec<LayerRouting>,
    /// Whether routing is even.
    pub spread: Spread,
    /// Whether it is what the recipe states; absent where that cannot be told.
    pub as_stated: Option<bool>,
    /// Why.
    pub reason: String,
    /// SHA-256 of this object's JSON with this field empty.
    pub sha256: String,
}

/// What a check was made on.
#[derive(Debug, Clone, PartialEq)]
pub struct Counted {
    /// SHA-256 over the checkpoint's files.
    pub checkpoint_sha256: String,
    /// What the recipe states.
    pub skew: Skew,
    /// Experts chosen for each token.
    pub top_k: usize,
    /// Tokens that were prefilled.
    pub prefill_tokens: u64,
    /// Routes of prefill, `[moe layer][expert]`.
    pub counts: Vec<Vec<u64>>,
    /// Ids that were decoded greedily.
    pub decoded: Vec<u32>,
}

impl RoutingCheck {
    /// Judges counts.
    pub fn new(counted: &Counted) -> Self {
        let layers: Vec<LayerRouting> =
            counted.counts.iter().enumerate().map(|(layer, counts)| LayerRouting::new(layer, counts)).collect();
        let (spread, mut reason) = spread(&layers, counted.top_k);
        let as_stated = match counted.skew {
            Skew::Even => match spread {
                Spread::Even => Some(true),
                Spread::Skewed => Some(false),
                Spread::Undecided => None,
            },
            Skew::Zipf(exponent) => {
                let (holds, why) = follows(&layers, exponent, counted.top_k);
                reason = why;
                Some(holds)
            }
        };
        let distinct: std::collections::HashSet<u32> = counted.decoded.iter().copied().collect();
        let mut check = Self {
            format_version: FORMAT_VERSION,
            checkpoint_sha256: counted.checkpoint_sha256.clone(),
            stated: counted.skew.to_string(),
            prefill_tokens: counted.prefill_tokens,
            decode_tokens: counted.decoded.len() as u64,
            decode_distinct: distinct.len() as u64,
            thresholds: THRESHOLDS,
            layers,
            spread,
            as_stated,
            reason,
            sha256: String::new(),
        };
        check.sha256 = check.checksum();
        check
    }

    fn checksum(&self) -> String {
        let body = Self { sha256: String::new(), ..self.clone() };
        // Strings, integers and finite numbers always serialise; an empty body would only fail the comparison.
        hex(&Sha256::digest(serde_json::to_vec(&body).unwrap_or_default()))
    }

    /// Where the check of a model lies.
    pub fn path(dir: &Path) -> PathBuf {
        dir.join(FILE)
    }

    /// Writes the file through a temporary one.
    ///
    /// # Errors
    /// The system's.
    pub fn save(&self, dir: &Path) -> Result<PathBuf, SynthError> {
        let path = Self::path(dir);
        let temporary = dir.join(format!(".{FILE}.tmp"));
        let json = serde_json::to_vec_pretty(self).map_err(std::io::Error::other);
        let write = |json: Vec<u8>| {
            let mut file = fs::File::create(&temporary)?;
            file.write_all(&json).and_then(|()| file.sync_all())?;
            fs::rename(&temporary, &path)
        };
        json.and_then(write).map_err(SynthError::io("write", &path))?;
        Ok(path)
    }

    /// Reads the check of a model and insists that it is of this checkpoint.
    ///
    /// # Errors
    /// A file that is missing, damaged, or another checkpoint's.
    pub fn load(dir: &Path, checkpoint_sha256: &str) -> Result<Self, SynthError> {
        let path = Self::path(dir);
        let malformed = |found: String, expected: &str| SynthError::Malformed {
            path: path.clone(),
            found,
            expected: expected.to_owned(),
        };
        let bytes = file::read(&path, MAX_BYTES)?;
        let check: Self =
            serde_json::from_slice(&bytes).map_err(|error| malformed(error.to_string(), "a check of routing"))?;
        if check.format_version != FORMAT_VERSION {
            let found = format!("format version {}", check.format_version);
            return Err(malformed(found, &format!("{FORMAT_VERSION}: check it again with `assay synth check`")));
        }
        let checksum = check.checksum();
        if checksum != check.sha256 {
            return Err(malformed(format!("sha256 {checksum}"), &check.sha256));
        }
        if check.checkpoint_sha256 != checkpoint_sha256 {
            return Err(malformed(format!("a check of checkpoint {}", check.checkpoint_sha256), checkpoint_sha256));
        }
        Ok(check)
    }
}

/// Whether the layers' routing is even, and the reason.
fn spread(layers: &[LayerRouting], top_k: usize) -> (Spread, String) {
    let Thresholds { hit_rate_difference, experts_used, standard_errors, .. } = THRESHOLDS;
    let mut undecided = None;
    for layer in layers {
        let name = format!("layer {} among those with experts", layer.moe_layer);
        let chance = standard_errors * layer.standard_error(top_k);
        let used = layer.experts_used as f64 / layer.num_experts.max(1) as f64;
        let enough = chance <= hit_rate_difference;
        let difference = layer.hit_rate_difference;
        // What is far outside is skewed however few routes there are.
        if difference > hit_rate_difference + if enough { 0.0 } else { chance } {
            let reason = format!("{name}: hit rate and share differ by {difference:.4}, at most {hit_rate_difference}");
            return (Spread::Skewed, reason);
        }
        if enough && used < experts_used {
            let (used, experts) = (layer.experts_used, layer.num_experts);
            return (Spread::Skewed, format!("{name}: {used} of {experts} experts used"));
        }
        if !enough {
            undecided.get_or_insert_with(|| {
                let needed = (layer.routes as f64 * (chance / hit_rate_difference).powi(2)).ceil();
                format!("{name}: {} routes, {needed} are needed to tell", layer.routes)
            });
        }
    }
    match undecided {
        Some(reason) => (Spread::Undecided, reason),
        None if layers.is_empty() => (Spread::Undecided, "no layer has experts".to_owned()),
        None => {
            let worst = layers.iter().map(|layer| layer.hit_rate_difference).fold(0.0, f64::max);
            (Spread::Even, format!("hit rate and share differ by at most {worst:.4} in {} layers", layers.len()))
        }
    }
}

/// Whether the top eighth of every layer gets what a Zipf law gives it.
fn follows(layers: &[LayerRouting], exponent: f64, top_k: usize) -> (bool, String) {
    let mut worst = (0.0, String::new());
    for layer in layers {
        let shares = inclusion(exponent, layer.num_experts, top_k);
        let stated: f64 = shares.iter().take(top_eighth(layer.num_experts)).sum::<f64>() / top_k.max(1) as f64;
        let difference = (layer.top_eighth - stated).abs();
        if difference >= worst.0 {
            let reason = format!(
                "layer {}: the top eighth of the experts gets {:.3} of the routes, stated {stated:.3}",
                layer.moe_layer, layer.top_eighth
            );
            worst = (difference, reason);
        }
    }
    (worst.0 <= THRESHOLDS.top_eighth_difference, worst.1)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn check(counts: Vec<u64>, skew: Skew, top_k: usize) -> RoutingCheck {
        RoutingCheck::new(&Counted {
            checkpoint_sha256: "ab".into(),
            skew,
            top_k,
            prefill_tokens: 1,
            counts: vec![counts],
            decoded: vec![1, 2, 1],
        })
    }

    #[test]
    fn known_counts_are_judged() {
        let even = check(vec![500; 64], Skew::Even, 4);
        assert_eq!((even.spread, even.as_stated), (Spread::Even, Some(true)));
        assert!((even.layers[0].entropy - 1.0).abs() < 1e-12 && even.layers[0].variation == 0.0);
        assert!((even.layers[0].top_eighth - 0.125).abs() < 1e-12);
        assert_eq!((even.decode_tokens, even.decode_distinct), (3, 2));

        // Ten experts do all the work.
        let mut counts = vec![0; 128];
        counts[..10].fill(1600);
        let collapsed = check(counts, Skew::Even, 8);
        assert_eq!((collapsed.spread, collapsed.as_stated), (Spread::Skewed, Some(false)));
        assert_eq!((collapsed.layers[0].experts_used, collapsed.layers[0].top_eighth), (10, 1.0));

        // A hit rate that is right by luck does not hide experts that nobody uses.
        let mut counts = vec![1000; 64];
        counts.iter_mut().step_by(9).for_each(|count| *count = 0);
        assert_eq!(check(counts, Skew::Even, 4).spread, Spread::Skewed);

        let few = check(vec![5; 64], Skew::Even, 4);
        assert_eq!((few.spread, few.as_stated), (Spread::Undecided, None));
        assert!(few.reason.contains("320 routes, 53"), "{}", few.reason);
    }

    #[test]
    fn a_stated_skew_is_compared_with_its_law() {
        let counts = |exponent: f64| -> Vec<u64> {
            inclusion(exponent, 64, 4).iter().map(|share| (share * 4000.0) as u64).collect()
        };
        assert_eq!(check(counts(1.0), Skew::Zipf(1.0), 4).as_stated, Some(true));
        assert_eq!(check(counts(1.0), Skew::Zipf(0.3), 4).as_stated, Some(false));
        assert_eq!(check(counts(1.0), Skew::Even, 4).as_stated, Some(false));
        assert_eq!(check(counts(1.0), Skew::Zipf(1.0), 4).spread, Spread::Skewed);
    }

    #[test]
    fn a_file_is_bound_to_its_checkpoint() {
        let folder = tempfile::tempdir().unwrap();
        let written = check(vec![500; 64], Skew::Even, 4);
        let path = written.save(folder.path()).unwrap();
        assert_eq!(RoutingCheck::load(folder.path(), "ab").unwrap(), written);
        let other = RoutingCheck::load(folder.path(), "cd").unwrap_err().to_string();
        assert!(other.contains("a check of checkpoint ab, expected cd"), "{other}");
        let text = fs::read_to_string(&path).unwrap();
        let error = |text: String| {
            fs::write(&path, text).unwrap();
            RoutingCheck::load(folder.path(), "ab").unwrap_err().to_string()
        };
        assert!(error(text.replace("\"EVEN\"", "\"SKEWED\"")).contains("sha256"));
        assert!(error(text.replace("\"format_version\": 1", "\"format_version\": 2")).contains("format version 2"));
        assert!(error(text[..40].to_owned()).contains("a check of routing"));
        fs::remove_file(&path).unwrap();
        assert!(RoutingCheck::load(folder.path(), "ab").unwrap_err().to_string().contains("routing.json"));
    }

    #[test]
    fn random_ids_are_in_the_vocabulary_and_spread() {
        let ids = random_ids(3, 2000, 1000);
        assert!(ids.iter().all(|&id| id < 1000));
        let distinct: std::collections::HashSet<_> = ids.iter().collect();
        assert!(distinct.len() > 800, "{}", distinct.len());
        assert_ne!(ids, random_ids(4, 2000, 1000));
    }
}
