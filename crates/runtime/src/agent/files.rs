//! Image files of ranks: snapshots write them, and lives are rebuilt from them.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use nix::sys::epoll::{EpollEvent, EpollFlags};
use nix::sys::signal::Signal;
use resurgo_image::Socket;
use resurgo_protocol::Fact;
use resurgo_wire::control::{End, ToDispatcher};
use resurgo_wire::image::{Datagram, Kind};

use super::images::Images;
use super::life::Filling;
use super::{Agent, PATIENCE, Source, Work};

/// An image in a file.
pub(super) struct ImageFile {
    pub number: u64,
    /// Of its cursors in the node memory.
    pub slot: usize,
    /// In the job's directory. Empty until it is complete.
    pub name: OsString,
    /// By which the file is recognised.
    pub digest: String,
    /// See [`super::images::Image`].
    pub delivered: u64,
    /// How many deliveries the image before it covers: the record is needed from there on.
    pub above: u64,
    /// What its copy has said when all of it was written, while its rank's log is being taken.
    pub said: Option<Datagram>,
    /// The rest of its note, which the agent writes at the file's end.
    rest: Vec<u8>,
    bytes: u64,
    written: u64,
    write_ns: u64,
}

impl ImageFile {
    pub fn new(number: u64, slot: usize) -> ImageFile {
        ImageFile {
            number,
            slot,
            name: OsString::new(),
            digest: String::new(),
            delivered: 0,
            above: 0,
            said: None,
            rest: Vec::new(),
            bytes: 0,
            written: 0,
            write_ns: 0,
        }
    }
}

/// A signal that can also end a running rank. If it ends a process that is being rebuilt, the file is as good as
/// before.
fn is_killed(end: End) -> bool {
    let signals = [Signal::SIGKILL, Signal::SIGTERM].map(|signal| End::Signalled(signal as i32));
    signals.contains(&end)
}

/// A kind of namespace in which the process is not with this one: a wrapper (`ip netns exec`) may have moved it.
fn foreign_namespace(pid: i32) -> Option<&'static str> {
    let kinds = [
        ("net", "network"),
        ("user", "user"),
        ("mnt", "mount"),
        ("pid", "process"),
        ("ipc", "IPC"),
    ];
    let name = |of: &str, kind: &str| std::fs::read_link(format!("/proc/{of}/ns/{kind}")).ok();
    let is_foreign = |(kind, _): &&(&str, &str)| {
        let theirs = name(&pid.to_string(), kind);
        theirs.is_some() && theirs != name("self", kind)
    };
    kinds.iter().find(is_foreign).map(|(_, shown)| *shown)
}

impl Images {
    /// The file that was being written is complete: returns the message for the dispatcher.
    pub fn keep_file(&mut self, rank: usize) -> Option<ToDispatcher> {
        let file = self.writing.take()?;
        let written = ToDispatcher::ImageWritten {
            rank,
            number: file.number,
            bytes: file.bytes,
            written: file.written,
            write_ns: file.write_ns,
        };
        self.files.push(file);
        Some(written)
    }
}

impl Work {
    /// Image `number` needs no file: removes it, or stops writing it.
    pub(super) fn give_up_file(&mut self, rank: usize, number: u64) {
        // The file may already be complete although no life wants it, or no other node can have it.
        self.collect_file(rank, number);
        let writing = &mut self.ranks[rank].images.writing;
        let file = writing.take_if(|file| file.number == number);
        let Some(store) = &self.store else { return };
        match file.filter(|file| !file.name.is_empty()) {
            Some(file) => store.collect(rank, &file.name),
            None => store.give_up(rank),
        }
    }

    /// A complete file is not needed any more.
    pub(super) fn collect_file(&mut self, rank: usize, number: u64) {
        let files = &mut self.ranks[rank].images.files;
        let gone = files.extract_if(.., |file| file.number == number);
        for file in gone {
            self.store.iter().for_each(|store| store.collect(rank, &file.name));
        }
    }

    /// No life will begin from an image before `number`.
    pub(super) fn forget_before(&mut self, rank: usize, number: u64) -> io::Result<()> {
        self.ranks[rank].images.begun = true;
        if let Some(slot) = self.ranks[rank].images.slot_of(number) {
            self.memory.set_oldest_image(rank, slot, number)?;
            self.net.iter().for_each(|net| net.forgets(rank));
        }
        Ok(())
    }

    /// The end of this rank of the node is its image `number`: no life of it begins any more.
    pub(super) fn forget_ended(&mut self, rank: usize, number: u64) -> io::Result<()> {
        self.ranks[rank].images.begun = true;
        if self.ranks[rank].has_finished() && self.has_logs_of_waves() && self.is_here(rank) {
            let oldest = self.memory.oldest_image(rank)?;
            let slot = self.ranks[rank].images.free_slot(oldest);
            self.memory.set_end(rank, slot, number, self.ranks.len())?;
            self.net.iter().for_each(|net| net.forgets(rank));
        }
        Ok(())
    }
}

