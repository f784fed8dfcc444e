//! One case, and what it must look like.

use crate::place::Place;

/// Exit code of a usage or input error.
pub(crate) const INPUT: i32 = 2;
/// Exit code of broken evidence.
pub(crate) const INVALID: i32 = 4;

/// One bad input.
pub(crate) struct Case {
    /// What is wrong.
    pub(crate) name: &'static str,
    /// Breaks it.
    pub(crate) damage: fn(&Place),
    /// What is run.
    pub(crate) command: &'static [&'static str],
    /// Shell commands that limit the run.
    pub(crate) limits: &'static str,
    /// How it must end.
    pub(crate) code: i32,
    /// What the message must name: most often the file.
    pub(crate) names: &'static str,
}

impl Case {
    /// The same, within other limits.
    pub(crate) fn limits(self, limits: &'static str) -> Self {
        Self { limits, ..self }
    }

    /// The same, whose message names something else.
    pub(crate) fn names(self, names: &'static str) -> Self {
        Self { names, ..self }
    }
}

/// An input error, unless it says otherwise.
pub(crate) fn case(
    name: &'static str,
    command: &'static [&'static str],
    names: &'static str,
    damage: fn(&Place),
) -> Case {
    Case { name, damage, command, limits: "", code: INPUT, names }
}

/// Broken evidence.
pub(crate) fn invalid(
    name: &'static str,
    command: &'static [&'static str],
    names: &'static str,
    damage: fn(&Place),
) -> Case {
    Case { code: INVALID, ..case(name, command, names, damage) }
}

/// Runs the cases, each in a place of its own; what was said, for a snapshot.
#[track_caller]
pub(crate) fn check_all(cases: impl IntoIterator<Item = Case>) -> String {
    let (mut said, mut wrong) = (String::new(), String::new());
    for case in cases {
        match check(&case) {
            Ok(message) => said += &message,
            Err(problem) => wrong += &problem,
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    said
}

/// What a case said, or what is wrong with it.
fn check(case: &Case) -> Result<String, String> {
    let place = Place::new();
    (case.damage)(&place);
    let output = place.run(case.command, case.limits);
    let stdout = String::from_utf8(output.stdout).unwrap();
    let said = stdout.clone() + &String::from_utf8(output.stderr).unwrap();
    let message: Vec<&str> = said.lines().filter(|line| !line.trim().is_empty()).map(str::trim_end).collect();
    let message = place.redact(&message.join("\n"));
    let command = case.command.join(" ");
    let problem = if output.status.code() != Some(case.code) {
        format!("it must exit with {} and ends with {:?}", case.code, output.status)
    } else if said.contains("panicked") {
        "it panicked".to_owned()
    } else if !message.contains(case.names) {
        format!("it does not name {:?}", case.names)
    } else if !stdout.is_empty() && case.code == INPUT {
        "its answer is on the wrong stream".to_owned()
    } else {
        return Ok(format!("# {}\n$ assay {command}\n{message}\nexit {}\n\n", case.name, case.code));
    };
    Err(format!("{}: {problem}\n$ assay {command}\n{message}\n\n", case.name))
}
