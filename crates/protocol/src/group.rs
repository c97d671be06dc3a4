//! Group-based coordinated checkpointing (Gao 2007). One group after the other stops, drains its channels and copies
//! its ranks, as in [`crate::Wave::new`]; the other groups compute on. On a failure all return to the last complete
//! wave.
//!
//! Nothing passes between a group that is copied for a wave and one that is not ([`Turn::passes`]). The sender defers
//! such a message until both groups are copied, or neither is about to be. So a channel is empty when the ranks at both
//! its ends are copied, and nothing is logged. A small message is copied into the sender's buffer, and its send is over
//! (message buffering). A large one stays with the caller, and its send is not over (request buffering): [`Buffer`].
//! (§3.2, §4.3.)
//!
//! A rank outside of the group whose turn it is (*passive coordination*, §4.4) reports when it has seen that. From then
//! on it sends nothing to that group, which can drain its channels then. A computing rank is made to look: the
//! coordinator waits for its answer, and no rank for its computation.
//!
//! [`formation`] has the ways to form groups (§4.1), [`Writing`] the order in which they write their images.

pub mod formation;

use crate::Rank;

/// Which rank is in which group; groups have their turns in the order of their numbers, which begin at 1.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Groups {
    of: Vec<u32>,
    count: u32,
}

impl Groups {
    /// `of`: each rank's group.
    pub fn new(of: Vec<u32>) -> Groups {
        let count = of.iter().copied().max().unwrap_or(0);
        let has_ranks = |group: u32| of.contains(&group);
        assert!(
            !of.contains(&0) && (1..=count).all(has_ranks),
            "groups are numbered from 1, and each has ranks: {of:?}"
        );
        Groups { of, count }
    }

    /// All ranks are in one.
    pub fn one(ranks: usize) -> Groups {
        Groups::consecutive(ranks, ranks.max(1))
    }

    /// `size` ranks each, in the order of ranks; the last may have fewer.
    pub fn consecutive(ranks: usize, size: usize) -> Groups {
        Groups::new((0..ranks).map(|rank| (rank / size) as u32 + 1).collect())
    }

    pub fn ranks(&self) -> usize {
        self.of.len()
    }

    /// How many there are.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// The group of `rank`.
    pub fn of(&self, rank: Rank) -> u32 {
        self.of[rank as usize]
    }

    /// The ranks of `group`.
    pub fn members(&self, group: u32) -> impl Iterator<Item = Rank> + '_ {
        let ranks = self.of.iter().enumerate();
        ranks.filter(move |(_, of)| **of == group).map(|(rank, _)| rank as Rank)
    }
}

/// The progress of a wave, which the coordinator tells all ranks in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Turn {
    /// The last wave begun.
    pub wave: u64,
    /// The group whose turn it is: those before it are copied. 0: the wave is over.
    pub group: u32,
}

impl Turn {
    pub const fn word(self) -> u64 {
        self.wave << 16 | self.group as u64
    }

    pub const fn from_word(word: u64) -> Turn {
        Turn {
            wave: word >> 16,
            group: (word & 0xffff) as u32,
        }
    }

    /// Whether messages may pass between these two groups now. They may inside one group, between two that are copied,
    /// and between two whose turn is still to come.
    #[inline]
    pub fn passes(self, one: u32, other: u32) -> bool {
        self.group == 0 || one.cmp(&self.group) == other.cmp(&self.group)
    }
}

/// Most bytes of a message that is buffered by copying it.
pub const MOST_COPIED: usize = 16 << 10;
/// Most bytes, and most messages, in a rank's buffer: further ones stay with the caller, whatever their size.
pub const MOST_BYTES: usize = 16 << 20;
pub const MOST_MESSAGES: usize = 4096;

/// The room for deferred messages of one rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Buffer {
    most_copied: usize,
    room: usize,
    places: usize,
    bytes: usize,
    messages: usize,
}

impl Default for Buffer {
    fn default() -> Buffer {
        Buffer::new(MOST_COPIED, MOST_BYTES, MOST_MESSAGES)
    }
}

impl Buffer {
    /// Copies messages of `most_copied` bytes at most, while it has `room` bytes and `places`.
    pub fn new(most_copied: usize, room: usize, places: usize) -> Buffer {
        Buffer {
            most_copied,
            room,
            places,
            bytes: 0,
            messages: 0,
        }
    }

    /// How many messages it holds.
    pub fn messages(&self) -> usize {
        self.messages
    }

    /// Whether a deferred message of `bytes` is copied, and its send is over. If not it stays with the caller.
    pub fn takes(&self, bytes: usize) -> bool {
        bytes <= self.most_copied && self.bytes + bytes <= self.room && self.messages < self.places
    }

    /// The message is copied.
    pub fn add(&mut self, bytes: usize) {
        assert!(self.takes(bytes), "{bytes} more bytes do not fit: {self:?}");
        self.bytes += bytes;
        self.messages += 1;
    }

    /// The message has left.
    pub fn remove(&mut self, bytes: usize) {
        assert!(
            self.bytes >= bytes && self.messages > 0,
            "{bytes} bytes have not been added: {self:?}"
        );
        self.bytes -= bytes;
        self.messages -= 1;
    }
}