impl Work {
    /// All of a file is written: it gets its name, and its copy brings it to the disk.
    pub(super) fn name_file(&mut self, rank: usize, said: &Datagram) -> io::Result<()> {
        let images = &mut self.ranks[rank].images;
        let Some((store, writing)) = self.store.as_ref().zip(images.writing.as_mut()) else {
            return Ok(());
        };
        (writing.written, writing.write_ns) = (said.b, said.c);
        let unsynced;
        (writing.name, writing.bytes, unsynced) = store.complete(rank, said.a, &writing.rest)?;
        writing.digest = said.text().to_string();
        let to_sync = store.to_sync(&writing.name)?;
        let Some(image) = images.copy(said.a) else {
            return Ok(());
        };
        // The snapshot waits for the disk; the agent must not.
        let in_transit = match rank {
            0 => store.open_in_transit(said.a).ok(),
            _ => None,
        };
        for beside in unsynced.into_iter().chain(in_transit) {
            let request = Datagram::new(Kind::Sync, 0, 0, 0);
            let _ = image.socket.send(&request, &[beside.as_fd()]);
        }
        let request = Datagram::new(Kind::Sync, said.a, 0, 0);
        let _ = image.socket.send(&request, &[to_sync.as_fd()]);
        Ok(())
    }
}

impl Agent {
    /// Has image `number` written.
    pub(super) fn write_image(&mut self, rank: usize, number: u64) -> io::Result<()> {
        let work = &mut self.work;
        let this = &work.ranks[rank];
        let (Some(store), Some(image)) = (&work.store, this.images.copy(number)) else {
            return Ok(());
        };
        let foreign = this.life.as_ref().and_then(|life| foreign_namespace(life.pid.as_raw()));
        if let Some(kind) = foreign {
            let reason = format!("it is in a {kind} namespace of its own, and a process that is rebuilt would not be");
            self.not_written(rank, number, reason);
            return Ok(());
        }
        let Some(note) = resurgo_image::file::Note::new(&image.note.to_text()) else {
            self.not_written(rank, number, "its note is too long".to_string());
            return Ok(());
        };
        let asked = store.begin(rank, &note.page).and_then(|file| {
            let request = Datagram::new(
                Kind::Write,
                number,
                work.job.image_files.compress.unwrap_or(0).into(),
                0,
            );
            image.socket.send(&request, &[file.as_fd()])
        });
        match asked {
            Ok(()) => {
                let mut file = ImageFile::new(number, image.slot);
                (file.delivered, file.rest) = (image.delivered, note.rest);
                if let Some(former) = this.images.files.last() {
                    file.above = work.memory.deliveries_of_image(rank, former.slot)?;
                }
                work.ranks[rank].images.writing = Some(file);
            }
            Err(error) => self.not_written(rank, number, error.to_string()),
        }
        Ok(())
    }

    pub(super) fn not_written(&mut self, rank: usize, number: u64, reason: String) {
        let rank = rank as u32;
        self.report(Fact::NotWritten { rank, number, reason });
    }

    /// Copy `number` reports on the file that it writes.
    pub(super) fn file_said(&mut self, rank: usize, number: u64, said: Datagram) -> io::Result<()> {
        let work = &mut self.work;
        let images = &mut work.ranks[rank].images;
        if said.a != number || images.writing.as_ref().is_none_or(|file| file.number != number) {
            return Ok(());
        }
        match said.kind {
            Kind::Written => self.image_is_written(rank, said),
            Kind::Synced => {
                let written = images.keep_file(rank);
                self.file_is_whole(rank as u32, number)?;
                written.map_or(Ok(()), |written| self.send(&written))?;
            }
            Kind::WriteFailed => {
                let reason = match said.b {
                    0 => said.text().to_string(),
                    errno => format!("{}: {}", said.text(), io::Error::from_raw_os_error(errno as i32)),
                };
                self.not_written(rank, number, reason);
            }
            _ => {}
        }
        Ok(())
    }

    /// A process that is being rebuilt will run before its memory is all there. `beside`: the socket to the process
    /// that brings it, and the userfaultfds that make the rank wait for it.
    pub(super) fn begin_filling(&mut self, rank: usize, beside: Vec<OwnedFd>) -> io::Result<()> {
        let mut beside = beside.into_iter();
        let Some(socket) = beside.next().map(Socket::from) else {
            return Ok(());
        };
        let this = &mut self.work.ranks[rank];
        let Some((life, restoring)) = this.life.as_mut().zip(this.images.restoring.as_ref()) else {
            return Ok(());
        };
        let event = EpollEvent::new(EpollFlags::EPOLLIN, Source::Filler(rank).token());
        self.epoll.add(&socket, event)?;
        life.filling = Some(Filling {
            number: restoring.number,
            socket,
            held: beside.collect(),
        });
        Ok(())
    }

