//! `assay roofline`: what the card allows.

use crate::evidence::{RunLog, open_ledger, record};
use crate::exit::Exit;
use crate::output::{Answer, Format, Table};
use crate::repository::Repository;
use assay_engine::device::cuda::roofline::{Roofline, measure};
use assay_ledgers::{Draft, EvidenceClass, LinkRate, RooflineBody};
use clap::Args;

const EXAMPLES: &str = "\
Examples:
  assay roofline
  assay roofline --output json";

/// Measure what the first NVIDIA GPU allows: memory, link, matrix product, launches.
///
/// The record is what reports take the limit of older speed records of the same
/// card from; a benchmark on a card measures it anew, before its engine starts.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct RooflineCommand {
    /// Print it and keep no record
    #[arg(long)]
    no_record: bool,
}

impl RooflineCommand {
    pub(super) fn run(self, format: Format) -> anyhow::Result<Exit> {
        let ledger = if self.no_record { None } else { Some(open_ledger(&Repository::find()?)?) };
        let roofline = body(measure(0)?);
        let mut answer = Answer::new(&roofline)?.table(ceilings(&roofline)).table(link(&roofline));
        if let Some(ledger) = ledger {
            let mut log = RunLog::default();
            log.line(&roofline);
            let draft = Draft::without_identity(EvidenceClass::MeasuredPlanning, roofline);
            let evidence = record(&ledger, draft, Vec::new(), &log)?;
            answer = answer.with("evidence", &evidence)?.line(format!("record {}", evidence.short()));
        }
        answer.print(format)?;
        Ok(Exit::DONE)
    }
}

fn body(roofline: Roofline) -> RooflineBody {
    RooflineBody {
        device: roofline.device,
        driver: roofline.driver,
        cuda: roofline.cuda,
        memory_read_bytes_per_s: 1e9 * roofline.memory_read_gb_s,
        link: roofline
            .link
            .iter()
            .map(|link| LinkRate {
                copy_bytes: link.bytes,
                copy_engine_bytes_per_s: 1e9 * link.copy_engine_gb_s,
                multiprocessors_bytes_per_s: 1e9 * link.multiprocessors_gb_s,
            })
            .collect(),
        bf16_product_flop_per_s: roofline.bf16_product_tflop_s.map(|rate| 1e12 * rate),
        launch_s: roofline.launch_us / 1e6,
        graph_node_s: roofline.graph_node_us / 1e6,
        round_trip_s: roofline.round_trip_us / 1e6,
    }
}

fn ceilings(roofline: &RooflineBody) -> Table {
    let RooflineBody { device, driver, cuda, .. } = roofline;
    let title = format!("{device}, driver {driver}, CUDA {cuda}");
    let mut table = Table::new(title, &["what", "#measured", "unit"]);
    let product =
        roofline.bf16_product_flop_per_s.map_or("not run: no cuBLAS".to_owned(), |rate| format!("{:.0}", rate / 1e12));
    for (what, value, unit) in [
        ("device memory, read", format!("{:.0}", roofline.memory_read_bytes_per_s / 1e9), "GB/s"),
        ("BF16 product 8192³", product, "TFLOP/s"),
        ("kernel launch", format!("{:.2}", roofline.launch_s * 1e6), "µs"),
        ("graph node", format!("{:.2}", roofline.graph_node_s * 1e6), "µs"),
        ("kernel, 64 bytes back, wait", format!("{:.2}", roofline.round_trip_s * 1e6), "µs"),
    ] {
        table.row([what.to_owned(), value, unit.to_owned()]);
    }
    table
}

fn link(roofline: &RooflineBody) -> Table {
    let mut table = Table::new("Host to device, GB/s", &["#MiB", "#copy engine", "#multiprocessors"]);
    for link in &roofline.link {
        let mib = link.copy_bytes as f64 / f64::from(1 << 20);
        let rates = [link.copy_engine_bytes_per_s, link.multiprocessors_bytes_per_s];
        table.row([format!("{mib}")].into_iter().chain(rates.map(|rate| format!("{:.1}", rate / 1e9))));
    }
    table
}
