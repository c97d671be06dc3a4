//! What `resurgo top` shows, and what keys mean.

use std::collections::VecDeque;

use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use resurgo_wire::console::{Doing, Request, Standing, State};

use crate::state;

/// The most events that can be scrolled through.
const EVENTS: usize = 1000;
/// Lines of events below the tables, with their title, and lines of nodes, if there are many.
const EVENT_LINES: u16 = 7;
const NODE_LINES: u16 = 6;

const HELP: &str = "q quit  c image now  d drain node  k kill rank  Tab table  arrows, PgUp, PgDn";

/// What a key asks for.
#[derive(Debug, PartialEq)]
pub enum Wish {
    Nothing,
    Quit,
    Ask(Request),
}

/// The table that arrows move in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Focus {
    Nodes,
    Ranks,
    Events,
}

/// The chosen line of a table.
#[derive(Debug, Clone, Copy, Default)]
struct Cursor(usize);

impl Cursor {
    /// The first line that is shown, of so many in so much room.
    fn first(self, lines: usize, room: usize) -> usize {
        let last = lines.saturating_sub(room);
        self.0.saturating_sub(room.saturating_sub(1)).min(last)
    }

    fn moves(&mut self, key: KeyCode, lines: usize) {
        let last = lines.saturating_sub(1);
        self.0 = match key {
            KeyCode::Up => self.0.saturating_sub(1),
            KeyCode::Down => self.0 + 1,
            KeyCode::PageUp => self.0.saturating_sub(10),
            KeyCode::PageDown => self.0 + 10,
            KeyCode::Home => 0,
            KeyCode::End => last,
            _ => self.0,
        }
        .min(last);
    }
}

pub struct View {
    job: u32,
    has_colours: bool,
    state: Option<State>,
    events: VecDeque<String>,
    focus: Focus,
    node: Cursor,
    rank: Cursor,
    event: Cursor,
    /// Events are followed: the last one is shown.
    follows: bool,
    /// What the user has asked for, and is asked about; the words, and the request.
    unsure: Option<(String, Request)>,
    message: String,
}

impl View {
    pub fn new(job: u32, has_colours: bool) -> View {
        View {
            job,
            has_colours,
            state: None,
            events: VecDeque::new(),
            focus: Focus::Ranks,
            node: Cursor::default(),
            rank: Cursor::default(),
            event: Cursor::default(),
            follows: true,
            unsure: None,
            message: String::new(),
        }
    }

    /// The number of the last event that it has.
    pub fn last_event(&self) -> u64 {
        self.state.as_ref().map_or(0, |state| state.last_event)
    }

    pub fn take(&mut self, state: State) {
        for event in &state.events {
            self.events.push_back(state::event_line(event));
            if self.events.len() > EVENTS {
                self.events.pop_front();
                self.event.0 = self.event.0.saturating_sub(1);
            }
        }
        if self.follows {
            self.event.0 = self.events.len().saturating_sub(1);
        }
        if self.message.starts_with(SILENT) {
            self.message.clear();
        }
        self.state = Some(state);
    }

    pub fn is_silent(&mut self) {
        self.message = format!(
            "{SILENT}; if it has been stopped, let it go on: kill -CONT {}",
            self.job
        );
    }

    pub fn says(&mut self, text: String) {
        self.message = text;
    }

