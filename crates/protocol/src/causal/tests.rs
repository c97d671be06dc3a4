use super::*;
use crate::EventLogger;

const ALL: [Reduction; 3] = [Reduction::Vcausal, Reduction::Manetho, Reduction::LogOn];

/// Ranks whose messages are piggybacked and delivered at once.
struct Job {
    ranks: Vec<Causal>,
    sent: Vec<Vec<u64>>,
    clocks: Vec<u64>,
}

impl Job {
    fn new(size: usize, reduction: Reduction) -> Self {
        let ranks = (0..size as Rank).map(|rank| Causal::new(rank, size, reduction, false));
        Self {
            ranks: ranks.collect(),
            sent: vec![vec![0; size]; size],
            clocks: vec![0; size],
        }
    }

    /// There are more ranks.
    fn grow(&mut self, size: usize, reduction: Reduction) {
        self.ranks.iter_mut().for_each(|rank| rank.grow(size));
        let new = (self.ranks.len()..size).map(|rank| Causal::new(rank as Rank, size, reduction, false));
        self.ranks.extend(new.collect::<Vec<_>>());
        self.sent.iter_mut().for_each(|sent| sent.resize(size, 0));
        self.sent.resize_with(size, || vec![0; size]);
        self.clocks.resize(size, 0);
    }

    fn message(&mut self, from: Rank, to: Rank) -> Vec<(Rank, u64)> {
        let piggyback = self.ranks[from as usize].piggyback(to);
        let antecedent = self.clocks[from as usize];
        self.sent[from as usize][to as usize] += 1;
        self.clocks[to as usize] += 1;
        let determinant = Determinant {
            receiver: to,
            rclock: self.clocks[to as usize],
            source: from,
            ssn: self.sent[from as usize][to as usize],
            polls: 1,
        };
        let receiver = &mut self.ranks[to as usize];
        receiver.absorb(from, &piggyback).unwrap();
        receiver.deliver(&determinant, antecedent).unwrap();
        piggyback
            .events
            .iter()
            .map(|event| (event.receiver, event.rclock))
            .collect()
    }
}

/// Bouteiller 2005, Figure 3 in small: 3 has never exchanged anything with 2, and the graph says what 2 knows.
#[test]
fn the_graph_leaves_out_what_is_in_the_past_of_the_receivers_last_event() {
    for reduction in ALL {
        let mut job = Job::new(4, reduction);
        job.message(0, 1);
        job.message(1, 2);
        job.message(2, 0);
        assert_eq!(job.message(0, 3).len(), 3);
        let carried = job.message(3, 2);
        let expected: &[(Rank, u64)] = match reduction {
            Reduction::Vcausal => &[(0, 1), (1, 1), (3, 1)],
            Reduction::Manetho | Reduction::LogOn => &[(0, 1), (3, 1)],
        };
        assert_eq!(carried, expected, "{reduction:?}");
        assert!(job.message(3, 2).is_empty(), "{reduction:?} says it once");
    }
}

#[test]
fn a_partial_order_has_no_event_before_its_past() {
    let mut job = Job::new(5, Reduction::LogOn);
    let mut draw = 1u64;
    for _ in 0..300 {
        draw = draw
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let (from, to) = ((draw >> 33) % 5, (draw >> 43) % 5);
        if from != to {
            job.message(from as Rank, to as Rank);
        }
    }
    let events = job.ranks[0].everything(1).events;
    assert!(events.len() > 100);
    let mut seen = [0; 5];
    for event in events {
        assert!(event.antecedent <= seen[event.record.source as usize]);
        assert_eq!(event.rclock, seen[event.receiver as usize] + 1);
        seen[event.receiver as usize] = event.rclock;
    }
}

#[test]
fn what_is_acknowledged_is_forgotten_and_not_carried() {
    for reduction in ALL {
        let mut job = Job::new(3, reduction);
        job.message(0, 1);
        job.message(0, 1);
        job.ranks[1].acknowledge(&[0, 1, 0]);
        assert_eq!(job.message(1, 2), [(1, 2)]);
        assert_eq!(job.ranks[2].stable(), [0, 1, 0], "what is left out is stable");
        job.ranks[1].covered(1, 2);
        assert_eq!(job.ranks[1].kept(), 0);
    }
}

#[test]
fn a_delivery_that_this_life_has_not_made_is_an_orphan() {
    let mut job = Job::new(3, Reduction::Manetho);
    job.message(0, 1);
    job.message(1, 2);
    let mut anew = Causal::new(1, 3, Reduction::Manetho, false);
    job.ranks[2].connected(1);
    let known = job.ranks[2].piggyback(1);
    let orphan = Error::Orphan {
        rank: 1,
        from: 2,
        rclock: 1,
        made: 0,
    };
    assert_eq!(anew.absorb(2, &known), Err(orphan));
}

