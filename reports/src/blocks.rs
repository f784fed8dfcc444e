//! Generated blocks of a document: what stands between `<!-- assay:begin NAME -->` and `<!-- assay:end NAME -->`.

use std::collections::BTreeMap;
use std::ops::Range;

/// What is wrong with a document's markers.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BlockError {
    /// No such block.
    #[error("expected a line {marker:?}, found none")]
    Missing {
        /// The marker.
        marker: String,
    },
    /// A block that begins or ends twice.
    #[error("expected one line {marker:?}, found {found}")]
    Repeated {
        /// The marker.
        marker: String,
        /// How often it is there.
        found: usize,
    },
    /// A block that ends before it begins.
    #[error("block {name:?} ends before it begins")]
    Reversed {
        /// The block.
        name: String,
    },
}

fn begin(name: &str) -> String {
    format!("<!-- assay:begin {name} -->")
}

fn end(name: &str) -> String {
    format!("<!-- assay:end {name} -->")
}

/// The names of the blocks that `text` has, in order.
pub fn blocks_in(text: &str) -> Vec<String> {
    let name = |line: &str| {
        let name = line.trim().strip_prefix("<!-- assay:begin ")?.strip_suffix(" -->")?;
        Some(name.to_owned())
    };
    text.lines().filter_map(name).collect()
}

/// `text` with `table` in the block `name`; everything else as it was.
///
/// # Errors
/// [`BlockError`] if the block is not there exactly once.
pub fn update_between_markers(text: &str, name: &str, table: &str) -> Result<String, BlockError> {
    let block = find(text, name)?;
    Ok(format!("{}{}{}", &text[..block.start], content(table), &text[block.end..]))
}

/// The blocks of `text` that are not what `tables` (by name) says, in order; a block that no table is given for is stale
/// too, as nothing vouches for its figures.
///
/// # Errors
/// [`BlockError`] if a block that `tables` names is not there exactly once.
pub fn stale_blocks(text: &str, tables: &BTreeMap<String, String>) -> Result<Vec<String>, BlockError> {
    for name in tables.keys() {
        find(text, name)?;
    }
    let mut stale = Vec::new();
    for name in blocks_in(text) {
        let block = find(text, &name)?;
        if tables.get(&name).is_none_or(|table| text[block] != content(table)) {
            stale.push(name);
        }
    }
    Ok(stale)
}

/// Lines outside the blocks that state a measured figure, by its unit: nobody types one.
pub fn typed_figures(text: &str) -> Vec<String> {
    let mut inside = false;
    let mut found = Vec::new();
    for line in text.lines() {
        let marker = line.trim();
        inside = (inside || marker.starts_with("<!-- assay:begin ")) && !marker.starts_with("<!-- assay:end ");
        let mut words = line.split_whitespace().peekable();
        while let Some(word) = words.next() {
            let number =
                word.trim_start_matches(['(', '~', '*', '|']).starts_with(|first: char| first.is_ascii_digit());
            if !inside
                && number
                && words.peek().is_some_and(|unit| unit.starts_with("tok/s") || unit.starts_with("tokens/s"))
            {
                found.push(line.trim().to_owned());
                break;
            }
        }
    }
    found
}

/// Blank lines, so that Markdown sees a table and not more of the comment.
fn content(table: &str) -> String {
    format!("\n{}\n\n", table.trim_end())
}

/// The bytes between the marker lines.
fn find(text: &str, name: &str) -> Result<Range<usize>, BlockError> {
    let (begins, ends) = (line(text, &begin(name))?, line(text, &end(name))?);
    if begins.end > ends.start {
        return Err(BlockError::Reversed { name: name.to_owned() });
    }
    Ok(begins.end..ends.start)
}

/// The bytes of the one line that is `marker`, newline included.
fn line(text: &str, marker: &str) -> Result<Range<usize>, BlockError> {
    let mut found = Vec::new();
    let mut start = 0;
    for line in text.split_inclusive('\n') {
        if line.trim() == marker {
            found.push(start..start + line.len());
        }
        start += line.len();
    }
    match found.as_slice() {
        [] => Err(BlockError::Missing { marker: marker.to_owned() }),
        [one] => Ok(one.clone()),
        more => Err(BlockError::Repeated { marker: marker.to_owned(), found: more.len() }),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const TEXT: &str = "# Title\n\n<!-- assay:begin speed -->\nold\n<!-- assay:end speed -->\n\nprose\n<!-- assay:begin ppl -->\n<!-- assay:end ppl -->";

    #[test]
    fn a_block_is_replaced_and_nothing_else() {
        let updated = update_between_markers(TEXT, "speed", "| a |\n").unwrap();
        assert_eq!(updated, TEXT.replace("old\n", "\n| a |\n\n"));
        assert_eq!(update_between_markers(&updated, "speed", "| a |\n").unwrap(), updated, "again changes nothing");
        let last = update_between_markers(TEXT, "ppl", "| b |").unwrap();
        assert!(last.ends_with("<!-- assay:begin ppl -->\n\n| b |\n\n<!-- assay:end ppl -->"));
    }

    #[test]
    fn stale_blocks_are_named() {
        let tables =
            BTreeMap::from([("speed".to_owned(), "| a |\n".to_owned()), ("ppl".to_owned(), "| b |\n".to_owned())]);
        assert_eq!(stale_blocks(TEXT, &tables).unwrap(), ["speed", "ppl"]);
        let mut text = update_between_markers(TEXT, "speed", "| a |\n").unwrap();
        assert_eq!(stale_blocks(&text, &tables).unwrap(), ["ppl"]);
        text = update_between_markers(&text, "ppl", "| b |\n").unwrap();
        assert!(stale_blocks(&text, &tables).unwrap().is_empty());
        let one = BTreeMap::from([("speed".to_owned(), "| a |\n".to_owned())]);
        assert_eq!(stale_blocks(&text, &one).unwrap(), ["ppl"], "no table vouches for it");
        let edited = text.replace("| a |", "| 9 |");
        assert_eq!(stale_blocks(&edited, &tables).unwrap(), ["speed"]);
    }

    #[test]
    fn a_typed_figure_is_named() {
        let text =
            "a rate\n87.9 tok/s of ours\n<!-- assay:begin x -->\n9 tok/s\n<!-- assay:end x -->\n(5 tok/s)\nin tok/s";
        assert_eq!(typed_figures(text), ["87.9 tok/s of ours", "(5 tok/s)"]);
    }

    #[test]
    fn markers_must_be_there_once_and_in_order() {
        let missing = update_between_markers(TEXT, "other", "").unwrap_err();
        assert_eq!(missing.to_string(), "expected a line \"<!-- assay:begin other -->\", found none");
        let twice = format!("{TEXT}\n{TEXT}");
        assert!(matches!(update_between_markers(&twice, "speed", ""), Err(BlockError::Repeated { found: 2, .. })));
        let reversed = "<!-- assay:end x -->\n<!-- assay:begin x -->\n";
        assert!(matches!(update_between_markers(reversed, "x", ""), Err(BlockError::Reversed { .. })));
        assert_eq!(blocks_in(TEXT), ["speed", "ppl"]);
    }
}
