//! What a later life of a rank finds in its arena, and what it does with it: the logs it had written and the record of its
//! deliveries.

use super::{Engine, Reader, Writer};
use crate::arena::Arena;
use crate::doorbell;
use crate::log::{Entry, Progress};
use crate::message::{Envelope, Kind, Message, Pieces};
use crate::node::Node;
use crate::padding;
use crate::record::Cursor;
use resurgo_wire::node_memory as nm;
use std::collections::VecDeque;
use std::sync::atomic::Ordering;

/// What a rank finds of former lives in its own logs.
pub(super) struct Survey {
    /// Writers behind everything that was published.
    pub outgoing: Vec<Option<Box<Writer>>>,
    /// Where messages that are sent again are found in the logs.
    pub redo: Vec<Option<Box<Reader>>>,
    /// Per destination, messages made visible, from the beginning of the job.
    pub sent_before: Vec<u64>,
    /// Per destination, messages that the log does not hold any more, from the beginning of the job.
    pub forgotten: Vec<u64>,
}

impl Survey {
    pub fn nothing(size: usize) -> Survey {
        Survey {
            outgoing: (0..size).map(|_| None).collect(),
            redo: (0..size).map(|_| None).collect(),
            sent_before: vec![0; size],
            forgotten: vec![0; size],
        }
    }