    /// The process that fills a rank's memory reports, or has ended.
    pub(super) fn filler_event(&mut self, rank: usize) -> io::Result<()> {
        loop {
            let life = self.work.ranks[rank].life.as_mut();
            let Some(filling) = life.and_then(|life| life.filling.as_mut()) else {
                return Ok(());
            };
            match filling.socket.receive() {
                Ok((said, beside)) if said.kind == Kind::Filling => filling.held.extend(beside),
                Ok((said, _)) if said.kind == Kind::Filled => return self.end_filling(rank),
                Ok((said, _)) => return self.not_filled(rank, Some(said.text().to_string())),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(_) => return self.not_filled(rank, None),
            }
        }
    }

    /// All of the memory is there, including the pages of zeros that threads wait for. Whoever waits for a page of
    /// zeros has it now.
    fn end_filling(&mut self, rank: usize) -> io::Result<()> {
        let life = self.work.ranks[rank].life.as_mut();
        match life.and_then(|life| life.filling.take()) {
            Some(Filling { number, .. }) => self.send(&ToDispatcher::MemoryRead { rank, number }),
            None => Ok(()),
        }
    }

    /// A running rank will not get all of its memory, and ends. With a `reason` the file cannot be used; otherwise it
    /// is intact, and its reader was killed, perhaps with the rank.
    fn not_filled(&mut self, rank: usize, reason: Option<String>) -> io::Result<()> {
        let this = &mut self.work.ranks[rank];
        let Some(life) = &mut this.life else { return Ok(()) };
        // The userfaultfds stay open until the rank has ended: it must not read zeros.
        life.signal(Signal::SIGKILL);
        let Some(filling) = &mut life.filling else {
            return Ok(());
        };
        self.epoll.delete(&filling.socket)?;
        let Some(reason) = reason else { return Ok(()) };
        let number = filling.number;
        self.file_lost(rank, number, reason);
        Ok(())
    }

    /// A file cannot be used. It stays where it is, as evidence.
    pub(super) fn file_lost(&mut self, rank: usize, number: u64, reason: String) {
        let images = &mut self.work.ranks[rank].images;
        images.files.retain(|file| file.number != number);
        images.unusable.insert(number);
        let rank = rank as u32;
        self.report(Fact::FileLost { rank, number, reason });
    }

    /// A process that is being rebuilt reports.
    pub(super) fn restore_said(&mut self, rank: usize, said: Datagram) -> io::Result<()> {
        let work = &mut self.work;
        let this = &mut work.ranks[rank];
        let Some(restoring) = &mut this.images.restoring else {
            return Ok(());
        };
        if said.kind == Kind::Failed {
            let result = match said.b {
                0 => "it gave nothing".to_string(),
                errno => io::Error::from_raw_os_error(errno as i32).to_string(),
            };
            let text = match said.text() {
                "" => format!("step {} (system call {}): {result}", said.a, said.c),
                text => text.to_string(),
            };
            // The filling process gives the reason first; a step of the rebuild fails after that.
            restoring.failure.get_or_insert(text);
            return Ok(());
        }
        let image = restoring.number;
        this.images.restoring = None;
        let Some(life) = &this.life else { return Ok(()) };
        let started = this.started(rank, life.pid.as_raw(), image, true);
        self.send(&started)
    }

    /// A process has ended. If its rebuild has failed, its file cannot be used: returns the number, and why.
    fn take_failed_restore(&mut self, rank: usize, end: End) -> Option<(u64, String)> {
        let restoring = self.work.ranks[rank].images.restoring.take()?;
        if is_killed(end) {
            return None;
        }
        let reason = restoring.failure.unwrap_or_else(|| match end {
            End::Exited(code) => format!("the process being rebuilt exited with code {code}"),
            End::Signalled(signal) => format!("the process being rebuilt was killed by signal {signal}"),
        });
        Some((restoring.number, reason))
    }

    /// Ends the present life: no process of it touches anything any more, and its output is taken.
    pub(super) fn end_life(&mut self, rank: usize) -> io::Result<()> {
        if let Some(life) = self.work.ranks[rank].life.take() {
            life.fence(PATIENCE);
            self.work.end_input(rank);
            drop(life);
        }
        self.drain_and_close(rank)
    }

    /// A process has ended. If its rebuild has failed, the agent removes the rest of it and gives up the file; the life
    /// begins elsewhere: returns true.
    pub(super) fn restore_has_failed(&mut self, rank: usize, end: End) -> io::Result<bool> {
        let Some((number, reason)) = self.take_failed_restore(rank, end) else {
            return Ok(false);
        };
        self.end_life(rank)?;
        self.file_lost(rank, number, reason);
        self.not_begun(rank);
        Ok(true)
    }
}
