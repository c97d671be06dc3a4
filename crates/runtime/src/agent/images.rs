//! Images of ranks: the agent asks for them and begins lives from them. The dispatcher accounts for the output and PMI
//! at each image.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use nix::sys::epoll::{EpollEvent, EpollFlags};
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use resurgo_image::Socket;
use resurgo_protocol::Fact;
use resurgo_protocol::group::Turn;
use resurgo_wire::control::{Stream, ToDispatcher};
use resurgo_wire::image::{Datagram, Kind, TRACKED};
use resurgo_wire::node_memory::arena::IMAGE_SLOTS;
use serde_json::Value;

use super::files::ImageFile;
use super::life::Life;
use super::ranks::Rank;
use super::{Agent, Source, Work};
use crate::memory;
use crate::note::{Counts, Note};
use crate::suspended::ranks::ImagesState;

const IN_PMI: &str = "it is talking to the process manager";

/// An image of a rank: a process that sleeps, or writes a file and ends.
pub(super) struct Image {
    pub number: u64,
    /// Of the cursors in the node memory.
    pub slot: usize,
    /// The note in its file.
    pub note: Note,
    /// Bytes of others' logs delivered to the rank by then, about.
    pub delivered: u64,
    pub socket: Socket,
}

/// An image that is being taken.
struct Taking {
    number: u64,
    slot: usize,
    /// The rank's position, once the dispatcher has accounted for it.
    account: Option<Value>,
    delivered: u64,
    /// The process is copied: its message, and the socket to the copy.
    copied: Option<(Datagram, Socket)>,
}

/// A life that is being rebuilt from a file and does not run yet.
pub(super) struct Restoring {
    pub number: u64,
    /// The failure that it has reported.
    pub failure: Option<String>,
}

impl Restoring {
    pub fn of(number: u64) -> Restoring {
        Restoring { number, failure: None }
    }
}

/// All images of one rank, over all its lives.
#[derive(Default)]
pub(super) struct Images {
    /// The last image that was asked for.
    pub asked: u64,
    /// The coordinator has forgotten what came before some image.
    pub begun: bool,
    last_slot: usize,
    taking: Option<Taking>,
    /// The slot in which the rank is noting its cursors, without an image.
    noting: Option<usize>,
    /// Processes, the older one first.
    copies: Vec<Image>,
    /// Files that are complete, the older one first.
    pub files: Vec<ImageFile>,
    /// Those that could not be used here: what other nodes have may be good, and takes their place.
    pub unusable: BTreeSet<u64>,
    /// The file that is being written.
    pub writing: Option<ImageFile>,
    pub restoring: Option<Restoring>,
    /// What came before the image that the present life begins from is forgotten.
    pub begins_from_oldest: bool,
    /// All ranks begin again, and this one has not yet.
    pub begins_anew: bool,
    /// The rank's log is not in this node's memory but beside the image that it begins from.
    pub lacks_log: bool,
    /// The image from which a thread is putting it back, and how often the memory had begun anew by then.
    pub putting: Option<(u64, u64)>,
    /// The image and the life that its copy was asked to begin, until the process is known.
    waking: Option<(u64, Life)>,
}

/// An image file that a life begins from.
pub(super) struct Saved {
    /// In the job's directory.
    pub name: OsString,
    pub digest: String,
}

