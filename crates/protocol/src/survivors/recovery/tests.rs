//! Answers of later lives, and what is held back.

use crate::Rank;
use crate::survivors::{News, Said, Survivors, Wish};

fn wants(ticket: u32, members: &[Rank]) -> Said {
    Said::Wants(Wish {
        ticket,
        context: 1,
        number: ticket,
        flag: 1,
        acknowledged: Vec::new(),
        members: members.to_vec(),
    })
}

fn job() -> Survivors {
    let mut job = Survivors::on(vec![0; 3]).recovering();
    (0..3).for_each(|rank| assert!(job.hears(rank, Said::Joined).is_empty()));
    job
}

/// Ranks that get an answer, by tickets.
fn answered(news: &[News]) -> Vec<(Rank, u32)> {
    let agreed = news.iter().filter_map(|news| match news {
        News::Agreed { rank, ticket, .. } => Some((*rank, *ticket)),
        _ => None,
    });
    agreed.collect()
}

fn told(news: &[News]) -> Vec<Rank> {
    let failed = news.iter().filter_map(|news| match news {
        News::Failed { rank, .. } => Some(*rank),
        _ => None,
    });
    failed.collect()
}

fn repeated(news: &[News]) -> Option<(bool, Option<u64>)> {
    news.iter().find_map(|news| match news {
        News::Repeated { is_known, look, .. } => Some((*is_known, *look)),
        _ => None,
    })
}

#[test]
fn a_later_life_gets_the_same_answer_at_the_same_look() {
    let mut job = job();
    job.hears(0, wants(0, &[0, 1]));
    assert_eq!(answered(&job.hears(1, wants(0, &[0, 1]))), [(0, 0), (1, 0)]);
    job.hears(0, Said::Took { ticket: 0, look: 5 });
    job.begins_again(0);
    let news = job.hears(0, Said::Repeats { ticket: 0 });
    assert_eq!(
        (repeated(&news), answered(&news)),
        (Some((true, Some(5))), vec![(0, 0)])
    );
    // It was killed before it could say this.
    let news = job.hears(0, Said::Repeats { ticket: 1 });
    assert_eq!((repeated(&news), answered(&news)), (Some((false, None)), vec![]));
    job.begins_again(0);
    let news = job.hears(0, Said::Repeats { ticket: 0 });
    assert_eq!(repeated(&news), Some((true, Some(5))), "also the life after that");
}

#[test]
fn an_answer_waits_until_a_life_asks_for_it() {
    let mut job = job();
    job.hears(0, wants(0, &[0, 1]));
    job.begins_again(0);
    assert_eq!(answered(&job.hears(1, wants(0, &[0, 1]))), [(1, 0)]);
    let news = job.hears(0, Said::Repeats { ticket: 0 });
    assert_eq!((repeated(&news), answered(&news)), (Some((true, None)), vec![(0, 0)]));
}

#[test]
fn a_failure_is_told_when_all_have_caught_up() {
    let mut job = job();
    job.hears(0, wants(0, &[0, 1]));
    job.begins_again(0);
    assert_eq!(told(&job.failed(&[2], 137)), []);
    assert!(!job.may_recover() && job.is_repeating(0));
    assert_eq!(told(&job.caught_up(0)), [], "its output may be missing");
    assert_eq!(told(&job.has_printed(0)), [], "it has not said all again");
    let news = job.hears(0, Said::Repeats { ticket: 0 });
    assert_eq!((repeated(&news), told(&news)), (Some((true, None)), vec![2]));
    assert!(!job.is_repeating(0));
    assert_eq!(told(&job.failed(&[1], 137)), [1], "now nothing is held back");
}

#[test]
fn output_of_a_former_life_is_not_that_of_this_one() {
    let mut job = job();
    job.begins_again(0);
    job.has_printed(0);
    job.caught_up(0);
    assert_eq!(told(&job.failed(&[2], 137)), []);
    assert_eq!(told(&job.has_printed(0)), [2]);
}

#[test]
fn the_end_of_the_last_that_repeats_tells_of_all_failures_in_order() {
    let mut job = job();
    job.begins_again(0);
    assert_eq!(told(&job.failed(&[2], 137)), []);
    assert_eq!(told(&job.failed(&[0], 137)), [2, 0]);
    let mut job = self::job();
    job.begins_again(0);
    job.failed(&[2], 137);
    assert_eq!(told(&job.finished(0)), [2]);
}

#[test]
fn a_revocation_is_held_back_and_ends_recovery() {
    let mut job = job();
    job.begins_again(0);
    let revokes = Said::Revokes {
        key: 9,
        members: vec![0, 1, 2],
    };
    assert!(job.hears(1, revokes).is_empty());
    assert!(!job.may_recover());
    job.caught_up(0);
    let news = job.has_printed(0);
    assert!(matches!(&news[..], [News::Revoked { key: 9, .. }, News::Settled(_)]));
}

#[test]
fn nobody_recovers_after_a_spawn_or_where_nothing_can_be_repeated() {
    let mut spawns = job();
    spawns.spawned(0, 3..4);
    assert!(!spawns.may_recover());
    let mut threads = job();
    threads.cannot_repeat();
    assert!(!threads.may_recover());
    assert!(!Survivors::on(vec![0; 3]).may_recover());
}
