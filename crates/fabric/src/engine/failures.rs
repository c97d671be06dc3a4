//! What a rank has heard of failures, in a program that deals with them itself, and which receives are in vain then.

use crate::matching::Receive;
use crate::node::Node;
use crate::survivors::{Comm, Known, Making};
use resurgo_wire::node_memory::{REVOCATIONS, control, header};
use resurgo_wire::survivors::Place;
use std::sync::atomic::Ordering;

/// What this rank has heard.
#[derive(Default)]
pub struct Failures {
    /// How much of it.
    pub heard: u64,
    /// Per rank.
    pub failed: Vec<bool>,
}

impl Failures {
    #[inline]
    pub fn has_failed(&self, rank: usize) -> bool {
        self.failed.get(rank).is_some_and(|failed| *failed)
    }
}

pub fn news(node: &Node) -> u64 {
    node.header(header::NEWS_OF_FAILURES).load(Ordering::Acquire)
}

/// There are news beyond what was `heard`.
#[inline]
pub fn are_news(node: &Node, heard: u64) -> bool {
    node.survives && news(node) != heard
}

/// Remembers communicators that are revoked. True: there are new ones.
pub fn hear_of_revoked(node: &Node, known: &mut Known) -> bool {
    let before = known.revoked.len();
    for place in 0..REVOCATIONS {
        let word = node.control(node.rank, control::CLOSED.item(place));
        known
            .revoked
            .extend(Some(word.load(Ordering::Acquire)).filter(|key| *key != 0));
    }
    known.revoked.len() > before
}

fn have_failed(failures: &Failures, ranks: &[u32]) -> bool {
    ranks.iter().any(|rank| failures.has_failed(*rank as usize))
}

/// Nothing goes on in this communicator: it is revoked, or such a rank has failed that it cannot do without.
fn is_over(failures: &Failures, known: &Known, comm: &Comm) -> bool {
    known.revoked.contains(&comm.key) || have_failed(failures, &comm.watched)
}

/// Collective calls on this communicator cannot end: it is over, or a member has failed.
fn cannot_end(failures: &Failures, known: &Known, comm: &Comm) -> bool {
    is_over(failures, known, comm) || have_failed(failures, &comm.members)
}

/// The same by the tag. MPI's communicators that are being made are like the one, or the group, that they are made from.
pub fn is_broken(failures: &Failures, known: &Known, place: Place) -> bool {
    let context = place.context;
    if place.is_of_merge {
        let mut merges = known.making.values();
        let merge =
            merges.find(|making| making.other.is_some() && [making.parent, making.other].contains(&Some(context)));
        return merge.is_some_and(|merge| is_in_vain_to_make(failures, known, merge));
    }
    match (known.comms.get(&context), known.made.get(&context)) {
        (Some(comm), _) => cannot_end(failures, known, comm),
        (None, Some((_, making))) => is_in_vain_to_make(failures, known, making),
        (None, None) => false,
    }
}

pub fn is_in_vain_to_make(failures: &Failures, known: &Known, making: &Making) -> bool {
    let parent = making.parent.and_then(|parent| known.comms.get(&parent));
    parent.is_some_and(|comm| cannot_end(failures, known, comm)) || have_failed(failures, &making.group)
}

/// The rank that a receive in vain was from.
pub fn dead_of(failures: &Failures, node: &Node, receive: &Receive, awaits: Option<u32>) -> u32 {
    let spawned = || spawned_and_dead(failures, node, awaits);
    receive.source.or_else(spawned).unwrap_or(node.rank as u32)
}

/// A rank from `first` on that this one has spawned, and that has failed.
fn spawned_and_dead(failures: &Failures, node: &Node, first: Option<u32>) -> Option<u32> {
    let by_this =
        |rank: &usize| node.control(*rank, control::SPAWNED_BY).load(Ordering::Acquire) == node.rank as u64 + 1;
    let mut ranks = first? as usize..failures.failed.len();
    let rank = ranks.find(|rank| failures.has_failed(*rank) && by_this(rank))?;
    Some(rank as u32)
}

/// Nobody will introduce itself: one that was spawned is dead, or the others that wait here are.
fn comes_nobody(failures: &Failures, known: &Known, node: &Node) -> bool {
    known.making.values().any(|making| {
        making.awaits.is_some()
            && (is_in_vain_to_make(failures, known, making)
                || spawned_and_dead(failures, node, making.awaits).is_some())
    })
}

/// No message can come for it, or none that would be of use.
pub fn is_in_vain(failures: &Failures, known: &Known, node: &Node, receive: &Receive) -> bool {
    let place = Place::of(receive.tag);
    if place.is_first_word && receive.source.is_none() {
        return comes_nobody(failures, known, node);
    }
    receive
        .source
        .is_some_and(|source| failures.has_failed(source as usize))
        || !place.is_of_group
            && !place.is_introduction
            && match place.is_of_collective {
                true => is_broken(failures, known, place),
                // Those of a file or a window wait for others that have left the call.
                false => match known.comms.get(&place.context) {
                    Some(comm) => is_over(failures, known, comm),
                    None => known.is_of_object(place.context) && is_broken(failures, known, place),
                },
            }
}

/// No receive will take a message with this tag from `source`.
pub fn is_of_no_use(failures: &Failures, known: &Known, source: u32, tag: u64) -> bool {
    let place = Place::of(tag);
    place.is_first_word && failures.has_failed(source as usize)
        || place.is_of_collective && !place.is_of_group && is_broken(failures, known, place)
}

/// No other rank will take a message with this tag from this one: it belongs to a collective call that cannot end. The
/// context of a message to the other side of an intercommunicator is that of the other side, where it may be another's.
pub fn is_of_no_use_to_others(failures: &Failures, known: &Known, tag: u64) -> bool {
    let place = Place::of(tag);
    place.is_of_collective
        && !place.is_of_group
        && is_broken(failures, known, place)
        && !known.comms.values().any(|comm| comm.other == Some(place.context))
        && !known.making.values().any(|making| making.awaits.is_some())
}
