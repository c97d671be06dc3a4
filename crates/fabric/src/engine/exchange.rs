//! What is said to the event loggers and heard from them, and what leaves then.

use super::*;
use crate::socket::STANDSTILL_NS;

impl Engine {
    /// Exchanges with the event logger, if there is one and some delivery is not acknowledged; sends that waited for it
    /// leave. Under causal logging nobody waits, and this is done now and then; what images cover is looked at as often.
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
            protocol.acknowledge(self.node.covered(self.node.rank));
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
        let mut has_released = false;
        while self.life.protocol().release().is_some() {
            self.outbox.release(&self.node, &self.pace);
            has_released = true;
        }
        if has_released {
            self.outbox.show_held(&self.node);
        }
    }

    /// The event logger has the first `above` deliveries of this rank, and misses the others.
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

    /// The rank stands still for an image, which must not have sends that are held, nor deliveries that could be lost.
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

    /// The rank leaves MPI: what is held must leave. That others may forget what this rank has delivered is worth a little time.
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
