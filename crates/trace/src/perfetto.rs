//! The format of Perfetto: a file is a sequence of packets in the encoding of protocol buffers
//! (perfetto/protos/perfetto/trace/trace.proto). Of the messages only the few fields below are used.
//!
//! Perfetto sorts packets by time. But on one track, of packets of the same time the one that stands first counts first.

use std::collections::BTreeSet;
use std::io::{self, Write};

use crate::span::{Fact, Span, Track};

/// Field numbers.
pub mod field {
    pub const TRACE_PACKET: u32 = 1;

    pub const TIMESTAMP: u32 = 8;
    pub const SEQUENCE: u32 = 10;
    pub const TRACK_EVENT: u32 = 11;
    pub const TRACK_DESCRIPTOR: u32 = 60;

    pub const UUID: u32 = 1;
    pub const NAME: u32 = 2;
    pub const PROCESS: u32 = 3;
    pub const PARENT: u32 = 5;
    pub const PID: u32 = 1;
    pub const PROCESS_NAME: u32 = 6;

    pub const ANNOTATION: u32 = 4;
    pub const TYPE: u32 = 9;
    pub const TRACK: u32 = 11;
    pub const CATEGORY: u32 = 22;
    pub const EVENT_NAME: u32 = 23;
    pub const FLOW: u32 = 47;
    pub const END_OF_FLOW: u32 = 48;

    pub const ANNOTATION_TRUTH: u32 = 2;
    pub const ANNOTATION_NUMBER: u32 = 4;
    pub const ANNOTATION_REAL: u32 = 5;
    pub const ANNOTATION_TEXT: u32 = 6;
    pub const ANNOTATION_NAME: u32 = 10;
}

/// Types of track events.
pub const BEGIN: u64 = 1;
pub const END: u64 = 2;
const MOMENT: u64 = 3;

/// All packets are of one sequence: none needs what another has said.
const SEQUENCE: u64 = 1;

/// The bytes of a message.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn number(&mut self, field: u32, value: u64) -> &mut Self {
        self.varint(u64::from(field) << 3);
        self.varint(value);
        self
    }

    fn fixed(&mut self, field: u32, value: u64) -> &mut Self {
        self.varint(u64::from(field) << 3 | 1);
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    fn bytes(&mut self, field: u32, bytes: &[u8]) -> &mut Self {
        self.varint(u64::from(field) << 3 | 2);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
        self
    }
}

/// Writes spans.
pub struct Writer<W> {
    out: W,
    described: BTreeSet<u64>,
}

impl<W: Write> Writer<W> {
    pub fn new(out: W) -> Writer<W> {
        Writer {
            out,
            described: BTreeSet::new(),
        }
    }

    /// Writes spans, of which those on one track lie inside one another or apart. One that reaches beyond the end of
    /// another ends with it.
    pub fn write(&mut self, mut spans: Vec<Span>) -> io::Result<()> {
        spans.sort_by_key(|span| {
            (
                span.track,
                span.begin,
                std::cmp::Reverse(span.end.unwrap_or(span.begin)),
            )
        });
        // Of the spans of the present track that have begun, those that have not ended.
        let mut open: Vec<(Track, u64)> = Vec::new();
        for span in &spans {
            self.end_until(&mut open, span)?;
            self.describe(span.track)?;
            let inside = open.last().map_or(u64::MAX, |(_, end)| *end);
            self.begin(span)?;
            if let Some(end) = span.end {
                open.push((span.track, end.min(inside)));
            }
        }
        while let Some((track, end)) = open.pop() {
            self.end(track, end)?;
        }
        Ok(())
    }

    #[cfg(test)]
    pub fn into_inner(self) -> W {
        self.out
    }

    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    /// Ends what is over when `span` begins.
    fn end_until(&mut self, open: &mut Vec<(Track, u64)>, span: &Span) -> io::Result<()> {
        while let Some((track, end)) = open.last().copied()
            && (track != span.track || end <= span.begin)
        {
            self.end(track, end)?;
            open.pop();
        }
        Ok(())
    }

    fn begin(&mut self, span: &Span) -> io::Result<()> {
        let mut event = Message::default();
        event.number(field::TYPE, if span.end.is_some() { BEGIN } else { MOMENT });
        event.number(field::TRACK, span.track.number());
        event.bytes(field::CATEGORY, span.category.as_bytes());
        event.bytes(field::EVENT_NAME, span.name.as_bytes());
        for (name, value) in &span.facts {
            event.bytes(field::ANNOTATION, &annotation(name, value).0);
        }
        if let Some(flow) = span.sends {
            event.fixed(field::FLOW, flow);
        }
        if let Some(flow) = span.gets {
            event.fixed(field::END_OF_FLOW, flow);
        }
        self.event(span.begin, &event)
    }

    fn end(&mut self, track: Track, at: u64) -> io::Result<()> {
        let mut event = Message::default();
        event.number(field::TYPE, END).number(field::TRACK, track.number());
        self.event(at, &event)
    }

    fn event(&mut self, at: u64, event: &Message) -> io::Result<()> {
        let mut packet = Message::default();
        packet.number(field::TIMESTAMP, at).bytes(field::TRACK_EVENT, &event.0);
        self.packet(packet)
    }

