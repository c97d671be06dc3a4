//! Heartbeats as datagrams, beside those on an agent's connection to the dispatcher.
//!
//! After a cut TCP sends again only when the cut has lasted once more, as it doubles its waits. Then a lease may be
//! over although the cut was shorter. A datagram passes at once.
//!
//! ```text
//! agent                                     dispatcher
//! of  number  proof                        →
//!                                          ← of  number  proof
//! ```
//!
//! A proof is BLAKE3, keyed with the job's key. It covers a label of the side, and the rest. Strangers may keep and
//! repeat a datagram: it counts only if its number is greater than those before.

use crate::handshake::{Bytes32, KEY_BYTES};

/// Bytes by which an agent is known, drawn by it. It tells them on its connection.
pub const NAME_BYTES: usize = 16;
/// Bytes of a datagram.
pub const BYTES: usize = NAME_BYTES + 8 + KEY_BYTES;

/// Who sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Agent,
    Dispatcher,
}

/// A heartbeat, or the answer to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Beat {
    /// The agent's name.
    pub of: [u8; NAME_BYTES],
    pub number: u64,
}

impl Beat {
    fn plain(&self) -> [u8; NAME_BYTES + 8] {
        let mut bytes = [0; NAME_BYTES + 8];
        bytes[..NAME_BYTES].copy_from_slice(&self.of);
        bytes[NAME_BYTES..].copy_from_slice(&self.number.to_le_bytes());
        bytes
    }

    /// The proof; it compares in constant time, as `blake3::Hash` does.
    fn proof(&self, side: Side, key: &Bytes32) -> blake3::Hash {
        let label: &[u8; 24] = match side {
            Side::Agent => b"resurgo beat: agent     ",
            Side::Dispatcher => b"resurgo beat: dispatcher",
        };
        blake3::keyed_hash(key, &[label.as_slice(), &self.plain()].concat())
    }

    /// The datagram.
    pub fn sealed(&self, side: Side, key: &Bytes32) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        bytes[..NAME_BYTES + 8].copy_from_slice(&self.plain());
        bytes[NAME_BYTES + 8..].copy_from_slice(self.proof(side, key).as_bytes());
        bytes
    }

    /// The heartbeat of a datagram from the other side; None: it is nobody's who has the key.
    pub fn open(datagram: &[u8], side: Side, key: &Bytes32) -> Option<Beat> {
        let (of, rest) = datagram.split_first_chunk::<NAME_BYTES>()?;
        let (number, proof) = rest.split_first_chunk::<8>()?;
        let proof: Bytes32 = proof.try_into().ok()?;
        let beat = Beat {
            of: *of,
            number: u64::from_le_bytes(*number),
        };
        (beat.proof(side, key) == blake3::Hash::from_bytes(proof)).then_some(beat)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_has_the_key_is_understood_and_only_as_the_side_that_it_is() {
        let (beat, key) = (
            Beat {
                of: [3; NAME_BYTES],
                number: 77,
            },
            [9; KEY_BYTES],
        );
        let datagram = beat.sealed(Side::Agent, &key);
        assert_eq!(Beat::open(&datagram, Side::Agent, &key), Some(beat));
        assert_eq!(Beat::open(&datagram, Side::Dispatcher, &key), None);
        assert_eq!(Beat::open(&datagram, Side::Agent, &[8; KEY_BYTES]), None);
        for length in 0..BYTES {
            assert_eq!(Beat::open(&datagram[..length], Side::Agent, &key), None);
            let mut other = datagram;
            other[length] ^= 1;
            assert_eq!(Beat::open(&other, Side::Agent, &key), None);
        }
        assert_eq!(
            Beat::open(&[datagram.as_slice(), &[0]].concat(), Side::Agent, &key),
            None
        );
    }
}
