//! A node: its agent, the memory in which its ranks read of failures, and its mover.

use std::collections::BTreeSet;

use resurgo_protocol::survivors::{News, Said};
use resurgo_protocol::{Node, Rank};

use super::repeating::Repeated;
use super::{Down, Event, TOLD, Up, World};
use crate::checkers::{Violation, violation};
use crate::mutation::Mutation;

/// How long a node that is cut off runs on.
const LEASE: u64 = 400;

/// What movers send.
#[derive(Debug, Clone, Copy)]
pub enum Item {
    /// The next piece of a channel.
    Piece {
        from: Rank,
        to: Rank,
    },
    Flush(u64),
    Flushed(u64),
}

/// The end of a rank, which is told when these nodes have what it sent.
struct Held {
    flush: u64,
    missing: BTreeSet<Node>,
    rank: Rank,
}

pub struct Place {
    pub is_up: bool,
    /// What the library of each rank reads, and what the provider does.
    pub failed: Vec<u64>,
    pub revoked: Vec<BTreeSet<u32>>,
    pub buried: Vec<bool>,
    pub closed: Vec<BTreeSet<u32>>,
    pub news: u64,
    held: Vec<Held>,
    flushes: u64,
    /// Nodes that are known to be lost, and those whose messages the mover refuses.
    lost: BTreeSet<Node>,
    pub refused: BTreeSet<Node>,
}

impl Place {
    pub fn new(ranks: usize) -> Place {
        Place {
            is_up: true,
            failed: vec![0; ranks],
            revoked: vec![BTreeSet::new(); ranks],
            buried: vec![false; ranks],
            closed: vec![BTreeSet::new(); ranks],
            news: 0,
            held: Vec::new(),
            flushes: 0,
            lost: BTreeSet::new(),
            refused: BTreeSet::new(),
        }
    }
}

impl World {
    pub(super) fn place_of(&mut self, rank: Rank) -> &mut Place {
        &mut self.places[self.node_of[rank as usize] as usize]
    }

    pub(super) fn say(&mut self, rank: Rank, said: Said) {
        self.send_up(self.node_of[rank as usize], Up::Said(rank, said));
    }

    pub(super) fn post(&mut self, from: Node, to: Node, item: Item) {
        let link = self.mail.get(&(from, to)).copied().unwrap_or_default();
        let (link, at) = self.arrival(self.pace.mail, link);
        self.mail.insert((from, to), link);
        at.into_iter()
            .for_each(|at| self.queue.push(at, Event::Mail { from, to, item }));
    }

    /// The agent knows that the rank has ended. The others have what it sent before they hear of that.
    pub(super) fn noticed(&mut self, rank: Rank) {
        let node = self.node_of[rank as usize];
        let ended = Up::Ended { rank, finalised: false };
        if !self.places[node as usize].is_up {
            return;
        }
        if self.is(Mutation::TellUnflushed) {
            return self.send_up(node, ended);
        }
        let others = 0..self.places.len() as Node;
        let place = &mut self.places[node as usize];
        place.flushes += 1;
        let flush = place.flushes;
        let missing: BTreeSet<Node> = others
            .filter(|other| *other != node && !place.lost.contains(other))
            .collect();
        place.held.push(Held {
            flush,
            missing: missing.clone(),
            rank,
        });
        missing
            .into_iter()
            .for_each(|other| self.post(node, other, Item::Flush(flush)));
        self.tell_held(node);
    }

    /// Tells the ends of ranks whose flushes are over.
    fn tell_held(&mut self, node: Node) {
        let held = &mut self.places[node as usize].held;
        let over: Vec<Rank> = held
            .extract_if(.., |held| held.missing.is_empty())
            .map(|held| held.rank)
            .collect();
        for rank in over {
            self.send_up(node, Up::Ended { rank, finalised: false });
        }
    }

    pub(super) fn mail_comes(&mut self, from: Node, to: Node, item: Item) {
        let place = &mut self.places[to as usize];
        if !place.is_up || place.refused.contains(&from) {
            return;
        }
        match item {
            Item::Piece { from, to } => self.ranks[to as usize].channels[from as usize].arrived += 1,
            Item::Flush(number) => self.post(to, from, Item::Flushed(number)),
            Item::Flushed(number) => {
                let held = place.held.iter_mut().filter(|held| held.flush == number);
                held.for_each(|held| {
                    held.missing.remove(&from);
                });
                self.tell_held(to);
            }
        }
    }

