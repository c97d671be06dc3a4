//! The page of a job for browsers, and its server.
//!
//! ```text
//! GET  /               the page, and what it consists of: the same for all jobs
//! GET  /events         server-sent events: `state` (as `resurgo ps JOB --json`, with the events since the last), `silent`,
//!                      `over`
//! POST /do             an order, with --control: {"do": "checkpoint"}, {"do": "drain", "node": "n1"},
//!                      {"do": "kill", "rank": 2}
//! ```
//!
//! All but the page needs the token of the address: other users of the machine can connect, too. Where a trace is
//! shown, `/` is its picture, and needs the token.

mod server;
mod watched;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;

use nix::sys::signal::{SigSet, SigmaskHow};
use resurgo_runtime::jobs::Job;
use resurgo_runtime::sys;

use crate::check::Refusal;
use crate::say;
use server::Site;
use watched::Watched;

const EXPOSED: &str =
    "whoever reads the network reads the token of the page, too: ssh -L to an address of this machine is safer";

/// A listener at an address that only those know who have been told.
pub struct Door {
    listener: TcpListener,
    token: blake3::Hash,
    /// With the token.
    address: String,
    is_of_this_machine: bool,
}

impl Door {
    /// Listens there.
    ///
    /// # Errors
    /// It cannot, which is told.
    pub fn at(wanted: SocketAddr) -> Result<Door, String> {
        let failed = |error: io::Error| format!("cannot listen at {wanted}: {error}");
        let listener = TcpListener::bind(wanted).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let token = sys::token().map_err(|error| format!("cannot read /dev/urandom: {error}"))?;
        Ok(Door {
            listener,
            token: blake3::hash(token.as_bytes()),
            address: format!("http://{address}/?token={token}"),
            is_of_this_machine: address.ip().is_loopback(),
        })
    }

    /// What whoever starts it is told.
    pub fn address(&self) -> &str {
        &self.address
    }

    pub fn warn(&self) {
        if !self.is_of_this_machine {
            say::note(EXPOSED);
        }
    }

    /// Serves the page of a job until that has ended; returns how. `control`: pages may give orders.
    ///
    /// # Errors
    /// It cannot serve.
    pub fn show_job(self, job: Job, control: bool) -> io::Result<String> {
        let (listener, site) = self.onto(job.number, control);
        let (watched, looks) = (site.watched.clone(), site.watched.clone());
        std::thread::spawn(move || looks.look(job));
        server::serve(listener, site)?;
        Ok(watched.end())
    }

    /// Serves a picture until the process is ended.
    ///
    /// # Errors
    /// It cannot serve.
    pub fn show_picture(self, svg: String) -> io::Result<()> {
        server::serve_picture(self.listener, self.token, svg)
    }

    fn onto(self, job: u32, control: bool) -> (TcpListener, Site) {
        let site = Site {
            watched: Arc::new(Watched::new(job)),
            token: self.token,
            control,
        };
        (self.listener, site)
    }
}

/// The page of a job that this process runs (`--web`): it only looks.
pub struct Beside {
    watched: Arc<Watched>,
    serving: JoinHandle<()>,
}

impl Beside {
    /// # Errors
    /// It cannot listen there.
    pub fn start(wanted: SocketAddr) -> Result<Beside, Refusal> {
        let door = Door::at(wanted).map_err(|why| Refusal::new(1, format!("--web: {why}")))?;
        say::note(&format!("the job's page is {}", door.address));
        door.warn();
        let (listener, site) = door.onto(std::process::id(), false);
        let watched = site.watched.clone();
        // Signals are for the thread that runs the job.
        let all = SigSet::all();
        let before = all.thread_swap_mask(SigmaskHow::SIG_BLOCK);
        let looks = watched.clone();
        std::thread::spawn(move || looks.look_from_its_start());
        let serving = std::thread::spawn(move || drop(server::serve(listener, site)));
        if let Ok(before) = before {
            let _ = before.thread_set_mask();
        }
        Ok(Beside { watched, serving })
    }

    /// The job has ended: pages hear of it.
    pub fn end(self) {
        if self.watched.is_seen() {
            self.watched.tell_end();
            let _ = self.serving.join();
        }
    }
}
