//! `assay session-cache-benchmark`

use crate::config::ConfigArgs;
use crate::corpus::{Corpus, PromptCutter, PromptSet, PromptUse};
use crate::evidence::{RunLog, open_ledger, record_seen};
use crate::exit::Exit;
use crate::output::{Answer, Format, Table};
use crate::progress::Progress;
use crate::repository::Repository;
use crate::runtime::{IdentityInputs, Runtime, Watch};
use crate::session_benchmark::{Script, Turn, run};
use crate::speed::time_row;
use crate::statistics::{Estimate, median, paired_ratio};
use anyhow::ensure;
use assay_engine::checkpoint::tokenizer::Tokenizer;
use assay_ledgers::{Draft, Measure, Run, SpeedBody, Verdict, VerdictRow};
use clap::Args;
use serde::Serialize;
use serde_json::json;

const EXAMPLES: &str = "\
Examples:
  assay session-cache-benchmark tiny-moe
  assay session-cache-benchmark tiny-moe --conversations 1
  assay session-cache-benchmark tiny-moe-long --first 10000 --output json";

const TURNS: usize = 4;
const PHASES: [&str; 3] = ["off", "on", "off again"];

/// What reuse of earlier state saves, and what keeping it costs
///
/// Two conversations out of two books, four turns each, take turns: with the cache off, on, and off again. Every switch restores
/// a conversation; a conversation by itself goes on from what is still on the device. Answers must be the same in all three. Times are the engine's own; every sample is kept.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct SessionCacheBenchmark {
    #[command(flatten)]
    config: ConfigArgs,
    /// Tokens of each conversation's first prompt
    #[arg(long, default_value_t = 2000, value_name = "TOKENS")]
    first: usize,
    /// Tokens of each message that follows
    #[arg(long, default_value_t = 64, value_name = "TOKENS")]
    message: usize,
    /// Tokens of each answer
    #[arg(long, default_value_t = 32, value_name = "TOKENS")]
    answer: usize,
    /// Conversations that take turns
    #[arg(long, default_value_t = 2, value_name = "COUNT")]
    conversations: usize,
    /// Prompt set that texts are cut from
    #[arg(long, value_enum, default_value = "packaged", value_name = "SET")]
    prompts: PromptSet,
}

/// What came out, in seconds and bytes.
#[derive(Debug, Serialize)]
struct Figures {
    /// First token of a continuation (turns after the first): cache off, cache on.
    continuation_off_s: Estimate,
    continuation_on_s: Estimate,
    /// How many times faster, turn by turn.
    continuation_speedup: Estimate,
    /// All turns together.
    workload_off_s: f64,
    workload_on_s: f64,
    workload_off_again_s: f64,
    restores: usize,
    restored_bytes: u64,
    /// Before prefill could begin; copying goes on beside it.
    restore_s: Option<Estimate>,
    saves: usize,
    saved_bytes: u64,
    save_s: Estimate,
    /// Share of a turn that saving takes, the largest of all turns, 0 to 1.
    save_share_max: f64,
}

