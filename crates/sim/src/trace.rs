//! The last events of a run, for a violation.

use std::collections::VecDeque;

const LINES: usize = 60;

/// Empty without a request for a trace: then no line is made.
pub(crate) struct Trace(Option<VecDeque<String>>);

impl Trace {
    pub fn new(wanted: bool) -> Self {
        Self(wanted.then(VecDeque::new))
    }

    pub fn note(&mut self, now: u64, line: impl FnOnce() -> String) {
        let Some(lines) = &mut self.0 else { return };
        if lines.len() == LINES {
            lines.pop_front();
        }
        lines.push_back(format!("{now:>6} {}", line()));
    }

    /// The lines, the oldest first.
    pub fn take(&mut self) -> Vec<String> {
        self.0.take().unwrap_or_default().into()
    }
}
