//! The peer's program as far as it can be known without one: what is asked of it, what of its answer is believed.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use assay_harness::peer::{LlamaBench, Setting, Workload};

/// A program that prints `script`'s output, in the place of llama-bench.
fn stand_in(dir: &Path, script: &str) -> LlamaBench {
    let (text, program) = (dir.join("script"), dir.join("llama-bench"));
    std::fs::write(&text, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(&text, std::fs::Permissions::from_mode(0o755)).unwrap();
    // Written by another process: what one of this process's threads has open for writing, a process that another thread is just
    // starting has too, and a file that is open for writing is not run.
    assert!(Command::new("cp").arg("-p").args([&text, &program]).status().unwrap().success());
    LlamaBench { program, model: dir.join("model.gguf") }
}

fn line(n_prompt: u32, n_gen: u32, n_ubatch: u32, samples: &str) -> String {
    format!(
        r#"echo '{{"build_commit": "abc", "model_type": "qwen3moe Q4_0", "model_size": 17, "n_prompt": {n_prompt}, "n_gen": {n_gen}, "n_depth": 0, "n_ubatch": {n_ubatch}, "n_threads": 4, "avg_ts": 1.5, "samples_ts": [ {samples} ]}}'"#
    )
}

fn setting() -> Setting {
    Setting { n_gpu_layers: 999, n_cpu_moe: 12, n_ubatch: 512, load_mode: "none".to_owned(), threads: 4 }
}

#[test]
fn a_row_for_each_micro_batch_and_the_command_without_folders() {
    let dir = tempfile::tempdir().unwrap();
    let script = format!("{}\n{}\necho \"$@\" >&2", line(1024, 0, 512, "10.5, 11.5"), line(1024, 0, 1024, "20, 21"));
    let bench = stand_in(dir.path(), &script);
    let finished = bench.run(&setting(), &[512, 1024], &[4], Workload::Prefill { tokens: 1024 }, 2, None).unwrap();
    let rows: Vec<(u32, Vec<f64>)> = finished.rows.iter().map(|row| (row.n_ubatch, row.samples_ts.clone())).collect();
    assert_eq!(rows, [(512, vec![10.5, 11.5]), (1024, vec![20.0, 21.0])]);
    let asked = "-p 1024 -n 0 -d 0 -ngl 999 -ncmoe 12 -fa 1 -lm none -t 4 -ub 512,1024 -b 2048 -r 2 -o jsonl";
    assert_eq!(finished.command, format!("llama-bench -m model.gguf {asked}"));
    assert!(!finished.raw.contains(&*dir.path().to_string_lossy()), "{}", finished.raw);
    assert!(finished.raw.contains(asked), "what it prints on stderr is kept: {}", finished.raw);
}

#[test]
fn an_answer_to_another_question_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    for (script, expected) in [
        (line(512, 0, 512, "10, 11"), "expected 2 repetitions"),
        (line(1024, 0, 512, "10"), "expected 2 repetitions"),
        ("true".to_owned(), "0 rows"),
        ("echo '{\"n_prompt\": '".to_owned(), "printed"),
        ("echo out of memory >&2; exit 1".to_owned(), "out of memory"),
    ] {
        let bench = stand_in(dir.path(), &script);
        let answer = bench.run(&setting(), &[512], &[4], Workload::Prefill { tokens: 1024 }, 2, None);
        let error = format!("{:#}", answer.unwrap_err());
        assert!(error.contains(expected), "{script}: {error}");
    }
}
