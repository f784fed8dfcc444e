//! What one token takes of the device, whichever experts are resident: what a roofline's limit is taken of.

use assay_engine::EngineOptions;
use assay_engine::expert_cache::Encoding;
use assay_engine::memory::MemoryPlan;
use assay_engine::model::spec::{FfnSpec, LinearSource, MlpSpec, ModelSpec};
use assay_kernels::layout::matrix_bytes;
use assay_ledgers::TokenWork;

/// Sums over matrices; vectors are a thousandth of them.
#[derive(Default)]
struct Sum {
    bytes: u64,
    weights: u64,
}

impl Sum {
    fn matrix(&mut self, shape: &[usize], encoding: Encoding, times: u64) {
        let &[rows, cols] = shape else { return };
        self.bytes += times * matrix_bytes(encoding.format(), rows, cols).unwrap_or(0) as u64;
        self.weights += times * rows as u64 * cols as u64;
    }

    fn linear(&mut self, linear: &LinearSource, encoding: Encoding) {
        self.matrix(&linear.weight.shape, encoding, 1);
    }

    fn mlp(&mut self, mlp: &MlpSpec, encoding: Encoding, times: u64) {
        for linear in [&mlp.gate_proj, &mlp.up_proj, &mlp.down_proj] {
            self.matrix(&linear.weight.shape, encoding, times);
        }
    }
}

/// Of the model that runs so.
pub(super) fn token_work(spec: &ModelSpec, options: &EngineOptions, plan: &MemoryPlan) -> TokenWork {
    let precision = &options.precision;
    let mut sum = Sum::default();
    for layer in &spec.layers {
        let attention = &layer.attention;
        for linear in [&attention.q_proj, &attention.k_proj, &attention.v_proj, &attention.o_proj] {
            sum.linear(linear, precision.attention);
        }
        match &layer.ffn {
            FfnSpec::Dense(mlp) => sum.mlp(mlp, precision.dense, 1),
            FfnSpec::Moe(moe) => {
                sum.linear(&moe.router, Encoding::Bf16);
                if let Some(expert) = moe.experts.first() {
                    sum.mlp(expert, precision.experts, moe.num_experts_per_tok as u64);
                }
                if let Some(shared) = &moe.shared {
                    sum.mlp(&shared.mlp, precision.dense, 1);
                    shared.gate.iter().for_each(|gate| sum.linear(gate, Encoding::Bf16));
                }
            }
        }
    }
    let prefill_weights = sum.weights;
    sum.matrix(&spec.lm_head.shape, precision.head, 1);
    let expert_bytes = plan.bank.map_or(0, |bank| bank.expert.bytes as u64);
    TokenWork { decode_read_bytes: sum.bytes, prefill_weights, expert_bytes }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::config::ConfigArgs;
    use crate::repository::Repository;
    use crate::runtime::Opened;

    /// 4 layers of hidden size 256: 4 heads of 64, 2 of keys and values (196,608 weights), a router of 32 (8,192), 4 experts of
    /// 3 × 256 × 128 (393,216); a head of 4,096 tokens. BF16 throughout.
    #[test]
    fn tiny_moe_by_hand() {
        let repository = Repository::find().unwrap();
        let opened = Opened::new(ConfigArgs::named("tiny-moe-bf16").load(&repository).unwrap()).unwrap();
        let spec = &opened.folder.spec;
        let plan = MemoryPlan::new(spec, &opened.options).unwrap();
        let work = token_work(spec, &opened.options, &plan);
        let expected = TokenWork {
            decode_read_bytes: 2 * (2_392_064 + 4096 * 256),
            prefill_weights: 2_392_064,
            expert_bytes: 2 * 98_304,
        };
        assert_eq!(work, expected);
    }
}
