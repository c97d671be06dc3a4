//! Merges the output of many ranks without tearing lines.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::pattern::{Pattern, Ranks, seconds};

/// A longer line is passed on in pieces.
const LONGEST: usize = 1 << 20;
/// After so much silence the beginning of a line (a prompt) is shown on a terminal.
pub const SILENCE: Duration = Duration::from_millis(100);

/// The text before every line.
#[derive(Debug, Clone)]
pub struct Label {
    pub pattern: Pattern,
    pub ranks: Arc<Ranks>,
}

/// The lines that go to one place.
#[derive(Debug)]
pub struct Lines {
    label: Option<Label>,
    /// Show beginnings of lines after [`SILENCE`].
    interactive: bool,
    partial: BTreeMap<usize, (Vec<u8>, Instant)>,
    /// The rank whose unfinished line was passed on last.
    open: Option<usize>,
    /// Where every rank's next byte is: at the start of a line or not.
    inside: BTreeMap<usize, bool>,
}

/// The positions of ranks' streams that have stopped for a while.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unfinished {
    /// Beginnings of lines that were not passed on.
    partial: Vec<(usize, Vec<u8>)>,
    inside: Vec<(usize, bool)>,
}

impl Lines {
    /// The state for [`Lines::resume`].
    pub fn unfinished(&self) -> Unfinished {
        let partial = self.partial.iter().map(|(rank, (text, _))| (*rank, text.clone()));
        Unfinished {
            partial: partial.collect(),
            inside: self.inside.iter().map(|(rank, inside)| (*rank, *inside)).collect(),
        }
    }

    /// Goes on from there.
    pub fn resume(&mut self, from: Unfinished) {
        let now = Instant::now();
        let partial = from.partial.into_iter().map(|(rank, text)| (rank, (text, now)));
        self.partial = partial.collect();
        self.inside = from.inside.into_iter().collect();
    }

    /// What labels say of ranks from here on.
    pub fn set_ranks(&mut self, ranks: &Arc<Ranks>) {
        if let Some(label) = &mut self.label {
            label.ranks = ranks.clone();
        }
    }

    pub fn new(label: Option<Label>, interactive: bool) -> Lines {
        Lines {
            label,
            interactive,
            partial: BTreeMap::new(),
            open: None,
            inside: BTreeMap::new(),
        }
    }

    /// Takes what `rank` has printed; returns what can be shown.
    pub fn take(&mut self, rank: usize, bytes: &[u8], now: Instant) -> Vec<u8> {
        let (mut text, _) = self.partial.remove(&rank).unwrap_or((Vec::new(), now));
        text.extend_from_slice(bytes);
        let mut shown = match text.iter().rposition(|byte| *byte == b'\n') {
            Some(last) => last + 1,
            None => 0,
        };
        if text.len() - shown > LONGEST {
            shown = text.len();
        }
        let rest = text.split_off(shown);
        if !rest.is_empty() {
            self.partial.insert(rank, (rest, now));
        }
        self.show(rank, &text)
    }

    /// Beginnings of lines whose end has not come in time.
    pub fn silent(&mut self, now: Instant) -> Vec<u8> {
        let mut out = Vec::new();
        if !self.interactive || self.open.is_some() {
            return out;
        }
        let waiting = self
            .partial
            .iter()
            .find(|(_, (_, since))| now.duration_since(*since) >= SILENCE);
        if let Some(rank) = waiting.map(|(rank, _)| *rank)
            && let Some((text, _)) = self.partial.remove(&rank)
        {
            out = self.show(rank, &text);
        }
        out
    }

    /// [`Lines::silent`] should be called soon.
    pub fn has_waiting(&self) -> bool {
        self.interactive && self.open.is_none() && !self.partial.is_empty()
    }

