//! Survivors in every order of wishes and failures that matters.

use std::collections::{BTreeMap, VecDeque};

use super::*;
use crate::random::splitmix;

fn wish(number: u32, flag: u32, members: &[Rank]) -> Said {
    Said::Wants(Wish {
        ticket: 100 + number,
        context: 7,
        number,
        flag,
        acknowledged: Vec::new(),
        members: members.to_vec(),
    })
}

fn agreed(news: &[News]) -> Vec<(Rank, u32, Vec<Rank>)> {
    let told = news.iter().filter_map(|news| match news {
        News::Agreed { rank, verdict, .. } => Some((*rank, verdict.flag, verdict.failed.clone())),
        _ => None,
    });
    told.collect()
}

#[test]
fn all_members_learn_the_same() {
    let mut job = Survivors::default();
    assert!(job.hears(0, wish(0, 0b110, &[0, 1, 2])).is_empty());
    assert!(job.hears(2, wish(0, 0b011, &[0, 1, 2])).is_empty());
    let news = job.hears(1, wish(0, 0b111, &[0, 1, 2]));
    assert_eq!(agreed(&news), [(0, 2, vec![]), (2, 2, vec![]), (1, 2, vec![])]);
}

fn ends(news: &[News]) -> Vec<Rank> {
    let ends = news.iter().filter_map(|news| match news {
        News::Ends { rank } => Some(*rank),
        _ => None,
    });
    ends.collect()
}

#[test]
fn newcomers_begin_together_and_with_the_rank_that_spawned_them() {
    let begun = || {
        let mut job = Survivors::default();
        job.hears(0, Said::Joined);
        job.hears(1, Said::Joined);
        job.spawned(1, 2..5);
        job.hears(3, Said::Joined);
        job
    };
    let mut job = begun();
    assert!(job.can_do_without(2), "it has not begun, and is no loss");
    assert_eq!(ends(&job.failed(&[2], 137)), [4]);
    assert_eq!(ends(&job.failed(&[4], 137)), []);
    let mut job = begun();
    assert_eq!(
        ends(&job.failed(&[3], 137)),
        [],
        "it had begun: the others do not wait for it"
    );
    assert_eq!(ends(&job.failed(&[0], 137)), []);
    assert_eq!(ends(&job.failed(&[1], 137)), [2, 4]);
}

#[test]
fn a_failed_spawn_has_an_answer_when_the_newcomers_have_ended() {
    let mut job = Survivors::default();
    job.spawned(0, 2..4);
    job.spawned(1, 4..5);
    job.hears(3, Said::Joined);
    let news = job.hears(0, Said::Abandons { ticket: 9 });
    assert_eq!((ends(&news), agreed(&news)), (vec![2], vec![]));
    let news = job.failed(&[2], 137);
    let answers = |news: &News| matches!(news, News::Agreed { rank: 0, ticket: 9, .. });
    assert_eq!(news.iter().filter(|news| answers(news)).count(), 1);
    let none_left = job.hears(0, Said::Abandons { ticket: 10 });
    assert!(matches!(
        none_left[..],
        [News::Agreed {
            rank: 0,
            ticket: 10,
            ..
        }]
    ));
}

#[test]
fn whoever_starts_others_waits_for_newcomers_of_a_rank_that_is_gone() {
    let mut job = Survivors::default();
    job.spawned(1, 3..5);
    assert_eq!(ends(&job.failed(&[1], 137)), [3, 4]);
    let news = job.hears(0, Said::Abandons { ticket: 7 });
    assert_eq!(
        (ends(&news), agreed(&news)),
        (vec![], vec![]),
        "they are being killed already"
    );
    assert_eq!(agreed(&job.failed(&[4], 137)), []);
    let answers = |news: &News| matches!(news, News::Agreed { rank: 0, ticket: 7, .. });
    assert!(job.failed(&[3], 137).iter().any(answers));
}

