//! Progress on stderr: a bar with rate and time left on a terminal, a plain line now and then in a pipe.

use indicatif::{HumanDuration, ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// How often a pipe gets a line.
const PLAIN_INTERVAL: Duration = Duration::from_secs(10);

/// One piece of work of known length.
#[derive(Debug)]
pub struct Progress {
    label: String,
    unit: &'static str,
    total: u64,
    done: u64,
    started: Instant,
    last_line: Instant,
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
        Progress { label, unit, total, done: 0, started: now, last_line: now, bar }
    }

    /// `steps` more are done.
    pub fn advance(&mut self, steps: u64) {
        self.done = self.done.saturating_add(steps).min(self.total);
        match &self.bar {
            Some(bar) => bar.set_position(self.done),
            None if self.last_line.elapsed() >= PLAIN_INTERVAL => {
                self.last_line = Instant::now();
                eprintln!("{}", self.plain_line(self.started.elapsed()));
            }
            None => {}
        }
    }

    /// A line that stays above the bar.
    pub fn note(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.println(line),
            None => eprintln!("{line}"),
        }
    }

    fn plain_line(&self, elapsed: Duration) -> String {
        let (label, done, total, unit) = (&self.label, self.done, self.total, self.unit);
        let seconds = elapsed.as_secs_f64();
        if done == 0 || seconds <= 0.0 {
            return format!("{label}: 0 of {total} {unit}");
        }
        let rate = done as f64 / seconds;
        let left = Duration::from_secs_f64((total - done) as f64 / rate);
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
        let now = Instant::now();
        let mut progress = Progress {
            label: "prefill".into(),
            unit: "tokens",
            total: 400,
            done: 0,
            started: now,
            last_line: now,
            bar: None,
        };
        assert_eq!(progress.plain_line(Duration::from_secs(1)), "prefill: 0 of 400 tokens");
        progress.advance(100);
        assert_eq!(progress.plain_line(Duration::from_secs(2)), "prefill: 100 of 400 tokens, 50.0/s, 6 seconds left");
    }
}
