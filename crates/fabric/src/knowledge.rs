//! What a rank knows of others' deliveries, where a life that begins again can read it: in the rank's own arena, whatever the
//! rank does meanwhile (it may compute for hours, or have finished).
//!
//! Events are appended to one of two halves, and one word says which half counts and how many events are in it. When much of
//! them is stable, what is left is written to the other half, and the word goes over to that. So what the word names is
//! never written to, and a reader that finds the same generation before and after has read what belongs together.

use crate::log::{Kind, Reader};
use crate::node::Node;
use resurgo_protocol::causal::{Contradiction, Event, Gathering, Piggyback, Reduction};
use resurgo_protocol::{Rank, Recorded};
use resurgo_wire::node_memory::{KNOWLEDGE_EVENTS, arena, control};
use resurgo_wire::piggyback;
use std::sync::atomic::{Ordering, fence};

/// Fewest events between two looks at which of them are still needed.
const LEAST: usize = 4096;

const COUNT: u64 = u32::MAX as u64;

fn half(word: u64) -> usize {
    (word >> 32) as usize & 1
}

/// The own knowledge.
pub struct Knowledge {
    word: u64,
    /// It is written anew when it has so many events.
    full_at: usize,
}

impl Knowledge {
    /// This life knows `events`; what a former one knew does not count any more.
    pub fn begin(node: &Node, events: &[Event]) -> Knowledge {
        let mut knowledge = Knowledge {
            word: node.own(arena::KNOWLEDGE).load(Ordering::Acquire),
            full_at: 0,
        };
        knowledge.replace(node, events);
        let life = node.control(node.rank, control::INCARNATION).load(Ordering::Acquire);
        node.own(arena::KNOWLEDGE_LIFE).store(life, Ordering::Release);
        knowledge
    }

    fn write(&self, node: &Node, word: u64, event: &Event) {
        let (half, index) = (half(word), (word & COUNT) as usize);
        let Event {
            receiver,
            rclock,
            record,
            antecedent,
        } = event;
        let named = u64::from(*receiver) | u64::from(record.source) << 32;
        let words = [named, *rclock, record.polls, *antecedent];
        for (at, word) in words.into_iter().enumerate() {
            node.known(node.rank, half, index, at).store(word, Ordering::Relaxed);
        }
    }

    /// Publishes one more; whoever learns anything from this rank later than now finds it.
    #[inline]
    pub fn add(&mut self, node: &Node, event: &Event) {
        self.write(node, self.word, event);
        self.word += 1;
        node.own(arena::KNOWLEDGE).store(self.word, Ordering::Release);
    }

    /// It should be written anew, with what is still needed.
    #[inline]
    pub fn is_full(&self) -> bool {
        (self.word & COUNT) as usize >= self.full_at
    }

    #[cold]
    pub fn replace(&mut self, node: &Node, events: &[Event]) {
        if events.len() + LEAST > KNOWLEDGE_EVENTS {
            node.report(&format!(
                "rank {} knows of {} deliveries that are not stable, more than there is room for: let event loggers make \
                 them stable (--event-loggers 1)",
                node.rank,
                events.len()
            ));
        }
        let mut word = ((self.word >> 32) + 1) << 32;
        for event in events {
            self.write(node, word, event);
            word += 1;
        }
        self.word = word;
        self.full_at = (2 * events.len() + LEAST).min(KNOWLEDGE_EVENTS - 1);
        node.own(arena::KNOWLEDGE).store(word, Ordering::Release);
    }
}

/// What `rank` knows.
fn known_to(node: &Node, rank: usize) -> Vec<Event> {
    loop {
        let word = node.of(rank, arena::KNOWLEDGE).load(Ordering::Acquire);
        let read = |index: usize| {
            let word = |at: usize| node.known(rank, half(word), index, at).load(Ordering::Relaxed);
            let named = word(0);
            Event {
                receiver: named as u32,
                rclock: word(1),
                record: Recorded {
                    source: (named >> 32) as u32,
                    polls: word(2),
                },
                antecedent: word(3),
            }
        };
        let events = (0..(word & COUNT) as usize).map(read).collect();
        fence(Ordering::Acquire);
        if word >> 32 == node.of(rank, arena::KNOWLEDGE).load(Ordering::Relaxed) >> 32 {
            return events;
        }
    }
}

/// Per rank, its life, and whether that has told what it knows.
fn lives(node: &Node) -> Vec<(u64, bool)> {
    let life = |rank: usize| {
        let life = node.control(rank, control::INCARNATION).load(Ordering::Acquire);
        (
            life,
            node.of(rank, arena::KNOWLEDGE_LIFE).load(Ordering::Acquire) == life,
        )
    };
    (0..node.ranks()).map(life).collect()
}

/// All that is known of anybody's deliveries, for a new life of this rank: what the others know, what has been sent and not
/// taken in, and what came before all that the agent has passed on of this rank's, and that it has sent to itself: both will be there.
/// Not what else a former life of it knew, nor what one of others did that have not begun again: they may have lost their nodes.
pub fn gather(node: &Node, reduction: Reduction) -> Result<Gathering, String> {
    loop {
        let lives_before = lives(node);
        let found = on_their_way(node, reduction, &lives_before).and_then(|(mut gathering, to_itself)| {
            add_known(node, &lives_before, to_itself, &mut gathering)?;
            Ok(gathering)
        });
        // Of who has died meanwhile too little has been looked at; and who has begun again may have taken another way than lives knew that
        // have ended since.
        if lives(node) == lives_before {
            return found;
        }
    }
}

