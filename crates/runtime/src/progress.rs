//! A bar on the terminal about work that takes some time. It goes to no file, and nothing of it stays.
//!
//! A thread draws it: a terminal that has been stopped holds up only those that write to it. Everything else that is
//! written there needs a [`Turn`], before which the bar goes. There is no bar behind text that does not end its line,
//! because that would be overwritten, and none while the job is in the background.

use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use nix::unistd::{getpgrp, tcgetpgrp};
use resurgo_wire::console::Progress;

use crate::units::{one_line, readable_duration};

/// Work that is done sooner has no bar.
const PATIENCE: Duration = Duration::from_secs(2);
/// How often the bar is drawn.
const PERIOD: Duration = Duration::from_millis(250);
/// How long the bar may take to go away in the end: the terminal may have been stopped.
const LAST: Duration = Duration::from_millis(500);

/// The bar, until it is dropped.
pub struct Bar {
    /// None: nobody sees it.
    shared: Option<Arc<Shared>>,
    /// Hears of the end of the thread.
    ended: Mutex<Receiver<()>>,
}

struct Shared {
    told: Mutex<Told>,
    changed: Condvar,
    terminal: Mutex<Terminal>,
}

/// What is under way.
#[derive(Default)]
struct Told {
    work: Option<(Work, Instant)>,
    has_ended: bool,
}

enum Work {
    Told(Progress),
    /// It is asked each time.
    Asked(Box<dyn Fn() -> Progress + Send>),
}

struct Terminal {
    make: fn() -> ProgressDrawTarget,
    /// With parts, or only with words.
    bar: Option<(ProgressBar, bool)>,
    /// The last text does not end its line.
    is_within_line: bool,
}

/// A panic while holding a lock ends the process: no lock is poisoned.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Bar {
    /// `is_seen`: standard error is a terminal, and the user has not asked for silence.
    pub fn new(is_seen: bool) -> Bar {
        Bar::start(is_seen, PATIENCE, ProgressDrawTarget::stderr)
    }

    fn start(is_seen: bool, patience: Duration, make: fn() -> ProgressDrawTarget) -> Bar {
        let terminal = Terminal {
            make,
            bar: None,
            is_within_line: false,
        };
        let shared = Arc::new(Shared {
            told: Mutex::default(),
            changed: Condvar::new(),
            terminal: Mutex::new(terminal),
        });
        let (end, ended) = mpsc::channel();
        let theirs = shared.clone();
        let draw = move || {
            theirs.draw(patience);
            drop(end);
        };
        // Without a thread there is no bar, and all else is as before.
        let draws = is_seen
            && std::thread::Builder::new()
                .name("progress".to_string())
                .spawn(draw)
                .is_ok();
        Bar {
            shared: draws.then_some(shared),
            ended: Mutex::new(ended),
        }
    }

    pub fn is_seen(&self) -> bool {
        self.shared.is_some()
    }

    /// This is under way; none: nothing that may take long.
    pub fn tell(&self, work: Option<Progress>) {
        self.set(work.map(Work::Told));
    }

    /// This is under way, and says each time how far it has come.
    pub fn follow(&self, work: impl Fn() -> Progress + Send + 'static) {
        self.set(Some(Work::Asked(Box::new(work))));
    }

    fn set(&self, work: Option<Work>) {
        let Some(shared) = &self.shared else { return };
        let mut told = lock(&shared.told);
        let since = told.work.as_ref().map(|(_, since)| *since);
        if since.is_some() != work.is_some() {
            shared.changed.notify_all();
        }
        told.work = work.map(|work| (work, since.unwrap_or_else(Instant::now)));
    }

    /// For those that write to the same terminal.
    pub fn beside(&self) -> Beside {
        Beside(self.shared.clone())
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        if let Some(shared) = &self.shared {
            lock(&shared.told).has_ended = true;
            shared.changed.notify_all();
            let gone = lock(&self.ended).recv_timeout(LAST);
            debug_assert!(gone != Ok(()), "nothing is sent");
        }
    }
}

