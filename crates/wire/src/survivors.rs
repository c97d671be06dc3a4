//! What an agent and a rank that deals with failures itself say to each other, over a socket of datagrams
//! ([`crate::node_memory::SURVIVOR_FD`]). A datagram is a sequence of `u32`, the first of which is its kind.

use resurgo_protocol::Rank;
use resurgo_protocol::survivors::{Closing, Said, Verdict, Wish};

use crate::node_memory::MAX_RANKS;

/// Bytes of the longest datagram: two lists of ranks, and what is before them.
pub const BYTES: usize = 4 * (2 * MAX_RANKS + 8);

/// The program that a rank spawns when it wants new ranks in the places of failed ones: its arguments are their numbers.
pub const REPLACEMENT: &str = "resurgo:replacement";

const JOINED: u32 = 1;
const WANTS: u32 = 2;
const REVOKES: u32 = 3;
const ABANDONS: u32 = 4;
const CLOSES: u32 = 5;
const REPEATS: u32 = 6;
const TOOK: u32 = 7;

/// Kinds of answers.
const AGREED: u32 = 1;
const REPEATED: u32 = 2;

fn bytes(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// The same without memory that the program could notice.
fn few<const WORDS: usize>(words: [u32; WORDS]) -> ([u8; FEW], usize) {
    let mut bytes = [0; FEW];
    for (to, word) in bytes.chunks_exact_mut(4).zip(words) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    (bytes, 4 * WORDS)
}

/// Bytes that [`few`] has room for.
pub const FEW: usize = 16;

/// [`Said::Repeats`], and its length.
pub fn encode_repeats(ticket: u32) -> ([u8; FEW], usize) {
    few([REPEATS, ticket])
}

/// [`Said::Took`], and its length.
pub fn encode_took(ticket: u32, look: u64) -> ([u8; FEW], usize) {
    few([TOOK, ticket, look as u32, (look >> 32) as u32])
}

fn list(words: &mut Vec<u32>, ranks: &[Rank]) {
    words.push(ranks.len() as u32);
    words.extend_from_slice(ranks);
}

/// Inside a rank: where the library above MPI finds the words of the node memory.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct View {
    /// Address of [`crate::node_memory::header::NEWS_OF_FAILURES`].
    pub news: u64,
    /// Address of the control of rank 0; the others follow.
    pub controls: u64,
    /// Address of [`crate::node_memory::header::RANKS`].
    pub ranks: u64,
    /// Controls that there is room for.
    pub most: u64,
    pub rank: u64,
    /// [`crate::node_memory::header::SURVIVORS`].
    pub rules: u64,
}

/// Tags as MPICH 5 gives them to a provider: 31 bits of the program's tag, 20 of the context, 5 of the protocol.
const TAG_BITS: u32 = 31;
pub const TAG_MASK: u64 = (1 << TAG_BITS) - 1;
const CONTEXT_BITS: u32 = 20;
const PROTOCOL_SHIFT: u32 = TAG_BITS + CONTEXT_BITS;
/// The protocol of MPI_Comm_spawn, MPI_Comm_connect and MPI_Intercomm_create.
const INTRODUCES: u64 = 2;
/// The program's tags have one bit less; with this one a collective call among some members of a communicator.
const OF_GROUP: u64 = 1 << (TAG_BITS - 1);
/// The lowest bit of a context is set for collective calls, and the next three tell apart what belongs together.
const CONTEXT_SHIFT: u32 = TAG_BITS + 4;

/// The lowest four bits of the context in which MPI_Intercomm_merge looks for a new one.
const MERGES: u64 = 7;

/// Tags of collective calls.
const ALLGATHER: u64 = 7;
const ALLGATHERV: u64 = 8;

/// The tag with which the library posts a receive, or sends, to find a context and a rank.
pub const PROBE_TAG: u64 = 0x3ff7_f7f7;
/// The tag of a receive that was ended: no program can use it.
pub const ENDED: u64 = TAG_MASK;

/// What stands for a communicator: its context, and its members by a hash. MPI may give a context again to ranks where
/// a call did not end well, but never with the same members: one of them still has it. Never 0.
pub fn key(context: u32, members: impl Iterator<Item = Rank>) -> u64 {
    let mut members: Vec<Rank> = members.collect();
    members.sort_unstable();
    hash(&members) << 16 | 1 << 15 | u64::from(context & 0x7fff)
}

/// A number for these members in this order (FNV-1a, by members instead of bytes).
pub fn hash(members: &[Rank]) -> u64 {
    members.iter().fold(0xcbf2_9ce4_8422_2325, |hash, member| {
        (hash ^ u64::from(*member)).wrapping_mul(0x100_0000_01b3)
    })
}

