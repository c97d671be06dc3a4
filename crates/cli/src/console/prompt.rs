//! The lines that a user edits at the prompt of `resurgo console`.

use std::io;
use std::path::PathBuf;
use std::sync::mpsc::Sender;

use nix::sys::signal::{SigSet, Signal};
use nix::sys::termios::{SetArg, Termios, tcgetattr, tcsetattr};
use resurgo_store::own_directory::{Directory, Trust};
use resurgo_wire::console::{Reply, Request, State};
use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::DefaultHistory;
use rustyline::validate::Validator;
use rustyline::{CompletionType, Config, Context, Editor, Helper};

use super::words;
use crate::diagnosis::shim::cache;

/// Lines that are remembered, and the file in the user's cache directory.
const REMEMBERED: usize = 1000;
const HISTORY: &str = "console-history";

/// The terminal as it was. What ends the command while a line is edited gives it back.
pub struct Before(Termios);

impl Before {
    pub fn now() -> io::Result<Before> {
        Ok(Before(tcgetattr(io::stdin())?))
    }

    pub fn restore(&self) {
        let _ = tcsetattr(io::stdin(), SetArg::TCSADRAIN, &self.0);
    }

    /// Signals that end the command do not leave the terminal as the line editor has it. For the first thread alone.
    pub fn guard(&self) -> io::Result<()> {
        let ends = SigSet::from_iter([Signal::SIGTERM, Signal::SIGHUP]);
        ends.thread_block()?;
        let before = Before(self.0.clone());
        std::thread::spawn(move || {
            if let Ok(signal) = ends.wait() {
                before.restore();
                std::process::exit(128 + signal as i32);
            }
        });
        Ok(())
    }
}

/// Knows what may come next.
struct Words {
    job: u32,
}

impl Words {
    /// By a connection of its own.
    fn state(&self) -> Option<State> {
        let mut job = resurgo_runtime::jobs::again(self.job).ok()??;
        match job.ask(&Request::State { after: u64::MAX }, &mut |_| {}) {
            Ok(Reply::State(state)) => Some(*state),
            _ => None,
        }
    }
}

impl Completer for Words {
    type Candidate = String;

    fn complete(&self, line: &str, at: usize, _: &Context<'_>) -> rustyline::Result<(usize, Vec<String>)> {
        let start = line[..at].rfind(' ').map_or(0, |blank| blank + 1);
        let before: Vec<&str> = line[..start].split_whitespace().collect();
        let mut fitting = words::next(&before, || self.state());
        fitting.retain(|word| word.starts_with(&line[start..at]));
        Ok((start, fitting))
    }
}

impl Hinter for Words {
    type Hint = String;
}

impl Highlighter for Words {}
impl Validator for Words {}
impl Helper for Words {}

/// The text of the prompt. The editor asks for it once the terminal is as it needs it, and the receiver hears of that.
struct Text {
    text: String,
    edits: Sender<()>,
}

impl rustyline::Prompt for Text {
    fn raw(&self) -> &str {
        let _ = self.edits.send(());
        &self.text
    }
}

/// The prompt for a job.
pub struct Prompt {
    text: Text,
    editor: Editor<Words, DefaultHistory>,
    /// None: nothing can be kept.
    history: Option<PathBuf>,
}

impl Prompt {
    /// `edits` hears when the user can edit a line: from then on the terminal is not as it was.
    pub fn new(job: u32, edits: Sender<()>) -> Result<Prompt, ReadlineError> {
        let config = Config::builder()
            .completion_type(CompletionType::List)
            .max_history_size(REMEMBERED)?
            .bracketed_paste(false)
            .build();
        let mut editor = Editor::with_history(config.clone(), DefaultHistory::with_config(&config))?;
        editor.set_helper(Some(Words { job }));
        let history = Directory::make(&cache(), Trust::Nobody);
        let history = history.ok().map(|cache| cache.path().join(HISTORY));
        if let Some(history) = &history {
            let _ = editor.load_history(history);
        }
        Ok(Prompt {
            text: Text {
                text: format!("job {job}> "),
                edits,
            },
            editor,
            history,
        })
    }

    /// The next line; none: the user has had enough.
    pub fn next(&mut self) -> Option<String> {
        match self.editor.readline(&self.text) {
            Ok(line) => {
                let is_new = self.editor.add_history_entry(line.as_str()).unwrap_or(false);
                if let Some(history) = self.history.as_ref().filter(|_| is_new) {
                    let _ = self.editor.append_history(history);
                }
                Some(line)
            }
            // Ctrl-C: another line.
            Err(ReadlineError::Interrupted) => Some(String::new()),
            Err(_) => None,
        }
    }
}
