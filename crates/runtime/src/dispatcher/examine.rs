//! Checks whether jobs can run on hosts: examines each as before a job begins, and whether all reach one another.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use resurgo_wire::control::{ToAgent, ToDispatcher};

use super::cluster::Cluster;
use super::launching::Launching;
use super::start_error::StartError;
use crate::connection::Connection;
use crate::reach;

/// How long agents go on without a message from here: heartbeats get no answer during a check.
pub const LEASE: Duration = Duration::from_secs(600);
/// How long they may take to try the ways to all others.
const PATIENCE: Duration = Duration::from_secs(30);

/// A host, and what keeps jobs from running there.
pub struct Examined {
    pub name: String,
    pub trouble: Option<String>,
}

/// Examines all hosts of a cluster. Its lease should be [`LEASE`].
///
/// # Errors
/// The hosts cannot be examined from here.
pub fn examine(cluster: &Cluster) -> Result<Vec<Examined>, String> {
    let mut launching = wait_for_all(cluster).map_err(|error| error.to_string())?;
    let arrived = launching.fates();
    let mut hosts: Vec<Examined> = Vec::new();
    let mut there = Vec::new();
    for (place, (name, fate)) in arrived.into_iter().enumerate() {
        let trouble = match fate {
            Ok(arrived) => {
                there.push((place, arrived));
                None
            }
            Err(why) => Some(why),
        };
        hosts.push(Examined { name, trouble });
    }
    let mesh: Vec<Vec<SocketAddr>> = there.iter().map(|(_, arrived)| arrived.arrival.mesh.clone()).collect();
    for ((place, _), found) in there.iter().zip(reach::all(&mesh)) {
        let trouble = found.map(|why| format!("does not hear the node of this command: {why}"));
        hosts[*place].trouble = trouble;
    }
    let places: Vec<usize> = there.iter().map(|(place, _)| *place).collect();
    for (_, arrived) in &mut there {
        arrived.connection.queue(&ToAgent::Reach { nodes: mesh.clone() });
        let _ = arrived.connection.flush();
    }
    for (from, arrived) in &mut there {
        let found = match reached(&mut arrived.connection) {
            Ok(found) => found,
            Err(error) => {
                let trouble = format!("its agent has gone: {error}");
                hosts[*from].trouble.get_or_insert(trouble);
                continue;
            }
        };
        let name = hosts[*from].name.clone();
        for (to, why) in places.iter().zip(found) {
            if let Some(why) = why {
                let trouble = format!("cannot be reached from {name}: {why}");
                hosts[*to].trouble.get_or_insert(trouble);
            }
        }
    }
    // Only now: the others needed each of them.
    there.into_iter().for_each(|(_, arrived)| arrived.end());
    launching.end();
    Ok(hosts)
}

fn wait_for_all(cluster: &Cluster) -> Result<Launching, StartError> {
    let key = crate::sys::random().map_err(super::start_error::cannot("read /dev/urandom"))?;
    let mut launching = Launching::begin(cluster.clone(), key, None)?;
    while launching.is_waiting() {
        launching.step(None)?;
    }
    Ok(launching)
}

fn reached(connection: &mut Connection) -> io::Result<Vec<Option<String>>> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let ToDispatcher::Reached { why_not } = connection.wait_for(deadline)? {
            return Ok(why_not);
        }
    }
}
