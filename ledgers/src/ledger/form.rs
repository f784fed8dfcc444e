//! Whether bytes are in the canonical form of RFC 8785, in one pass and without building anything.
//!
//! Writing a record again and comparing would say the same at four times the cost of all other checks together, and
//! verifying is what large ledgers wait for.

/// True if `content` and a closing brace are one canonical JSON object that holds no null: a field that does not apply
/// is absent.
pub(crate) fn is_canonical_object(content: &[u8]) -> bool {
    let mut scanner = Scanner { bytes: content, at: 0 };
    scanner.expect(b'{') && scanner.members(None, 0) && scanner.at == content.len()
}

/// Deeper nesting than any record has; bounds the recursion.
const DEPTH_MAX: usize = 64;

struct Scanner<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Scanner<'a> {
    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn expect(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        self.at += usize::from(found);
        found
    }

    fn literal(&mut self, text: &[u8]) -> bool {
        let found = self.bytes[self.at..].starts_with(text);
        self.at += if found { text.len() } else { 0 };
        found
    }

    fn value(&mut self, depth: usize) -> bool {
        match self.peek() {
            _ if depth > DEPTH_MAX => false,
            Some(b'{') => self.expect(b'{') && self.members(Some(b'}'), depth),
            Some(b'[') => self.expect(b'[') && self.elements(depth),
            Some(b'"') => self.string().is_some(),
            Some(b't') => self.literal(b"true"),
            Some(b'f') => self.literal(b"false"),
            _ => self.number(),
        }
    }

    /// Members up to `end`, or up to the end of the bytes.
    fn members(&mut self, end: Option<u8>, depth: usize) -> bool {
        let mut last: Option<&[u8]> = None;
        if self.peek() == end {
            return end.is_none_or(|end| self.expect(end));
        }
        loop {
            let Some(key) = self.string() else { return false };
            if last.is_some_and(|last| !is_before(last, key)) || !self.expect(b':') || !self.value(depth + 1) {
                return false;
            }
            last = Some(key);
            match self.peek() {
                Some(b',') => self.at += 1,
                next if next == end => return end.is_none_or(|end| self.expect(end)),
                _ => return false,
            }
        }
    }

    fn elements(&mut self, depth: usize) -> bool {
        if self.expect(b']') {
            return true;
        }
        loop {
            if !self.value(depth + 1) {
                return false;
            }
            if self.expect(b']') {
                return true;
            }
            if !self.expect(b',') {
                return false;
            }
        }
    }

    /// The string's content as it is written, escapes and all.
    fn string(&mut self) -> Option<&'a [u8]> {
        if !self.expect(b'"') {
            return None;
        }
        let start = self.at;
        loop {
            match self.peek()? {
                b'"' => {
                    self.at += 1;
                    return Some(&self.bytes[start..self.at - 1]);
                }
                b'\\' => {
                    if !self.escape() {
                        return None;
                    }
                }
                0..=0x1f => return None,
                _ => self.at += 1,
            }
        }
    }

    /// Only what must be escaped is, and in its shortest form.
    fn escape(&mut self) -> bool {
        let rest = &self.bytes[self.at + 1..];
        let length = match rest {
            [b'"' | b'\\' | b'b' | b'f' | b'n' | b'r' | b't', ..] => 2,
            [b'u', b'0', b'0', high, low, ..] => match (high, low) {
                (b'0', b'0'..=b'7' | b'b' | b'e' | b'f') | (b'1', b'0'..=b'9' | b'a'..=b'f') => 6,
                _ => return false,
            },
            _ => return false,
        };
        self.at += length;
        true
    }

    fn number(&mut self) -> bool {
        let rest = &self.bytes[self.at..];
        let in_number = |byte: &u8| byte.is_ascii_digit() || matches!(byte, b'-' | b'+' | b'.' | b'e');
        let length = rest.iter().position(|byte| !in_number(byte)).unwrap_or(rest.len());
        let token = &rest[..length];
        self.at += length;
        // Integers of 15 digits are exact in a double, which prints them as they are.
        let plain = (1..=15).contains(&length) && token.iter().all(u8::is_ascii_digit);
        if plain {
            return token[0] != b'0' || length == 1;
        }
        let number = std::str::from_utf8(token).ok().and_then(|token| token.parse::<f64>().ok());
        number
            .is_some_and(|number| number.is_finite() && ryu_js::Buffer::new().format_finite(number).as_bytes() == token)
    }
}

