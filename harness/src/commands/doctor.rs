//! `assay doctor`: what this machine can run, what is missing, and how to get it.

use crate::exit::Exit;
use crate::output::{Answer, Format, Table};
use crate::repository::Repository;
use assay_engine::device::cuda::{self, Health};
use clap::Args;
use serde::Serialize;

const EXAMPLES: &str = "\
Examples:
  assay doctor
  assay doctor --output json";

/// Say what this machine can run, what is missing, and how to get it.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Doctor {}

/// One thing that was looked at.
#[derive(Debug, Serialize)]
struct Finding {
    what: &'static str,
    found: String,
    /// What to do, where something is missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    advice: Option<String>,
}

impl Doctor {
    /// Whatever it finds, looking succeeded: a machine without a GPU runs the host device.
    pub(super) fn run(self, format: Format) -> anyhow::Result<Exit> {
        let health = cuda::health();
        let findings: Vec<Finding> = host().into_iter().chain(gpu(&health)).collect();
        let json = serde_json::json!({ "findings": findings, "cuda": health });
        let mut table = Table::new("This machine", &["what", "found"]);
        for finding in &findings {
            table.row([finding.what.to_owned(), finding.found.clone()]);
        }
        let mut answer = Answer::new(&json)?.table(table);
        for finding in findings.iter().filter(|finding| finding.advice.is_some()) {
            answer = answer.line(format!("{}: {}", finding.what, finding.advice.as_deref().unwrap_or_default()));
        }
        answer.print(format)?;
        Ok(Exit::DONE)
    }
}

fn host() -> Vec<Finding> {
    let level = assay_kernels::simd::Level::current().name();
    let repository = Repository::find();
    vec![
        Finding {
            what: "host device",
            found: format!("{} threads, {level}", rayon::current_num_threads()),
            advice: None,
        },
        Finding {
            what: "repository",
            found: repository.as_ref().map_or("not found".to_owned(), |_| "found".to_owned()),
            advice: repository.err().map(|error| error.to_string()),
        },
    ]
}

fn gpu(health: &Health) -> Vec<Finding> {
    let kernels = match (health.fat_binary, health.nvrtc) {
        (true, _) => "machine code in this binary".to_owned(),
        (false, true) => "compiled by NVRTC when a device is opened".to_owned(),
        (false, false) => "no machine code, no NVRTC".to_owned(),
    };
    let missing = !health.fat_binary && !health.nvrtc;
    let nvcc = "build with nvcc on the path (ASSAY_NVCC names another), or install NVRTC: both come with CUDA's toolkit and \
                from PyPI (nvidia-cuda-nvcc, nvidia-cuda-nvrtc)";
    let driver = "the cuda device needs the NVIDIA driver (libcuda.so.1); the host device works without";
    let mut findings = vec![
        Finding {
            what: "NVIDIA driver",
            found: if health.driver { "found".to_owned() } else { "not found".to_owned() },
            advice: (!health.driver).then(|| driver.to_owned()),
        },
        Finding { what: "CUDA kernels", found: kernels, advice: missing.then(|| nvcc.to_owned()) },
    ];
    for device in &health.devices {
        let free = device.free_bytes.map_or("unknown".to_owned(), |bytes| crate::config::ByteSize(bytes).to_string());
        findings.push(Finding {
            what: "GPU",
            found: format!("{}, {free} free", device.description.name),
            advice: None,
        });
    }
    if let Some(error) = &health.error {
        findings.push(Finding { what: "GPU", found: "cannot be used".to_owned(), advice: Some(error.clone()) });
    }
    findings
}
