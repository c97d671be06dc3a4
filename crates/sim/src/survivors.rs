//! Programs that deal with failures themselves, on one to four nodes.
//!
//! The real [`Policy`] and its `Survivors` decide. Ranks compute sums and pass values on; after each step they agree
//! whether it was good, and otherwise shrink and repeat it. Messages between nodes, and between agents and the dispatcher,
//! take their time. Ranks and nodes fail at any moment, nodes also by being cut off until their lease is over.
//!
//! - [`node`]: the agents, the node memory and the movers.
//! - [`repeating`]: ranks that recover by themselves first, in the setting for that.
//! - [`rank`]: the provider, the library above MPI, and the program.

mod node;
mod rank;
mod repeating;

use std::collections::BTreeMap;

use resurgo_protocol::policy::{Decision, End, Ending, Limits, Policy};
use resurgo_protocol::survivors::{News, Said, Verdict};
use resurgo_protocol::{Node, Protocol, Rank};

use crate::checkers::{LIVENESS, Violation, violation};
use crate::mutation::Mutation;
use crate::queue::Queue;
use crate::random::{Random, mix};
use crate::setting::Setting;
use crate::trace::Trace;
use crate::world::{Failure, Options, Report};
use node::{Item, Place};
use rank::Process;

const TOLD: &str = "each failure is told once, and to all alike";
const AGREED: &str = "all learn the same";
/// No run takes as many events.
const MOST_EVENTS: u64 = 60_000;

/// What an agent says.
#[derive(Debug, Clone)]
enum Up {
    Said(Rank, Said),
    Ended {
        rank: Rank,
        finalised: bool,
    },
    Knows(u64),
    /// The rank has repeated its messages and its output.
    Replayed(Rank),
}

/// What it is told.
#[derive(Debug, Clone)]
enum Down {
    Failures(News),
    NodeLost(Node),
    Begin(Rank),
}

#[derive(Debug)]
enum Event {
    Turn(Rank),
    /// The agent notices that the process has ended.
    Noticed(Rank),
    Mail {
        from: Node,
        to: Node,
        item: Item,
    },
    Up(Node, Up),
    Down(Node, Down),
    /// An agent writes news that it has answered already (a broken variant).
    Written(Node, News),
    /// The mover refuses what comes from a lost node.
    Refuses(Node, Node),
    Strike,
    /// The lease of a node that is cut off is over.
    Expires(Node),
    /// The dispatcher knows that nothing of the node runs any more.
    Lost(Node),
}

/// Something with an order, and delays.
#[derive(Debug, Clone, Copy, Default)]
struct Link {
    last: u64,
    /// Nothing arrives later.
    ends: Option<u64>,
}

/// The delays of this run.
#[derive(Debug, Clone, Copy)]
struct Pace {
    turn: u64,
    mail: u64,
    control: u64,
}

struct World {
    mutation: Option<Mutation>,
    /// Ranks recover by themselves first.
    recovers: bool,
    now: u64,
    queue: Queue<Event>,
    random: Random,
    trace: Trace,
    pace: Pace,
    report: Report,
    node_of: Vec<Node>,
    places: Vec<Place>,
    ranks: Vec<Process>,
    /// Between nodes, and between each node and the dispatcher.
    mail: BTreeMap<(Node, Node), Link>,
    up: Vec<Link>,
    down: Vec<Link>,
    policy: Policy,
    /// Nodes whose messages do not count any more.
    lost: Vec<bool>,
    strikes: u64,
    verdicts: BTreeMap<(u32, u32), Verdict>,
    comms: BTreeMap<u32, Vec<Rank>>,
}

pub(crate) fn simulate(seed: u64, options: Options, trace: bool) -> Result<Report, Failure> {
    let mut world = World::new(seed, &options, trace);
    match world.run() {
        Ok(()) => Ok(Report {
            trace: world.trace.take(),
            ..world.report
        }),
        Err(violation) => Err(Failure {
            violation,
            trace: world.trace.take(),
        }),
    }
}

impl World {
    fn new(seed: u64, options: &Options, trace: bool) -> World {
        let mut random = Random::new(mix(seed, 7));
        let size = random.between(2, 9) as usize;
        let recovers = options.setting == Setting::RecoveringSurvivors;
        let nodes = match recovers {
            true => 1,
            false => random.between(1, 4.min(size as u64)) as Node,
        };
        let node_of: Vec<Node> = (0..size)
            .map(|rank| (rank as u64 * u64::from(nodes) / size as u64) as Node)
            .collect();
        let untold = if recovers { random.between(1, 3) } else { 0 };
        let limits = Limits {
            restarts: untold * size as u64,
            restarts_per_rank: untold,
            untold,
        };
        let pace = Pace {
            turn: random.pick([1, 3, 8, 20]),
            mail: random.pick([2, 5, 20, 60]),
            control: random.pick([2, 5, 20, 60]),
        };
        let mut world = World {
            mutation: options.mutation,
            recovers,
            now: 0,
            queue: Queue::new(),
            trace: Trace::new(trace),
            pace,
            report: Report::nothing_yet(size),
            places: (0..nodes).map(|_| Place::new(size)).collect(),
            ranks: (0..size).map(|rank| Process::new(rank as Rank, size)).collect(),
            mail: BTreeMap::new(),
            up: vec![Link::default(); nodes as usize],
            down: vec![Link::default(); nodes as usize],
            policy: Policy::new(size, Protocol::None, limits).surviving(true, node_of.clone()),
            lost: vec![false; nodes as usize],
            strikes: random.between(1, (untold + 1) * size as u64 - 1),
            verdicts: BTreeMap::new(),
            comms: BTreeMap::from([(0, (0..size as Rank).collect())]),
            node_of,
            random,
        };
        for rank in 0..size as Rank {
            world.say(rank, Said::Joined);
            world.soon(20, Event::Turn(rank));
        }
        for _ in 0..world.strikes {
            world.soon(1500, Event::Strike);
        }
        world
    }

