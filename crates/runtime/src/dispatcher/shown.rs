//! What ranks have last printed on the launcher's own streams, for those who look at the job.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use resurgo_wire::console::{Printed, PrintedPart};
use resurgo_wire::control::Stream;

/// The most bytes that are kept.
const MOST: usize = 64 << 10;
/// The longest part that another text is added to.
const LONG: usize = 4 << 10;
/// From an answer to the next one for the same client.
const PACE: Duration = Duration::from_millis(250);

/// The end of the output. Positions in it are bytes since the job began.
#[derive(Default)]
pub struct Shown {
    end: u64,
    kept: VecDeque<(Stream, Vec<u8>)>,
    bytes: usize,
}

impl Shown {
    pub fn add(&mut self, stream: Stream, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        self.end += bytes.len() as u64;
        let rest = &bytes[bytes.len().saturating_sub(MOST)..];
        self.bytes += rest.len();
        match self.kept.back_mut() {
            Some((last, part)) if *last == stream && part.len() < LONG => part.extend_from_slice(rest),
            _ => self.kept.push_back((stream, rest.to_vec())),
        }
        while self.bytes > MOST {
            let Some((_, part)) = self.kept.front_mut() else { return };
            let gone = part.len().min(self.bytes - MOST);
            part.drain(..gone);
            self.bytes -= gone;
            if part.is_empty() {
                self.kept.pop_front();
            }
        }
    }

    /// What was printed behind position `after`, as far as it is still known.
    fn after(&self, after: u64) -> Printed {
        let from = after.clamp(self.end - self.bytes as u64, self.end);
        let mut skip = self.bytes - (self.end - from) as usize;
        let mut parts = Vec::new();
        for (stream, bytes) in &self.kept {
            let new = &bytes[skip.min(bytes.len())..];
            skip = skip.saturating_sub(bytes.len());
            if !new.is_empty() {
                parts.push(PrintedPart {
                    is_error: *stream == Stream::Stderr,
                    text: String::from_utf8_lossy(new).into_owned(),
                });
            }
        }
        Printed {
            from,
            end: self.end,
            parts,
        }
    }
}

/// A client that gets all output.
struct Reader {
    client: u64,
    has: u64,
    /// When it gets more, if there is more.
    due: Instant,
}

/// All such clients.
#[derive(Default)]
pub struct Readers(Vec<Reader>);

impl Readers {
    pub fn add(&mut self, client: u64, has: u64, now: Instant) {
        self.0.push(Reader { client, has, due: now });
    }

    /// When the next of them gets something.
    pub fn due(&self, shown: &Shown) -> Option<Instant> {
        let readers = self.0.iter().filter(|reader| reader.has != shown.end);
        readers.map(|reader| reader.due).min()
    }

    /// What readers get now; at the end of the job (`is_last`) each gets the rest at once. `takes` tells whether a client
    /// takes something now, or None when it is gone.
    pub fn answers(
        &mut self,
        shown: &Shown,
        now: Instant,
        is_last: bool,
        takes: impl Fn(u64) -> Option<bool>,
    ) -> Vec<(u64, Printed)> {
        self.0.retain(|reader| takes(reader.client).is_some());
        let mut answers = Vec::new();
        for reader in self.0.iter_mut().filter(|reader| reader.has != shown.end) {
            if !is_last && reader.due > now {
                continue;
            }
            reader.due = now + PACE;
            if is_last || takes(reader.client) == Some(true) {
                answers.push((reader.client, shown.after(reader.has)));
                reader.has = shown.end;
            }
        }
        answers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(printed: &Printed) -> Vec<(bool, &str)> {
        let parts = printed.parts.iter();
        parts.map(|part| (part.is_error, part.text.as_str())).collect()
    }

    #[test]
    fn a_reader_gets_what_it_has_not_yet() {
        let mut shown = Shown::default();
        shown.add(Stream::Stdout, b"one\n");
        shown.add(Stream::Stderr, b"two\n");
        shown.add(Stream::Stderr, b"three\n");
        let all = shown.after(0);
        assert_eq!(texts(&all), [(false, "one\n"), (true, "two\nthree\n")]);
        assert_eq!((all.from, all.end), (0, 14));
        assert_eq!(texts(&shown.after(8)), [(true, "three\n")]);
        assert!(shown.after(14).parts.is_empty());
        // Of another run of the launcher, perhaps.
        assert_eq!((shown.after(99).from, shown.after(99).end), (14, 14));
    }

    #[test]
    fn the_end_is_kept_however_it_is_printed() {
        let all: Vec<u8> = (0..MOST * 3).map(|at| b'a' + (at % 23) as u8).collect();
        for step in [1, 7, LONG, LONG + 1, MOST - 1, MOST, MOST + 1, all.len()] {
            let mut shown = Shown::default();
            let streams = [Stream::Stdout, Stream::Stderr];
            for (at, bytes) in all.chunks(step).enumerate() {
                shown.add(streams[at % 2], bytes);
                assert!(shown.bytes <= MOST);
            }
            let printed = shown.after(5);
            let text: String = printed.parts.iter().map(|part| part.text.as_str()).collect();
            assert_eq!(text.as_bytes(), &all[all.len() - MOST..], "{step}");
            assert_eq!(
                (printed.from, printed.end),
                ((all.len() - MOST) as u64, all.len() as u64)
            );
        }
    }

    #[test]
    fn answers_come_at_a_pace_and_the_rest_at_the_end() {
        let (mut shown, mut readers, start) = (Shown::default(), Readers::default(), Instant::now());
        let all = |_| Some(true);
        readers.add(1, 0, start);
        readers.add(2, 0, start);
        assert_eq!(readers.due(&shown), None);
        shown.add(Stream::Stdout, b"x");
        assert_eq!(readers.due(&shown), Some(start));
        // The second one has not taken what it got before.
        let told = readers.answers(&shown, start, false, |client| Some(client == 1));
        assert_eq!((told.len(), told[0].0, texts(&told[0].1)), (1, 1, vec![(false, "x")]));
        shown.add(Stream::Stdout, b"y");
        assert_eq!(readers.due(&shown), Some(start + PACE));
        assert!(readers.answers(&shown, start, false, all).is_empty());
        let told = readers.answers(&shown, start + PACE, false, all);
        let told: Vec<_> = told.iter().map(|(client, told)| (*client, texts(told))).collect();
        assert_eq!(told, [(1, vec![(false, "y")]), (2, vec![(false, "xy")])]);
        assert_eq!(readers.due(&shown), None);
        shown.add(Stream::Stderr, b"z");
        let told = readers.answers(&shown, start + PACE, true, |client| (client == 2).then_some(false));
        assert_eq!((told.len(), told[0].0, texts(&told[0].1)), (1, 2, vec![(true, "z")]));
    }
}
