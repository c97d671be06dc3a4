//! How an agent on another node finds the dispatcher, and what both say about themselves before there is a job.
//!
//! ```text
//! launcher (fork, ssh, srun)  ── Invitation, one line of JSON on standard input ──►  agent
//! agent                       ── TCP, the handshake of the job's key, Arrival ────►  dispatcher
//! ```
//!
//! Standard input stays open: its end ends the agent. Other users can read a command line and an environment, so
//! neither contains the key.
//!
//! With many hosts a *helper* on one of them starts the agents of a few others, too:
//!
//! ```text
//! dispatcher ── ssh, Errand ──► helper ── ssh, Invitation ──► other nodes
//!            ◄─ lines of Told ─        ◄─ the same standard output
//! ```
//!
//! These agents do not look at standard input once they have the invitation: losing the helper's node must not end
//! theirs. Their lease ends them.

use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

use super::{FrameError, Message, frames};
use crate::frame::Reader;
use crate::handshake::{NAMES, Word};

/// The hidden verb of an agent; the word behind it for an invited agent; that for its starter on another machine; and
/// that for a helper.
pub const AGENT: &str = "agent";
pub const INVITED: &str = "invited";
pub const KEPT: &str = "kept";
pub const HELPER: &str = "helper";
/// That for a checkpoint server which a job has started.
pub const STORE_SERVER: &str = "store-server";

/// The longest invitation, in bytes.
pub const LONGEST_INVITATION: u64 = 1 << 20;

/// How an agent hears that its machine will be taken away.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Preemption {
    /// By this signal.
    pub signal: Option<i32>,
    /// When this file exists.
    pub file: Option<OsString>,
    /// A page that says so: see `page.rs` of the runtime.
    #[serde(default)]
    pub url: Option<String>,
}

/// A limit of processes, by its letter at `ulimit`. `u64::MAX`: there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit {
    pub letter: char,
    pub soft: u64,
    pub hard: u64,
}

/// What an agent learns from its starter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Invitation {
    /// Version of resurgo.
    pub version: String,
    pub key: [u8; 32],
    /// The node's number, from 0, and how many nodes there are.
    pub node: u32,
    pub nodes: u32,
    /// The dispatcher's addresses; the agent takes the first that answers.
    pub addresses: Vec<IpAddr>,
    pub port: u16,
    /// The dispatcher's umask, so that files made by ranks are alike on all nodes.
    pub umask: u32,
    /// Limits of `resurgo run`, for the ranks of all nodes.
    #[serde(default)]
    pub limits: Vec<Limit>,
    /// How long the agent goes on without an answer from the dispatcher.
    pub lease_ms: u64,
    /// For how long its ranks stand still when the lease has run out, before they end.
    pub hold_ms: u64,
    /// Whether nodes encrypt what they say to one another.
    pub is_encrypted: bool,
    /// Files that must be the same on all nodes.
    pub files: Vec<OsString>,
    /// How the node hears that it will be taken away.
    #[serde(default)]
    pub preemption: Preemption,
    /// The interface, by its name or a network, whose addresses the agent announces.
    pub interface: Option<String>,
    /// The directory of image files, if they are on disks.
    #[serde(default)]
    pub directory: Option<JobDirectory>,
    /// What the node is to run for the ranks of all nodes.
    #[serde(default)]
    pub serve: Option<Serve>,
    /// The end of standard input ends the agent.
    pub has_life_line: bool,
    /// The port for heartbeats as datagrams ([`crate::beats`]); none: the dispatcher takes none.
    #[serde(default)]
    pub beats: Option<u16>,
}

/// What a helper is told, on its standard input: the agents to start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Errand {
    /// Of the helper's own node. The others get the same, with their numbers.
    pub invitation: Invitation,
    /// Numbers and names.
    pub others: Vec<(u32, String)>,
    /// The command to use instead of ssh.
    pub launcher_file: Option<OsString>,
}

/// What a helper, and the starters of its agents, say: a line of JSON each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Told {
    /// The helper runs.
    Here,
    /// The launcher of this node's agent has ended, and the agent may run nevertheless.
    LauncherEnded { node: u32 },
    /// This node's agent has ended, and so has all that it had started.
    Ended { node: u32 },
}

impl Told {
    /// The line, with its end.
    ///
    /// # Errors
    /// None is known.
    pub fn line(&self) -> serde_json::Result<Vec<u8>> {
        let mut line = serde_json::to_vec(self)?;
        line.push(b'\n');
        Ok(line)
    }
}

/// What a checkpoint server of the job is told, on its standard input, whose end ends it. If anything comes before the
/// end, the server also removes its directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreErrand {
    /// Version of resurgo.
    pub version: String,
    /// The directory of its objects is `name` in `within`, which is made if need be.
    pub within: OsString,
    pub name: String,
    /// Whether `within` goes, too, when it is empty.
    pub is_usual: bool,
    /// Only processes of its own machine reach it.
    pub is_here: bool,
    pub port: u16,
    /// Its clients prove this key.
    pub key: [u8; 32],
}

/// What it says, a line of JSON each.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum StoreTold {
    Serves {
        pid: u32,
    },
    Failed {
        reason: String,
    },
    /// It is still there.
    Beat,
    /// Its directory is gone, or why not.
    Removed(Result<(), String>),
}