impl Images {
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
            // A changed program must not start from its beginning where the image cannot be used.
            begun: state.begun || !state.files.is_empty(),
            last_slot: state.last_slot,
            files: state.files.into_iter().map(ImageFile::from_state).collect(),
            ..Images::default()
        }
    }

    /// The slot with the cursors of the newest image.
    pub fn newest_slot(&self) -> Option<usize> {
        let in_file = self.files.last().map(|file| file.slot);
        self.copies.last().map(|image| image.slot).or(in_file)
    }

    /// Bytes of logs delivered to the rank by its newest image.
    fn delivered(&self) -> u64 {
        let in_files = self.files.iter().map(|file| file.delivered);
        let delivered = in_files.chain(self.copies.iter().map(|image| image.delivered));
        delivered.max().unwrap_or(0)
    }

    /// The process that is image `number`.
    pub fn copy(&self, number: u64) -> Option<&Image> {
        self.copies.iter().find(|image| image.number == number)
    }

    /// The file of image `number`.
    pub fn file(&self, number: u64) -> Option<&ImageFile> {
        self.files.iter().find(|file| file.number == number)
    }

    /// The same, as a process that is rebuilt from it needs it.
    pub fn saved(&self, number: u64) -> io::Result<Saved> {
        let file = self.file(number).ok_or(io::ErrorKind::NotFound)?;
        Ok(Saved {
            name: file.name.clone(),
            digest: file.digest.clone(),
        })
    }

    /// The slot of the cursors of image `number`.
    pub fn slot_of(&self, number: u64) -> Option<usize> {
        let file = self.file(number).map(|file| file.slot);
        file.or(self.copy(number).map(|image| image.slot))
    }

    /// The next slot whose cursors are not in use. `oldest`: that of the oldest image, whose file only another node may
    /// have.
    pub(super) fn free_slot(&self, oldest: Option<usize>) -> usize {
        let kept = self
            .files
            .iter()
            .chain(&self.writing)
            .map(|file| file.slot)
            .chain(self.noting)
            .chain(oldest);
        let used: Vec<usize> = kept.chain(self.copies.iter().map(|image| image.slot)).collect();
        (1..=IMAGE_SLOTS)
            .map(|step| (self.last_slot + step) % IMAGE_SLOTS)
            .find(|slot| !used.contains(slot))
            .expect("fewer images are kept than there are slots")
    }

    pub fn is_waking(&self) -> bool {
        self.waking.is_some()
    }

    /// Image `number` is being taken.
    fn taking(&mut self, number: u64) -> Option<&mut Taking> {
        self.taking.as_mut().filter(|taking| taking.number == number)
    }

    /// The life that was taking an image has ended.
    pub fn end_taking(&mut self) {
        (self.taking, self.noting) = (None, None);
    }

    /// The image being taken, once its process is copied and accounted for. With it: the account, the copy's message,
    /// and the socket to the copy.
    fn complete(&mut self) -> Option<(Taking, Value, Datagram, Socket)> {
        let is_complete = |taking: &mut Taking| taking.account.is_some() && taking.copied.is_some();
        let mut taking = self.taking.take_if(is_complete)?;
        let (said, socket) = taking.copied.take()?;
        let account = taking.account.take()?;
        Some((taking, account, said, socket))
    }

    /// The process sees the end of its socket, and exits.
    pub fn end_copy(&mut self, number: u64) {
        self.copies.retain(|image| image.number != number);
        self.waking.take_if(|(image, _)| *image == number);
    }

    /// The rank goes on elsewhere.
    pub fn end_copies(&mut self) {
        self.copies.clear();
        self.waking = None;
    }

    /// Asks the copy for a new life.
    pub fn wake(&mut self, number: u64, life: Life, theirs: super::life::Theirs) -> io::Result<()> {
        let image = self.copy(number).ok_or(io::ErrorKind::NotFound)?;
        let mut beside = vec![theirs.stdout.as_fd(), theirs.stderr.as_fd(), theirs.pmi.as_fd()];
        beside.extend(theirs.image.as_ref().map(|image| image.as_fd()));
        beside.extend(theirs.stdin.as_ref().map(|stdin| stdin.as_fd()));
        image.socket.send(&Datagram::new(Kind::Wake, number, 0, 0), &beside)?;
        self.waking = Some((number, life));
        Ok(())
    }
}

impl Rank {
    /// Its life and the socket to the library for images in it, if there are both.
    pub(super) fn life_with_images(&self) -> Option<(&Life, &Socket)> {
        self.life.as_ref().and_then(|life| Some((life, life.image.as_ref()?)))
    }

