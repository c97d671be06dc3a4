//! Programs that deal with failures themselves: the state of [`resurgo_protocol::survivors`], which the failure policy
//! has, hears what ranks say and how they end. What follows goes to the agents.

use std::time::Duration;

use nix::sys::signal::Signal;
use resurgo_protocol::policy::End;
use resurgo_protocol::survivors::{News, Said, Survivors};
use resurgo_protocol::{Fact, Rank};
use resurgo_wire::control::{Ended, ToAgent};

use super::events::Event;
use super::node::Lost;
use super::{Dispatcher, FAILURE};

impl Dispatcher {
    pub(super) fn survivor_says(&mut self, rank: usize, said: Said) {
        self.survivors(|job| job.hears(rank as u32, said));
    }

    pub(super) fn survivor_finished(&mut self, rank: usize) {
        self.survivors(|job| job.finished(rank as u32));
    }

    /// The rank has repeated the messages of its former lives.
    pub(super) fn survivor_caught_up(&mut self, rank: usize) {
        self.survivors(|job| job.caught_up(rank as u32));
        if !self.ledger.repeats_output(rank) {
            self.survivor_has_printed(rank);
        }
    }

    /// It owes no output.
    pub(super) fn survivor_has_printed(&mut self, rank: usize) {
        self.survivors(|job| job.has_printed(rank as u32));
    }

    /// The rank has failed, and the others go on without it.
    pub(super) fn rank_lost(&mut self, ended: &Ended) {
        let rank = ended.rank;
        let left = self.pids.iter().flatten().count();
        let reason = ended.report.as_deref();
        self.bus.tell(Event::Lost { rank, left, reason });
        self.have_failed(&[rank as Rank], ended.end);
    }

    /// So are all that ran on this node.
    pub(super) fn node_of_survivors_lost(&mut self, node: usize, lost: &Lost) {
        self.agents.queue_all(&ToAgent::NodeLost { node: node as u32 });
        self.agents.send_queued();
        // New ranks begin on others.
        self.coordinate(Fact::Down { node: node as u32 });
        self.is_lost_or_left(node);
        let there: Vec<usize> = (0..self.pids.len())
            .filter(|rank| self.node_of(*rank) == node)
            .collect();
        let Some(failed) = self.policy.lost_with_node(&there) else {
            self.bus.error(&format!(
                "{}; not all of its ranks had begun MPI, and the others cannot go on without them, so the job ends",
                lost.words
            ));
            return self.end(FAILURE, Duration::ZERO);
        };
        self.bus.tell(Event::NodeLost {
            node,
            reason: &lost.words,
            cause: &lost.cause,
            restarts: false,
        });
        there.iter().for_each(|rank| self.pids[*rank] = None);
        let left = self.pids.iter().flatten().count();
        for rank in &failed {
            self.bus.tell(Event::Lost {
                rank: *rank,
                left,
                reason: None,
            });
        }
        let failed: Vec<Rank> = failed.into_iter().map(|rank| rank as Rank).collect();
        self.have_failed(&failed, End::Signalled(Signal::SIGKILL as i32));
    }

    fn have_failed(&mut self, ranks: &[Rank], end: End) {
        self.survivors(|job| job.failed(ranks, end.exit_code()));
        self.end_if_all_have_finished();
    }

    /// All ranks of a node know the news of this round.
    pub(super) fn survivors_know(&mut self, node: usize, round: u64) {
        self.survivors(|job| job.is_known(node as u32, round));
    }

    /// Something happens to the job, if its program deals with failures itself: ranks are told what follows.
    fn survivors(&mut self, happens: impl FnOnce(&mut Survivors) -> Vec<News>) {
        let Some(job) = &mut self.policy.survivors else { return };
        for news in happens(job) {
            match &news {
                News::Agreed { rank, .. } | News::Repeated { rank, .. } => {
                    let node = self.node_of(*rank as usize);
                    self.agents.node(node).queue(&ToAgent::Failures(news));
                }
                News::Ends { rank } => {
                    let rank = *rank as usize;
                    self.tell(ToAgent::Kill { rank });
                }
                _ => self.agents.queue_all(&ToAgent::Failures(news)),
            }
        }
        // A broken connection shows when it is read.
        self.agents.send_queued();
    }
}
