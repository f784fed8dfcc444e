//! The figures of a record, whatever its kind.

use assay_ledgers::{Body, ComparisonBody, FidelityBody, PerplexityBody, RooflineBody, Spread, TaskBody};

/// One figure.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Figure {
    pub(super) measure: String,
    pub(super) tokens: Option<u64>,
    pub(super) unit: String,
    pub(super) value: f64,
    pub(super) ci95: Option<[f64; 2]>,
}

impl Figure {
    fn new(measure: impl Into<String>, unit: impl Into<String>, value: f64) -> Self {
        Figure { measure: measure.into(), tokens: None, unit: unit.into(), value, ci95: None }
    }

    fn of(self, tokens: u64) -> Self {
        Figure { tokens: Some(tokens), ..self }
    }

    fn between(self, ci95: Option<[f64; 2]>) -> Self {
        Figure { ci95, ..self }
    }
}

/// Every figure of `body`; none of a kind that is words alone.
pub(super) fn figures(body: &Body) -> Vec<Figure> {
    match body {
        Body::Speed(speed) => speed
            .rows
            .iter()
            .map(|row| {
                let depth = row.depth.map_or(String::new(), |depth| format!(" behind {depth}"));
                let measure = format!("{}{depth}", row.measure.as_str());
                Figure::new(measure, &row.unit, row.median).of(row.tokens).between(row.ci95)
            })
            .collect(),
        Body::Comparison(body) => comparison(body),
        Body::Perplexity(body) => perplexity(body),
        Body::Fidelity(body) => fidelity(body),
        Body::Equivalence(body) => {
            let case = |name: &str, figure: &str| format!("{figure} of {name}");
            let of_case = |row: &assay_ledgers::EquivalenceCase| {
                let count = |figure: &str, unit: &str, value: u64| {
                    Figure::new(case(&row.case, figure), unit, value as f64).of(row.tokens)
                };
                [
                    count("logit bit differences", "logits", row.logit_bit_differences),
                    Figure::new(case(&row.case, "largest logit difference"), "logit", row.logit_difference_max)
                        .of(row.tokens),
                    count("tokens reused", "tokens", row.tokens_reused),
                    count("bytes restored", "bytes", row.bytes_restored),
                ]
            };
            body.cases.iter().flat_map(of_case).collect()
        }
        Body::Determinism(body) => body
            .runs
            .iter()
            .filter_map(|run| Some((run, run.first_token_difference?)))
            .map(|(run, at)| Figure::new(format!("first difference of {}", run.run), "token", at as f64).of(run.tokens))
            .collect(),
        Body::Memory(body) => {
            let phases = |what: &str, bytes: &std::collections::BTreeMap<String, u64>| -> Vec<Figure> {
                bytes
                    .iter()
                    .map(|(phase, bytes)| Figure::new(format!("{what} of {phase}"), "bytes", *bytes as f64))
                    .collect()
            };
            [phases("low-water", &body.low_water_bytes), phases("requirement", &body.requirement_bytes)].concat()
        }
        Body::Roofline(body) => roofline(body),
        Body::Task(body) => task(body),
        Body::External(body) => body
            .rows
            .iter()
            .map(|row| Figure {
                tokens: row.tokens,
                ..Figure::new(&row.measure, &row.unit, row.value).between(row.ci95)
            })
            .collect(),
        Body::Check(body) => {
            let of_row = |row: &assay_ledgers::CheckRow| -> Vec<Figure> {
                row.figures
                    .iter()
                    .map(|(name, value)| Figure::new(format!("{}: {name}", row.row), "", *value))
                    .collect()
            };
            body.rows.iter().flat_map(of_row).collect()
        }
        Body::Decision(_) | Body::Invalidation(_) => Vec::new(),
    }
}

fn roofline(body: &RooflineBody) -> Vec<Figure> {
    let mut rows = vec![Figure::new("device memory read", "bytes/s", body.memory_read_bytes_per_s)];
    for link in &body.link {
        let copies = |way: &str| format!("copies of {} bytes by {way}", link.copy_bytes);
        rows.push(Figure::new(copies("the copy engine"), "bytes/s", link.copy_engine_bytes_per_s));
        rows.push(Figure::new(copies("multiprocessors"), "bytes/s", link.multiprocessors_bytes_per_s));
    }
    rows.extend(body.bf16_product_flop_per_s.map(|rate| Figure::new("BF16 product", "operations/s", rate)));
    let times = [("launch", body.launch_s), ("graph node", body.graph_node_s), ("round trip", body.round_trip_s)];
    rows.extend(times.map(|(name, seconds)| Figure::new(name, "s", seconds)));
    rows
}

fn comparison(body: &ComparisonBody) -> Vec<Figure> {
    let of_row = |row: &assay_ledgers::ComparisonRow| {
        let measure = format!("{}: {} to {}", row.measure.as_str(), body.b.name, body.a.name);
        Figure::new(measure, "ratio", row.ratio.value).of(row.tokens).between(row.ratio.ci95)
    };
    body.rows.iter().map(of_row).collect()
}

fn perplexity(body: &PerplexityBody) -> Vec<Figure> {
    let unit = "perplexity";
    let mut rows: Vec<Figure> = body
        .documents
        .iter()
        .map(|row| Figure::new(format!("perplexity of {}", row.document), unit, row.perplexity).of(row.tokens))
        .collect();
    rows.push(Figure::new("perplexity", unit, body.perplexity).of(body.tokens));
    if let Some(other) = &body.comparison {
        let measure = format!("NLL less that of {}", other.against_name);
        rows.push(Figure::new(measure, "nats/token", other.nll_difference).between(other.nll_difference_ci95));
    }
    rows
}

fn fidelity(body: &FidelityBody) -> Vec<Figure> {
    let spread = |what: &str, spread: &Spread| {
        [("mean", spread.mean), ("median", spread.median), ("p99", spread.p99), ("max", spread.max)]
            .map(|(name, value)| Figure::new(format!("{what} {name}"), "nats", value).of(body.positions))
    };
    let flips = body.top1_flips;
    let mut rows: Vec<Figure> = spread("KL", &body.kl).into();
    rows.extend(
        [("all", flips.all), ("to wrong", flips.to_wrong), ("to right", flips.to_right)].map(|(name, count)| {
            Figure::new(format!("top-1 flips {name}"), "positions", count as f64).of(body.positions)
        }),
    );
    rows.push(Figure::new("top-10 containment", "share", body.top10_containment).of(body.positions));
    rows.push(Figure::new("top-10 overlap", "share", body.top10_overlap).of(body.positions));
    rows.extend(spread("first-token JS", &body.first_token_js));
    if let Some(difference) = body.nll_difference {
        rows.push(Figure::new("NLL difference", "nats/token", difference.value).between(difference.ci95));
    }
    rows
}

fn task(body: &TaskBody) -> Vec<Figure> {
    let of_task = |row: &assay_ledgers::TaskRow| {
        let solved =
            row.attempts.iter().filter(|attempt| attempt.outcome == assay_ledgers::TaskOutcome::Solved).count();
        let measure = format!("solved of {} attempts at {}", row.attempts.len(), row.task);
        Figure::new(measure, "attempts", solved as f64).of(row.context_tokens)
    };
    let shares = body.shares.iter().map(|(name, share)| Figure::new(name, "share", share.value).between(share.ci95));
    body.tasks.iter().map(of_task).chain(shares).collect()
}