impl SessionCacheBenchmark {
    pub(super) fn run(self, format: Format) -> anyhow::Result<Exit> {
        ensure!(self.first > 0 && self.message > 0 && self.answer > 0, "prompts, messages and answers have tokens");
        ensure!(self.conversations > 0, "there is no conversation");
        let repository = Repository::find()?;
        let loaded = self.config.load(&repository)?;
        let needed = self.first + (TURNS - 1) * self.message + TURNS * self.answer;
        let context = loaded.config.context.tokens;
        ensure!(needed <= context, "four turns need {needed} tokens of context, the config has {context}");
        let ledger = open_ledger(&repository)?;
        let corpus = Corpus::load(self.prompts, &repository)?;
        let device = loaded.config.device;
        let mut runtime = Runtime::start(loaded, &repository)?;
        let script = self.script(&corpus, &runtime.tokenizer()?)?;
        let (timing, mut log, sha256) = (Run::timing_off(), RunLog::default(), runtime.opened.folder.sha256());
        let runs = PHASES.len() * self.conversations * TURNS;
        let progress = Progress::start("conversing", runs as u64, "turns");
        let (mut phases, mut watch) = (Vec::new(), Watch::start(device));
        for phase in PHASES {
            let done = || progress.advance(1);
            phases.push(run(&timing, &mut runtime.engine, &sha256, &script, phase, &mut log, done)?);
            watch.look();
        }
        let seen = watch.finish();
        drop(progress);
        let residents = runtime.engine.residents();
        let cold_bytes = (residents.total - residents.resident) as u64 * runtime.engine.plan().slot_bytes();
        let figures = figures(&phases)?;
        let verdicts = self.verdicts(&phases, &figures);
        let inputs = IdentityInputs::of_corpus(&corpus);
        let identity = runtime.opened.identity(&repository, runtime.heatmap.as_ref(), inputs)?;
        let body = self.body(&phases)?;
        let draft = Draft::speed(timing, identity.clone(), body);
        let evidence = record_seen(&ledger, draft, verdicts.clone(), &log, seen.observations())?;
        let turns: Vec<&Turn> = phases.iter().flatten().collect();
        let json = json!({
            "config": runtime.opened.loaded.name, "conversations": self.conversations,
            "first": self.first, "message": self.message, "answer": self.answer,
            "resident_experts": residents.resident, "experts": residents.total, "cold_expert_bytes": cold_bytes,
            "figures": figures, "turns": turns, "identity": identity, "verdicts": verdicts, "evidence": evidence,
        });
        let answer = answer(&json, &runtime.opened.loaded.name, &phases, &figures, &verdicts)?;
        let answer = answer.line(format!(
            "{} of {} experts resident between requests; the others have {cold_bytes} bytes",
            residents.resident, residents.total
        ));
        let answer = seen.line().into_iter().fold(answer, Answer::line);
        answer.line(format!("record {}", evidence.short())).print(format)?;
        Ok(Exit::worst(verdicts.iter().map(|row| row.verdict)))
    }

    fn script(&self, corpus: &Corpus, tokenizer: &Tokenizer) -> anyhow::Result<Script> {
        let cutter = PromptCutter::new(corpus, tokenizer);
        let cut = |prompt_use, tokens, nth| anyhow::Ok(cutter.cut(prompt_use, tokens, nth)?.tokens);
        let mut script = Script { first: Vec::new(), messages: Vec::new(), answer: self.answer };
        for conversation in 0..self.conversations {
            script.first.push(cut(PromptUse::Timed, self.first, conversation)?);
            let messages =
                (1..TURNS).map(|turn| cut(PromptUse::WarmUp, self.message, turn * self.conversations + conversation));
            script.messages.push(messages.collect::<anyhow::Result<_>>()?);
        }
        Ok(script)
    }

    fn body(&self, phases: &[Vec<Turn>]) -> anyhow::Result<SpeedBody> {
        let continued = if self.restores() { Measure::ContinuedFirstToken } else { Measure::ActiveFirstToken };
        let rows = [
            (Measure::FreshFirstToken, first_tokens(&phases[0])),
            (continued, first_tokens(&phases[1])),
            (Measure::SessionSave, phases[1].iter().map(|turn| turn.save_s).collect()),
        ];
        let row = |(measure, seconds): (Measure, Vec<f64>)| {
            time_row(measure, self.first as u64, seconds.iter().map(|s| s * 1e3).collect())
        };
        Ok(SpeedBody {
            rows: rows.into_iter().map(row).collect::<anyhow::Result<_>>()?,
            hcs: None,
            low_water_bytes: Default::default(),
            modelled_link_s: None,
            cold_path: None,
            host_share: None,
            layers: Vec::new(),
            driver: None,
            work: None,
            roofline: None,
            startup_s: Default::default(),
        })
    }

    /// Whether every continuation finds another conversation on the device.
    fn restores(&self) -> bool {
        self.conversations > 1
    }

    fn verdicts(&self, phases: &[Vec<Turn>], figures: &Figures) -> Vec<VerdictRow> {
        let row = |row: &str, verdict, reason| VerdictRow { row: row.to_owned(), verdict, reason };
        let answers = |turns: &'_ [Turn]| turns.iter().map(|turn| turn.answer.clone()).collect::<Vec<_>>();
        let (off, on, again) = (answers(&phases[0]), answers(&phases[1]), answers(&phases[2]));
        let equal = off == on && off == again;
        let reused = phases[1].iter().filter(|turn| turn.reused_tokens > 0).count();
        let (what, found) =
            if self.restores() { ("restorations", figures.restores) } else { ("continuations on the device", reused) };
        let expected = self.conversations * (TURNS - 1);
        vec![
            match equal {
                true => row("answers", Verdict::Pass, format!("{} answers, the same in all three phases", on.len())),
                false => row("answers", Verdict::Fail, "an answer depends on the cache".to_owned()),
            },
            match found >= expected {
                true => row("reuse", Verdict::Pass, format!("{found} {what}")),
                false => row(
                    "reuse",
                    Verdict::Incomplete,
                    format!("{found} {what}, expected {expected}: host memory was short"),
                ),
            },
        ]
    }
}