    /// Asks the running process for image `number`; `how`: bits of [`Kind::Checkpoint`]; `former`: the file that the image may
    /// be written over without a snapshot; `oldest`: the slot of the oldest image.
    pub(super) fn ask_for_image(
        &mut self,
        number: u64,
        how: u64,
        former: Option<File>,
        oldest: Option<usize>,
    ) -> io::Result<()> {
        let (life, socket) = self.life_with_images().ok_or(io::ErrorKind::Unsupported)?;
        let slot = self.images.free_slot(oldest);
        let request = Datagram::new(Kind::Checkpoint, number, slot as u64, how);
        let beside: Vec<_> = former.iter().map(File::as_fd).collect();
        resurgo_image::ask(life.pid.as_raw(), socket, request, &beside)?;
        self.images.last_slot = slot;
        self.images.taking = Some(Taking {
            number,
            slot,
            account: None,
            delivered: 0,
            copied: None,
        });
        Ok(())
    }
}

impl Work {
    /// Tells ranks that images go to files in which unchanged pages stay; compressed files are not such.
    pub(super) fn bit_for_files(&self) -> u64 {
        if self.store.is_some() && self.job.image_files.compress.is_none() {
            TRACKED
        } else {
            0
        }
    }

    /// The rank's position in its messages at the image whose cursors are in this slot.
    fn counts_of_image(&self, rank: usize, slot: usize) -> io::Result<Counts> {
        let mut counts = self.memory.counts(rank, slot, self.ranks.len())?;
        if !self.logs() {
            // Cursors of this image lead into no log.
            counts.channels.iter_mut().for_each(|channel| channel.cursor = 0);
        }
        Ok(counts)
    }

    /// Whether all that the ranks hold could be there twice.
    fn has_memory_for_images(&self) -> bool {
        let lives = self.ranks.iter().filter_map(|rank| rank.life.as_ref());
        let held = memory::held_by(lives.map(|life| life.pid.as_raw()));
        memory::available().is_some_and(|available| available > held)
    }
}

impl Agent {
    /// How much log an image of each rank would free: the bytes delivered to it since its newest one. (With files it is
    /// freed an image later.)
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

