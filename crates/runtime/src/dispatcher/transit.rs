//! What was in transit in waves that stop no rank, of a job on several nodes. Each agent takes from its memory what was
//! on its way to its ranks. The dispatcher has all of it, so a lost node loses none. On a return each agent gets it
//! back. With files it is recorded with the wave.

use std::collections::{BTreeMap, BTreeSet};

use resurgo_wire::control::pieces;

/// What was in transit in one wave, by the receiving node: the received bytes, and whether they are complete.
type Parts = BTreeMap<usize, (Vec<u8>, bool)>;

#[derive(Default)]
pub(super) struct Transit {
    waves: BTreeMap<u64, Parts>,
    /// The wave that agents are sending.
    taking: Option<u64>,
    /// Waves that ranks may return to while their images are in files.
    written: BTreeSet<u64>,
    /// The last complete wave.
    last: u64,
}

impl Transit {
    /// Agents are asked for it.
    pub fn begin(&mut self, number: u64) {
        if let Some(former) = self.taking.replace(number) {
            // It was dropped.
            self.waves.remove(&former);
        }
        self.waves.insert(number, Parts::default());
    }

    /// A piece from `node`.
    pub fn take(&mut self, node: usize, number: u64, is_last: bool, bytes: &[u8]) {
        let parts = self.waves.get_mut(&number).filter(|_| self.taking == Some(number));
        if let Some(parts) = parts {
            let (part, is_whole) = parts.entry(node).or_default();
            part.extend_from_slice(bytes);
            *is_whole |= is_last;
        }
    }

    /// The wave for which all these nodes have sent everything, if that is new.
    pub fn known(&mut self, nodes: &[usize]) -> Option<u64> {
        let parts = self.waves.get(&self.taking?)?;
        let is_whole = |node: &usize| parts.get(node).is_some_and(|(_, is_whole)| *is_whole);
        self.taking.take_if(|_| nodes.iter().all(is_whole))
    }

    /// All of it is here.
    pub fn has(&self, number: u64) -> bool {
        self.taking != Some(number) && self.waves.contains_key(&number)
    }

    /// All of it, for a file.
    pub fn whole(&self, number: u64) -> Option<Vec<u8>> {
        let parts = self.waves.get(&number).filter(|_| self.has(number))?;
        Some(parts.values().flat_map(|(part, _)| part).copied().collect())
    }

    /// It was read from a file.
    pub fn know(&mut self, number: u64, whole: Vec<u8>) {
        self.waves.insert(number, Parts::from([(0, (whole, true))]));
    }

    /// The images of this wave are written.
    pub fn write(&mut self, number: u64) {
        self.written.insert(number);
    }

    /// A wave is complete: of earlier ones only written ones are needed.
    pub fn forget(&mut self, before: u64) {
        self.last = before;
        self.tidy();
    }

    /// These written waves are needed, and no others.
    pub fn collect(&mut self, keep: &[u64]) {
        self.written.retain(|number| keep.contains(number));
        self.tidy();
    }

    /// The pieces of it, each with whether it is the last of its part.
    pub fn pieces(&self, number: u64) -> impl Iterator<Item = (&[u8], bool)> {
        let parts = self.waves.get(&number).into_iter().flat_map(Parts::values);
        parts.flat_map(|(part, _)| pieces(part))
    }

    fn tidy(&mut self) {
        let Transit {
            waves,
            taking,
            written,
            last,
        } = self;
        waves.retain(|number, _| *number >= *last || *taking == Some(*number) || written.contains(number));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_known_when_all_nodes_have_said_everything() {
        let mut transit = Transit::default();
        transit.begin(1);
        transit.take(0, 1, true, b"a");
        transit.take(1, 1, false, b"b");
        assert_eq!(transit.known(&[0, 1]), None);
        assert!(!transit.has(1));
        transit.take(1, 1, true, b"c");
        assert_eq!((transit.known(&[0, 1]), transit.known(&[0, 1])), (Some(1), None));
        assert!(transit.has(1));
        assert_eq!(transit.whole(1).as_deref(), Some(&b"abc"[..]));
        let pieces: Vec<_> = transit.pieces(1).collect();
        assert_eq!(pieces, [(&b"a"[..], true), (&b"bc"[..], true)]);
    }

    #[test]
    fn a_node_that_is_lost_is_not_waited_for_and_a_dropped_wave_is_forgotten() {
        let mut transit = Transit::default();
        transit.begin(1);
        transit.take(0, 1, true, b"a");
        transit.begin(2);
        transit.take(1, 1, true, b"late");
        transit.take(0, 2, true, b"a");
        assert_eq!(transit.known(&[0, 1]), None);
        assert_eq!(transit.known(&[0]), Some(2));
        assert!(transit.has(2) && !transit.has(1));
    }

    #[test]
    fn what_may_be_returned_to_stays() {
        let mut transit = Transit::default();
        for number in 1..=3 {
            transit.begin(number);
            transit.take(0, number, true, b"a");
            assert_eq!(transit.known(&[0]), Some(number));
            transit.forget(number);
            if number == 2 {
                transit.write(number);
            }
        }
        assert_eq!([1, 2, 3].map(|number| transit.has(number)), [false, true, true]);
        transit.collect(&[]);
        assert_eq!([2, 3].map(|number| transit.has(number)), [false, true]);
    }
}
