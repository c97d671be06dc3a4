//! `resurgo console`: words about a running job, typed at a prompt, read from a pipe, or one in the command line.

mod prompt;
pub mod table;
mod words;

use std::ffi::OsString;
use std::io::{self, BufRead, IsTerminal};
use std::sync::mpsc::{Receiver, Sender, channel};

use resurgo_runtime::jobs::Job;
use resurgo_runtime::units::one_line;
use resurgo_wire::console::{Reply, Request, State};
use serde_json::{Value, json};

use crate::jobs::{self, NoAnswer};
use crate::say;
use prompt::{Before, Prompt};
use words::Order;

/// `resurgo console [JOB [WORD...]] [--json]`.
pub fn run(arguments: Vec<OsString>) -> i32 {
    let (options, words): (Vec<OsString>, Vec<OsString>) = arguments.into_iter().partition(|word| word == "--json");
    if let Some(option) = words.iter().find(|word| word.as_encoded_bytes().starts_with(b"-")) {
        return say::usage(&format!("console takes --json, not {:?}", option.display()));
    }
    let (job, words) = words.split_at(words.len().min(1));
    let words: Vec<String> = words.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    if let Some(word) = job
        .first()
        .and_then(|word| word.to_str())
        .filter(|word| table::is_word(word))
    {
        return say::usage(&format!(
            "console needs the number of a job before a word, as in: resurgo console 4711 {word}"
        ));
    }
    let job = match jobs::wanted("console", job) {
        Ok(job) => job,
        Err(code) => return code,
    };
    let mut console = Console {
        job,
        as_json: !options.is_empty(),
    };
    match words.is_empty() {
        false => console.carry_out(&words.join(" ")).code(),
        true if io::stdin().is_terminal() && io::stdout().is_terminal() => console.at_prompt(),
        true => console.reads(None, line),
    }
}

/// What has become of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Done,
    Failed,
    /// The job has ended meanwhile.
    Over,
    Quit,
}

impl Outcome {
    fn code(self) -> i32 {
        i32::from(matches!(self, Outcome::Failed | Outcome::Over))
    }
}

/// What comes while nothing is carried out.
enum News {
    Line(String),
    /// There are no more lines.
    NoMore,
    /// The job has ended.
    Over,
}

/// A user who edits lines.
struct User {
    before: Before,
    /// Hears when a line is edited.
    edited: Receiver<()>,
}

struct Console {
    job: Job,
    as_json: bool,
}

impl Console {
    /// Lets the user edit lines.
    fn at_prompt(&mut self) -> i32 {
        let unusable = |error: String| say::failed(&format!("cannot use the terminal: {error}"));
        let before = match Before::now().and_then(|before| before.guard().map(|()| before)) {
            Ok(before) => before,
            Err(error) => return unusable(error.to_string()),
        };
        let (edits, edited) = channel();
        let mut prompt = match Prompt::new(self.job.number, edits) {
            Ok(prompt) => prompt,
            Err(error) => return unusable(error.to_string()),
        };
        if !self.as_json {
            say::print("help lists the words; quit or Ctrl-D leaves the console, and the job goes on\n");
        }
        self.reads(Some(User { before, edited }), move || prompt.next())
    }

    /// Carries out lines, until there are no more, or the job has ended. The first line that fails ends it, too, unless
    /// a user is there.
    fn reads(&mut self, user: Option<User>, next: impl FnMut() -> Option<String> + Send + 'static) -> i32 {
        let end = match self.job.end() {
            Ok(end) => end,
            Err(error) => return say::failed(&format!("cannot wait for the end of the job: {error}")),
        };
        let (says, news) = channel();
        let (asks, asked) = channel();
        let ends = says.clone();
        std::thread::spawn(move || read(next, &asked, &says));
        std::thread::spawn(move || {
            end.wait();
            let _ = ends.send(News::Over);
        });
        loop {
            // Nothing is edited now.
            while user.as_ref().is_some_and(|user| user.edited.try_recv().is_ok()) {}
            let _ = asks.send(());
            let outcome = match news.recv() {
                Ok(News::Line(line)) => self.carry_out(&line),
                Ok(News::NoMore) | Err(_) => Outcome::Quit,
                Ok(News::Over) => {
                    self.is_over(user.as_ref());
                    Outcome::Quit
                }
            };
            match outcome {
                Outcome::Done => {}
                Outcome::Failed if user.is_some() => {}
                Outcome::Over if user.is_some() => return 0,
                other => return other.code(),
            }
        }
    }

