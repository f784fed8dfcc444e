//! A safetensors file taken apart, so that any part of it can lie.

use serde_json::{Map, Value, json};

use crate::place::Place;

const FILE: &str = "model/model.safetensors";

/// A header and the bytes behind it.
pub(crate) struct Weights {
    pub(crate) header: Value,
    pub(crate) data: Vec<u8>,
}

impl Weights {
    pub(crate) fn read(place: &Place) -> Self {
        let bytes = place.read(FILE);
        let (length, rest) = bytes.split_first_chunk().unwrap();
        let (header, data) = rest.split_at(u64::from_le_bytes(*length) as usize);
        Self { header: serde_json::from_slice(header).unwrap(), data: data.to_vec() }
    }

    pub(crate) fn write(&self, place: &Place, name: &str) {
        let json = self.header.to_string();
        place.write(name, [&(json.len() as u64).to_le_bytes()[..], json.as_bytes(), &self.data].concat());
    }

    /// With a header as it is given.
    pub(crate) fn write_raw(place: &Place, json: &str, data: &[u8]) {
        place.write(FILE, [&(json.len() as u64).to_le_bytes()[..], json.as_bytes(), data].concat());
    }

    pub(crate) fn edit(place: &Place, edit: impl FnOnce(&mut Self)) {
        let mut weights = Self::read(place);
        edit(&mut weights);
        weights.write(place, FILE);
    }

    fn range(&self, name: &str) -> std::ops::Range<usize> {
        let offset = |side: usize| self.header[name]["data_offsets"][side].as_u64().unwrap() as usize;
        offset(0)..offset(1)
    }

    /// Sets one BF16 element.
    pub(crate) fn set(&mut self, name: &str, element: usize, bits: u16) {
        let start = self.range(name).start + 2 * element;
        assert!(start + 2 <= self.range(name).end);
        self.data[start..start + 2].copy_from_slice(&bits.to_le_bytes());
    }

    /// Removes a tensor and closes the gap.
    pub(crate) fn remove(&mut self, name: &str) {
        let _ = self.take(name);
    }

    /// Moves a tensor into a file of its own.
    pub(crate) fn take(&mut self, name: &str) -> Self {
        let range = self.range(name);
        let data: Vec<u8> = self.data.drain(range.clone()).collect();
        let tensors: &mut Map<String, Value> = self.header.as_object_mut().unwrap();
        let mut entry = tensors.remove(name).unwrap();
        for other in tensors.values_mut().filter_map(|other| other.get_mut("data_offsets")) {
            for side in 0..2 {
                let offset = other[side].as_u64().unwrap() as usize;
                if offset >= range.end {
                    other[side] = json!(offset - range.len());
                }
            }
        }
        entry["data_offsets"] = json!([0, data.len()]);
        Self { header: Value::Object(Map::from_iter([(name.to_owned(), entry)])), data }
    }
}