#[test]
fn newcomers_of_a_failed_attempt_do_not_take_part_in_the_next() {
    let mut job = Survivors::default();
    job.spawned(0, 2..3);
    // This one has got no further than the agreement, which the survivors did not come to.
    job.hears(2, wish(1, 1, &[0, 1, 2]));
    job.failed(&[2], 137);
    job.spawned(0, 3..4);
    for rank in [3, 0] {
        assert_eq!(agreed(&job.hears(rank, wish(1, 1, &[0, 1, 3]))), []);
    }
    let all = agreed(&job.hears(1, wish(1, 1, &[0, 1, 3])));
    assert_eq!(all, [3, 0, 1].map(|rank| (rank, 1, vec![])));
}

#[test]
fn a_place_is_that_of_the_first_one_in_it() {
    let mut job = Survivors::default();
    job.replaced(4, &[1, 2]);
    job.replaced(6, &[4]);
    assert_eq!([1, 4, 5, 6, 7].map(|rank| job.place(rank)), [1, 1, 2, 1, 7]);
}

#[test]
fn the_death_of_the_last_one_decides() {
    let mut job = Survivors::default();
    job.hears(0, wish(0, 5, &[0, 1, 2]));
    job.hears(1, wish(0, 7, &[0, 1, 2]));
    let news = job.failed(&[2], 137);
    assert_eq!(
        news[0],
        News::Failed {
            rank: 2,
            number: 1,
            code: 137,
            round: 1
        }
    );
    assert_eq!(agreed(&news), [(0, 5, vec![2]), (1, 5, vec![2])]);
    assert!(job.failed(&[2], 137).is_empty(), "a failure is told once");
}

#[test]
fn what_a_member_wanted_before_its_death_counts_and_it_is_told_nothing() {
    let mut job = Survivors::default();
    job.hears(1, wish(0, 1, &[0, 1]));
    job.failed(&[1], 137);
    assert_eq!(agreed(&job.hears(0, wish(0, 3, &[0, 1]))), [(0, 1, vec![1])]);
    assert!(
        job.hears(1, wish(1, 3, &[0, 1])).is_empty(),
        "last words that come late"
    );
}

#[test]
fn a_member_that_has_finished_is_not_waited_for() {
    let mut job = Survivors::default();
    job.hears(0, wish(0, 3, &[0, 1]));
    assert_eq!(agreed(&job.finished(1)), [(0, 3, vec![1])]);
    assert_eq!(job.failures(), 0);
}

#[test]
fn agreements_are_told_apart() {
    let mut job = Survivors::default();
    // Two communicators with one number, and the next agreement of the first.
    job.hears(0, wish(0, 1, &[0, 1]));
    job.hears(2, wish(0, 2, &[2, 3]));
    job.hears(1, wish(1, 4, &[0, 1]));
    assert_eq!(
        agreed(&job.hears(3, wish(0, 2, &[3, 2]))),
        [(2, 2, vec![]), (3, 2, vec![])]
    );
    assert_eq!(
        agreed(&job.hears(1, wish(0, 1, &[0, 1]))),
        [(0, 1, vec![]), (1, 1, vec![])]
    );
    assert_eq!(
        agreed(&job.hears(0, wish(1, 4, &[0, 1]))),
        [(1, 4, vec![]), (0, 4, vec![])]
    );
    // The number may come again later.
    assert!(job.hears(0, wish(0, 8, &[0, 1])).is_empty());
}

#[test]
fn a_failure_is_acknowledged_if_all_have_acknowledged_it() {
    for (acknowledged, expected) in [(vec![2], true), (vec![], false)] {
        let mut job = Survivors::default();
        job.failed(&[2], 137);
        let wish = |acknowledged| {
            Said::Wants(Wish {
                ticket: 0,
                context: 7,
                number: 0,
                flag: 1,
                acknowledged,
                members: vec![0, 1, 2],
            })
        };
        job.hears(0, wish(vec![2]));
        let news = job.hears(1, wish(acknowledged));
        let all = news.iter().all(|news| match news {
            News::Agreed { verdict, .. } => verdict.is_acknowledged == expected,
            _ => false,
        });
        assert!(all && news.len() == 2);
    }
}

