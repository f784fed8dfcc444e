//! The `assay` command.

fn main() -> std::process::ExitCode {
    assay_harness::run()
}
