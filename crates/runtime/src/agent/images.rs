//! Images of ranks: asking for them, accounting for what the rank had printed and said when one was taken, and lives that
//! begin from one.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::sys::epoll::{EpollEvent, EpollFlags};
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use resurgo_image::Socket;
use resurgo_pmi::Position;
use resurgo_wire::control::{Stream, ToDispatcher};
use resurgo_wire::image::{Datagram, Kind, TRACKED};
use resurgo_wire::node_memory::{PHASE_CLOSED, PHASE_LIVE, arena::IMAGE_SLOTS};
use serde::{Deserialize, Serialize};

use super::files::ImageFile;
use super::life::Life;
use super::ranks::Rank;
use super::suspend::ImagesState;
use super::taken::Printed;
use super::{Agent, Source, Work, patience};
use crate::memory;

/// Why a rank has no image now.
pub(super) const STILL_FILLING: &str = "its memory is still being read from its last image";

/// What the agent must know to begin a life from an image: where the rank was in everything that the agent keeps for it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Account {
    pub printed: [Printed; 2],
    pub pmi: Position,
    /// Bytes of standard input that had been read.
    pub read: u64,
}

impl Account {
    pub const BEGINNING: fn() -> Account = || Account {
        printed: Default::default(),
        pmi: Position::default(),
        read: 0,
    };
}

/// An image of a rank: a sleeping process.
pub(super) struct Image {
    pub number: u64,
    /// Of the cursors in the node memory.
    pub slot: usize,
    pub account: Account,
    /// What had been delivered to the rank by then: about so many bytes of others' logs.
    pub delivered: u64,
    pub socket: Socket,
}

/// An image that is being taken.
struct Taking {
    slot: usize,
    /// When an answer is not waited for any longer.
    until: Instant,
    /// Once all threads stand still.
    account: Option<Account>,
    delivered: u64,
}

/// A life that is being rebuilt from a file and does not run yet.
pub(super) struct Restoring {
    pub number: u64,
    /// What it has said.
    pub failure: Option<String>,
}

impl Restoring {
    pub fn of(number: u64) -> Restoring {
        Restoring { number, failure: None }
    }
}

/// The images of one rank over all its lives.
#[derive(Default)]
pub(super) struct Images {
    /// Images asked for so far.
    asked: u64,
    last_slot: usize,
    /// The present life is taking image `asked`.
    taking: Option<Taking>,
    pub newest: Option<Image>,
    /// An image that is being written by a process that can do nothing else: it counts when its file is complete.
    pub writer: Option<Image>,
    /// Part of a wave that is not complete.
    candidate: Option<Image>,
    /// Files that are complete, the older one first.
    pub files: Vec<ImageFile>,
    /// The newest image is being written.
    pub writing: Option<ImageFile>,
    pub restoring: Option<Restoring>,
    /// What came before some image may be forgotten.
    pub begun: bool,
    /// A life that a snapshot has been asked for, without its process.
    waking: Option<Life>,
}

/// What a life begins from.
pub(super) struct Start {
    /// 0: the beginning of the program.
    pub number: u64,
    pub account: Account,
    pub is_snapshot: bool,
    pub file: Option<Saved>,
}

/// An image file that a life begins from.
pub(super) struct Saved {
    /// In the job's directory.
    pub name: OsString,
    pub digest: String,
}

impl Images {
    /// What the next life begins from: the snapshot, or the newest file if that is newer or there is none, else the beginning of
    /// the program. None: from nowhere, what came before the lost images is forgotten.
    pub fn choose(&self) -> Option<Start> {
        let in_file = self.files.last().map_or(0, |file| file.number);
        if let Some(image) = self.newest.as_ref().filter(|image| image.number >= in_file) {
            return Some(Start {
                number: image.number,
                account: image.account.clone(),
                is_snapshot: true,
                file: None,
            });
        }
        if let Some(file) = self.files.last() {
            return Some(Start {
                number: file.number,
                account: file.account.clone(),
                is_snapshot: false,
                file: Some(Saved {
                    name: file.name.clone(),
                    digest: file.digest.clone(),
                }),
            });
        }
        (!self.begun).then(|| Start {
            number: 0,
            account: Account::BEGINNING(),
            is_snapshot: false,
            file: None,
        })
    }

    pub fn state(&self) -> ImagesState {
        ImagesState {
            asked: self.asked,
            last_slot: self.last_slot,
            begun: self.begun,
            files: self.files.iter().map(ImageFile::state).collect(),
        }
    }

