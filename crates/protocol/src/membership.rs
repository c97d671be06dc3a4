//! Which nodes are there: the dispatcher's view of them ([`Membership`]), and what each agent knows of its own ([`Lease`]).
//!
//! An agent sends a heartbeat every [`Timing::heartbeat`], with a number; the dispatcher answers each with that number. The agent holds
//! a *lease*: it begins when the last heartbeat *that has been answered* was sent, by the agent's own clock. When it has run out, the
//! agent ends all its ranks and itself. The dispatcher counts from when it last heard of the node, by its own clock. It waits for a
//! lease and a margin, and then the node is dead. A heartbeat is heard after it was sent, so the lease of a dead node has run out, as
//! long as clocks run at rates that differ by less than the margin. No moment crosses from one node to another.
//!
//! A node's lives are numbered: the *epoch*, from 1. What an older epoch says is refused, and there is no new life before the one
//! before it has ended for sure.
//!
//! Times are since any moment that stays the same, by a clock that goes on while a machine is suspended.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::time::Duration;

/// Number of a node in its job, from 0.
pub type Node = u32;

/// How long things take; the same for all nodes of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// Between two heartbeats.
    pub heartbeat: Duration,
    /// Silence after which a node gets no new work.
    pub suspect: Duration,
    /// Without an answer for so long an agent ends its ranks.
    pub lease: Duration,
    /// What clocks may differ in a lease, and the time that an agent takes to end its ranks.
    pub margin: Duration,
}

impl Timing {
    /// That of a lease. Loaded machines are silent for 0.3 s now and then: a lease below 1 s is for tests.
    pub fn of_lease(lease: Duration) -> Timing {
        Timing {
            heartbeat: Duration::from_millis(100).min(lease / 5),
            suspect: Duration::from_secs(1).min(lease / 2),
            lease,
            margin: Duration::from_millis(500).max(lease / 3),
        }
    }
}

impl Default for Timing {
    fn default() -> Timing {
        Timing::of_lease(Duration::from_secs(3))
    }
}

/// How a node stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Standing {
    /// It has never come, or its last life has ended for sure.
    #[default]
    Absent,
    Up,
    /// It is silent, or its connection is broken: it gets no new work.
    Suspected,
}

/// Why a node is dead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Death {
    #[error("its agent has ended")]
    Ended,
    #[error("nothing has been heard of it for longer than its lease")]
    Silent,
}

/// What has become of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    Suspected {
        node: Node,
        epoch: u64,
    },
    /// It was suspected, and says something.
    Back {
        node: Node,
        epoch: u64,
    },
    /// Nothing of this life can happen any more.
    Dead {
        node: Node,
        epoch: u64,
        why: Death,
    },
}

/// What comes from a life of a node that has ended: its agent is told to end its ranks and itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("node {node} has been given up: this is from its life {epoch}, which has ended")]
pub struct Refused {
    pub node: Node,
    pub epoch: u64,
}

/// A node cannot come as its former life may not have ended. It may ask again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("life {epoch} of node {node} may not have ended; that is certain at the latest after its lease")]
pub struct NotFenced {
    pub node: Node,
    pub epoch: u64,
}

#[derive(Debug, Clone, Copy, Default)]
struct Known {
    standing: Standing,
    /// Of its present life, or the last one.
    epoch: u64,
    heard: Duration,
}

/// The dispatcher's view of all nodes. What happens goes in by [`Membership::join`], [`Membership::heard`], [`Membership::broken`],
/// [`Membership::ended`] and, when the time [`Membership::due`] has come, [`Membership::pass`]. [`Membership::poll`] says what has
/// become of nodes.
#[derive(Debug, Clone, Default)]
pub struct Membership {
    timing: Timing,
    nodes: Vec<Known>,
    changes: VecDeque<Change>,
}

impl Membership {
    pub fn new(timing: Timing) -> Membership {
        Membership {
            timing,
            ..Membership::default()
        }
    }

    /// A new agent asks to be this node. Its epoch.
    pub fn join(&mut self, node: Node, now: Duration) -> Result<u64, NotFenced> {
        self.pass(now);
        let place = node as usize;
        if place >= self.nodes.len() {
            self.nodes.resize_with(place + 1, Known::default);
        }
        let this = &mut self.nodes[place];
        let epoch = this.epoch;
        if this.standing != Standing::Absent {
            return Err(NotFenced { node, epoch });
        }
        *this = Known {
            standing: Standing::Up,
            epoch: epoch + 1,
            heard: now,
        };
        Ok(epoch + 1)
    }

    /// The node has said something. Only what is taken may be answered, or be believed.
    pub fn heard(&mut self, node: Node, epoch: u64, now: Duration) -> Result<(), Refused> {
        // It may have been silent for too long, and nobody has looked since.
        self.pass(now);
        let this = self.present(node, epoch).ok_or(Refused { node, epoch })?;
        this.heard = now;
        if std::mem::replace(&mut this.standing, Standing::Up) == Standing::Suspected {
            self.changes.push_back(Change::Back { node, epoch });
        }
        Ok(())
    }

