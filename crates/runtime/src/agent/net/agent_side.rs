//! The agent's side of its mover: it starts the mover, and holds back ranks' reports until other nodes have the data
//! that these are about.

use std::collections::BTreeSet;
use std::io;
use std::net::TcpListener;

use nix::sys::epoll::{EpollEvent, EpollFlags};
use resurgo_protocol::Fact;
use resurgo_protocol::kinds::{Kept, Waves};
use resurgo_wire::control::{Ended, Nodes, ToDispatcher};
use resurgo_wire::image::{Datagram, Kind};

use super::mirror::Ends;
use super::shared::{Held, Returning, Waiting};
use super::{Answer, HeldBack, Net};
use crate::agent::guest::Guest;
use crate::agent::vouched::Vouched;
use crate::agent::{Agent, Source, Work};

impl Work {
    /// Messages go from memory to memory, not through channel memories.
    fn moves_messages(&self) -> bool {
        self.job.protocol.kept() != Kept::InChannelMemory
    }

    /// A report of this kind is about words that other ranks read.
    pub fn is_flushed_before(&self, kind: Kind) -> bool {
        let has_stopped = match self.job.protocol.waves() {
            // The rank writes these words when it is copied.
            Waves::Passing => false,
            _ => matches!(kind, Kind::Stopped | Kind::Drained | Kind::Noticed),
        };
        self.net.is_some() && self.has_waves() && (has_stopped || kind == Kind::Ready)
    }

    /// The dispatcher hears of a rank's end when other nodes have all that the rank has sent: a rank that has finished is
    /// not done again for it, and survivors receive it before they learn of a failure.
    pub fn is_flushed_before_end(&self, orderly: bool) -> bool {
        self.net.is_some()
            && match orderly {
                // Also while waves are given up: they may come back.
                true => self.job.protocol.can_return_together() || self.job.protocol.with_waves().is_some(),
                false => self.job.survives(),
            }
    }

    /// The node is lost. Its ranks' messages that are here stay.
    pub fn loses(&mut self, node: u32) {
        self.net.iter().for_each(|net| net.loses(node));
        let mesh = self
            .job
            .nodes
            .iter_mut()
            .filter_map(|nodes| nodes.mesh.get_mut(node as usize));
        mesh.for_each(Vec::clear);
    }

    /// Connects the node memory with those of other nodes, if the job has any. `listener`: where their agents call.
    pub fn join(mut self, listener: Option<TcpListener>) -> Result<Work, Box<ToDispatcher>> {
        if let Some(plan) = self.job.nodes.as_ref().filter(|_| self.moves_messages()) {
            let listener = listener.ok_or_else(|| io::Error::other("there is no place where other nodes could call"));
            let net = listener.and_then(|listener| Net::start(&self.job, plan, &self.memory, listener));
            let net = net.map_err(|error| {
                let reason = format!("cannot connect with other nodes: {error}");
                Box::new(ToDispatcher::Failed { reason })
            })?;
            self.net = Some(net);
        }
        Ok(self)
    }
}

impl Work {
    /// Ranks are on another node than before. What their records held there does not count any more. Ranks that come
    /// here begin with those logs only that are here.
    fn take_over(&mut self, nodes: &Nodes, ends: &mut Ends) -> io::Result<()> {
        let Some(former) = &self.job.nodes else { return Ok(()) };
        let ranks = 0..self.ranks.len();
        let moved = ranks.filter(|rank| former.of_rank.get(*rank) != nodes.of_rank.get(*rank));
        let moved: Vec<usize> = moved.collect();
        for rank in &moved {
            let rank = *rank;
            self.memory.forget_counts(rank)?;
            if nodes.is_here(rank) {
                self.memory.take_over(rank)?;
                self.returning.lacks.push(rank as u32);
            }
        }
        match self.job.piggybacks() {
            true => self.forget_arrived(&moved, nodes, ends),
            false => Ok(()),
        }
    }