    /// Images of a suspended job.
    pub fn from_state(state: ImagesState) -> Images {
        Images {
            asked: state.asked,
            last_slot: state.last_slot,
            // A program that has been changed must not begin again where its image cannot be used.
            begun: state.begun || !state.files.is_empty(),
            files: state.files.into_iter().map(ImageFile::from_state).collect(),
            ..Images::default()
        }
    }

    pub fn number(&self) -> u64 {
        self.newest.as_ref().map_or(0, |image| image.number)
    }

    /// What has been delivered to the rank by the newest image that a life can begin from.
    fn delivered(&self) -> u64 {
        let in_files = self.files.iter().map(|file| file.delivered);
        in_files
            .chain(self.newest.as_ref().map(|image| image.delivered))
            .max()
            .unwrap_or(0)
    }

    /// The image whose file is being written or is to be.
    pub fn to_write(&self) -> Option<&Image> {
        self.writer.as_ref().or(self.newest.as_ref())
    }

    /// The next slot whose cursors nobody needs.
    fn free_slot(&self) -> usize {
        let kept = self.files.iter().chain(&self.writing).map(|file| file.slot);
        let images = self.newest.iter().chain(&self.writer).map(|image| image.slot);
        let used: Vec<usize> = kept.chain(images).collect();
        (1..=IMAGE_SLOTS)
            .map(|step| (self.last_slot + step) % IMAGE_SLOTS)
            .find(|slot| !used.contains(slot))
            .expect("fewer images are kept than there are slots")
    }

    pub fn is_waking(&self) -> bool {
        self.waking.is_some()
    }

    pub fn is_taking(&self) -> bool {
        self.taking.is_some()
    }

    /// When an answer about the image that is being taken is not waited for any longer.
    pub fn patience_ends(&self) -> Option<Instant> {
        self.taking.as_ref().map(|taking| taking.until)
    }

    /// The account of a rank that stands still.
    pub fn account_while_taking(&mut self, account: Option<Account>) {
        if let Some(taking) = &mut self.taking {
            taking.account = account;
        }
    }

    /// What had been delivered to a rank that stands still.
    fn delivered_while_taking(&mut self, delivered: u64) {
        if let Some(taking) = &mut self.taking {
            taking.delivered = delivered;
        }
    }

    /// The rank's part of a wave that may become complete.
    pub fn add_candidate(&mut self, taken: Datagram, socket: Socket) {
        self.candidate = self.complete(taken, socket);
    }

    /// The image that has been taken, if it is accounted for.
    fn complete(&mut self, taken: Datagram, socket: Socket) -> Option<Image> {
        let taking = self.taking.take()?;
        Some(Image {
            number: taken.a,
            slot: taking.slot,
            account: taking.account?,
            delivered: taking.delivered,
            socket,
        })
    }

    pub fn drop_candidate(&mut self) {
        self.candidate = None;
        self.taking = None;
    }

    /// Images asked for so far.
    pub fn asked(&self) -> u64 {
        self.asked
    }

    pub fn has_file(&self, number: u64) -> bool {
        self.files.iter().any(|file| file.number == number)
    }

    /// The slot of the cursors of image `number`, which is in a file.
    pub fn slot_of(&self, number: u64) -> Option<usize> {
        let mut files = self.files.iter();
        Some(files.find(|file| file.number == number)?.slot)
    }

    /// A life can begin from image `number`.
    pub fn has(&self, number: u64) -> bool {
        self.number() == number || self.has_file(number)
    }

    /// The snapshot ends if it is of image `number` or an older one, and not about to make a life.
    pub fn end_snapshot(&mut self, number: u64) {
        if !self.is_waking() {
            self.newest.take_if(|image| image.number <= number);
        }
    }

    pub fn is_writing(&self, number: u64) -> bool {
        self.writing.as_ref().is_some_and(|file| file.number == number)
    }

    /// The rank has finished, or the job ends: its snapshot sees the end of its socket and exits.
    pub fn forget(&mut self) {
        *self = Images {
            asked: self.asked,
            begun: self.begun,
            files: std::mem::take(&mut self.files),
            ..Images::default()
        };
    }

    /// Asks the snapshot for a new life.
    pub fn wake(&mut self, life: Life, theirs: super::life::Theirs) -> io::Result<()> {
        let Some(image) = &self.newest else {
            return Err(io::ErrorKind::NotFound.into());
        };
        let mut beside = vec![theirs.stdout.as_fd(), theirs.stderr.as_fd(), theirs.pmi.as_fd()];
        beside.extend(theirs.image.as_ref().map(|image| image.as_fd()));
        beside.extend(theirs.stdin.as_ref().map(|stdin| stdin.as_fd()));
        image
            .socket
            .send(&Datagram::new(Kind::Wake, image.number, 0, 0), &beside)?;
        self.waking = Some(life);
        Ok(())
    }
}

