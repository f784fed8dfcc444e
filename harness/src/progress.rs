//! Progress on stderr: a bar with rate and time left on a terminal, a plain line now and then in a pipe.

use indicatif::{HumanDuration, ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How often a pipe gets a line.
const PLAIN_INTERVAL: Duration = Duration::from_secs(10);

/// One piece of work of known length.
#[derive(Debug)]
pub struct Progress {
    label: String,
    unit: &'static str,
    total: u64,
    done: AtomicU64,
    started: Instant,
    last_line: Mutex<Instant>,
    bar: Option<ProgressBar>,
}

impl Progress {
    /// Starts `total` steps of `label`, counted in `unit` (plural, as "tokens").
    pub fn start(label: impl Into<String>, total: u64, unit: &'static str) -> Self {
        let label = label.into();
        let now = Instant::now();
        let bar = std::io::stderr().is_terminal().then(|| bar(&label, total, unit));
        if bar.is_none() {
            eprintln!("{label}: {total} {unit}");
        }
        Progress { label, unit, total, done: AtomicU64::new(0), started: now, last_line: Mutex::new(now), bar }
    }

    /// `steps` more are done; any thread may say so.
    pub fn advance(&self, steps: u64) {
        let done = self.done.fetch_add(steps, Ordering::Relaxed) + steps;
        if let Some(bar) = &self.bar {
            bar.set_position(done.min(self.total));
            return;
        }
        // A thread that finds another one at it has nothing to add.
        if let Ok(mut last_line) = self.last_line.try_lock()
            && last_line.elapsed() >= PLAIN_INTERVAL
        {
            *last_line = Instant::now();
            eprintln!("{}", self.plain_line(done, self.started.elapsed()));
        }
    }

    /// `done` steps are done in all.
    pub fn set(&self, done: u64) {
        self.advance(done.saturating_sub(self.done.load(Ordering::Relaxed)));
    }

    /// A line that stays above the bar.
    pub fn note(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.println(line),
            None => eprintln!("{line}"),
        }
    }

    fn plain_line(&self, done: u64, elapsed: Duration) -> String {
        let (label, total, unit) = (&self.label, self.total, self.unit);
        let seconds = elapsed.as_secs_f64();
        if done == 0 || seconds <= 0.0 {
            return format!("{label}: 0 of {total} {unit}");
        }
        let rate = done as f64 / seconds;
        let left = Duration::from_secs_f64(total.saturating_sub(done) as f64 / rate);
        format!("{label}: {done} of {total} {unit}, {rate:.1}/s, {} left", HumanDuration(left))
    }
}

impl Drop for Progress {
    /// The bar goes, whether the work ended well or not; what came of it is for the caller to say.
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn bar(label: &str, total: u64, unit: &str) -> ProgressBar {
    let template = format!("{{msg}} {{bar:20}} {{pos}}/{{len}} {unit} {{per_sec}} {{eta}} left");
    let style = ProgressStyle::with_template(&template).unwrap_or_else(|_| ProgressStyle::default_bar());
    let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
    bar.set_style(style);
    bar.set_message(label.to_owned());
    bar.enable_steady_tick(Duration::from_millis(500));
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_line_names_rate_and_time_left() {
        let progress = Progress::start("prefill", 400, "tokens");
        let check = |done, seconds, line: &str| {
            assert_eq!(progress.plain_line(done, Duration::from_secs(seconds)), line);
        };
        check(0, 1, "prefill: 0 of 400 tokens");
        check(100, 2, "prefill: 100 of 400 tokens, 50.0/s, 6 seconds left");
    }
}