/// Writes to the terminal of a bar.
#[derive(Clone)]
pub struct Beside(Option<Arc<Shared>>);

/// The bar is away, and stays away until this is dropped.
pub struct Turn<'a>(Option<MutexGuard<'a, Terminal>>);

impl Beside {
    /// There is no bar.
    pub fn none() -> Beside {
        Beside(None)
    }

    pub fn turn(&self) -> Turn<'_> {
        Turn(self.0.as_ref().map(|shared| {
            let mut terminal = lock(&shared.terminal);
            terminal.clear();
            terminal
        }))
    }
}

impl Turn<'_> {
    /// This was written.
    pub fn wrote(&mut self, bytes: &[u8]) {
        if let (Some(terminal), Some(last)) = (&mut self.0, bytes.last()) {
            terminal.is_within_line = *last != b'\n';
        }
    }
}

impl Work {
    fn progress(&self) -> Progress {
        match self {
            Work::Told(progress) => progress.clone(),
            Work::Asked(ask) => ask(),
        }
    }
}

impl Shared {
    /// The thread.
    fn draw(&self, patience: Duration) {
        let mut told = lock(&self.told);
        while !told.has_ended {
            let since = told.work.as_ref().map(|(_, since)| since.elapsed());
            let shown = told.work.as_ref().filter(|_| since >= Some(patience));
            let shown = shown.map(|(work, since)| (work.progress(), *since));
            drop(told);
            lock(&self.terminal).show(shown);
            told = lock(&self.told);
            let is_same = |told: &mut Told| told.work.is_some() == since.is_some() && !told.has_ended;
            let wait = since.map(|since| patience.saturating_sub(since).max(PERIOD));
            told = match wait {
                None => self
                    .changed
                    .wait_while(told, is_same)
                    .unwrap_or_else(PoisonError::into_inner),
                Some(wait) => match self.changed.wait_timeout_while(told, wait, is_same) {
                    Ok((told, _)) => told,
                    Err(poisoned) => poisoned.into_inner().0,
                },
            };
        }
        drop(told);
        lock(&self.terminal).clear();
    }
}

impl Terminal {
    fn clear(&mut self) {
        if let Some((bar, _)) = self.bar.take() {
            bar.finish_and_clear();
        }
    }

    fn show(&mut self, work: Option<(Progress, Instant)>) {
        let Some((work, since)) = work.filter(|_| !self.is_within_line && is_in_foreground()) else {
            return self.clear();
        };
        let has_parts = work.done.is_some();
        if self.bar.as_ref().is_some_and(|(_, had_parts)| *had_parts != has_parts) {
            self.clear();
        }
        let make = self.make;
        let (bar, _) = self.bar.get_or_insert_with(|| {
            let bar = ProgressBar::with_draw_target(None, make());
            (bar.with_style(style(has_parts)), has_parts)
        });
        let (done, all) = work.done.unwrap_or_default();
        bar.update(|state| {
            state.set_len(all.max(1));
            state.set_pos(done.min(all));
        });
        let took = readable_duration(Duration::from_secs(since.elapsed().as_secs()).max(Duration::from_secs(1)));
        bar.set_message(format!("{} ({took})", one_line(&work.text)));
    }
}

fn style(has_parts: bool) -> ProgressStyle {
    let template = match has_parts {
        true => "resurgo: [{bar:20}] {wide_msg}",
        false => "resurgo: {wide_msg}",
    };
    // A template of ours is well formed: a test draws both.
    let style = ProgressStyle::with_template(template);
    style
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .progress_chars("=> ")
}

/// Otherwise the terminal is another job's.
fn is_in_foreground() -> bool {
    // Where it is not the terminal of the session, nobody else has it.
    tcgetpgrp(std::io::stderr()).map_or(true, |foreground| foreground == getpgrp())
}

#[cfg(test)]
mod tests;
