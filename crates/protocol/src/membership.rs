//! Which nodes are there: the dispatcher's view of them ([`Membership`]), and each agent's view of itself ([`Lease`]).
//!
//! An agent sends a heartbeat every [`Timing::heartbeat`], with a number; the dispatcher answers each with that number.
//! The agent holds a *lease*: it begins when the last heartbeat *that has been answered* was sent, by the agent's own
//! clock. When it has run out, the agent stops all its ranks. They go on when an answer comes to a heartbeat that was
//! sent less than a lease ago: then the dispatcher has not given up the node. Without one the agent ends its ranks and
//! itself after [`Timing::hold`]. The dispatcher counts from its last message of the node, by its own clock. It waits
//! for a lease and a margin, and then the node is dead. A heartbeat arrives after it was sent, so the lease of a dead
//! node has run out. Clocks' rates may differ by less than the margin. No moment crosses from one node to another. The
//! lease begins with the job: an agent that waits for that has nothing to stop.
//!
//! A node's lives are numbered: the *epoch*, from 1. Messages of an older epoch are refused, and no new life begins
//! before the one before it has ended for sure.
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
    /// Without an answer for so long an agent stops its ranks.
    pub lease: Duration,
    /// What clocks may differ in a lease, and the time that an agent takes to stop its ranks.
    pub margin: Duration,
    /// Ranks that have been stopped for so long are ended.
    pub hold: Duration,
}

/// How long ranks stand still before they are ended, unless the user says something else.
pub const HOLD: Duration = Duration::from_secs(60);

impl Timing {
    /// That of a lease. Loaded machines are silent for 0.3 s now and then: a lease below 1 s is for tests.
    pub fn of_lease(lease: Duration) -> Timing {
        Timing {
            heartbeat: Duration::from_millis(100).min(lease / 5),
            suspect: Duration::from_secs(1).min(lease / 2),
            lease,
            margin: Duration::from_millis(500).max(lease / 3),
            hold: HOLD,
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

/// A change of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    Suspected {
        node: Node,
        epoch: u64,
    },
    /// It was suspected, and has sent a message.
    Back {
        node: Node,
        epoch: u64,
    },
    /// This life can do nothing any more.
    Dead {
        node: Node,
        epoch: u64,
        why: Death,
    },
}

/// A message of an ended life of a node: its agent must end its ranks and itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("node {node} has been given up: this is from its life {epoch}, which has ended")]
pub struct Refused {
    pub node: Node,
    pub epoch: u64,
}

/// A node cannot come because its former life may not have ended. It may ask again.
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

/// The dispatcher's view of all nodes. Events go in by [`Membership::join`], [`Membership::heard`],
/// [`Membership::broken`], [`Membership::ended`] and, at the time [`Membership::due`], [`Membership::pass`].
/// [`Membership::poll`] gives the changes.
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

    /// A new agent asks to be this node. Returns its epoch.
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

    /// The node has sent a message. Only an accepted message may be answered, or believed.
    pub fn heard(&mut self, node: Node, epoch: u64, now: Duration) -> Result<(), Refused> {
        // It may have been silent for too long, unnoticed.
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

    /// The agent's starter knows that it has ended, and all its ranks.
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

    /// The next change, in order.
    pub fn poll(&mut self) -> Option<Change> {
        self.changes.pop_front()
    }

    /// When to call [`Membership::pass`], if no event comes before.
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

    /// Whether messages of this life of the node count.
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
    /// The lease has run out: it stops its ranks.
    Hold,
    /// The lease lasts again: its ranks go on.
    GoOn,
    /// It ends its ranks, and then itself. From now on it gets no other duty.
    End,
}

/// An agent's lease. It outlives connections: a new one takes its heartbeats, too.
#[derive(Debug, Clone)]
pub struct Lease {
    timing: Timing,
    /// When the unanswered heartbeats were sent; the first of them has number `answered` + 1.
    sent: VecDeque<Duration>,
    answered: u64,
    until: Duration,
    beat: Duration,
    has_begun: bool,
    /// Since when the ranks are stopped.
    held: Option<Duration>,
    is_over: bool,
}

impl Lease {
    /// The lease of an agent that the dispatcher has let [join](Membership::join). `asked`: when the agent asked for
    /// that.
    pub fn new(timing: Timing, asked: Duration) -> Lease {
        Lease {
            timing,
            sent: VecDeque::new(),
            answered: 0,
            until: asked + timing.lease,
            beat: asked + timing.heartbeat,
            has_begun: true,
            held: None,
            is_over: false,
        }
    }

    /// The same of an agent that waits for its job. No rank runs there, so the dispatcher may be silent for any time.
    pub fn waiting(timing: Timing, asked: Duration) -> Lease {
        Lease {
            has_begun: false,
            ..Lease::new(timing, asked)
        }
    }

    /// The agent has its job. False: the last answer is older than a lease, so the dispatcher may have given up this
    /// node. The agent begins only after the next answer.
    pub fn begin(&mut self, now: Duration) -> bool {
        self.has_begun |= now < self.until;
        self.has_begun
    }

    fn is_late(&self, now: Duration) -> bool {
        self.has_begun && now >= self.until
    }

    fn has_held_for_long(&self, now: Duration) -> bool {
        self.held.is_some_and(|since| now >= since + self.timing.hold)
    }

    /// The dispatcher has answered the heartbeat: it will wait for a lease from then on, or longer. Answers after the
    /// end change nothing.
    pub fn answered(&mut self, number: u64, now: Duration) {
        self.is_over |= self.has_held_for_long(now);
        let answered = number.saturating_sub(self.answered) as usize;
        if self.is_over || answered == 0 || answered > self.sent.len() {
            return;
        }
        self.until = self.until.max(self.sent[answered - 1] + self.timing.lease);
        self.sent.drain(..answered);
        self.answered = number;
    }

    /// All ranks stand still, and no node counts on this agent until they go on: the lease begins anew. Heartbeats keep
    /// their numbers: a late answer is for none that was sent since.
    pub fn renew(&mut self, now: Duration) {
        self.until = now + self.timing.lease;
    }

    /// The dispatcher [refuses](Refused) this agent's messages: the lease is over.
    pub fn refused(&mut self) {
        self.is_over = true;
    }

    /// The duty at `now`.
    pub fn poll(&mut self, now: Duration) -> Option<Duty> {
        self.is_over |= self.has_held_for_long(now);
        if self.is_over {
            return Some(Duty::End);
        }
        match (self.held, self.is_late(now)) {
            (None, true) => {
                self.held = Some(now);
                return Some(Duty::Hold);
            }
            (Some(_), false) => {
                self.held = None;
                return Some(Duty::GoOn);
            }
            _ => {}
        }
        if now < self.beat {
            return None;
        }
        self.beat = now + self.timing.heartbeat;
        self.sent.push_back(now);
        let number = self.answered + self.sent.len() as u64;
        Some(Duty::Beat { number })
    }

    /// When [`Lease::poll`] has the next duty.
    pub fn due(&self) -> Duration {
        match (self.has_begun, self.held) {
            (false, _) => self.beat,
            (true, None) => self.until.min(self.beat),
            (true, Some(since)) => (since + self.timing.hold).min(self.beat),
        }
    }

    /// Until when ranks may send to other nodes, by this node's clock. An agent that stands still cannot stop them, so
    /// they check it themselves.
    pub fn until(&self) -> Duration {
        match self.is_over {
            true => Duration::ZERO,
            false => self.until,
        }
    }
}
