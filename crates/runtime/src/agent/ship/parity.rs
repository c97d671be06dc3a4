//! The agent's part in parity: it has pieces made and sent, and lost images made anew.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use resurgo_protocol::coordinator::Place;
use resurgo_protocol::{Command, Fact};
use resurgo_wire::control::ToDispatcher;
use resurgo_wire::replica::{Offer, What};

use super::Making;
use super::encode::Set;
use super::party::Made;
use super::rebuild::{Defect, Order};
use crate::agent::{Agent, Work};

impl Work {
    pub(super) fn own_node(&self) -> u32 {
        self.job.nodes.as_ref().map_or(0, |plan| plan.own)
    }

    /// Removes this node's copy of an image. A file that a rank of this node has begun from is not a copy any more.
    fn drop_copy(&self, rank: u32, number: u64) {
        let is_own = self.ranks[rank as usize].images.file(number).is_some();
        if !is_own && let Some(copies) = &self.copies {
            copies.shipping.keeper().forget(What::Image { rank, number });
        }
    }

    /// Removes this node's pieces of a set, and makes and sends none any more.
    fn collect_set(&mut self, of: u64) {
        let Some(copies) = &mut self.copies else { return };
        for making in copies.making.extract_if(.., |making| making.set == of) {
            making.is_over.store(true, Ordering::Relaxed);
        }
        let shipping = &copies.shipping;
        shipping.give_up(|what| matches!(what, What::Piece { set, .. } if set == of));
        let keeper = shipping.keeper();
        keeper.pieces_of(of).into_iter().for_each(|what| keeper.forget(what));
    }

    fn begin_encoding(&mut self, set: Set, holders: Vec<u32>) -> std::io::Result<()> {
        let copies = self.copies.as_mut().ok_or(std::io::ErrorKind::NotFound)?;
        let is_over = Arc::new(AtomicBool::new(false));
        let making = Making {
            set: set.set,
            holders,
            is_over: is_over.clone(),
        };
        copies.shipping.encode(set, is_over)?;
        copies.making.push(making);
        Ok(())
    }

    /// Sends the pieces of a set to its other holders. Returns those that do not get theirs, and why.
    fn send_pieces(&mut self, number: u64, set: u64, holders: &[u32]) -> Vec<(u32, String)> {
        let Some((copies, plan)) = self.copies.as_mut().zip(self.job.nodes.as_ref()) else {
            return Vec::new();
        };
        let shipping = &mut copies.shipping;
        shipping.keep(|node| !plan.copies_at(node).is_empty());
        let mut failed = Vec::new();
        for (index, to) in (0..).zip(holders).skip(1) {
            let what = What::Piece { number, set, index };
            let sent = shipping.keeper().parcel(what).and_then(|parcel| {
                // What is open can be sent.
                shipping.keeper().forget(what);
                shipping.ship(parcel, *to, &plan.copies_at(*to))
            });
            failed.extend(sent.err().map(|error| (*to, error.to_string())));
        }
        failed
    }
}

impl Agent {
    /// Carries out a command about parity.
    pub(in crate::agent) fn mind_parity(&mut self, command: Command) {
        match command {
            Command::Encode {
                number,
                set,
                members,
                holders,
            } => {
                let order = Set {
                    number,
                    set,
                    members,
                    pieces: holders.len() as u32,
                };
                if let Err(error) = self.work.begin_encoding(order, holders) {
                    self.not_encoded(number, set, self.work.own_node(), error.to_string());
                }
            }
            Command::DropCopy { rank, number, .. } => self.work.drop_copy(rank, number),
            Command::CollectSet { set, .. } => self.work.collect_set(set),
            Command::Rebuild {
                rank,
                number,
                set,
                members,
                pieces,
                ..
            } => {
                let plan = self.work.job.nodes.as_ref();
                let nodes = members.iter().chain(&pieces).map(|(_, node)| *node);
                let at = |node| (node, plan.map_or(Vec::new(), |plan| plan.copies_at(node)));
                let addresses: HashMap<_, _> = nodes.map(at).collect();
                let order = Order {
                    rank,
                    number,
                    set,
                    members,
                    pieces,
                    addresses,
                };
                let missing = || std::io::Error::from(std::io::ErrorKind::NotFound);
                let copies = self.work.copies.as_ref().ok_or_else(missing);
                if let Err(error) = copies.and_then(|copies| copies.shipping.rebuild(order)) {
                    let reason = error.to_string();
                    self.report(Fact::NotFetched { rank, number, reason });
                }
            }
            _ => {}
        }
    }

    pub(super) fn not_encoded(&mut self, number: u64, set: u64, node: u32, reason: String) {
        self.report(Fact::NotEncoded {
            number,
            set,
            node,
            reason,
        });
    }

    /// This node has a file for others.
    pub(super) fn holds(&mut self, what: What) {
        let node = self.work.own_node();
        self.report(match what {
            What::Image { rank, number } => Fact::Stored {
                rank,
                number,
                place: Place::Node(node),
            },
            What::Piece { number, set, .. } => Fact::Encoded { number, set, node },
        });
    }

    /// The pieces of a set are made, or cannot be.
    pub(super) fn encoded(&mut self, number: u64, set: u64, result: Result<Made, String>) -> std::io::Result<()> {
        let making = self.work.copies.iter_mut();
        let making = making.flat_map(|copies| copies.making.extract_if(.., |making| making.set == set));
        let Some(making) = making.last() else {
            // The set was given up meanwhile.
            self.work.collect_set(set);
            return Ok(());
        };
        let node = self.work.own_node();
        let made = match result {
            Ok(made) => made,
            Err(reason) => {
                self.not_encoded(number, set, node, reason);
                return Ok(());
            }
        };
        self.send(&ToDispatcher::SetEncoded {
            set,
            bytes: made.bytes,
            encode_ns: made.time.as_nanos() as u64,
        })?;
        self.report(Fact::Encoded { number, set, node });
        for (holder, reason) in self.work.send_pieces(number, set, &making.holders) {
            self.not_encoded(number, set, holder, reason);
        }
        Ok(())
    }

    /// A lost image is made anew, or cannot be.
    pub(super) fn rebuilt(
        &mut self,
        (rank, number): (u32, u64),
        set: u64,
        result: Result<Offer, String>,
        defects: Vec<Defect>,
    ) {
        for (what, node, reason) in defects {
            if let What::Piece { .. } = what {
                self.not_encoded(number, set, node, format!("{what}: {reason}"));
            }
        }
        let place = Place::Node(self.work.own_node());
        self.report(match result {
            Ok(_) => Fact::Fetched { rank, number, place },
            Err(reason) => Fact::NotFetched { rank, number, reason },
        });
    }

    /// Tells how much this node holds for others, if that has changed.
    pub(in crate::agent) fn tell_held(&mut self) -> std::io::Result<()> {
        let Some(copies) = &mut self.work.copies else {
            return Ok(());
        };
        let [images, pieces] = copies.shipping.keeper().bytes();
        if copies.told == [images, pieces] {
            return Ok(());
        }
        copies.told = [images, pieces];
        self.send(&ToDispatcher::Holds { images, pieces })
    }
}