/// The place in [`crate::node_memory::control::REVOKED`] of a revoked communicator.
pub const fn place_of_revoked(key: u64) -> usize {
    (key & 0x7fff) as usize % crate::node_memory::REVOCATIONS
}

/// Where a message belongs, by its tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The communicator.
    pub context: u32,
    pub is_of_collective: bool,
    /// A collective call among a group only, such as MPI_Comm_create_group.
    pub is_of_group: bool,
    /// Of MPI_Intercomm_merge: the context is that of one of the sides, and may be another's on the other side.
    pub is_of_merge: bool,
    /// Of MPI_Allgather and the like: as much as comes in is sent on.
    pub is_sent_on: bool,
    /// MPI's own answer to a message.
    pub is_answer: bool,
    /// Two processes introduce themselves, and their communicators, to each other.
    pub is_introduction: bool,
    /// The first word of that: its receiver does not know yet from whom it comes.
    pub is_first_word: bool,
    /// The tag without the program's part.
    pub bits: u64,
}

impl Place {
    pub const fn of(tag: u64) -> Place {
        let is_introduction = tag >> PROTOCOL_SHIFT == INTRODUCES;
        let is_of_collective = !is_introduction && tag >> TAG_BITS & 1 != 0;
        Place {
            context: (tag >> CONTEXT_SHIFT) as u32 & ((1 << (CONTEXT_BITS - 4)) - 1),
            is_of_collective,
            is_of_group: is_of_collective && tag & OF_GROUP != 0,
            is_of_merge: is_of_collective && tag >> TAG_BITS & 15 == MERGES,
            is_sent_on: is_of_collective && matches!(tag & TAG_MASK, ALLGATHER | ALLGATHERV),
            is_answer: tag >> PROTOCOL_SHIFT != 0,
            is_introduction,
            is_first_word: is_introduction && tag & OF_GROUP != 0,
            bits: tag & !TAG_MASK,
        }
    }

    /// The program receives it itself.
    pub const fn is_of_program(self) -> bool {
        !self.is_of_collective && !self.is_answer
    }
}

/// The words of a datagram, taken one by one.
struct Words<'a>(&'a [u8]);

impl Words<'_> {
    fn next(&mut self) -> Option<u32> {
        let (word, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u32::from_le_bytes(*word))
    }

    fn list(&mut self) -> Option<Vec<Rank>> {
        let count = self.next()? as usize;
        (count <= MAX_RANKS).then(|| (0..count).map(|_| self.next()).collect())?
    }
}

/// Rank to agent.
pub fn encode(said: &Said) -> Vec<u8> {
    let mut words;
    match said {
        Said::Joined => words = vec![JOINED],
        Said::Wants(wish) => {
            words = vec![WANTS, wish.ticket, wish.context, wish.number, wish.flag];
            list(&mut words, &wish.acknowledged);
            list(&mut words, &wish.members);
        }
        Said::Closes(closing) => {
            let bits = u32::from(closing.is_good) | u32::from(closing.of_job) << 1;
            words = vec![CLOSES, closing.ticket, closing.context, closing.number, bits];
            list(&mut words, &closing.absorbed);
            list(&mut words, &closing.members);
        }
        Said::Abandons { ticket } => words = vec![ABANDONS, *ticket],
        Said::Repeats { ticket } => words = vec![REPEATS, *ticket],
        Said::Took { ticket, look } => words = vec![TOOK, *ticket, *look as u32, (*look >> 32) as u32],
        Said::Revokes { key, members } => {
            words = vec![REVOKES, *key as u32, (*key >> 32) as u32];
            list(&mut words, members);
        }
    }
    bytes(&words)
}

/// None: this is nonsense.
pub fn decode(datagram: &[u8]) -> Option<Said> {
    let mut words = Words(datagram);
    Some(match words.next()? {
        JOINED => Said::Joined,
        WANTS => Said::Wants(Wish {
            ticket: words.next()?,
            context: words.next()?,
            number: words.next()?,
            flag: words.next()?,
            acknowledged: words.list()?,
            members: words.list()?,
        }),
        CLOSES => {
            let [ticket, context, number, bits] = [words.next()?, words.next()?, words.next()?, words.next()?];
            Said::Closes(Closing {
                ticket,
                context,
                number,
                is_good: bits & 1 != 0,
                of_job: bits & 2 != 0,
                absorbed: words.list()?,
                members: words.list()?,
            })
        }
        ABANDONS => Said::Abandons { ticket: words.next()? },
        REPEATS => Said::Repeats { ticket: words.next()? },
        TOOK => Said::Took {
            ticket: words.next()?,
            look: u64::from(words.next()?) | u64::from(words.next()?) << 32,
        },
        REVOKES => Said::Revokes {
            key: u64::from(words.next()?) | u64::from(words.next()?) << 32,
            members: words.list()?,
        },
        _ => return None,
    })
}