/// Keys are in order of their UTF-16 code units. For ASCII without escapes that is the order of the bytes.
fn is_before(a: &[u8], b: &[u8]) -> bool {
    let plain = |key: &[u8]| key.iter().all(|&byte| byte.is_ascii() && byte != b'\\');
    if plain(a) && plain(b) {
        return a < b;
    }
    let units = |key: &[u8]| {
        let quoted = [b"\"", key, b"\""].concat();
        serde_json::from_slice::<String>(&quoted).map(|key| key.encode_utf16().collect::<Vec<_>>()).ok()
    };
    matches!((units(a), units(b)), (Some(a), Some(b)) if a < b)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::Value;

    fn scan(object: &[u8]) -> bool {
        object.strip_suffix(b"}").is_some_and(is_canonical_object)
    }

    /// What the scan stands for: an object that its canonical form equals, without nulls.
    fn reference(object: &[u8]) -> bool {
        fn has_null(value: &Value) -> bool {
            match value {
                Value::Null => true,
                Value::Array(values) => values.iter().any(has_null),
                Value::Object(map) => map.values().any(has_null),
                _ => false,
            }
        }
        serde_json::from_slice::<Value>(object).is_ok_and(|value| {
            value.is_object() && !has_null(&value) && crate::hash::canonical(&value).unwrap() == object
        })
    }

    fn any_value() -> impl Strategy<Value = Value> {
        let text = || prop_oneof![any::<String>(), "[ -~]{0,6}", "[\u{0}-\u{24}\\\\/\u{7f}é\u{fb33}😀]{0,4}"];
        let leaf = prop_oneof![
            any::<bool>().prop_map(Value::from),
            (prop::num::f64::NORMAL | prop::num::f64::SUBNORMAL | prop::num::f64::ZERO).prop_map(Value::from),
            (-(1_i64 << 53)..(1 << 53)).prop_map(Value::from),
            (0..20_u64).prop_map(Value::from),
            text().prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 24, 5, move |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
                prop::collection::btree_map(text(), inner, 0..5)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn the_scan_agrees_with_the_canonicaliser(value in any_value(), changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 8)) {
            let bytes = crate::hash::canonical(&serde_json::json!({"value": value, "zz": 1})).unwrap();
            prop_assert!(scan(&bytes), "{}", String::from_utf8_lossy(&bytes));
            for (at, byte) in changes {
                let mut changed = bytes.clone();
                changed[at.index(bytes.len())] = byte;
                prop_assert_eq!(scan(&changed) && std::str::from_utf8(&changed).is_ok(), reference(&changed), "{}", String::from_utf8_lossy(&changed));
            }
        }
    }

    #[test]
    fn forms_by_hand() {
        for good in [
            r#"{}"#,
            r#"{"a":1,"b":[true,false,"",{}]}"#,
            r#"{"a":-1,"b":1e+30,"c":1.5e-7,"d":0}"#,
            r#"{"a":"\u001f\n\"/"}"#,
            "{\"\u{fb33}\":1}",
            "{\"😀\":1,\"\u{fb33}\":2}",
        ] {
            assert!(scan(good.as_bytes()) && reference(good.as_bytes()), "{good}");
        }
        for bad in [
            r#"{"b":1,"a":2}"#,
            r#"{"a":1,"a":2}"#,
            r#"{"a": 1}"#,
            r#"{"a":1.0}"#,
            r#"{"a":01}"#,
            r#"{"a":-0}"#,
            r#"{"a":1e30}"#,
            r#"{"a":null}"#,
            r#"{"a":"\u000a"}"#,
            r#"{"a":"\/"}"#,
            r#"{"a":"\u001F"}"#,
            r#"{"a":"\u0041"}"#,
            r#"{"a":1,}"#,
            r#"{"a":[1,]}"#,
            r#"{"a":}"#,
            r#"{a:1}"#,
            r#"[1}"#,
            r#"{"a":1}}"#,
            r#"{"a":9007199254740993}"#,
            "{\"\u{fb33}\":1,\"😀\":2}",
            r#"{"a":truefalse}"#,
        ] {
            assert!(!scan(bad.as_bytes()) && !reference(bad.as_bytes()), "{bad}");
        }
        let deep = format!("{{\"a\":{}1{}}}", "[".repeat(100_000), "]".repeat(100_000));
        assert!(!scan(deep.as_bytes()));
    }
}
