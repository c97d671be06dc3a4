//! Ways to form groups (Gao 2007, §4.1): by a size and the order of ranks, from a list, or by communication.

use super::Groups;

/// A size that suits ranks in a grid, each of which talks to its row: the square root, rounded up.
pub fn usual_size(ranks: usize) -> usize {
    (1..).find(|size| size * size >= ranks).unwrap_or(1)
}

/// How groups are formed (Gao 2007, §4.1).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Grouping {
    /// All ranks are one.
    #[default]
    One,
    /// So many ranks each, in their order.
    Static { size: usize },
    /// Ranks that talk to one another, measured before each wave; where all do, as [`Grouping::Static`].
    Dynamic { size: usize },
    /// Each rank's group, from 1.
    Listed(Vec<u32>),
}

impl Grouping {
    /// The groups of a job of `ranks` ranks, if they do not change; otherwise one group of all.
    pub fn lasting(&self, ranks: usize) -> Groups {
        match self {
            Grouping::Static { size } => Groups::consecutive(ranks, *size),
            Grouping::Listed(of) => Groups::new(of.clone()),
            Grouping::One | Grouping::Dynamic { .. } => Groups::one(ranks),
        }
    }

    /// The groups of the next wave, and how they were formed; `messages` counts between two ranks, in both directions.
    pub fn form(&self, ranks: usize, messages: impl Fn(usize, usize) -> u64) -> (Groups, Option<Formed>) {
        match self {
            Grouping::Dynamic { size } => {
                let (groups, formed) = dynamic(ranks, *size, messages);
                (groups, Some(formed))
            }
            lasting => (lasting.lasting(ranks), None),
        }
    }
}

/// How groups were formed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Formed {
    /// By communication.
    ByCommunication,
    /// By size and rank: more than half of the ranks talk to one another, if only by way of others.
    CommunicationIsGlobal,
}

/// Groups of ranks that talk to one another frequently, or by way of others that do (the transitive closure). `messages`: between two
/// ranks, in both directions. Closures with fewer than `size` ranks share a group, in the order of ranks. Where communication is
/// global, groups of `size` ranks in the order of ranks.
pub fn dynamic(ranks: usize, size: usize, messages: impl Fn(usize, usize) -> u64) -> (Groups, Formed) {
    let mut closure: Vec<usize> = (0..ranks).collect();
    let mut largest = 1.min(ranks);
    let mut members: Vec<usize> = vec![1; ranks];
    for rank in 0..ranks {
        for partner in frequent(ranks, rank, &messages) {
            let (one, other) = (first(&mut closure, rank), first(&mut closure, partner));
            if one != other {
                let (low, high) = (one.min(other), one.max(other));
                closure[high] = low;
                members[low] += members[high];
                largest = largest.max(members[low]);
            }
            // The rest changes nothing.
            if 2 * largest > ranks {
                return (Groups::consecutive(ranks, size), Formed::CommunicationIsGlobal);
            }
        }
    }
    let mut of = vec![0; ranks];
    let (mut group, mut room) = (0, 0);
    for rank in 0..ranks {
        let head = first(&mut closure, rank);
        if head == rank {
            if members[rank] > room {
                group += 1;
                room = size.max(members[rank]);
            }
            room -= members[rank];
            of[rank] = group;
        } else {
            of[rank] = of[head];
        }
    }
    (Groups::new(of), Formed::ByCommunication)
}

/// The head of the closure that `rank` is in: its lowest rank.
fn first(closure: &mut [usize], rank: usize) -> usize {
    let mut at = rank;
    while closure[at] != at {
        closure[at] = closure[closure[at]];
        at = closure[at];
    }
    at
}

/// Partners with whom `rank` has exchanged at least half as many messages as with its partners in the mean.
fn frequent(ranks: usize, rank: usize, messages: &impl Fn(usize, usize) -> u64) -> Vec<usize> {
    let others = (0..ranks).filter(|other| *other != rank);
    let partners: Vec<(usize, u64)> = others
        .map(|other| (other, messages(rank, other)))
        .filter(|(_, count)| *count > 0)
        .collect();
    let all: u64 = partners.iter().map(|(_, count)| count).sum();
    let often = |count: u64| 2 * count * partners.len() as u64 >= all;
    let found = partners.iter().filter(|(_, count)| often(*count));
    found.map(|(partner, _)| *partner).collect()
}

/// Why a list of groups is unusable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListError {
    /// From 1; 0: it is about the whole list.
    pub line: usize,
    pub reason: String,
}

/// Groups from a text: a line for each group, in the order of their turns, with ranks and ranges of ranks between
/// blanks or commas (`0 2 4-7`). A `#` begins a comment; empty lines are ignored.
///
/// # Errors
/// A line is invalid, or some of the `ranks` ranks is not in exactly one group.
pub fn from_text(text: &str, ranks: usize) -> Result<Groups, ListError> {
    let mut of: Vec<(u32, usize)> = vec![(0, 0); ranks];
    let mut group = 0;
    for (line, content) in (1..).zip(text.lines()) {
        let content = content.split('#').next().unwrap_or_default();
        let words: Vec<&str> = content
            .split(|letter: char| letter.is_whitespace() || letter == ',')
            .filter(|word| !word.is_empty())
            .collect();
        group += u32::from(!words.is_empty());
        for word in words {
            let wrong = |reason: String| ListError { line, reason };
            let (from, to) =
                range(word).ok_or_else(|| wrong(format!("`{word}` is no rank and no range of ranks (`4-7`)")))?;
            if to >= ranks {
                return Err(wrong(format!("there is no rank {to}: the job has {}", last(ranks))));
            }
            for (rank, place) in of.iter_mut().enumerate().take(to + 1).skip(from) {
                if place.0 > 0 {
                    return Err(wrong(format!("rank {rank} is in line {} already", place.1)));
                }
                *place = (group, line);
            }
        }
    }
    let missing: Vec<String> = (0..ranks)
        .filter(|rank| of[*rank].0 == 0)
        .map(|rank| rank.to_string())
        .collect();
    if let Some(rank) = missing.first() {
        let more = if missing.len() > 1 { " (and others)" } else { "" };
        let line = missing[..missing.len().min(8)].join(" ");
        let reason = format!("rank {rank}{more} is in no group: add a line `{line}`, or put it into one of the others");
        return Err(ListError { line: 0, reason });
    }
    Ok(Groups::new(of.into_iter().map(|(group, _)| group).collect()))
}

