use crate::common::{Random, check, same, with_threads};
use assay_kernels::simd::Level;
use assay_kernels::{AttentionForm, KernelError, KvFormat, KvLayout, simd, twin};

struct Case {
    format: KvFormat,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    /// Positions appended before the queries.
    past: usize,
    tokens: usize,
}

impl Case {
    fn layout(&self) -> KvLayout {
        KvLayout {
            format: self.format,
            capacity_tokens: self.past + self.tokens + 3,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
        }
    }

    fn name(&self) -> String {
        let Case { format, heads, kv_heads, head_dim, past, tokens } = self;
        format!("attention {format:?} heads {heads}/{kv_heads} x {head_dim} past {past} tokens {tokens}")
    }

    /// Queries, and a cache whose unused bytes are NaN.
    fn operands(&self) -> (Vec<f32>, Vec<u8>) {
        let mut random = Random((self.past * 131 + self.tokens * 7 + self.head_dim) as u64);
        let layout = self.layout();
        let kv = (self.past + self.tokens) * self.kv_heads * self.head_dim;
        let (k, v) = (random.floats(kv), random.floats(kv));
        let mut cache = vec![0xff; layout.bytes().unwrap()];
        twin::kv_append(&k, &v, 0, layout, &mut cache).unwrap();
        for &level in Level::available() {
            let mut found = vec![0xff; cache.len()];
            let first = self.past * self.kv_heads * self.head_dim;
            level.force(|| {
                simd::kv_append(&k[..first], &v[..first], 0, layout, &mut found).unwrap();
                simd::kv_append(&k[first..], &v[first..], self.past, layout, &mut found).unwrap();
            });
            assert!(cache == found, "kv_append before {}, {level:?}", self.name());
        }
        (random.floats(self.tokens * self.heads * self.head_dim), cache)
    }

    fn run(&self) {
        self.run_form(&self.operands(), AttentionForm::causal(0.3));
    }

    /// Windows that start anywhere in a split, and sinks, by themselves and together.
    fn run_forms(&self) {
        let operands = self.operands();
        let sinks: Vec<f32> = Random(self.heads as u64).floats(self.heads);
        for window in [1, 2, 31, 100, 128, 129, 200, 1000] {
            self.run_form(&operands, AttentionForm { scale: 0.3, window: Some(window), sinks: None });
        }
        for window in [None, Some(1), Some(50), Some(140)] {
            self.run_form(&operands, AttentionForm { scale: 0.3, window, sinks: Some(&sinks) });
        }
    }

    fn run_form(&self, (q, cache): &(Vec<f32>, Vec<u8>), form: AttentionForm<'_>) {
        let mut expected = vec![f32::NAN; q.len()];
        twin::attention(q, self.heads, self.past, self.layout(), cache, form, &mut expected).unwrap();
        assert!(expected.iter().all(|x| x.is_finite()));
        check(&format!("{} {form:?}", self.name()), &expected, |out| {
            simd::attention(q, self.heads, self.past, self.layout(), cache, form, out).unwrap();
        });
    }
}

#[test]
fn awkward_shapes() {
    for format in KvFormat::ALL {
        for (heads, kv_heads, head_dim) in [(4, 2, 64), (1, 1, 2), (3, 3, 34), (10, 2, 16), (7, 1, 40), (2, 1, 256)] {
            for (past, tokens) in [(0, 1), (5, 1), (127, 1), (128, 1), (300, 1), (0, 17), (100, 31), (250, 9), (120, 2)]
            {
                Case { format, heads, kv_heads, head_dim, past, tokens }.run();
            }
        }
    }
}

#[test]
fn longer_than_one_unit() {
    for format in KvFormat::ALL {
        for (past, tokens) in [(0, 200), (33, 129), (640, 70)] {
            Case { format, heads: 4, kv_heads: 2, head_dim: 32, past, tokens }.run();
        }
        Case { format, heads: 24, kv_heads: 1, head_dim: 48, past: 90, tokens: 80 }.run();
    }
}

#[test]
fn windows_and_sinks() {
    std::thread::scope(|scope| {
        for format in KvFormat::ALL {
            scope.spawn(move || windows_and_sinks_of(format));
        }
    });
}

