//! Failures in a program that deals with them itself: receives that can get no message are ended as if one had come.
//!
//! MPI goes on with what such a receive gives it, and so a blocked call returns. The library above MPI knows of the
//! failure, and returns an error instead of the result. The completion of a point-to-point receive carries
//! [`resurgo_wire::survivors::ENDED`] as its tag, and the context as its data.

use super::failures::{
    dead_of, hear_of_revoked, is_broken, is_in_vain, is_in_vain_to_make, is_of_no_use, is_of_no_use_to_others, news,
};
use super::introductions;
use super::*;
use resurgo_wire::survivors::{ENDED, Place};
use std::collections::{HashSet, VecDeque};

impl Engine {
    /// Hears of new failures and revocations.
    #[cold]
    pub(super) fn hear_of_failures(&mut self) {
        self.failures.heard = news(&self.node);
        self.failures.failed.resize(self.node.ranks(), false);
        let has_failed = |rank: &usize| self.node.control(*rank, control::BURIED).load(Ordering::Acquire) != 0;
        let fresh: Vec<usize> = (0..self.node.ranks())
            .filter(|rank| !self.failures.failed[*rank])
            .filter(has_failed)
            .collect();
        for rank in fresh {
            // It runs no more: nothing is added.
            self.take_what_came(rank);
            self.failures.failed[rank] = true;
            self.bury(rank);
        }
        if survivors::with(|known| hear_of_revoked(&self.node, known)) {
            (0..self.node.ranks()).for_each(|rank| self.take_what_came(rank));
        }
        self.end_receives();
    }

    /// What the rank has sent so far comes first.
    fn take_what_came(&mut self, rank: usize) {
        self.peers.incoming(&self.node, rank);
        while self.has_entry(rank) {
            self.deliver(rank);
        }
    }

    /// Ends what waits for the dead rank: half a message from it, messages to it, remote reads and writes.
    fn bury(&mut self, rank: usize) {
        let incoming = self.peers.incoming[rank].as_mut();
        let filling = incoming.map(|incoming| std::mem::replace(&mut incoming.filling, Filling::Nothing));
        let receive = match filling {
            Some(Filling::Receive { receive, .. }) => Some(receive),
            Some(Filling::Unexpected(message)) => match self.calls.matching.forget(message) {
                true => None,
                // SAFETY: `give` has leaked it when a receive took it, and nothing else points to it now.
                false => unsafe { Box::from_raw(message) }.taken_by,
            },
            _ => None,
        };
        receive.into_iter().for_each(|receive| self.end_receive(receive));
        let waiting = std::mem::take(&mut self.outbox.waiting).into_iter();
        let (to_it, rest): (VecDeque<_>, _) = waiting.partition(|send| send.destination == rank);
        self.outbox.waiting = rest;
        self.calls
            .completions
            .extend(to_it.into_iter().filter_map(|send| send.completion));
        let done = self.calls.rma.abandon(rank);
        self.calls.completions.extend(done);
    }

    /// Ends all posted receives that can get no message.
    fn end_receives(&mut self) {
        let mut ended = Vec::new();
        survivors::with(|known| {
            let failures = &self.failures;
            ended = self
                .calls
                .matching
                .take_out(|receive| is_in_vain(failures, known, &self.node, receive));
            self.calls
                .matching
                .drop_unexpected(|message| is_of_no_use(failures, known, message.source, message.envelope.tag));
        });
        ended.into_iter().for_each(|receive| self.end_receive(receive));
    }

    /// As if a message had come that fills it, or an empty one.
    fn end_receive(&mut self, receive: Receive) {
        let place = Place::of(receive.tag);
        let bytes = receive.room.bytes();
        let (makes, awaits, is_of_object) = survivors::with(|known| {
            let awaits = known.making.values().find_map(|making| making.awaits);
            (!known.making.is_empty(), awaits, known.is_of_object(place.context))
        });
        let fill = |byte: u8| {
            receive.room.fill(0, bytes, |_, to, run| {
                // SAFETY: `fill` keeps to the receive's memory.
                unsafe { std::ptr::write_bytes(to, byte, run) };
            });
        };
        if place.is_introduction {
            let dead = dead_of(&self.failures, &self.node, &receive, awaits);
            introductions::fill(&receive.room, place.is_first_word, dead);
        } else if is_of_object {
            // Counts, places and numbers of errors: nobody wants anything.
            fill(0);
        } else if place.is_of_collective && awaits.is_some() && bytes <= WORDS_ON_STACK {
            introductions::tell_an_error(&receive.room);
        } else if place.is_of_collective && makes && !is_on_stack(receive.room.start()) {
            // MPI agrees on free contexts by AND, in a table that is on its stack. In what it receives elsewhere, and
            // adds to the table, ones change nothing.
            fill(0xff);
        }
        let (tag, data) = match place.is_of_program() {
            true => (ENDED | place.bits, u64::from(place.context)),
            false => (receive.tag & !receive.ignore, 0),
        };
        let envelope = Envelope {
            kind: Kind::Tagged,
            flags: crate::message::HAS_DATA,
            tag,
            data,
        };
        let source = receive.source.unwrap_or(self.node.rank as u32);
        // MPI packs what it sends on before the engine sees it: it must not be more than there is.
        let bytes = if place.is_sent_on { 0 } else { bytes };
        self.calls.received(&receive, envelope, bytes, source);
    }