fn last(ranks: usize) -> String {
    match ranks {
        1 => "rank 0 only".to_string(),
        _ => format!("ranks 0 to {}", ranks - 1),
    }
}

/// First and last of a rank or a range of ranks.
fn range(word: &str) -> Option<(usize, usize)> {
    let number = |text: &str| {
        text.bytes()
            .all(|byte| byte.is_ascii_digit())
            .then(|| text.parse().ok())?
    };
    let (from, to) = match word.split_once('-') {
        Some((from, to)) => (number(from)?, number(to)?),
        None => (number(word)?, number(word)?),
    };
    (from <= to).then_some((from, to))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn formed(ranks: usize, size: usize, messages: impl Fn(usize, usize) -> u64) -> (Vec<u32>, Formed) {
        let (groups, formed) = dynamic(ranks, size, messages);
        ((0..ranks as u32).map(|rank| groups.of(rank)).collect(), formed)
    }

    #[test]
    fn who_talks_frequently_is_in_one_group() {
        // Ranks of one parity talk, and all meet once in a while.
        let parity = |a: usize, b: usize| if a % 2 == b % 2 { 1000 } else { 10 };
        assert_eq!(formed(6, 3, parity), (vec![1, 2, 1, 2, 1, 2], Formed::ByCommunication));
        // A chain is a closure.
        let chain = |a: usize, b: usize| u64::from(a.abs_diff(b) == 1 && a / 3 == b / 3);
        assert_eq!(
            formed(9, 3, chain),
            (vec![1, 1, 1, 2, 2, 2, 3, 3, 3], Formed::ByCommunication)
        );
    }

    #[test]
    fn global_communication_falls_back_to_sizes() {
        let ring = |a: usize, b: usize| u64::from((a + 1) % 8 == b || (b + 1) % 8 == a);
        for messages in [ring, |_, _| 5, |a, b| u64::from(a == 0 || b == 0)] {
            assert_eq!(
                formed(8, 3, messages),
                (vec![1, 1, 1, 2, 2, 2, 3, 3], Formed::CommunicationIsGlobal)
            );
        }
        assert_eq!(formed(2, 1, |_, _| 1), (vec![1, 2], Formed::CommunicationIsGlobal));
    }

    #[test]
    fn who_talks_to_nobody_shares_a_group() {
        assert_eq!(formed(5, 2, |_, _| 0), (vec![1, 1, 2, 2, 3], Formed::ByCommunication));
        assert_eq!(formed(1, 1, |_, _| 0), (vec![1], Formed::ByCommunication));
        // Two of them beside a pair, and two pairs where there is room for four.
        let pair = |a: usize, b: usize| u64::from(a + b == 1);
        assert_eq!(formed(4, 3, pair), (vec![1, 1, 1, 2], Formed::ByCommunication));
        let pairs = |a: usize, b: usize| u64::from(a / 2 == b / 2);
        assert_eq!(
            formed(8, 4, pairs),
            (vec![1, 1, 1, 1, 2, 2, 2, 2], Formed::ByCommunication)
        );
    }

    #[test]
    fn the_usual_size_is_the_square_root() {
        let sizes = [1, 2, 4, 5, 9, 16, 17, 32].map(usual_size);
        assert_eq!(sizes, [1, 2, 2, 3, 3, 4, 5, 6]);
    }

    #[test]
    fn a_list_has_every_rank_once() {
        let text = "# the columns\n1,3 5\n\n 0 2 4 # the others\n6-7\n";
        let groups = from_text(text, 8).unwrap();
        assert_eq!(groups, Groups::new(vec![2, 1, 2, 1, 2, 1, 3, 3]));
        assert_eq!(from_text("0", 1).unwrap(), Groups::one(1));
    }

    #[test]
    fn a_list_that_cannot_be_used_says_where() {
        let error = |text: &str| from_text(text, 4).unwrap_err();
        for (text, line, reason) in [
            ("0 1\n2 x", 2, "`x` is no rank"),
            ("0 1\n2 -3", 2, "`-3` is no rank"),
            ("0 1\n\n3-2", 3, "`3-2` is no rank"),
            ("0-4", 1, "there is no rank 4: the job has ranks 0 to 3"),
            ("0 1\n2 3 1", 2, "rank 1 is in line 1 already"),
            ("0 0", 1, "rank 0 is in line 1 already"),
            ("0 1", 0, "rank 2 (and others) is in no group: add a line `2 3`"),
            ("", 0, "rank 0 (and others) is in no group"),
            ("0\n+1", 2, "`+1` is no rank"),
            ("99999999999999999999999", 1, "is no rank"),
        ] {
            let error = error(text);
            assert_eq!(error.line, line, "{text:?}: {error:?}");
            assert!(error.reason.contains(reason), "{text:?}: {error:?}");
        }
    }
}
