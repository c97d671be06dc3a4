//! What the agent does with its mover: it starts it, and holds back what ranks say until other nodes have what that is about.

use std::io;
use std::net::TcpListener;

use nix::sys::epoll::{EpollEvent, EpollFlags};
use resurgo_protocol::Fact;
use resurgo_protocol::kinds::{Kept, Waves};
use resurgo_wire::control::{Nodes, ToDispatcher};
use resurgo_wire::image::{Datagram, Kind};

use super::shared::Held;
use super::{Answer, HeldBack, Net};
use crate::agent::guest::Guest;
use crate::agent::{Agent, Source, Work};

impl Work {
    /// Messages go from memory to memory: not those that go through channel memories.
    fn moves_messages(&self) -> bool {
        self.job.protocol.kept() != Kept::InChannelMemory
    }

    /// What a rank says so is about words that others read.
    pub fn is_flushed_before(&self, kind: Kind) -> bool {
        let has_stopped = match self.job.protocol.waves() {
            // It writes them when it is copied.
            Waves::Passing => false,
            _ => matches!(kind, Kind::Stopped | Kind::Drained | Kind::Noticed),
        };
        self.net.is_some() && self.has_waves() && (has_stopped || kind == Kind::Ready)
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

impl Agent {
    /// Ranks will be in other places. Where there is a mover none runs, and it begins anew.
    pub fn move_ranks(&mut self, nodes: Nodes) -> io::Result<()> {
        for (rank, this) in self.work.ranks.iter_mut().enumerate() {
            if !nodes.is_here(rank) {
                this.images.end_copies();
            }
        }
        if !self.work.moves_messages() {
            self.work.job.nodes = Some(nodes);
            return Ok(());
        }
        for held in std::mem::take(&mut self.held_back) {
            if let Held::Fact(fact) = held.what {
                self.report(fact);
            }
        }
        // It lets go of the memory and of the other nodes. Copies of ranks that wake up have its bell.
        let bell = self.work.net.take().map(|net| net.shared.bell.clone());
        let bell = bell.ok_or_else(|| io::Error::other("there is nothing that moves messages"))?;
        for (rank, this) in self.work.ranks.iter_mut().enumerate() {
            let was_here = self.work.job.nodes.as_ref().is_none_or(|former| former.is_here(rank));
            this.images.lacks_log |= nodes.is_here(rank) && !was_here;
        }
        self.work.job.nodes = Some(nodes.clone());
        let listener = self.guest.as_ref().map(Guest::mesh).transpose()?;
        let listener = listener.ok_or_else(|| io::Error::other("there is no place where other nodes could call"))?;
        let (job, memory) = (&self.work.job, &self.work.memory);
        self.work.net = Some(Net::with_bell(job, &nodes, memory, listener, bell)?);
        self.watch_net()
    }

    pub fn watch_net(&self) -> io::Result<()> {
        if let Some(net) = &self.work.net {
            let event = EpollEvent::new(EpollFlags::EPOLLIN, Source::Net.token());
            self.epoll.add(net, event)?;
        }
        Ok(())
    }

    /// A rank has stopped, or has cut off its logs: that becomes known when what it has written is there where it is read.
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

    /// A rank has been copied. Where nobody stops for that others look how far it had come: they must have it by then.
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

    /// The mover has something to say.
    pub fn net_event(&mut self) -> io::Result<()> {
        let answers = self.work.net.as_ref().map_or(Vec::new(), Net::answers);
        for answer in answers {
            match answer {
                Answer::Flushed(number) => {
                    let due: Vec<HeldBack> = self.held_back.extract_if(.., |held| held.flush == number).collect();
                    for held in due {
                        match held.what {
                            Held::Fact(fact) => self.report(fact),
                            Held::Said { rank, life, said } if self.work.ranks[rank].number == life => {
                                self.said_of_image(rank, *said, None)?;
                            }
                            Held::Said { .. } => {}
                        }
                    }
                }
                Answer::Failed(reason) => {
                    let reason = format!("messages between nodes cannot be moved: {reason}");
                    self.send(&ToDispatcher::Failed { reason })?;
                }
            }
        }
        Ok(())
    }
}