    /// Its connection is broken. It may connect again.
    pub fn broken(&mut self, node: Node, epoch: u64) {
        if let Some(this) = self.present(node, epoch)
            && std::mem::replace(&mut this.standing, Standing::Suspected) == Standing::Up
        {
            self.changes.push_back(Change::Suspected { node, epoch });
        }
    }

    /// Who has started the agent knows that it has ended, and all its ranks.
    pub fn ended(&mut self, node: Node, epoch: u64) {
        self.dies(node, epoch, Death::Ended);
    }

    fn dies(&mut self, node: Node, epoch: u64, why: Death) {
        if let Some(this) = self.present(node, epoch) {
            this.standing = Standing::Absent;
            self.changes.push_back(Change::Dead { node, epoch, why });
        }
    }

    /// It is `now`.
    pub fn pass(&mut self, now: Duration) {
        for node in 0..self.nodes.len() as Node {
            let Known { epoch, heard, .. } = self.nodes[node as usize];
            if now >= heard + self.timing.lease + self.timing.margin {
                self.dies(node, epoch, Death::Silent);
            } else if now >= heard + self.timing.suspect {
                self.broken(node, epoch);
            }
        }
    }

    /// What has become of a node, the first change first.
    pub fn poll(&mut self) -> Option<Change> {
        self.changes.pop_front()
    }

    /// When [`Membership::pass`] is to be called, if nothing else happens before.
    pub fn due(&self) -> Option<Duration> {
        let Timing {
            suspect, lease, margin, ..
        } = self.timing;
        let due = self.nodes.iter().filter_map(|this| match this.standing {
            Standing::Absent => None,
            Standing::Up => Some(this.heard + suspect.min(lease + margin)),
            Standing::Suspected => Some(this.heard + lease + margin),
        });
        due.min()
    }

    pub fn standing(&self, node: Node) -> Standing {
        let this = self.nodes.get(node as usize);
        this.map_or(Standing::Absent, |this| this.standing)
    }

    /// Whether what comes from this life of the node is to be believed.
    pub fn accepts(&self, node: Node, epoch: u64) -> bool {
        let this = self.nodes.get(node as usize);
        this.is_some_and(|this| this.standing != Standing::Absent && this.epoch == epoch)
    }

    fn present(&mut self, node: Node, epoch: u64) -> Option<&mut Known> {
        let accepts = self.accepts(node, epoch);
        self.nodes.get_mut(node as usize).filter(|_| accepts)
    }
}

/// What an agent does now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Duty {
    /// It sends a heartbeat with this number.
    Beat { number: u64 },
    /// It ends its ranks, and then itself. From now on it is told nothing else.
    End,
}

/// An agent's lease. It outlives connections: a new one takes its heartbeats, too.
#[derive(Debug, Clone)]
pub struct Lease {
    timing: Timing,
    /// When the heartbeats were sent that have not been answered; the first of them has number `answered` + 1.
    sent: VecDeque<Duration>,
    answered: u64,
    until: Duration,
    beat: Duration,
    is_over: bool,
}

impl Lease {
    /// That of an agent which the dispatcher has let [join](Membership::join). `asked`: when the agent asked for that.
    pub fn new(timing: Timing, asked: Duration) -> Lease {
        Lease {
            timing,
            sent: VecDeque::new(),
            answered: 0,
            until: asked + timing.lease,
            beat: asked + timing.heartbeat,
            is_over: false,
        }
    }

    /// The dispatcher has answered the heartbeat. What comes after the end changes nothing.
    pub fn answered(&mut self, number: u64, now: Duration) {
        self.is_over |= now >= self.until;
        let answered = number.saturating_sub(self.answered) as usize;
        if self.is_over || answered == 0 || answered > self.sent.len() {
            return;
        }
        self.until = self.until.max(self.sent[answered - 1] + self.timing.lease);
        self.sent.drain(..answered);
        self.answered = number;
    }

    /// All ranks stand still, and nobody counts on this agent until they go on: the lease begins anew. Heartbeats keep their numbers, so
    /// that a late answer is for nothing that has been sent since.
    pub fn renew(&mut self, now: Duration) {
        self.until = now + self.timing.lease;
    }

    /// The dispatcher [refuses](Refused) what this agent says: the lease is over.
    pub fn refused(&mut self) {
        self.is_over = true;
    }

    /// What is to be done at `now`.
    pub fn poll(&mut self, now: Duration) -> Option<Duty> {
        self.is_over |= now >= self.until;
        if self.is_over {
            return Some(Duty::End);
        }
        if now < self.beat {
            return None;
        }
        self.beat = now + self.timing.heartbeat;
        self.sent.push_back(now);
        let number = self.answered + self.sent.len() as u64;
        Some(Duty::Beat { number })
    }

    /// When [`Lease::poll`] has the next thing to do.
    pub fn due(&self) -> Duration {
        self.until.min(self.beat)
    }

    /// Until when ranks may say something to other nodes, by this node's clock. An agent that stands still cannot end them: they look
    /// themselves.
    pub fn until(&self) -> Duration {
        match self.is_over {
            true => Duration::ZERO,
            false => self.until,
        }
    }
}
