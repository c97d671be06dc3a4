use std::ops::Range;

use super::*;

/// One step of the world below, in ms.
const STEP: u64 = 10;

fn ms(time: u64) -> Duration {
    Duration::from_millis(time)
}

/// A clock: what it shows first, in ms, and how much faster than true time it runs, in thousandths.
#[derive(Debug, Clone, Copy)]
struct Clock {
    first: u64,
    faster: i64,
}

const TRUE: Clock = Clock { first: 0, faster: 0 };

impl Clock {
    fn shows(self, at: u64) -> Duration {
        ms(self.first + (at as i64 * (1000 + self.faster) / 1000) as u64)
    }
}

/// Periods, in ms of true time.
type Times = Vec<Range<u64>>;

fn once(times: Range<u64>) -> Times {
    Times::from([times])
}

fn at(times: &Times, now: u64) -> bool {
    times.iter().any(|times| times.contains(&now))
}

/// A dispatcher and one agent, with clocks and a link of their own.
#[derive(Debug, Clone)]
struct World {
    dispatcher: Clock,
    agent: Clock,
    /// One way, in ms.
    latency: u64,
    /// When the link loses messages, to the dispatcher and from it. Other messages stay in order, and come at the end
    /// of a period in which the link holds them back.
    up_cut: Times,
    down_cut: Times,
    held: Times,
    /// The agent stands still, and the dispatcher.
    stopped: Times,
    paused: Times,
    /// When the job begins. The agent is there before.
    job: u64,
}

/// Among the answers on the link to the agent: the job, and that it is refused.
const JOB: u64 = 0;
const REFUSED: u64 = u64::MAX;

impl Default for World {
    fn default() -> World {
        World {
            dispatcher: TRUE,
            agent: TRUE,
            latency: 10,
            up_cut: Times::new(),
            down_cut: Times::new(),
            held: Times::new(),
            stopped: Times::new(),
            paused: Times::new(),
            job: 0,
        }
    }
}

/// The outcome, in ms of true time.
#[derive(Debug, Default)]
struct Story {
    suspected: Vec<u64>,
    back: Vec<u64>,
    dead: Option<u64>,
    /// The agent has begun its job.
    begun: Option<u64>,
    /// It has stopped its ranks, and they have gone on.
    held: Vec<u64>,
    went_on: Vec<u64>,
    /// It has ended its ranks.
    ended: Option<u64>,
}

impl Story {
    fn is_undisturbed(&self) -> bool {
        self.dead.is_none() && self.held.is_empty() && self.ended.is_none()
    }
}

impl World {
    /// Runs for so many ms.
    fn run(&self, length: u64) -> Story {
        let timing = Timing::default();
        let mut membership = Membership::new(timing);
        let (mut epoch, mut has_job) = (None, false);
        let mut lease = Lease::waiting(timing, self.agent.shows(0));
        let (mut up, mut down) = (VecDeque::new(), VecDeque::new());
        let mut story = Story::default();
        // The dispatcher's clock nearly stands still while it does.
        let (mut own_clock, mut read) = (Duration::ZERO, self.dispatcher.shows(0));
        for now in (0..length).step_by(STEP as usize) {
            let arrives =
                |link: &VecDeque<(u64, u64)>| !at(&self.held, now) && link.front().is_some_and(|(at, _)| *at <= now);
            if !at(&self.stopped, now) && story.ended.is_none() {
                let clock = self.agent.shows(now);
                while arrives(&down) {
                    match down.pop_front() {
                        Some((_, JOB)) => has_job = true,
                        Some((_, REFUSED)) => lease.refused(),
                        answer => answer.into_iter().for_each(|(_, number)| lease.answered(number, clock)),
                    }
                }
                if has_job && story.begun.is_none() && lease.begin(clock) {
                    story.begun = Some(now);
                }
                let is_over = story.begun.is_none() || lease.until() <= clock;
                assert!(story.dead.is_none() || is_over, "it was dead before {now}: {self:?}");
                match lease.poll(clock) {
                    Some(Duty::Hold) => story.held.push(now),
                    Some(Duty::GoOn) => {
                        assert!(story.dead.is_none(), "they go on at {now}, and it is dead: {self:?}");
                        story.went_on.push(now);
                    }
                    Some(Duty::End) => story.ended = Some(now),
                    Some(Duty::Beat { number }) if !at(&self.up_cut, now) => up.push_back((now + self.latency, number)),
                    _ => {}
                }
            }
            if at(&self.paused, now) {
                continue;
            }
            let shown = self.dispatcher.shows(now);
            own_clock += (shown - read).min(timing.lease / 2);
            read = shown;
            let clock = own_clock;
            if epoch.is_none() && now >= self.job {
                epoch = membership.join(0, clock).ok();
                if !at(&self.down_cut, now) {
                    down.push_back((now + self.latency, JOB));
                }
            }
            while arrives(&up) {
                let number = up.pop_front().map_or(0, |(_, number)| number);
                let is_heard = epoch.is_none_or(|epoch| membership.heard(0, epoch, clock).is_ok());
                if !at(&self.down_cut, now) {
                    down.push_back((now + self.latency, if is_heard { number } else { REFUSED }));
                }
            }
            membership.pass(clock);
            while let Some(change) = membership.poll() {
                match change {
                    Change::Suspected { .. } => story.suspected.push(now),
                    Change::Back { .. } => story.back.push(now),
                    Change::Dead { .. } => {
                        story.dead = Some(now);
                        // The ranks of an agent that stands still check this themselves.
                        let is_over = story.begun.is_none() || lease.until() <= self.agent.shows(now);
                        assert!(is_over, "dead at {now}, and its lease lasts: {self:?}");
                    }
                }
            }
        }
        story
    }
}

