#![allow(clippy::unwrap_used)]
use super::*;
use assay_engine::checkpoint::tokenizer::Tokenizer;
use assay_ledgers::Sha256;
use std::path::Path;

fn repository() -> Repository {
    Repository::find().unwrap()
}

fn tokenizer() -> Tokenizer {
    Tokenizer::open(&repository().path("fixtures/models/tiny-moe")).unwrap()
}

/// The packaged set where cargo can deliver it: a machine without a network and without the package cannot.
fn packaged() -> Option<Corpus> {
    match Corpus::load(PromptSet::Packaged, &repository()) {
        Ok(corpus) => Some(corpus),
        Err(CorpusError::NotFound(reason)) => {
            eprintln!("not run: {reason}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// A corpus of two made-up books: paragraphs of ten words.
fn small() -> Corpus {
    let book = |name: &str, paragraphs: usize| {
        let text: String =
            (0..paragraphs).map(|n| format!("\nParagraph {n} of {name} — it has ten words.\n")).collect();
        Book::of_text(name, &text)
    };
    Corpus { set: PromptSet::Packaged, books: vec![book("long", 500), book("short", 50)] }
}

#[test]
fn regions_divide_a_book_without_touching() {
    for book in small().books {
        let ranges = [Region::Timed, Region::WarmUp, Region::Heatmap].map(|region| book.range(region));
        assert_eq!(ranges[0].start, 0);
        assert_eq!(ranges[2].end, book.bytes());
        assert_eq!((ranges[0].end, ranges[1].end), (ranges[1].start, ranges[2].start));
        let fifth = book.bytes() as f64 / 5.0;
        assert!((ranges[2].len() as f64 - fifth).abs() < 8.0);
    }
}

#[test]
fn prompts_are_exact_repeatable_and_keep_to_their_region() {
    let (corpus, tokenizer) = (small(), tokenizer());
    let cutter = PromptCutter::new(&corpus, &tokenizer);
    for tokens in [1, 7, 200] {
        for repetition in 0..6 {
            for (prompt_use, region) in [(PromptUse::Timed, Region::Timed), (PromptUse::WarmUp, Region::WarmUp)] {
                let prompt = cutter.cut(prompt_use, tokens, repetition).unwrap();
                assert_eq!(prompt.tokens.len(), tokens);
                assert_eq!(prompt, cutter.cut(prompt_use, tokens, repetition).unwrap());
                let book = corpus.books.iter().find(|book| book.file == prompt.span.book).unwrap();
                let range = book.range(region);
                assert!(range.start <= prompt.span.start && prompt.span.end <= range.end);
                assert!(book.text(region)[prompt.span.start - range.start..].starts_with("Paragraph"));
                check_disjoint(&[prompt.span], &[book.span(book.range(Region::Heatmap))]).unwrap();
            }
        }
    }
}

#[test]
fn repetitions_differ() {
    let (corpus, tokenizer) = (small(), tokenizer());
    let cutter = PromptCutter::new(&corpus, &tokenizer);
    let mut prompts: Vec<_> =
        (0..6).map(|repetition| cutter.cut(PromptUse::Timed, 20, repetition).unwrap().tokens).collect();
    prompts.sort();
    prompts.dedup();
    assert_eq!(prompts.len(), 6);
}

#[test]
fn a_text_that_ends_early_gives_way_to_the_next_book_or_is_an_error() {
    let (corpus, tokenizer) = (small(), tokenizer());
    let cutter = PromptCutter::new(&corpus, &tokenizer);
    let whole = |index: usize| tokenizer.encode(corpus.books[index].text(Region::Timed)).unwrap().len();
    let tokens = whole(1) + 1;
    for repetition in 0..4 {
        let prompt = cutter.cut(PromptUse::Timed, tokens, repetition).unwrap();
        assert_eq!((prompt.span.book.as_str(), prompt.tokens.len()), ("long", tokens));
    }
    let message = cutter.cut(PromptUse::Timed, whole(0) + 1, 0).unwrap_err().to_string();
    assert!(message.contains(&format!("{} tokens", whole(0) + 1)) && message.contains("packaged"), "{message}");
}

#[test]
fn spread_texts_do_not_overlap() {
    let (corpus, tokenizer) = (small(), tokenizer());
    let cutter = PromptCutter::new(&corpus, &tokenizer);
    let texts = cutter.spread(Region::Timed, 3, 50).unwrap();
    assert_eq!(texts.len(), 6);
    for (index, text) in texts.iter().enumerate() {
        assert_eq!(text.tokens.len(), 50);
        let others: Vec<_> = texts[..index].iter().map(|other| other.span.clone()).collect();
        check_disjoint(std::slice::from_ref(&text.span), &others).unwrap();
    }
    assert!(matches!(cutter.spread(Region::Timed, 30, 500), Err(PromptError::StretchTooShort { .. })));
}

#[test]
fn random_ids_are_exact_repeatable_and_differ_by_use() {
    let corpus = Corpus { set: PromptSet::Random, books: Vec::new() };
    let tokenizer = tokenizer();
    let cutter = PromptCutter::new(&corpus, &tokenizer);
    let cut = |prompt_use, tokens, repetition| cutter.cut(prompt_use, tokens, repetition).unwrap();
    let first = cut(PromptUse::Timed, 300, 0);
    assert_eq!(first, cut(PromptUse::Timed, 300, 0));
    assert_eq!(first.tokens.len(), 300);
    assert!(first.tokens.iter().all(|&id| id <= tokenizer.largest_id()));
    for other in [cut(PromptUse::Timed, 300, 1), cut(PromptUse::WarmUp, 300, 0), cut(PromptUse::Timed, 301, 0)] {
        assert!(other.tokens[..300] != first.tokens && !other.span.overlaps(&first.span));
    }
    assert_eq!(cutter.spread(Region::WarmUp, 2, 50).unwrap().len(), 12);
}

#[test]
fn an_overlap_with_the_heatmap_is_found_by_text_not_by_name() {
    let book = Book::of_text("one", "0123456789");
    let span = |start, end| book.span(start..end);
    check_disjoint(&[span(0, 8)], &[span(8, 10)]).unwrap();
    let renamed = TextSpan { book: "two".into(), ..span(7, 10) };
    let message = check_disjoint(&[span(0, 8)], &[renamed]).unwrap_err().to_string();
    assert!(message.contains("0..8 of one") && message.contains("7..10 of two"), "{message}");
    check_disjoint(&[span(0, 8)], &[Book::of_text("three", "another").span(0..7)]).unwrap();
}

#[test]
fn a_changed_file_is_refused_with_both_digests() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("book.txt");
    let raw = "\u{feff}head\r\n*** START OF X ***\r\nbody\r\n*** END OF X ***\r\n";
    let pin = |sha256, canonical_sha256| BookPin {
        file: "book.txt".into(),
        title: "Book".into(),
        gutenberg: 1,
        sha256,
        canonical_sha256,
        canonical_bytes: 5,
    };
    let (raw_digest, digest, other) = (Sha256::of(raw.as_bytes()), Sha256::of(b"body\n"), Sha256::of(b"other"));
    let read = |bytes: &[u8], pin: &BookPin| {
        std::fs::write(&path, bytes).unwrap();
        Book::read(&path, pin)
    };
    assert_eq!(read(raw.as_bytes(), &pin(raw_digest, digest)).unwrap().bytes(), 5);
    for (pin, found) in [(pin(other, digest), raw_digest), (pin(raw_digest, other), digest)] {
        let message = read(raw.as_bytes(), &pin).unwrap_err().to_string();
        assert!([found, other].iter().all(|digest| message.contains(&digest.to_string())), "{message}");
    }
    let message = read(b"abc\xff", &pin(other, other)).unwrap_err().to_string();
    assert!(message.contains("not UTF-8 from byte 3"), "{message}");
    let message = Book::read(Path::new("/nonexistent/book.txt"), &pin(other, other)).unwrap_err().to_string();
    assert!(message.contains("/nonexistent/book.txt"), "{message}");
}

#[test]
fn the_packaged_set_is_what_is_pinned_and_long_enough_for_every_suite() {
    let Some(corpus) = packaged() else { return };
    assert_eq!(corpus.books.len(), 6);
    let tokenizer = tokenizer();
    let cutter = PromptCutter::new(&corpus, &tokenizer);
    for repetition in 0..6 {
        assert_eq!(cutter.cut(PromptUse::Timed, 50_000, repetition).unwrap().tokens.len(), 50_000);
    }
    assert_eq!(cutter.spread(Region::Timed, 4, 2048).unwrap().len(), 24);
}