    fn is(&self, mutation: Mutation) -> bool {
        self.mutation == Some(mutation)
    }

    fn soon(&mut self, within: u64, event: Event) {
        let at = self.now + 1 + self.random.below(within);
        self.queue.push(at, event);
    }

    /// A message takes its time, and none overtakes another. None: it never arrives.
    fn arrival(&mut self, pace: u64, link: Link) -> (Link, Option<u64>) {
        let slow = if self.random.one_in(40) { 20 } else { 1 };
        let at = link.last.max(self.now + 1 + self.random.below(pace * slow));
        (
            Link { last: at, ..link },
            link.ends.is_none_or(|ends| at < ends).then_some(at),
        )
    }

    fn send_up(&mut self, node: Node, said: Up) {
        let (link, at) = self.arrival(self.pace.control, self.up[node as usize]);
        self.up[node as usize] = link;
        at.into_iter()
            .for_each(|at| self.queue.push(at, Event::Up(node, said.clone())));
    }

    fn send_down(&mut self, node: Node, told: Down) {
        let (link, at) = self.arrival(self.pace.control, self.down[node as usize]);
        self.down[node as usize] = link;
        at.into_iter()
            .for_each(|at| self.queue.push(at, Event::Down(node, told.clone())));
    }

    fn run(&mut self) -> Result<(), Violation> {
        while let Some((at, event)) = self.queue.pop() {
            self.now = at;
            self.report.events += 1;
            self.handle(event)?;
            let are_over = !self.recovers && self.ranks.iter().all(|rank| rank.is_over());
            if self.policy.all_finished() || are_over {
                return Ok(());
            }
            if self.report.events > MOST_EVENTS {
                break;
            }
        }
        let waits: Vec<String> = self
            .ranks
            .iter()
            .filter(|rank| !rank.is_over())
            .map(Process::describe)
            .collect();
        violation(LIVENESS, format!("these never come to an end: {}", waits.join("; ")))
    }

    fn handle(&mut self, event: Event) -> Result<(), Violation> {
        match event {
            Event::Turn(rank) => self.turn(rank),
            Event::Noticed(rank) => {
                self.noticed(rank);
                Ok(())
            }
            Event::Mail { from, to, item } => {
                self.mail_comes(from, to, item);
                Ok(())
            }
            Event::Up(node, said) => self.hears(node, said),
            Event::Down(node, told) => self.is_told(node, told),
            Event::Written(node, news) => self.writes(node, &news),
            Event::Refuses(node, lost) => {
                self.places[node as usize].refused.insert(lost);
                Ok(())
            }
            Event::Strike => {
                self.strike();
                Ok(())
            }
            Event::Expires(node) => {
                self.node_ends(node);
                self.soon(60, Event::Lost(node));
                Ok(())
            }
            Event::Lost(node) => self.node_lost(node),
        }
    }

    /// The dispatcher hears a node.
    fn hears(&mut self, node: Node, said: Up) -> Result<(), Violation> {
        if self.lost[node as usize] {
            return Ok(());
        }
        self.note(|| format!("the dispatcher hears node {node}: {said:?}"));
        let survivors = self.policy.survivors.as_mut().expect("ranks survive");
        let news = match said {
            Up::Said(rank, said) => survivors.hears(rank, said),
            Up::Knows(round) => survivors.is_known(node, round),
            Up::Replayed(rank) => {
                let mut news = survivors.caught_up(rank);
                news.extend(survivors.has_printed(rank));
                news
            }
            Up::Ended { rank, finalised } => {
                let end = if finalised { End::Exited(0) } else { End::Signalled(9) };
                let decision = self.policy.ended(&Ending {
                    rank,
                    end,
                    initialised: true,
                    finalised,
                    is_plain: false,
                    report: None,
                    messages: 0,
                });
                let survivors = self.policy.survivors.as_mut().expect("ranks survive");
                match decision {
                    Decision::Finished => survivors.finished(rank),
                    Decision::Lost => survivors.failed(&[rank], 137),
                    Decision::Restart => {
                        self.begin_life(rank);
                        Vec::new()
                    }
                    other => return violation(TOLD, format!("{other:?} follows from the end of rank {rank}")),
                }
            }
        };
        self.tell(news);
        Ok(())
    }