/// The order in which the groups of a complete wave write their images, at most so many at a time.
#[derive(Debug, Clone)]
pub struct Writing {
    number: u64,
    groups: Groups,
    at_once: u32,
    /// Groups that have begun, in order.
    begun: u32,
    /// Ranks that have not written their images.
    missing: Vec<bool>,
}

impl Writing {
    pub fn new(number: u64, groups: Groups, at_once: u32) -> Writing {
        assert!(at_once > 0, "some group writes");
        Writing {
            number,
            missing: vec![true; groups.ranks()],
            groups,
            at_once,
            begun: 0,
        }
    }

    /// The wave's.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Ranks that begin to write now. Call again whenever one has [ended](Writing::ended).
    pub fn begin(&mut self) -> Vec<Rank> {
        let mut ranks = Vec::new();
        let writes = |missing: &[bool], group: u32| self.groups.members(group).any(|rank| missing[rank as usize]);
        let mut busy = (1..=self.begun).filter(|group| writes(&self.missing, *group)).count() as u32;
        while self.begun < self.groups.count() && busy < self.at_once {
            self.begun += 1;
            busy += 1;
            ranks.extend(self.groups.members(self.begun));
        }
        ranks
    }

    /// The image of `rank` is written, or will not be.
    pub fn ended(&mut self, rank: Rank) {
        self.missing[rank as usize] = false;
    }

    /// The turn of this rank's group has come.
    pub fn has_begun(&self, rank: Rank) -> bool {
        self.groups.of(rank) <= self.begun
    }

    /// The images being written are the last: a missing image makes the others useless. Returns the ranks that do not
    /// write any more.
    pub fn give_up(&mut self) -> Vec<Rank> {
        let groups = (self.begun + 1)..=self.groups.count();
        let ranks: Vec<Rank> = groups.flat_map(|group| self.groups.members(group)).collect();
        ranks.iter().for_each(|rank| self.ended(*rank));
        self.begun = self.groups.count();
        ranks
    }

    /// All have ended.
    pub fn is_over(&self) -> bool {
        !self.missing.contains(&true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_passes_between_a_group_that_has_been_copied_and_one_that_has_not() {
        for turn in 1..=4 {
            let now = Turn { wave: 7, group: turn };
            assert_eq!(Turn::from_word(now.word()), now);
            let side = |group: u32| (group > turn) as u32 + 2 * (group == turn) as u32;
            for one in 1..=4 {
                for other in 1..=4 {
                    assert_eq!(now.passes(one, other), side(one) == side(other));
                }
            }
        }
        let over = Turn { wave: 7, group: 0 };
        assert!(over.passes(1, 4) && Turn::default().passes(2, 3));
    }

    #[test]
    fn groups_know_their_ranks() {
        let groups = Groups::new(vec![2, 1, 2]);
        assert_eq!((groups.count(), groups.of(0), groups.ranks()), (2, 2, 3));
        assert_eq!(groups.members(2).collect::<Vec<_>>(), [0, 2]);
        assert_eq!(Groups::consecutive(5, 2), Groups::new(vec![1, 1, 2, 2, 3]));
        assert_eq!(Groups::one(3).count(), 1);
    }

    #[test]
    #[should_panic(expected = "each has ranks")]
    fn no_group_is_empty() {
        Groups::new(vec![1, 3]);
    }

    #[test]
    fn small_messages_are_buffered_as_long_as_there_is_room() {
        let mut buffer = Buffer::new(10, 25, 3);
        assert!(buffer.takes(10) && !buffer.takes(11));
        buffer.add(10);
        buffer.add(10);
        assert!(!buffer.takes(6) && buffer.takes(5));
        buffer.remove(10);
        assert!(buffer.takes(10) && buffer.messages() == 1);
        buffer.add(0);
        buffer.add(0);
        assert!(!buffer.takes(0), "it has three places");
    }

    #[test]
    fn no_more_groups_write_than_may() {
        let mut writing = Writing::new(3, Groups::consecutive(5, 2), 1);
        assert_eq!(writing.begin(), [0, 1]);
        writing.ended(0);
        assert_eq!(writing.begin(), []);
        assert!(writing.has_begun(1) && !writing.has_begun(2));
        writing.ended(1);
        assert_eq!(writing.begin(), [2, 3]);
        writing.ended(3);
        writing.ended(2);
        assert_eq!(writing.begin(), [4]);
        assert!(!writing.is_over());
        writing.ended(4);
        assert!(writing.is_over() && writing.begin().is_empty());
        let mut all = Writing::new(3, Groups::consecutive(5, 2), 3);
        assert_eq!(all.begin().len(), 5);
        let mut failing = Writing::new(3, Groups::consecutive(5, 2), 1);
        assert_eq!(failing.begin(), [0, 1]);
        assert_eq!(failing.give_up(), [2, 3, 4]);
        failing.ended(0);
        failing.ended(1);
        assert!(failing.is_over() && failing.begin().is_empty() && failing.number() == 3);
    }
}
