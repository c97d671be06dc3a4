//! Image files of ranks: having them written by snapshots, and lives that are rebuilt from them.
//!
//! The two newest complete files of a rank stay. What may be forgotten follows the older one, so that a life can begin from
//! it when the newer one turns out to be damaged; before there are two, nothing is forgotten.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use nix::sys::epoll::{EpollEvent, EpollFlags};
use nix::sys::signal::Signal;
use resurgo_image::Socket;
use resurgo_wire::control::{End, ToDispatcher};
use resurgo_wire::image::{Datagram, Kind};

use super::images::Account;
use super::life::Filling;
use super::{Agent, PATIENCE, Source};

/// Complete files of a rank that stay.
pub(super) const KEPT: usize = 2;

/// An image in a file.
pub(super) struct ImageFile {
    pub number: u64,
    /// Of its cursors in the node memory.
    pub slot: usize,
    pub account: Account,
    /// In the job's directory. Empty until it is complete.
    pub name: OsString,
    /// By which it is known again.
    pub digest: String,
    /// See [`super::images::Image`].
    pub delivered: u64,
    bytes: u64,
    written: u64,
    write_ns: u64,
}

impl ImageFile {
    pub fn new(number: u64, slot: usize, account: Account) -> ImageFile {
        ImageFile {
            number,
            slot,
            account,
            name: OsString::new(),
            digest: String::new(),
            delivered: 0,
            bytes: 0,
            written: 0,
            write_ns: 0,
        }
    }
}

/// What kind of namespace the process has that is not this one's: a wrapper may have put it there (`ip netns exec`).
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

impl Agent {
    /// Has the newest image written, if there are to be files.
    pub(super) fn write_image(&mut self, rank: usize) -> io::Result<()> {
        let work = &mut self.work;
        let this = &work.ranks[rank];
        let (Some(store), Some(image)) = (&work.store, this.images.to_write()) else {
            return Ok(());
        };
        let number = image.number;
        let foreign = this.life.as_ref().and_then(|life| foreign_namespace(life.pid.as_raw()));
        if let Some(kind) = foreign {
            let reason = format!("it is in a {kind} namespace of its own, and a process that is rebuilt would not be");
            return self.not_written(rank, number, reason);
        }
        let asked = store
            .begin(rank, number, &work.job.name, &image.account)
            .and_then(|file| {
                let request = Datagram::new(Kind::Write, number, work.job.checkpoint_compress.unwrap_or(0).into(), 0);
                image.socket.send(&request, &[file.as_fd()])
            });
        match asked {
            Ok(()) => {
                let mut file = ImageFile::new(number, image.slot, image.account.clone());
                file.delivered = image.delivered;
                work.ranks[rank].images.writing = Some(file);
                Ok(())
            }
            Err(error) => self.not_written(rank, number, error.to_string()),
        }
    }

    pub(super) fn not_written(&mut self, rank: usize, number: u64, reason: String) -> io::Result<()> {
        let work = &mut self.work;
        let images = &mut work.ranks[rank].images;
        (images.writing, images.writer) = (None, None);
        work.store.iter().for_each(|store| store.give_up(rank));
        if work.has_waves() {
            work.tidy_waves(work.unit(rank));
        }
        self.send(&ToDispatcher::ImageNotWritten { rank, number, reason })?;
        let unit = self.work.unit(rank);
        self.give_up_writing(unit, &format!("that of rank {rank} could not be written"))?;
        self.writing_ended(rank)
    }

