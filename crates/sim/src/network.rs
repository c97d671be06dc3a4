//! What travels between ranks, and how a new life learns what its peers have seen.
//!
//! Where node memory survives, a channel is the sender's log and news of an entry comes late (`revealed`). Where
//! it does not, packets travel on wires that keep the order per channel, and:
//!
//! - A packet names the lives of sender and receiver. One of a replaced sender, or for another life of the receiver,
//!   is dropped.
//! - A new life that knows its record sends `Connect` to everyone: serve me from here.
//! - The answer `Seen` says how many messages of the asker are visible (delivered, waiting, or in the record). It also
//!   says how many are here.
//! - `Covered`, also in the other two, says how many messages of the channel the receiver's checkpoints cover. The sender
//!   may drop them.
//! - A wire may break without a crash: its packets are lost, and both ends connect again.
//! - The network may be parted for a time. Packets between the parts arrive when that is over.

use resurgo_protocol::Rank;
use resurgo_protocol::causal::Answer;

use crate::checkers::{COLLECTED, Violation, violation};
use crate::log::Log;
use crate::mutation::Mutation;
use crate::process::{Frame, State};
use crate::world::{Event, World};

/// One direction between two ranks.
#[derive(Debug, Clone, Default)]
pub(crate) struct Wire {
    /// Entries of the log that the receiver can see.
    pub revealed: u64,
    /// The piggybacks of its log's messages, where a log outlives its rank under causal logging.
    pub carried: Vec<Vec<u8>>,
    pub last_arrival: u64,
    /// Increased when the wire breaks.
    pub connection: u64,
}

impl Wire {
    /// The piggybacks of the messages that are in `log`.
    pub fn carried_by(&self, log: &Log) -> Vec<Vec<u8>> {
        let carried = self.carried.iter().take(log.end() as usize);
        carried.skip(log.dropped() as usize).cloned().collect()
    }

    /// Message `ssn` carries that.
    pub fn carry(&mut self, ssn: u64, carried: Vec<u8>) {
        // Those before it that are not here have been dropped.
        self.carried.resize(ssn as usize - 1, Vec::new());
        self.carried.push(carried);
    }
}

/// Ranks and event loggers in two parts that cannot reach each other.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Partition {
    /// One bit of each rank, then of each event logger.
    side: u64,
    until: u64,
}

#[derive(Debug, Clone)]
pub(crate) enum Body {
    /// With its piggyback under causal logging.
    Frame(Frame, Vec<u8>),
    /// `base`, in causal logging: deliveries of the sender that its images cover.
    Connect {
        have: u64,
        covered: u64,
        base: u64,
    },
    Seen {
        visible: u64,
        have: u64,
        covered: u64,
    },
    /// The answer to Connect in causal logging.
    Told(Box<Told>),
    Covered {
        covered: u64,
        base: u64,
    },
}

#[derive(Debug, Clone)]
pub(crate) struct Told {
    pub answer: Answer,
    /// As in Seen, when it is known.
    pub visible: Option<u64>,
    pub have: u64,
    pub covered: u64,
    pub base: u64,
}

#[derive(Debug)]
pub(crate) struct Packet {
    from: Rank,
    to: Rank,
    from_life: u64,
    /// 0: whichever.
    to_life: u64,
    connection: u64,
    body: Body,
}

impl World {
    /// The network falls into two parts.
    pub(crate) fn part(&mut self) {
        let longest = 30 * self.pace.latency.max(self.pace.logger_latency);
        self.partition = Partition {
            side: self.random.draw(),
            until: self.now + self.random.between(1, longest),
        };
        let Partition { side, until } = self.partition;
        let side = side & ((1 << (self.ranks.len() + self.logging.sites.len())) - 1);
        self.note(|| format!("the network is parted until {until}: {side:b} are on one side"));
    }

    /// How long two cannot reach each other: the numbers of ranks, or of event loggers behind them.
    pub(crate) fn parted(&self, one: usize, other: usize) -> u64 {
        let Partition { side, until } = self.partition;
        let same = side >> one & 1 == side >> other & 1;
        if same { 0 } else { until.saturating_sub(self.now) }
    }

