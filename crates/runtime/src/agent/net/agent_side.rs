//! What the agent does with its mover: it starts it, and holds back what ranks say until other nodes have what that is about.

use std::io;
use std::net::TcpListener;

use nix::sys::epoll::{EpollEvent, EpollFlags};
use resurgo_wire::control::{Nodes, ToDispatcher};
use resurgo_wire::image::{Datagram, Kind};

use super::{Answer, HeldBack, Net};
use crate::agent::guest::Guest;
use crate::agent::{Agent, Source, Work};

impl Work {
    /// Connects the node memory with those of other nodes, if the job has any. `listener`: where their agents call.
    pub fn join(mut self, listener: Option<TcpListener>) -> Result<Work, Box<ToDispatcher>> {
        if let Some(plan) = &self.job.nodes {
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
    /// Ranks will be in other places, and none runs: the mover begins anew.
    pub fn move_ranks(&mut self, nodes: Nodes) -> io::Result<()> {
        self.held_back.clear();
        for (rank, this) in self.work.ranks.iter_mut().enumerate() {
            if !nodes.is_here(rank) {
                this.images.end_copies();
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
        self.held_back.push(HeldBack {
            flush: net.flush(),
            rank,
            life: self.work.ranks[rank].number,
            said,
        });
        Ok(())
    }

    /// The mover has something to say.
    pub fn net_event(&mut self) -> io::Result<()> {
        let answers = self.work.net.as_ref().map_or(Vec::new(), Net::answers);
        for answer in answers {
            match answer {
                Answer::Flushed(number) => {
                    let due: Vec<HeldBack> = self.held_back.extract_if(.., |held| held.flush == number).collect();
                    for HeldBack { rank, life, said, .. } in due {
                        if self.work.ranks[rank].number == life {
                            self.said_of_image(rank, said, None)?;
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