    pub fn pressed(&mut self, key: KeyEvent) -> Wish {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return match key.code {
                KeyCode::Char('c' | 'd') => Wish::Quit,
                _ => Wish::Nothing,
            };
        }
        if let Some((_, request)) = self.unsure.take() {
            return match key.code {
                KeyCode::Char('y' | 'Y') => {
                    self.message = "asked".to_string();
                    Wish::Ask(request)
                }
                _ => {
                    self.message = "nothing was done".to_string();
                    Wish::Nothing
                }
            };
        }
        let Some(state) = &self.state else {
            return match key.code {
                KeyCode::Char('q') | KeyCode::Esc => Wish::Quit,
                _ => Wish::Nothing,
            };
        };
        let (nodes, ranks) = (state.nodes.len(), state.ranks.len());
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return Wish::Quit,
            KeyCode::Char('c') => {
                self.message = "asked for images".to_string();
                return Wish::Ask(Request::Checkpoint);
            }
            KeyCode::Char('d') => self.unsure = self.drain(),
            KeyCode::Char('k') => self.unsure = self.kill(),
            KeyCode::Tab => {
                self.focus = match self.focus {
                    Focus::Nodes => Focus::Ranks,
                    Focus::Ranks => Focus::Events,
                    Focus::Events => Focus::Nodes,
                };
            }
            moves => match self.focus {
                Focus::Nodes => self.node.moves(moves, nodes),
                Focus::Ranks => self.rank.moves(moves, ranks),
                Focus::Events => {
                    self.event.moves(moves, self.events.len());
                    self.follows = self.event.0 + 1 >= self.events.len();
                }
            },
        }
        Wish::Nothing
    }

    /// The chosen node, or that of the chosen rank.
    fn drain(&self) -> Option<(String, Request)> {
        let state = self.state.as_ref()?;
        let node = match self.focus {
            Focus::Nodes => state.nodes.get(self.node.0)?,
            _ => state.nodes.get(state.ranks.get(self.rank.0)?.node)?,
        };
        let name = node.name.clone().unwrap_or_else(|| node.node.to_string());
        let words = format!("shall the ranks of node {} ({name}) go to other nodes?", node.node);
        Some((
            words,
            Request::Drain {
                node: name,
                removed: false,
            },
        ))
    }

    fn kill(&self) -> Option<(String, Request)> {
        let rank = self.state.as_ref()?.ranks.get(self.rank.0)?;
        let pid = rank.pid.map_or("no process".to_string(), |pid| format!("pid {pid}"));
        let words = format!("kill rank {} ({pid})?", rank.rank);
        Some((words, Request::KillRank { rank: rank.rank }))
    }

    fn style(&self, colour: Option<Color>) -> Style {
        let colour = colour.filter(|_| self.has_colours);
        colour.map_or(Style::new(), |colour| Style::new().fg(colour))
    }

    pub fn draw(&self, area: Rect, buffer: &mut Buffer) {
        let mut screen = Lines { area, buffer, at: 0 };
        let Some(state) = &self.state else {
            screen.put(&format!("job {}: {}", self.job, self.message), Style::new());
            return;
        };
        for line in state::head(state) {
            screen.put(&line, Style::new().add_modifier(Modifier::BOLD));
        }
        let footer = area.height.saturating_sub(1);
        let events = EVENT_LINES.min(footer / 3);
        let nodes = NODE_LINES.min(state.nodes.len() as u16 + 1).min(footer / 3);
        let rows = state.nodes.iter().map(|node| {
            let colour = match node.state {
                Standing::There => None,
                Standing::Leaving | Standing::Left => Some(Color::Yellow),
                Standing::Broken | Standing::Lost => Some(Color::Red),
            };
            (state::node_row(node), self.style(colour))
        });
        let title = state::titles(&state::NODE_COLUMNS);
        self.table(&mut screen, nodes, &title, rows, self.node, Focus::Nodes);
        let rows = state
            .ranks
            .iter()
            .map(|rank| (state::rank_row(rank), self.style(colour(rank.state))));
        let title = state::titles(&state::RANK_COLUMNS);
        let room = footer.saturating_sub(events).saturating_sub(screen.at);
        self.table(&mut screen, room, &title, rows, self.rank, Focus::Ranks);
        screen.at = footer.saturating_sub(events);
        let rows = self.events.iter().map(|event| (event.clone(), Style::new()));
        self.table(
            &mut screen,
            events,
            "      TIME  EVENT",
            rows,
            self.event,
            Focus::Events,
        );
        screen.at = footer;
        match &self.unsure {
            Some((words, _)) => screen.put(&format!("{words} y/n"), self.style(Some(Color::Red))),
            None if self.message.is_empty() => screen.put(HELP, Style::new().add_modifier(Modifier::DIM)),
            None => screen.put(&self.message, self.style(Some(Color::Cyan))),
        }
    }

    /// A title and rows, as many as there is room for.
    fn table(
        &self,
        screen: &mut Lines,
        room: u16,
        title: &str,
        rows: impl ExactSizeIterator<Item = (String, Style)>,
        cursor: Cursor,
        focus: Focus,
    ) {
        if room < 2 {
            return;
        }
        let has_focus = self.focus == focus;
        let underlined = Style::new().add_modifier(Modifier::UNDERLINED);
        let mark = if has_focus { "> " } else { "  " };
        screen.put(&format!("{mark}{title}"), underlined);
        let (lines, room) = (rows.len(), usize::from(room - 1));
        let first = cursor.first(lines, room);
        for (number, (row, style)) in rows.enumerate().skip(first).take(room) {
            let is_chosen = number == cursor.0 && focus != Focus::Events;
            let style = match is_chosen && has_focus {
                true => style.add_modifier(Modifier::REVERSED),
                false => style,
            };
            screen.put(&format!("  {row}"), style);
        }
    }
}

const SILENT: &str = "the job does not answer";

fn colour(doing: Doing) -> Option<Color> {
    match doing {
        Doing::Computing | Doing::BeforeMpi | Doing::AfterMpi => None,
        Doing::Waiting | Doing::Finished => Some(Color::Blue),
        Doing::TakingImage => Some(Color::Green),
        Doing::Replaying | Doing::Returning => Some(Color::Yellow),
        Doing::Down | Doing::Lost | Doing::Unknown => Some(Color::Red),
    }
}

/// Lines of the screen, from above.
struct Lines<'a> {
    area: Rect,
    buffer: &'a mut Buffer,
    at: u16,
}

impl Lines<'_> {
    fn put(&mut self, text: &str, style: Style) {
        if self.at < self.area.height {
            let (x, y, width) = (self.area.x, self.area.y + self.at, usize::from(self.area.width));
            self.buffer.set_stringn(x, y, format!("{text:<width$}"), width, style);
        }
        self.at += 1;
    }
}
