//! How the order of deliveries becomes stable.

use super::causality::Causality;
use crate::arena::Arena;
use crate::event_logger::EventLogger;
use crate::node::Node;
use crate::record::Cursor;
use resurgo_protocol::{Determinant, Recorded};

/// The record of deliveries, and the place where it outlives this rank.
pub struct History {
    /// The place of the next entry to read or write.
    pub record: Cursor,
    pub stable: Stable,
}

/// Where deliveries are stable.
pub enum Stable {
    /// In the node memory, which outlives the process.
    Own,
    /// At an event logger; sends wait for that.
    Logged(EventLogger),
    /// With all ranks that depend on them, because messages carry them; and in the end at an event logger, if there is
    /// one.
    Causal(Box<Causality>, Option<EventLogger>),
    /// At the rank's own channel memory, which has the messages, too.
    Reported,
}

impl History {
    pub fn new(node: &Node) -> History {
        let stable = match () {
            () if node.piggybacking && node.logs => Stable::Causal(Box::new(Causality::new(node)), None),
            () if !node.channel_memories.is_empty() => Stable::Reported,
            // The rank connects to an event logger once it knows what that must have.
            () => Stable::Own,
        };
        History {
            record: Cursor::nowhere(),
            stable,
        }
    }

    pub fn logger(&self) -> Option<&EventLogger> {
        match &self.stable {
            Stable::Logged(logger) | Stable::Causal(_, Some(logger)) => Some(logger),
            Stable::Own | Stable::Causal(_, None) | Stable::Reported => None,
        }
    }

    pub fn logger_mut(&mut self) -> Option<&mut EventLogger> {
        match &mut self.stable {
            Stable::Logged(logger) | Stable::Causal(_, Some(logger)) => Some(logger),
            Stable::Own | Stable::Causal(_, None) | Stable::Reported => None,
        }
    }

    #[inline]
    pub fn causality(&mut self) -> Option<&mut Causality> {
        match &mut self.stable {
            Stable::Causal(causality, _) => Some(causality),
            _ => None,
        }
    }

    #[inline]
    pub fn is_causal(&self) -> bool {
        matches!(self.stable, Stable::Causal(..))
    }

    /// The life uses this event logger from now on. The former one belonged to the process of the image.
    pub fn set_logger(&mut self, new: Option<EventLogger>) {
        let former = match (&mut self.stable, new) {
            (Stable::Causal(_, logger), new) => std::mem::replace(logger, new),
            (Stable::Reported, _) => None,
            (stable, new) => match std::mem::replace(stable, new.map_or(Stable::Own, Stable::Logged)) {
                Stable::Logged(former) => Some(former),
                _ => None,
            },
        };
        if let Some(former) = former {
            former.abandon();
        }
    }

    /// A new delivery, which no former life has made or reported. `stamp`: of a message from inside the group; 0 where
    /// logs tell whether it is the same again. `antecedent`: what the event logger must have before this.
    #[inline]
    pub fn write(&mut self, node: &Node, arena: &mut Arena, determinant: &Determinant, stamp: u64, antecedent: u64) {
        let recorded = Recorded {
            source: determinant.source,
            polls: determinant.polls,
        };
        self.record.write(node, arena, recorded, stamp);
        if let Some(logger) = self.logger_mut() {
            logger.log((recorded, antecedent));
        }
    }
}
