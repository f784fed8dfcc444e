//! One form of a Project Gutenberg text, whatever line ends and licence it was served with.

/// Why a file has no canonical text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MarkerError {
    /// No start.
    #[error("no line that starts with \"*** START OF\"")]
    NoStart,
    /// No end after the start.
    #[error("no line that starts with \"*** END OF\" after the start")]
    NoEnd,
}

/// What lies between the line `*** START OF …` and the line `*** END OF …` (with or without the space), byte-order
/// mark dropped, CRLF turned into LF.
pub(super) fn canonical(raw: &str) -> Result<String, MarkerError> {
    let text = raw.strip_prefix('\u{feff}').unwrap_or(raw).replace("\r\n", "\n");
    let (_, after_start) = marker(&text, "START OF").ok_or(MarkerError::NoStart)?;
    let body = &text[after_start..];
    let (end, _) = marker(body, "END OF").ok_or(MarkerError::NoEnd)?;
    Ok(body[..end].to_owned())
}

/// Byte offsets of the first line that starts with `***` and `words`, and of the line after it.
fn marker(text: &str, words: &str) -> Option<(usize, usize)> {
    let mut start = 0;
    for line in text.split_inclusive('\n') {
        let end = start + line.len();
        if line.strip_prefix("***").is_some_and(|rest| rest.trim_start().starts_with(words)) {
            return Some((start, end));
        }
        start = end;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_licence_and_line_ends_go() {
        let raw = "\u{feff}Title\r\n*** START OF THIS EBOOK X ***\r\n\r\nOne.\r\n\r\nTwo — three.\r\n*** END OF THIS EBOOK X ***\r\n*** START: FULL LICENSE ***\r\n";
        assert_eq!(canonical(raw).as_deref(), Ok("\nOne.\n\nTwo — three.\n"));
        assert_eq!(canonical("***START OF X***\na\n***END OF X***").as_deref(), Ok("a\n"));
    }

    #[test]
    fn a_missing_marker_is_named() {
        assert_eq!(canonical("one\ntwo\n"), Err(MarkerError::NoStart));
        assert_eq!(canonical("*** END OF X\n*** START OF X\nbody\n"), Err(MarkerError::NoEnd));
        assert_eq!(canonical(""), Err(MarkerError::NoStart));
    }
}
