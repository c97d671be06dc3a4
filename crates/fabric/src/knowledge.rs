//! What a rank knows of others' deliveries, in the rank's own arena. A life that begins again can read it there,
//! whatever the rank does meanwhile (it may compute for hours, or have finished).
//!
//! Events are appended to one of two halves. One word says which half counts and how many events are in it. When many
//! of the events are stable, the rank writes the others to the other half, and then makes the word name that half. So
//! nobody writes to what the word names. A reader that finds the same generation before and after has read what belongs
//! together.

use crate::log::Reader;
use crate::message::Kind;
use crate::node::Node;
use resurgo_protocol::Rank;
use resurgo_protocol::causal::{Contradiction, Event, Gathering, Piggyback, Reduction};
use resurgo_wire::node_memory::{KNOWLEDGE_EVENTS, arena, control, event_of, event_words, knowledge_of};
use resurgo_wire::piggyback;
use std::sync::atomic::{Ordering, fence};

/// The fewest events between two looks at which of them are still needed.
const LEAST: usize = 4096;

/// Bits of [`arena::KNOWLEDGE_LIFE`] below the number of the life.
const TOLD_BITS: u32 = 16;

/// This rank's own knowledge.
pub struct Knowledge {
    word: u64,
    /// It is written anew at so many events.
    full_at: usize,
    /// Per rank, its last delivery that was known at the last image.
    in_image: Vec<u64>,
    /// How often this life has told what it knew before it began.
    told: u64,
}

impl Knowledge {
    /// For a life that begins from an image that knows so many deliveries of each rank. It has not told yet what else
    /// it knows.
    pub fn new(node: &Node, in_image: &[u64]) -> Knowledge {
        Knowledge {
            word: node.own(arena::KNOWLEDGE).load(Ordering::Acquire),
            full_at: 0,
            in_image: in_image.to_vec(),
            told: 0,
        }
    }

    /// The job has so many ranks by now.
    pub fn grow(&mut self, ranks: usize) {
        self.in_image.resize(ranks, 0);
    }

    /// Tells that this life knows `events`; what a former one knew no longer counts.
    pub fn tell(&mut self, node: &Node, events: &[Event]) {
        self.replace(node, events);
        self.told += 1;
        let life = node.control(node.rank, control::INCARNATION).load(Ordering::Acquire);
        node.own(arena::KNOWLEDGE_LIFE)
            .store(life << TOLD_BITS | self.told, Ordering::SeqCst);
    }

    /// Takes back what this life has told: it will know something else.
    pub fn take_back(&self, node: &Node) {
        node.own(arena::KNOWLEDGE_LIFE).store(0, Ordering::SeqCst);
    }

    /// Notes that an image of this rank is taken. The image knows so many deliveries of each rank: everything that is
    /// here. This takes one store, and asks for no memory.
    pub fn note_image(&mut self, node: &Node, latest: &[u64]) {
        self.in_image.copy_from_slice(latest);
        node.own(arena::KNOWN_TO_IMAGE.item(knowledge_of(self.word).0))
            .store(knowledge_of(self.word).1 as u64, Ordering::Release);
    }

    fn write(&self, node: &Node, word: u64, event: &Event) {
        let (half, index) = knowledge_of(word);
        for (at, word) in event_words(event).into_iter().enumerate() {
            node.known(node.rank, half, index, at).store(word, Ordering::Relaxed);
        }
    }

    /// Publishes more events, all at once: some of them alone are not closed. A rank that learns anything from this one
    /// later finds them.
    #[inline]
    pub fn add(&mut self, node: &Node, events: &[Event]) {
        for event in events {
            self.write(node, self.word, event);
            self.word += 1;
        }
        node.own(arena::KNOWLEDGE).store(self.word, Ordering::Release);
    }

    /// Whether so many more find room before it should be written anew, with what is still needed.
    #[inline]
    pub fn has_room(&self, events: usize) -> bool {
        knowledge_of(self.word).1 + events <= self.full_at
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
        let is_in_image = |event: &&Event| event.rclock <= self.in_image[event.receiver as usize];
        for event in events.iter().filter(is_in_image) {
            self.write(node, word, event);
            word += 1;
        }
        let (half, count) = knowledge_of(word);
        node.own(arena::KNOWN_TO_IMAGE.item(half))
            .store(count as u64, Ordering::Release);
        for event in events.iter().filter(|event| !is_in_image(event)) {
            self.write(node, word, event);
            word += 1;
        }
        self.word = word;
        self.full_at = (2 * events.len() + LEAST).min(KNOWLEDGE_EVENTS - 1);
        node.own(arena::KNOWLEDGE).store(word, Ordering::Release);
    }
}

