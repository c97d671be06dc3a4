//! Servers of the job that run on this node, for ranks of all nodes. The dispatcher configures them, and gets all of
//! their reports.

use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use nix::unistd::Pid;
use resurgo_wire::control::{Serve, ToDispatcher};
use serde_json::Value;

use crate::server_process::{ServerProcess, listen_for};
use crate::sys::open_nameless;

/// How long their last reports may take at the end of the job.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// The servers, none where there are none.
#[derive(Default)]
pub(super) struct Serving(Vec<ServerProcess<Value, Value>>);

impl Serving {
    /// Starts them. `addresses`: by which others know the dispatcher's machine, see [`listen_for`].
    pub fn start(wanted: &Serve, addresses: &[IpAddr]) -> io::Result<Serving> {
        let mut serving = Serving::default();
        for _ in 0..wanted.count {
            let file = wanted.file_in.as_deref().map(open_nameless).transpose()?;
            let listener = listen_for(addresses, 0)?;
            let settings = wanted.settings.clone();
            let mut server = ServerProcess::new(wanted.verb.clone(), settings, listener, file);
            server.start()?;
            serving.0.push(server);
        }
        Ok(serving)
    }

    /// Of each, the port and the number of the process.
    pub fn places(&self) -> io::Result<Vec<(u16, u32)>> {
        let place = |server: &ServerProcess<_, _>| Ok((server.address()?.port(), server.pid().unwrap_or(0)));
        self.0.iter().map(place).collect()
    }

    /// Their processes are children of this one, and are reaped here.
    pub fn owns(&self, pid: Pid) -> bool {
        self.0.iter().any(|server| server.pid() == Some(pid.as_raw() as u32))
    }

    /// Readable when one has something to say, or has ended.
    pub fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.0.iter().filter_map(ServerProcess::socket)
    }

    /// Their reports since the last call, as messages to the dispatcher.
    pub fn hear(&mut self) -> Vec<ToDispatcher> {
        let servers = self.0.iter_mut().enumerate();
        let heard = servers.map(|(server, process)| (server, process.hear()));
        heard
            .filter(|(_, (reports, end))| !reports.is_empty() || end.is_some())
            .map(|(server, (reports, end))| ToDispatcher::Served { server, reports, end })
            .collect()
    }

    /// Lets them end.
    pub fn finish(&mut self) -> Vec<ToDispatcher> {
        let servers = self.0.iter_mut().enumerate();
        let last = servers.map(|(server, process)| ToDispatcher::Served {
            server,
            reports: process.finish(LAST_WORDS),
            end: None,
        });
        last.collect()
    }
}
