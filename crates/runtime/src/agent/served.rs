//! The agent passes the reports of its node's servers to the dispatcher.

use std::io;

use nix::sys::epoll::{EpollEvent, EpollFlags};

use super::{Agent, Source};

impl Agent {
    pub(super) fn watch_servers(&self) -> io::Result<()> {
        for socket in self.guest.iter().flat_map(|guest| guest.serving.sockets()) {
            let event = EpollEvent::new(EpollFlags::EPOLLIN, Source::Servers.token());
            self.epoll.add(socket, event)?;
        }
        Ok(())
    }

    /// Servers may have reports.
    pub(super) fn servers_event(&mut self) -> io::Result<()> {
        let heard = self.guest.as_mut().map_or(Vec::new(), |guest| guest.serving.hear());
        heard.iter().try_for_each(|heard| self.send(heard))
    }

    /// The job is over, on all other nodes as well.
    pub(super) fn end_servers(&mut self) -> io::Result<()> {
        let last = self.guest.as_mut().map_or(Vec::new(), |guest| guest.serving.finish());
        last.iter().try_for_each(|last| self.send(last))
    }
}