    /// The agent is told something.
    pub(super) fn is_told(&mut self, node: Node, told: Down) -> Result<(), Violation> {
        if !self.places[node as usize].is_up {
            return Ok(());
        }
        self.note(|| format!("node {node} is told {told:?}"));
        match told {
            Down::NodeLost(lost) => {
                let waits = self.is(Mutation::FlushToLost);
                let place = &mut self.places[node as usize];
                place.lost.insert(lost);
                if !waits {
                    place.held.iter_mut().for_each(|held| {
                        held.missing.remove(&lost);
                    });
                }
                self.tell_held(node);
                // The mover is a thread of its own.
                self.soon(40, Event::Refuses(node, lost));
                Ok(())
            }
            Down::Begin(rank) => self.begins_again(rank),
            Down::Failures(News::Repeated {
                rank,
                ticket,
                is_known,
                look,
            }) => {
                let process = &mut self.ranks[rank as usize];
                process.lives.repeated = Some(Repeated { ticket, is_known, look }).filter(|_| process.is_alive);
                Ok(())
            }
            Down::Failures(News::Agreed { rank, verdict, .. }) => {
                let process = &mut self.ranks[rank as usize];
                process.verdict = Some(verdict).filter(|_| process.is_alive);
                Ok(())
            }
            Down::Failures(news) => {
                let round = match &news {
                    News::Failed { round, .. } | News::Revoked { round, .. } => Some(*round),
                    _ => None,
                };
                match round {
                    Some(_) if self.is(Mutation::AnswerUnwritten) => {
                        self.soon(30, Event::Written(node, news.clone()));
                    }
                    _ => self.writes(node, &news)?,
                }
                if round.is_some() && self.is(Mutation::EndAtOnce) {
                    self.writes(node, &News::Settled(Box::new(news)))?;
                }
                if let Some(round) = round
                    && !(self.is(Mutation::AnswerNothing) && node == 1)
                {
                    self.send_up(node, Up::Knows(round));
                }
                Ok(())
            }
        }
    }

    /// News stands in the memory.
    pub(super) fn writes(&mut self, node: Node, news: &News) -> Result<(), Violation> {
        let is_late = self.is(Mutation::EndAtOnce) || self.is(Mutation::AnswerUnwritten);
        let place = &mut self.places[node as usize];
        place.news += 1;
        match news {
            News::Failed { rank, number, .. } => {
                let told = std::mem::replace(&mut place.failed[*rank as usize], *number);
                if told != 0 {
                    return violation(TOLD, format!("{rank} is told as failed twice on node {node}"));
                }
                let differs = |place: &Place| ![0, *number].contains(&place.failed[*rank as usize]);
                if self.places.iter().any(differs) {
                    return violation(TOLD, format!("the failure of {rank} has two numbers"));
                }
            }
            News::Revoked { key, ranks, .. } => {
                for rank in ranks {
                    place.revoked[*rank as usize].insert(*key as u32);
                }
            }
            News::Settled(known) => match &**known {
                News::Failed { rank, .. } => {
                    let was = std::mem::replace(&mut place.buried[*rank as usize], true);
                    if was && !is_late {
                        return violation(TOLD, format!("{rank} is buried twice on node {node}"));
                    }
                }
                News::Revoked { key, ranks, .. } => {
                    for rank in ranks {
                        place.closed[*rank as usize].insert(*key as u32);
                    }
                }
                News::Settled(_) | News::Agreed { .. } | News::Repeated { .. } | News::Ends { .. } => {}
            },
            News::Agreed { .. } | News::Repeated { .. } | News::Ends { .. } => {}
        }
        Ok(())
    }

    /// Everything on the node ends. A part of what is on its way from there still arrives.
    pub(super) fn node_ends(&mut self, node: Node) {
        if !self.places[node as usize].is_up {
            return;
        }
        self.note(|| format!("node {node} ends"));
        self.places[node as usize].is_up = false;
        for rank in self.ranks_of(node) {
            if !self.ranks[rank as usize].is_over() {
                self.dies(rank);
            }
        }
        self.hang_up(node);
    }

    fn hang_up(&mut self, node: Node) {
        let nodes = 0..self.places.len() as Node;
        for other in nodes.filter(|other| *other != node) {
            let ends = self.now + self.random.below(80);
            let link = self.mail.entry((node, other)).or_default();
            link.ends = Some(link.ends.map_or(ends, |before| before.min(ends)));
        }
        let ends = self.now + self.random.below(80);
        self.up[node as usize].ends.get_or_insert(ends);
    }

    /// The dispatcher and the agent do not hear each other any more. Messages to other nodes may get through.
    pub(super) fn cut_off(&mut self, node: Node) {
        self.note(|| format!("node {node} is cut off"));
        self.up[node as usize].ends.get_or_insert(self.now);
        self.down[node as usize].ends.get_or_insert(self.now);
        if self.random.one_in(2) {
            self.hang_up(node);
            let nodes = 0..self.places.len() as Node;
            for other in nodes.filter(|other| *other != node) {
                self.mail.entry((other, node)).or_default().ends.get_or_insert(self.now);
            }
        }
        self.soon(LEASE, Event::Expires(node));
    }
}
