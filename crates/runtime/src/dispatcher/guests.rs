//! Nodes that come and go while the job runs.

use resurgo_wire::control::Job;

use super::launching::Launching;

/// The expected nodes, and what each arriving node needs to know.
pub struct Coming {
    pub launching: Launching,
    pub job: Box<Job>,
    /// Clients that wait for added hosts: the host's name, and the client.
    pub clients: Vec<(String, u64)>,
    /// Nodes that are to have no ranks.
    pub leaving: Vec<Leaving>,
}

impl Coming {
    pub fn of(launching: Launching, job: &Job) -> Coming {
        Coming {
            launching,
            job: Box::new(job.clone()),
            clients: Vec::new(),
            leaving: Vec::new(),
        }
    }
}

/// A node that is to have no ranks.
pub struct Leaving {
    pub node: usize,
    /// The client that waits for it; none: its machine is about to be taken away.
    pub client: Option<u64>,
    /// Its agent ends afterwards.
    pub removed: bool,
    /// Its agent has been told to end, with its ranks.
    pub ends: bool,
}
