//! What is known of the job: its last state, and the events so far.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use resurgo_runtime::jobs::{self, Job};
use resurgo_wire::console::{Request, State};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::looking::{self, ENDED, PERIOD, Seen};

/// From one look for a job that begins to the next.
const TO_BEGIN: Duration = Duration::from_millis(50);
/// The most events that are kept for pages that come later.
const MOST: usize = 20_000;
/// The most that a page gets at once: a page that came late gets the newest.
const MOST_AT_ONCE: usize = 5_000;

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
}

pub struct Watched {
    number: u32,
    known: Mutex<Known>,
    news: watch::Sender<News>,
}

impl Watched {
    pub fn new(number: u32) -> Watched {
        Watched {
            number,
            known: Mutex::default(),
            news: watch::Sender::new(News::Nothing),
        }
    }

    pub fn news(&self) -> watch::Receiver<News> {
        self.news.subscribe()
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
    pub fn look(&self, mut job: Job) {
        loop {
            let after = self.known().state.as_ref().map_or(0, |state| state.last_event);
            match looking::look(&mut job, after) {
                Seen::State(state) => {
                    self.take(*state);
                    self.news.send_replace(News::State);
                }
                Seen::Silent => drop(self.news.send_replace(News::Silent)),
                Seen::Over(how) => return drop(self.news.send_replace(News::Over(how))),
            }
            std::thread::sleep(PERIOD);
        }
    }

    /// The same of a job that is not there yet.
    pub fn look_from_its_start(&self) {
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