fn windows_and_sinks_of(format: KvFormat) {
    for (heads, kv_heads, head_dim) in [(4, 2, 16), (7, 1, 34)] {
        for (past, tokens) in [(0, 1), (127, 1), (128, 1), (300, 1), (0, 70), (100, 41), (250, 9), (120, 140)] {
            Case { format, heads, kv_heads, head_dim, past, tokens }.run_forms();
        }
    }
    for tokens in [1, 3] {
        Case { format, heads: 4, kv_heads: 1, head_dim: 32, past: 2000, tokens }.run_forms();
        let long = Case { format, heads: 4, kv_heads: 1, head_dim: 64, past: 4000, tokens };
        let form = AttentionForm { scale: 0.3, window: Some(3000), sinks: Some(&[0.1, 0.2, 9.0, -9.0]) };
        long.run_form(&long.operands(), form);
    }
}

/// One token at a long context goes split by split over several threads, in rounds where there is much to merge.
#[test]
fn decode_at_a_long_context() {
    for threads in [1, 3, 8] {
        with_threads(threads, || {
            for (format, heads, kv_heads, tokens) in
                [(KvFormat::F32, 4, 1, 1), (KvFormat::Bf16, 6, 3, 2), (KvFormat::Int6, 6, 3, 2)]
            {
                Case { format, heads, kv_heads, head_dim: 40, past: 2500, tokens }.run();
            }
        });
    }
    with_threads(2, || {
        Case { format: KvFormat::F32, heads: 130, kv_heads: 1, head_dim: 128, past: 4600, tokens: 1 }.run()
    });
}

/// The whole prompt, token by token, and any chunks give the same bits.
#[test]
fn chunks_do_not_show() {
    for (format, window) in [
        (KvFormat::F32, None),
        (KvFormat::Bf16, Some(150)),
        (KvFormat::Int8, None),
        (KvFormat::Int6, Some(150)),
        (KvFormat::Int4, None),
    ] {
        let whole = Case { format, heads: 4, kv_heads: 2, head_dim: 64, past: 0, tokens: 300 };
        let (q, cache) = whole.operands();
        let width = whole.heads * whole.head_dim;
        let mut expected = vec![f32::NAN; q.len()];
        let form = AttentionForm { scale: 0.125, window, sinks: Some(&[0.5, -1.0, 2.0, 0.0]) };
        simd::attention(&q, whole.heads, 0, whole.layout(), &cache, form, &mut expected).unwrap();
        for chunk in [1, 7, 17, 64, 128, 129] {
            let mut found = vec![f32::NAN; q.len()];
            for (index, (q, out)) in q.chunks(chunk * width).zip(found.chunks_mut(chunk * width)).enumerate() {
                simd::attention(q, whole.heads, index * chunk, whole.layout(), &cache, form, out).unwrap();
            }
            same(&format!("{format:?} chunks of {chunk}"), &expected, &found);
        }
    }
}

/// A later position does not exist for an earlier query, even where it would poison every sum.
#[test]
fn what_a_query_may_not_see_does_not_exist() {
    for format in KvFormat::ALL {
        let case = Case { format, heads: 4, kv_heads: 2, head_dim: 32, past: 0, tokens: 150 };
        let (q, mut cache) = case.operands();
        let bad = [f32::INFINITY; 64];
        for position in [70, 140] {
            twin::kv_append(&[1.0; 64], &bad, position, case.layout(), &mut cache).unwrap();
        }
        let mut expected = vec![f32::NAN; q.len()];
        twin::attention(&q, 4, 0, case.layout(), &cache, AttentionForm::causal(0.3), &mut expected).unwrap();
        let (before, after) = expected.split_at(70 * 4 * 32);
        assert!(before.iter().all(|x| x.is_finite()) && after.iter().all(|x| !x.is_finite()));
        for &level in Level::available() {
            let mut found = vec![f32::NAN; q.len()];
            let form = AttentionForm::causal(0.3);
            level.force(|| simd::attention(&q, 4, 0, case.layout(), &cache, form, &mut found).unwrap());
            same(&format!("{format:?}, {level:?}"), before, &found[..before.len()]);
        }
    }
}

