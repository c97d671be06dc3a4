//! What the coordinator waits for, for people.

use std::fmt;

use super::Coordinator;
use crate::group::Writing;

impl fmt::Display for Coordinator {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        let mut all = Vec::new();
        for unit in &self.units {
            all.extend(unit.current.as_ref().map(|current| current.wave.to_string()));
            all.extend(unit.returning.as_ref().map(ToString::to_string));
            all.extend(unit.reading.map(|wave| format!("what was in transit in wave {wave}")));
            let writing = unit.writing.as_ref().map(Writing::number);
            all.extend(writing.map(|wave| format!("files of wave {wave}")));
            all.extend(unit.is_held.then(|| "images of ranks that leave".to_string()));
        }
        let surveys = self.surveys.iter();
        all.extend(surveys.map(|survey| format!("answers to survey {}", survey.number)));
        match all.is_empty() {
            true => write!(out, "nothing"),
            false => write!(out, "{}", all.join("; ")),
        }
    }
}