    fn tell(&mut self, news: Vec<News>) {
        let mut seen = 0;
        for mut news in news {
            if let News::Repeated { rank, .. } = &news {
                let node = self.node_of[*rank as usize];
                self.send_down(node, Down::Failures(news));
                continue;
            }
            if let News::Agreed { rank, verdict, .. } = &mut news {
                let node = self.node_of[*rank as usize];
                if self.is(Mutation::TwoVerdicts) && seen > 0 {
                    verdict.failed.pop();
                }
                seen += 1;
                self.send_down(node, Down::Failures(news));
                continue;
            }
            if self.is(Mutation::RevokeOnOneNode) {
                self.keep_on_one_node(&mut news);
            }
            for node in self.nodes() {
                self.send_down(node, Down::Failures(news.clone()));
            }
        }
    }

    fn keep_on_one_node(&self, news: &mut News) {
        match news {
            News::Settled(known) => self.keep_on_one_node(known),
            News::Revoked { ranks, .. } => {
                let kept = ranks.first().map(|rank| self.node_of[*rank as usize]);
                ranks.retain(|rank| Some(self.node_of[*rank as usize]) == kept);
            }
            _ => {}
        }
    }

    /// Nodes that are not known to be lost.
    fn nodes(&self) -> Vec<Node> {
        (0..self.places.len() as Node)
            .filter(|node| !self.lost[*node as usize])
            .collect()
    }

    fn ranks_of(&self, node: Node) -> Vec<Rank> {
        let ranks = 0..self.ranks.len() as Rank;
        ranks.filter(|rank| self.node_of[*rank as usize] == node).collect()
    }

    fn node_lost(&mut self, node: Node) -> Result<(), Violation> {
        self.note(|| format!("the dispatcher knows that node {node} is lost"));
        self.lost[node as usize] = true;
        for other in self.nodes() {
            self.send_down(other, Down::NodeLost(node));
        }
        let there: Vec<usize> = self.ranks_of(node).into_iter().map(|rank| rank as usize).collect();
        let Some(failed) = self.policy.lost_with_node(&there) else {
            return violation(
                TOLD,
                "the others cannot go on without a rank that has begun".to_string(),
            );
        };
        let mut failed: Vec<Rank> = failed.into_iter().map(|rank| rank as Rank).collect();
        if self.is(Mutation::OneRankOfNode) {
            failed.truncate(1);
        }
        let survivors = self.policy.survivors.as_mut().expect("ranks survive");
        let news = survivors.failed(&failed, 137);
        self.tell(news);
        // Failures like company.
        if self.strikes > 0 && self.random.one_in(2) {
            self.soon(40, Event::Strike);
        }
        Ok(())
    }

    /// A rank dies, or a node with all of its ranks, or it is cut off. One rank stays that nothing has struck.
    fn strike(&mut self) {
        let survivors = self.policy.survivors.as_ref().expect("ranks survive");
        let all = 0..self.ranks.len() as Rank;
        let running: Vec<Rank> = all
            .clone()
            .filter(|rank| self.ranks[*rank as usize].is_struck_at())
            .collect();
        if !all.into_iter().all(|rank| survivors.can_do_without(rank)) || self.strikes == 0 {
            return;
        }
        let victim = running.get(self.random.below(running.len() as u64) as usize).copied();
        let Some(victim) = victim else { return };
        let node = self.node_of[victim as usize];
        let elsewhere = running.iter().any(|rank| self.node_of[*rank as usize] != node);
        match self.random.below(10) {
            0..3 if elsewhere => {
                self.strikes -= 1;
                self.node_ends(node);
                self.soon(100, Event::Lost(node));
            }
            3..5 if elsewhere && self.places[node as usize].is_up => {
                self.strikes -= 1;
                self.cut_off(node);
            }
            _ if running.len() > 1 => {
                self.strikes -= 1;
                self.dies(victim);
                self.soon(10, Event::Noticed(victim));
                if self.random.one_in(3) {
                    self.soon(30, Event::Strike);
                }
            }
            _ => {}
        }
    }

    fn dies(&mut self, rank: Rank) {
        self.note(|| format!("{rank} dies"));
        self.report.crashes += 1;
        self.ranks[rank as usize].is_alive = false;
    }

    /// Two verdicts on the same wishes are one.
    fn agrees(&mut self, comm: u32, number: u32, verdict: &Verdict) -> Result<(), Violation> {
        let living = verdict
            .failed
            .iter()
            .find(|rank| !self.ranks[**rank as usize].is_over());
        if let Some(rank) = living {
            return violation(AGREED, format!("{rank} has failed in a verdict, and lives"));
        }
        let first = self.verdicts.entry((comm, number)).or_insert_with(|| verdict.clone());
        match first == verdict {
            true => Ok(()),
            false => violation(AGREED, format!("{first:?} and {verdict:?} about {number} on {comm}")),
        }
    }

    fn note(&mut self, line: impl FnOnce() -> String) {
        self.trace.note(self.now, line);
    }
}
