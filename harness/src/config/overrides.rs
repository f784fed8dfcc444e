//! Flags that replace fields of a config for one run.

use super::{
    ByteSize, ConfigError, Device, KvFormat, LoadedConfig, Policy, PrefillArithmetic, Quantization, WeightFormat,
};
use crate::repository::Repository;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use std::ffi::OsString;
use std::path::PathBuf;

/// The config argument of a command and the flags that change it. What runs, and what its identity says, is the
/// result.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Config")]
pub struct ConfigArgs {
    /// Short name of a config in suites/configs, or a path to a TOML file
    #[arg(value_name = "CONFIG")]
    pub name: String,
    #[command(flatten)]
    flags: ConfigFlags,
}

/// The flags alone, for a command whose config is not its only positional argument.
#[derive(Debug, Clone, Default, PartialEq, Args)]
#[command(next_help_heading = "Config")]
pub struct ConfigFlags {
    /// Where it runs
    #[arg(long, value_enum, value_name = "DEVICE")]
    device: Option<Device>,
    /// Arithmetic of prefill
    #[arg(long, value_enum, value_name = "ARITHMETIC")]
    prefill: Option<PrefillArithmetic>,
    /// Device memory budget, as 20MiB or a number of bytes
    #[arg(long, value_name = "SIZE")]
    vram: Option<ByteSize>,
    /// Device memory kept free of experts
    #[arg(long, value_name = "SIZE")]
    margin: Option<ByteSize>,
    /// Format of the routed experts
    #[arg(long, value_enum, value_name = "FORMAT")]
    experts: Option<WeightFormat>,
    /// How the scales of INT4 experts are found
    #[arg(long, value_enum, value_name = "METHOD")]
    expert_quantization: Option<Quantization>,
    /// Format of keys and values
    #[arg(long, value_enum, value_name = "FORMAT")]
    kv: Option<KvFormat>,
    /// Longest sequence, in tokens
    #[arg(long, value_name = "TOKENS")]
    context: Option<usize>,
    /// Largest prefill chunk, in tokens
    #[arg(long, value_name = "TOKENS")]
    max_chunk: Option<usize>,
    /// Residency policy
    #[arg(long, value_parser = policy_parser(), value_name = "POLICY")]
    policy: Option<Policy>,
    /// Heatmap file
    #[arg(long, value_name = "FILE")]
    heatmap: Option<PathBuf>,
    /// No heatmap: the config's is of another precision, say
    #[arg(long, conflicts_with = "heatmap")]
    no_heatmap: bool,
    /// Most experts promoted between two tokens
    #[arg(long, value_name = "N")]
    max_promotions_per_token: Option<usize>,
    /// Make every kernel of the host device slower by this share of its time, to see whether that is found
    #[arg(long, value_name = "SHARE", hide = true, value_parser = share)]
    planted_slowdown: Option<f64>,
    /// Largest share of the experts on the device, 0 to 1, whatever room there is
    #[arg(long, value_name = "SHARE")]
    max_resident_share: Option<f64>,
    /// Most threads of the host that compute cold experts for a GPU, where that is faster; 0 for none
    #[arg(long, value_name = "N")]
    host_threads: Option<usize>,
}

/// A share that slows a kernel down and does not stop it.
fn share(text: &str) -> Result<f64, String> {
    let share: f64 = text.parse().map_err(|error| format!("{error}"))?;
    if share > 0.0 && share <= 1.0 { Ok(share) } else { Err("expected a share above 0, up to 1".to_owned()) }
}

impl ConfigArgs {
    /// The config `name` as it is, without any flag.
    pub fn named(name: impl Into<String>) -> Self {
        ConfigArgs { name: name.into(), ..ConfigArgs::default() }
    }

    /// The config `name` with `flags`.
    pub fn new(name: impl Into<String>, flags: ConfigFlags) -> Self {
        ConfigArgs { name: name.into(), flags }
    }

    /// Reads the config, applies the flags and checks the result.
    ///
    /// # Errors
    /// When there is no such config, it cannot be read, or its fields do not go together.
    pub fn load(&self, repository: &Repository) -> Result<LoadedConfig, ConfigError> {
        let mut loaded = LoadedConfig::read(&self.name, repository)?;
        self.flags.apply(&mut loaded);
        loaded.check()
    }
}

