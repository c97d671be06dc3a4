//! How an agent on another node finds the dispatcher, and what both tell of themselves before there is a job.
//!
//! ```text
//! launcher (fork, ssh, srun)  ── Invitation, one line of JSON on standard input ──►  agent
//! agent                       ── TCP, the handshake of the job's key, Arrival ────►  dispatcher
//! ```
//!
//! Standard input stays open: its end is the end of the agent. A command line and an environment can be read by others, so
//! the key is in neither.

use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

use super::{FrameError, Message, frames};
use crate::frame::Reader;
use crate::handshake::{NAMES, Word};

/// The hidden verb of an agent, and the word after it of one that is invited; of what starts that on another machine.
pub const AGENT: &str = "agent";
pub const INVITED: &str = "invited";
pub const KEPT: &str = "kept";

/// Longest invitation, in bytes.
pub const LONGEST_INVITATION: u64 = 1 << 20;

/// How an agent hears that its machine is about to be taken away.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Preemption {
    /// By this signal.
    pub signal: Option<i32>,
    /// When there is such a file.
    pub file: Option<OsString>,
}

/// What an agent is told by whoever starts it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Invitation {
    /// Of resurgo.
    pub version: String,
    pub key: [u8; 32],
    /// Number of the node, from 0, of so many.
    pub node: u32,
    pub nodes: u32,
    /// Where the dispatcher listens; the first that answers is taken.
    pub addresses: Vec<IpAddr>,
    pub port: u16,
    /// As the dispatcher's, so that files that ranks make are alike on all nodes.
    pub umask: u32,
    /// How long the agent goes on without an answer of the dispatcher.
    pub lease_ms: u64,
    /// What nodes say to one another is encrypted.
    pub is_encrypted: bool,
    /// Files that must be the same on all nodes.
    pub files: Vec<OsString>,
    /// How the node hears that it is about to be taken away.
    #[serde(default)]
    pub preemption: Preemption,
    /// The interface, by its name or a network, whose addresses others are told.
    pub interface: Option<String>,
    /// Where image files are written, if they are on disks.
    #[serde(default)]
    pub directory: Option<JobDirectory>,
}

/// The job's own directory, under one path on all nodes. Each agent makes it unless it is there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobDirectory {
    pub path: OsString,
    /// By which the job knows what it has written.
    pub key: [u8; 32],
    /// Name of a file in the dispatcher's: an agent that finds it sees the same directory.
    pub sign: String,
}

/// What an agent finds in the job's directory.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sight {
    /// It is the dispatcher's.
    pub is_shared: bool,
    /// Names of image files.
    pub images: Vec<String>,
}

/// The first message of an agent that was invited.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Arrival {
    /// What the node calls itself.
    pub host: String,
    /// Where the agent listens for those of other nodes.
    pub mesh: Vec<SocketAddr>,
    /// The same for copies of images: the port.
    pub copies: u16,
    /// What must be the same on all nodes.
    pub alike: Alike,
    /// Of the job's directory; why it cannot be used.
    #[serde(default)]
    pub directory: Option<Result<Sight, String>>,
}

/// What must be the same on all nodes: ranks move between them, with their memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Alike {
    /// Of resurgo's own file: BLAKE3, in hexadecimal digits.
    pub resurgo: String,
    /// The same of each file of the invitation; why it cannot be read, where that is so.
    pub files: Vec<Result<String, String>>,
    pub user: u32,
    /// Bytes.
    pub page: u64,
    /// What the processor can do (the flags of /proc/cpuinfo).
    pub processor: Vec<String>,
}

/// Words of the handshake, in frames of their own kinds.
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

    /// As the other side reads it.
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
