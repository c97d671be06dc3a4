//! The bytes that a message carries under causal message logging.
//!
//! ```text
//! clock                               deliveries of the sender when it sent the message
//! stable clocks: count {rank clock}   those that are news
//! events, by receiver: count {receiver first_rclock count {source polls antecedent}}      (vcausal, manetho)
//! events, in partial order: count {receiver rclock source polls antecedent}               (logon)
//! ```
//!
//! Every number is a LEB128 varint: seven bits a byte, the lowest first. An empty piggyback has 3 bytes, an event of a
//! young job 4 to 6. (Bouteiller 2005, §III.C, has the two forms and why logon cannot have the shorter one.)

use resurgo_protocol::causal::{Event, Piggyback, Reduction};
use resurgo_protocol::{Rank, Recorded};

/// The most bytes of one event, in either form, with its share of the head.
pub const MAX_EVENT_BYTES: usize = 5 + 10 + 10 + 5 + 10 + 10;

/// Why bytes are no piggyback.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("a piggyback of {bytes} bytes ends in the middle of a field")]
    Short { bytes: usize },
    #[error("a number in a piggyback is too large")]
    TooLarge,
    #[error("a piggyback of {bytes} bytes says that it has {count} entries")]
    Count { bytes: usize, count: u64 },
    #[error("a piggyback is followed by {bytes} bytes")]
    TrailingBytes { bytes: usize },
}

/// Appends `piggyback` to `out`. `clock`: deliveries that the sender has made.
pub fn encode(reduction: Reduction, clock: u64, piggyback: &Piggyback, out: &mut Vec<u8>) {
    put(out, clock);
    put(out, piggyback.stable.len() as u64);
    for (rank, clock) in &piggyback.stable {
        put(out, u64::from(*rank));
        put(out, *clock);
    }
    let events = &piggyback.events[..];
    match reduction {
        Reduction::Vcausal | Reduction::Manetho => {
            let runs = || events.chunk_by(|one, next| next.receiver == one.receiver && next.rclock == one.rclock + 1);
            put(out, runs().count() as u64);
            for run in runs() {
                put(out, u64::from(run[0].receiver));
                put(out, run[0].rclock);
                put(out, run.len() as u64);
                run.iter().for_each(|event| put_event(out, event));
            }
        }
        Reduction::LogOn => {
            put(out, events.len() as u64);
            for event in events {
                put(out, u64::from(event.receiver));
                put(out, event.rclock);
                put_event(out, event);
            }
        }
    }
}

/// Reads what [`encode`] made: the sender's clock, and the rest. It allocates memory in proportion to `bytes`.
pub fn decode(reduction: Reduction, bytes: &[u8]) -> Result<(u64, Piggyback), Error> {
    let mut piggyback = Piggyback::default();
    let clock = decode_into(reduction, bytes, &mut piggyback)?;
    Ok((clock, piggyback))
}

/// The same into `piggyback`, whose content it replaces; after an error the content is of no use.
pub fn decode_into(reduction: Reduction, bytes: &[u8], piggyback: &mut Piggyback) -> Result<u64, Error> {
    let Piggyback { events, stable } = piggyback;
    events.clear();
    stable.clear();
    let mut reader = Reader {
        bytes,
        all: bytes.len(),
    };
    let clock = reader.number()?;
    let count = reader.count(2)?;
    for _ in 0..count {
        stable.push((reader.rank()?, reader.number()?));
    }
    match reduction {
        Reduction::Vcausal | Reduction::Manetho => {
            for _ in 0..reader.count(3)? {
                let (receiver, first) = (reader.rank()?, reader.number()?);
                for place in 0..reader.count(3)? {
                    let rclock = first.checked_add(place).ok_or(Error::TooLarge)?;
                    events.push(reader.event(receiver, rclock)?);
                }
            }
        }
        Reduction::LogOn => {
            for _ in 0..reader.count(5)? {
                let (receiver, rclock) = (reader.rank()?, reader.number()?);
                events.push(reader.event(receiver, rclock)?);
            }
        }
    }
    if !reader.bytes.is_empty() {
        let bytes = reader.bytes.len();
        return Err(Error::TrailingBytes { bytes });
    }
    Ok(clock)
}