/// Of the turns that continue something.
fn first_tokens(turns: &[Turn]) -> Vec<f64> {
    turns.iter().filter(|turn| turn.turn > 0).map(|turn| turn.first_token_s).collect()
}

fn figures(phases: &[Vec<Turn>]) -> anyhow::Result<Figures> {
    let (off, on, again) = (&phases[0], &phases[1], &phases[2]);
    let whole = |turns: &[Turn]| turns.iter().map(|turn| turn.whole_s).sum::<f64>();
    let of = |each: fn(&Turn) -> f64, turns: &[&Turn]| median(&turns.iter().map(|turn| each(turn)).collect::<Vec<_>>());
    let restored: Vec<&Turn> = on.iter().filter(|turn| turn.restored_bytes > 0).collect();
    let saved: Vec<&Turn> = on.iter().filter(|turn| turn.saved_bytes > 0).collect();
    ensure!(!saved.is_empty(), "nothing was kept: host memory is too short for it");
    let restore_s = if restored.is_empty() { None } else { Some(of(|turn| turn.restore_s, &restored)?) };
    // What brackets the turns with the cache on, turn by turn.
    let bracket: Vec<f64> =
        first_tokens(off).iter().zip(first_tokens(again)).map(|(before, after)| (before * after).sqrt()).collect();
    Ok(Figures {
        continuation_off_s: median(&[first_tokens(off), first_tokens(again)].concat())?,
        continuation_on_s: median(&first_tokens(on))?,
        continuation_speedup: paired_ratio(&bracket, &first_tokens(on))?,
        workload_off_s: whole(off),
        workload_on_s: whole(on),
        workload_off_again_s: whole(again),
        restores: restored.len(),
        restored_bytes: restored.iter().map(|turn| turn.restored_bytes).sum(),
        restore_s,
        saves: saved.len(),
        saved_bytes: saved.iter().map(|turn| turn.saved_bytes).sum(),
        save_s: of(|turn| turn.save_s, &saved)?,
        save_share_max: saved.iter().map(|turn| turn.save_s / turn.whole_s).fold(0.0, f64::max),
    })
}

fn answer(
    json: &serde_json::Value,
    name: &str,
    phases: &[Vec<Turn>],
    figures: &Figures,
    verdicts: &[VerdictRow],
) -> anyhow::Result<Answer> {
    let headings =
        ["conversation", "#turn", "#prompt", "#reused", "#off, ms", "#on, ms", "#off again, ms", "#save, ms"];
    let mut table = Table::new(format!("Request to first token of {name}"), &headings);
    let ms = |seconds: f64| format!("{:.1}", seconds * 1e3);
    for ((off, on), again) in phases[0].iter().zip(&phases[1]).zip(&phases[2]) {
        table.row([
            on.conversation.to_string(),
            on.turn.to_string(),
            on.prompt_tokens.to_string(),
            on.reused_tokens.to_string(),
            ms(off.first_token_s),
            ms(on.first_token_s),
            ms(again.first_token_s),
            ms(on.save_s),
        ]);
    }
    let interval = |estimate: &Estimate, scale: f64| match estimate.ci95 {
        Some(interval) => {
            format!("{:.2} ({:.2} to {:.2})", estimate.value * scale, interval.low * scale, interval.high * scale)
        }
        None => format!("{:.2} (no interval)", estimate.value * scale),
    };
    let mut answer = Answer::new(json)?
        .table(table)
        .line(format!("continuation {} times faster to its first token", interval(&figures.continuation_speedup, 1.0)))
        .line(format!(
            "workload {:.2} s off, {:.2} s on, {:.2} s off again",
            figures.workload_off_s, figures.workload_on_s, figures.workload_off_again_s
        ))
        .line(format!(
            "{} restorations of {} bytes, prefill begun after {} ms; {} saves of {} bytes, {} ms each, at most {:.1} % of a turn",
            figures.restores,
            figures.restored_bytes,
            figures.restore_s.as_ref().map_or("none".to_owned(), |restore| interval(restore, 1e3)),
            figures.saves,
            figures.saved_bytes,
            interval(&figures.save_s, 1e3),
            figures.save_share_max * 100.0
        ));
    for row in verdicts {
        answer = answer.line(format!("{}  {}: {}", row.verdict, row.row, row.reason));
    }
    Ok(answer)
}
