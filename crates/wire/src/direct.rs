//! The carrier of a channel between two nodes: the movers, or the ranks' own connection. Here the rank, its node's
//! mover and the other node's mover agree on it. [`resurgo_protocol::handover`] says who decides what.
//!
//! Each arena has a record of [`BYTES`] bytes per other rank. The first words are for the channel *to* that rank, the
//! others for the one *from* it.

use std::net::{IpAddr, Ipv6Addr};

/// Bytes of a record.
pub const BYTES: usize = 64;

/// A word of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Word {
    /// By the sender: the number of its open connection; 0: it has none. Each connection of the channel has another
    /// number.
    Offer = 0,
    /// By the sender's mover: the offer that it has accepted. From then on the connection carries the channel. 0: the
    /// mover carries it.
    Given = 8,
    /// By the sender's mover, before `Given`: the generation, and the place from which on the connection carries the
    /// channel.
    Generation = 16,
    From = 24,
    /// By the sender: up to this place the kernel has the channel; first by its mover, like `From`.
    Sent = 32,
    /// By the sender: how often the kernel took nothing more.
    Looks = 56,
    /// By the receiver's mover: the generation from which the receiver takes the channel; 0: the mover writes the copy.
    Hand = 40,
    /// By the receiver: the copy is complete up to this place; first by its mover, before `Hand`.
    Wrote = 48,
}

/// An address as two words of the node memory.
pub fn to_words(address: IpAddr) -> [u64; 2] {
    let address = match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    };
    let bits = address.to_bits();
    [(bits >> 64) as u64, bits as u64]
}

/// The address of two words.
pub fn from_words([high, low]: [u64; 2]) -> IpAddr {
    Ipv6Addr::from_bits(u128::from(high) << 64 | u128::from(low)).to_canonical()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_come_back_as_they_were() {
        for address in ["10.9.8.7", "fd00::17", "::"] {
            let address: IpAddr = address.parse().unwrap();
            assert_eq!(from_words(to_words(address)), address);
        }
    }
}
