//! Exchanges with the event loggers, and the sends that leave after them.

use super::*;
use crate::socket::STANDSTILL_NS;

impl Engine {
    /// Exchanges with the event logger, if there is one and some delivery is not acknowledged; sends that wait for it
    /// leave. Under causal logging no send waits, and exchanges are rare; the rank looks as often for what images
    /// cover.
    #[inline]
    pub(super) fn exchange_if_due(&mut self) {
        let is_due = match &mut self.history.stable {
            Stable::Own | Stable::Reported => false,
            Stable::Logged(logger) => logger.is_behind(),
            Stable::Causal(causality, logger) => {
                let pending = logger.as_ref().map_or(0, EventLogger::pending);
                logger.as_ref().is_none_or(EventLogger::is_behind) && causality.is_due(&self.node, &self.pace, pending)
            }
        };
        if is_due {
            self.exchange();
        }
    }

    #[cold]
    pub(super) fn exchange(&mut self) {
        if let Some(causality) = self.history.causality() {
            causality.hear_images(&self.node);
        }
        let (Some(logger), Some(protocol)) = (self.history.logger_mut(), &mut self.life.protocol) else {
            return;
        };
        let news = logger.pump(&self.node);
        if news.replaced {
            protocol.event_logger_lost();
            protocol.acknowledge(Cursor::covered(&self.node));
        }
        if let Some(above) = news.wanted_above {
            let made = protocol.rclock().max(protocol.recorded());
            if above > made {
                self.node.report(&format!(
                    "the event logger holds {above} deliveries of rank {}, which has made {made}",
                    self.node.rank
                ));
            }
            self.log_again(above);
        }
        match &mut self.history.stable {
            Stable::Causal(causality, Some(logger)) => causality.hear(&self.node, logger, &news.clocks),
            Stable::Logged(logger) => self.life.protocol().acknowledge(logger.acknowledged()),
            Stable::Causal(_, None) | Stable::Own | Stable::Reported => (),
        }
        if self.node.moves {
            let stable = self.history.logger().map_or(0, EventLogger::acknowledged);
            self.node.set(control::STABLE, stable);
        }
        let mut has_released = false;
        while self.life.protocol().release().is_some() {
            let destination = self.outbox.release(&self.node, &self.pace);
            self.peers.ring(&self.node, destination);
            has_released = true;
        }
        if has_released {
            self.outbox.show_held(&self.node);
        }
    }

    /// The event logger has the first `above` deliveries of this rank, and lacks the others.
    fn log_again(&mut self, above: u64) {
        let records = Cursor::read_above(&self.node, above);
        let missing = match self.history.causality() {
            Some(causality) => causality.to_log(above, &records),
            None => records.into_iter().map(|record| (record, 0)).collect(),
        };
        if let Some(logger) = self.history.logger_mut() {
            logger.log_again(missing);
            logger.pump(&self.node);
        }
    }

    /// The program sees deliveries when this read ends, and its output may depend on them. The event logger gets them
    /// first, because the record may be lost with the node.
    pub(super) fn make_stable(&mut self) {
        loop {
            self.exchange();
            match self.history.logger() {
                Some(logger) if logger.is_behind() => logger.wait(1),
                _ => return,
            }
        }
    }

    /// The rank stands still for an image: no send may be held, and no delivery may be unlogged.
    pub(super) fn wait_until_stable(&mut self) {
        let since = monotonic_ns();
        while let Stable::Logged(_) = self.history.stable
            && monotonic_ns() - since < STANDSTILL_NS
        {
            self.exchange();
            match self.history.logger() {
                Some(logger) if logger.is_behind() => logger.wait(1),
                _ => return,
            }
        }
    }

    /// The rank leaves MPI: held sends must leave. A little waiting is worth it: other ranks may then forget what this
    /// rank has delivered.
    pub(super) fn say_last_words(&mut self) {
        let since = monotonic_ns();
        loop {
            self.exchange();
            let waits = self.outbox.holds() || monotonic_ns() - since < LAST_WORDS_NS;
            let Some(logger) = self.history.logger().filter(|logger| waits && logger.is_behind()) else {
                return;
            };
            logger.wait(10);
        }
    }
}
