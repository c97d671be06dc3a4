//! The ledger: what the job must know of its ranks even when their node is lost. It holds each rank's progress in
//! output, PMI and input, now and at each image that a life can begin from.
//!
//! Agents pass on what lives print and say, with marks where lives begin and images are taken. Connections keep the
//! order, so the ledger's state at a mark is the *account* of that moment; no agent waits for it.

mod accounts;
mod spool;
mod taken;
mod wording;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

use resurgo_pmi::{Command, LineBuffer, LineError, Server};
use resurgo_protocol::causal::Gathering;
use resurgo_wire::control::{FileNotes, Stream};
use serde_json::Value;

use crate::printed::{self, Entry, Place};
pub(super) use accounts::State;
use accounts::{Account, RankState};
use resurgo_store::own_directory::{Directory, Trust};
pub(super) use spool::Part;
use spool::Spool;
pub(super) use taken::Accepted;
use taken::Taken;

/// The data that must outlive nodes.
pub(super) struct Ledger {
    ranks: Vec<Rank>,
    pub server: Server,
    /// Standard input, if it is not a file that lives open themselves.
    pub input: Option<Spool>,
    /// Deliveries on which what ranks have printed depends (causal logging on several nodes).
    pub vouched: Gathering,
    /// The epoch in which ranks began at the beginning: what nodes say of deliveries before that does not count.
    pub course: u64,
    /// Waves that places have, or will have: their accounts stay.
    pub lasting: BTreeSet<u64>,
    /// What ranks have noted of files, where there are several nodes, and the node of each that has it, too.
    pub file_notes: BTreeMap<usize, (usize, FileNotes)>,
}

/// One rank over all its lives.
#[derive(Default)]
struct Rank {
    /// The present life, from 1.
    life: u64,
    taken: [Taken; 2],
    /// What the agent knows: whether a stream has text to repeat.
    repeats: [bool; 2],
    /// What the life has said to PMI and is not complete.
    lines: LineBuffer,
    /// Bytes of PMI's answers to the life.
    answered: u64,
    /// By the number of the image.
    accounts: BTreeMap<u64, Account>,
}

impl Ledger {
    /// `appnums`: per rank, the number of its program.
    pub fn new(job: &str, appnums: Vec<u32>, streams_input: bool) -> io::Result<Ledger> {
        Ok(Ledger {
            vouched: Gathering::new(appnums.len()),
            course: 0,
            ranks: appnums.iter().map(|_| Rank::default()).collect(),
            server: Server::new(job, appnums),
            input: streams_input.then(Spool::new).transpose()?,
            lasting: BTreeSet::new(),
            file_notes: BTreeMap::new(),
        })
    }

    /// Ranks ask MPI for these kinds of memory.
    pub fn asking_for(mut self, memory_alloc_kinds: Option<String>) -> Ledger {
        self.server.ask_for(memory_alloc_kinds);
        self
    }

    /// The rank, if this is its present life; messages of a former life come before its end.
    fn present(&mut self, rank: usize, life: u64) -> Option<&mut Rank> {
        self.ranks.get_mut(rank).filter(|this| this.life == life)
    }

    pub fn is_present(&self, rank: usize, life: u64) -> bool {
        self.ranks.get(rank).is_some_and(|this| this.life == life)
    }

    /// The present life of a rank.
    pub fn life(&self, rank: usize) -> u64 {
        self.ranks[rank].life
    }

    /// The job has `ranks` ranks now.
    pub fn grow(&mut self, ranks: usize) {
        self.ranks.resize_with(ranks, Rank::default);
        self.vouched.grow(ranks);
    }

    /// A life begins from image `image`, 0: the beginning of its program. `replays`: it repeats messages as well. Returns whether it
    /// repeats output; None: there is no account of the image.
    pub fn began(&mut self, rank: usize, life: u64, image: u64, replays: bool) -> Option<[bool; 2]> {
        let this = self.ranks.get_mut(rank)?;
        let from = match image {
            0 => Account::default(),
            image => this.accounts.get(&image)?.clone(),
        };
        this.life = life;
        for (taken, printed) in this.taken.iter_mut().zip(from.printed) {
            taken.restarted(printed, replays);
        }
        this.repeats = this.taken.each_ref().map(Taken::repeats);
        (this.lines, this.answered) = (LineBuffer::default(), 0);
        self.server.restarted(rank, from.pmi);
        if rank == 0
            && let Some(input) = &mut self.input
        {
            input.begin_life(from.read);
        }
        Some(self.ranks[rank].repeats)
    }

    /// What the present life has printed next: what of it is new.
    pub fn printed(&mut self, rank: usize, life: u64, stream: Stream, bytes: &[u8]) -> Accepted {
        match self.present(rank, life) {
            Some(this) => this.taken[stream as usize].accept(bytes),
            None => Accepted::default(),
        }
    }