    /// Of the logs of ranks whose nodes are lost only what has come to ranks here that know what they had known has
    /// arrived. To others it may not tell what their former lives had been told.
    fn forget_arrived(&mut self, moved: &[usize], nodes: &Nodes, ends: &mut Ends) -> io::Result<()> {
        let ranks = self.ranks.len();
        let is_unplaced = |rank: &usize| {
            let node = nodes.of_rank.get(*rank).copied().unwrap_or(nodes.own);
            node != nodes.own && nodes.mesh.get(node as usize).is_none_or(Vec::is_empty)
        };
        let unplaced = (0..ranks).filter(is_unplaced);
        let lost: BTreeSet<u32> = unplaced.chain(moved.iter().copied()).map(|rank| rank as u32).collect();
        let Returning { lacks, lost: ever, .. } = &mut self.returning;
        ever.extend(lost.iter().filter(|rank| !ever.contains(rank)).collect::<Vec<_>>());
        for source in lost.iter().chain(lacks.iter()) {
            let is_void = |to: &u32| !nodes.is_here(*to as usize) || lacks.contains(to);
            for to in (0..ranks as u32).filter(is_void) {
                self.memory.forget_log(*source as usize, to as usize)?;
                ends.remove(&(*source, to));
            }
        }
        Ok(())
    }
}

impl Agent {
    /// Ranks are about to change nodes. Where there is a mover it begins anew.
    pub fn move_ranks(&mut self, nodes: Nodes) -> io::Result<()> {
        let former = self.work.job.nodes.as_ref();
        let was_here = |rank: usize| former.is_none_or(|former| former.is_here(rank));
        for (rank, this) in self.work.ranks.iter_mut().enumerate() {
            match nodes.is_here(rank) {
                // What it has read here before is of another time.
                true if !was_here(rank) => self.work.memory.reads_are_elsewhere(rank)?,
                true => {}
                false => this.images.end_copies(),
            }
        }
        // Others have noted more since, when a rank comes back.
        self.work.file_notes.retain(|rank, _| nodes.is_here(*rank));
        if !self.work.moves_messages() {
            self.work.job.nodes = Some(nodes);
            return Ok(());
        }
        let mut said_before = Vec::new();
        for held in std::mem::take(&mut self.held_back) {
            match held.what {
                Held::Fact(fact) => self.report(fact),
                Held::Ended(ended) => self.report_end(*ended)?,
                Held::Said { rank, life, said } => said_before.push((rank, life, said)),
            }
        }
        let former = self.work.net.take().map(Net::stop);
        let mut former = former.ok_or_else(|| io::Error::other("there is nothing that moves messages"))?;
        if self.work.job.moves_ranks() {
            self.work.take_over(&nodes, &mut former.ends)?;
            former.lacks.clone_from(&self.work.returning.lacks);
            former.returned.clone_from(&self.work.returning.returned);
            former.lost.clone_from(&self.work.returning.lost);
            former.vouched = std::mem::take(&mut self.work.returning.vouched);
            // All is told anew.
            self.work.vouched = Vouched::default();
        } else {
            // Logs begin anew.
            former.ends.clear();
        }
        for (rank, this) in self.work.ranks.iter_mut().enumerate() {
            let was_here = self.work.job.nodes.as_ref().is_none_or(|former| former.is_here(rank));
            if nodes.is_here(rank) && !was_here {
                // It begins again.
                this.images.lacks_log = true;
                this.has_ended_elsewhere(false);
            }
        }
        self.work.job.nodes = Some(nodes.clone());
        let listener = self.guest.as_ref().map(Guest::mesh).transpose()?;
        let listener = listener.ok_or_else(|| io::Error::other("there is no place where other nodes could call"))?;
        let (job, memory) = (&self.work.job, &self.work.memory);
        self.work.net = Some(Net::after(former, job, &nodes, memory, listener)?);
        // A lost node would never have answered. Where only its ranks begin again, others still are what they said.
        let stands = |(rank, life, _): &(usize, u64, _)| self.work.ranks[*rank].number == *life;
        said_before.retain(|said| self.work.job.moves_ranks() && stands(said));
        for (rank, _, said) in said_before {
            self.after_flush(rank, *said)?;
        }
        self.watch_net()
    }

    /// Begins a life of a rank from a lost node once its logs are back. False: they are here.
    pub fn waits_for_logs(&mut self, life: Waiting) -> bool {
        let returning = &mut self.work.returning;
        let waits = returning.lacks.contains(&life.rank);
        if waits {
            returning.waiting.push(life);
        }
        waits
    }

