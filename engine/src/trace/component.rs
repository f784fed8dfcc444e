//! What a launch is for.

/// Names for code and for files, in the order of a token's life.
macro_rules! components {
    ($($variant:ident = $name:literal),* $(,)?) => {
        /// What a launch computes, by the names of Hugging Face's checkpoints where they have one.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[allow(missing_docs)] // each is its name
        pub enum Component { $($variant),* }

        impl Component {
            /// Every component.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// The name in traces and on the command line.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),* }
            }
        }
    };
}

components! {
    EmbedTokens = "embed_tokens",
    EmbeddingMultiplier = "embedding_multiplier",
    InputLayernorm = "input_layernorm",
    QProj = "q_proj",
    KProj = "k_proj",
    VProj = "v_proj",
    QNormRope = "q_norm_rope",
    KNormRope = "k_norm_rope",
    KvAppend = "kv_append",
    Attention = "attention",
    OProj = "o_proj",
    AttentionResidual = "attention_residual",
    PostAttentionLayernorm = "post_attention_layernorm",
    Router = "router",
    RouterTopK = "router_topk",
    Routes = "routes",
    FetchExperts = "fetch_experts",
    Permute = "permute",
    ExpertsGateUp = "experts_gate_up",
    ExpertsDown = "experts_down",
    ExpertsCombine = "experts_combine",
    GateProj = "gate_proj",
    UpProj = "up_proj",
    ActFn = "act_fn",
    DownProj = "down_proj",
    SharedGateProj = "shared_expert.gate_proj",
    SharedUpProj = "shared_expert.up_proj",
    SharedActFn = "shared_expert.act_fn",
    SharedDownProj = "shared_expert.down_proj",
    SharedExpertGate = "shared_expert_gate",
    SharedExpertAdd = "shared_expert_add",
    FfnResidual = "ffn_residual",
    Norm = "norm",
    LmHead = "lm_head",
    LogitsMultiplier = "logits_multiplier",
    Logits = "logits",
    Argmax = "argmax",
    Sample = "sample",
}

impl Component {
    /// The component of that name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|component| component.name() == name)
    }
}