impl ConfigArgs {
    /// As they are typed: for a process that is to run the same.
    pub fn to_args(&self) -> Vec<OsString> {
        let flags = &self.flags;
        let size = |size: ByteSize| size.0.to_string();
        let named = [
            ("--device", value_name(flags.device)),
            ("--prefill", value_name(flags.prefill)),
            ("--vram", flags.vram.map(size)),
            ("--margin", flags.margin.map(size)),
            ("--experts", value_name(flags.experts)),
            ("--expert-quantization", value_name(flags.expert_quantization)),
            ("--kv", value_name(flags.kv)),
            ("--context", flags.context.map(|tokens| tokens.to_string())),
            ("--max-chunk", flags.max_chunk.map(|tokens| tokens.to_string())),
            ("--policy", flags.policy.map(|policy| policy.name().to_owned())),
            ("--max-promotions-per-token", flags.max_promotions_per_token.map(|most| most.to_string())),
            ("--max-resident-share", flags.max_resident_share.map(|share| share.to_string())),
            ("--host-threads", flags.host_threads.map(|threads| threads.to_string())),
            ("--planted-slowdown", flags.planted_slowdown.map(|share| share.to_string())),
        ];
        let mut args = vec![OsString::from(&self.name)];
        for (flag, value) in named {
            args.extend(value.into_iter().flat_map(|value| [OsString::from(flag), OsString::from(value)]));
        }
        args.extend(flags.no_heatmap.then(|| OsString::from("--no-heatmap")));
        // A path need not be text.
        args.extend(flags.heatmap.iter().flat_map(|path| [OsString::from("--heatmap"), path.clone().into_os_string()]));
        args
    }
}

/// A choice as it is typed.
fn value_name<T: ValueEnum>(choice: Option<T>) -> Option<String> {
    Some(choice?.to_possible_value()?.get_name().to_owned())
}

impl ConfigFlags {
    fn apply(&self, loaded: &mut LoadedConfig) {
        let config = &mut loaded.config;
        replace(&mut config.device, self.device);
        // A modelled link means nothing where the flag has brought a real one.
        if self.device == Some(Device::Cuda) {
            config.link = None;
        }
        replace(&mut config.precision.prefill, self.prefill);
        replace(&mut config.memory.vram, self.vram);
        replace(&mut config.memory.margin, self.margin);
        replace(&mut config.precision.experts, self.experts);
        // A method for scales means nothing where the flag has taken the choice away.
        if self.experts.is_some_and(|experts| experts != WeightFormat::Int4) {
            config.precision.expert_quantization = None;
        }
        if self.expert_quantization.is_some() {
            config.precision.expert_quantization = self.expert_quantization;
        }
        replace(&mut config.precision.kv, self.kv);
        replace(&mut config.context.tokens, self.context);
        replace(&mut config.context.max_chunk, self.max_chunk);
        replace(&mut config.residency.policy, self.policy);
        replace(&mut config.residency.max_promotions_per_token, self.max_promotions_per_token);
        config.planted_slowdown = self.planted_slowdown.or(config.planted_slowdown);
        replace(&mut config.residency.max_resident_share, self.max_resident_share);
        config.residency.host_threads = self.host_threads.or(config.residency.host_threads);
        if self.no_heatmap {
            config.residency.heatmap = None;
        }
        // A flag's path is the user's, from the current folder; a config's is from the repository's root.
        if let Some(path) = &self.heatmap {
            config.residency.heatmap = Some(std::path::absolute(path).unwrap_or_else(|_| path.clone()));
        }
    }
}

fn replace<T: Copy>(field: &mut T, flag: Option<T>) {
    *field = flag.unwrap_or(*field);
}

/// The engine's policies by their names.
fn policy_parser() -> impl TypedValueParser<Value = Policy> {
    PossibleValuesParser::new(Policy::ALL.map(Policy::name))
        .map(|name| Policy::ALL.into_iter().find(|kind| kind.name() == name).unwrap_or_default())
}
