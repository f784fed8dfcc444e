//! `assay roofline`: what the card allows.

use crate::exit::Exit;
use crate::output::{Answer, Format, Table};
use assay_engine::device::cuda::roofline::{Roofline, measure};
use clap::Args;

const EXAMPLES: &str = "\
Examples:
  assay roofline
  assay roofline --output json";

/// Measure what the first NVIDIA GPU allows: memory, link, matrix product, launches.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct RooflineCommand {}

impl RooflineCommand {
    pub(super) fn run(self, format: Format) -> anyhow::Result<Exit> {
        let roofline = measure(0)?;
        let Roofline { device, driver, cuda, .. } = &roofline;
        let title = format!("{device}, driver {driver}, CUDA {cuda}");
        let mut ceilings = Table::new(title, &["what", "#measured", "unit"]);
        let product =
            roofline.bf16_product_tflop_s.map_or("not run: no cuBLAS".to_owned(), |rate| format!("{rate:.0}"));
        for (what, value, unit) in [
            ("device memory, read", format!("{:.0}", roofline.memory_read_gb_s), "GB/s"),
            ("BF16 product 8192³", product, "TFLOP/s"),
            ("kernel launch", format!("{:.2}", roofline.launch_us), "µs"),
            ("graph node", format!("{:.2}", roofline.graph_node_us), "µs"),
            ("kernel, 64 bytes back, wait", format!("{:.2}", roofline.round_trip_us), "µs"),
        ] {
            ceilings.row([what.to_owned(), value, unit.to_owned()]);
        }
        let mut link = Table::new("Host to device, GB/s", &["#MiB", "#copy engine", "#multiprocessors"]);
        for rate in &roofline.link {
            let mib = rate.bytes as f64 / f64::from(1 << 20);
            let rates = [rate.copy_engine_gb_s, rate.multiprocessors_gb_s].map(|rate| format!("{rate:.1}"));
            link.row([format!("{mib}")].into_iter().chain(rates));
        }
        Answer::new(&roofline)?.table(ceilings).table(link).print(format)?;
        Ok(Exit::DONE)
    }
}
