//! What is known of the job: its last state, and the events so far.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use resurgo_runtime::jobs::{self, Job};
use resurgo_wire::console::{Printed, PrintedPart, Request, State};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::looking::{self, ENDED, PERIOD, Seen};

/// From one look for a job that begins to the next.
const TO_BEGIN: Duration = Duration::from_millis(50);
/// The most events that are kept for pages that come later.
const MOST: usize = 20_000;
/// The most that a page gets at once: a page that came late gets the newest.
const MOST_AT_ONCE: usize = 5_000;
/// The most bytes of output that are kept for them.
const MOST_PRINTED: usize = 64 << 10;

/// What pages are to hear of.
#[derive(Clone)]
pub enum News {
    Nothing,
    /// There is a newer state.
    State,
    /// The job does not answer.
    Silent,
    Over(String),
}

#[derive(Default)]
struct Known {
    /// Without events.
    state: Option<State>,
    events: VecDeque<Value>,
    /// Each with the position where it ends.
    printed: VecDeque<(u64, PrintedPart)>,
}

pub struct Watched {
    number: u32,
    known: Mutex<Known>,
    news: watch::Sender<News>,
    /// How much the job has printed.
    printed: watch::Sender<u64>,
    /// Hears what it prints.
    hearing: Mutex<Option<JoinHandle<()>>>,
}

impl Watched {
    pub fn new(number: u32) -> Watched {
        Watched {
            number,
            known: Mutex::default(),
            news: watch::Sender::new(News::Nothing),
            printed: watch::Sender::new(0),
            hearing: Mutex::default(),
        }
    }

    pub fn news(&self) -> watch::Receiver<News> {
        self.news.subscribe()
    }

    pub fn printed(&self) -> watch::Receiver<u64> {
        self.printed.subscribe()
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How the job has ended.
    pub fn end(&self) -> String {
        match &*self.news.borrow() {
            News::Over(how) => how.clone(),
            _ => "it may still run".to_string(),
        }
    }

    /// Asks the job for its state again and again, until it has ended.
    pub fn look(self: &Arc<Self>, mut job: Job) {
        let hears = self.clone();
        *self.hearing() = Some(std::thread::spawn(move || hears.hear()));
        loop {
            let after = self.known().state.as_ref().map_or(0, |state| state.last_event);
            match looking::look(&mut job, after) {
                Seen::State(state) => {
                    self.take(*state);
                    self.news.send_replace(News::State);
                }
                Seen::Silent => drop(self.news.send_replace(News::Silent)),
                Seen::Over(how) => {
                    self.end_hearing();
                    return drop(self.news.send_replace(News::Over(how)));
                }
            }
            std::thread::sleep(PERIOD);
        }
    }

    fn hearing(&self) -> MutexGuard<'_, Option<JoinHandle<()>>> {
        self.hearing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The job has ended: what it printed last comes before that.
    fn end_hearing(&self) {
        if let Some(hearing) = self.hearing().take() {
            let _ = hearing.join();
        }
    }

    /// Takes what the job prints, until it has ended. A job of an older version does not say it.
    fn hear(&self) {
        let Ok(Some(mut job)) = jobs::again(self.number) else {
            return;
        };
        let _ = job.follow_output(0, &mut |printed| self.take_printed(printed));
    }

    fn take_printed(&self, printed: Printed) {
        let mut known = self.known();
        let mut at = printed.from;
        for part in printed.parts {
            at += part.text.len() as u64;
            known.printed.push_back((at.min(printed.end), part));
        }
        if let Some((end, _)) = known.printed.back_mut() {
            *end = printed.end;
        }
        let bytes = |known: &Known| known.printed.iter().map(|(_, part)| part.text.len()).sum::<usize>();
        while known.printed.len() > 1 && bytes(&known) > MOST_PRINTED {
            known.printed.pop_front();
        }
        drop(known);
        self.printed
            .send_if_modified(|end| std::mem::replace(end, printed.end) != printed.end);
    }

    /// What was printed behind position `after`, as far as it is known, and its end.
    pub fn output(&self, after: u64) -> Option<(Value, u64)> {
        let known = self.known();
        let new = known.printed.iter().filter(|(end, _)| *end > after);
        let parts: Vec<&PrintedPart> = new.map(|(_, part)| part).collect();
        let (end, _) = known.printed.back().filter(|_| !parts.is_empty())?;
        Some((json!({ "parts": parts, "end": end }), *end))
    }

    /// The same of a job that is not there yet.
    pub fn look_from_its_start(self: &Arc<Self>) {
        loop {
            if let Ok(Some(job)) = jobs::again(self.number) {
                return self.look(job);
            }
            std::thread::sleep(TO_BEGIN);
        }
    }

    /// Whether some page is open, besides the server that waits for the end.
    pub fn is_seen(&self) -> bool {
        self.news.receiver_count() > 1
    }

    /// The job has ended.
    pub fn tell_end(&self) {
        self.end_hearing();
        let is_new = |news: &mut News| {
            let is_new = !matches!(news, News::Over(_));
            if is_new {
                *news = News::Over(ENDED.to_string());
            }
            is_new
        };
        self.news.send_if_modified(is_new);
    }

    fn take(&self, mut state: State) {
        let mut known = self.known();
        known.events.extend(std::mem::take(&mut state.events));
        let too_many = known.events.len().saturating_sub(MOST);
        known.events.drain(..too_many);
        known.state = Some(state);
    }

    /// The state as JSON, with the events behind number `after`, and the number of the last one. None: there is none yet.
    pub fn state(&self, after: u64) -> Option<(Value, u64)> {
        let known = self.known();
        let state = known.state.as_ref()?;
        let is_new = |event: &&Value| event["number"].as_u64().is_some_and(|number| number > after);
        let mut events: Vec<&Value> = known
            .events
            .iter()
            .rev()
            .take_while(is_new)
            .take(MOST_AT_ONCE)
            .collect();
        events.reverse();
        let mut told = json!(state);
        told["events"] = json!(events);
        Some((told, state.last_event))
    }

    /// Gives the job an order.
    pub fn order(&self, request: &Request) -> Result<String, String> {
        looking::order(self.number, request, &mut |_| {}).unwrap_or_else(|| Err("the job has ended".to_string()))
    }
}