impl Rank {
    /// Asks the running process for image `number`; `how`: bits of [`Kind::Checkpoint`]; `former`: the file that the image may
    /// be written over without a snapshot; `patience`: how long an answer is waited for.
    pub(super) fn ask_for_image(
        &mut self,
        number: u64,
        how: u64,
        former: Option<File>,
        patience: Duration,
    ) -> io::Result<()> {
        let Some((life, socket)) = self.life.as_ref().and_then(|life| Some((life, life.image.as_ref()?))) else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        self.images.asked = number;
        let slot = self.images.free_slot();
        let request = Datagram::new(Kind::Checkpoint, number, slot as u64, how);
        let beside: Vec<_> = former.iter().map(File::as_fd).collect();
        resurgo_image::ask(life.pid.as_raw(), socket, request, &beside)?;
        self.images.last_slot = slot;
        self.images.taking = Some(Taking {
            slot,
            until: Instant::now() + patience,
            account: None,
            delivered: 0,
        });
        Ok(())
    }
}

impl Work {
    /// Images will be written to files in which what has not changed stays: not to compressed ones.
    pub(super) fn bit_for_files(&self) -> u64 {
        if self.store.is_some() && self.job.checkpoint_compress.is_none() {
            TRACKED
        } else {
            0
        }
    }

    /// Whether all that the ranks hold could be there twice.
    fn has_memory_for_images(&self) -> bool {
        let lives = self.ranks.iter().filter_map(|rank| rank.life.as_ref());
        let held = memory::held_by(lives.map(|life| life.pid.as_raw()));
        memory::available().is_some_and(|available| available > held)
    }
}

impl Agent {
    pub(super) fn ask_for_image(&mut self, rank: usize) -> io::Result<()> {
        let work = &mut self.work;
        let phase = work.memory.phase(rank)?;
        let how = work.bit_for_files();
        // The images of a wave must all be there before one counts.
        let former = work.store.as_ref().filter(|_| how != 0 && !work.has_waves());
        let former = former.and_then(|store| store.former(rank).ok());
        let patience = patience::with(work, &[rank]);
        let this = &mut work.ranks[rank];
        let reason = match &this.life {
            _ if this.images.taking.is_some() => "it is taking one".to_string(),
            _ if this.images.writing.is_some() => "its last image is still being written".to_string(),
            Some(_) if this.is_filling() => STILL_FILLING.to_string(),
            Some(_) if phase == PHASE_LIVE && this.is_up_to_date() => {
                match this.ask_for_image(this.images.asked + 1, how, former, patience) {
                    Ok(()) => return Ok(()),
                    Err(error) => error.to_string(),
                }
            }
            Some(_) if phase == PHASE_CLOSED => "it is outside of MPI".to_string(),
            Some(_) if !this.repeats() && phase != PHASE_LIVE => "it has not opened MPI".to_string(),
            Some(_) => "it repeats what a former life did".to_string(),
            None => "it is not running".to_string(),
        };
        self.send(&ToDispatcher::NotCheckpointed { rank, reason })
    }

    /// How much log an image of each rank would free: what has been delivered to it since its newest one. (With files it is freed
    /// an image later.)
    pub(super) fn measure_logs(&mut self) -> io::Result<()> {
        let work = &self.work;
        let since_image = |(rank, this): (usize, &Rank)| {
            work.memory
                .delivered_log(rank)
                .map(|delivered| delivered.saturating_sub(this.images.delivered()))
        };
        let bytes = work
            .ranks
            .iter()
            .enumerate()
            .map(since_image)
            .collect::<io::Result<_>>()?;
        self.send(&ToDispatcher::LogsMeasured { bytes })
    }

    /// What a running rank says about its image.
    pub(super) fn image_event(&mut self, rank: usize) -> io::Result<()> {
        loop {
            let life = self.work.ranks[rank].life.as_ref();
            let Some(socket) = life.and_then(|life| life.image.as_ref()) else {
                return Ok(());
            };
            match socket.receive() {
                Ok((datagram, beside)) => self.image_said(rank, datagram, beside)?,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(_) => {
                    let _ = self.epoll.delete(socket);
                    return Ok(());
                }
            }
        }
    }

