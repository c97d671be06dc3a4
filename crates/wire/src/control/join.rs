//! How a node joins a job by itself: what `resurgo join` and the dispatcher say before there is an agent.
//!
//! ```text
//! resurgo join    the handshake of the token ([`Server::Join`])  dispatcher
//! Joining                                                     →
//!                                                             ← Welcome
//! ```
//!
//! The node then has an [`Invitation`], with which it starts an agent. The job's key in it is masked: a listener learns
//! nothing.

use serde::{Deserialize, Serialize};

use super::{FrameError, Invitation, Message, from_json, json};
use crate::handshake::{Greeting, Hello, Server};

/// The longest of these messages, in bytes.
const LONGEST: usize = 1 << 20;
/// The shortest token, in characters.
pub const SHORTEST_TOKEN: usize = 16;

/// What a joining node says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Joining {
    /// Version of resurgo.
    pub version: String,
    /// What the node calls itself.
    pub host: String,
    /// How many ranks it has room for.
    pub slots: u32,
    /// Random.
    pub salt: [u8; 32],
}

/// The dispatcher's answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Welcome {
    /// `salt`: random. The key is masked by both salts.
    Invited {
        invitation: Box<Invitation>,
        salt: [u8; 32],
    },
    /// The job takes no node; the reason.
    Refused { reason: String },
}

/// The key that both sides prove to have, from the token.
pub fn key_of(token: &str) -> [u8; 32] {
    blake3::derive_key(
        "resurgo 2026-11 token of a job that nodes join",
        token.trim().as_bytes(),
    )
}

/// The greeting of a node that has the token. `nonce`: random.
pub fn greeting(token: &str, nonce: [u8; 32]) -> Greeting {
    let hello = Hello {
        rank: 0,
        size: 1,
        incarnation: 0,
        nonce,
    };
    Greeting::new(Server::Join, key_of(token), hello)
}

/// Masks the job's key, or takes the mask off. `theirs`: the joining side's salt; `ours`: the dispatcher's.
pub fn mask(key: [u8; 32], token_key: &[u8; 32], theirs: &[u8; 32], ours: &[u8; 32]) -> [u8; 32] {
    let mut salted = b"resurgo join: the job's key    ".to_vec();
    salted.extend_from_slice(theirs);
    salted.extend_from_slice(ours);
    let mask = blake3::keyed_hash(token_key, &salted);
    std::array::from_fn(|at| key[at] ^ mask.as_bytes()[at])
}

macro_rules! as_json {
    ($($message:ty),*) => {$(
        impl Message for $message {
            const LONGEST: usize = LONGEST;

            fn encode(&self, out: &mut Vec<u8>) {
                json(out, self);
            }

            fn decode(frame: &[u8]) -> Result<Self, FrameError> {
                from_json(frame)
            }
        }
    )*};
}

as_json!(Joining, Welcome);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_is_masked_anew_each_time() {
        let (key, token) = ([3; 32], key_of("a token of some length"));
        let masked = mask(key, &token, &[1; 32], &[2; 32]);
        assert_eq!(mask(masked, &token, &[1; 32], &[2; 32]), key);
        assert_ne!(masked, mask(key, &token, &[1; 32], &[4; 32]));
        assert_ne!(mask(masked, &key_of("another token"), &[1; 32], &[2; 32]), key);
        assert_eq!(key_of("token\n"), key_of("token"), "as it is read from a file");
    }
}