#[test]
fn a_node_that_is_heard_of_stays() {
    let story = World::default().run(20_000);
    assert!(story.suspected.is_empty() && story.is_undisturbed());
}

#[test]
fn an_agent_that_stands_still_for_two_seconds_lives() {
    let world = World {
        stopped: once(5_000..7_000),
        ..World::default()
    };
    let story = world.run(20_000);
    assert_eq!((story.suspected.len(), story.back.len()), (1, 1));
    assert!((5_900..6_100).contains(&story.suspected[0]) && (7_000..7_100).contains(&story.back[0]));
    assert!(story.is_undisturbed());
}

#[test]
fn an_agent_that_stands_still_for_four_seconds_ends_its_ranks_when_it_is_refused() {
    let world = World {
        stopped: once(5_000..9_100),
        ..World::default()
    };
    let story = world.run(20_000);
    assert_eq!(story.held, [9_100]);
    assert!(story.went_on.is_empty() && story.ended.is_some_and(|ended| ended < 9_200));
    assert!(story.dead.is_some_and(|dead| (8_900..9_100).contains(&dead)));
}

#[test]
fn a_link_that_is_cut_both_ways_stops_the_ranks_before_the_node_is_dead() {
    let cut = once(5_000..u64::MAX);
    let world = World {
        up_cut: cut.clone(),
        down_cut: cut,
        ..World::default()
    };
    let story = world.run(80_000);
    let dead = story.dead.expect("it is silent");
    assert!(
        story.held.len() == 1 && (7_800..8_000).contains(&story.held[0]),
        "{story:?}"
    );
    assert!((8_800..9_000).contains(&dead), "{dead}");
    assert!(story.back.is_empty());
    let ended = story.ended.expect("nobody answers");
    assert!(
        (60_000..60_020).contains(&(ended - story.held[0])),
        "in the end they end"
    );
}

#[test]
fn a_node_that_is_not_heard_any_more_hears_no_answers_either() {
    let world = World {
        up_cut: once(5_000..u64::MAX),
        ..World::default()
    };
    let story = world.run(20_000);
    assert!(story.held[0] < 8_000 && story.dead.is_some_and(|dead| dead > 8_800));
}

#[test]
fn a_node_that_does_not_hear_ends_its_ranks_and_is_dead_a_lease_later() {
    let world = World {
        down_cut: once(5_000..u64::MAX),
        ..World::default()
    };
    let story = world.run(80_000);
    assert!((7_800..8_000).contains(&story.held[0]), "{story:?}");
    let ended = story.ended.expect("no answer comes");
    assert!(
        story
            .dead
            .is_some_and(|dead| (ended + 3_800..ended + 4_100).contains(&dead))
    );
}

#[test]
fn a_link_that_flaps_costs_nobody_his_life() {
    let flaps = vec![1_000..2_900, 3_500..5_400, 6_000..8_500];
    let world = World {
        up_cut: flaps.clone(),
        down_cut: flaps,
        ..World::default()
    };
    let story = world.run(20_000);
    assert!(story.is_undisturbed());
    assert_eq!((story.suspected.len(), story.back.len()), (3, 3));
}

