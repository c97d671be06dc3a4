//! A life begins.

use super::*;
use crate::event_logger::{EventLogger, Found};
use resurgo_wire::node_memory::CutTable;

impl Engine {
    /// The life begins or goes on, and finds out what it has to repeat.
    pub(super) fn begin(&mut self, from: From) {
        let began_ns = monotonic_ns();
        match from {
            From::Wave => self.find_channels(),
            From::FormerLives => {
                let behind = match &self.history.stable {
                    Stable::Reported => self.join(),
                    Stable::Own | Stable::Logged(_) | Stable::Causal(..) => self.survey(),
                };
                let now = monotonic_ns();
                self.node.set(control::REPLAY_DELIVERIES, behind);
                self.node.set(control::COLLECTED_NS, now);
                self.node.set(control::COLLECTING_NS, now - began_ns);
            }
        }
        self.life.begin(&self.node, self.meters.messages());
        let own = self.node.rank;
        self.node.control(own, control::SLEEPING).store(0, Ordering::SeqCst);
        doorbell::begin_life(&self.node);
        self.meters.begin(&self.node);
        self.outbox.show_held(&self.node);
        if self.node.in_groups {
            self.outbox.show_buffer(&self.node);
            self.show_sent();
        }
        self.pace.begin();
        self.life.enter_phase(&self.node);
    }

    /// The agent has emptied the node memory since the wave. Where it stopped all, the channels were empty: they go on as new
    /// ones. Otherwise the agent has put what was in transit into them.
    fn find_channels(&mut self) {
        self.peers.arena.restart();
        self.peers.logs().for_each(|(_, log)| log.writer.restart());
        for incoming in self.peers.incoming.iter_mut().flatten() {
            if let Carrier::SharedLog(reader) = &mut incoming.carrier {
                reader.restart();
            }
        }
        if !self.node.waves_pass {
            return;
        }
        self.peers.arena.find(&self.node);
        for destination in 0..self.node.ranks() {
            let node = &self.node;
            let first = node.channel(node.rank, destination).load(Ordering::Acquire);
            if first != 0 {
                let last = node.cut(CutTable::Writing, destination).load(Ordering::Acquire);
                let place = node.cut(CutTable::WritingAt, destination).load(Ordering::Acquire);
                let (log, _) = self.peers.log(node, destination);
                log.writer.find(node, first, last, place as usize);
            }
        }
        self.peers.ready.look_at_all(&self.node);
    }

    /// Looks at what former lives have left in the node memory. Answers how many deliveries are to be repeated.
    fn survey(&mut self) -> u64 {
        self.history.set_logger(None);
        self.peers.arena = Arena::new(&self.node);
        let mut behind = 0;
        if self.life.protocol.is_some() {
            let found = self.collect();
            let sent_before = self.find_logs();
            behind = self.find_record();
            let protocol = self.life.protocol();
            let made = protocol.rclock() + behind;
            protocol.restored(made, sent_before);
            if !self.node.event_loggers.is_empty() {
                // The record lies in this node's memory: only what the logger holds outlives the node, and what images cover.
                protocol.event_logger_lost();
                protocol.acknowledge(self.node.covered(self.node.rank));
                self.history
                    .set_logger(Some(EventLogger::new(&self.node, made, found.as_ref())));
            }
        }
        self.peers.ready.look_at_all(&self.node);
        behind
    }

    /// Under causal logging what this rank had recorded since its image counts as lost with its node: the record goes on with what can
    /// be collected. Answers what the event logger had of it.
    fn collect(&mut self) -> Option<Found> {
        let Stable::Causal(causality, _) = &mut self.history.stable else {
            return None;
        };
        self.history.record.cut_off(&self.node);
        let reached = |source| self.peers.reader(source).map_or(0, Reader::reached);
        let places: Vec<u64> = (0..self.node.size).map(reached).collect();
        causality.begin(&self.node, self.life.protocol().rclock(), &places);
        causality.found
    }

    /// Walks the own logs. Answers how many messages to each rank have been made visible.
    fn find_logs(&mut self) -> Vec<u64> {
        let outgoing = std::mem::take(&mut self.peers.outgoing);
        let logs = outgoing.into_iter().map(|outgoing| match outgoing? {
            Outgoing::SharedLog(log) => Some(log),
            Outgoing::Memory => None,
        });
        let protocol = self.life.protocol();
        let sent = |destination| protocol.sent(destination as u32);
        let found = Survey::of(&self.node, &mut self.peers.arena, sent, logs.collect());
        let outgoing = found.logs.into_iter();
        let outgoing = outgoing.map(|log| log.map(Outgoing::SharedLog));
        self.peers.outgoing = outgoing.collect();
        found.sent_before
    }

    /// Goes to the place in the record where this life begins. Answers how many deliveries are behind it.
    fn find_record(&mut self) -> u64 {
        let History { record, stable } = &mut self.history;
        record.refresh(&self.node);
        if let Stable::Causal(causality, _) = stable {
            let mut end = record.clone();
            for recorded in causality.collected.drain(..) {
                end.write(&self.node, &mut self.peers.arena, recorded, 0);
            }
            record.refresh(&self.node);
        }
        record.clone().count(&self.node)
    }
}