    /// What a snapshot says about the file that it writes.
    pub(super) fn file_said(&mut self, rank: usize, said: Datagram) -> io::Result<()> {
        let work = &mut self.work;
        let images = &mut work.ranks[rank].images;
        let image = images.writer.as_ref().or(images.newest.as_ref());
        let (Some(store), Some(image), Some(writing)) = (&work.store, image, &mut images.writing) else {
            return Ok(());
        };
        if said.a != writing.number {
            return Ok(());
        }
        match said.kind {
            Kind::Written => {
                (writing.written, writing.write_ns) = (said.b, said.c);
                match store.complete(rank, said.a) {
                    Ok((name, bytes)) => {
                        (writing.name, writing.bytes) = (name, bytes);
                        writing.digest = said.text().to_string();
                        // The snapshot waits for the disk: the agent must not.
                        if let Ok(beside) = store.open_in_transit(said.a)
                            && rank == 0
                        {
                            let request = Datagram::new(Kind::Sync, 0, 0, 0);
                            let _ = image.socket.send(&request, &[beside.as_fd()]);
                        }
                        let request = Datagram::new(Kind::Sync, said.a, 0, 0);
                        let _ = image.socket.send(&request, &[store.directory().file().as_fd()]);
                        Ok(())
                    }
                    Err(error) => self.not_written(rank, said.a, error.to_string()),
                }
            }
            Kind::Synced => self.keep_file(rank),
            Kind::WriteFailed => {
                let reason = match said.b {
                    0 => said.text().to_string(),
                    errno => format!("{}: {}", said.text(), io::Error::from_raw_os_error(errno as i32)),
                };
                self.not_written(rank, said.a, reason)
            }
            _ => Ok(()),
        }
    }

    /// What a process says that writes an image, or that it has gone.
    pub(super) fn writer_event(&mut self, rank: usize) -> io::Result<()> {
        loop {
            let Some(writer) = &self.work.ranks[rank].images.writer else {
                return Ok(());
            };
            match writer.socket.receive() {
                Ok((datagram, _)) => self.file_said(rank, datagram)?,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(_) => return self.stop_writing(rank),
            }
        }
    }

    /// The file that was being written is complete: an older one goes.
    fn keep_file(&mut self, rank: usize) -> io::Result<()> {
        let work = &mut self.work;
        let in_waves = work.has_waves();
        let images = &mut work.ranks[rank].images;
        let Some(file) = images.writing.take() else {
            return Ok(());
        };
        let written = ToDispatcher::ImageWritten {
            rank,
            number: file.number,
            bytes: file.bytes,
            written: file.written,
            write_ns: file.write_ns,
        };
        let number = file.number;
        images.files.push(file);
        // Without a snapshot of its own the image takes the place of the one before.
        if images.writer.take().is_some() {
            images.end_snapshot(number);
        }
        if in_waves {
            let unit = work.unit(rank);
            work.tidy_waves(unit);
            work.forget_before_waves(unit)?;
            self.end_copies_in_files(rank);
            self.send(&written)?;
            self.begin_recording(number)?;
            return self.writing_ended(rank);
        }
        while images.files.len() > KEPT {
            let old = images.files.remove(0);
            work.store.iter().for_each(|store| store.collect(rank, &old.name));
        }
        if images.files.len() == KEPT {
            images.begun = true;
            let oldest = &images.files[0];
            work.memory.set_oldest_image(rank, oldest.slot, oldest.number)?;
        }
        self.end_copies_in_files(rank);
        self.send(&written)
    }

    /// Without local copies: snapshots end as soon as nobody needs them. In a wave that is when all have written their images,
    /// since a wave of which one cannot be written is none in files.
    pub(super) fn end_copies_in_files(&mut self, rank: usize) {
        let work = &mut self.work;
        if work.job.local_copies {
            return;
        }
        let (ranks, in_files) = if work.has_waves() {
            let unit = work.unit(rank);
            (
                work.waves[unit].members.clone(),
                work.waves_in_files(unit).first().copied(),
            )
        } else {
            let files = &work.ranks[rank].images.files;
            (vec![rank], files.last().map(|file| file.number))
        };
        for rank in ranks {
            work.ranks[rank].images.end_snapshot(in_files.unwrap_or(0));
        }
    }