    fn image_said(&mut self, rank: usize, datagram: Datagram, beside: Vec<OwnedFd>) -> io::Result<()> {
        let work = &mut self.work;
        if datagram.kind == Kind::LogGrows {
            let is_scarce = datagram.b != 0;
            // Nobody has asked for images: they must not fill the memory, nor files be written for them.
            if !is_scarce && (work.store.is_some() || !work.has_memory_for_images()) {
                return Ok(());
            }
            return self.send(&ToDispatcher::LogGrows {
                rank,
                bytes: datagram.a,
                is_scarce,
            });
        }
        if datagram.kind == Kind::WantsImage {
            return self.send(&ToDispatcher::ImageWanted { rank });
        }
        if datagram.kind == Kind::Ready {
            return self.ready_to_go_on(rank);
        }
        if datagram.kind == Kind::Noticed {
            return self.noticed(rank, datagram);
        }
        if matches!(datagram.kind, Kind::Restored | Kind::Failed) {
            return self.restore_said(rank, datagram);
        }
        if datagram.kind == Kind::Filling {
            return self.begin_filling(rank, beside);
        }
        let snapshot = beside.into_iter().next().map(Socket::from);
        let in_waves = work.has_waves();
        let images = &mut work.ranks[rank].images;
        if (images.taking.is_none() && datagram.kind != Kind::Drained) || datagram.a != images.asked {
            return Ok(());
        }
        if in_waves {
            return self.said_in_wave(rank, datagram, snapshot);
        }
        match (datagram.kind, snapshot) {
            (Kind::Stopped, _) => {
                let account = self.account_for(rank)?;
                let work = &mut self.work;
                let answer = if account.is_some() { Kind::Go } else { Kind::Abandon };
                work.tell(rank, &Datagram::new(answer, datagram.a, 0, 0));
                let delivered = work.memory.delivered_log(rank)?;
                work.ranks[rank].images.account_while_taking(account);
                work.ranks[rank].images.delivered_while_taking(delivered);
                Ok(())
            }
            (Kind::Taken | Kind::Copied, Some(socket)) => match images.complete(datagram, socket) {
                Some(image) => self.image_taken(rank, image, datagram),
                None => Ok(()),
            },
            (Kind::Refused, _) => {
                images.taking = None;
                let reason = datagram.text().to_string();
                self.send(&ToDispatcher::NotCheckpointed { rank, reason })
            }
            _ => Ok(()),
        }
    }

    /// Where a rank whose threads stand still is in its output, PMI and input; None: in the middle of a PMI command.
    pub(super) fn account_for(&mut self, rank: usize) -> io::Result<Option<Account>> {
        let before = self.work.server.position(rank);
        self.pmi_event(rank)?;
        for stream in Stream::ALL {
            while self.read_output(rank, stream)?.is_some_and(|length| length > 0) {}
        }
        let Some(pmi) = self.work.server.position(rank).filter(|now| Some(*now) == before) else {
            return Ok(None);
        };
        let work = &self.work;
        let this = &work.ranks[rank];
        let whole = this
            .life
            .as_ref()
            .is_some_and(|life| life.answers.is_empty() && life.lines.is_empty());
        Ok(whole.then(|| Account {
            printed: this.printed(),
            pmi,
            read: work
                .spool
                .as_ref()
                .filter(|_| rank == 0)
                .map_or(0, |spool| spool.read()),
        }))
    }

    /// An image is complete: the one before it goes.
    fn keep_image(&mut self, rank: usize, image: Image) -> io::Result<()> {
        self.watch_image(rank, &image)?;
        let work = &mut self.work;
        let (slot, number) = (image.slot, image.number);
        let images = &mut work.ranks[rank].images;
        images.newest = Some(image);
        // With files, what is needed is what they need: see `files.rs`.
        if work.recovers_alone() && work.store.is_none() {
            work.ranks[rank].images.begun = true;
            work.memory.set_oldest_image(rank, slot, number)?;
        }
        Ok(())
    }

    pub(super) fn promote_candidate(&mut self, rank: usize) -> io::Result<()> {
        match self.work.ranks[rank].images.candidate.take() {
            Some(image) => self.keep_image(rank, image),
            None => Ok(()),
        }
    }

    fn watch_image(&self, rank: usize, image: &Image) -> io::Result<()> {
        let event = EpollEvent::new(EpollFlags::EPOLLIN, Source::Snapshot(rank).token());
        Ok(self.epoll.add(&image.socket, event)?)
    }

