//! The records of a rank as spans.

use resurgo_wire::trace::{CALLS, Kind, Piece, RECORD, Record, Times, records_of};

use crate::span::{Fact, Span, Track};

/// The part of MPI's match bits that is the program's tag.
const TAG: u64 = 0x7fff_ffff;

/// The records of a rank on one node, in pieces.
#[derive(Default)]
pub struct Records {
    times: Times,
    /// The call that runs: 1 + its number, 0 for none; and since when.
    call: [u64; 2],
    /// Number of the first record, and records, one behind the other; in order.
    pieces: Vec<(u64, Vec<u8>)>,
}

impl Records {
    /// Further records; some may be here already.
    pub fn add(&mut self, piece: Piece) {
        let Piece {
            times,
            call,
            first,
            mut records,
            ..
        } = piece;
        (self.times, self.call) = (times, call);
        let known = self.pieces.last().map_or(0, |(first, records)| first + count(records));
        let drop = (known.saturating_sub(first) as usize * RECORD).min(records.len());
        records.drain(..drop);
        if !records.is_empty() {
            self.pieces.push((first.max(known), records));
        }
    }

    /// Drops the oldest pieces until there are at most so many records, or one piece.
    pub fn forget_beyond(&mut self, most: u64) {
        let mut all: u64 = self.pieces.iter().map(|(_, records)| count(records)).sum();
        while all > most && self.pieces.len() > 1 {
            all -= count(&self.pieces.remove(0).1);
        }
    }

    /// The spans of `rank`. `offset`: what must be added to its node's clock, in nanoseconds.
    pub fn spans(&self, rank: usize, offset: i64) -> Vec<Span> {
        let mut spans = Spans {
            rank,
            spans: Vec::new(),
            life: None,
            last: 0,
        };
        let at = |time| self.times.nanoseconds(time).saturating_add_signed(offset);
        let (mut next, mut missing) = (0, 0);
        for (first, records) in &self.pieces {
            missing += first - next;
            next = first + count(records);
            for record in records_of(records, *first) {
                let Some(record) = record else {
                    missing += 1;
                    continue;
                };
                let (begin, end) = (at(record.begin), at(record.end));
                match std::mem::take(&mut missing) {
                    0 => {}
                    records => spans.misses(records, begin),
                }
                spans.take(&record, begin, end);
            }
        }
        let [call, began] = self.call;
        if let Some(call) = call.checked_sub(1) {
            spans.call_of_the_dead(call as u16, at(began));
        }
        spans.end_replay(None);
        spans.spans
    }
}

/// The name of a call; large counts make no difference.
fn name(call: u16) -> &'static str {
    let name = CALLS.get(usize::from(call)).copied().unwrap_or("MPI");
    name.strip_suffix("_c").unwrap_or(name)
}

fn count(records: &[u8]) -> u64 {
    (records.len() / RECORD) as u64
}

struct Spans {
    rank: usize,
    spans: Vec<Span>,
    /// The present life, while it repeats something.
    life: Option<Replay>,
    /// The end of the newest record.
    last: u64,
}

struct Replay {
    begin: u64,
    /// The end of its last record so far.
    last: u64,
    life: u64,
    deliveries: u64,
}

impl Spans {
    fn misses(&mut self, records: u64, at: u64) {
        let name = format!("{records} records are missing");
        let span = Span::moment(Track::Messages(self.rank), "missing", name, at);
        self.spans.push(span.with("missing", records));
    }

    fn take(&mut self, record: &Record, begin: u64, end: u64) {
        let track = Track::Messages(self.rank);
        if record.kind == Kind::Call && begin == end {
            // The next life tells of it, when it begins.
            return self.call_of_the_dead(record.call, begin);
        }
        if record.kind == Kind::Life {
            self.end_replay(None);
        }
        self.last = self.last.max(end);
        if let Some(replay) = &mut self.life {
            replay.last = end;
        }
        let span = match record.kind {
            Kind::Send | Kind::Delivery => self.message(record, begin),
            Kind::Wait => Span::lasting(track, "wait", "asleep", begin, end),
            Kind::Life => {
                self.life = record.is_repeated.then_some(Replay {
                    begin,
                    last: end,
                    life: record.number,
                    deliveries: record.bytes,
                });
                let name = format!("life {} begins", record.number);
                Span::moment(track, "life", name, end).with("life", record.number)
            }
            Kind::Replay => return self.end_replay(Some(end)),
            Kind::Call => self.call(record, begin, end),
        };
        self.spans.push(span);
    }

    fn message(&self, record: &Record, at: u64) -> Span {
        let own = self.rank as u64;
        let peer = u64::from(record.peer.unwrap_or_default());
        let is_send = record.kind == Kind::Send;
        let category = if record.is_repeated { "replay" } else { "message" };
        let name = match is_send {
            true => format!("send to {peer}"),
            false => format!("receive from {peer}"),
        };
        let mut span = Span::moment(Track::Messages(self.rank), category, name, at).with("peer", peer);
        if let Some(tag) = record.tag {
            span = span.with("tag", tag & TAG);
        }
        span = span.with("bytes", record.bytes);
        if record.number > 0 {
            span = span.with("number", record.number);
            let (from, to) = if is_send { (own, peer) } else { (peer, own) };
            let flow = Some(from << 52 | to << 40 | record.number).filter(|_| !record.is_repeated);
            match is_send {
                true => span.sends = flow,
                false => span.gets = flow,
            }
        }
        span
    }

