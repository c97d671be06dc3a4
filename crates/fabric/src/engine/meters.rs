//! A rank's counts of its messages, shown in its control.

use crate::clock::monotonic_ns;
use crate::node::Node;
use resurgo_wire::counters;
use resurgo_wire::node_memory::control;

#[derive(Default)]
pub struct Meters {
    pub deliveries: u64,
    delivered_bytes: u64,
    sends: u64,
    sizes: counters::Sizes,
    /// In this life.
    has_delivered: bool,
}

impl Meters {
    /// Deliveries and sends.
    #[inline]
    pub fn messages(&self) -> u64 {
        self.deliveries + self.sends
    }

    #[inline]
    pub fn delivered(&mut self, node: &Node, bytes: u64) {
        if !std::mem::replace(&mut self.has_delivered, true) {
            node.set(control::FIRST_DELIVERY_NS, monotonic_ns());
        }
        self.deliveries += 1;
        self.delivered_bytes += bytes;
        node.set(control::DELIVERIES, self.deliveries);
        node.set(control::DELIVERED_BYTES, self.delivered_bytes);
    }

    #[inline]
    pub fn sent(&mut self, node: &Node, bytes: usize) {
        self.sends += 1;
        let class = counters::class(bytes);
        let [messages, sum] = &mut self.sizes[class];
        *messages += 1;
        *sum += bytes as u64;
        self.show_sizes(node, class);
    }

    #[inline]
    fn show_sizes(&self, node: &Node, class: usize) {
        let place = control::SIZES.item(class);
        let [messages, bytes] = self.sizes[class];
        node.set(place.item(0), messages);
        node.set(place.item(1), bytes);
    }

    /// A life begins, or goes on from an image.
    pub fn begin(&mut self, node: &Node) {
        self.has_delivered = false;
        node.set(control::DELIVERIES, self.deliveries);
        node.set(control::DELIVERED_BYTES, self.delivered_bytes);
        (0..counters::CLASSES).for_each(|class| self.show_sizes(node, class));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::tests::pair;
    use resurgo_wire::node_memory::{Control, Field};
    use std::sync::atomic::Ordering;

    #[test]
    fn a_life_shows_what_its_image_had_counted() {
        let (node, other) = pair(1, true);
        let shown = |field: Field<Control, u64>| other.control(0, field).load(Ordering::Relaxed);
        let class = counters::class(100);
        let sizes = control::SIZES.item(class);
        let mut meters = Meters::default();
        meters.sent(&node, 100);
        meters.sent(&node, 100);
        meters.delivered(&node, 30);
        assert_eq!(meters.messages(), 3);
        let all = || {
            (
                shown(control::DELIVERIES),
                shown(control::DELIVERED_BYTES),
                shown(sizes.item(0)),
                shown(sizes.item(1)),
            )
        };
        assert_eq!(all(), (1, 30, 2, 200));
        assert_ne!(shown(control::FIRST_DELIVERY_NS), 0);
        // As the agent clears them for another life.
        for field in [
            control::DELIVERIES,
            control::DELIVERED_BYTES,
            sizes.item(0),
            sizes.item(1),
            control::FIRST_DELIVERY_NS,
        ] {
            node.set(field, 0);
        }
        meters.begin(&node);
        assert_eq!(all(), (1, 30, 2, 200));
        meters.delivered(&node, 1);
        assert_ne!(shown(control::FIRST_DELIVERY_NS), 0);
    }
}
