//! JSON in which no name stands twice in one object.
//!
//! Readers differ in which of two equal names they believe (the first, the last), so a file with both means different
//! things to different programs. serde keeps the last one silently.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::marker::PhantomData;

use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// A map whose names differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UniqueMap<V>(pub BTreeMap<String, V>);

/// A value in whose objects, at any depth, the names differ.
#[derive(Debug, Clone, PartialEq)]
pub struct UniqueValue(pub Value);

/// Checks that all of `bytes` is one JSON value without equal names in an object, and keeps nothing of it.
///
/// # Errors
/// Where and why it is not.
pub fn check(bytes: &[u8]) -> serde_json::Result<()> {
    serde_json::from_slice::<Checked>(bytes).map(drop)
}

/// A value that was looked at.
struct Checked;

impl<'de> Deserialize<'de> for Checked {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Self)
    }
}

impl<'de> Visitor<'de> for Checked {
    type Value = Self;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("any JSON value")
    }

    fn visit_unit<E>(self) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_str<E>(self, _: &str) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Self, A::Error> {
        while access.next_element::<Self>()?.is_some() {}
        Ok(self)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Self, A::Error> {
        let mut names = HashSet::new();
        while let Some(name) = access.next_key::<String>()? {
            access.next_value::<Self>()?;
            if let Some(name) = names.replace(name) {
                return Err(twice(&name));
            }
        }
        Ok(self)
    }
}

fn twice<E: de::Error>(name: &str) -> E {
    let shown: String = name.chars().take(80).collect();
    E::custom(format_args!("{shown:?} stands twice in one object, expected once"))
}

impl<'de, V: Deserialize<'de>> Deserialize<'de> for UniqueMap<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Names<V>(PhantomData<V>);
        impl<'de, V: Deserialize<'de>> Visitor<'de> for Names<V> {
            type Value = UniqueMap<V>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Self::Value, A::Error> {
                let mut map = BTreeMap::new();
                while let Some(name) = access.next_key::<String>()? {
                    if map.contains_key(&name) {
                        return Err(twice(&name));
                    }
                    map.insert(name, access.next_value()?);
                }
                Ok(UniqueMap(map))
            }
        }
        deserializer.deserialize_map(Names(PhantomData))
    }
}

impl<'de> Deserialize<'de> for UniqueValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Values)
    }
}

struct Values;

impl<'de> Visitor<'de> for Values {
    type Value = UniqueValue;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("any JSON value")
    }

    fn visit_unit<E>(self) -> Result<UniqueValue, E> {
        Ok(UniqueValue(Value::Null))
    }

    fn visit_bool<E>(self, value: bool) -> Result<UniqueValue, E> {
        Ok(UniqueValue(Value::Bool(value)))
    }

    fn visit_u64<E>(self, value: u64) -> Result<UniqueValue, E> {
        Ok(UniqueValue(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<UniqueValue, E> {
        Ok(UniqueValue(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<UniqueValue, E> {
        // JSON has no number that is not finite.
        Ok(UniqueValue(Number::from_f64(value).map_or(Value::Null, Value::Number)))
    }

    fn visit_str<E>(self, value: &str) -> Result<UniqueValue, E> {
        Ok(UniqueValue(value.into()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<UniqueValue, A::Error> {
        let mut items = Vec::new();
        while let Some(UniqueValue(item)) = access.next_element()? {
            items.push(item);
        }
        Ok(UniqueValue(Value::Array(items)))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<UniqueValue, A::Error> {
        let mut fields = Map::new();
        while let Some(name) = access.next_key::<String>()? {
            if fields.contains_key(&name) {
                return Err(twice(&name));
            }
            let UniqueValue(value) = access.next_value()?;
            fields.insert(name, value);
        }
        Ok(UniqueValue(Value::Object(fields)))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn values_are_those_of_serde_unless_a_name_stands_twice() {
        let text = r#"{"a":[null,true,-3,18446744073709551615,1.5,"x",{"a":1,"b":{"a":2}}],"b":{}}"#;
        let UniqueValue(value) = serde_json::from_str(text).unwrap();
        assert_eq!(value, serde_json::from_str::<Value>(text).unwrap());
        check(text.as_bytes()).unwrap();
        for text in [r#"{"a":1,"a":1}"#, r#"{"b":[{"a":1,"c":2,"a":3}]}"#, r#"{"a":1,"\u0061":2}"#] {
            let error = serde_json::from_str::<UniqueValue>(text).unwrap_err().to_string();
            assert!(error.contains("\"a\" stands twice"), "{error}");
            assert!(check(text.as_bytes()).unwrap_err().to_string().contains("\"a\" stands twice"));
        }
        let UniqueMap(map) = serde_json::from_str::<UniqueMap<u32>>(r#"{"b":1,"a":2}"#).unwrap();
        assert_eq!(map.into_iter().collect::<Vec<_>>(), [("a".to_owned(), 2), ("b".to_owned(), 1)]);
        assert!(serde_json::from_str::<UniqueMap<u32>>(r#"{"a":1,"a":2}"#).is_err());
    }
}
