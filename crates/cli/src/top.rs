//! `resurgo top`: looks at a running job until the user, or the job, has had enough.

mod view;

use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode};
use resurgo_runtime::jobs::Job;
use resurgo_wire::console::Request;

use crate::looking::{self, PERIOD, Seen};
use crate::{jobs, say, state};
use view::{View, Wish};

/// How long keys are waited for before news from the job is shown.
const KEYS: Duration = Duration::from_millis(50);

/// What threads have to say.
enum News {
    Seen(Seen),
    /// On the way to what the user wants, or the result.
    Said(String),
}

/// `resurgo top [JOB]`.
pub fn run(arguments: Vec<OsString>) -> i32 {
    if let Some(option) = arguments.iter().find(|word| word.as_encoded_bytes().starts_with(b"-")) {
        return say::usage(&format!("top takes the number of one job, not {:?}", option.display()));
    }
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        return state::ps("top", arguments);
    }
    let job = match jobs::wanted("top", &arguments) {
        Ok(job) => job,
        Err(code) => return code,
    };
    let number = job.number;
    let shown = Screen::open().and_then(|mut screen| screen.show(job));
    match shown {
        Ok(None) => 0,
        Ok(Some(end)) => {
            println!("job {number}: {end}");
            0
        }
        Err(error) => say::failed(&format!("cannot use the terminal: {error}")),
    }
}

/// The terminal. It is as before when this is dropped.
struct Screen {
    terminal: Terminal<CrosstermBackend<io::Stdout>>,
    signals: SignalFd,
}

/// What a user or a lost terminal ends the command with.
const ENDS: [Signal; 4] = [Signal::SIGTERM, Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT];

impl Screen {
    fn open() -> io::Result<Screen> {
        let signals = SigSet::from_iter(ENDS);
        signals.thread_block()?;
        let signals = SignalFd::with_flags(&signals, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |what| {
            restore();
            before(what);
        }));
        enable_raw_mode()?;
        execute!(io::stdout(), EnterAlternateScreen)?;
        let terminal = Terminal::new(CrosstermBackend::new(io::stdout()));
        let terminal = terminal.inspect_err(|_| restore())?;
        Ok(Screen { terminal, signals })
    }

    /// Shows the job until the user wants no more, or it has ended: then how.
    fn show(&mut self, job: Job) -> io::Result<Option<String>> {
        let number = job.number;
        let mut view = View::new(
            number,
            std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()),
        );
        let (says, news) = channel();
        let (asks, asked) = channel();
        let looking = says.clone();
        std::thread::spawn(move || look(job, &asked, &looking));
        let (mut due, mut is_asked) = (Instant::now(), false);
        loop {
            if !is_asked && due <= Instant::now() {
                is_asked = asks.send(view.last_event()).is_ok();
            }
            self.terminal
                .draw(|frame| view.draw(frame.area(), frame.buffer_mut()))?;
            if self.signals.read_signal()?.is_some() {
                return Ok(None);
            }
            if event::poll(KEYS)?
                && let Event::Key(key) = event::read()?
                && key.kind == KeyEventKind::Press
            {
                match view.pressed(key) {
                    Wish::Nothing => {}
                    Wish::Quit => return Ok(None),
                    Wish::Ask(request) => order(number, request, says.clone()),
                }
            }
            while let Ok(news) = news.try_recv() {
                match news {
                    News::Seen(Seen::State(state)) => {
                        (is_asked, due) = (false, Instant::now() + PERIOD);
                        view.take(*state);
                    }
                    News::Seen(Seen::Silent) => {
                        (is_asked, due) = (false, Instant::now());
                        view.is_silent();
                    }
                    News::Seen(Seen::Over(how)) => return Ok(Some(how)),
                    News::Said(text) => view.says(text),
                }
            }
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

fn restore() {
    let _ = execute!(io::stdout(), LeaveAlternateScreen, ratatui::crossterm::cursor::Show);
    let _ = disable_raw_mode();
}

/// Asks the job for its state, each time with the number of the last event that is known.
fn look(mut job: Job, asked: &Receiver<u64>, says: &Sender<News>) {
    while let Ok(after) = asked.recv() {
        if says.send(News::Seen(looking::look(&mut job, after))).is_err() {
            return;
        }
    }
}

/// Gives the job an order.
fn order(number: u32, request: Request, says: Sender<News>) {
    std::thread::spawn(move || {
        let mut progress = |text: &str| drop(says.send(News::Said(text.to_string())));
        if let Some(done) = looking::order(number, &request, &mut progress) {
            let _ = says.send(News::Said(done.unwrap_or_else(|why| why)));
        }
    });
}
