//! What is written down of each complete wave while the job runs, so that the job can be resumed when the launcher, or the whole machine,
//! is lost: the same file as of a suspension.
//!
//! When the last image of a wave is in its file the agent gathers what it knows ([`Work::gather`]) and asks the dispatcher for its part.
//! A thread writes the file and brings it to the disk, since nothing in the agent waits for disks. Only then the file gets its name, and
//! images that only the file before needed may go.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, PipeReader};
use std::thread::JoinHandle;

use nix::sys::epoll::{EpollEvent, EpollFlags};
use resurgo_wire::control::{Job, ToDispatcher};
use serde_json::Value;

use super::wave_logs::all_but;
use super::{Agent, Source, Work};
use crate::suspended::{self, About, Header, Section, Writer};

/// What is being written down.
pub(super) struct Recording {
    wave: u64,
    step: Step,
}

enum Step {
    /// The dispatcher has yet to give its part.
    Gathered(Box<Gathered>),
    /// A thread writes the file.
    Writing(InThread<u64>),
    /// The file has its name, which a thread brings to the disk.
    Naming(InThread<u64>),
}

/// The agent's part.
struct Gathered {
    job: Job,
    state: Value,
    sections: Vec<Section>,
}

/// What a thread does; the pipe is closed when it has an answer.
struct InThread<T> {
    thread: JoinHandle<io::Result<T>>,
    done: PipeReader,
}

impl<T: Send + 'static> InThread<T> {
    fn start(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<InThread<T>> {
        let (done, alive) = io::pipe()?;
        let thread = std::thread::Builder::new().name("record".to_string()).spawn(move || {
            let answer = work();
            drop(alive);
            answer
        })?;
        Ok(InThread { thread, done })
    }

    fn answer(self) -> io::Result<T> {
        let failed = |_| Err(io::Error::other("a thread has failed"));
        self.thread.join().unwrap_or_else(failed)
    }
}

impl Work {
    /// Waves are written down: of all ranks, when their images are in files.
    fn records_waves(&self) -> bool {
        self.store.is_some() && self.has_waves() && !self.is_hierarchical()
    }

    /// The rank, number and name of image files whose number is as wanted.
    pub(super) fn files_of(&self, is_wanted: impl Fn(u64) -> bool) -> Vec<(usize, u64, std::ffi::OsString)> {
        let all = self.ranks.iter().enumerate();
        let files = all.flat_map(|(rank, this)| this.images.files.iter().map(move |file| (rank, file)));
        files
            .filter(|(_, file)| is_wanted(file.number))
            .map(|(rank, file)| (rank, file.number, file.name.clone()))
            .collect()
    }

    /// The number of the oldest wave that is written down together with `wave`: the one before, if a job without logs can return to it,
    /// or that itself. Logs are kept of one only.
    fn oldest_recorded(&self, wave: u64) -> u64 {
        let older = self
            .coordinator
            .waves_in_files(0)
            .into_iter()
            .filter(|number| *number < wave);
        match self.logs() {
            true => wave,
            false => older.max().unwrap_or(wave),
        }
    }

    /// All that a later run needs of the agent to begin from `wave`, as it is now: what images there are, and the logs of the wave.
    fn gather(&self, wave: u64) -> io::Result<Gathered> {
        let mut state = self.state();
        let oldest = self.oldest_recorded(wave);
        for rank in &mut state.ranks {
            // All ranks have run at the wave, and do so again.
            (rank.finished, rank.ended_well) = (false, false);
            rank.images.asked = wave;
            rank.images.files.retain(|file| (oldest..=wave).contains(&file.number));
        }
        let mut memory = Section::default();
        if self.logs() {
            let slots = self.ranks.iter().map(|rank| rank.images.slot_of(wave));
            let slots = slots.collect::<Option<Vec<_>>>().ok_or(io::ErrorKind::NotFound)?;
            let (logs, needed) = self.memory.logs_of_wave(&slots)?;
            let file = self.memory.file().try_clone()?;
            memory.unneeded = all_but(&needed, file.metadata()?.len());
            memory.file = Some(file);
            state.logs = logs;
        }
        Ok(Gathered {
            job: self.lasting_job(),
            state: serde_json::to_value(state)?,
            sections: vec![memory, Section::default()],
        })
    }