#[test]
fn revocation_reaches_all_members_that_live() {
    let mut job = Survivors::default();
    job.failed(&[3], 137);
    let members = vec![0, 3, 4];
    let news = job.hears(4, Said::Revokes { key: 9, members });
    let ranks = vec![0, 4];
    let revoked = News::Revoked {
        key: 9,
        ranks,
        round: 2,
    };
    assert_eq!(news, [revoked.clone(), News::Settled(Box::new(revoked))]);
}

#[test]
fn others_can_do_without_a_rank_that_has_joined() {
    let mut job = Survivors::default();
    assert!(!job.can_do_without(1));
    job.hears(1, Said::Joined);
    assert!(job.can_do_without(1));
}

struct Draws(u64);

impl Draws {
    fn below(&mut self, bound: u64) -> u64 {
        splitmix(&mut self.0) % bound
    }
}

/// A job of random ranks, each of which takes part in one agreement after the other, on all ranks or on a part of them.
struct Job {
    draws: Draws,
    survivors: Survivors,
    /// What each rank has said and the dispatcher has not heard.
    said: Vec<VecDeque<Wish>>,
    /// The wish that each rank waits for.
    waits: Vec<Option<Wish>>,
    number: Vec<u32>,
    dead: BTreeSet<Rank>,
    verdicts: BTreeMap<(u32, u32), Verdict>,
    heard: BTreeMap<(u32, u32), Vec<(Rank, Wish)>>,
}

impl Job {
    const ROUNDS: u32 = 6;

    fn new(seed: u64) -> Job {
        let mut draws = Draws(seed);
        let ranks = 2 + draws.below(5) as usize;
        Job {
            draws,
            survivors: Survivors::default(),
            said: vec![VecDeque::new(); ranks],
            waits: vec![None; ranks],
            number: vec![0; ranks],
            dead: BTreeSet::new(),
            verdicts: BTreeMap::new(),
            heard: BTreeMap::new(),
        }
    }

    /// Even agreements are of all ranks, odd ones of those with the same parity.
    fn members(&self, rank: Rank, number: u32) -> Vec<Rank> {
        let all = 0..self.said.len() as Rank;
        all.filter(|other| number.is_multiple_of(2) || other % 2 == rank % 2)
            .collect()
    }

    /// One thing happens. False: nothing can any more.
    fn step(&mut self) -> bool {
        let all = 0..self.said.len() as Rank;
        let living: Vec<Rank> = all.clone().filter(|rank| !self.dead.contains(rank)).collect();
        let begins =
            |job: &Job, rank: Rank| job.waits[rank as usize].is_none() && job.number[rank as usize] < Job::ROUNDS;
        let ready: Vec<Rank> = living.iter().copied().filter(|rank| begins(self, *rank)).collect();
        let speaking: Vec<Rank> = all.filter(|rank| !self.said[*rank as usize].is_empty()).collect();
        match self.draws.below(20) {
            0 if living.len() > 1 => {
                let rank = living[self.draws.below(living.len() as u64) as usize];
                self.die(rank);
            }
            choice if !ready.is_empty() && (choice < 10 || speaking.is_empty()) => {
                let rank = ready[self.draws.below(ready.len() as u64) as usize];
                self.wants(rank);
            }
            _ if !speaking.is_empty() => {
                let rank = speaking[self.draws.below(speaking.len() as u64) as usize];
                self.hears(rank);
            }
            _ => return !ready.is_empty(),
        }
        true
    }

    fn wants(&mut self, rank: Rank) {
        let number = self.number[rank as usize];
        let members = self.members(rank, number);
        let draws = &mut self.draws;
        let dead = self.dead.iter().copied();
        let wish = Wish {
            ticket: 100 + number,
            context: 1 + (number % 2) * (1 + rank % 2),
            number,
            flag: !(1 << draws.below(8)),
            acknowledged: dead.filter(|_| draws.below(2) == 0).collect(),
            members,
        };
        self.number[rank as usize] += 1;
        self.waits[rank as usize] = Some(wish.clone());
        self.said[rank as usize].push_back(wish);
    }

