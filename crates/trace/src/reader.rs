//! Reads traces that this crate has written.

use std::collections::BTreeMap;

use crate::perfetto::field;
use crate::span::Fact;

/// A file is no trace, or is damaged.
#[derive(Debug, PartialEq, Eq)]
pub struct NoTrace;

/// A span of a trace.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Read {
    /// The names of its track, and of what the track belongs to.
    pub owner: String,
    pub track: String,
    pub category: String,
    pub name: String,
    pub begin: u64,
    /// None: a moment.
    pub end: Option<u64>,
    pub facts: BTreeMap<String, Fact>,
    pub sends: Option<u64>,
    pub gets: Option<u64>,
}

impl Read {
    /// The rank that it belongs to.
    pub fn rank(&self) -> Option<usize> {
        self.owner.strip_prefix("rank ")?.parse().ok()
    }

    pub fn number(&self, fact: &str) -> Option<u64> {
        match self.facts.get(fact)? {
            Fact::Number(number) => u64::try_from(*number).ok(),
            _ => None,
        }
    }

    pub fn text(&self, fact: &str) -> Option<&str> {
        match self.facts.get(fact)? {
            Fact::Text(text) => Some(text),
            _ => None,
        }
    }

    pub fn is(&self, fact: &str) -> bool {
        self.facts.get(fact) == Some(&Fact::Truth(true))
    }

    /// Nanoseconds from its beginning to its end.
    pub fn length(&self) -> u64 {
        self.end.map_or(0, |end| end.saturating_sub(self.begin))
    }
}

/// The value of a field.
enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

impl<'a> Value<'a> {
    fn number(&self) -> Result<u64, NoTrace> {
        match self {
            Value::Number(number) => Ok(*number),
            Value::Bytes(_) => Err(NoTrace),
        }
    }

    fn bytes(&self) -> Result<&'a [u8], NoTrace> {
        match self {
            Value::Number(_) => Err(NoTrace),
            Value::Bytes(bytes) => Ok(bytes),
        }
    }

    fn text(&self) -> Result<String, NoTrace> {
        Ok(String::from_utf8_lossy(self.bytes()?).into_owned())
    }
}

/// The fields of a message.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn varint(&mut self) -> Result<u64, NoTrace> {
        let length = self
            .0
            .iter()
            .take(10)
            .position(|byte| byte & 0x80 == 0)
            .ok_or(NoTrace)?
            + 1;
        let (bytes, rest) = self.0.split_at(length);
        self.0 = rest;
        let places = bytes.iter().enumerate();
        Ok(places.fold(0, |sum, (at, byte)| sum | u64::from(byte & 0x7f) << (7 * at)))
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], NoTrace> {
        let (bytes, rest) = self.0.split_at_checked(length).ok_or(NoTrace)?;
        self.0 = rest;
        Ok(bytes)
    }

    fn next(&mut self) -> Result<Option<(u32, Value<'a>)>, NoTrace> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let head = self.varint()?;
        let value = match head & 7 {
            0 => Value::Number(self.varint()?),
            1 => {
                let word = self.take(8)?.first_chunk().ok_or(NoTrace)?;
                Value::Number(u64::from_le_bytes(*word))
            }
            2 => {
                let length = self.varint()?;
                Value::Bytes(self.take(usize::try_from(length).map_err(|_| NoTrace)?)?)
            }
            _ => return Err(NoTrace),
        };
        Ok(Some(((head >> 3) as u32, value)))
    }
}

/// Names of tracks and of their owners.
#[derive(Default)]
struct Tracks {
    names: BTreeMap<u64, (String, u64)>,
}

impl Tracks {
    fn add(&mut self, bytes: &[u8]) -> Result<(), NoTrace> {
        let (mut fields, mut number, mut name, mut parent) = (Fields(bytes), 0, String::new(), 0);
        while let Some((field, value)) = fields.next()? {
            match field {
                field::UUID => number = value.number()?,
                field::NAME => name = value.text()?,
                field::PARENT => parent = value.number()?,
                field::PROCESS => {
                    let mut process = Fields(value.bytes()?);
                    while let Some((field, value)) = process.next()? {
                        if field == field::PROCESS_NAME {
                            name = value.text()?;
                        }
                    }
                }
                _ => {}
            }
        }
        self.names.insert(number, (name, parent));
        Ok(())
    }
}