    /// A thread begins to write down what has been gathered, with the dispatcher's part.
    fn write_down(
        &self,
        mut gathered: Gathered,
        about: Value,
        input: Option<(OsString, u64)>,
    ) -> io::Result<InThread<u64>> {
        let store = self.store.as_ref().ok_or(io::ErrorKind::NotFound)?;
        let about: About = serde_json::from_value(about)?;
        let header = Header {
            id: about.id(),
            about,
            job: gathered.job,
            agent: gathered.state,
        };
        gathered.sections.push(Section {
            file: input.as_ref().map(|(path, _)| File::open(path)).transpose()?,
            length: input.map(|(_, length)| length),
            ..Section::default()
        });
        let mut writer = Writer::begin(store.directory(), store.key(), &header, gathered.sections)?;
        InThread::start(move || {
            while writer.step()? {}
            writer.sync()
        })
    }

    /// What has been written becomes the job's file.
    fn name_wave(&self, wave: u64, bytes: u64) -> io::Result<InThread<u64>> {
        let store = self.store.as_ref().ok_or(io::ErrorKind::NotFound)?;
        if !self.coordinator.waves_in_files(0).contains(&wave) {
            return Err(io::Error::other("its images are not used any more"));
        }
        suspended::name_wave(store.directory())?;
        let directory = store.directory().try_clone()?;
        InThread::start(move || {
            directory.sync();
            Ok(bytes)
        })
    }
}

impl Agent {
    /// An image of a wave is in its file. If it was the last, the wave is written down.
    pub(super) fn begin_recording(&mut self, wave: u64) -> io::Result<()> {
        let work = &mut self.work;
        if !work.records_waves()
            || work.recording.is_some()
            || work.is_halting()
            || work.coordinator.waves_in_files(0).first() != Some(&wave)
        {
            return Ok(());
        }
        match work.gather(wave) {
            Ok(gathered) => {
                let step = Step::Gathered(Box::new(gathered));
                work.recording = Some(Recording { wave, step });
                self.send(&ToDispatcher::WaveInFiles { number: wave })
            }
            Err(error) => self.not_recorded(wave, &error),
        }
    }

    /// The dispatcher has given its part.
    pub(super) fn record(&mut self, about: Value, input: Option<(OsString, u64)>) -> io::Result<()> {
        let work = &mut self.work;
        let Some(Recording {
            wave,
            step: Step::Gathered(gathered),
        }) = work.recording.take()
        else {
            return Ok(());
        };
        match work.write_down(*gathered, about, input) {
            Ok(thread) => self.go_on_recording(wave, thread, Step::Writing),
            Err(error) => self.not_recorded(wave, &error),
        }
    }

    fn go_on_recording(
        &mut self,
        wave: u64,
        thread: InThread<u64>,
        step: impl FnOnce(InThread<u64>) -> Step,
    ) -> io::Result<()> {
        let event = EpollEvent::new(EpollFlags::EPOLLIN, Source::Record.token());
        self.epoll.add(&thread.done, event)?;
        let step = step(thread);
        self.work.recording = Some(Recording { wave, step });
        Ok(())
    }

    /// A thread has an answer.
    pub(super) fn record_event(&mut self) -> io::Result<()> {
        let work = &mut self.work;
        let Some(Recording { wave, step }) = work.recording.take() else {
            return Ok(());
        };
        let answer = match step {
            Step::Writing(thread) => thread.answer().and_then(|bytes| work.name_wave(wave, bytes)),
            Step::Naming(thread) => {
                let bytes = thread.answer()?;
                return self.recorded(wave, bytes);
            }
            Step::Gathered(_) => {
                work.recording = Some(Recording { wave, step });
                return Ok(());
            }
        };
        match answer {
            Ok(thread) => self.go_on_recording(wave, thread, Step::Naming),
            Err(error) => self.not_recorded(wave, &error),
        }
    }

    /// The job can be resumed from the wave: what only older ones need may go.
    fn recorded(&mut self, wave: u64, bytes: u64) -> io::Result<()> {
        let work = &mut self.work;
        let oldest = work.oldest_recorded(wave);
        let used = work.files_of(|_| true);
        let recorded = work.files_of(|number| (oldest..=wave).contains(&number));
        let Some(store) = &mut work.store else { return Ok(()) };
        store.pin(recorded, |name| used.iter().any(|(_, _, used)| used == name));
        let directory = store.directory().path().to_path_buf().into_os_string();
        self.send(&ToDispatcher::Recorded {
            number: wave,
            directory,
            bytes,
        })
    }

    fn not_recorded(&mut self, wave: u64, error: &io::Error) -> io::Result<()> {
        self.give_up_recording();
        let reason = error.to_string();
        self.send(&ToDispatcher::NotRecorded { number: wave, reason })
    }

    /// What is being written down will not be needed.
    pub(super) fn give_up_recording(&mut self) {
        let work = &mut self.work;
        // Where a thread has begun it ends by itself, and nobody hears of it.
        work.recording = None;
        if let Some(store) = &work.store {
            suspended::give_up(store.directory());
        }
    }
}
