//! What ranks have noted of files, for the nodes on which they go on when theirs is lost.

use resurgo_wire::control::{FileNotes, ToAgent};

use super::Dispatcher;

impl Dispatcher {
    /// A rank on this node has noted something, and waits for the answer if `asked` is not 0.
    pub(super) fn has_noted_files(&mut self, node: usize, rank: usize, asked: u64, new: FileNotes) {
        let known = self.ledger.file_notes.entry(rank);
        let (of, notes) = known.or_insert_with(|| (node, FileNotes::default()));
        // What a lost node still says is of no life that goes on.
        if *of != node {
            return;
        }
        notes.update(new);
        if asked > 0 {
            self.agents.node(node).queue(&ToAgent::FileNotesKept { rank, asked });
        }
    }

    /// Ranks go on elsewhere: their new nodes get what they had noted.
    pub(super) fn hand_over_file_notes(&mut self) {
        // As `Job::keeps_file_notes` has it.
        let keeps = self.images.without.is_none();
        let Some(plan) = self.plan.as_ref().filter(|_| keeps) else {
            return;
        };
        let known = plan.of_rank.clone();
        for (rank, node) in self.nodes_of_ranks().into_iter().enumerate() {
            let had = match self.ledger.file_notes.get(&rank) {
                Some((had, _)) => *had,
                None => known.get(rank).map_or(node, |had| *had as usize),
            };
            if had == node {
                continue;
            }
            let (of, notes) = self.ledger.file_notes.entry(rank).or_default();
            *of = node;
            let notes = notes.clone();
            self.agents.node(node).queue(&ToAgent::FileNotes { rank, notes });
        }
    }
}
