//! Events for programs: a line of JSON for each, in the file of `--json-events`.

use std::fs::File;
use std::io::{self, Write};
use std::time::Instant;

use serde_json::{Value, json};

use crate::dispatcher::events::{Event, Sink};

pub struct JsonLines {
    /// None: nobody wants them, or the file could not be written.
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

impl Sink for JsonLines {
    fn take(&mut self, event: &Event, now: Instant) {
        let Some(file) = &mut self.file else { return };
        // Events that are not for programs cannot be serialised (`serde(skip)`).
        let Ok(Value::Object(mut line)) = serde_json::to_value(event) else {
            return;
        };
        line.insert("time".into(), json!(now.duration_since(self.start).as_secs_f64()));
        if let Err(error) = file.write_all(format!("{}\n", Value::Object(line)).as_bytes()) {
            self.file = None;
            self.failure = Some(error);
        }
    }
}