    /// The job has ended while a line is waited for.
    fn is_over(&self, user: Option<&User>) {
        if let Some(user) = user {
            // An editor that is about to begin would leave the terminal as it needs it.
            let _ = user.edited.recv();
            user.before.restore();
            say::print("\n");
        }
        let text = format!("job {}: has ended", self.job.number);
        match self.as_json {
            true => say::print(&format!("{}\n", json!({"word": null, "said": text}))),
            false => say::print(&format!("{text}\n")),
        }
    }

    /// Carries out a line, and shows the answer.
    fn carry_out(&mut self, line: &str) -> Outcome {
        let mut parts = line.split_whitespace();
        let Some(name) = parts.next().filter(|name| !name.starts_with('#')) else {
            return Outcome::Done;
        };
        let rest: Vec<&str> = parts.collect();
        let answer = match words::order(name, &rest) {
            Ok(Order::Quit) => return Outcome::Quit,
            Ok(Order::Help) => Ok((table::help(), json!({"words": table::WORDS.map(|word| word.name)}))),
            Ok(Order::See(part)) => self.state().map(|state| (part.text(&state), part.fields(&state))),
            Ok(Order::Do(request)) => self.does(&request),
            Err(why) => Err(NoAnswer::Other(why)),
        };
        match answer {
            Ok((text, fields)) => {
                self.show(name, &text, fields);
                Outcome::Done
            }
            Err(none) => {
                let why = none.to_string();
                match self.as_json {
                    true => self.show(name, "", json!({"error": why})),
                    false => drop(say::failed(&why)),
                }
                match none {
                    NoAnswer::HasEnded(_) => Outcome::Over,
                    NoAnswer::Other(_) => Outcome::Failed,
                }
            }
        }
    }

    fn show(&self, word: &str, text: &str, mut fields: Value) {
        if !self.as_json {
            return say::print(text);
        }
        fields["word"] = json!(word);
        say::print(&format!("{fields}\n"));
    }

    fn state(&mut self) -> Result<State, NoAnswer> {
        match jobs::answer(&mut self.job, &Request::State { after: 0 })? {
            Reply::State(state) => Ok(*state),
            _ => Err(NoAnswer::Other(jobs::strange(self.job.number))),
        }
    }

    fn does(&mut self, request: &Request) -> Result<(String, Value), NoAnswer> {
        match jobs::answer(&mut self.job, request)? {
            Reply::Done(text) => Ok((one_line(&text) + "\n", json!({"said": text}))),
            _ => Err(NoAnswer::Other(jobs::strange(self.job.number))),
        }
    }
}

/// The next line of standard input; none: there are no more.
fn line() -> Option<String> {
    let mut line = Vec::new();
    let read = io::stdin().lock().read_until(b'\n', &mut line);
    let is_there = read.is_ok_and(|length| length > 0);
    is_there.then(|| String::from_utf8_lossy(&line).into_owned())
}

/// Gets a line whenever one is asked for.
fn read(mut next: impl FnMut() -> Option<String>, asked: &Receiver<()>, says: &Sender<News>) {
    while asked.recv().is_ok() {
        let line = next();
        let is_last = line.is_none();
        let _ = says.send(line.map_or(News::NoMore, News::Line));
        if is_last {
            return;
        }
    }
}
