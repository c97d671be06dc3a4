//! News for the command of `--notify`, which [`crate::notifier`] runs.

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use serde_json::Value;

use super::json_lines;
use crate::dispatcher::events::{Event, Sink};
use crate::notifier::{Beginning, LIMIT, News, VERB};

/// How often the dispatcher looks whether the last command has ended.
const LOOK: Duration = Duration::from_millis(5);

/// Where news go.
pub struct Notices {
    start: Instant,
    process: Child,
    /// Does not block: news that it has no room for are left out.
    input: Option<ChildStdin>,
    /// What it has not taken of a line.
    rest: Vec<u8>,
}

impl Notices {
    pub fn start(command: OsString, quiet: bool, start: Instant) -> io::Result<Notices> {
        let mut process = Command::new("/proc/self/exe")
            .arg0("resurgo")
            .arg(VERB)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            // Ctrl-C is for the job.
            .process_group(0)
            .spawn()?;
        let job = std::process::id();
        let beginning = serde_json::to_string(&Beginning { command, quiet, job })?;
        let mut input = process.stdin.take();
        if let Some(input) = &mut input {
            writeln!(input, "{beginning}")?;
            let flags = OFlag::from_bits_retain(fcntl(&*input, FcntlArg::F_GETFL)?);
            fcntl(&*input, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
        }
        Ok(Notices {
            start,
            process,
            input,
            rest: Vec::new(),
        })
    }

    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    fn send(&mut self, news: &News) {
        let Some(input) = &mut self.input else { return };
        if self.rest.is_empty() || news.what == "end" {
            self.rest
                .extend_from_slice(serde_json::json!(news).to_string().as_bytes());
            self.rest.push(b'\n');
        }
        while !self.rest.is_empty() {
            match input.write(&self.rest) {
                Ok(taken) => drop(self.rest.drain(..taken)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    }

    /// The job is over: waits for the last commands, at most until the deadline. They end by themselves in any case.
    pub fn end(&mut self, deadline: Option<Instant>) {
        self.input = None;
        // One that runs, and the one for the end.
        let deadline = deadline.unwrap_or_else(|| Instant::now() + 2 * LIMIT + Duration::from_secs(1));
        while matches!(self.process.try_wait(), Ok(None)) && Instant::now() < deadline {
            std::thread::sleep(LOOK);
        }
    }
}

/// What an event is to those who want to hear only of failures and what follows.
fn what(event: &Event) -> Option<&'static str> {
    Some(match event {
        Event::Failed { .. } | Event::NodeLost { .. } => "failure",
        Event::CaughtUp { .. } | Event::Returned { .. } => "recovery",
        Event::JobEnded { .. } => "end",
        _ => return None,
    })
}

impl Sink for Notices {
    fn take(&mut self, event: &Event, now: Instant) {
        let Some(what) = what(event) else { return };
        let event = json_lines::object(event, now.duration_since(self.start)).unwrap_or_default();
        self.send(&News {
            what: what.to_string(),
            event: Value::Object(event),
        });
    }
}