/// What an agent answers, to a rank's words with this ticket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    Agreed(u32, Verdict),
    /// Whether a former life has said the wish, and the look that found its verdict.
    Repeated(u32, bool, Option<u64>),
}

/// Agent to rank: the answer to its wish of this ticket.
pub fn encode_verdict(ticket: u32, verdict: &Verdict) -> Vec<u8> {
    let is_acknowledged = u32::from(verdict.is_acknowledged);
    let mut words = vec![AGREED, ticket, verdict.flag, is_acknowledged, verdict.failures as u32];
    list(&mut words, &verdict.failed);
    bytes(&words)
}

/// Agent to rank: the answer to [`Said::Repeats`].
pub fn encode_repeated(ticket: u32, is_known: bool, look: Option<u64>) -> Vec<u8> {
    let number = look.unwrap_or(0);
    bytes(&[
        REPEATED,
        ticket,
        u32::from(is_known),
        u32::from(look.is_some()),
        number as u32,
        (number >> 32) as u32,
    ])
}

/// None: this is nonsense.
pub fn decode_answer(datagram: &[u8]) -> Option<Answer> {
    let mut words = Words(datagram);
    let (kind, ticket) = (words.next()?, words.next()?);
    match kind {
        AGREED => {
            let verdict = Verdict {
                flag: words.next()?,
                is_acknowledged: words.next()? != 0,
                failures: words.next()?.into(),
                failed: words.list()?,
            };
            Some(Answer::Agreed(ticket, verdict))
        }
        REPEATED => {
            let (is_known, has_look) = (words.next()? != 0, words.next()? != 0);
            let look = u64::from(words.next()?) | u64::from(words.next()?) << 32;
            Some(Answer::Repeated(ticket, is_known, has_look.then_some(look)))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_tell_where_a_message_belongs() {
        // Seen with MPICH 5.0.2: barriers on MPI_COMM_WORLD and on another communicator, MPI_Comm_create_group, a
        // receive of the program, the answer to MPI_Ssend.
        for (tag, context, collective, group, answer) in [
            (0x8000_0001, 0, true, false, false),
            (0xf8_8000_0001, 31, true, false, false),
            (0xc000_0007, 0, true, true, false),
            (0x123_4567, 0, false, false, false),
            (0x8_00f8_0000_0005, 31, false, false, true),
        ] {
            let place = Place::of(tag);
            let found = (
                place.context,
                place.is_of_collective,
                place.is_of_group,
                place.is_answer,
            );
            assert_eq!(found, (context, collective, group, answer), "{tag:x}");
        }
    }

    #[test]
    fn words_survive_the_wire_and_nonsense_does_not() {
        let wish = Wish {
            ticket: 5,
            context: 31,
            number: 2,
            flag: u32::MAX,
            acknowledged: vec![3],
            members: vec![0, 1, 3],
        };
        let (key, members) = (9 << 40 | 1, vec![4, 5]);
        let abandons = Said::Abandons { ticket: 4 };
        let closing = Closing {
            ticket: 8,
            context: 31,
            number: 3,
            is_good: true,
            of_job: true,
            absorbed: vec![2],
            members: vec![0, 1],
        };
        for said in [
            Said::Closes(closing),
            Said::Joined,
            Said::Wants(wish),
            Said::Revokes { key, members },
            abandons,
        ] {
            let datagram = encode(&said);
            assert_eq!(decode(&datagram), Some(said));
            assert_eq!(decode(&datagram[..datagram.len() - 1]), None);
        }
        let verdict = Verdict {
            flag: 1,
            failed: vec![7],
            failures: 3,
            is_acknowledged: true,
        };
        assert_eq!(
            decode_answer(&encode_verdict(6, &verdict)),
            Some(Answer::Agreed(6, verdict))
        );
        for (is_known, look) in [(false, None), (true, None), (true, Some(1 << 40 | 3))] {
            let answer = Answer::Repeated(9, is_known, look);
            assert_eq!(decode_answer(&encode_repeated(9, is_known, look)), Some(answer));
        }
        let took = Said::Took {
            ticket: 3,
            look: 1 << 33,
        };
        for (said, (bytes, length)) in [
            (Said::Repeats { ticket: 7 }, encode_repeats(7)),
            (took, encode_took(3, 1 << 33)),
        ] {
            assert_eq!(encode(&said), bytes[..length]);
            assert_eq!(decode(&bytes[..length]), Some(said));
        }
        for nonsense in [&bytes(&[8])[..], &bytes(&[REVOKES, 1, 1, u32::MAX]), &[]] {
            assert_eq!(decode(nonsense), None);
        }
    }
}
