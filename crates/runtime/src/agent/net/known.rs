//! Causal logging: what is known here of the deliveries of ranks that have lost their nodes, for the lives that they
//! begin elsewhere.
//!
//! It is all that the ranks of this node know, and what messages carry that have come here from ranks that have ever
//! lost their nodes: those may know it no more. The mover of the new node puts together what all nodes tell, and leaves
//! it where the rank looks for what it had known.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use resurgo_protocol::causal::{Contradiction, Event, Gathering, Piggyback, Reduction};
use resurgo_wire::control::Job;
use resurgo_wire::entry::{HEADER, Kind, Mark, TOTAL, padded};
use resurgo_wire::node_memory::{EVENT_BYTES, KNOWLEDGE_EVENTS, arena, event_bytes, event_of, knowledge_of};
use resurgo_wire::piggyback;

use super::mapped::Mapped;
use super::tail::{At, Damaged, Tail};

/// Why what nodes have told is of no use.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unusable {
    #[error("what is known of ranks of a lost node is no history: {0}")]
    Contradiction(#[from] Contradiction),
    #[error(
        "{events} deliveries are not stable, more than rank {rank} has room for: let event loggers make them stable"
    )]
    TooMuch { rank: u32, events: usize },
}

/// How nodes tell one another.
#[derive(Debug, Clone)]
pub struct Knowing {
    reduction: Reduction,
    /// Ranks that have ever lost their nodes.
    lost: Vec<u32>,
    /// What the dispatcher knows, as it came with what ranks have printed.
    pub vouched: Arc<Vec<Event>>,
}

impl Knowing {
    /// None: nobody's deliveries are known to others.
    pub fn new(job: &Job, lost: &[u32], vouched: Vec<Event>) -> Option<Knowing> {
        let reduction = Reduction::numbered(job.reduction);
        let (lost, vouched) = (lost.to_vec(), Arc::new(vouched));
        let knowing = Knowing {
            reduction,
            lost,
            vouched,
        };
        (job.moves_ranks() && job.piggybacks()).then_some(knowing)
    }

    /// What is known here. `here`: ranks of this node that know what their former lives knew.
    ///
    /// # Errors
    /// A rank has written what is no log.
    pub fn tell(&self, memory: &Mapped, here: impl Iterator<Item = u32>) -> Result<Vec<Event>, Damaged> {
        let mut events = Vec::new();
        for rank in here {
            // First: what is taken in meanwhile is known then.
            for source in &self.lost {
                self.carried(memory, *source as usize, rank as usize, &mut events)?;
            }
            events.extend(known_to(memory, rank as usize));
        }
        Ok(events)
    }

    /// Adds what the messages carry that have come from `source` to `destination`.
    fn carried(
        &self,
        memory: &Mapped,
        source: usize,
        destination: usize,
        events: &mut Vec<Event>,
    ) -> Result<(), Damaged> {
        let channel = memory.layout.arena(source) + arena::CHANNELS + destination * 8;
        let first = memory.word(channel).load(Ordering::Acquire);
        if first == 0 {
            return Ok(());
        }
        let damaged = Damaged { rank: source };
        let (mut ahead, mut carried) = (Vec::new(), Piggyback::default());
        // The log begins in the middle of what a message carries: its receiver's images have that message.
        let mut is_cut = false;
        let mut at = Tail::first(first);
        loop {
            let next = match at.look(memory, source)? {
                At::End => return Ok(()),
                At::Jump(next) => {
                    at = Tail::first(next);
                    continue;
                }
                At::Entry(next) => next,
            };
            let place = at.segment(memory, source)? + at.place;
            at.place = next;
            let mark = Mark(memory.word(place).load(Ordering::Acquire));
            let (here, began_ahead) = mark.piggyback();
            match mark.kind() {
                Kind::More => {}
                Kind::Ahead => {
                    let from = memory.word(place + TOTAL).load(Ordering::Relaxed) as usize;
                    ahead.truncate(from);
                    is_cut = ahead.len() < from || is_cut && from > 0;
                    read(memory, place + HEADER + padded(here), mark.bytes(), &mut ahead);
                }
                _ => {
                    let mut bytes = std::mem::take(&mut ahead);
                    if std::mem::take(&mut is_cut) && began_ahead {
                        continue;
                    }
                    if !began_ahead {
                        bytes.clear();
                    }
                    read(memory, place + HEADER, here, &mut bytes);
                    let decoded = piggyback::decode_into(self.reduction, &bytes, &mut carried);
                    decoded.map_err(|_| damaged.clone())?;
                    events.append(&mut carried.events);
                }
            }
        }
    }
}