/// What `rank` knows, or what its last image knows.
fn known_to(node: &Node, rank: usize, only_image: bool) -> Vec<Event> {
    loop {
        let word = node.of(rank, arena::KNOWLEDGE).load(Ordering::Acquire);
        let (half, all) = knowledge_of(word);
        let in_image = || node.of(rank, arena::KNOWN_TO_IMAGE.item(half)).load(Ordering::Acquire);
        let count = if only_image { in_image() as usize } else { all };
        let read =
            |index: usize| event_of([0, 1, 2, 3].map(|at| node.known(rank, half, index, at).load(Ordering::Relaxed)));
        let events = (0..count).map(read).collect();
        fence(Ordering::Acquire);
        if word >> 32 == node.of(rank, arena::KNOWLEDGE).load(Ordering::Relaxed) >> 32 {
            return events;
        }
    }
}

/// Which life a rank is in, and what that life has told.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Standing {
    life: u64,
    /// [`arena::KNOWLEDGE_LIFE`].
    told: u64,
}

impl Standing {
    /// Whether that life has told what it knows.
    fn is_known(self) -> bool {
        self.told >> TOLD_BITS == self.life
    }
}

/// Where all ranks are, except this one, which is looking.
#[derive(PartialEq, Eq)]
pub struct Lives(Vec<Standing>);

impl Lives {
    pub fn now(node: &Node) -> Lives {
        let standing = |rank: usize| Standing {
            life: node.control(rank, control::INCARNATION).load(Ordering::SeqCst),
            told: match rank {
                own if own == node.rank => 0,
                _ => node.of(rank, arena::KNOWLEDGE_LIFE).load(Ordering::SeqCst),
            },
        };
        Lives((0..node.ranks()).map(standing).collect())
    }
}

/// Why a search found nothing.
enum Miss {
    /// What it was reading has been forgotten.
    Gone,
    Contradiction(String),
}

impl From<String> for Miss {
    fn from(reason: String) -> Self {
        Miss::Contradiction(reason)
    }
}

/// Everything known of any rank's deliveries, for a new life of this rank:
///
/// - what the other ranks know;
/// - what messages carry that were sent and not taken in;
/// - this rank's own deliveries before the last output that the agent has passed on, and before its last message to
///   itself: both will be there.
///
/// It leaves out what else a former life of this rank knew. It also leaves out what former lives of other ranks knew
/// that have not begun again, except what their images know: they may have lost their nodes.
///
/// It also returns the lives of that moment. The caller compares that once more when others can read what this life
/// will know. Of two lives that begin at the same time one sees the other.
pub fn gather(node: &Node, reduction: Reduction) -> Result<(Gathering, Lives), String> {
    loop {
        let lives = Lives::now(node);
        let found = on_their_way(node, reduction, &lives.0).and_then(|(mut gathering, to_itself)| {
            add_known(node, &lives.0, to_itself, &mut gathering)?;
            Ok(gathering)
        });
        // A rank died or restarted while we looked: what we saw may be incomplete. A restarted rank may also have taken
        // another way than some lives knew that have ended since. Start over.
        if lives != Lives::now(node) {
            continue;
        }
        match found {
            Ok(gathering) => return Ok((gathering, lives)),
            Err(Miss::Contradiction(reason)) => return Err(reason),
            Err(Miss::Gone) => {}
        }
    }
}

/// What a former life of this rank knew, or what all other nodes have told since its own was lost. Nobody else needs to
/// be looked at.
pub fn own(node: &Node) -> Result<(Gathering, Lives), String> {
    let mut gathering = Gathering::new(node.ranks());
    add(&mut gathering, known_to(node, node.rank, false))?;
    Ok((gathering, Lives::now(node)))
}

