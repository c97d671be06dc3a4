//! Parity of images, as people hear of it.

use resurgo_protocol::Fact;
use resurgo_protocol::coordinator::Place;

use super::Dispatcher;
use super::events::Event;

impl Dispatcher {
    /// A fact comes.
    pub(super) fn hear_of_sets(&mut self, fact: &Fact) {
        let sets = &mut self.images.sets;
        match *fact {
            Fact::Encoded { set, node, .. } => {
                if let Some(made) = sets.has_piece(set, node) {
                    self.bus.tell(Event::SetEncoded {
                        wave: made.wave,
                        set,
                        ranks: &made.ranks,
                        nodes: &made.holders,
                        bytes: made.bytes,
                        time: made.time,
                    });
                }
            }
            Fact::NotEncoded {
                number,
                set,
                node,
                ref reason,
            } => match sets.lacks_piece(set) {
                true => self.mind_refusal(node, reason),
                false => self.bus.tell(Event::PieceLost {
                    wave: number,
                    set,
                    node,
                    reason,
                }),
            },
            Fact::Fetched { rank, number, place } => {
                let is_rebuilt = sets.was_rebuilt(rank, number);
                if let Place::Node(node) = place
                    && is_rebuilt
                {
                    self.bus.tell(Event::ImageRebuilt {
                        rank: rank as usize,
                        image: number,
                        node,
                    });
                }
            }
            Fact::NotFetched { rank, number, .. } => drop(sets.was_rebuilt(rank, number)),
            _ => {}
        }
    }
}