#[test]
fn the_event_logger_stores_in_causal_order() {
    let event = |receiver, rclock, source, antecedent| Event {
        receiver,
        rclock,
        record: Recorded { source, polls: 1 },
        antecedent,
    };
    let mut logger = EventLogger::new(3);
    (0..3).for_each(|rank| logger.admit(rank, 1, Some(0)).unwrap());
    let depends = [event(1, 1, 0, 2), event(1, 2, 2, 0)];
    assert_eq!(logger.log_events(1, 1, 1, &depends).unwrap().rclock, 0);
    assert_eq!(logger.query(1, 0), Ok(&[][..]));
    logger.log_events(0, 1, 1, &[event(0, 1, 2, 0)]).unwrap();
    assert_eq!(logger.stable_clocks().collect::<Vec<_>>(), [1, 0, 0]);
    logger.log_events(0, 1, 2, &[event(0, 2, 2, 0)]).unwrap();
    assert_eq!(logger.stable_clocks().collect::<Vec<_>>(), [2, 2, 0]);
    let waits = [event(1, 3, 2, 7)];
    assert_eq!(logger.log_events(1, 1, 3, &waits).unwrap().rclock, 2);
    logger.admit(1, 2, None).unwrap();
    logger.learn(&[0, 0, 7]);
    assert_eq!(
        logger.query(1, 0).unwrap().len(),
        2,
        "a later life does not find what waited"
    );
}

/// Two ranks are lost at once; a third knows what both need.
#[test]
fn lives_that_collect_wait_for_one_another_but_not_for_ever() {
    let mut job = Job::new(3, Reduction::LogOn);
    job.message(0, 1);
    job.message(1, 0);
    job.message(0, 2);
    let anew = |rank| Collection::new(Causal::new(rank, 3, Reduction::LogOn, false), 2, false);
    let mut lives = [anew(0), anew(1)];
    for (this, peer) in [(0, 1), (1, 0)] {
        lives[this].asked(peer, 2);
        job.ranks[2].connected(this as Rank);
        let answer = Answer {
            complete: true,
            lives: vec![2, 2, 1],
            known: job.ranks[2].everything(this as Rank),
        };
        lives[this].answer(2, 1, &answer).unwrap();
        assert!(!lives[this].is_over());
    }
    let first = lives[0].tell(1);
    assert!(!first.complete, "nothing has been heard of 1");
    lives[1].answer(0, 2, &first).unwrap();
    assert_eq!(lives[1].due(), [0]);
    let second = lives[1].tell(0);
    assert!(second.complete);
    lives[0].answer(1, 2, &second).unwrap();
    assert!(lives[0].is_over());
    assert_eq!(lives[0].due(), [1]);
    let third = lives[0].tell(1);
    lives[1].answer(0, 2, &third).unwrap();
    assert!(lives[1].is_over());
    assert_eq!(lives[0].record(0).map(|record| record.len()), Some(1));
    assert_eq!(lives[1].record(0), Some(vec![Recorded { source: 0, polls: 1 }]));
    let mut asked = lives[1].clone();
    asked.asked(0, 3);
    assert!(!asked.is_over(), "what a life says does not speak for the next");
    let hearsay = Answer {
        lives: vec![3, 2, 1],
        complete: true,
        known: Piggyback::default(),
    };
    lives[1].answer(2, 1, &hearsay).unwrap();
    assert!(!lives[1].is_over(), "nor when another has heard of the next");
}

#[test]
fn ranks_that_come_later_are_as_if_they_had_done_nothing() {
    for reduction in ALL {
        let (mut grown, mut whole) = (Job::new(2, reduction), Job::new(5, reduction));
        let mut random = 7u64;
        for size in [2, 3, 5] {
            grown.grow(size, reduction);
            for _ in 0..60 {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let (from, to) = ((random >> 33) % size as u64, (random >> 45) % size as u64);
                let (from, to) = (from as Rank, to as Rank);
                assert_eq!(grown.message(from, to), whole.message(from, to), "{reduction:?} {size}");
            }
            let clocks = vec![5; size];
            grown.ranks[0].acknowledge(&clocks);
            whole.ranks[0].learn_stable((0..).zip(clocks));
        }
    }
    let mut spreads = Causal::new(0, 1, Reduction::LogOn, true);
    spreads.grow(3);
    spreads.learn_stable([(2, 4)]);
    assert_eq!(spreads.piggyback(1).stable, [(2, 4)]);
    assert_eq!(spreads.piggyback(1).stable, []);
}