    /// A life that waits for logs does not begin any more. They may never come: a node that has some may be lost by now,
    /// with ranks that have no places yet.
    pub fn end_waiting(&mut self, rank: u32, life: u64) {
        let waiting = &mut self.work.returning.waiting;
        let of = |waiting: &mut Waiting| (waiting.rank, waiting.life) == (rank, life);
        let ended: Vec<Waiting> = waiting.extract_if(.., of).collect();
        for Waiting { rank, life, .. } in ended {
            self.report(Fact::NotBegun { rank, life });
        }
    }

    /// The logs of `rank` have come back.
    fn has_logs(&mut self, rank: u32) -> io::Result<()> {
        let returning = &mut self.work.returning;
        if !returning.lacks.contains(&rank) {
            // All have begun anew meanwhile.
            return Ok(());
        }
        returning.lacks.retain(|lacks| *lacks != rank);
        returning.returned.push(rank);
        let waiting: Vec<Waiting> = returning.waiting.extract_if(.., |life| life.rank == rank).collect();
        for life in waiting {
            self.begin_here(rank, life.life, life.from, life.together, life.reads)?;
        }
        Ok(())
    }

    /// What is here of the logs of `rank` is all that there is: other nodes get it.
    pub fn has_all_logs(&mut self, rank: u32) {
        let returned = &mut self.work.returning.returned;
        let had_returned = returned.len();
        returned.retain(|returned| *returned != rank);
        if returned.len() < had_returned {
            self.work.net.iter().for_each(|net| net.has_logs(rank));
        }
    }

    pub fn watch_net(&self) -> io::Result<()> {
        if let Some(net) = &self.work.net {
            let event = EpollEvent::new(EpollFlags::EPOLLIN, Source::Net.token());
            self.epoll.add(net, event)?;
        }
        Ok(())
    }

    /// A rank has stopped, or has cut off its logs: holds the report back until other nodes have the rank's writes.
    pub fn after_flush(&mut self, rank: usize, said: Datagram) -> io::Result<()> {
        let Some(net) = &mut self.work.net else { return Ok(()) };
        if said.kind == Kind::Ready {
            net.cut_off(rank);
        }
        let life = self.work.ranks[rank].number;
        self.held_back.push(HeldBack {
            flush: net.flush(),
            what: Held::Said {
                rank,
                life,
                said: Box::new(said),
            },
        });
        Ok(())
    }

    /// A rank is copied. In a wave that stops no rank, others read how far it had come: they must have that first.
    pub fn report_copied(&mut self, fact: Fact) {
        match self
            .work
            .net
            .as_mut()
            .filter(|_| self.work.job.protocol.waves() == Waves::Passing)
        {
            Some(net) => self.held_back.push(HeldBack {
                flush: net.flush(),
                what: Held::Fact(fact),
            }),
            None => self.report(fact),
        }
    }

    /// A rank has ended: holds the report back until other nodes have what the rank has sent.
    pub fn end_after_flush(&mut self, ended: Ended) {
        if let Some(net) = &mut self.work.net {
            self.held_back.push(HeldBack {
                flush: net.flush(),
                what: Held::Ended(Box::new(ended)),
            });
        }
    }

    fn report_end(&mut self, ended: Ended) -> io::Result<()> {
        let rank = ended.rank;
        self.send(&ToDispatcher::Ended(ended))?;
        self.tell_output_end(rank)
    }

    /// The mover has answers.
    pub fn net_event(&mut self) -> io::Result<()> {
        let answers = self.work.net.as_ref().map_or(Vec::new(), Net::answers);
        for answer in answers {
            match answer {
                Answer::Flushed(number) => {
                    let due: Vec<HeldBack> = self.held_back.extract_if(.., |held| held.flush == number).collect();
                    for held in due {
                        match held.what {
                            Held::Fact(fact) => self.report(fact),
                            Held::Ended(ended) => self.report_end(*ended)?,
                            Held::Said { rank, life, said } if self.work.ranks[rank].number == life => {
                                self.said_of_image(rank, *said, None)?;
                            }
                            Held::Said { .. } => {}
                        }
                    }
                }
                Answer::Returned(rank) => self.has_logs(rank)?,
                Answer::Failed(reason) => {
                    let reason = format!("messages between nodes cannot be moved: {reason}");
                    self.send(&ToDispatcher::Failed { reason })?;
                }
            }
        }
        Ok(())
    }
}
