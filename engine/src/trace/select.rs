//! Which events are written.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use super::Component;

/// Values of each tensor that are written unless somebody asks for more.
const DEFAULT_VALUES: usize = 8;

/// Why a selection makes no sense.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SelectError {
    /// Not a list of numbers and ranges.
    #[error("{found:?} is no list of numbers and ranges, expected such as 0,3-7")]
    Ranges {
        /// What it is.
        found: String,
    },
    /// No component has that name.
    #[error("{found:?} is no component, expected one of {}", names())]
    Component {
        /// What it is.
        found: String,
    },
}

fn names() -> String {
    Component::ALL.iter().map(|component| component.name()).collect::<Vec<_>>().join(", ")
}

/// Numbers and ranges of them, as `0,3-7`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ranges(Vec<RangeInclusive<u64>>);

impl Ranges {
    /// Whether it has `number`.
    pub fn contains(&self, number: u64) -> bool {
        self.0.iter().any(|range| range.contains(&number))
    }
}

impl FromStr for Ranges {
    type Err = SelectError;

    fn from_str(text: &str) -> Result<Self, SelectError> {
        let range = |part: &str| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
            (first <= last).then_some(first..=last)
        };
        let ranges: Option<Vec<_>> = text.split(',').map(range).collect();
        ranges.map(Self).ok_or_else(|| SelectError::Ranges { found: text.to_owned() })
    }
}

impl fmt::Display for Ranges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let part = |range: &RangeInclusive<u64>| match (range.start(), range.end()) {
            (first, last) if first == last => first.to_string(),
            (first, last) => format!("{first}-{last}"),
        };
        f.write_str(&self.0.iter().map(part).collect::<Vec<_>>().join(","))
    }
}

impl FromStr for Component {
    type Err = SelectError;

    fn from_str(name: &str) -> Result<Self, SelectError> {
        Self::named(name).ok_or_else(|| SelectError::Component { found: name.to_owned() })
    }
}

/// Which events are written; `None` is all of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selection {
    /// Layers. What stands outside the layers is not subject to this.
    pub layers: Option<Ranges>,
    /// Components.
    pub components: Option<Vec<Component>>,
    /// Calls of prefill and decode, from 0.
    pub steps: Option<Ranges>,
    /// Values that are written of each tensor, at most.
    pub values: usize,
}

impl Default for Selection {
    fn default() -> Self {
        Self { layers: None, components: None, steps: None, values: DEFAULT_VALUES }
    }
}

impl Selection {
    /// Whether anything of a step is written.
    pub fn step(&self, step: u64) -> bool {
        self.steps.as_ref().is_none_or(|steps| steps.contains(step))
    }

    /// Whether an event is written.
    pub fn wants(&self, step: u64, layer: Option<usize>, component: Component) -> bool {
        self.step(step)
            && self.components.as_ref().is_none_or(|components| components.contains(&component))
            && layer.is_none_or(|layer| self.layers.as_ref().is_none_or(|layers| layers.contains(layer as u64)))
    }
}

/// `layers 0,3-7; components all; steps all`
impl fmt::Display for Selection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ranges = |ranges: &Option<Ranges>| ranges.as_ref().map_or_else(|| "all".to_owned(), Ranges::to_string);
        let components = self.components.as_ref().map_or_else(
            || "all".to_owned(),
            |components| components.iter().map(|component| component.name()).collect::<Vec<_>>().join(","),
        );
        write!(f, "layers {}; components {components}; steps {}", ranges(&self.layers), ranges(&self.steps))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_and_written() {
        for text in ["0", "0,3-7", "1-2,9"] {
            assert_eq!(text.parse::<Ranges>().unwrap().to_string(), text);
        }
        let ranges: Ranges = "0,3-7".parse().unwrap();
        assert_eq!([0, 1, 3, 7, 8].map(|n| ranges.contains(n)), [true, false, true, true, false]);
        for text in ["", "a", "3-", "5-3", "-1", "1,,2"] {
            assert!(text.parse::<Ranges>().is_err(), "{text}");
        }
        assert!("q_prj".parse::<Component>().unwrap_err().to_string().contains("expected one of embed_tokens"));
    }

    #[test]
    fn all_three_must_agree() {
        let all = Selection::default();
        assert!(all.wants(9, Some(3), Component::QProj) && all.wants(0, None, Component::Norm));
        let some = Selection {
            layers: Some("1-2".parse().unwrap()),
            components: Some(vec![Component::QProj, Component::Norm]),
            steps: Some("0".parse().unwrap()),
            ..all
        };
        assert!(some.wants(0, Some(2), Component::QProj) && some.wants(0, None, Component::Norm));
        assert!(!some.wants(1, Some(2), Component::QProj));
        assert!(!some.wants(0, Some(3), Component::QProj));
        assert!(!some.wants(0, Some(2), Component::KProj));
        assert_eq!(some.to_string(), "layers 1-2; components q_proj,norm; steps 0");
    }
}