/// What messages carry that have not been taken in, and how many deliveries this rank had made before the last message to itself. To be
/// read before what ranks know: the others go on meanwhile, and a message leaves out what its sender knew to be known to the receiver.
/// Both have said so before it was sent, and so it is found with them later.
fn on_their_way(node: &Node, reduction: Reduction, lives: &[(u64, bool)]) -> Result<(Gathering, u64), String> {
    let mut to_itself = 0;
    let mut gathering = Gathering::new(lives.len());
    for (rank, (_, is_known)) in lives.iter().enumerate() {
        for source in 0..lives.len() {
            let place = match *is_known && rank != node.rank {
                true => node.consumed(source, rank).load(Ordering::Acquire),
                false => 0,
            };
            let clock = coming(node, reduction, source, rank, place, &mut gathering)?;
            if source == node.rank && rank == node.rank {
                to_itself = clock;
            }
        }
    }
    Ok((gathering, to_itself))
}

fn add_known(node: &Node, lives: &[(u64, bool)], to_itself: u64, gathering: &mut Gathering) -> Result<(), String> {
    let passed_on = node.control(node.rank, control::PASSED_ON).load(Ordering::Acquire);
    let needed = passed_on.max(to_itself);
    let own = |event: &Event| event.receiver as usize == node.rank && event.rclock <= needed;
    for (rank, (_, is_known)) in lives.iter().enumerate() {
        if rank == node.rank {
            add(gathering, known_to(node, rank).into_iter().filter(own))?;
        } else if *is_known {
            add(gathering, known_to(node, rank))?;
        }
    }
    Ok(())
}

fn add(gathering: &mut Gathering, events: impl IntoIterator<Item = Event>) -> Result<(), String> {
    let mut events = events.into_iter();
    let added: Result<(), Contradiction> = events.try_for_each(|event| gathering.add(event));
    added.map_err(|contradiction| contradiction.to_string())
}

/// What messages from `source` to `rank` carry that stand at `place` or behind it; the deliveries that `source` had made before the last
/// of them.
fn coming(
    node: &Node,
    reduction: Reduction,
    source: usize,
    rank: usize,
    place: u64,
    gathering: &mut Gathering,
) -> Result<u64, String> {
    let mut clock = 0;
    let mut reader = Reader::at(source, rank, node, place);
    let (mut bytes, mut carried) = (Vec::new(), Piggyback::default());
    while let Some(entry) = reader.peek(node) {
        if entry.envelope.kind != Kind::More {
            reader.piggyback(node, &entry, &mut bytes);
            clock = decode(reduction, source as Rank, &bytes, &mut carried)?;
            add(gathering, carried.events.iter().copied())?;
        }
        reader.advance(entry.bytes);
    }
    Ok(clock)
}

/// What a message from `source` carries, in place of what `piggyback` was; the clock of the sender.
pub fn decode(reduction: Reduction, source: Rank, bytes: &[u8], piggyback: &mut Piggyback) -> Result<u64, String> {
    piggyback::decode_into(reduction, bytes, piggyback)
        .map_err(|error| format!("a message from rank {source} carries what it must not: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::tests::pair;

    fn event(rclock: u64) -> Event {
        Event {
            receiver: 0,
            rclock,
            record: Recorded {
                source: 1,
                polls: rclock * 3,
            },
            antecedent: rclock / 2,
        }
    }

    #[test]
    fn others_read_what_was_published_last() {
        let (node, other) = pair(16, true);
        let mut knowledge = Knowledge::begin(&node, &[]);
        let events: Vec<Event> = (1..10_000).map(event).collect();
        let mut kept = 0;
        for (index, event) in events.iter().enumerate() {
            if knowledge.is_full() {
                kept = index - 10;
                knowledge.replace(&node, &events[kept..index]);
            }
            knowledge.add(&node, event);
        }
        assert!(kept > 4000);
        assert_eq!(known_to(&other, 0), events[kept..]);
        Knowledge::begin(&node, &events[..3]);
        assert_eq!(known_to(&other, 0), events[..3]);
    }

    #[test]
    fn what_is_read_while_it_is_written_belongs_together() {
        let (node, other) = pair(16, true);
        let done = std::sync::atomic::AtomicBool::new(false);
        let node = SharedNode(node);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let shared: &SharedNode = &node;
                let node = &shared.0;
                let mut knowledge = Knowledge::begin(node, &[]);
                for rclock in 1..300_000 {
                    if knowledge.is_full() {
                        knowledge.replace(node, &[event(rclock - 2), event(rclock - 1)]);
                    }
                    knowledge.add(node, &event(rclock));
                }
                done.store(true, Ordering::Release);
            });
            while !done.load(Ordering::Acquire) {
                let events = known_to(&other, 0);
                assert!(events.windows(2).all(|pair| pair[0].rclock + 1 == pair[1].rclock));
                assert!(events.iter().all(|known| *known == event(known.rclock)));
            }
        });
    }

    struct SharedNode(Node);
    // SAFETY: a node memory is shared between processes; all access to it is atomic.
    unsafe impl Sync for SharedNode {}
}
