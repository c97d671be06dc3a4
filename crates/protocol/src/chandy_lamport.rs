//! Non-blocking coordinated checkpointing (Chandy and Lamport 1985; MPICH-V/CL in Bouteiller 2006, §III.E). Every rank
//! copies itself at a moment of its own, and no rank waits for another. On a failure all ranks return to the last
//! complete wave.
//!
//! The coordinator asks every rank for its copy and counts them ([`crate::Wave::non_blocking`]). [`Cut`] is a rank's
//! side. A rank stands still for its copy; that moment is its *cut*. It notes how far it has sent and read each of its
//! channels.
//!
//! The note is the marker of the channels that the rank sends on; there is no marker message (Lai and Yang 1987). Every
//! message carries the number of its sender's last cut, so a receiver knows on which side of the marker the message
//! lies. Before its own cut, a receiver takes no message from behind the marker.
//!
//! Channels are logs, so a receiver need not gather the messages in transit as they arrive. They are the part of the
//! log between the receiver's place at its cut and the sender's place at its own. [`Place::is_needed`] says which part
//! of a log must stay until the coordinator has all copies and has taken that part to the wave.

/// How far waves have come, as the coordinator tells all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Waves {
    /// The last requested wave; published before any rank is asked.
    pub asked: u64,
    /// The last wave that is complete or dropped; published when it needs nothing of the logs any more.
    pub over: u64,
}

/// A rank's part in waves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cut {
    wave: u64,
}

impl Cut {
    /// The last wave that this rank has copied itself for; 0: none. A copy says it of itself, too.
    pub fn wave(&self) -> u64 {
        self.wave
    }

    /// The mark of every message from now on: the wave's number in 16 bits.
    pub fn mark(&self) -> u16 {
        self.wave as u16
    }

    /// All threads stand still to be copied for wave `number`.
    pub fn cut(&mut self, number: u64) {
        assert!(
            number > self.wave,
            "the cut of wave {number} follows that of wave {}",
            self.wave
        );
        self.wave = number;
    }

    /// Whether a message that carries `mark` may be delivered. If not, it was sent behind the cut of a wave that this
    /// rank has yet to copy itself for, or that will be dropped. On another node the next wave may already have begun.
    /// It is never more than one, because no wave begins before every rank has reported its state. An old message may
    /// look like that when the 16-bit numbers wrap around; it is held back a little, too.
    pub fn may_deliver(&self, mark: u16, waves: Waves) -> bool {
        if mark == waves.asked.wrapping_add(1) as u16 {
            return self.wave > waves.asked;
        }
        self.wave >= waves.asked || waves.over >= waves.asked || mark != waves.asked as u16
    }
}

/// One end of a channel at the cut of its rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Place {
    /// The last wave that the rank has cut.
    pub wave: u64,
    /// Number of the log's segment that it was in then.
    pub segment: u64,
}

impl Place {
    /// Whether a segment that this receiver has read to its end must stay as it is, because it holds messages in transit.
    /// The receiver read it behind its cut, and the sender wrote in it before its own. `over`: [`Waves::over`].
    /// The caller reads the receiver's place after it has read how far the receiver has come since.
    pub fn is_needed(self, segment: u64, sender: Place, over: u64) -> bool {
        self.wave > over && segment >= self.segment && (sender.wave < self.wave || segment <= sender.segment)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_delivered_from_behind_a_cut_that_is_not_the_own() {
        let (mut early, mut late) = (Cut::default(), Cut::default());
        let mut waves = Waves { asked: 1, over: 0 };
        early.cut(1);
        assert!(!late.may_deliver(early.mark(), waves));
        assert!(late.may_deliver(late.mark(), waves) && early.may_deliver(late.mark(), waves));
        late.cut(1);
        assert!(late.may_deliver(early.mark(), waves));
        // A wave that this rank never learned of was dropped.
        waves = Waves { asked: 2, over: 1 };
        early.cut(2);
        assert!(!late.may_deliver(early.mark(), waves));
        waves.over = 2;
        assert!(late.may_deliver(early.mark(), waves));
        waves.asked = 3;
        assert!(late.may_deliver(early.mark(), waves));
    }

    #[test]
    fn a_node_may_hear_of_a_wave_later_than_another() {
        let (mut early, mut late) = (Cut::default(), Cut::default());
        early.cut(3);
        let waves = Waves { asked: 2, over: 2 };
        assert!(!late.may_deliver(early.mark(), waves), "nobody here knows of wave 3");
        late.cut(3);
        assert!(late.may_deliver(early.mark(), waves));
    }

    #[test]
    fn numbers_that_come_round_hold_nobody_for_ever() {
        let old = Cut { wave: 5 };
        let mut rank = Cut { wave: 65540 };
        let waves = Waves {
            asked: 65541,
            over: 65540,
        };
        assert!(!rank.may_deliver(old.mark(), waves), "it looks new");
        rank.cut(65541);
        assert!(rank.may_deliver(old.mark(), waves));
    }

    #[test]
    #[should_panic(expected = "the cut of wave 2 follows that of wave 2")]
    fn a_wave_is_cut_once() {
        let mut rank = Cut::default();
        rank.cut(2);
        rank.cut(2);
    }

    #[test]
    fn a_log_keeps_what_lies_between_the_two_cuts() {
        let receiver = Place { wave: 3, segment: 10 };
        let (before, behind) = (Place { wave: 2, segment: 4 }, Place { wave: 3, segment: 12 });
        for (segment, with_cut) in [(9, false), (10, true), (12, true), (13, false)] {
            assert_eq!(receiver.is_needed(segment, behind, 2), with_cut);
            assert_eq!(receiver.is_needed(segment, before, 2), segment >= 10);
            assert!(!receiver.is_needed(segment, before, 3));
        }
    }
}