    /// `rank` prints no more.
    pub fn end(&mut self, rank: usize) -> Vec<u8> {
        let mut out = match self.partial.remove(&rank) {
            Some((text, _)) => self.show(rank, &text),
            None => Vec::new(),
        };
        // Without labels the program's bytes stay as they are, as with other launchers.
        if self.label.is_some() && self.inside.remove(&rank) == Some(true) {
            out.push(b'\n');
            self.open = None;
        }
        if self.open == Some(rank) {
            self.open = None;
        }
        out
    }

    /// All ranks print no more.
    pub fn end_all(&mut self) -> Vec<u8> {
        let ranks: Vec<usize> = self.partial.keys().chain(self.inside.keys()).copied().collect();
        ranks.into_iter().flat_map(|rank| self.end(rank)).collect()
    }

    fn show(&mut self, rank: usize, text: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(text.len() + 16);
        if text.is_empty() {
            return out;
        }
        if self.interactive && self.open.is_some_and(|open| open != rank) {
            // Another rank's prompt is on the terminal.
            out.push(b'\n');
            if let Some(open) = self.open {
                self.inside.insert(open, false);
            }
        }
        for line in text.split_inclusive(|byte| *byte == b'\n') {
            if let Some(label) = &self.label
                && !self.inside.get(&rank).copied().unwrap_or(false)
            {
                let text = label.pattern.of(rank, &label.ranks, seconds());
                out.extend_from_slice(text.as_bytes());
            }
            out.extend_from_slice(line);
            self.inside.insert(rank, !line.ends_with(b"\n"));
        }
        self.open = (!text.ends_with(b"\n")).then_some(rank);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn label(text: &str) -> Option<Label> {
        let pattern = Pattern::parse(text).unwrap();
        let ranks = Arc::new(Ranks {
            worlds: vec![12],
            homes: vec![(0, "n1".to_string()), (1, "n2".to_string())],
        });
        Some(Label { pattern, ranks })
    }

    fn text(bytes: Vec<u8>) -> String {
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn lines_are_whole() {
        let now = Instant::now();
        let mut lines = Lines::new(None, false);
        assert_eq!(text(lines.take(0, b"on", now)), "");
        assert_eq!(text(lines.take(1, b"two\nth", now)), "two\n");
        assert_eq!(text(lines.take(0, b"e\n", now)), "one\n");
        assert_eq!(text(lines.silent(now + SILENCE * 9)), "");
        assert_eq!(text(lines.end(1)), "th");
        assert_eq!(text(lines.end(0)), "");
    }

    #[test]
    fn labels_stand_before_every_line() {
        let now = Instant::now();
        let mut lines = Lines::new(label("[%r] "), false);
        assert_eq!(text(lines.take(12, b"a\nb\nc", now)), "[12] a\n[12] b\n");
        assert_eq!(text(lines.end_all()), "[12] c\n");
        let mut lines = Lines::new(label("%g:%r "), false);
        assert_eq!(text(lines.take(11, b"a\n", now)), "0:11 a\n");
        assert_eq!(text(lines.take(12, b"a\n", now)), "1:12 a\n");
        let mut lines = Lines::new(label("%h> "), false);
        assert_eq!(text(lines.take(1, b"a\nb\n", now)), "n2> a\nn2> b\n");
    }

    #[test]
    fn an_endless_line_is_not_kept_for_ever() {
        let now = Instant::now();
        let mut lines = Lines::new(label("[%r] "), false);
        assert_eq!(lines.take(0, &vec![b'x'; LONGEST + 1], now).len(), LONGEST + 5);
        assert_eq!(text(lines.take(0, b"y\n", now)), "y\n");
    }

    #[test]
    fn a_prompt_is_shown_on_a_terminal_and_stays_on_its_own_line() {
        let now = Instant::now();
        let mut lines = Lines::new(None, true);
        lines.take(0, b"name? ", now);
        assert!(lines.has_waiting());
        assert_eq!(text(lines.silent(now)), "");
        assert_eq!(text(lines.silent(now + SILENCE)), "name? ");
        assert_eq!(text(lines.take(1, b"hello\n", now)), "\nhello\n");
        assert_eq!(text(lines.take(0, b"thanks\n", now)), "thanks\n");
    }
}
