//! A JSON body, field by field.

use std::collections::BTreeMap;

use assay_engine::json;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use crate::error::ApiError;

/// The fields of a body that nobody has taken yet.
#[derive(Debug)]
pub(crate) struct Fields(BTreeMap<String, Box<RawValue>>);

impl Fields {
    /// Reads an object; names that stand twice are refused, since parsers disagree about which one counts.
    pub(crate) fn parse(body: &[u8]) -> Result<Self, ApiError> {
        let wrong =
            |error: serde_json::Error| ApiError::invalid(format!("the body is not JSON that can be used: {error}"));
        json::check(body).map_err(wrong)?;
        serde_json::from_slice(body).map(Self).map_err(wrong)
    }

    /// Takes a field; null is absent.
    pub(crate) fn take<T: DeserializeOwned>(&mut self, name: &str) -> Result<Option<T>, ApiError> {
        match self.0.remove(name) {
            None => Ok(None),
            Some(raw) => {
                serde_json::from_str(raw.get()).map_err(|error| ApiError::field(name, format!("{name}: {error}")))
            }
        }
    }

    /// Takes a field that must be there.
    pub(crate) fn require<T: DeserializeOwned>(&mut self, name: &str) -> Result<T, ApiError> {
        self.take(name)?.ok_or_else(|| ApiError::field(name, format!("{name} is missing")))
    }

    /// Takes a number, within bounds.
    pub(crate) fn number(&mut self, name: &str, low: f64, high: f64) -> Result<Option<f64>, ApiError> {
        let Some(number) = self.take::<f64>(name)? else { return Ok(None) };
        if (low..=high).contains(&number) {
            return Ok(Some(number));
        }
        Err(ApiError::field(name, format!("{name} is {number}, expected {low} to {high}")))
    }

    /// Takes a whole number, within bounds.
    pub(crate) fn integer(&mut self, name: &str, low: i64, high: i64) -> Result<Option<i64>, ApiError> {
        let Some(number) = self.take::<i64>(name)? else { return Ok(None) };
        if (low..=high).contains(&number) {
            return Ok(Some(number));
        }
        Err(ApiError::field(name, format!("{name} is {number}, expected {low} to {high}")))
    }

    /// Drops fields that change nothing in an answer.
    pub(crate) fn ignore(&mut self, names: &[&str]) {
        for name in names {
            self.0.remove(*name);
        }
    }

    /// Takes a field that may only have one value: the one that changes nothing.
    pub(crate) fn only<T: DeserializeOwned + PartialEq>(
        &mut self,
        name: &str,
        neutral: &T,
        expected: &str,
    ) -> Result<(), ApiError> {
        match self.take::<T>(name) {
            Ok(None) => Ok(()),
            Ok(Some(value)) if value == *neutral => Ok(()),
            _ => Err(ApiError::unsupported(name, format!("{name}: this server supports {expected} alone"))),
        }
    }

    /// Refuses what is left, unless it is null.
    pub(crate) fn finish(self) -> Result<(), ApiError> {
        match self.0.into_iter().find(|(_, raw)| raw.get() != "null") {
            None => Ok(()),
            Some((name, _)) => {
                let shown: String = name.chars().filter(|char| !char.is_control()).take(80).collect();
                Err(ApiError::unsupported(&shown, format!("{shown} is not supported by this server")))
            }
        }
    }
}
