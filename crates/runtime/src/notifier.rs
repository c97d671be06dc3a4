//! `resurgo notifier`: runs the command of `--notify` for each piece of news. Standard input has a line of JSON for each;
//! it closes when `resurgo run` ends. A process of its own, so that nothing here keeps the dispatcher waiting, and that
//! what the dispatcher ends at the end of the job is never a user's command.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::{self, BufRead, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::prctl;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// The hidden verb.
pub const VERB: &str = "notifier";
/// How long a command may take.
pub const LIMIT: Duration = Duration::from_secs(10);
/// Most news that wait; further ones are left out, but for the last.
const MOST: usize = 100;

/// What the process begins with: the first line.
#[derive(Debug, Serialize, Deserialize)]
pub struct Beginning {
    pub command: OsString,
    pub quiet: bool,
    pub job: u32,
}

/// A piece of news.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct News {
    /// `failure`, `recovery`, or `end`.
    pub what: String,
    /// The event, as `--json-events` has it.
    pub event: Value,
}

/// News that wait, and whether there will be no more.
#[derive(Default)]
struct Queue {
    waiting: Mutex<(VecDeque<News>, bool)>,
    changed: Condvar,
}

impl Queue {
    fn change(&self, change: impl FnOnce(&mut VecDeque<News>, &mut bool)) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let (news, is_over) = &mut *waiting;
        change(news, is_over);
        self.changed.notify_all();
    }

    fn next(&self) -> Option<News> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match waiting.0.pop_front() {
                Some(news) => return Some(news),
                None if waiting.1 => return None,
                None => waiting = self.changed.wait(waiting).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}

/// Runs until there is no more news.
pub fn run() -> i32 {
    // Of orphans of commands only this process knows that they are to end.
    let _ = prctl::set_child_subreaper(true);
    let mut lines = io::stdin().lock().lines();
    let first = lines.next().and_then(Result::ok);
    let Some(beginning) = first.and_then(|line| serde_json::from_str::<Beginning>(&line).ok()) else {
        return 1;
    };
    let queue = Arc::new(Queue::default());
    let reads = Arc::clone(&queue);
    let job = beginning.job;
    std::thread::spawn(move || read(io::stdin().lines(), &reads, job));
    drop(lines);
    let mut warned = beginning.quiet;
    while let Some(news) = queue.next() {
        if let Err(why) = tell(&beginning, &news)
            && !std::mem::replace(&mut warned, true)
        {
            let text = format!("resurgo: warning: --notify: the command {why}; this is said once\n");
            let _ = io::stderr().write_all(text.as_bytes());
        }
    }
    0
}

fn read(lines: impl Iterator<Item = io::Result<String>>, queue: &Queue, job: u32) {
    let mut has_end = false;
    for line in lines.map_while(Result::ok) {
        let Ok(news) = serde_json::from_str::<News>(&line) else {
            continue;
        };
        has_end |= news.what == "end";
        queue.change(|waiting, _| {
            if news.what == "end" {
                // Nobody waits for the others now that the job is over.
                waiting.clear();
            }
            if waiting.len() < MOST {
                waiting.push_back(news);
            }
        });
    }
    queue.change(|waiting, is_over| {
        if !has_end {
            waiting.clear();
            let event = json!({"event": "launcher_lost", "job": job});
            waiting.push_back(News {
                what: "end".to_string(),
                event,
            });
        }
        *is_over = true;
    });
}

/// Runs the command for this news, and waits for it. Why it failed, if so.
fn tell(beginning: &Beginning, news: &News) -> Result<(), String> {
    let text = |field: &str| match &news.event[field] {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let reason = [text("cause"), text("reason")].concat();
    let mut child = Command::new("/bin/sh")
        .arg("-c")
        .arg(&beginning.command)
        .env("NOTIFY_EVENT", &news.what)
        .env("NOTIFY_JOB", beginning.job.to_string())
        .env("NOTIFY_RANK", text("rank"))
        .env("NOTIFY_NODE", text("node"))
        .env("NOTIFY_REASON", reason)
        .env("NOTIFY_EXIT_CODE", text("exit_code"))
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .process_group(0)
        .spawn()
        .map_err(|error| format!("cannot be started: {error}"))?;
    let group = Pid::from_raw(child.id() as i32);
    let mut input = child.stdin.take();
    let event = format!("{}\n", news.event);
    // A command that does not read it is not waited for: the end of its process ends this thread.
    std::thread::spawn(move || input.as_mut().map(|input| input.write_all(event.as_bytes())));
    let ended = wait(&mut child);
    // Also what it has left in the background.
    let _ = killpg(group, Signal::SIGKILL);
    let _ = child.wait();
    ended
}

fn wait(child: &mut Child) -> Result<(), String> {
    let deadline = Instant::now() + LIMIT;
    loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(()),
            Ok(Some(status)) => return Err(format!("failed ({status})")),
            Ok(None) if Instant::now() >= deadline => {
                return Err(format!("was ended after {} s", LIMIT.as_secs()));
            }
            Ok(None) => std::thread::sleep(Duration::from_millis(10)),
            Err(error) => return Err(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(lines: &[String]) -> Vec<String> {
        let queue = Queue::default();
        read(lines.iter().cloned().map(Ok), &queue, 7);
        std::iter::from_fn(|| queue.next())
            .map(|news| format!("{} {}", news.what, news.event["event"]))
            .collect()
    }

    fn line(what: &str) -> String {
        json!(News {
            what: what.to_string(),
            event: json!({"event": what})
        })
        .to_string()
    }

    #[test]
    fn the_end_is_always_told() {
        let many = vec![line("failure"); MOST + 50];
        assert_eq!(told(&many), ["end \"launcher_lost\""]);
        let ended: Vec<String> = many.into_iter().chain(["nonsense".to_string(), line("end")]).collect();
        assert_eq!(told(&ended), ["end \"end\""]);
    }
}