    /// A call of MPI.
    fn call(&mut self, record: &Record, begin: u64, end: u64) -> Span {
        let track = match record.thread {
            0 => Track::Messages(self.rank),
            thread => Track::Thread(self.rank, thread),
        };
        let category = if record.is_repeated { "replay" } else { "mpi" };
        Span::lasting(track, category, name(record.call), begin, end)
    }

    /// The call in which a process died, as far as its records go. Replays count as such.
    fn call_of_the_dead(&mut self, call: u16, begin: u64) {
        let category = if self.life.is_some() { "replay" } else { "mpi" };
        let span = Span::lasting(Track::Messages(self.rank), category, name(call), begin, self.last);
        self.spans.push(span.with("complete", Fact::Truth(false)));
    }

    /// The replay ends; none: with its life.
    fn end_replay(&mut self, at: Option<u64>) {
        if let Some(replay) = self.life.take() {
            let end = at.unwrap_or(replay.last);
            let span = Span::lasting(Track::Replays(self.rank), "replay", "replay", replay.begin, end)
                .with("life", replay.life)
                .with("deliveries", replay.deliveries)
                .with("complete", Fact::Truth(at.is_some()));
            self.spans.push(span);
        }
    }
}

#[cfg(test)]
mod tests {
    use resurgo_wire::trace::call_number;

    use super::*;

    fn bytes(first: u64, records: &[Record]) -> Vec<u8> {
        let numbered = records.iter().zip(first..);
        let words = numbered.flat_map(|(record, number)| [number + 1].into_iter().chain(record.words()));
        words.flat_map(u64::to_le_bytes).collect()
    }

    fn piece(first: u64, records: Vec<u8>) -> Piece {
        Piece {
            first,
            records,
            ..Piece::default()
        }
    }

    #[test]
    fn a_call_in_which_a_process_died_lasts_until_its_last_record() {
        let call = |begin, end| Record {
            call: call_number("MPI_Recv_c"),
            ..Record::alone(Kind::Call, begin, end)
        };
        let mut records = Records::default();
        let mut all = piece(0, bytes(0, &[call(5, 8), send(2), call(15, 15), send(9)]));
        all.call = [1 + u64::from(call_number("MPI_Init")), 85];
        records.add(all);
        let spans = records.spans(0, 0);
        let calls: Vec<_> = spans.iter().filter(|span| span.category == "mpi").collect();
        let times: Vec<_> = calls
            .iter()
            .map(|span| (span.begin, span.end, span.facts.len()))
            .collect();
        assert_eq!(times, [(5, Some(8), 0), (15, Some(20), 1), (85, Some(90), 1)]);
        assert_eq!([0, 2].map(|at| &*calls[at].name), ["MPI_Recv", "MPI_Init"]);
    }

    fn send(number: u64) -> Record {
        Record {
            peer: Some(1),
            number,
            ..Record::alone(Kind::Send, number * 10, number * 10)
        }
    }

    #[test]
    fn what_is_missing_is_told_where_it_is_missing() {
        let mut records = Records::default();
        let mut torn = bytes(2, &[send(1), send(2)]);
        torn[0] = 9;
        records.add(piece(2, torn));
        records.add(piece(3, bytes(3, &[send(2), send(3)])));
        records.add(piece(7, bytes(7, &[send(4)])));
        let names: Vec<_> = records
            .spans(0, 100)
            .into_iter()
            .map(|span| (span.name, span.begin))
            .collect();
        let expected = [
            ("3 records are missing", 120),
            ("send to 1", 120),
            ("send to 1", 130),
            ("2 records are missing", 140),
            ("send to 1", 140),
        ];
        assert_eq!(names, expected.map(|(name, at)| (name.to_string(), at)));
        records.forget_beyond(2);
        assert_eq!(records.spans(0, 0).len(), 4);
    }

    #[test]
    fn a_replay_lasts_until_it_has_ended_or_its_rank() {
        let life = |number, at| Record {
            is_repeated: true,
            number,
            bytes: 5,
            ..Record::alone(Kind::Life, at, at + 1)
        };
        let repeated = Record {
            is_repeated: true,
            ..send(3)
        };
        let ended = Record {
            number: 3,
            ..Record::alone(Kind::Replay, 50, 70)
        };
        let mut records = Records::default();
        records.add(piece(
            0,
            bytes(0, &[life(2, 20), repeated, life(3, 50), ended, send(9)]),
        ));
        let spans = records.spans(0, 0);
        let replays: Vec<_> = spans
            .iter()
            .filter(|span| span.track == Track::Replays(0))
            .map(|span| (span.begin, span.end, span.facts[2].1.clone()))
            .collect();
        assert_eq!(
            replays,
            [(20, Some(30), Fact::Truth(false)), (50, Some(70), Fact::Truth(true))]
        );
        let categories: Vec<_> = spans
            .iter()
            .filter(|span| span.name == "send to 1")
            .map(|span| span.category)
            .collect();
        assert_eq!(categories, ["replay", "message"]);
    }
}