fn put(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn put_event(out: &mut Vec<u8>, event: &Event) {
    put(out, u64::from(event.record.source));
    put(out, event.record.polls);
    put(out, event.antecedent);
}

struct Reader<'a> {
    bytes: &'a [u8],
    all: usize,
}

impl Reader<'_> {
    fn number(&mut self) -> Result<u64, Error> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let Some((byte, rest)) = self.bytes.split_first() else {
                return Err(Error::Short { bytes: self.all });
            };
            self.bytes = rest;
            if shift == 63 && *byte > 1 {
                break;
            }
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(Error::TooLarge)
    }

    fn rank(&mut self) -> Result<Rank, Error> {
        Rank::try_from(self.number()?).map_err(|_| Error::TooLarge)
    }

    /// A count of entries that have at least `least` bytes each.
    fn count(&mut self, least: usize) -> Result<u64, Error> {
        let count = self.number()?;
        if count > (self.bytes.len() / least) as u64 {
            return Err(Error::Count { bytes: self.all, count });
        }
        Ok(count)
    }

    fn event(&mut self, receiver: Rank, rclock: u64) -> Result<Event, Error> {
        let record = Recorded {
            source: self.rank()?,
            polls: self.number()?,
        };
        Ok(Event {
            receiver,
            rclock,
            record,
            antecedent: self.number()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Reduction; 3] = [Reduction::Vcausal, Reduction::Manetho, Reduction::LogOn];

    fn event(receiver: Rank, rclock: u64, source: Rank, polls: u64, antecedent: u64) -> Event {
        Event {
            receiver,
            rclock,
            record: Recorded { source, polls },
            antecedent,
        }
    }

    fn encoded(reduction: Reduction, clock: u64, piggyback: &Piggyback) -> Vec<u8> {
        let mut bytes = Vec::new();
        encode(reduction, clock, piggyback, &mut bytes);
        bytes
    }

    fn some() -> Piggyback {
        Piggyback {
            events: vec![
                event(3, 7, 0, 1, 0),
                event(3, 8, 1, 0, 129),
                event(1, 200, 3, 70_000, 8),
                event(3, 9, 1, 2, 200),
                event(0, u64::MAX, Rank::MAX, u64::MAX, u64::MAX),
            ],
            stable: vec![(0, 5), (Rank::MAX, u64::MAX)],
        }
    }

    #[test]
    fn what_is_encoded_comes_back() {
        for reduction in ALL {
            for clock in [0, 127, 128, u64::MAX] {
                for piggyback in [Piggyback::default(), some()] {
                    let bytes = encoded(reduction, clock, &piggyback);
                    assert_eq!(decode(reduction, &bytes), Ok((clock, piggyback)));
                }
            }
        }
    }

    #[test]
    fn nothing_is_three_bytes_and_runs_share_their_head() {
        let run: Vec<Event> = (1..101).map(|rclock| event(2, rclock, 1, 1, rclock)).collect();
        let piggyback = Piggyback {
            events: run,
            stable: Vec::new(),
        };
        let size = |reduction| encoded(reduction, 9, &piggyback).len();
        assert_eq!(encoded(Reduction::Manetho, 9, &Piggyback::default()).len(), 3);
        assert_eq!(size(Reduction::Vcausal), 3 + 3 + 100 * 3);
        assert_eq!(size(Reduction::LogOn), 3 + 100 * 5);
        let bounded = |events: usize| encoded(Reduction::LogOn, 0, &some()).len() <= 40 + events * MAX_EVENT_BYTES;
        assert!(bounded(some().events.len()));
    }

    #[test]
    fn anything_else_is_refused() {
        for reduction in ALL {
            let bytes = encoded(reduction, 300, &some());
            for end in 0..bytes.len() {
                assert!(
                    decode(reduction, &bytes[..end]).is_err(),
                    "{reduction:?} cut off at {end}"
                );
            }
            let longer = [&bytes[..], &[0]].concat();
            assert_eq!(decode(reduction, &longer), Err(Error::TrailingBytes { bytes: 1 }));
            let many = [0, 0, 0xff, 0xff, 0xff, 0xff, 0x0f];
            assert!(matches!(decode(reduction, &many), Err(Error::Count { .. })));
            let large = [0xff; 11];
            assert_eq!(decode(reduction, &large), Err(Error::TooLarge));
        }
    }
}