    /// Walks all channels of the own arena to their ends. `sent`: how many messages to a rank need not be sent again.
    /// `writers`: those of the image that the life begins from. Frees segments that were taken but not linked.
    pub fn of(
        node: &Node,
        arena: &mut Arena,
        sent: impl Fn(usize) -> u64,
        mut writers: Vec<Option<Box<Writer>>>,
    ) -> Survey {
        let taken = node.own(nm::arena::SLOTS_TAKEN).load(Ordering::Acquire) as usize;
        let mut linked = vec![false; taken];
        let mut full = Vec::new();
        let mut survey = Survey::nothing(node.size);
        for destination in 0..node.ranks() {
            if node.is_inside(destination) {
                let writer = writers.get_mut(destination).and_then(Option::take);
                survey.go_on_inside(node, destination, writer, &mut linked);
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

    /// A channel inside the group: the log has been cut off where the image was, and what was sent since is sent anew.
    fn go_on_inside(&mut self, node: &Node, destination: usize, writer: Option<Box<Writer>>, linked: &mut [bool]) {
        self.sent_before[destination] = node.announced(node.rank, destination).load(Ordering::Acquire);
        self.outgoing[destination] = writer;
        if let Some(writer) = &mut self.outgoing[destination] {
            writer.returned_inside(node, |slot| linked[slot] = true);
        }
    }

    fn walk(&mut self, node: &Node, destination: usize, sent: u64, linked: &mut [bool], full: &mut Vec<(u64, usize)>) {
        let mut reader = Reader::new(node.rank, destination);
        let mut redo = None;
        let mut segments = VecDeque::new();
        reader.open(node);
        let mut begun = reader.begun_before();
        self.forgotten[destination] = begun;
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
        // The walk may have gone on into a segment that is still empty.
        full.extend(segments.iter().rev().skip(1));
        linked[reader.position().1] = true;
        self.redo[destination] = Some(Box::new(redo.unwrap_or_else(|| reader.again())));
        self.outgoing[destination] = Some(Box::new(Writer::behind(destination, &reader, begun, segments)));
        self.sent_before[destination] = begun;
    }
}

impl Engine {
    /// A send that a former life made: must be the same, byte for byte.
    #[cold]
    pub(super) fn redo(&mut self, destination: usize, ssn: u64, message: Message) {
        if ssn <= self.forgotten[destination] {
            return;
        }
        let mut reader = self.redo[destination]
            .take()
            .expect("a channel with sends to redo has a log");
        let mut pieces = Pieces::new(message.iov);
        let first = reader.peek(&self.node).expect("the log holds every send to redo");
        if first.envelope != message.envelope {
            self.differs(destination, ssn, first, message, "its envelope");
        }
        if first.total != message.total as u64 {
            self.differs(destination, ssn, first, message, "its length");
        }
        let unset = padding::of(&message);
        let mut progress = Progress { done: 0, started: true };
        let mut entry = Some(first);
        while let Some(piece) = entry {
            let mut different = None;
            reader.compare(&mut pieces, piece.bytes, |at| {
                let at = progress.done + at;
                if different.is_none() && !unset.contains(at) {
                    different = Some(at);
                }
            });
            if let Some(at) = different {
                self.differs(
                    destination,
                    ssn,
                    first,
                    message,
                    &format!("its content from byte {at} on"),
                );
            }
            reader.advance(piece.bytes);
            progress.done += piece.bytes;
            entry = if progress.done < message.total {
                reader.peek(&self.node)
            } else {
                None
            };
        }
        if progress.done < message.total {
            // The former life was killed in the middle of this message: its receiver may be waiting for the rest.
            self.append(destination, message, &mut progress, false);
        }
        self.redo[destination] = Some(reader);
        doorbell::ring(&self.node, destination);
    }

    fn differs(&self, destination: usize, ssn: u64, before: Entry, now: Message, what: &str) -> ! {
        let (before, now) = ((before.envelope, before.total), (now.envelope, now.total as u64));
        self.diverged(destination, ssn, before, now, what)
    }

    /// What is sent again is not what was sent: the envelopes and lengths of both.
    pub(super) fn diverged(
        &self,
        destination: usize,
        ssn: u64,
        before: (Envelope, u64),
        now: (Envelope, u64),
        what: &str,
    ) -> ! {
        let describe = |envelope: Envelope, bytes: u64| match envelope.kind {
            Kind::Tagged => {
                format!(
                    "tag {} ({bytes} bytes, match bits {:#x})",
                    envelope.tag & 0x7fff_ffff,
                    envelope.tag
                )
            }
            _ => format!("no tag, an internal message of MPI ({bytes} bytes)"),
        };
        self.not_deterministic(&format!(
            "rank {} sent something else to rank {destination} as send number {ssn}; {what} differs: before the failure {}, \
             now {}",
            self.node.rank,
            describe(before.0, before.1),
            describe(now.0, now.1),
        ))
    }

    /// Inside the group there is no log that would tell before.
    #[cold]
    pub(super) fn sent_other(&self, source: usize, what: &str) -> ! {
        self.not_deterministic(&format!("rank {source} sent {what} to rank {}", self.node.rank))
    }

    #[cold]
    pub(super) fn sent_more(&self, destination: usize) -> ! {
        let own = self.node.rank;
        self.not_deterministic(&format!("rank {own} sent a message more to rank {destination}"))
    }

    #[cold]
    pub(super) fn reads_differ(&self) -> ! {
        self.not_deterministic(&format!("rank {} looked for messages at other times", self.node.rank))
    }

    #[cold]
    pub(super) fn waits_in_vain(&self, source: usize) -> ! {
        let own = self.node.rank;
        self.not_deterministic(&format!(
            "rank {source} did not send what it had sent to rank {own}: each waits for another's message"
        ))
    }

    #[cold]
    pub(super) fn sends_nothing(&self, owed: u64) -> ! {
        self.not_deterministic(&format!(
            "rank {} waits for a message before it has repeated its last sends ({owed} of them), which had not waited for any",
            self.node.rank
        ))
    }

    fn not_deterministic(&self, what: &str) -> ! {
        let text = format!(
            "the program is not piecewise deterministic: in its replay {what}. Messages must not depend on measured time, \
             unseeded random numbers, process ids or several threads calling MPI; find the source of that message, or run \
             with --protocol auto, under which all ranks return to images of one moment instead",
        );
        self.node
            .report_and_exit(&text, resurgo_wire::node_memory::EXIT_DIVERGED)
    }
}