    fn arrival(&mut self, from: Rank, to: Rank) -> u64 {
        let straggles = self.random.one_in(30);
        let delay = 1 + self.random.below(if straggles {
            3 * self.pace.latency
        } else {
            self.pace.latency
        });
        let delay = delay + self.parted(from as usize, to as usize);
        let wire = &mut self.wires[from as usize][to as usize];
        wire.last_arrival = wire.last_arrival.max(self.now + delay);
        wire.last_arrival - self.now
    }

    pub(crate) fn reveal_later(&mut self, from: Rank, to: Rank) {
        let delay = self.arrival(from, to);
        let connection = self.wires[from as usize][to as usize].connection;
        self.schedule(delay, Event::Reveal { from, to, connection });
    }

    pub(crate) fn transmit(&mut self, from: Rank, to: Rank, body: Body) {
        let delay = self.arrival(from, to);
        let sender = &self.ranks[from as usize];
        let to_life = if matches!(body, Body::Connect { .. }) {
            0
        } else {
            sender.peers[to as usize]
        };
        let connection = self.wires[from as usize][to as usize].connection;
        let packet = Packet {
            from,
            to,
            from_life: sender.incarnation,
            to_life,
            connection,
            body,
        };
        self.schedule(delay, Event::Arrive(packet));
    }

    /// Message `ssn` may leave, now and whenever it is asked for.
    pub(crate) fn publish(&mut self, from: Rank, to: Rank, ssn: u64) -> Result<(), Violation> {
        let noticed = self
            .site(from)
            .is_some_and(|site| site.state.is_some() && self.ranks[from as usize].logger_epoch == site.epoch);
        let process = &mut self.ranks[from as usize];
        let Some(entry) = process.logs[to as usize].get_mut(ssn) else {
            return violation(
                COLLECTED,
                format!("message {ssn} from {from} to {to} is not in the log"),
            );
        };
        entry.released = true;
        if ssn <= process.pushed[to as usize] {
            return Ok(());
        }
        let frame = Frame {
            ssn,
            tag: entry.tag,
            content: entry.content,
            after: entry.after,
        };
        process.pushed[to as usize] = ssn;
        self.checkers.publish(from, to, ssn, noticed)?;
        let carried = self.piggyback(from, to, ssn, frame.after);
        if self.rules.memory_survives {
            self.wires[from as usize][to as usize].carry(ssn, carried);
            self.reveal_later(from, to);
            return Ok(());
        }
        self.transmit(from, to, Body::Frame(frame, carried));
        Ok(())
    }

    /// `to` holds the first `have` messages of the channel: send it the rest, as far as it may leave.
    pub(crate) fn serve(&mut self, from: Rank, to: Rank, have: u64) -> Result<(), Violation> {
        // A transport may resume a little earlier than asked; receivers drop what they have.
        let dropped = self.ranks[from as usize].logs[to as usize].dropped();
        if have < dropped {
            return violation(
                COLLECTED,
                format!("{to} asks {from} for message {}, which is dropped", have + 1),
            );
        }
        let have = have.saturating_sub(self.random.below(3)).max(dropped);
        self.ranks[from as usize].pushed[to as usize] = have;
        self.checkers.rewound(from, to, have);
        if self.rules.causal.is_some() && matches!(self.ranks[from as usize].state, State::Recovering(_)) {
            // A life that collects sends nothing before it begins.
            return Ok(());
        }
        let mut ssn = have + 1;
        while self.ranks[from as usize].logs[to as usize]
            .get(ssn)
            .is_some_and(|entry| entry.released)
        {
            self.publish(from, to, ssn)?;
            ssn += 1;
        }
        Ok(())
    }

    pub(crate) fn connect(&mut self, rank: Rank, to: Rank) {
        let process = &self.ranks[rank as usize];
        let have = if self.is(Mutation::AskFromBeginning) {
            0
        } else {
            process.have(to)
        };
        let covered = process.record.base.delivered[to as usize];
        let base = process.record.base.rclock;
        self.transmit(rank, to, Body::Connect { have, covered, base });
    }

