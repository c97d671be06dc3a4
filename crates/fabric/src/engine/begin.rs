//! A life begins.

use super::*;
use crate::direct::{self, Direct};
use crate::event_logger::{EventLogger, Found};
use crate::trace;
use resurgo_wire::node_memory::CutTable;

/// The record behind the first `made` deliveries.
fn record_at(node: &Node, made: u64) -> Cursor {
    Cursor::at(node, made).unwrap_or_else(|base| {
        let rank = node.rank;
        node.report(&format!(
            "rank {rank} cannot be recovered from an image with {made} deliveries: its record begins after {base}"
        ))
    })
}

impl Engine {
    /// The life begins or goes on, and finds what it has to repeat.
    pub(super) fn begin(&mut self, from: From) {
        let began_ns = monotonic_ns();
        let began = trace::now();
        if self.node.replays() {
            lost_reads::begin(&self.node);
        }
        self.peers.abandon_connections();
        self.node.find_servers();
        direct::begin_life(&self.node);
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
        self.peers.direct = Direct::open(&self.node);
        self.outbox.show_held(&self.node);
        if self.node.in_groups {
            self.outbox.show_buffer(&self.node);
            self.show_sent();
        }
        self.pace.begin();
        self.life.enter_phase(&self.node);
        self.trace_life(began);
    }

    /// The agent has emptied the node memory since the wave. After a wave that stopped all ranks the channels were
    /// empty: they go on as new ones. Otherwise the agent has put what was in transit into them.
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

    /// Looks at what former lives left in the node memory. Returns how many deliveries to repeat.
    fn survey(&mut self) -> u64 {
        self.history.set_logger(None);
        let lost = self.node.record_lost();
        if lost.is_some() {
            // Only the logs of the arena are there.
            survey::take_over(&self.node);
        }
        self.peers.arena = Arena::new(&self.node);
        let mut behind = 0;
        if self.life.protocol.is_some() {
            let (found, records) = self.collect(lost);
            let mut sent_before = self.find_logs();
            behind = match self.node.moves {
                true => self.find_moved(lost, records),
                false => self.find_record(records),
            };
            if self.node.moves {
                self.count_record();
                self.hear_counts(&mut sent_before);
            }
            let protocol = self.life.protocol();
            let made = protocol.rclock() + behind;
            protocol.restored(made, sent_before);
            if !self.node.event_loggers.is_empty() {
                // The record is in this node's memory: only what the logger holds and what images cover outlives the
                // node.
                protocol.event_logger_lost();
                protocol.acknowledge(Cursor::covered(&self.node));
                self.history
                    .set_logger(Some(EventLogger::new(&self.node, made, found.as_ref())));
            }
        }
        self.peers.ready.look_at_all(&self.node);
        behind
    }

    /// Under causal logging the record since the image counts as lost with its node: it goes on with what this rank can
    /// collect. Otherwise only a lost record is, and becomes what the event logger has. Returns what that has, and the
    /// deliveries to record anew.
    fn collect(&mut self, lost: Option<u64>) -> (Option<Found>, Vec<Recorded>) {
        let Stable::Causal(causality, _) = &mut self.history.stable else {
            let Some(above) = lost else {
                return (None, Vec::new());
            };
            let (found, records) = EventLogger::recover(&self.node, above);
            return (Some(found), records);
        };
        let (node, made) = (&self.node, self.life.protocol().rclock());
        match node.moves {
            false => self.history.record.cut_off(node),
            true if lost.is_none() => record_at(node, made).cut_off(node),
            true => {}
        }
        let reached = |source| self.peers.reader(source).map_or(0, Reader::reached);
        let places: Vec<u64> = (0..node.ranks()).map(reached).collect();
        causality.begin(node, lost.unwrap_or(made), lost, &places);
        (causality.found, std::mem::take(&mut causality.collected))
    }

    /// Walks the own logs. Returns how many messages to each rank are visible.
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

    /// Goes to the place in the record where this life begins, and records these deliveries anew behind it. Returns how
    /// many are behind it.
    fn find_record(&mut self, anew: Vec<Recorded>) -> u64 {
        let record = &mut self.history.record;
        record.refresh(&self.node);
        let mut end = record.clone();
        for recorded in anew {
            end.write(&self.node, &mut self.peers.arena, recorded, 0);
        }
        record.refresh(&self.node);
        self.node.find_record_again();
        record.clone().count(&self.node)
    }

    /// The same where ranks move: a woken process finds neither its record nor its channels where they were. `lost`:
    /// the record starts anew after so many deliveries.
    fn find_moved(&mut self, lost: Option<u64>, anew: Vec<Recorded>) -> u64 {
        let (node, made) = (&self.node, self.life.protocol().rclock());
        let mut end = match lost {
            Some(above) => Cursor::begin_anew(node, &mut self.peers.arena, above),
            None => record_at(node, made),
        };
        for recorded in anew {
            end.write(node, &mut self.peers.arena, recorded, 0);
        }
        node.find_record_again();
        let protocol = self.life.protocol();
        let delivered: Vec<u64> = (0..node.ranks())
            .map(|source| protocol.delivered(source as u32))
            .collect();
        self.history.record = record_at(node, made);
        for (source, delivered) in delivered.into_iter().enumerate() {
            if let Some(incoming) = &mut self.peers.incoming[source]
                && let Carrier::SharedLog(reader) = &mut incoming.carrier
            {
                reader.find_behind(delivered);
            }
            // What lay beside the image has been put there.
            if lost.is_some() && node.channel(node.rank, source).load(Ordering::Acquire) != 0 {
                doorbell::ring(node, source);
            }
        }
        self.history.record.clone().count(node)
    }

    /// Publishes how many messages of each source the record has, unless a former life on this node did. None of ranks
    /// that are spawned later: their later lives wait for that, too.
    fn count_record(&mut self) {
        let node = &self.node;
        if node.consumed(node.rank, node.rank).load(Ordering::Acquire) != 0 {
            return;
        }
        let Some(protocol) = &self.life.protocol else { return };
        let delivered = (0..node.size).map(|source| protocol.delivered(source as u32));
        let mut counts: Vec<u64> = delivered.collect();
        for recorded in Cursor::read_above(node, protocol.rclock()) {
            counts[recorded.source as usize] += 1;
        }
        for (source, count) in counts.into_iter().enumerate() {
            node.consumed(source, node.rank).store(1 + count, Ordering::SeqCst);
        }
        // The mover looks by itself at what is for later ones.
        (0..node.ranks()).for_each(|source| doorbell::show(node, source));
    }

    /// A later life waits until all ranks know their records: messages of this rank in them were sent, whatever its
    /// logs hold.
    fn hear_counts(&self, sent_before: &mut [u64]) {
        let node = &self.node;
        if node.control(node.rank, control::INCARNATION).load(Ordering::Acquire) == 1 {
            return;
        }
        for (destination, before) in sent_before.iter_mut().enumerate().take(node.ranks()) {
            let recorded = loop {
                match node.consumed(node.rank, destination).load(Ordering::SeqCst) {
                    // SAFETY: sleeps.
                    0 => _ = unsafe { libc::usleep(500) },
                    counted => break counted - 1,
                }
            };
            *before = recorded.max(*before);
        }
    }
}