fn read(memory: &Mapped, at: usize, count: usize, bytes: &mut Vec<u8>) {
    let from = bytes.len();
    bytes.resize(from + count, 0);
    memory.read(at, &mut bytes[from..]);
}

/// What a rank of this node knows, whether it runs or not.
fn known_to(memory: &Mapped, rank: usize) -> Vec<Event> {
    let arena = memory.layout.arena(rank);
    let word = || memory.word(arena + arena::KNOWLEDGE.at);
    loop {
        let before = word().load(Ordering::Acquire);
        let (half, count) = knowledge_of(before);
        let place = arena + memory.layout.knowledge(half);
        let events = (0..count.min(KNOWLEDGE_EVENTS)).map(|index| {
            let at = place + index * EVENT_BYTES;
            event_of([0, 8, 16, 24].map(|word| memory.word(at + word).load(Ordering::Relaxed)))
        });
        let events = events.collect();
        fence(Ordering::Acquire);
        if word().load(Ordering::Relaxed) >> 32 == before >> 32 {
            return events;
        }
    }
}

/// `rank`, which has come here from a lost node and does not run yet, knows from now on what all nodes have told.
///
/// # Errors
/// That is no history, or is too much.
pub fn leave(memory: &Mapped, rank: u32, told: impl Iterator<Item = Event>) -> Result<(), Unusable> {
    let mut gathering = Gathering::new(memory.layout.size);
    for event in told {
        gathering.add(event)?;
    }
    let events = gathering.ordered();
    if events.len() >= KNOWLEDGE_EVENTS {
        let events = events.len();
        return Err(Unusable::TooMuch { rank, events });
    }
    let arena = memory.layout.arena(rank as usize);
    let word = memory.word(arena + arena::KNOWLEDGE.at);
    let fresh = ((word.load(Ordering::Acquire) >> 32) + 1) << 32;
    let place = arena + memory.layout.knowledge(knowledge_of(fresh).0);
    for (index, event) in events.iter().enumerate() {
        memory.write(place + index * EVENT_BYTES, &event_bytes(event));
    }
    word.store(fresh | events.len() as u64, Ordering::Release);
    Ok(())
}

#[cfg(test)]
mod tests {
    use resurgo_protocol::{Protocol, Recorded};
    use resurgo_wire::entry::{ALIGN, next};
    use resurgo_wire::node_memory::{events_of, reference};

    use super::*;
    use crate::agent::node::NodeMemory;
    use crate::agent::node::tests::job;

    fn event(receiver: u32, rclock: u64) -> Event {
        let record = Recorded { source: 2, polls: 7 };
        Event {
            receiver,
            rclock,
            record,
            antecedent: 0,
        }
    }

    fn node() -> Mapped {
        let job = Job {
            protocol: Protocol::Causal,
            tolerate_node: true,
            ..job()
        };
        let memory = NodeMemory::create(&job, 3).unwrap();
        Mapped::new(memory.file(), memory.layout).unwrap()
    }

    /// Writes an entry as a rank does; answers where the next one begins.
    fn write(memory: &Mapped, at: (usize, usize), mark: Mark, total: u64, bytes: &[u8]) -> (usize, usize) {
        let (slot, place) = at;
        let entry = memory.segment(0, slot) + place;
        memory.word(entry + TOTAL).store(total, Ordering::Relaxed);
        memory.write(entry + HEADER, bytes);
        memory.word(entry).store(mark.0, Ordering::Release);
        (slot, next(place, bytes.len()))
    }

    /// Rank 0 has lost its node.
    fn knowing(reduction: Reduction) -> Knowing {
        Knowing {
            reduction,
            lost: vec![0],
            vouched: Arc::default(),
        }
    }