#[test]
fn an_answer_that_comes_late_is_worth_what_its_heartbeat_was() {
    // Everything arrives, 2.5 s late; each answer leaves half a second.
    let world = World {
        latency: 1_250,
        ..World::default()
    };
    assert!(world.run(20_000).is_undisturbed());
    let world = World {
        latency: 1_600,
        ..World::default()
    };
    let story = world.run(80_000);
    assert_eq!(
        (story.held, story.went_on),
        (vec![3_000], vec![]),
        "all answers are worth nothing"
    );
    assert!(story.dead.is_some_and(|dead| dead > 67_000), "{:?}", story.dead);
}

#[test]
fn ranks_wait_for_a_dispatcher_that_pauses() {
    let world = World {
        paused: once(5_000..7_000),
        ..World::default()
    };
    assert!(world.run(20_000).is_undisturbed());
    for pause in [4_500, 20_000, 55_000] {
        let world = World {
            paused: once(5_000..5_000 + pause),
            ..World::default()
        };
        let story = world.run(80_000);
        assert!(story.dead.is_none() && story.ended.is_none(), "{pause}: {story:?}");
        assert!(story.held.len() == 1 && (7_800..8_000).contains(&story.held[0]));
        assert!(story.went_on.len() == 1 && (5_000..5_200).contains(&(story.went_on[0] - pause)));
    }
    let world = World {
        paused: once(5_000..75_000),
        ..World::default()
    };
    let story = world.run(80_000);
    assert!(story.went_on.is_empty() && story.ended.is_some_and(|ended| ended < 68_000));
}

/// Numbers that look random, the same in each run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }

    fn clock(&mut self) -> Clock {
        Clock {
            first: self.below(1_000_000),
            faster: self.below(201) as i64 - 100,
        }
    }

    fn times(&mut self) -> Times {
        let times = (0..self.below(2)).map(|_| {
            let first = self.below(10_000);
            first..first + self.below(5_000)
        });
        times.collect()
    }
}

/// Whatever fails, and with clocks that differ by up to a fifth: [`World::run`] asserts that no dead node has a lease.
#[test]
fn no_dead_node_has_a_lease() {
    let (mut died, mut lived, mut waited, mut held) = (0, 0, 0, 0);
    for seed in 0..600 {
        let mut numbers = Numbers(seed);
        let world = World {
            dispatcher: numbers.clock(),
            agent: numbers.clock(),
            latency: STEP * (1 + numbers.below(40)),
            up_cut: numbers.times(),
            down_cut: numbers.times(),
            held: numbers.times(),
            stopped: numbers.times(),
            paused: numbers.times(),
            job: numbers.below(2) * numbers.below(12_000),
        };
        let story = world.run(25_000);
        waited += u64::from(story.begun.is_some_and(|begun| begun > world.job + 1_000));
        match story.dead {
            Some(_) => died += 1,
            None => {
                lived += 1;
                assert_eq!(story.ended, None, "its ranks are gone, and nobody knows: {world:?}");
                let is_held = story.held.len() > story.went_on.len();
                assert!(!is_held, "its ranks stand still for ever: {world:?}");
                held += story.held.len();
            }
        }
    }
    assert!(
        died > 100 && lived > 100 && waited > 10 && held > 10,
        "{died} died, {lived} lived, {waited} waited for an answer, {held} stood still for a while"
    );
}

#[test]
fn what_an_older_epoch_says_is_refused_and_changes_nothing() {
    let mut membership = Membership::new(Timing::default());
    assert_eq!(membership.join(2, ms(0)), Ok(1));
    assert_eq!(membership.standing(0), Standing::Absent, "nobody has come as node 0");
    membership.ended(2, 1);
    let dead = Change::Dead {
        node: 2,
        epoch: 1,
        why: Death::Ended,
    };
    assert_eq!((membership.poll(), membership.due()), (Some(dead), None));
    assert_eq!(membership.heard(2, 1, ms(10)), Err(Refused { node: 2, epoch: 1 }));
    assert_eq!(membership.join(2, ms(20)), Ok(2));
    assert_eq!(membership.heard(2, 1, ms(30)), Err(Refused { node: 2, epoch: 1 }));
    membership.broken(2, 1);
    membership.ended(2, 1);
    assert_eq!((membership.poll(), membership.standing(2)), (None, Standing::Up));
    assert!(membership.accepts(2, 2) && !membership.accepts(2, 1) && !membership.accepts(2, 3));
}

