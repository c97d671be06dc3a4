//! Which rank takes the next image, where ranks take turns: the policies of MPICH-V2's checkpoint scheduler (Bouteiller
//! 2006, §III.C). Callers pass the time in; this module measures and asks nothing.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::time::Duration;

use crate::random::splitmix;

/// The order in which ranks take images.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Each at its own interval, whatever the others do.
    Periodic,
    /// One after another.
    RoundRobin,
    /// Any, each as likely as the others; a seed gives the same choices again.
    Random { seed: u64 },
    /// The one whose image lets senders forget most of their logs.
    MostLog,
}

/// The known sizes of the logs, for [`Order::MostLog`].
#[derive(Debug, PartialEq, Eq)]
enum Logs {
    Unknown,
    Asked,
    /// Bytes that an image of each rank frees.
    Known(Vec<u64>),
}

/// The turns of the ranks.
#[derive(Debug)]
pub struct Turns {
    order: Order,
    /// When the next one is, since the start of the job.
    due: Duration,
    /// The rank of the last turn.
    last: Option<usize>,
    /// Ranks that could not have an image since the last success: they are passed over while there are others.
    refused: BTreeSet<usize>,
    /// See [`splitmix`].
    random: u64,
    logs: Logs,
}

impl Turns {
    /// None where ranks do not take turns.
    pub fn new(order: Order, first: Duration) -> Option<Turns> {
        let random = match order {
            Order::Periodic => return None,
            Order::Random { seed } => seed,
            Order::RoundRobin | Order::MostLog => 0,
        };
        Some(Turns {
            order,
            due: first,
            last: None,
            refused: BTreeSet::new(),
            random,
            logs: Logs::Unknown,
        })
    }

    /// When to look again, unless an answer is awaited.
    pub fn next_time(&self) -> Option<Duration> {
        (self.logs != Logs::Asked).then_some(self.due)
    }

    /// Whether the agent must report how much each image frees; true once for each turn.
    pub fn wants_logs(&mut self, now: Duration) -> bool {
        let wants = self.order == Order::MostLog && self.due <= now && self.logs == Logs::Unknown;
        if wants {
            self.logs = Logs::Asked;
        }
        wants
    }

    /// An image of each rank frees so many bytes.
    pub fn logs_are(&mut self, bytes: Vec<u64>) {
        self.logs = Logs::Known(bytes);
    }

    /// The rank whose turn it is at `now`, of these (in order, not empty). The next one is `pause` later.
    pub fn take(&mut self, now: Duration, ranks: &[usize], pause: Duration) -> Option<usize> {
        if self.due > now {
            return None;
        }
        let mut able: Vec<usize> = ranks
            .iter()
            .copied()
            .filter(|rank| !self.refused.contains(rank))
            .collect();
        if able.is_empty() {
            self.refused.clear();
            able = ranks.to_vec();
        }
        let chosen = match self.order {
            Order::Periodic => return None,
            Order::RoundRobin => {
                let behind = |rank: &&usize| self.last.is_none_or(|last| **rank > last);
                able.iter().find(behind).or(able.first()).copied()?
            }
            Order::Random { .. } => able[(splitmix(&mut self.random) % able.len() as u64) as usize],
            Order::MostLog => {
                let Logs::Known(bytes) = &self.logs else { return None };
                let freed = |rank: usize| bytes.get(rank).copied().unwrap_or(0);
                // Of equals the next in order: all ranks get images even where none sends.
                let has_passed = |rank: usize| self.last.is_some_and(|last| rank <= last);
                let key = |rank: &usize| (freed(*rank), Reverse((has_passed(*rank), *rank)));
                let most = able.iter().copied().max_by_key(key)?;
                self.logs = Logs::Unknown;
                most
            }
        };
        self.last = Some(chosen);
        self.due = now + pause;
        Some(chosen)
    }

    /// No rank can have an image before then.
    pub fn postpone(&mut self, until: Duration) {
        self.due = self.due.max(until);
    }

    /// The rank could not have an image: another rank has the next turn, by `soon`.
    pub fn refused(&mut self, rank: usize, soon: Duration) {
        self.refused.insert(rank);
        self.due = self.due.min(soon);
    }