    fn hears(&mut self, rank: Rank) {
        let Some(wish) = self.said[rank as usize].pop_front() else {
            return;
        };
        let key = (wish.context, wish.number);
        if !self.dead.contains(&rank) {
            self.heard.entry(key).or_default().push((rank, wish.clone()));
        }
        let news = self.survivors.hears(rank, Said::Wants(wish));
        self.take(news);
    }

    /// What it has said before is heard, or a part of it; then its end. The rest may come even later.
    fn die(&mut self, rank: Rank) {
        let kept = self.draws.below(self.said[rank as usize].len() as u64 + 1) as usize;
        for _ in 0..kept {
            self.hears(rank);
        }
        if self.draws.below(2) == 0 {
            self.said[rank as usize].clear();
        }
        self.dead.insert(rank);
        let news = self.survivors.failed(&[rank], 137);
        assert!(matches!(news[0], News::Failed { rank: of, .. } if of == rank));
        self.take(news);
    }

    fn take(&mut self, news: Vec<News>) {
        for news in news {
            let News::Agreed { rank, ticket, verdict } = news else {
                continue;
            };
            let wish = self.waits[rank as usize].take();
            let wish = wish.unwrap_or_else(|| panic!("rank {rank} waits for nothing"));
            assert_eq!(ticket, wish.ticket);
            let key = (wish.context, wish.number);
            let first = self.verdicts.entry(key).or_insert_with(|| verdict.clone());
            assert_eq!(*first, verdict, "two verdicts of agreement {key:?}");
            let heard = &self.heard[&key];
            let flag = heard.iter().fold(u32::MAX, |flag, (_, wish)| flag & wish.flag);
            assert_eq!(verdict.flag, flag, "a wish is left out, or one counts twice");
            for member in &wish.members {
                let has_come = heard.iter().any(|(rank, _)| rank == member);
                let is_failed = verdict.failed.contains(member);
                assert!(has_come || is_failed, "{key:?} does not wait for {member}");
                assert!(!is_failed || self.dead.contains(member), "{member} lives");
            }
            let dead_before = wish.acknowledged.iter().filter(|rank| wish.members.contains(rank));
            assert!(dead_before.clone().all(|rank| verdict.failed.contains(rank)));
            assert!(!verdict.is_acknowledged || verdict.failed.iter().all(|rank| wish.acknowledged.contains(rank)));
        }
    }
}

#[test]
fn agreements_hold_in_random_orders() {
    for seed in 0..3_000 {
        let mut job = Job::new(seed);
        while job.step() {}
        let waiting = job.waits.iter().enumerate();
        let waiting = waiting.filter(|(rank, wish)| wish.is_some() && !job.dead.contains(&(*rank as Rank)));
        assert_eq!(waiting.count(), 0, "seed {seed}: somebody waits for ever");
        let left = (0..job.said.len() as Rank).filter(|rank| !job.dead.contains(rank));
        left.for_each(|rank| {
            assert_eq!(
                job.number[rank as usize],
                Job::ROUNDS,
                "seed {seed}: all agreements end"
            )
        });
    }
}

fn settled(news: &[News]) -> Vec<News> {
    let settled = news.iter().filter_map(|news| match news {
        News::Settled(known) => Some((**known).clone()),
        _ => None,
    });
    settled.collect()
}

#[test]
fn nothing_ends_before_all_nodes_know_why() {
    let mut job = Survivors::on(vec![0, 1, 1, 2]);
    let first = job.failed(&[1], 137);
    assert_eq!(settled(&first), []);
    let revoked = job.hears(
        0,
        Said::Revokes {
            key: 9,
            members: vec![0, 1, 3],
        },
    );
    assert!(matches!(&revoked[..], [News::Revoked { round: 2, ranks, .. }] if *ranks == [0, 3]));
    // Each is settled alone, whichever is known first.
    for (node, round) in [(0, 1), (2, 2), (1, 2), (1, 1), (1, 1)] {
        assert_eq!(job.is_known(node, round), []);
    }
    assert_eq!(settled(&job.is_known(0, 2)), revoked);
    assert_eq!(settled(&job.is_known(2, 1)), first);
    assert_eq!(job.is_known(2, 1), [], "once");
}

