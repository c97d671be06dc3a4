//! Events for programs: a line of JSON for each, in the file of `--json-events`.

use std::fs::File;
use std::io::{self, Write};
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use crate::dispatcher::events::{Event, Sink};

pub struct JsonLines {
    /// None: the user does not want events, or the file cannot be written.
    file: Option<File>,
    start: Instant,
    failure: Option<io::Error>,
}

impl JsonLines {
    pub fn new(file: Option<File>, start: Instant) -> JsonLines {
        JsonLines {
            file,
            start,
            failure: None,
        }
    }

    /// Why the file cannot be written any more, once.
    pub fn failure(&mut self) -> Option<io::Error> {
        self.failure.take()
    }
}

/// The event as programs get it, so long after the start of the job; none if it is not for them (`serde(skip)`).
pub fn object(event: &Event, time: Duration) -> Option<Map<String, Value>> {
    // Events that are skipped cannot be serialised.
    let Ok(Value::Object(mut line)) = serde_json::to_value(event) else {
        return None;
    };
    line.insert("time".into(), json!(time.as_secs_f64()));
    Some(line)
}

impl Sink for JsonLines {
    fn take(&mut self, event: &Event, now: Instant) {
        let Some(file) = &mut self.file else { return };
        let Some(line) = object(event, now.duration_since(self.start)) else {
            return;
        };
        if let Err(error) = file.write_all(format!("{}\n", Value::Object(line)).as_bytes()) {
            self.file = None;
            self.failure = Some(error);
        }
    }
}