    /// Messages from `to` that are visible at `rank`: delivered, waiting, or in its record; and those that are here.
    pub(crate) fn seen_by(&self, rank: Rank, to: Rank) -> (u64, u64) {
        let process = &self.ranks[rank as usize];
        let have = if self.is(Mutation::SeenMeansDelivered) {
            process.delivered(to)
        } else {
            process.have(to)
        };
        let covered = process.record.base.delivered[to as usize];
        let mut recorded = process.record.of_source(to);
        if self.is(Mutation::SeenForgetsBase) {
            recorded -= covered;
        }
        (have.max(recorded), have)
    }

    pub(crate) fn answer_seen(&mut self, rank: Rank, to: Rank) {
        let (visible, have) = self.seen_by(rank, to);
        let covered = self.ranks[rank as usize].record.base.delivered[to as usize];
        self.crashes.provoked = Some(rank);
        self.transmit(rank, to, Body::Seen { visible, have, covered });
    }

    /// Messages under way between two ranks are lost, without a crash.
    pub(crate) fn break_wire(&mut self, one: Rank, other: Rank) {
        if self.rules.memory_survives {
            return;
        }
        self.note(|| format!("the wire between {one} and {other} breaks"));
        for (from, to) in [(one, other), (other, one)] {
            self.wires[from as usize][to as usize].connection += 1;
            self.forget_exchanged(from, to);
        }
        for (from, to) in [(one, other), (other, one)] {
            let process = &self.ranks[to as usize];
            if process.knows_record() || self.rules.causal.is_some() && !process.is_down() {
                self.connect(to, from);
            }
        }
    }

    pub(crate) fn arrive(&mut self, packet: Packet) -> Result<(), Violation> {
        let Packet {
            from,
            to,
            from_life,
            to_life,
            connection,
            body,
        } = packet;
        let broken = connection < self.wires[from as usize][to as usize].connection;
        if broken || self.ranks[from as usize].is_cut(from_life, self.now) {
            return Ok(());
        }
        let is_frame = matches!(body, Body::Frame(..));
        let lets_old_in = is_frame && self.is(Mutation::ReceiverDoesNotFence);
        let lets_strays_in = is_frame && self.is(Mutation::AcceptStrays);
        let receiver = &mut self.ranks[to as usize];
        let known = receiver.peers[from as usize];
        let fenced = from_life < known && !lets_old_in;
        let stray = to_life != 0 && to_life != receiver.incarnation && !lets_strays_in;
        if fenced || stray || receiver.is_down() {
            return Ok(());
        }
        receiver.peers[from as usize] = from_life.max(known);
        match body {
            Body::Frame(mut frame, carried) => {
                if self.rules.causal.is_some() {
                    frame.after = self.absorb(to, from, &carried)?;
                }
                self.ranks[to as usize].incoming[from as usize].push_back(frame);
            }
            Body::Connect { have, covered, base } => {
                self.covered(to, from, covered);
                self.hear_base(to, from, base);
                if self.rules.causal.is_some() {
                    self.asked_by(to, from, from_life > known);
                    self.serve(to, from, have)?;
                } else {
                    self.connected(to, from, have)?;
                }
            }
            Body::Covered { covered, base } => {
                self.covered(to, from, covered);
                self.hear_base(to, from, base);
            }
            Body::Told(told) => self.told(to, from, from_life, *told)?,
            Body::Seen { visible, have, covered } => {
                self.note(|| format!("{to} hears from {from}: seen {visible}, here {have}"));
                self.covered(to, from, covered);
                let receiver = &mut self.ranks[to as usize];
                if let State::Recovering(recovery) = &mut receiver.state {
                    recovery.seen[from as usize] = Some(visible);
                    self.serve(to, from, have)?;
                    self.start_when_told(to)?;
                }
            }
        }
        Ok(())
    }

    fn connected(&mut self, rank: Rank, by: Rank, have: u64) -> Result<(), Violation> {
        self.note(|| format!("{rank} is asked by {by} to serve from {have}"));
        self.serve(rank, by, have)?;
        if let State::Recovering(recovery) = &mut self.ranks[rank as usize].state {
            if recovery.record_from.is_none() {
                recovery.asked.push(by);
                return Ok(());
            }
            if recovery.seen[by as usize].is_none() {
                // A life that began after the question has not got it.
                self.connect(rank, by);
            }
        }
        self.answer_seen(rank, by);
        Ok(())
    }
}
