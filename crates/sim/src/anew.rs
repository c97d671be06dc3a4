//! All ranks begin again at the beginning: in `hierarchical` when a group has lost its waves, and on several nodes when
//! all that have an image of a rank are lost. Neither the former messages nor what came of them count. All memories are
//! emptied, and event loggers begin anew. So what is still on its way to them or from them is lost, as are the
//! connections.

use resurgo_protocol::{EventLogger, Rank, Tolerate};

use crate::log::{Cursor, Log, Moving, Record};
use crate::mutation::Mutation;
use crate::world::{Event, World};

impl World {
    /// Where processes alone fail, a crash now and then takes all images of its rank along.
    pub(crate) fn loses_images_in_place(&self) -> bool {
        let plan = self.coordinator.plan();
        plan.begins_anew && !plan.moves && !self.rules.hierarchical
    }

    /// All shared state of ranks begins anew; none of them runs.
    pub(crate) fn reset(&mut self) {
        self.nothing_is_lacking();
        let begins_anew = self.coordinator.plan().begins_anew;
        if begins_anew {
            self.leave_former_course();
        }
        let keeps_records = self.is(Mutation::KeepWhenAllBegin);
        for process in &mut self.ranks {
            process.logs.iter_mut().for_each(|log| *log = Log::default());
            if !keeps_records {
                process.record = Record::new(Cursor::beginning(process.logs.len()), Vec::new());
            }
            process.sent_ever.fill(0);
            process.consumed.fill(0);
            process.pushed.fill(0);
        }
        if begins_anew && self.rules.tolerate == Tolerate::Node {
            self.forget_what_nodes_knew();
            self.loggers_begin_anew();
        }
    }

    fn leave_former_course(&mut self) {
        self.note(|| "all begin".into());
        for wire in self.wires.iter_mut().flatten() {
            wire.connection += 1;
            wire.revealed = 0;
            wire.carried.clear();
        }
        self.ranks
            .iter_mut()
            .for_each(|process| process.images.forget_nothing());
        let known = self.rules.checkers(self.ranks.len());
        self.checkers.returned(known, true);
    }

    /// Nobody has lost a record, and nobody knows anything of deliveries.
    fn forget_what_nodes_knew(&mut self) {
        let (keeps_counts, keeps_known) = (
            self.is(Mutation::KeepCountsWhenAllBegin),
            self.is(Mutation::KeepKnownWhenAllBegin),
        );
        for process in &mut self.ranks {
            process.record_lost = false;
            process.noted.fill(0);
            process.moving = Moving::default();
            process.has_told = true;
            if !keeps_counts {
                process.counts = None;
            }
            if !keeps_known {
                process.left_behind.clear();
            }
        }
        if !self.is(Mutation::KeepVouchedWhenAllBegin) {
            self.nodes.vouched.clear();
        }
        // Pieces that are on their way do not count.
        self.nodes.losses += 1;
    }

    fn loggers_begin_anew(&mut self) {
        if self.is(Mutation::KeepLoggersWhenAllBegin) {
            return;
        }
        let size = self.ranks.len();
        for site in &mut self.logging.sites {
            site.epoch += 1;
            site.spread.clear();
            site.state = Some(EventLogger::new(size));
        }
        for rank in 0..size {
            let epoch = self.site(rank as Rank).map_or(1, |site| site.epoch);
            self.logging.declared[rank] = (epoch, 0);
            self.logging.whole[rank] = true;
        }
        if !self.is(Mutation::KeepClocksWhenAllBegin) {
            let is_of_loggers = |event: &Event| matches!(event, Event::LoggerClocks { .. } | Event::Clocks { .. });
            self.queue.keep(|event| !is_of_loggers(event));
        }
    }
}
