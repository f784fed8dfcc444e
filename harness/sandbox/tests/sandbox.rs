//! What a program in the sandbox can do, and what it meets when it tries more.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use assay_sandbox::{End, Interpreter, Job, Limits, Outcome, Sandbox};
use std::collections::BTreeMap;

fn sandbox() -> Sandbox {
    Sandbox::with_init(env!("CARGO_BIN_EXE_assay-sandbox"))
}

/// Runs a Python program; a machine that cannot isolate fails these tests, which is what they are for.
fn run(program: &str, limits: Limits) -> Outcome {
    let interpreter = Interpreter::find().unwrap();
    let job = Job {
        argv: interpreter.argv(&["-c", program]),
        env: interpreter.env(),
        files: BTreeMap::from([("sub/data.txt".to_owned(), b"data".to_vec())]),
        stdin: b"hello".to_vec(),
        read_only: interpreter.read_only,
        limits,
    };
    sandbox().run(&job).unwrap()
}

fn limits() -> Limits {
    Limits { wall_ms: 3000, ..Limits::default() }
}

fn check(program: &str, end: End, stdout: &str) {
    let outcome = run(program, limits());
    let found = (outcome.end, String::from_utf8_lossy(&outcome.stdout).into_owned());
    assert_eq!(found, (end, stdout.to_owned()), "{}", String::from_utf8_lossy(&outcome.stderr));
}

#[test]
fn the_probe_holds() {
    let probe = sandbox().probe(&Interpreter::find().unwrap()).unwrap();
    assert!(probe.rows.len() > 15 && probe.rows.iter().all(|row| row.held), "{probe:?}");
}

#[test]
fn a_program_sees_its_files_and_its_input() {
    check("import sys; print(open('sub/data.txt').read(), sys.stdin.read())", End::Exited(0), "data hello\n");
    check("import os; print(os.getcwd(), sorted(os.listdir('.')))", End::Exited(0), "/work ['sub']\n");
}

#[test]
fn ends_are_told_apart() {
    check("raise SystemExit(7)", End::Exited(7), "");
    check("import os; os.kill(os.getpid(), 9)", End::Signalled(9), "");
    check("import os; os.abort()", End::Signalled(6), "");
    check("import time; time.sleep(60)", End::TimedOut, "");
    let quick = Limits { cpu_s: 1, ..limits() };
    assert_eq!(run("while True: pass", quick).end, End::Signalled(24));
}

#[test]
fn a_process_that_outlives_the_program_dies_with_it() {
    let program = "import os, time\nif os.fork() == 0:\n os.setsid()\n time.sleep(60)\nelse: print('done')";
    let started = std::time::Instant::now();
    check(program, End::Exited(0), "done\n");
    assert!(started.elapsed().as_secs() < 3);
}

#[test]
fn output_is_bounded() {
    let outcome = run("while True: print('x' * 1000)", limits());
    assert_eq!((outcome.end, outcome.stdout.len() as u64), (End::OutputLimit, limits().output_bytes));
}

#[test]
fn disk_is_bounded() {
    let program = "f = open('big', 'wb')\ntry:\n while True: f.write(b'x' * 100000); f.flush()\nexcept OSError as e: print(e.errno)";
    let outcome = run(program, Limits { disk_bytes: 1 << 20, ..limits() });
    let words = String::from_utf8_lossy(&outcome.stdout).into_owned();
    assert!(outcome.end == End::Exited(0) && ["27\n", "28\n"].contains(&words.as_str()), "{outcome:?}");
}

#[test]
fn a_fork_bomb_burns_out() {
    let program = "import os\nwhile True:\n try: os.fork()\n except OSError: pass";
    assert_eq!(run(program, Limits { wall_ms: 1000, ..limits() }).end, End::TimedOut);
    // The machine is as it was.
    check("print('fine')", End::Exited(0), "fine\n");
}

#[test]
fn a_path_that_leads_out_is_refused() {
    let interpreter = Interpreter::find().unwrap();
    for path in ["../out", "/out", "a/../../out", "", "."] {
        let job = Job {
            argv: interpreter.argv(&["-c", "pass"]),
            env: interpreter.env(),
            files: BTreeMap::from([(path.to_owned(), Vec::new())]),
            stdin: Vec::new(),
            read_only: interpreter.read_only.clone(),
            limits: limits(),
        };
        let error = sandbox().run(&job).unwrap_err().to_string();
        assert!(error.contains("root in memory"), "{path:?}: {error}");
    }
}

#[test]
fn a_first_process_that_dies_is_the_sandboxes_failure() {
    let interpreter = Interpreter::find().unwrap();
    let job = Job {
        argv: interpreter.argv(&["-c", "pass"]),
        env: BTreeMap::new(),
        files: BTreeMap::new(),
        stdin: Vec::new(),
        read_only: interpreter.read_only.clone(),
        limits: limits(),
    };
    let error = Sandbox::with_init("/bin/false").run(&job).unwrap_err().to_string();
    assert!(error.contains("the sandbox died"), "{error}");
    let missing = Job { argv: vec!["/no/such/program".to_owned()], ..job };
    let error = sandbox().run(&missing).unwrap_err().to_string();
    assert!(error.contains("start of the program"), "{error}");
}
