//! Judging one chain, line by line, in memory that does not grow with it.

use std::path::{Path, PathBuf};

use super::line::Fault;
use super::verify::{Problem, ProblemKind, Problems};
use crate::Sha256;
use crate::schema::{Head, WriterId};

/// What the chain needs to know of a good record.
pub(crate) struct Link {
    pub(crate) writer: WriterId,
    pub(crate) sequence: u64,
    pub(crate) previous: Option<Sha256>,
    pub(crate) hash: Sha256,
}

/// Sequence numbers that a jump passed over.
struct Gap {
    first: u64,
    last: u64,
    /// The line before which they should have been.
    line: u64,
    /// Lines there that could not be read and may have been them.
    unread: u64,
}

/// A record that the chain must hold: its own head, or one that was written down elsewhere.
struct Anchor {
    count: u64,
    hash: Option<Sha256>,
    source: String,
}

/// One chain under judgement.
pub(crate) struct Chain {
    path: PathBuf,
    writer: WriterId,
    anchors: Vec<Anchor>,
    expected: u64,
    last_hash: Option<Sha256>,
    unread: u64,
    gaps: Vec<Gap>,
    pub(crate) records: u64,
    /// Bytes of all lines so far.
    bytes: u64,
    /// Bytes up to the end of the record that the chain's own head names.
    head: Option<Head>,
}

impl Chain {
    /// `head` is the one beside the chain, `anchors` are heads from elsewhere.
    pub(crate) fn new(path: &Path, writer: &WriterId, head: Option<Head>, anchors: &[Head]) -> Self {
        let mut all: Vec<Anchor> = anchors
            .iter()
            .filter(|anchor| anchor.writer == *writer)
            .map(|anchor| Anchor { count: anchor.count, hash: anchor.hash, source: "an anchored head".to_owned() })
            .collect();
        if let Some(head) = &head {
            all.push(Anchor { count: head.count, hash: head.hash, source: "the head beside the chain".to_owned() });
        }
        Self {
            path: path.to_path_buf(),
            writer: writer.clone(),
            anchors: all,
            expected: 1,
            last_hash: None,
            unread: 0,
            gaps: Vec::new(),
            records: 0,
            bytes: 0,
            head,
        }
    }

    /// True if the next line lies behind the head, where an append that was cut short leaves its bytes.
    pub(crate) fn is_behind_head(&self) -> bool {
        self.head.as_ref().is_some_and(|head| self.bytes >= head.bytes)
    }

    /// Takes the next line, `bytes` long with its newline.
    pub(crate) fn line(&mut self, line: u64, bytes: u64, link: Result<Link, Vec<Fault>>, problems: &mut Problems) {
        self.bytes += bytes;
        match link {
            Ok(link) => self.link(line, &link, problems),
            Err(faults) => {
                self.unread += 1;
                for fault in faults {
                    self.report(problems, line, fault.kind, fault.detail);
                }
            }
        }
    }

    fn link(&mut self, line: u64, link: &Link, problems: &mut Problems) {
        self.records += 1;
        if link.writer != self.writer {
            let detail = format!("record {} belongs to writer {}, not to this chain", link.sequence, link.writer);
            self.report(problems, line, ProblemKind::ForeignWriter, detail);
            return;
        }
        self.check_anchors(line, link, problems);
        if link.sequence < self.expected {
            self.out_of_order(line, link.sequence, problems);
            return;
        }
        if link.sequence > self.expected {
            let (first, last) = (self.expected, link.sequence - 1);
            self.gaps.push(Gap { first, last, line, unread: self.unread });
        } else if self.unread == 0 && link.previous != self.last_hash {
            let detail =
                format!("record {} does not follow the record before it: its previous hash is another", link.sequence);
            self.report(problems, line, ProblemKind::BrokenLink, detail);
        }
        self.unread = 0;
        self.expected = link.sequence.saturating_add(1);
        self.last_hash = Some(link.hash);
        self.check_head_bytes(line, link, problems);
    }

    fn out_of_order(&mut self, line: u64, sequence: u64, problems: &mut Problems) {
        let before = self.expected - 1;
        let Some(at) = self.gaps.iter().position(|gap| (gap.first..=gap.last).contains(&sequence)) else {
            let detail = format!("record {sequence} is here a second time, after record {before}");
            self.report(problems, line, ProblemKind::Duplicated, detail);
            return;
        };
        let gap = self.gaps.swap_remove(at);
        if sequence > gap.first {
            self.gaps.push(Gap { first: gap.first, last: sequence - 1, ..gap });
        }
        if sequence < gap.last {
            let unread = if sequence > gap.first { 0 } else { gap.unread };
            self.gaps.push(Gap { first: sequence + 1, last: gap.last, line: gap.line, unread });
        }
        let detail = format!("records were reordered: record {sequence} comes after record {before}");
        self.report(problems, line, ProblemKind::Reordered, detail);
    }

    fn check_anchors(&self, line: u64, link: &Link, problems: &mut Problems) {
        for anchor in &self.anchors {
            if let Some(hash) = anchor.hash
                && anchor.count == link.sequence
                && hash != link.hash
            {
                let detail = format!(
                    "record {} has hash {}, {} names {}",
                    link.sequence,
                    link.hash.short(),
                    anchor.source,
                    hash.short()
                );
                self.report(problems, line, ProblemKind::BadHead, detail);
            }
        }
    }

    /// The head also names the bytes of the chain; in a chain without faults they must agree.
    fn check_head_bytes(&self, line: u64, link: &Link, problems: &mut Problems) {
        if let Some(head) = &self.head
            && head.count == link.sequence
            && head.bytes != self.bytes
            && self.gaps.is_empty()
            && problems.is_empty()
        {
            let detail = format!(
                "the head says that record {} ends at byte {}, it ends at {}",
                head.count, head.bytes, self.bytes
            );
            self.report(problems, line, ProblemKind::BadHead, detail);
        }
    }

    /// Reports what only the end shows.
    pub(crate) fn finish(self, problems: &mut Problems) {
        for gap in &self.gaps {
            let missing = (gap.last - gap.first).saturating_add(1);
            if missing > gap.unread {
                let detail = match (gap.unread, missing) {
                    (0, 1) => format!("record {} was removed", gap.first),
                    (0, _) => format!("records {} to {} were removed", gap.first, gap.last),
                    (unread, _) => {
                        format!("{} of records {} to {} were removed", missing - unread, gap.first, gap.last)
                    }
                };
                self.report(problems, gap.line, ProblemKind::Removed, detail);
            }
        }
        let found = self.expected - 1;
        for anchor in &self.anchors {
            if anchor.count > found.saturating_add(self.unread) {
                let detail = format!(
                    "{} names {} records, found {found}: the end of the chain was removed",
                    anchor.source, anchor.count
                );
                problems.push(Problem::new(ProblemKind::LostRecords, &self.path, None, detail));
            }
        }
        match &self.head {
            None if self.records > 0 => {
                let detail = format!("the chain holds {} records and has no head", self.records);
                problems.push(Problem::new(ProblemKind::BadHead, &self.path, None, detail));
            }
            Some(head) if head.bytes > self.bytes && problems.is_empty() => {
                let detail = format!("the head names {} bytes, found {}", head.bytes, self.bytes);
                problems.push(Problem::new(ProblemKind::BadHead, &self.path, None, detail));
            }
            _ => {}
        }
    }

    fn report(&self, problems: &mut Problems, line: u64, kind: ProblemKind, detail: String) {
        problems.push(Problem::new(kind, &self.path, Some(line), detail));
    }
}
