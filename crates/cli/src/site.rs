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
//! All but the page needs the token of the address: other users of the machine can connect, too.

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

/// A listener, and what it serves.
pub struct Opened {
    listener: TcpListener,
    site: Site,
    /// With the token.
    address: String,
    is_of_this_machine: bool,
}

impl Opened {
    /// Listens there. `control`: pages may give orders to this job.
    ///
    /// # Errors
    /// It cannot, which is told.
    pub fn at(wanted: SocketAddr, job: u32, control: bool) -> Result<Opened, String> {
        let failed = |error: io::Error| format!("cannot listen at {wanted}: {error}");
        let listener = TcpListener::bind(wanted).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let token = sys::token().map_err(|error| format!("cannot read /dev/urandom: {error}"))?;
        Ok(Opened {
            listener,
            site: Site {
                watched: Arc::new(Watched::new(job)),
                token: blake3::hash(token.as_bytes()),
                control,
            },
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

    /// Serves until the job has ended; returns how.
    ///
    /// # Errors
    /// It cannot serve.
    pub fn serve(self, job: Job) -> io::Result<String> {
        let (watched, looks) = (self.site.watched.clone(), self.site.watched.clone());
        std::thread::spawn(move || looks.look(job));
        server::serve(self.listener, self.site)?;
        Ok(watched.end())
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
        let opened = Opened::at(wanted, std::process::id(), false);
        let opened = opened.map_err(|why| Refusal::new(1, format!("--web: {why}")))?;
        let watched = opened.site.watched.clone();
        say::note(&format!("the job's page is {}", opened.address));
        opened.warn();
        // Signals are for the thread that runs the job.
        let all = SigSet::all();
        let before = all.thread_swap_mask(SigmaskHow::SIG_BLOCK);
        let looks = watched.clone();
        std::thread::spawn(move || looks.look_from_its_start());
        let serving = std::thread::spawn(move || drop(server::serve(opened.listener, opened.site)));
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
