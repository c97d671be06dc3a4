//! A line on the terminal about work that takes some time. It goes to no file, and nothing of it stays.

use std::io::{self, IsTerminal, Write};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use resurgo_runtime::units::{one_line, readable_size};

/// After this time there is a line, and then so often a new one.
const PATIENCE: Duration = Duration::from_secs(2);
const PERIOD: Duration = Duration::from_secs(1);

/// The line, until it is dropped.
pub struct Shown {
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Shows `text`, if there is a terminal and the work takes long enough.
pub fn show(text: impl Fn() -> String + Send + 'static) -> Shown {
    let (end, ended) = mpsc::channel();
    let is_seen = io::stderr().is_terminal();
    let thread = is_seen.then(|| std::thread::spawn(move || tell(text, &ended, PATIENCE, PERIOD, &mut io::stderr())));
    Shown { end: Some(end), thread }
}

impl Drop for Shown {
    fn drop(&mut self) {
        self.end = None;
        if let Some(thread) = self.thread.take() {
            // A panic in it has ended the process.
            let _ = thread.join();
        }
    }
}

fn tell(text: impl Fn() -> String, ended: &Receiver<()>, patience: Duration, period: Duration, out: &mut impl Write) {
    let (mut wait, mut last) = (patience, "");
    while ended.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
        // The terminal may be gone.
        let _ = write!(out, "\r\x1b[Kresurgo: {}", one_line(&text()));
        let _ = out.flush();
        (wait, last) = (period, "\r\x1b[K");
    }
    let _ = out.write_all(last.as_bytes());
    let _ = out.flush();
}

/// A part of some bytes, in words.
pub fn part(done: u64, all: u64) -> String {
    let percent = 100 * done.min(all) / all.max(1);
    format!(
        "{} of {} ({percent}%)",
        readable_size(done.min(all)),
        readable_size(all)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_comes_late_and_goes() {
        let shown = |patience: u64, lines: usize| {
            let (end, ended) = mpsc::channel::<()>();
            let (begins, begun) = mpsc::channel();
            let thread = std::thread::spawn(move || {
                let mut out = Vec::new();
                let [patience, period] = [patience, 3600].map(Duration::from_secs);
                let text = || {
                    begins.send(()).unwrap();
                    "half\nof it".to_string()
                };
                tell(text, &ended, patience, period, &mut out);
                String::from_utf8(out).unwrap()
            });
            (0..lines).for_each(|_| begun.recv().unwrap());
            drop(end);
            thread.join().unwrap()
        };
        assert_eq!(shown(3600, 0), "");
        assert_eq!(shown(0, 1), "\r\x1b[Kresurgo: half of it\r\x1b[K");
    }

    #[test]
    fn parts_are_at_most_all() {
        assert_eq!(part(1 << 20, 4 << 20), "1.0 MiB of 4.0 MiB (25%)");
        assert_eq!(part(5, 4), "4 bytes of 4 bytes (100%)");
        assert!(part(0, 0).ends_with("(0%)"));
    }
}