#[test]
fn there_is_no_new_life_before_the_old_one_has_ended() {
    let mut membership = Membership::new(Timing::default());
    assert_eq!(membership.join(0, ms(0)), Ok(1));
    membership.broken(0, 1);
    assert_eq!(membership.standing(0), Standing::Suspected);
    let not_fenced = NotFenced { node: 0, epoch: 1 };
    assert_eq!(membership.join(0, ms(3_990)), Err(not_fenced));
    assert_eq!(membership.due(), Some(ms(4_000)));
    assert_eq!(membership.join(0, ms(4_000)), Ok(2));
}

#[test]
fn a_broken_connection_is_suspect_at_once_and_may_be_made_again() {
    let mut membership = Membership::new(Timing::default());
    assert_eq!(membership.join(0, ms(0)), Ok(1));
    assert_eq!(membership.due(), Some(ms(1_000)));
    membership.broken(0, 1);
    membership.broken(0, 1);
    assert_eq!(membership.poll(), Some(Change::Suspected { node: 0, epoch: 1 }));
    assert_eq!(membership.heard(0, 1, ms(500)), Ok(()));
    assert_eq!(membership.poll(), Some(Change::Back { node: 0, epoch: 1 }));
    assert_eq!(membership.poll(), None);
}

#[test]
fn an_agent_that_is_refused_ends_at_once_and_for_ever() {
    let timing = Timing::default();
    let mut lease = Lease::new(timing, ms(0));
    assert_eq!((lease.poll(ms(50)), lease.due()), (None, ms(100)));
    assert_eq!(lease.poll(ms(100)), Some(Duty::Beat { number: 1 }));
    lease.refused();
    assert_eq!((lease.poll(ms(110)), lease.until()), (Some(Duty::End), Duration::ZERO));
    lease.answered(1, ms(120));
    assert_eq!(lease.poll(ms(300)), Some(Duty::End));
}

#[test]
fn an_answer_to_what_was_never_sent_is_worth_nothing() {
    let mut lease = Lease::new(Timing::default(), ms(0));
    lease.answered(1, ms(10));
    assert_eq!(lease.poll(ms(100)), Some(Duty::Beat { number: 1 }));
    lease.answered(u64::MAX, ms(110));
    assert_eq!(lease.until(), ms(3_000));
    lease.answered(1, ms(120));
    lease.answered(1, ms(130));
    assert_eq!(lease.until(), ms(3_100));
    assert_eq!(lease.poll(ms(200)), Some(Duty::Beat { number: 2 }));
}

#[test]
fn a_late_answer_is_for_nothing_that_has_been_sent_since_a_rest() {
    let mut lease = Lease::new(Timing::default(), ms(0));
    assert_eq!(lease.poll(ms(100)), Some(Duty::Beat { number: 1 }));
    lease.renew(ms(2_000));
    assert_eq!(lease.until(), ms(5_000));
    assert_eq!(lease.poll(ms(2_100)), Some(Duty::Beat { number: 2 }));
    lease.answered(1, ms(2_200));
    assert_eq!(lease.until(), ms(5_000), "the first was sent long ago");
    lease.answered(2, ms(2_200));
    assert_eq!(lease.until(), ms(5_100));
    lease.renew(ms(9_000));
    assert_eq!(
        lease.poll(ms(9_100)),
        Some(Duty::Beat { number: 3 }),
        "the machine was suspended, too"
    );
}

#[test]
fn an_agent_waits_for_its_job_as_long_as_it_takes() {
    let mut lease = Lease::waiting(Timing::default(), ms(0));
    for beat in 1..=99 {
        assert_eq!(lease.due(), ms(beat * 100));
        assert_eq!(lease.poll(ms(beat * 100)), Some(Duty::Beat { number: beat }));
    }
    // The job comes before the answers.
    assert!(!lease.begin(ms(9_950)));
    assert_eq!(lease.poll(ms(10_000)), Some(Duty::Beat { number: 100 }));
    // An old answer does not help: the node may have been given up since.
    lease.answered(60, ms(10_010));
    assert!(!lease.begin(ms(10_010)));
    lease.answered(99, ms(10_020));
    assert!(lease.begin(ms(10_020)));
    assert_eq!(lease.until(), ms(12_900));
    assert_eq!(lease.poll(ms(12_900)), Some(Duty::Hold));
    lease.answered(100, ms(12_950));
    assert_eq!(lease.poll(ms(12_950)), Some(Duty::GoOn));
    assert_eq!(lease.poll(ms(13_000)), Some(Duty::Hold));
    assert_eq!(lease.poll(ms(73_000)), Some(Duty::End), "{lease:?}");
}