/// What messages carry that have not been taken in, and how many deliveries this rank had made before its last message
/// to itself. Read this before what ranks know: the others go on meanwhile, and a message leaves out what its sender
/// knew that the receiver knew. Both had published that before the message was sent, and so it is found with them
/// later.
fn on_their_way(node: &Node, reduction: Reduction, lives: &[Standing]) -> Result<(Gathering, u64), Miss> {
    let mut to_itself = 0;
    let mut gathering = Gathering::new(lives.len());
    for (rank, standing) in lives.iter().enumerate() {
        for source in 0..lives.len() {
            let place = match standing.is_known() {
                true => node.consumed(source, rank).load(Ordering::Acquire),
                // Everything that is there: the rank goes on from an image, or from the beginning.
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

fn add_known(node: &Node, lives: &[Standing], to_itself: u64, gathering: &mut Gathering) -> Result<(), String> {
    let passed_on = node.control(node.rank, control::PASSED_ON).load(Ordering::Acquire);
    let needed = passed_on.max(to_itself);
    let own = |event: &Event| event.receiver as usize == node.rank && event.rclock <= needed;
    for (rank, standing) in lives.iter().enumerate() {
        if rank == node.rank {
            add(gathering, known_to(node, rank, false).into_iter().filter(own))?;
        } else {
            add(gathering, known_to(node, rank, !standing.is_known()))?;
        }
    }
    Ok(())
}

fn add(gathering: &mut Gathering, events: impl IntoIterator<Item = Event>) -> Result<(), String> {
    let mut events = events.into_iter();
    let added: Result<(), Contradiction> = events.try_for_each(|event| gathering.add(event));
    added.map_err(|contradiction| contradiction.to_string())
}

/// Gathers what messages from `source` to `rank` carry that stand at `place` or behind it. Returns the deliveries that
/// `source` had made before the last of them.
fn coming(
    node: &Node,
    reduction: Reduction,
    source: usize,
    rank: usize,
    place: u64,
    gathering: &mut Gathering,
) -> Result<u64, Miss> {
    let mut clock = 0;
    let mut reader = Reader::at(source, rank, node, place);
    let (mut bytes, mut carried) = (Vec::new(), Piggyback::default());
    while let Some(entry) = reader.peek(node) {
        if entry.envelope.kind != Kind::More {
            let is_whole = reader.piggyback(node, &entry, &mut bytes);
            if reader.is_lost() {
                return Err(Miss::Gone);
            }
            if is_whole {
                clock = decode(reduction, source as Rank, &bytes, &mut carried)?;
                add(gathering, carried.events.iter().copied())?;
            }
        }
        reader.advance(entry.bytes);
    }
    match reader.is_lost() {
        true => Err(Miss::Gone),
        false => Ok(clock),
    }
}

/// Decodes what a message from `source` carries into `piggyback`, replacing its content; returns the sender's clock.
pub fn decode(reduction: Reduction, source: Rank, bytes: &[u8], piggyback: &mut Piggyback) -> Result<u64, String> {
    piggyback::decode_into(reduction, bytes, piggyback)
        .map_err(|error| format!("a message from rank {source} carries what it must not: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::tests::pair;
    use resurgo_protocol::Recorded;

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
        let mut knowledge = Knowledge::new(&node, &[0, 0]);
        knowledge.tell(&node, &[]);
        let events: Vec<Event> = (1..10_000).map(event).collect();
        let mut kept = 0;
        for (index, event) in events.iter().enumerate() {
            if !knowledge.has_room(1) {
                kept = index - 10;
                knowledge.replace(&node, &events[kept..index]);
            }
            knowledge.add(&node, &[*event]);
        }
        assert!(kept > 4000);
        assert_eq!(known_to(&other, 0, false), events[kept..]);
        knowledge.tell(&node, &events[..3]);
        assert_eq!(known_to(&other, 0, false), events[..3]);
    }

    #[test]
    fn what_an_image_knows_is_told_from_what_came_later() {
        let (node, other) = pair(16, true);
        let events: Vec<Event> = (1..30).map(event).collect();
        let mut knowledge = Knowledge::new(&node, &[2, 0]);
        knowledge.tell(&node, &events[..5]);
        assert_eq!(known_to(&other, 0, true), events[..2]);
        knowledge.note_image(&node, &[5, 0]);
        knowledge.add(&node, &events[5..6]);
        assert_eq!(known_to(&other, 0, true), events[..5]);
        // What has become stable is not kept, and what is new is written first here.
        let kept: Vec<Event> = events[3..9].iter().rev().copied().collect();
        knowledge.replace(&node, &kept);
        assert_eq!(known_to(&other, 0, true), [events[4], events[3]]);
        assert_eq!(known_to(&other, 0, false).len(), 6);
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
                let mut knowledge = Knowledge::new(node, &[0, 0]);
                knowledge.tell(node, &[]);
                for rclock in 1..300_000 {
                    if !knowledge.has_room(1) {
                        knowledge.replace(node, &[event(rclock - 2), event(rclock - 1)]);
                    }
                    knowledge.add(node, &[event(rclock)]);
                }
                done.store(true, Ordering::Release);
            });
            while !done.load(Ordering::Acquire) {
                let events = known_to(&other, 0, false);
                assert!(events.windows(2).all(|pair| pair[0].rclock + 1 == pair[1].rclock));
                assert!(events.iter().all(|known| *known == event(known.rclock)));
            }
        });
    }

    struct SharedNode(Node);
    // SAFETY: a node memory is shared between processes; all access to it is atomic.
    unsafe impl Sync for SharedNode {}
}