    /// A rank has an image.
    pub fn taken(&mut self) {
        self.refused.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAUSE: Duration = Duration::from_secs(1);

    /// The choices of `turns` among `ranks`, a second apart; `able` says who can have an image.
    fn choices(turns: &mut Turns, count: u32, ranks: &[usize], able: impl Fn(usize) -> bool) -> Vec<usize> {
        let first = turns.due;
        (0..count)
            .filter_map(|turn| {
                let now = first + PAUSE * turn;
                let rank = turns.take(now, ranks, PAUSE)?;
                if able(rank) {
                    turns.taken();
                } else {
                    turns.refused(rank, now + PAUSE);
                }
                Some(rank)
            })
            .collect()
    }

    #[test]
    fn one_after_another_also_when_some_are_gone() {
        let mut turns = Turns::new(Order::RoundRobin, PAUSE).unwrap();
        assert_eq!(turns.take(PAUSE / 2, &[0, 1, 2], PAUSE), None, "not yet");
        assert_eq!(choices(&mut turns, 4, &[0, 1, 2], |_| true), [0, 1, 2, 0]);
        assert_eq!(choices(&mut turns, 3, &[0, 2, 5], |_| true), [2, 5, 0]);
        assert_eq!(turns.next_time(), Some(PAUSE * 8));
    }

    #[test]
    fn whoever_refuses_is_passed_over_while_there_are_others() {
        let mut turns = Turns::new(Order::RoundRobin, PAUSE).unwrap();
        assert_eq!(choices(&mut turns, 3, &[0, 1, 2], |_| false), [0, 1, 2]);
        assert_eq!(
            choices(&mut turns, 1, &[0, 1, 2], |_| true),
            [0],
            "all have refused: from the beginning"
        );
        let mut turns = Turns::new(Order::Random { seed: 5 }, PAUSE).unwrap();
        let chosen = choices(&mut turns, 40, &[0, 1], |rank| rank == 1);
        assert!(chosen.windows(2).all(|pair| pair != [0, 0]), "{chosen:?}");
    }

    #[test]
    fn a_refusal_brings_the_next_turn_forward() {
        let mut turns = Turns::new(Order::RoundRobin, PAUSE).unwrap();
        assert_eq!(turns.take(PAUSE, &[0, 1], PAUSE * 9), Some(0));
        turns.refused(0, PAUSE * 2);
        assert_eq!(turns.take(PAUSE * 2, &[0, 1], PAUSE * 9), Some(1));
    }

    #[test]
    fn random_turns_are_repeatable_and_fair() {
        let order = |seed| Turns::new(Order::Random { seed }, PAUSE).unwrap();
        let draw = |seed| choices(&mut order(seed), 3000, &[0, 1, 2], |_| true);
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
        for rank in 0..3 {
            let times = draw(7).iter().filter(|chosen| **chosen == rank).count();
            assert!((900..1100).contains(&times), "{rank}: {times}");
        }
    }

    #[test]
    fn the_rank_whose_image_frees_most_comes_first() {
        let mut turns = Turns::new(Order::MostLog, PAUSE).unwrap();
        assert!(!turns.wants_logs(PAUSE / 2));
        assert!(turns.wants_logs(PAUSE) && !turns.wants_logs(PAUSE), "asked once");
        assert_eq!((turns.take(PAUSE, &[0, 1, 2], PAUSE), turns.next_time()), (None, None));
        turns.logs_are(vec![5, 700, 6]);
        assert_eq!(turns.take(PAUSE, &[0, 1, 2], PAUSE), Some(1));
        // It could have none: the next best follows, although this rank would still free most.
        turns.refused(1, PAUSE * 2);
        assert!(turns.wants_logs(PAUSE * 2));
        turns.logs_are(vec![5, 700, 6]);
        assert_eq!(turns.take(PAUSE * 2, &[0, 1, 2], PAUSE), Some(2));
        turns.taken();
        assert!(turns.wants_logs(PAUSE * 3));
        turns.logs_are(vec![5, 700]);
        assert_eq!(
            turns.take(PAUSE * 3, &[0, 1, 2], PAUSE),
            Some(1),
            "a rank that has just come frees nothing"
        );
    }

    #[test]
    fn where_nothing_is_to_be_freed_all_have_their_turn() {
        let mut turns = Turns::new(Order::MostLog, PAUSE).unwrap();
        let mut chosen = Vec::new();
        for turn in 1..=6 {
            turns.logs_are(vec![0; 3]);
            chosen.extend(turns.take(PAUSE * turn, &[0, 1, 2], PAUSE));
            turns.taken();
        }
        assert_eq!(chosen, [0, 1, 2, 0, 1, 2]);
    }

    #[test]
    fn without_turns_there_are_none() {
        assert!(Turns::new(Order::Periodic, PAUSE).is_none());
    }
}