/// What a window has left behind does not exist either.
#[test]
fn what_has_left_the_window_does_not_exist() {
    let form = AttentionForm { scale: 0.3, window: Some(30), sinks: None };
    for format in KvFormat::ALL {
        let case = Case { format, heads: 4, kv_heads: 2, head_dim: 32, past: 0, tokens: 200 };
        let (q, mut cache) = case.operands();
        for position in [3, 77, 126] {
            twin::kv_append(&[f32::NAN; 64], &[f32::INFINITY; 64], position, case.layout(), &mut cache).unwrap();
        }
        let mut expected = vec![f32::NAN; q.len()];
        twin::attention(&q, 4, 0, case.layout(), &cache, form, &mut expected).unwrap();
        for (position, row) in expected.chunks(4 * 32).enumerate() {
            let poisoned = [3, 77, 126].iter().any(|bad| (*bad..bad + 30).contains(&position));
            assert_eq!(row.iter().all(|x| x.is_finite()), !poisoned, "position {position}");
        }
        for &level in Level::available() {
            let mut found = vec![f32::NAN; q.len()];
            level.force(|| simd::attention(&q, 4, 0, case.layout(), &cache, form, &mut found).unwrap());
            for (index, (e, f)) in expected.iter().zip(&found).enumerate() {
                assert!(e.to_bits() == f.to_bits() || !e.is_finite() && !f.is_finite(), "{format:?} {level:?} {index}");
            }
        }
    }
}

/// What the two-pass definition of softmax in f64 says, with and without a window and sinks.
#[test]
fn the_twin_is_attention() {
    let case = Case { format: KvFormat::F32, heads: 2, kv_heads: 1, head_dim: 16, past: 0, tokens: 150 };
    let mut random = Random(9);
    let (k, v, q) = (random.floats(150 * 16), random.floats(150 * 16), random.floats(150 * 32));
    let mut cache = vec![0; case.layout().bytes().unwrap()];
    twin::kv_append(&k, &v, 0, case.layout(), &mut cache).unwrap();
    for (window, sinks) in [(None, None), (Some(40), None), (None, Some([0.7, -2.0])), (Some(130), Some([-0.3, 3.0]))] {
        let form = AttentionForm { scale: 0.25, window, sinks: sinks.as_ref().map(|sinks| &sinks[..]) };
        let mut found = vec![0.0; q.len()];
        twin::attention(&q, 2, 0, case.layout(), &cache, form, &mut found).unwrap();
        for (row, (q, found)) in q.chunks(16).zip(found.chunks(16)).enumerate() {
            let position = row / 2;
            let seen = position + 1 - window.unwrap_or(position + 1).min(position + 1)..position + 1;
            let dot = |k: &[f32]| q.iter().zip(k).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>() * 0.25;
            let p: Vec<f64> = seen.clone().map(|j| dot(&k[16 * j..][..16]).exp()).collect();
            let sink = sinks.map_or(0.0, |sinks: [f32; 2]| f64::from(sinks[row % 2]).exp());
            let sum = p.iter().sum::<f64>() + sink;
            for d in 0..16 {
                let weighted = p.iter().zip(seen.clone()).map(|(p, j)| p * f64::from(v[16 * j + d]));
                let exact = weighted.sum::<f64>() / sum;
                assert!((exact - f64::from(found[d])).abs() < 1e-5, "row {row} dim {d} window {window:?}");
            }
        }
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let layout = KvLayout { format: KvFormat::F32, capacity_tokens: 4, kv_heads: 2, head_dim: 4 };
    let mut cache = vec![0; layout.bytes().unwrap()];
    let row = [0.0; 8];
    let late = simd::kv_append(&row, &row, 4, layout, &mut cache).unwrap_err();
    assert_eq!(late.to_string(), "kv_append: the last position 4 is out of range, expected less than 4");
    let mut out = [0.0; 12];
    let heads = simd::attention(&[0.0; 12], 3, 0, layout, &cache, AttentionForm::causal(1.0), &mut out).unwrap_err();
    assert_eq!(heads.to_string(), "attention: heads is 3, expected a positive multiple of kv_heads");
    let narrow = AttentionForm { scale: 1.0, window: Some(0), sinks: None };
    let narrow = simd::attention(&row, 2, 0, layout, &cache, narrow, &mut [0.0; 8]).unwrap_err();
    assert_eq!(narrow.to_string(), "attention: window is 0, expected at least 1");
    let sinks = AttentionForm { scale: 1.0, window: None, sinks: Some(&[1.0]) };
    let sinks = simd::attention(&row, 2, 0, layout, &cache, sinks, &mut [0.0; 8]).unwrap_err();
    assert_eq!(sinks.to_string(), "attention: sinks [heads] is 1, expected 2");
    let short =
        simd::attention(&row, 2, 0, layout, &cache[1..], AttentionForm::causal(1.0), &mut [0.0; 8]).unwrap_err();
    assert!(matches!(short, KernelError::Shape { what: "cache bytes", .. }));
}
