//! Ctrl-C: a flag that long loops ask for, so that a run ends between two steps and leaves nothing half-written.

use crate::exit::Interrupted;
use std::sync::atomic::{AtomicBool, Ordering};

static REQUESTED: AtomicBool = AtomicBool::new(false);

/// Installs the handler for SIGINT, SIGTERM and SIGHUP; call it once, at the start. The second signal ends the process
/// at once: files are written beside their place and renamed, so even that leaves none of them half-written.
///
/// # Errors
/// When the operating system refuses the handler, or it is installed already.
pub fn install() -> Result<(), ctrlc::Error> {
    ctrlc::set_handler(|| {
        if REQUESTED.swap(true, Ordering::Relaxed) {
            std::process::exit(130);
        }
        eprintln!("stopping after this step (once more: at once)");
    })
}

/// To be asked between steps.
///
/// # Errors
/// [`Interrupted`] once the user has asked to stop.
pub fn check() -> Result<(), Interrupted> {
    if REQUESTED.load(Ordering::Relaxed) { Err(Interrupted) } else { Ok(()) }
}

/// The flag itself, for code that looks at one.
pub fn flag() -> &'static AtomicBool {
    &REQUESTED
}
