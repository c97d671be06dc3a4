//! News for the journal of systemd (`--journal`), by its own protocol: a datagram with the fields of each entry. The
//! words are those of standard error.

use std::io;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::Instant;

use serde_json::{Map, Value};

use super::json_lines;
use super::words::Words;
use crate::dispatcher::events::{Event, Sink};
use crate::units::readable_duration;

/// Where the journal listens.
pub const SOCKET: &str = "/run/systemd/journal/socket";
/// The longest value of a field, in bytes: the whole entry fits into a datagram.
const LONGEST: usize = 8 << 10;

/// Priorities as syslog has them.
const ERROR: u8 = 3;
const WARNING: u8 = 4;
const NOTICE: u8 = 5;

pub struct Journal {
    /// It does not block: entries that the journal has no room for are left out.
    socket: UnixDatagram,
    start: Instant,
    words: Words,
    /// Entries that it has not taken, and why the first one.
    missed: u64,
    why: Option<io::Error>,
}

impl Journal {
    /// Fails where nobody listens.
    pub fn open(start: Instant) -> io::Result<Journal> {
        UnixDatagram::unbound()?.connect(SOCKET)?;
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        Ok(Journal {
            socket,
            start,
            words: Words::new(false, false),
            missed: 0,
            why: None,
        })
    }

    /// How many entries it has not taken, and why; each is told once.
    pub fn missed(&mut self) -> Option<(u64, io::Error)> {
        let why = self.why.take()?;
        Some((std::mem::take(&mut self.missed), why))
    }

    fn send(&mut self, entry: &[u8]) {
        // Each entry finds its way anew: the journal may have been restarted.
        if let Err(error) = self.socket.send_to(entry, Path::new(SOCKET)) {
            self.missed += 1;
            self.why.get_or_insert(error);
        }
    }

    /// What people are told of the event, if anything.
    fn message(&mut self, event: &Event) -> Option<String> {
        self.words.take(event, self.start);
        let text = self.words.take_text();
        let text = String::from_utf8_lossy(&text);
        let lines = text.lines().map(|line| line.strip_prefix("resurgo: ").unwrap_or(line));
        let told = lines.collect::<Vec<_>>().join("\n");
        match event {
            // The user wants them on standard error.
            Event::Table { .. } | Event::ExitCodes { .. } | Event::ImageLevel { .. } => None,
            Event::JobEnded { exit_code, wall, .. } => {
                let end = format!(
                    "the job has ended with exit code {exit_code} after {}",
                    readable_duration(*wall)
                );
                Some([end, told].join("\n").trim_end().to_string())
            }
            // The error that follows has the words.
            Event::Failed {
                rank,
                cause,
                words: None,
                ..
            } => Some(format!("{} {cause}", self.words.rank(*rank))),
            _ => Some(told).filter(|told| !told.is_empty()),
        }
    }

    /// The event as programs get it, and for a rank the name of its node where there are several.
    fn fields(&self, event: &Event, now: Instant) -> Map<String, Value> {
        let time = now.saturating_duration_since(self.start);
        let mut fields = json_lines::object(event, time).unwrap_or_default();
        let rank = fields.get("rank").and_then(Value::as_u64);
        if let Some(name) = rank.and_then(|rank| self.words.node_of(rank as usize)) {
            fields.entry("node").or_insert_with(|| Value::from(name));
        }
        fields
    }
}

fn priority(event: &Event, message: &str) -> u8 {
    match event {
        Event::Error { .. } => ERROR,
        Event::JobEnded { exit_code: 0, .. } => NOTICE,
        Event::JobEnded { .. }
        | Event::Failed { .. }
        | Event::Lost { .. }
        | Event::Undone { .. }
        | Event::NodeLost { .. }
        | Event::LoggerLost { .. }
        | Event::ChannelMemoryLost { .. } => WARNING,
        _ if message.starts_with("warning: ") => WARNING,
        _ => NOTICE,
    }
}

/// Adds a field. A value of several lines has its length before it.
fn put(entry: &mut Vec<u8>, name: &str, value: &str) {
    let value = value.as_bytes();
    let value = &value[..value.len().min(LONGEST)];
    entry.extend_from_slice(name.as_bytes());
    if value.contains(&b'\n') {
        entry.push(b'\n');
        entry.extend_from_slice(&(value.len() as u64).to_le_bytes());
    } else {
        entry.push(b'=');
    }
    entry.extend_from_slice(value);
    entry.push(b'\n');
}

fn entry(message: &str, priority: u8, fields: &Map<String, Value>) -> Vec<u8> {
    let mut entry = Vec::new();
    put(&mut entry, "MESSAGE", message);
    put(&mut entry, "PRIORITY", &priority.to_string());
    put(&mut entry, "SYSLOG_IDENTIFIER", "resurgo");
    put(&mut entry, "RESURGO_JOB", &std::process::id().to_string());
    for (name, value) in fields {
        let value = match value {
            Value::String(text) => text.clone(),
            Value::Number(number) => number.to_string(),
            _ => continue,
        };
        put(&mut entry, &format!("RESURGO_{}", name.to_ascii_uppercase()), &value);
    }
    entry
}

impl Sink for Journal {
    fn take(&mut self, event: &Event, now: Instant) {
        if let Some(message) = self.message(event) {
            let fields = self.fields(event, now);
            self.send(&entry(&message, priority(event, &message), &fields));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn values_of_several_lines_have_a_length() {
        let Value::Object(fields) = json!({"event": "x", "rank": 3, "list": [1], "none": null, "reason": "a\nb"})
        else {
            panic!("no object");
        };
        let job = std::process::id();
        let mut expected = format!(
            "MESSAGE=said\nPRIORITY=4\nSYSLOG_IDENTIFIER=resurgo\nRESURGO_JOB={job}\nRESURGO_EVENT=x\nRESURGO_RANK=3\n\
             RESURGO_REASON\n"
        )
        .into_bytes();
        expected.extend_from_slice(b"\x03\0\0\0\0\0\0\0a\nb\n");
        let mut found = entry("said", WARNING, &fields);
        assert_eq!(found, expected, "{}", String::from_utf8_lossy(&found));
        found.clear();
        put(&mut found, "A", &"x".repeat(LONGEST + 1));
        assert_eq!(found.len(), LONGEST + 3);
    }
}
