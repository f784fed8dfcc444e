//! Shares of tasks that were solved, with their intervals.

use super::task::Task;
use crate::statistics::{StatisticsError, pass_at_k, pass_hat_k, wilson};
use assay_ledgers::{Interval95, Verdict};
use std::collections::{BTreeMap, BTreeSet};

/// Shares of all tasks and, in a suite, of the kinds that a model was trained for, of those held out, and of each kind.
pub fn all(tasks: &[Task], verdicts: &[(String, Verdict)], attempts: u32) -> BTreeMap<String, Interval95> {
    let mut groups: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    for task in tasks {
        let Some(kind) = &task.kind else { continue };
        let side = if kind.held_out { "held-out kinds" } else { "trained kinds" };
        for group in [side.to_owned(), format!("kind {}", kind.name)] {
            groups.entry(group).or_default().insert(&task.file.name);
        }
    }
    let mut all = shares(verdicts, attempts);
    for (group, names) in groups {
        let own: Vec<_> = verdicts.iter().filter(|(name, _)| names.contains(name.as_str())).cloned().collect();
        all.extend(shares(&own, attempts).into_iter().map(|(name, share)| (format!("{name} of {group}"), share)));
    }
    all
}

/// Shares of tasks solved, with Wilson's intervals over tasks: by an attempt, and by any and by all of k.
fn shares(verdicts: &[(String, Verdict)], attempts: u32) -> BTreeMap<String, Interval95> {
    let mut by_task: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for (task, verdict) in verdicts.iter().filter(|(_, verdict)| matches!(verdict, Verdict::Pass | Verdict::Fail)) {
        let counts = by_task.entry(task).or_default();
        counts.0 += 1;
        counts.1 += u64::from(*verdict == Verdict::Pass);
    }
    let mut shares = BTreeMap::new();
    let mut add = |name: String, successes: u64, trials: u64, value: Option<f64>| {
        if let Ok(estimate) = wilson(successes, trials) {
            let ci95 = estimate.ci95.map(|interval| [interval.low, interval.high]);
            shares.insert(name, Interval95 { value: value.unwrap_or(estimate.value), ci95 });
        }
    };
    // Attempts at one task are not independent of each other, tasks are: the interval is that of so many tasks.
    let solved: f64 = by_task.values().map(|&(attempts, solved)| solved as f64 / attempts as f64).sum();
    let tasks = by_task.len() as u64;
    add("pass@1".to_owned(), solved.round() as u64, tasks, (tasks > 0).then(|| solved / tasks as f64));
    let k = u64::from(attempts);
    let complete: Vec<(u64, u64)> = by_task.values().copied().filter(|counts| counts.0 >= k).collect();
    if k > 1 && !complete.is_empty() {
        let mean = |of: fn(u64, u64, u64) -> Result<f64, StatisticsError>| {
            let values: Vec<f64> = complete.iter().filter_map(|&(n, c)| of(n, c, k).ok()).collect();
            (values.len() == complete.len()).then(|| values.iter().sum::<f64>() / values.len() as f64)
        };
        let any = complete.iter().filter(|counts| counts.1 > 0).count() as u64;
        let all = complete.iter().filter(|counts| counts.1 == counts.0).count() as u64;
        add(format!("pass@{k}"), any, complete.len() as u64, mean(pass_at_k));
        add(format!("pass^{k}"), all, complete.len() as u64, mean(pass_hat_k));
    }
    shares
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn attempts_that_go_alike_are_no_further_evidence() {
        let verdicts = |attempts: usize| -> Vec<(String, Verdict)> {
            let verdict = |task: usize| if task < 8 { Verdict::Pass } else { Verdict::Fail };
            let task = |task: usize| std::iter::repeat_n((format!("task-{task}"), verdict(task)), attempts);
            (0..10).flat_map(task).collect()
        };
        let (once, thrice) = (shares(&verdicts(1), 1), shares(&verdicts(3), 3));
        assert_eq!(once["pass@1"], thrice["pass@1"]);
        assert_eq!(once["pass@1"].value, 0.8);
        assert_eq!(thrice["pass^3"], once["pass@1"]);
        // Wilson's interval of 8 among 10.
        let [low, high] = once["pass@1"].ci95.unwrap();
        assert!((low - 0.4902).abs() < 1e-4 && (high - 0.9433).abs() < 1e-4, "{low} to {high}");
    }

    #[test]
    fn a_task_that_is_solved_now_and_then_counts_in_part() {
        let verdicts = [Verdict::Pass, Verdict::Fail, Verdict::Pass, Verdict::Pass];
        let verdicts: Vec<_> = ["a", "a", "b", "b"].map(str::to_owned).into_iter().zip(verdicts).collect();
        let found = shares(&verdicts, 2);
        assert_eq!([found["pass@1"].value, found["pass@2"].value, found["pass^2"].value], [0.75, 1.0, 0.5]);
    }
}
