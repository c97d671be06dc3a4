//! What ranks note of files goes to the dispatcher, where the job has several nodes: the node's loss would take it along.
//!
//! A rank says when it has noted something. It waits before it makes, renames or removes a file, and before it overwrites
//! something by MPI-IO. The dispatcher hands the notes to the node on which the rank goes on.

use std::io;

use resurgo_wire::control::{FileNotes, ToAgent, ToDispatcher, Undo};
use resurgo_wire::node_memory::control;
use resurgo_wire::undo;

use super::node::NodeMemory;
use super::noted::{Told, ToldOfUndo, changed};
use super::{Agent, Work};

impl Work {
    /// What `rank` has noted since the dispatcher was told.
    fn new_file_notes(&mut self, rank: usize) -> io::Result<FileNotes> {
        let noted = self.memory.noted(rank)?;
        let lost_reads = self.memory.control(rank, control::LOST_READS)?;
        let newest_image = self.ranks[rank].images.asked;
        let told = self.file_notes.entry(rank).or_default();
        let notes = FileNotes {
            count: noted[0],
            changed: changed(&told.noted, &noted),
            lost_reads,
            lost_ns: self.ranks[rank].notes_lost_ns,
            undo: self.memory.new_undo(rank, newest_image, &mut told.undo)?,
        };
        told.noted = noted;
        Ok(notes)
    }

    /// Whether the dispatcher has handed over what the rank had noted elsewhere, and no life of it has begun here since.
    pub(super) fn is_handed_over(&self, rank: usize) -> bool {
        self.file_notes.get(&rank).is_some_and(|told| told.is_handed_over)
    }

    /// A life begins. The same.
    pub(super) fn arrives(&mut self, rank: usize) -> bool {
        let told = self.file_notes.get_mut(&rank);
        told.is_some_and(|told| std::mem::take(&mut told.is_handed_over))
    }

    /// The rank goes on here, and had noted this elsewhere.
    pub(super) fn take_file_notes(&mut self, rank: usize, notes: &FileNotes) -> io::Result<()> {
        let mut noted = vec![notes.count];
        for (place, note) in &notes.changed {
            noted.resize(noted.len().max(3 + 2 * place), 0);
            noted[1 + 2 * place..][..2].copy_from_slice(note);
        }
        self.memory.set_noted(rank, &noted)?;
        self.memory.set_control(rank, control::LOST_READS, notes.lost_reads)?;
        if let Some(undo) = &notes.undo {
            self.memory.set_undo(rank, undo)?;
        }
        self.ranks[rank].notes_lost_ns = notes.lost_ns;
        let told = Told {
            noted,
            undo: None,
            is_handed_over: true,
        };
        self.file_notes.insert(rank, told);
        Ok(())
    }
}

impl Agent {
    /// The rank has noted something of files, and waits if `asked` is not 0.
    pub(super) fn tell_file_notes(&mut self, rank: usize, asked: u64) -> io::Result<()> {
        let notes = self.work.new_file_notes(rank)?;
        self.send(&ToDispatcher::FileNotes { rank, asked, notes })
    }

    /// What ranks here have noted in former runs of the job.
    pub(super) fn tell_former_file_notes(&mut self) -> io::Result<()> {
        if !self.work.job.keeps_file_notes() {
            return Ok(());
        }
        for rank in 0..self.work.ranks.len() {
            let is_here = self.work.is_here(rank);
            if is_here && (self.work.ranks[rank].notes_lost_ns != 0 || self.work.memory.noted(rank)?[0] > 0) {
                self.tell_file_notes(rank, 0)?;
            }
        }
        Ok(())
    }

    /// Files are as they were in a wave, and undo logs are shorter.
    pub(super) fn tell_undo(&mut self) -> io::Result<()> {
        let ranks: Vec<usize> = self.work.file_notes.keys().copied().collect();
        for rank in ranks {
            if let Some(told) = self.work.file_notes.get_mut(&rank) {
                told.undo = None;
            }
            self.tell_file_notes(rank, 0)?;
        }
        Ok(())
    }

    pub(super) fn heard_of_file_notes(&mut self, message: ToAgent) -> io::Result<()> {
        match message {
            ToAgent::FileNotes { rank, notes } => self.work.take_file_notes(rank, &notes),
            // The rank may wait for it.
            ToAgent::FileNotesKept { rank, asked } => {
                let before = self.work.memory.control(rank, control::NOTES_KEPT)?;
                self.work
                    .memory
                    .set_control(rank, control::NOTES_KEPT, asked.max(before))
            }
            _ => Ok(()),
        }
    }
}

impl NodeMemory {
    /// What the undo log of `rank` has beyond what was told.
    fn new_undo(&self, rank: usize, newest_image: u64, told: &mut ToldOfUndo) -> io::Result<Option<Undo>> {
        let Some((since, half, used)) = self.undo_state(rank)? else {
            return Ok(None);
        };
        if used > undo::MOST_ELSEWHERE {
            *told = None;
            return Ok(Some(Undo {
                since: since.max(newest_image + 1),
                ..Undo::default()
            }));
        }
        let count = used / 8;
        let known = told.filter(|known| (known.0, known.1) == (since, half) && known.2 <= count);
        let from = known.map_or(0, |known| known.2);
        *told = Some((since, half, count));
        let words = self.undo_words(rank, half, from..count)?;
        Ok(Some(Undo { since, from, words }))
    }
}
