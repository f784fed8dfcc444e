//! gpt-oss (`GptOssForCausalLM`): a sink on every head, windows on some layers, biases throughout; the weights of the chosen
//! experts are a softmax over them; experts are clamped, gate and up interleaved, all of a layer in a few tensors: BF16
//! as transformers writes them, or MXFP4 as they are published.

use assay_kernels::{Activation, Routing, Scoring};

use super::common::{self, Sizes};
use super::limits;
use crate::model::config::Config;
use crate::model::error::ModelError;
use crate::model::names::{linear, part, tensor};
use crate::model::rope_config::{self, MAX_POSITIONS};
use crate::model::spec::{AttentionSpec, FfnSpec, LinearSource, MlpSpec, ModelSpec, MoeSpec, TensorSource};

/// Factor inside the sigmoid where the config has none.
const SWIGLU_ALPHA: f32 = 1.702;
/// The clamp where the config has none.
const SWIGLU_LIMIT: f32 = 7.0;
/// Values in a block of MXFP4.
const MXFP4_BLOCK: usize = 32;

/// Builds the model that a `config.json` describes.
pub(in crate::model) fn build(config: &Config<'_>) -> Result<ModelSpec, ModelError> {
    common::refuse_other_arithmetic(config)?;
    let sizes = Sizes::read(config)?;
    let rope = rope_config::read(config, sizes.max_position_embeddings)?;
    let bias = config.bool_or("attention_bias", true)?;
    let windows = windows(config, sizes.num_hidden_layers)?;
    let (num_experts, num_experts_per_tok) = common::experts(config, &["num_local_experts", "num_experts"], &sizes)?;
    // The publisher's config has it twice.
    config.any_usize(&["num_experts_per_tok", "experts_per_token"], 1..=num_experts)?;
    let experts = Experts::read(config, &sizes, num_experts)?;
    let routing = Routing { scoring: Scoring::SoftmaxOfChosen, ..Routing::softmax(false) };
    common::decoder(config, "gpt_oss", &sizes, |prefix, index| {
        let name = format!("{prefix}.self_attn");
        let attention = AttentionSpec {
            sliding_window: windows[index],
            sinks: Some(tensor(format!("{name}.sinks"), &[sizes.num_attention_heads])),
            ..common::attention(&name, &sizes, [bias; 2], rope.clone())
        };
        let prefix = format!("{prefix}.mlp");
        let ffn = FfnSpec::Moe(MoeSpec {
            num_experts_per_tok,
            routing,
            router: linear(&format!("{prefix}.router"), num_experts, sizes.hidden_size, true),
            correction_bias: None,
            experts: (0..num_experts).map(|expert| experts.expert(&prefix, expert)).collect(),
            shared: None,
        });
        Ok((attention, ffn))
    })
}

/// Each layer's window. Without `layer_types` they alternate, a window first.
fn windows(config: &Config<'_>, layers: usize) -> Result<Vec<Option<usize>>, ModelError> {
    const FIELD: &str = "layer_types";
    let types = config
        .optional_strs(FIELD)?
        .unwrap_or_else(|| ["sliding_attention", "full_attention"].into_iter().cycle().take(layers).collect());
    if types.len() != layers {
        return Err(config.wrong(
            FIELD,
            format!("a list of {}", types.len()),
            format!("one for each of {layers} layers"),
        ));
    }
    let window = |kind: &str| match kind {
        "sliding_attention" => config.usize("sliding_window", 1..=MAX_POSITIONS).map(Some),
        "full_attention" => Ok(None),
        _ => Err(config.wrong(FIELD, kind, "sliding_attention or full_attention")),
    };
    types.into_iter().map(window).collect()
}

/// How a layer's experts lie in the checkpoint.
struct Experts {
    num_experts: usize,
    hidden_size: usize,
    width: usize,
    mxfp4: bool,
    activation: Activation,
}

impl Experts {
    fn read(config: &Config<'_>, sizes: &Sizes, num_experts: usize) -> Result<Self, ModelError> {
        let mxfp4 = match config.object("quantization_config")? {
            None => false,
            Some(quantization) => {
                let method = quantization.optional_str("quant_method")?;
                quantization.require(method == Some("mxfp4"), "quant_method", "mxfp4, or no quantization_config")?;
                true
            }
        };
        let hidden_size = sizes.hidden_size;
        let width = config.usize("intermediate_size", 1..=limits::WIDTH)?;
        for (field, size) in [("hidden_size", hidden_size), ("intermediate_size", width)] {
            if mxfp4 && !size.is_multiple_of(MXFP4_BLOCK) {
                return Err(config.wrong(field, size, format!("a multiple of MXFP4's block, {MXFP4_BLOCK}")));
            }
        }
        let activation = Activation::ClampedSwiGlu {
            alpha: common::positive_f32(config, "swiglu_alpha", SWIGLU_ALPHA)?,
            limit: common::positive_f32(config, "swiglu_limit", SWIGLU_LIMIT)?,
        };
        Ok(Self { num_experts, hidden_size, width, mxfp4, activation })
    }

    fn expert(&self, prefix: &str, expert: usize) -> MlpSpec {
        let gate_up = |odd| self.projection(&format!("{prefix}.experts.gate_up_proj"), expert, (2, odd));
        MlpSpec {
            intermediate_size: self.width,
            gate_proj: gate_up(0),
            up_proj: gate_up(1),
            down_proj: self.projection(&format!("{prefix}.experts.down_proj"), expert, (1, 0)),
            activation: self.activation,
        }
    }

    /// One expert's gate, up (every `step`th output from `first`) or down (every output).
    fn projection(&self, name: &str, expert: usize, (step, first): (usize, usize)) -> LinearSource {
        let (rows, cols) = if step == 2 { (self.width, self.hidden_size) } else { (self.hidden_size, self.width) };
        let outputs = step * rows;
        let bias_shape = [self.num_experts, outputs];
        let bias = part(format!("{name}_bias"), &[rows], &bias_shape, expert * outputs + first, [outputs, step]);
        LinearSource { weight: self.weight(name, expert, [rows, cols], (step, first)), bias: Some(bias) }
    }

    fn weight(
        &self,
        name: &str,
        expert: usize,
        [rows, cols]: [usize; 2],
        (step, first): (usize, usize),
    ) -> TensorSource {
        let outputs = step * rows;
        let start = expert * outputs * cols;
        if !self.mxfp4 {
            // Inputs by outputs.
            let file = [self.num_experts, cols, outputs];
            return part(name, &[rows, cols], &file, start + first, [step, outputs]);
        }
        let file = [self.num_experts, outputs, cols];
        let blocks = format!("{name}_blocks");
        let mut source = part(blocks, &[rows, cols], &file, start + first * cols, [step * cols, 1]);
        if let Some(part) = &mut source.part {
            part.mxfp4_scales = Some(format!("{name}_scales"));
        }
        source
    }
}