    /// A running rank reports on its image.
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
            // The user did not ask for images: they must not fill the memory or the disk.
            if !is_scarce && (work.store.is_some() || !work.has_memory_for_images()) {
                return Ok(());
            }
            return self.send(&ToDispatcher::LogGrows {
                rank,
                bytes: datagram.a,
                is_scarce,
            });
        }
        if datagram.kind == Kind::Notes {
            return self.tell_file_notes(rank, datagram.a);
        }
        if datagram.kind == Kind::WantsImage {
            return self.send(&ToDispatcher::ImageWanted { rank });
        }
        match datagram.kind {
            Kind::Restored | Kind::Failed => self.restore_said(rank, datagram),
            Kind::Filling => self.begin_filling(rank, beside),
            // Other nodes act on this report and read what the rank has written: they must have it first.
            kind if work.is_flushed_before(kind) => self.after_flush(rank, datagram),
            _ => self.said_of_image(rank, datagram, beside.into_iter().next().map(Socket::from)),
        }
    }

    /// Turns a rank's report on an image or a wave into a fact.
    pub(super) fn said_of_image(&mut self, rank: usize, said: Datagram, copy: Option<Socket>) -> io::Result<()> {
        let number = said.a;
        let of = rank as u32;
        match (said.kind, copy) {
            (Kind::Ready, _) => {
                let life = self.work.ranks[rank].asked.life;
                self.report(Fact::Ready { rank: of, life });
            }
            (Kind::Noticed, _) => {
                let turn = Turn::from_word(number);
                match said.text() {
                    "" => self.report(Fact::Noticed { rank: of, turn }),
                    why => self.refused(of, turn.wave, why),
                }
            }
            (Kind::Stopped, _) if self.work.ranks[rank].images.taking(number).is_some() => {
                self.mark_image(rank, number)?;
                let delivered = self.work.memory.delivered_log(rank)?;
                if let Some(taking) = self.work.ranks[rank].images.taking(number) {
                    taking.delivered = delivered;
                }
                // If the dispatcher cannot account for it, the image is refused later.
                let accounted = true;
                self.report(Fact::Stopped {
                    rank: of,
                    number,
                    accounted,
                });
            }
            (Kind::Noted, _) => self.noted(rank, number as usize, said.text())?,
            (Kind::Drained, _) => self.report(Fact::Drained {
                rank: of,
                number,
                moved: said.b,
            }),
            (Kind::Taken | Kind::Copied, Some(socket)) => {
                if let Some(taking) = self.work.ranks[rank].images.taking(number) {
                    taking.copied = Some((said, socket));
                }
                self.mind_copied(rank)?;
            }
            (Kind::Refused, _) => {
                let number = self.not_parted(rank, number);
                self.refused(of, number, said.text());
            }
            (Kind::Parted, _) => self.has_parted(rank, said.b),
            _ => {}
        }
        Ok(())
    }

    /// The logs are full, and `rank` has no images: it notes what all can forget.
    pub(super) fn let_go(&mut self, rank: usize) -> io::Result<()> {
        self.work.find_program(rank)?;
        let oldest = self.work.memory.oldest_image(rank)?;
        let this = &mut self.work.ranks[rank];
        let Some((life, socket)) = this.life_with_images() else {
            return Ok(());
        };
        if this.images.noting.is_some() {
            return Ok(());
        }
        let slot = this.images.free_slot(oldest);
        let program = this.wrapped.number().unwrap_or(life.pid.as_raw());
        // Where it cannot be asked, its log stays full, and the next request comes.
        if resurgo_image::ask(program, socket, Datagram::new(Kind::Note, slot as u64, 0, 0), &[]).is_ok() {
            this.images.last_slot = slot;
            this.images.noting = Some(slot);
        }
        Ok(())
    }

    /// It has done so, or says `why` not.
    fn noted(&mut self, rank: usize, slot: usize, why: &str) -> io::Result<()> {
        let images = &mut self.work.ranks[rank].images;
        if images.noting.take_if(|noting| *noting == slot).is_some() && why.is_empty() {
            images.begun = true;
            self.work.memory.set_oldest_image(rank, slot, 0)?;
            if let Some(net) = &self.work.net {
                net.has_image(rank, slot);
                net.forgets(rank);
            }
        }
        Ok(())
    }

    /// The rank's threads stand still. The dispatcher notes its position in output, PMI and input: all that it has
    /// printed and said goes before the mark.
    fn mark_image(&mut self, rank: usize, number: u64) -> io::Result<()> {
        self.pmi_event(rank)?;
        for stream in Stream::ALL {
            while self.read_output(rank, stream)?.is_some_and(|length| length > 0) {}
        }
        let work = &self.work;
        let this = &work.ranks[rank];
        let mark = ToDispatcher::AtImage {
            rank,
            life: this.number,
            image: number,
            read: if rank == 0 { work.feed.read() } else { 0 },
            heard: this.life.as_ref().and_then(Life::heard),
        };
        self.send(&mark)
    }

    /// The dispatcher has accounted for an image; without an account the rank was in the middle of a command to PMI.
    pub(super) fn accounted(&mut self, rank: usize, number: u64, account: Option<Value>) -> io::Result<()> {
        let images = &mut self.work.ranks[rank].images;
        let Some(taking) = images.taking(number) else {
            return Ok(());
        };
        if account.is_some() {
            taking.account = account;
            return self.mind_copied(rank);
        }
        // A copy that exists already ends by itself.
        images.end_taking();
        self.refused(rank as u32, number, IN_PMI);
        Ok(())
    }

    /// Reports an image once its process is copied and accounted for.
    fn mind_copied(&mut self, rank: usize) -> io::Result<()> {
        let Some((taking, account, said, socket)) = self.work.ranks[rank].images.complete() else {
            return Ok(());
        };
        let event = EpollEvent::new(EpollFlags::EPOLLIN, Source::Snapshot(rank).token());
        self.epoll.add(&socket, event)?;
        let work = &mut self.work;
        let counts = work.counts_of_image(rank, taking.slot)?;
        let (number, sleeps) = (taking.number, said.kind == Kind::Taken);
        if let Some(ended) = work.awaits_ended(rank, &counts)? {
            // The copy ends with its socket.
            self.epoll.delete(&socket)?;
            let reason = format!("messages of rank {ended}, which has finished, are on their way to it");
            self.refused(rank as u32, number, &reason);
            return Ok(());
        }
        if work.logs() && work.has_waves() {
            work.net.iter().for_each(|net| net.has_image(rank, taking.slot));
        }
        work.ranks[rank].images.copies.push(Image {
            number,
            slot: taking.slot,
            note: Note::new(&work.job.name, work.job.protocol, (rank, number), counts, account),
            delivered: taking.delivered,
            socket,
        });
        self.report_copied(Fact::Copied {
            rank: rank as u32,
            number,
            sleeps,
            stood: Duration::from_nanos(said.c),
        });
        Ok(())
    }

    /// Copies of a rank report, or have ended.
    pub(super) fn snapshot_event(&mut self, rank: usize) -> io::Result<()> {
        let copies = self.work.ranks[rank].images.copies.iter();
        let numbers: Vec<u64> = copies.map(|image| image.number).collect();
        numbers.into_iter().try_for_each(|number| self.copy_event(rank, number))
    }

    fn copy_event(&mut self, rank: usize, number: u64) -> io::Result<()> {
        loop {
            let images = &mut self.work.ranks[rank].images;
            let Some(image) = images.copy(number) else {
                return Ok(());
            };
            match image.socket.receive() {
                Ok((said, _)) if said.kind == Kind::Woken => {
                    if let Some((_, mut life)) = images.waking.take_if(|(of, _)| *of == number) {
                        life.pid = Pid::from_raw(said.a as i32);
                        self.life_woken(rank, life, number)?;
                    }
                }
                Ok((said, _)) if said.kind == Kind::Failed => self.copy_lost(rank, number, said.text())?,
                Ok((said, _)) => self.file_said(rank, number, said)?,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(_) => self.copy_lost(rank, number, "the process has ended (for want of memory?)")?,
            }
        }
    }

    /// The process of a life that a copy was asked for is known.
    fn life_woken(&mut self, rank: usize, life: Life, image: u64) -> io::Result<()> {
        let pid = life.pid;
        let this = &mut self.work.ranks[rank];
        if this.asked.is_ended {
            // Given up before it began. Its writes to the node memory are over only when it has ended.
            life.signal(Signal::SIGKILL);
            this.life = Some(life);
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

    /// Some copy was asked for a life whose process is not known yet.
    pub(super) fn anyone_wakes(&self) -> bool {
        let mut ranks = self.work.ranks.iter();
        ranks.any(|rank| rank.images.is_waking())
    }

    /// Reads the reports of snapshots that were asked for a life.
    pub(super) fn hear_snapshots(&mut self) -> io::Result<()> {
        for rank in 0..self.work.ranks.len() {
            if self.work.ranks[rank].images.is_waking() {
                self.snapshot_event(rank)?;
            }
        }
        Ok(())
    }

    /// A copy is gone. A life that was to begin from it begins elsewhere.
    pub(super) fn copy_lost(&mut self, rank: usize, number: u64, why: &str) -> io::Result<()> {
        let images = &mut self.work.ranks[rank].images;
        let is_its_file = |file: &ImageFile| file.number == number && !file.name.is_empty();
        // Only the directory's last sync may be missing.
        let stored = images.writing.as_ref().is_some_and(is_its_file);
        let waking = images.waking.take_if(|(image, _)| *image == number).is_some();
        images.copies.retain(|image| image.number != number);
        let written = stored.then(|| images.keep_file(rank)).flatten();
        self.report(Fact::CopyLost {
            rank: rank as u32,
            number,
            stored,
            reason: why.to_string(),
        });
        written.map_or(Ok(()), |written| self.send(&written))?;
        if waking {
            self.not_begun(rank);
        }
        Ok(())
    }

    /// A life could not begin from the image chosen for it.
    pub(super) fn not_begun(&mut self, rank: usize) {
        let this = &mut self.work.ranks[rank];
        if !this.asked.together {
            // The rank had no such life.
            this.number -= 1;
        }
        let life = this.asked.life;
        self.report(Fact::NotBegun {
            rank: rank as u32,
            life,
        });
    }
}
