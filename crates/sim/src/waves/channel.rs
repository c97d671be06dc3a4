//! A channel: a log in segments. Without retention its sender reuses a read segment. With waves that stop no rank, it
//! waits while the segment may be part of what was in transit.

use std::collections::VecDeque;

use resurgo_protocol::chandy_lamport::{Cut, Place, Waves};

use super::rank::Piece;
use crate::mutation::Mutation;

/// A place in the log: the number of a piece, from 0 where the channel began last.
type Number = u64;

#[derive(Debug, Clone, Default)]
pub(super) struct Channel {
    /// Pieces of one segment; 0: no read piece is kept.
    grain: u64,
    /// With the mark of each, and when it arrives on the receiver's node.
    unread: VecDeque<(u16, Piece, u64)>,
    /// In a variant: comes behind what is published next.
    late: Vec<Piece>,
    /// The first of these.
    next: Number,
    /// Read pieces that the sender has not overwritten.
    kept: VecDeque<(Number, Piece)>,
    receiver: (Place, Number),
    sender: (Place, Number),
}

impl Channel {
    pub fn new(grain: u64) -> Self {
        Self {
            grain,
            ..Self::default()
        }
    }

    /// The channel begins anew, with `state` in it.
    pub fn restart(&mut self, state: Vec<Piece>) {
        *self = Self::new(self.grain);
        self.unread = state.into_iter().map(|piece| (0, piece, 0)).collect();
    }

    /// Its contents come late.
    pub fn delay(&mut self) {
        self.late = self.unread.drain(..).map(|(_, piece, _)| piece).collect();
    }

    pub fn len(&self) -> usize {
        self.unread.len()
    }

    /// No arrived piece is unread.
    pub fn is_empty(&self, now: u64) -> bool {
        self.mark(now).is_none()
    }

    /// The mark of the next piece to read.
    fn mark(&self, now: u64) -> Option<u16> {
        let first = self.unread.front().filter(|(.., arrives)| *arrives <= now);
        first.map(|(mark, ..)| *mark)
    }

    pub fn take(&mut self, now: u64) -> Option<Piece> {
        self.mark(now)?;
        let (_, piece, _) = self.unread.pop_front()?;
        if self.grain > 0 {
            self.kept.push_back((self.next, piece));
        }
        self.next += 1;
        Some(piece)
    }

    pub fn publish(&mut self, mark: u16, piece: Piece, arrives: u64) {
        self.unread.push_back((mark, piece, arrives));
        let late = self.late.drain(..);
        self.unread.extend(late.map(|piece| (mark, piece, arrives)));
    }

    /// In a variant: begins anew, and pieces on their way arrive nevertheless.
    pub fn restart_late(&mut self, now: u64) {
        let late = self.unread.iter().filter(|(.., arrives)| *arrives > now);
        let unread = late.copied().collect();
        self.restart(Vec::new());
        self.unread = unread;
    }

    /// In a variant: loses arrived pieces.
    pub fn lose_arrived(&mut self, now: u64) {
        self.unread.retain(|(.., arrives)| *arrives > now);
    }

    /// The sender's node is lost, with what has not arrived.
    pub fn lose_coming(&mut self, now: u64) {
        self.unread.retain(|(.., arrives)| *arrives <= now);
    }

    /// The sender wants to reuse read segments.
    pub fn reclaim(&mut self, over: u64, mutation: Option<Mutation>) {
        if self.grain == 0 {
            return;
        }
        let (open, grain) = (self.next / self.grain, self.grain);
        let ((receiver, _), (mut sender, _)) = (self.receiver, self.sender);
        if mutation == Some(Mutation::KeepFromOwnCut) && sender.wave < receiver.wave {
            sender = Place {
                wave: receiver.wave,
                segment: 0,
            };
        }
        self.kept.retain(|(number, _)| {
            let segment = number / grain;
            let needed = receiver.is_needed(segment, sender, over) && mutation != Some(Mutation::RecycleAtOnce);
            segment >= open || needed
        });
    }

    /// The receiver stands still for its cut.
    pub fn note_receiver(&mut self, cut: &Cut) {
        let place = Place {
            wave: cut.wave(),
            segment: self.next / self.grain,
        };
        self.receiver = (place, self.next);
    }

    /// The sender does.
    pub fn note_sender(&mut self, cut: &Cut) {
        let end = self.end();
        let place = Place {
            wave: cut.wave(),
            segment: end / self.grain,
        };
        self.sender = (place, end);
    }

    fn end(&self) -> Number {
        self.next + self.unread.len() as u64
    }

    /// What was in transit at both cuts: the remaining part, on the receiver's node. `ended`: the sender and the
    /// receiver have ended before that, which is their cut.
    pub fn state(&self, ended: (bool, bool), mutation: Option<Mutation>, now: u64) -> Vec<Piece> {
        let mut from = if ended.1 { self.next } else { self.receiver.1 };
        let mut to = if ended.0 { self.end() } else { self.sender.1 };
        match mutation {
            Some(Mutation::ForgetChannelState) => return Vec::new(),
            Some(Mutation::LeaveWhatEndedRanksSent) if ended.0 => return Vec::new(),
            Some(Mutation::StateFromNow) => from = self.next,
            Some(Mutation::StateToNow) => to = self.end(),
            _ => {}
        }
        let unread = self
            .unread
            .iter()
            .zip(self.next..)
            .filter(|((.., arrives), _)| *arrives <= now)
            .map(|((_, piece, _), number)| (number, *piece));
        let all = self.kept.iter().copied().chain(unread);
        all.filter(|(number, _)| (from..to).contains(number))
            .map(|(_, piece)| piece)
            .collect()
    }

    /// Whether the receiver may read the next piece.
    pub fn may_deliver(&self, cut: &Cut, waves: Waves, now: u64) -> bool {
        self.mark(now).is_some_and(|mark| cut.may_deliver(mark, waves))
    }
}
