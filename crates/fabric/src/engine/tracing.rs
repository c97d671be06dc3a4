//! The engine's records in the trace.

use super::*;
use crate::trace;
use resurgo_wire::trace::Kind as What;

/// The bits by which MPI matches a message, if it does.
fn tag(envelope: Envelope) -> Option<u64> {
    (envelope.kind == Kind::Tagged).then_some(envelope.tag)
}

impl Engine {
    /// The life begins, or goes on from an image; it has looked since `began` for what it has to repeat.
    pub(super) fn trace_life(&self, began: u64) {
        let [number, deliveries] = self.life_in_trace();
        trace::life_begins(self.pace.us(1000), began, number, deliveries, self.life.replaying);
    }

    /// The replay has ended.
    pub(super) fn trace_replay(&self) {
        let [number, deliveries] = self.life_in_trace();
        trace::life_has_caught_up(number, deliveries);
    }

    /// Number of the life, and deliveries that it has to repeat.
    fn life_in_trace(&self) -> [u64; 2] {
        [control::INCARNATION, control::REPLAY_DELIVERIES]
            .map(|field| self.node.control(self.node.rank, field).load(Ordering::Relaxed))
    }

    /// A message to `destination`; it has its number on the channel once its first byte is in there. `time`: by the
    /// clock of the trace.
    pub(super) fn trace_send(
        &self,
        time: u64,
        destination: usize,
        message: &Message,
        has_begun: bool,
        is_repeated: bool,
    ) {
        let number = match &self.life.protocol {
            Some(protocol) => protocol.sent(destination as u32),
            None if has_begun => self.peers.begun(destination),
            None => 0,
        };
        let tag = tag(message.envelope);
        trace::message(
            What::Send,
            time,
            destination,
            tag,
            message.total as u64,
            number,
            is_repeated,
        );
    }

    /// A message from `source` is delivered, and counted by the protocol.
    pub(super) fn trace_delivery(&self, time: u64, source: usize, entry: &Entry) {
        let number = match &self.life.protocol {
            Some(protocol) => protocol.delivered(source as u32),
            None => self.peers.taken[source],
        };
        let tag = tag(entry.envelope);
        trace::message(
            What::Delivery,
            time,
            source,
            tag,
            entry.total,
            number,
            self.life.replaying,
        );
    }
}
