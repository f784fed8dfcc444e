//! From ledgers to published figures. Nobody types a number: a table is made of records, each row names the record it
//! comes from, and the block it stands in is regenerated and checked.
//!
//! Files: `select.rs` which records, `tables.rs` and `judged.rs` the tables, `work.rs` tasks beside fidelity, `limits.rs` what the machine would have allowed, `figures.rs` how numbers are printed, `blocks.rs` the
//! marked blocks of a document, `charts.rs` what each chart shows, `plot/` charts as SVG, `html.rs` the page.

mod blocks;
mod charts;
mod figures;
mod html;
mod judged;
mod limits;
mod plot;
mod select;
mod tables;
mod work;

pub use blocks::{BlockError, blocks_in, stale_blocks, typed_figures, update_between_markers};
pub use html::{PageError, page};
pub use judged::{comparison_table_markdown, verdict_table_markdown};
pub use select::{latest, load};
pub use tables::{fidelity_table_markdown, headline_table_markdown, perplexity_table_markdown, speed_table_markdown};
pub use work::work_table_markdown;