    /// What a message carries, as bytes.
    fn carried(reduction: Reduction, events: &[Event]) -> Vec<u8> {
        let (events, mut bytes) = (events.to_vec(), Vec::new());
        let piggyback = Piggyback {
            events,
            ..Piggyback::default()
        };
        piggyback::encode(reduction, 9, &piggyback, &mut bytes);
        bytes
    }

    /// The channel from rank 0 to rank 1 begins in this slot.
    fn begin_channel(memory: &Mapped, slot: usize) {
        let first = memory.layout.arena(0) + arena::CHANNELS + 8;
        memory.word(first).store(reference(0, slot), Ordering::Release);
    }

    #[test]
    fn what_messages_carry_is_found_with_what_ranks_know() {
        let memory = node();
        let knowing = knowing(Reduction::LogOn);
        let carried = |events: &[Event]| carried(knowing.reduction, events);
        begin_channel(&memory, 4);
        let short = carried(&[event(0, 1)]);
        let mark = Mark::new(Kind::Tagged, 0, 0, 0).with_piggyback(short.len(), false);
        let at = write(&memory, (4, ALIGN), mark, 0, &short);
        // The beginning of a piggyback whose message never came, and one in two parts.
        let at = write(&memory, at, Mark::new(Kind::Ahead, 0, 0, 5), 0, b"never");
        let long = carried(&[event(0, 2), event(1, 1)]);
        let (ahead, rest) = long.split_at(long.len() - 3);
        let jump = memory.segment(0, at.0) + at.1;
        memory.word(jump + TOTAL).store(reference(1, 9), Ordering::Relaxed);
        memory
            .word(jump)
            .store(Mark::new(Kind::Jump, 0, 0, 0).0, Ordering::Release);
        let at = write(&memory, (9, ALIGN), Mark::new(Kind::Ahead, 0, 0, ahead.len()), 0, ahead);
        let mark = Mark::new(Kind::Tagged, 0, 0, 0).with_piggyback(rest.len(), true);
        let at = write(&memory, at, mark, 0, rest);
        write(&memory, at, Mark::new(Kind::More, 0, 0, 4), 0, b"more");
        leave(&memory, 1, [event(2, 2), event(2, 1), event(2, 1)].into_iter()).unwrap();
        let told = knowing.tell(&memory, [1].into_iter()).unwrap();
        assert_eq!(told, [event(0, 1), event(0, 2), event(1, 1), event(2, 1), event(2, 2)]);
        assert_eq!(knowing.tell(&memory, [2].into_iter()).unwrap(), []);
        let bytes: Vec<u8> = told.iter().flat_map(event_bytes).collect();
        assert_eq!(events_of(&bytes).collect::<Vec<_>>(), told);
    }

    #[test]
    fn a_log_may_begin_in_the_middle_of_what_a_message_carries() {
        let memory = node();
        let knowing = knowing(Reduction::Vcausal);
        let bytes = carried(knowing.reduction, &[event(0, 3)]);
        begin_channel(&memory, 4);
        let message = Mark::new(Kind::Tagged, 0, 0, 0).with_piggyback(0, true);
        let ahead = |from: u64, bytes: &[u8], at: (usize, usize)| {
            write(&memory, at, Mark::new(Kind::Ahead, 0, 0, bytes.len()), from, bytes)
        };
        let at = ahead(5, &bytes, (4, ALIGN));
        let at = ahead(5 + bytes.len() as u64, &bytes, at);
        let at = write(&memory, at, message, 0, &[]);
        let at = ahead(0, &bytes, at);
        write(&memory, at, message, 0, &[]);
        assert_eq!(knowing.tell(&memory, [1].into_iter()).unwrap(), [event(0, 3)]);
    }

    #[test]
    fn what_nodes_tell_must_go_together() {
        let (memory, mut other) = (node(), event(1, 1));
        other.record.source = 0;
        let told = [event(1, 1), other];
        assert!(leave(&memory, 1, told.into_iter()).is_err());
        assert_eq!(known_to(&memory, 1), []);
    }
}
