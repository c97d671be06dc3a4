//! Nodes that come and go while the job runs: who is awaited, and who is to leave.

use resurgo_wire::control::Job;

use super::launching::Launching;

/// What is awaited, and what each node that comes is told.
pub struct Coming {
    pub launching: Launching,
    pub job: Box<Job>,
    /// Who waits for a host that is to be added: its name, and the client.
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
    /// Who waits for it; nobody: its machine is about to be taken away.
    pub client: Option<u64>,
    /// Its agent ends then.
    pub removed: bool,
}
