//! Hierarchical fault tolerance (the preview of MPICH-V3): coordinated checkpointing inside a group of ranks, message
//! logging between groups. Only the group of a failed rank rolls back.
//!
//! The ranks of a group copy themselves at one moment (a wave of the group, [`crate::Wave`]). When one fails, all of
//! them return to the group's last complete wave. Every delivery is in its receiver's record, and
//! [`crate::Pessimistic`] replays it, whichever rank sent the message. So the whole group repeats what it did, and no
//! other rank has to.
//!
//! What a channel's log keeps depends on its two ends. *Between* groups it keeps what pessimistic logging keeps.
//! *Inside* a group the sender returns with the receiver and sends its messages again. There the log keeps the unread
//! messages, and those in transit across a wave: sent before the sender's copy, and read after the receiver's. [`Kept`]
//! says so.
//!
//! A return cuts each log inside the group off where its sender's copy was. The next life's `sent_before` still counts
//! what former lives sent: the receiver may have delivered it, and its record says so. Therefore the number must
//! outlive the log.

use std::collections::VecDeque;

/// What was in transit on a channel across one wave.
#[derive(Debug, Clone, Copy)]
struct Span {
    wave: u64,
    from: u64,
    to: u64,
}

/// What the sender of a channel inside a group must keep of it. Places are numbers that grow along the channel: of messages, or of
/// the pieces of its log. It is part of the sender's process, and so of its image.
#[derive(Debug, Clone, Default)]
pub struct Kept {
    spans: VecDeque<Span>,
}

impl Kept {
    /// The group stands still for `wave`: the receiver will read `from` next, and `to` was written last. When `from` may be too
    /// low more is kept than must be.
    pub fn cut(&mut self, wave: u64, from: u64, to: u64) {
        let last = self.spans.back().map_or(0, |span| span.wave);
        assert!(wave > last, "the cut of wave {wave} follows that of wave {last}");
        if from <= to {
            self.spans.push_back(Span { wave, from, to });
        }
    }

    /// No rank returns to a wave before `wave` any more.
    pub fn forget_before(&mut self, wave: u64) {
        self.spans.retain(|span| span.wave >= wave);
    }

    /// Whether the log must hold `place`. The receiver reads `reads` next, or something later.
    pub fn is_needed(&self, place: u64, reads: u64) -> bool {
        place >= reads || self.spans.iter().any(|span| (span.from..=span.to).contains(&place))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_been_read_is_kept_only_as_long_as_a_wave_has_it_in_transit() {
        let mut kept = Kept::default();
        assert!(!kept.is_needed(4, 5) && kept.is_needed(5, 5));
        kept.cut(3, 5, 6);
        kept.cut(4, 9, 8);
        kept.cut(7, 10, 10);
        let needed = |kept: &Kept| (0..15).filter(|place| kept.is_needed(*place, 12)).collect::<Vec<_>>();
        assert_eq!(needed(&kept), [5, 6, 10, 12, 13, 14]);
        kept.forget_before(3);
        assert_eq!(needed(&kept), [5, 6, 10, 12, 13, 14]);
        kept.forget_before(4);
        assert_eq!(needed(&kept), [10, 12, 13, 14]);
        kept.forget_before(8);
        assert_eq!(needed(&kept), [12, 13, 14]);
    }

    #[test]
    #[should_panic(expected = "the cut of wave 2 follows that of wave 2")]
    fn a_wave_is_cut_once() {
        let mut kept = Kept::default();
        kept.cut(2, 1, 1);
        kept.cut(2, 1, 1);
    }
}
