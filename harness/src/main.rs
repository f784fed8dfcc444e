//! The `assay` command.

fn main() -> std::process::ExitCode {
    // The program is its own sandboxes' first process: before any thread is started.
    assay_sandbox::become_init_if_asked();
    assay_harness::run()
}
