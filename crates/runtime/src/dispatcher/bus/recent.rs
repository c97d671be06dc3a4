//! The last events, for those who look at the running job.

use std::collections::VecDeque;
use std::time::Instant;

use resurgo_wire::console::MOST_EVENTS;
use serde_json::{Value, json};

use super::json_lines;
use crate::dispatcher::events::{Event, Sink};

/// The most events that are kept.
const KEPT: usize = 1000;

pub struct Recent {
    start: Instant,
    /// Of the last event, from 1.
    last: u64,
    /// Each with its length as text.
    kept: VecDeque<(usize, Value)>,
    bytes: usize,
}

impl Recent {
    pub fn new(start: Instant) -> Recent {
        Recent {
            start,
            last: 0,
            kept: VecDeque::new(),
            bytes: 0,
        }
    }

    /// The number of the last event.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// The events behind number `after` that are still known.
    pub fn after(&self, after: u64) -> Vec<Value> {
        let first = self.last - self.kept.len() as u64;
        let skip = after.clamp(first, self.last) - first;
        let events = self.kept.iter().skip(skip as usize);
        events.map(|(_, event)| event.clone()).collect()
    }

    fn push(&mut self, event: Value) {
        let length = event.to_string().len();
        self.bytes += length;
        self.kept.push_back((length, event));
        while self.kept.len() > KEPT || self.bytes > MOST_EVENTS {
            let Some((length, _)) = self.kept.pop_front() else {
                return;
            };
            self.bytes -= length;
        }
    }
}

impl Sink for Recent {
    fn take(&mut self, event: &Event, now: Instant) {
        let Some(mut line) = json_lines::object(event, now.duration_since(self.start)) else {
            return;
        };
        self.last += 1;
        line.insert("number".into(), json!(self.last));
        self.push(Value::Object(line));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(events: usize, reason: &str) -> Recent {
        let mut recent = Recent::new(Instant::now());
        for _ in 0..events {
            recent.take(&Event::Error { reason }, Instant::now());
            recent.take(&Event::Restarting { rank: 1 }, Instant::now());
        }
        recent
    }

    fn numbers(recent: &Recent, after: u64) -> Vec<u64> {
        let events = recent.after(after);
        events.iter().filter_map(|event| event["number"].as_u64()).collect()
    }

    #[test]
    fn a_reader_can_go_on_where_it_was() {
        let recent = with(3, "x");
        assert_eq!(recent.after(2)[0]["reason"], "x");
        assert_eq!(numbers(&recent, 0), [1, 2, 3]);
        assert_eq!(numbers(&recent, 2), [3]);
        assert_eq!(numbers(&recent, 3), [0; 0]);
        assert_eq!(numbers(&recent, u64::MAX), [0; 0]);
    }

    #[test]
    fn only_the_last_are_kept() {
        let many = with(KEPT + 7, "x");
        let left = numbers(&many, 0);
        assert_eq!((left.len(), left[0], many.last()), (KEPT, 8, KEPT as u64 + 7));
        let long = with(5, &"x".repeat(MOST_EVENTS / 3));
        assert_eq!(numbers(&long, 0), [4, 5]);
        assert_eq!(with(1, &"x".repeat(MOST_EVENTS)).after(0).len(), 0);
    }
}
