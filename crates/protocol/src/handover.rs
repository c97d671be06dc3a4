//! The carrier of a channel between two nodes: the movers of both, or a direct connection of sender and receiver.
//!
//! One of them at a time. The sender's mover decides; it is the [`Giver`]. The receiver's mover, the [`Taker`], lets the receiver write
//! the copy, or writes it itself. Both speak over the movers' connection, which keeps its order, and may break:
//!
//! ```text
//! sender        its mover                      receiver's mover                      receiver
//!   offer ────────►
//!                 Hand (generation, place) ────► copies are complete up to there ──────►
//!   ◄──────── given                                                                   writes what comes of this generation
//!                 Back (generation) ───────────► revoked ───────────────────────────► writes no more
//!                 ◄──────────── Behind (place)   once the receiver does not write
//! ```
//!
//! Any doubt (a death, a break, a sender that does not push) gives the channel back to the movers. The receiver's mover
//! may begin with that, too. Data still under way on the connection is of a generation that no receiver takes any more.

/// The sender's mover, for one channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Giver {
    /// It carries the channel.
    #[default]
    Carries,
    /// The connection with this offer does.
    Given { offer: u64, generation: u64 },
    /// The connection must take no more; how far it came is not known yet.
    Waits { generation: u64 },
}

impl Giver {
    /// Whether the mover may copy.
    pub fn carries(&self) -> bool {
        *self == Self::Carries
    }

    /// The other node has the log up to its end, and the sender offers a connection. True: it gets the channel.
    pub fn offered(&mut self, offer: u64, generation: u64) -> bool {
        let takes = self.carries() && offer != 0;
        if takes {
            *self = Self::Given { offer, generation };
        }
        takes
    }

    /// The sender's present offer. True: it is not the connection that got the channel.
    pub fn is_doubtful(&self, now: u64) -> bool {
        matches!(self, Self::Given { offer, .. } if *offer != now)
    }

    /// Takes the channel back. Some: this generation is over, and the other side must learn it.
    pub fn take_back(&mut self) -> Option<u64> {
        let Self::Given { generation, .. } = *self else {
            return None;
        };
        *self = Self::Waits { generation };
        Some(generation)
    }

    /// The other side reports the end of that generation. True: the mover continues there.
    pub fn behind(&mut self, of: u64) -> bool {
        let ends = matches!(*self, Self::Given { generation, .. } | Self::Waits { generation } if generation == of);
        if ends {
            *self = Self::Carries;
        }
        ends
    }
}

/// The receiver's mover, for one channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Taker {
    /// The mover writes the copy.
    #[default]
    Writes,
    /// The receiver does.
    Lets { generation: u64 },
    /// The receiver must write no more, and may still write.
    Waits { generation: u64 },
}

impl Taker {
    /// The other side hands the channel over. The former generation is over by then.
    pub fn hand(&mut self, generation: u64) {
        *self = Self::Lets { generation };
    }

    /// The receiver must write no more. Of what is not, or not any more, it has been told.
    pub fn revoke(&mut self) {
        if let Self::Lets { generation } = *self {
            *self = Self::Waits { generation };
        }
    }

    /// Whether this generation is the present one: Back means another one otherwise, which is over.
    pub fn is_of(&self, of: u64) -> bool {
        matches!(*self, Self::Lets { generation } if generation == of)
    }

    /// Some: the receiver no longer writes; report this to the other side, for this generation.
    pub fn settle(&mut self, is_writing: bool) -> Option<u64> {
        let Self::Waits { generation } = *self else { return None };
        (!is_writing).then(|| {
            *self = Self::Writes;
            generation
        })
    }
}

#[cfg(test)]
mod tests;
