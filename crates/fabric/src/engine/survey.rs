//! What a later life of a rank finds in its arena: the logs and the record of former lives.

use super::peers::Log;
use crate::arena::Arena;
use crate::log::{Reader, Writer};
use crate::message::Kind;
use crate::node::Node;
use crate::record::Cursor;
use resurgo_wire::node_memory as nm;
use std::collections::VecDeque;
use std::sync::atomic::Ordering;

/// Of this rank's arena only the logs are back from other nodes: finds the segments that they use.
pub fn take_over(node: &Node) {
    let (mut serials, mut slots) = (0, 0);
    for destination in 0..node.ranks() {
        if node.channel(node.rank, destination).load(Ordering::Acquire) == 0 {
            continue;
        }
        let mut reader = Reader::new(node.rank, destination);
        reader.open(node);
        loop {
            let entry = reader.peek_any(node);
            let (serial, slot) = reader.position();
            node.serial_in(node.rank, slot).store(serial + 1, Ordering::Release);
            (serials, slots) = (serials.max(serial + 1), slots.max(slot + 1));
            match entry {
                Some(entry) => reader.advance(entry.bytes),
                None => break,
            }
        }
    }
    node.own(nm::arena::NEXT_SERIAL).store(serials, Ordering::Release);
    node.own(nm::arena::SLOTS_TAKEN).store(slots as u64, Ordering::Release);
}

/// What a rank finds of former lives in its own logs.
pub struct Survey {
    /// This rank's logs, with writers behind all published entries.
    pub logs: Vec<Option<Box<Log>>>,
    /// Per destination, visible messages from the beginning of the job.
    pub sent_before: Vec<u64>,
}

impl Survey {
    /// Walks all channels of the own arena to their ends. `sent`: how many messages to a rank need not be sent again.
    /// `logs`: those of the image that the life begins from. Frees segments that were taken but not linked.
    pub fn of(node: &Node, arena: &mut Arena, sent: impl Fn(usize) -> u64, logs: Vec<Option<Box<Log>>>) -> Survey {
        let taken = node.own(nm::arena::SLOTS_TAKEN).load(Ordering::Acquire) as usize;
        let mut linked = vec![false; taken];
        let mut full = Vec::new();
        let mut survey = Survey {
            logs: (0..node.size).map(|_| None).collect(),
            sent_before: vec![0; node.size],
        };
        for (destination, log) in logs.into_iter().enumerate().take(node.ranks()) {
            if node.is_inside(destination) {
                survey.go_on_inside(node, destination, log, &mut linked);
                continue;
            }
            if node.channel(node.rank, destination).load(Ordering::Acquire) == 0 {
                continue;
            }
            survey.walk(node, destination, sent(destination), &mut linked, &mut full);
        }
        full.retain(|&(serial, slot)| node.serial_in(node.rank, slot).load(Ordering::Relaxed) == serial + 1);
        for &(_, slot) in &full {
            linked[slot] = true;
        }
        Cursor::slots(node, |slot| linked[slot] = true);
        for (slot, linked) in linked.iter().enumerate() {
            if !linked {
                arena.free(node, slot);
            }
        }
        if node.spill {
            arena.adopt(full);
        }
        survey
    }

    /// A channel inside the group: the log ends where the image was, and later sends are made anew.
    fn go_on_inside(&mut self, node: &Node, destination: usize, log: Option<Box<Log>>, linked: &mut [bool]) {
        self.sent_before[destination] = node.announced(node.rank, destination).load(Ordering::Acquire);
        self.logs[destination] = log;
        if let Some(log) = &mut self.logs[destination] {
            log.writer.returned(node, |slot| linked[slot] = true);
        }
    }

    fn walk(&mut self, node: &Node, destination: usize, sent: u64, linked: &mut [bool], full: &mut Vec<(u64, usize)>) {
        let mut reader = Reader::new(node.rank, destination);
        let mut redo = None;
        let mut segments = VecDeque::new();
        reader.open(node);
        let mut begun = reader.begun_before();
        let forgotten = begun;
        loop {
            let entry = reader.peek_any(node);
            if segments.back() != Some(&reader.position()) {
                segments.push_back(reader.position());
            }
            let Some(entry) = entry else { break };
            if !matches!(entry.envelope.kind, Kind::More | Kind::Ahead) {
                if begun >= sent && redo.is_none() {
                    redo = Some(reader.again());
                }
                begun += 1;
            }
            reader.advance(entry.bytes);
        }
        // The walk may end in a segment that is still empty.
        full.extend(segments.iter().rev().skip(1));
        linked[reader.position().1] = true;
        self.logs[destination] = Some(Box::new(Log {
            writer: Writer::behind(node, destination, &reader, begun, segments),
            redo: Some(redo.unwrap_or_else(|| reader.again())),
            forgotten,
        }));
        self.sent_before[destination] = begun;
    }
}