    /// Whether the present life repeats output, if that has changed since the last call.
    pub fn repeats_anew(&mut self, rank: usize) -> Option<(u64, [bool; 2])> {
        let this = &mut self.ranks[rank];
        let repeats = this.taken.each_ref().map(Taken::repeats);
        let changes = std::mem::replace(&mut this.repeats, repeats) != repeats;
        changes.then_some((this.life, repeats))
    }

    /// Whether the present life has yet to repeat standard output of former ones.
    pub fn repeats_output(&self, rank: usize) -> bool {
        self.ranks[rank].taken[0].repeats()
    }

    /// Gives up waiting until the present life has repeated the output of former ones. Returns how many bytes are
    /// missing.
    pub fn forgive(&mut self, rank: usize, life: u64) -> u64 {
        match self.is_present(rank, life) {
            true => self.forgive_last(rank),
            false => 0,
        }
    }

    /// The same of the last life of the rank.
    pub fn forgive_last(&mut self, rank: usize) -> u64 {
        let taken = &mut self.ranks[rank].taken[0];
        let bytes = taken.behind();
        if bytes > 0 {
            taken.forgive();
        }
        bytes
    }

    /// The rank prints no more, and no life follows: returns the text held back.
    pub fn end_output(&mut self, rank: usize, stream: Stream) -> Accepted {
        self.ranks[rank].taken[stream as usize].end_life()
    }

    /// The present life has said this to PMI.
    pub fn said(&mut self, rank: usize, life: u64, lines: &[u8]) {
        if let Some(this) = self.present(rank, life) {
            this.lines.extend(lines);
        }
    }

    /// The next command of the present life that is complete.
    pub fn next_command(&mut self, rank: usize) -> Option<Result<Command, LineError>> {
        self.ranks.get_mut(rank)?.lines.next_command()
    }

    /// PMI answers the present life, whose number this is.
    pub fn answered(&mut self, rank: usize, lines: &str) -> u64 {
        let this = &mut self.ranks[rank];
        this.answered += lines.len() as u64;
        this.life
    }

    /// The present life of a rank stands still for image `image`; all that it has printed and said is here. `heard`:
    /// bytes of answers that it got. `oldest`: no life begins before this image of the rank; None: it has none yet.
    /// Returns the account, for the note of the image; None: the rank is in the middle of a command, where no life can
    /// begin.
    pub fn note_account(
        &mut self,
        (rank, life): (usize, u64),
        image: u64,
        read: u64,
        heard: Option<u64>,
        oldest: Option<u64>,
    ) -> Option<Value> {
        let pmi = self.server.position(rank);
        let read = match &self.input {
            Some(input) if rank == 0 => input.place(read),
            _ => 0,
        };
        let lasting = &self.lasting;
        let this = self.ranks.get_mut(rank).filter(|this| this.life == life)?;
        this.accounts
            .retain(|number, _| oldest.is_some_and(|oldest| *number >= oldest) || lasting.contains(number));
        let is_between = this.lines.is_empty() && heard == Some(this.answered);
        let account = Account {
            printed: this.taken.each_ref().map(Taken::printed),
            pmi: pmi.filter(|_| is_between)?,
            read,
        };
        let noted = serde_json::to_value(&account).ok()?;
        this.accounts.insert(image, account);
        Some(noted)
    }

    /// Takes over what an interrupted run of the job, with files in `directory`, printed after its file was written.
    pub fn go_on(&mut self, directory: &Path, place: Place) -> io::Result<()> {
        let directory = Directory::open(directory, Trust::Groups)?;
        printed::read(&directory, place.journal, |entry| {
            if let Entry::Printed { rank, stream, bytes } = entry
                && let Some(this) = self.ranks.get_mut(rank)
            {
                this.taken[stream as usize].take_printed(&bytes);
            }
        })
    }

    pub fn state(&self) -> State {
        let ranks = self.ranks.iter().map(|rank| RankState {
            taken: rank.taken.clone(),
            accounts: rank
                .accounts
                .iter()
                .map(|(number, account)| (*number, account.clone()))
                .collect(),
        });
        State {
            ranks: ranks.collect(),
            server: self.server.clone(),
            input_ended: self.input.as_ref().is_some_and(|input| input.has_ended()),
        }
    }

    /// Goes on where the job was suspended. The input so far follows: see [`Ledger::input_is_back`].
    pub fn resume(&mut self, state: State) {
        let of = |state: RankState| Rank {
            taken: state.taken,
            accounts: BTreeMap::from_iter(state.accounts),
            ..Rank::default()
        };
        self.ranks = state.ranks.into_iter().map(of).collect();
        self.server = state.server;
        if state.input_ended
            && let Some(input) = &mut self.input
        {
            input.end();
        }
    }

    /// The agent has put the input so far into its place.
    pub fn input_is_back(&mut self) -> io::Result<()> {
        match &mut self.input {
            Some(input) => input.resume(),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