    /// The calling thread waits for messages of a window which may never come, and which nobody can make up. So MPI is
    /// given a buffer of its own back, without a message: it posts it again. That is refused once, and so MPI leaves the
    /// call, as after any error of the network.
    #[cold]
    pub(super) fn leave_window(&mut self) {
        let failures = &self.failures;
        let is_in_vain = survivors::with(|known| {
            let on_window = known.on_window();
            on_window.is_some_and(|making| is_in_vain_to_make(failures, known, making))
        });
        let Some(buffer) = self.calls.matching.multi().filter(|_| is_in_vain) else {
            return;
        };
        self.calls.refuses_buffer = true;
        self.calls.completions.push_back(Completion {
            entry: FiCqTaggedEntry {
                op_context: buffer,
                flags: FI_MULTI_RECV,
                len: 0,
                buf: std::ptr::null_mut(),
                data: 0,
                tag: 0,
            },
            error: 0,
            overflow: 0,
            source: self.node.rank as u32,
        });
    }

    /// Posts a receive, where the program deals with failures.
    pub(super) fn receive_or_end(&mut self, receive: Receive, tagged: bool) {
        if !tagged {
            return self.calls.receive(receive, tagged);
        }
        survivors::posted(receive.tag, receive.source);
        let place = Place::of(receive.tag);
        let failures = &self.failures;
        let (ends, is_broken, stale) = survivors::with(|known| {
            if !place.is_of_merge {
                known.note(place.context);
            }
            let ends = failures.heard != 0 && is_in_vain(failures, known, &self.node, &receive);
            let is_broken = ends && is_broken(failures, known, place);
            (ends, is_broken, std::mem::take(&mut known.stale))
        });
        if !stale.is_empty() {
            self.drop_merges(&stale);
        }
        if !ends {
            return self.calls.receive(receive, tagged);
        }
        match self.calls.matching.take(&receive, true) {
            // It came before the failure, and nobody has seen the failure in it. Or it is of MPI_Init, for which nobody
            // looks at the result: a rank that comes late still needs what the dead has sent there.
            Some(message) if place.is_of_program() || place.is_introduction || !is_broken => {
                self.calls.give(message, receive);
            }
            _ => self.end_receive(receive),
        }
    }

    /// Drops all messages so far of merges with these contexts.
    #[cold]
    fn drop_merges(&mut self, contexts: &HashSet<u32>) {
        (0..self.node.ranks()).for_each(|rank| self.take_what_came(rank));
        self.calls.matching.drop_unexpected(|message| {
            let place = Place::of(message.envelope.tag);
            place.is_of_merge && contexts.contains(&place.context)
        });
    }

    /// A message to a rank that has failed is gone, and so is what comes from it after that.
    #[inline]
    pub(super) fn is_lost_on(&self, destination: usize) -> bool {
        self.node.survives && self.failures.has_failed(destination)
    }

    /// The same, messages that only look for a context, and those of collective calls that have been ended here. What an
    /// ended receive has brought is longer than a message, and MPI may send as much on: more than it has, and more than
    /// a receiver has room for that has not ended its receive yet.
    #[inline]
    pub(super) fn is_not_sent(&self, destination: usize, tag: u64) -> bool {
        self.node.survives
            && (self.failures.has_failed(destination) || survivors::is_probe(tag) || self.is_sent_in_vain(tag))
    }

    fn is_sent_in_vain(&self, tag: u64) -> bool {
        self.failures.heard != 0 && survivors::with(|known| is_of_no_use_to_others(&self.failures, known, tag))
    }
}

/// Bytes of an error number, and of a number beside it, that the leader of a call tells the others.
const WORDS_ON_STACK: usize = 8;

/// Whether this lies in a function that has called the provider.
fn is_on_stack(place: *const c_void) -> bool {
    const DEEPEST: usize = 1 << 16;
    let here = 0u8;
    (place as usize).wrapping_sub(&raw const here as usize) < DEEPEST
}

#[cfg(test)]
mod tests;