    fn packet(&mut self, mut packet: Message) -> io::Result<()> {
        packet.number(field::SEQUENCE, SEQUENCE);
        let mut whole = Message::default();
        whole.bytes(field::TRACE_PACKET, &packet.0);
        self.out.write_all(&whole.0)
    }

    fn describe(&mut self, track: Track) -> io::Result<()> {
        if !self.described.insert(track.number()) {
            return Ok(());
        }
        let owner = track.owner();
        if self.described.insert(owner.number()) {
            let mut process = Message::default();
            process.number(field::PID, owner.process());
            process.bytes(field::PROCESS_NAME, owner.to_string().as_bytes());
            let mut descriptor = Message::default();
            descriptor.number(field::UUID, owner.number());
            descriptor.bytes(field::PROCESS, &process.0);
            self.descriptor(&descriptor)?;
        }
        let mut descriptor = Message::default();
        descriptor.number(field::UUID, track.number());
        descriptor.number(field::PARENT, owner.number());
        descriptor.bytes(field::NAME, track.to_string().as_bytes());
        self.descriptor(&descriptor)
    }

    fn descriptor(&mut self, descriptor: &Message) -> io::Result<()> {
        let mut packet = Message::default();
        packet.bytes(field::TRACK_DESCRIPTOR, &descriptor.0);
        self.packet(packet)
    }
}

fn annotation(name: &str, value: &Fact) -> Message {
    let mut annotation = Message::default();
    annotation.bytes(field::ANNOTATION_NAME, name.as_bytes());
    match value {
        Fact::Truth(is_so) => annotation.number(field::ANNOTATION_TRUTH, u64::from(*is_so)),
        Fact::Number(number) => annotation.number(field::ANNOTATION_NUMBER, *number as u64),
        Fact::Real(number) => annotation.fixed(field::ANNOTATION_REAL, number.to_bits()),
        Fact::Text(text) => annotation.bytes(field::ANNOTATION_TEXT, text.as_bytes()),
    };
    annotation
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_as_many_bytes_as_they_need() {
        let mut message = Message::default();
        message.number(1, 150).number(16, 0).bytes(2, b"testing");
        let expected = [&[0x08, 0x96, 0x01, 0x80, 0x01, 0x00, 0x12, 7][..], b"testing"].concat();
        assert_eq!(message.0, expected);
    }

    #[test]
    fn what_begins_ends_in_turn() {
        let track = Track::Messages(0);
        let spans = vec![
            Span::moment(track, "message", "send", 30),
            Span::lasting(track, "wait", "asleep", 20, 45),
            Span::lasting(track, "mpi", "outer", 10, 40),
            Span::lasting(track, "mpi", "next", 40, 50),
            Span::lasting(Track::Lives(0), "life", "life 1", 0, 15),
        ];
        let mut writer = Writer::new(Vec::new());
        writer.write(spans).unwrap();
        let types = events(&writer.out);
        let expected = [
            (BEGIN, 10, 4),
            (BEGIN, 20, 4),
            (MOMENT, 30, 4),
            (END, 40, 4),
            (END, 40, 4),
            (BEGIN, 40, 4),
            (END, 50, 4),
            (BEGIN, 0, 6),
            (END, 15, 6),
        ];
        assert_eq!(types, expected);
    }

    /// Type, time and kind of track of each event.
    fn events(mut bytes: &[u8]) -> Vec<(u64, u64, u64)> {
        let mut events = Vec::new();
        while let Some((field, value, inner)) = next(&mut bytes) {
            assert_eq!((field, value), (field::TRACE_PACKET, 0));
            let (mut packet, mut time, mut event) = (inner, 0, None);
            while let Some((field, value, inner)) = next(&mut packet) {
                match field {
                    field::TIMESTAMP => time = value,
                    field::TRACK_EVENT => event = Some(inner),
                    _ => {}
                }
            }
            let Some(mut event) = event else { continue };
            let (mut kind, mut track) = (0, 0);
            while let Some((field, value, _)) = next(&mut event) {
                match field {
                    field::TYPE => kind = value,
                    field::TRACK => track = value >> 32,
                    _ => {}
                }
            }
            events.push((kind, time, track));
        }
        events
    }

    fn next<'a>(bytes: &mut &'a [u8]) -> Option<(u32, u64, &'a [u8])> {
        let head = varint(bytes)?;
        let (field, kind) = ((head >> 3) as u32, head & 7);
        let length = match kind {
            0 => return Some((field, varint(bytes)?, &[])),
            1 => 8,
            _ => varint(bytes)? as usize,
        };
        let (inner, rest) = bytes.split_at(length);
        *bytes = rest;
        Some((field, 0, inner))
    }

    fn varint(bytes: &mut &[u8]) -> Option<u64> {
        let length = bytes.iter().position(|byte| byte & 0x80 == 0)? + 1;
        let (number, rest) = bytes.split_at(length);
        *bytes = rest;
        let places = number.iter().enumerate();
        Some(places.fold(0, |sum, (at, byte)| sum | u64::from(byte & 0x7f) << (7 * at)))
    }
}