impl StoreTold {
    /// The line, with its end.
    ///
    /// # Errors
    /// None is known.
    pub fn line(&self) -> serde_json::Result<Vec<u8>> {
        let mut line = serde_json::to_vec(self)?;
        line.push(b'\n');
        Ok(line)
    }
}

/// Servers that a node runs, each a process of its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Serve {
    /// The hidden verb with which resurgo becomes one.
    pub verb: String,
    pub count: u32,
    /// What each is told.
    pub settings: serde_json::Value,
    /// The directory of the nameless file that each has, if they have.
    pub file_in: Option<OsString>,
}

/// The job's own directory, under one path on all nodes. An agent makes it if it does not exist.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobDirectory {
    pub path: OsString,
    /// The key by which the job recognises what it has written.
    pub key: [u8; 32],
    /// Name of a file in the dispatcher's directory: an agent that finds it sees the same directory.
    pub sign: String,
}

/// A piece of parity in a job's directory: its set, and the ranks of that, in order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Piece {
    pub number: u64,
    pub set: u64,
    pub index: u32,
    pub members: Vec<u32>,
}

/// What an agent finds in the job's directory.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sight {
    /// It is the dispatcher's directory.
    pub is_shared: bool,
    /// Names of image files.
    pub images: Vec<String>,
    #[serde(default)]
    pub pieces: Vec<Piece>,
}

/// The first message of an agent that was invited.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Arrival {
    /// What the node calls itself.
    pub host: String,
    /// The addresses at which the agent listens for other nodes' agents.
    pub mesh: Vec<SocketAddr>,
    /// The port for copies of images.
    pub copies: u16,
    /// The machine that the node is on, by what only that has; none: it cannot be told.
    #[serde(default)]
    pub machine: Option<String>,
    /// Limits that are lower there than the invitation's, as they are.
    #[serde(default)]
    pub limits: Vec<Limit>,
    /// What must be the same on all nodes.
    pub alike: Alike,
    /// The job's directory as this agent sees it, or why it cannot be used.
    #[serde(default)]
    pub directory: Option<Result<Sight, String>>,
    /// Of each server, the port at which it listens and the number of its process.
    #[serde(default)]
    pub servers: Vec<(u16, u32)>,
    /// By what its heartbeats as datagrams are known.
    #[serde(default)]
    pub beats: [u8; crate::beats::NAME_BYTES],
}

/// What must be the same on all nodes: ranks move between them, with their memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Alike {
    /// BLAKE3 of resurgo's own file, in hexadecimal digits.
    pub resurgo: String,
    /// The same for each file of the invitation, or why it cannot be read.
    pub files: Vec<Result<String, String>>,
    pub user: u32,
    /// Bytes of a page.
    pub page: u64,
    /// What the processor can do (the flags of /proc/cpuinfo).
    pub processor: Vec<String>,
}

/// Words of the handshake, in frames with kinds of their own.
impl Message for Word {
    const LONGEST: usize = 1 << 10;

    fn encode(&self, out: &mut Vec<u8>) {
        let mut fields = Vec::new();
        self.put(&mut fields);
        frames::frame(out, self.kind(), &[&fields]);
    }

    fn decode(frame: &[u8]) -> Result<Word, FrameError> {
        let malformed = || FrameError::Malformed("no word of a handshake".to_string());
        let (kind, fields) = frame.split_first().ok_or_else(malformed)?;
        let name = (*kind as usize).checked_sub(1).and_then(|index| NAMES.get(index));
        let mut reader = Reader {
            frame: name.ok_or_else(malformed)?,
            bytes: fields,
        };
        let word = Word::take(*kind, &mut reader).and_then(|word| reader.end().map(|()| word));
        word.map_err(|error| FrameError::Malformed(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::FrameBuffer;
    use crate::handshake::{Doorkeeper, Greeting, Heard, Hello, Server};

    const KEY: [u8; 32] = [5; 32];

    fn greeting(key: [u8; 32]) -> Greeting {
        let hello = Hello {
            rank: 1,
            size: 2,
            incarnation: 0,
            nonce: [1; 32],
        };
        Greeting::new(Server::Dispatcher, key, hello)
    }

    /// The word as the other side reads it.
    fn sent(word: &Word) -> Word {
        let (mut bytes, mut buffer) = (Vec::new(), FrameBuffer::default());
        word.encode(&mut bytes);
        buffer.extend(&bytes);
        buffer.next_message().unwrap().unwrap()
    }

    #[test]
    fn an_agent_and_a_dispatcher_prove_the_key_to_one_another() {
        for (theirs, is_proved) in [(KEY, true), ([6; 32], false)] {
            let greeting = greeting(KEY);
            let mut door = Doorkeeper::new(Server::Dispatcher, 2, 0, theirs, [2; 32]);
            let Heard::Stranger(challenge) = door.hear(sent(&greeting.hello())).unwrap() else {
                panic!("a stranger is asked for a proof");
            };
            let answer = greeting.answer(sent(&challenge), |_| None);
            assert_eq!(answer.is_ok(), is_proved);
            if let Ok((_, proof)) = answer {
                assert!(matches!(door.hear(sent(&proof)), Ok(Heard::Proved(visitor)) if visitor.rank == 1));
            }
        }
    }

    #[test]
    fn nothing_else_is_a_word() {
        for frame in [&[][..], &[0, b'{'], &[9], &[3, 1, 2]] {
            assert!(Word::decode(frame).is_err(), "{frame:?}");
        }
    }
}