    fn image_taken(&mut self, rank: usize, image: Image, taken: Datagram) -> io::Result<()> {
        let number = image.number;
        let is_snapshot = taken.kind == Kind::Taken;
        if is_snapshot {
            self.keep_image(rank, image)?;
        } else {
            self.watch_image(rank, &image)?;
            self.work.ranks[rank].images.writer = Some(image);
        }
        self.send(&ToDispatcher::Checkpointed {
            rank,
            number,
            stall_ns: taken.c,
            is_snapshot,
        })?;
        self.write_image(rank)
    }

    /// What a snapshot says, or that it has gone.
    pub(super) fn snapshot_event(&mut self, rank: usize) -> io::Result<()> {
        self.writer_event(rank)?;
        loop {
            let work = &mut self.work;
            let images = &mut work.ranks[rank].images;
            let Some(image) = &images.newest else { return Ok(()) };
            match image.socket.receive() {
                Ok((datagram, _)) if datagram.kind == Kind::Woken => {
                    let pid = Pid::from_raw(datagram.a as i32);
                    let number = image.number;
                    if let Some(mut life) = images.waking.take() {
                        life.pid = pid;
                        self.life_woken(rank, life, number)?;
                        self.end_copies_in_files(rank);
                    }
                }
                Ok((datagram, _)) if datagram.kind == Kind::Failed => self.snapshot_lost(rank, datagram.text())?,
                Ok((datagram, _)) => self.file_said(rank, datagram)?,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(_) => self.snapshot_lost(rank, "the process has ended (for want of memory?)")?,
            }
        }
    }

    /// The process of a life that a snapshot was asked for is known.
    fn life_woken(&mut self, rank: usize, life: Life, image: u64) -> io::Result<()> {
        let pid = life.pid;
        if self.work.waits_for_ends(rank) {
            // Given up before it began. What it does to the node memory is over when it has ended, not before.
            life.signal(Signal::SIGKILL);
            self.work.ranks[rank].life = Some(life);
        } else {
            self.life_begins(rank, life, image)?;
        }
        match self.unclaimed.iter().position(|(ended, _)| *ended == pid) {
            Some(index) => {
                let (_, end) = self.unclaimed.swap_remove(index);
                self.rank_ended(rank, end)
            }
            None => Ok(()),
        }
    }

    /// Some rank's life has been asked for, and its process is not known.
    pub(super) fn anyone_wakes(&self) -> bool {
        let mut ranks = self.work.ranks.iter();
        ranks.any(|rank| rank.images.is_waking())
    }

    /// Reads what snapshots say that have been asked for a life.
    pub(super) fn hear_snapshots(&mut self) -> io::Result<()> {
        for rank in 0..self.work.ranks.len() {
            if self.work.ranks[rank].images.is_waking() {
                self.snapshot_event(rank)?;
            }
        }
        Ok(())
    }

    /// The newest image cannot be used any more. A life that was to begin from it begins elsewhere.
    pub(super) fn snapshot_lost(&mut self, rank: usize, why: &str) -> io::Result<()> {
        let work = &mut self.work;
        let images = &mut work.ranks[rank].images;
        let number = images.number();
        images.newest = None;
        let waking = images.waking.take().is_some();
        let it_wrote = images.writer.is_none();
        let together = work.is_returning(rank) || !work.recovers_alone() || work.is_hierarchical();
        let reason = why.to_string();
        self.send(&ToDispatcher::ImageLost { rank, number, reason })?;
        if it_wrote {
            self.stop_writing(rank)?;
        }
        if together {
            return self.wave_lost(rank, number);
        }
        if waking {
            self.begin_elsewhere(rank)?;
        }
        Ok(())
    }

    /// The wave that its newest image is part of is lost.
    pub(super) fn forget_newest(&mut self, rank: usize) -> io::Result<()> {
        self.work.ranks[rank].images.newest = None;
        self.stop_writing(rank)
    }

    /// A life could not begin from the image chosen for it.
    pub(super) fn begin_elsewhere(&mut self, rank: usize) -> io::Result<()> {
        let work = &mut self.work;
        let this = &mut work.ranks[rank];
        // That was no life.
        this.number -= 1;
        let fault_at_messages = this.fault_at_messages;
        self.start_again(rank, fault_at_messages)
    }

    /// The rank has died: an image that it was taking is none.
    pub(super) fn end_images_of_life(&mut self, rank: usize) -> io::Result<()> {
        self.image_event(rank)?;
        let work = &mut self.work;
        if work.has_waves() {
            return self.drop_wave(rank, "it died meanwhile");
        }
        if work.ranks[rank].images.taking.take().is_some() {
            let reason = "it died meanwhile".to_string();
            self.send(&ToDispatcher::NotCheckpointed { rank, reason })?;
        }
        Ok(())
    }
}