#[test]
fn a_lost_node_is_not_waited_for_and_its_ranks_fail_together() {
    let mut job = Survivors::on(vec![0, 1, 2, 2]);
    for rank in 0..3 {
        job.hears(rank, wish(1, 7, &[0, 1, 2, 3]));
    }
    job.failed(&[0], 137);
    assert_eq!(job.is_known(1, 1), []);
    let news = job.failed(&[2, 3], 137);
    assert_eq!(
        agreed(&news),
        [(1, 7, vec![0, 2, 3])],
        "nobody sees one of them failed alone"
    );
    // There is one node left.
    assert_eq!(settled(&news).len(), 3);
}

fn closes(number: u32, ticket: u32, is_good: bool, members: &[Rank]) -> Said {
    Said::Closes(Closing {
        ticket,
        context: 3,
        number,
        is_good,
        of_job: true,
        absorbed: vec![9],
        members: members.to_vec(),
    })
}

/// The tickets that are answered, with the answers.
fn closed(news: &[News]) -> Vec<(Rank, u32, u32)> {
    let closed = news.iter().filter_map(|news| match news {
        News::Agreed { rank, ticket, verdict } => Some((*rank, *ticket, verdict.flag)),
        _ => None,
    });
    closed.collect()
}

#[test]
fn a_call_ends_for_all_or_for_none() {
    let mut job = Survivors::on(vec![0; 10]);
    let all = [0, 1, 2];
    job.failed(&[9], 1);
    assert_eq!(closed(&job.hears(0, closes(1, 7, true, &all))), []);
    assert_eq!(closed(&job.hears(1, closes(1, 8, true, &all))), []);
    assert_eq!(
        closed(&job.hears(2, closes(1, 9, true, &all))),
        [(0, 7, 1), (1, 8, 1), (2, 9, 1)]
    );
    // It has not ended well for one.
    job.hears(0, closes(2, 1, true, &all));
    job.hears(1, closes(2, 2, false, &all));
    assert_eq!(
        closed(&job.hears(2, closes(2, 3, true, &all))),
        [(0, 1, 0), (1, 2, 0), (2, 3, 0)]
    );
    // One never comes, as another rank of the job has failed. Nor can the others end it later.
    job.hears(0, closes(3, 4, true, &all));
    assert_eq!(closed(&job.failed(&[5], 1)), [(0, 4, 0)]);
    assert_eq!(closed(&job.hears(1, closes(3, 5, true, &all))), [(1, 5, 0)]);
    assert_eq!(closed(&job.hears(2, closes(3, 6, true, &all))), [(2, 6, 0)]);
}

/// Members come to the end of calls and die in any order: those that live and have an answer have the same.
#[test]
fn members_never_differ_about_a_call() {
    let mut seed = 11;
    let mut random = |end: u64| crate::random::splitmix(&mut seed) % end;
    for _ in 0..3000 {
        let members: Vec<Rank> = (0..2 + random(4) as Rank).collect();
        let mut job = Survivors::on(vec![0; 9]);
        let mut next = vec![1_u32; members.len()];
        let mut answers: std::collections::BTreeMap<u32, BTreeSet<u32>> = Default::default();
        let mut dead = BTreeSet::new();
        for _ in 0..30 {
            let rank = members[random(members.len() as u64) as usize];
            let number = next[rank as usize];
            let news = match random(12) {
                0 => {
                    dead.insert(rank);
                    job.failed(&[rank], 9)
                }
                // It waits for an answer, or is dead.
                _ if dead.contains(&rank) || number >> 16 != 0 => continue,
                _ => {
                    next[rank as usize] |= 1 << 16;
                    job.hears(
                        rank,
                        closes(number, number, dead.is_empty() || random(2) == 0, &members),
                    )
                }
            };
            for (rank, number, flag) in closed(&news) {
                answers.entry(number).or_default().insert(flag);
                next[rank as usize] = number + 1;
            }
        }
        assert!(answers.values().all(|flags| flags.len() == 1), "{answers:?}");
        let waits = |rank: &Rank| next[*rank as usize] >> 16 != 0 && !dead.contains(rank);
        assert!(dead.is_empty() || !members.iter().any(waits));
    }
}
