//! How a running job is looked at again and again, and given orders meanwhile: in a terminal, and for browsers.

use std::io;
use std::time::Duration;

use resurgo_runtime::jobs::{self, Job};
use resurgo_runtime::units::one_line;
use resurgo_wire::console::{Reply, Request, State};

/// From one look at the job to the next.
pub const PERIOD: Duration = Duration::from_millis(500);

/// How a job is over that does not answer any more.
pub const ENDED: &str = "has ended";

/// What a look shows.
pub enum Seen {
    State(Box<State>),
    /// The job does not answer.
    Silent,
    /// It has ended, or what it says cannot be understood.
    Over(String),
}

/// The job's state, with the events behind number `after`.
pub fn look(job: &mut Job, after: u64) -> Seen {
    match job.ask(&Request::State { after }, &mut |_| {}) {
        Ok(Reply::State(state)) => Seen::State(state),
        Ok(_) => Seen::Over("it has answered something else; is it of another version?".to_string()),
        Err(error) if error.kind() == io::ErrorKind::TimedOut => Seen::Silent,
        Err(_) => Seen::Over(ENDED.to_string()),
    }
}

/// Gives the job an order, by a connection of its own: it may take long. `progress` gets lines meanwhile. Returns what
/// was done, or why nothing was; None: there is no such job any more.
pub fn order(number: u32, request: &Request, progress: &mut dyn FnMut(&str)) -> Option<Result<String, String>> {
    let answer = match jobs::again(number) {
        Ok(job) => job?.ask(request, &mut |come| progress(&one_line(&come.text))),
        Err(error) => Err(error),
    };
    let done = match answer {
        Ok(Reply::Done(text)) => Ok(text),
        Ok(Reply::Refused(why)) => Err(format!("refused: {why}")),
        Ok(_) => Err("it has answered something else".to_string()),
        Err(error) => Err(format!("no answer: {error}")),
    };
    Some(done.map(|text| one_line(&text)).map_err(|why| one_line(&why)))
}
