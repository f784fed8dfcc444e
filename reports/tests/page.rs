//! The page, as text and in a browser.
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "../../ledgers/tests/common/mod.rs"]
mod common;

use std::path::{Path, PathBuf};
use std::process::Command;

use assay_ledgers::*;
use assay_reports::*;
use common::*;

/// Budgets of one model on two devices, three precisions, a failed verdict.
fn records() -> Vec<Record> {
    let dir = tempfile::tempdir().unwrap();
    let ledger = Ledger::open(dir.path()).unwrap();
    for step in 1..=5u64 {
        for device in ["a processor", "a card <with & a name>"] {
            let mut identity = identity();
            identity.memory = MemoryIdentity { vram_bytes: step << 30, margin_bytes: 64 << 20 };
            identity.device.name = device.to_owned();
            let faster = if device == "a processor" { 1.0 } else { 7.5 } * step as f64;
            let mut body = speed_body(&[90.0 * faster, 96.0 * faster, 97.0 * faster, 101.0 * faster]);
            let long = SpeedRow { tokens: 8192, median: 60.0 * faster, ci95: None, ..body.rows[0].clone() };
            body.rows.push(long);
            for row in &mut body.rows {
                row.depth = (row.measure == Measure::Decode).then_some(512 * step);
                row.hcs =
                    Some(Hcs { resident: 20 * step, total: 128, hit_rate: Some(0.19 * step as f64), cold_bytes: 1 });
            }
            body.low_water_bytes.extend([("startup".to_owned(), step << 29), ("calibration".to_owned(), 100 << 20)]);
            let draft = Draft::speed(Run::timing_off(), identity, body).class(EvidenceClass::ControlledDevelopment);
            ledger.append(draft).unwrap();
        }
    }
    for (experts, method, loss) in [
        (NumberFormat::Bf16, None, 3.95),
        (NumberFormat::Int4, Some(ExpertQuantization::Amax), 4.0),
        (NumberFormat::Int4, Some(ExpertQuantization::Search), 3.97),
    ] {
        let mut identity = identity();
        (identity.precision.experts, identity.precision.expert_quantization) = (experts, method);
        ledger.append(Draft::new(EvidenceClass::Functional, identity, perplexity_body(loss))).unwrap();
    }
    ledger.append(tasks(of_precision(NumberFormat::Bf16, NumberFormat::F32), &[true, true, true, false])).unwrap();
    for (kv, divergence) in [(NumberFormat::Int8, 1e-4), (NumberFormat::Int4, 0.02)] {
        let identity = of_precision(NumberFormat::Bf16, kv);
        ledger.append(tasks(identity.clone(), &[true, kv == NumberFormat::Int8, true, false])).unwrap();
        ledger.append(other_draft(1, identity, divergence, "as trained")).unwrap();
    }
    let verdict = VerdictRow { row: "memory".to_owned(), verdict: Verdict::Fail, reason: "too little".to_owned() };
    ledger.append(check(0.0).verdicts(vec![verdict])).unwrap();
    load(dir.path()).unwrap()
}

#[test]
fn every_chart_is_drawn_and_nothing_comes_from_elsewhere() {
    let records = records();
    let page = page(&records, &[]).unwrap();
    // Kept, to be looked at.
    std::fs::write(Path::new(env!("CARGO_TARGET_TMPDIR")).join("page.html"), &page).unwrap();
    assert!(!page.contains("Not drawn"), "{page}");
    assert_eq!(page.matches("<svg").count(), 2 * page.matches("<section").count());
    for record in records.iter().filter(|record| matches!(record.body, Body::Speed(_) | Body::Perplexity(_))) {
        assert!(page.contains(&record.hash.short()), "no figure names record {}", record.hash.short());
    }
    let text = page.replace("http://www.w3.org/2000/svg", "");
    for outside in ["http:", "https:", "//", "src=", "<script", "@import", "url("] {
        assert!(!text.contains(outside), "{outside}");
    }
    assert!(page.contains("a card &lt;with &amp; a name&gt;") && !page.contains("<with"));
    // A placeholder that was not replaced would be nearly black, in the dark too.
    assert!(!page.contains("#01"), "a colour is not the page's");
    assert_eq!(page, made_up_page(&records), "twice the same");
}

fn made_up_page(records: &[Record]) -> String {
    page(records, &[]).unwrap()
}

#[test]
fn what_is_missing_is_said() {
    let page = page(&[], &[]).unwrap();
    assert_eq!(page.matches("Not drawn").count(), page.matches("<section").count());
    assert!(page.contains("Not drawn: no perplexity record."));
    let records = records();
    let speeds: Vec<Record> =
        records.into_iter().filter(|record| matches!(record.body, Body::Speed(_))).take(1).collect();
    let page = made_up_page(&speeds);
    assert_eq!(page.matches("Not drawn").count(), 2, "one record of speed draws all but perplexity and work");
}

fn browser() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let names = ["chromium", "chromium-browser", "google-chrome"];
    std::env::split_paths(&path).flat_map(|dir| names.map(|name| dir.join(name))).find(|file| file.is_file())
}

/// What a page's script leaves as the document.
fn opened(browser: &Path, folder: &Path, page: &str) -> String {
    let file = folder.join("frame.html");
    std::fs::write(&file, page).unwrap();
    let output = Command::new(browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"])
        .args(["--disable-component-update", "--disable-sync", "--dump-dom"])
        .arg(format!("--user-data-dir={}", folder.join("profile").display()))
        .arg(&file)
        .output()
        .unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn a_browser_shows_it_at_the_width_of_a_phone_and_of_a_desk() {
    let Some(browser) = browser() else {
        eprintln!("not run: no chromium in PATH");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let page = made_up_page(&records()).replace('&', "&amp;").replace('"', "&quot;");
    for (width, shown) in [(390, "narrow"), (1280, "wide")] {
        // In a frame, since a window has a least width.
        let frame = format!(
            "<!doctype html><iframe id=f width={width} height=900 srcdoc=\"{page}\"></iframe><p id=said></p><script>\
             f.onload=()=>{{const d=f.contentDocument,e=d.documentElement,\
             v=[...d.querySelectorAll('svg')].filter(s=>s.getBoundingClientRect().width>0);\
             said.textContent=`said ${{e.scrollWidth}} ${{v.length}} ${{v.every(s=>s.parentElement.className=='{shown}')}} \
             ${{v.every(s=>s.querySelectorAll('text').length>3)}}`}}</script>"
        );
        let said = opened(&browser, folder.path(), &frame);
        let said = said.split("<p id=\"said\">").nth(1).and_then(|rest| rest.split('<').next()).unwrap_or_default();
        let words: Vec<&str> = said.split_whitespace().collect();
        assert_eq!(words.len(), 5, "{width}: {said:?}");
        assert!(words[1].parse::<u32>().unwrap() <= width, "{width}: the page is {} wide", words[1]);
        assert_eq!(words[2..], ["10", "true", "true"], "{width}");
    }
}