    /// The process that writes has gone.
    pub(super) fn stop_writing(&mut self, rank: usize) -> io::Result<()> {
        match &self.work.ranks[rank].images.writing {
            Some(file) if file.name.is_empty() => {
                let number = file.number;
                self.not_written(rank, number, "the process that wrote it has ended".to_string())
            }
            // Only the directory's last sync is missing.
            Some(_) => self.keep_file(rank),
            None => Ok(()),
        }
    }

    /// A process that is being rebuilt will run before its memory is all there. `beside`: the socket to who brings it, and what makes
    /// the process wait for it.
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

    /// What the process says that fills a rank's memory, or that it has gone.
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

    /// All of the memory is there. Whoever waits for a page of zeros has it now.
    fn end_filling(&mut self, rank: usize) -> io::Result<()> {
        let life = self.work.ranks[rank].life.as_mut();
        match life.and_then(|life| life.filling.take()) {
            Some(Filling { number, .. }) => self.send(&ToDispatcher::MemoryRead { rank, number }),
            None => Ok(()),
        }
    }

    /// A running rank will not have all of its memory, and ends. The file cannot be used for the `reason`; without one it is as good as
    /// before: its reader has been killed, perhaps together with the rank.
    fn not_filled(&mut self, rank: usize, reason: Option<String>) -> io::Result<()> {
        let this = &mut self.work.ranks[rank];
        let Some(life) = &mut this.life else { return Ok(()) };
        // What makes it wait stays until it has ended.
        life.signal(Signal::SIGKILL);
        let Some(filling) = &mut life.filling else {
            return Ok(());
        };
        self.epoll.delete(&filling.socket)?;
        let Some(reason) = reason else { return Ok(()) };
        let number = filling.number;
        this.images.files.retain(|file| file.number != number);
        self.send(&ToDispatcher::ImageLost { rank, number, reason })
    }

    /// What a process says that is being rebuilt.
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
            // Who fills the memory says why, and then a step fails for it.
            restoring.failure.get_or_insert(text);
            return Ok(());
        }
        let image = restoring.number;
        this.images.restoring = None;
        let Some(life) = &this.life else { return Ok(()) };
        let started = this.started(rank, life.pid.as_raw(), image, true);
        self.send(&started)
    }

    /// A process has ended. If it was being rebuilt and has failed in that, the file cannot be used: what the dispatcher is
    /// told.
    pub(super) fn take_failed_restore(&mut self, rank: usize, end: End) -> Option<ToDispatcher> {
        let images = &mut self.work.ranks[rank].images;
        let restoring = images.restoring.take()?;
        // Killed, as a rank is that runs.
        if [Signal::SIGKILL, Signal::SIGTERM]
            .map(|signal| End::Signalled(signal as i32))
            .contains(&end)
        {
            return None;
        }
        // It stays where it is, for those who look into what has happened to it.
        let number = restoring.number;
        images.files.retain(|file| file.number != number);
        let reason = restoring.failure.unwrap_or_else(|| match end {
            End::Exited(code) => format!("the process being rebuilt exited with code {code}"),
            End::Signalled(signal) => format!("the process being rebuilt was killed by signal {signal}"),
        });
        Some(ToDispatcher::ImageLost { rank, number, reason })
    }

    /// A process has ended. If it was being rebuilt and has failed in that, the life begins elsewhere: true.
    pub(super) fn restore_has_failed(&mut self, rank: usize, end: End) -> io::Result<bool> {
        let Some(lost) = self.take_failed_restore(rank, end) else {
            return Ok(false);
        };
        let work = &mut self.work;
        let Some(life) = work.ranks[rank].life.take() else {
            return Ok(false);
        };
        life.fence(PATIENCE);
        drop(life);
        work.end_input(rank);
        self.drain_and_close(rank)?;
        self.send(&lost)?;
        self.begin_elsewhere(rank)?;
        Ok(true)
    }
}