/// The spans of a file, by time.
pub fn read(bytes: &[u8]) -> Result<Vec<Read>, NoTrace> {
    let (mut packets, mut tracks) = (Fields(bytes), Tracks::default());
    let mut spans: Vec<Read> = Vec::new();
    // Of each track, the spans that have not ended.
    let mut open: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
    while let Some((field, packet)) = packets.next()? {
        if field != field::TRACE_PACKET {
            return Err(NoTrace);
        }
        let (mut fields, mut time, mut event) = (Fields(packet.bytes()?), 0, None);
        while let Some((field, value)) = fields.next()? {
            match field {
                field::TIMESTAMP => time = value.number()?,
                field::TRACK_EVENT => event = Some(value.bytes()?),
                field::TRACK_DESCRIPTOR => tracks.add(value.bytes()?)?,
                _ => {}
            }
        }
        let Some(event) = event else { continue };
        let (kind, track, mut span) = span_of(event)?;
        if kind == crate::perfetto::END {
            let ended = open.get_mut(&track).and_then(Vec::pop).ok_or(NoTrace)?;
            spans[ended].end = Some(time);
            continue;
        }
        let (name, owner) = tracks.names.get(&track).ok_or(NoTrace)?;
        let (owner, _) = tracks.names.get(owner).ok_or(NoTrace)?;
        (span.track, span.owner, span.begin) = (name.clone(), owner.clone(), time);
        if kind == crate::perfetto::BEGIN {
            open.entry(track).or_default().push(spans.len());
        }
        spans.push(span);
    }
    spans.sort_by_key(|span| (span.begin, std::cmp::Reverse(span.end)));
    Ok(spans)
}

fn span_of(event: &[u8]) -> Result<(u64, u64, Read), NoTrace> {
    let (mut fields, mut kind, mut track, mut span) = (Fields(event), 0, 0, Read::default());
    while let Some((field, value)) = fields.next()? {
        match field {
            field::TYPE => kind = value.number()?,
            field::TRACK => track = value.number()?,
            field::CATEGORY => span.category = value.text()?,
            field::EVENT_NAME => span.name = value.text()?,
            field::FLOW => span.sends = Some(value.number()?),
            field::END_OF_FLOW => span.gets = Some(value.number()?),
            field::ANNOTATION => {
                let (name, fact) = annotation(value.bytes()?)?;
                span.facts.insert(name, fact);
            }
            _ => {}
        }
    }
    Ok((kind, track, span))
}

fn annotation(bytes: &[u8]) -> Result<(String, Fact), NoTrace> {
    let (mut fields, mut name, mut fact) = (Fields(bytes), String::new(), None);
    while let Some((field, value)) = fields.next()? {
        match field {
            field::ANNOTATION_NAME => name = value.text()?,
            field::ANNOTATION_TRUTH => fact = Some(Fact::Truth(value.number()? != 0)),
            field::ANNOTATION_NUMBER => fact = Some(Fact::Number(value.number()? as i64)),
            field::ANNOTATION_REAL => fact = Some(Fact::Real(f64::from_bits(value.number()?))),
            field::ANNOTATION_TEXT => fact = Some(Fact::Text(value.text()?)),
            _ => {}
        }
    }
    Ok((name, fact.ok_or(NoTrace)?))
}

/// A span as tests need it.
#[cfg(test)]
pub fn span_of_rank(rank: usize, track: &str, category: &str, name: &str, begin: u64, end: Option<u64>) -> Read {
    Read {
        owner: format!("rank {rank}"),
        track: track.into(),
        category: category.into(),
        name: name.into(),
        begin,
        end,
        ..Read::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perfetto::Writer;
    use crate::span::{Span, Track};

    #[test]
    fn what_was_written_is_read() {
        let track = Track::Messages(3);
        let mut send = Span::moment(track, "message", "send to 1", 20).with("bytes", 1 << 40);
        send.sends = Some(77);
        let call = Span::lasting(track, "mpi", "MPI_Send", 10, 30).with("complete", Fact::Truth(true));
        let job = Span::moment(Track::Job, "event", "job_ended", 40).with("seconds", Fact::Real(0.5));
        let mut writer = Writer::new(Vec::new());
        writer.write(vec![send, job, call]).unwrap();
        let bytes = writer.into_inner();
        let spans = read(&bytes).unwrap();
        let shown: Vec<_> = spans
            .iter()
            .map(|span| (&*span.owner, &*span.track, &*span.name, span.begin, span.end))
            .collect();
        let expected = [
            ("rank 3", "MPI", "MPI_Send", 10, Some(30)),
            ("rank 3", "MPI", "send to 1", 20, None),
            ("job", "job", "job_ended", 40, None),
        ];
        assert_eq!(shown, expected);
        assert_eq!(
            (spans[1].number("bytes"), spans[1].sends, spans[1].rank()),
            (Some(1 << 40), Some(77), Some(3))
        );
        assert!(spans[0].is("complete"));
        for length in 1..bytes.len() {
            // A file that was cut off is told, or has fewer spans.
            assert!(read(&bytes[..length]).map_or(0, |spans| spans.len()) < 4);
        }
        assert_eq!(read(b"no trace at all"), Err(NoTrace));
    }
}
