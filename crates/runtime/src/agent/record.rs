//! The record of each complete wave, written while the job runs. From it the job can be resumed when the launcher or
//! the whole machine is lost. A suspension writes the same file.
//!
//! When the last image of a wave is in its file, the coordinator orders the record
//! ([`resurgo_protocol::Command::Record`]). The agent gathers what it knows ([`Work::gather`]) and asks the dispatcher
//! for its part. A thread writes the file and brings it to the disk: the agent waits for no disk. Then the file gets
//! its name, and images that only the former record needs may go.

use std::ffi::OsString;
use std::io::{self, PipeReader};
use std::ops::RangeInclusive;
use std::thread::JoinHandle;

use nix::sys::epoll::{EpollEvent, EpollFlags};
use resurgo_wire::control::{Job, ToDispatcher};
use serde_json::Value;

use super::{Agent, Source, Work};
use crate::suspended::{self, About, Header, Section, Writer};

/// The record that is being written.
pub(super) struct Recording {
    wave: Wave,
    step: Step,
}

/// A recorded wave.
#[derive(Clone, Copy)]
struct Wave {
    number: u64,
    /// The oldest wave in the record: the one before, or this one.
    oldest: u64,
    /// How many ranks have images of it.
    ranks: usize,
}

enum Step {
    /// The dispatcher has yet to give its part.
    Gathered(Box<Gathered>),
    /// A thread writes the file.
    Writing(InThread<u64>),
    /// The file has its name, which a thread brings to the disk.
    Naming(InThread<u64>),
    /// On several nodes the dispatcher does all of it.
    Elsewhere,
}

/// The agent's part.
struct Gathered {
    job: Job,
    state: Value,
}

/// The work of a thread; its end of the pipe closes when it has an answer.
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
    pub(super) fn is_recording(&self) -> bool {
        self.recording.is_some()
    }

    /// How many ranks have their image of this wave in a file.
    fn in_files(&self, wave: u64) -> usize {
        let ranks = self.ranks.iter();
        ranks.filter(|rank| rank.images.file(wave).is_some()).count()
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

    /// Files of these waves stay: the job can be resumed from them. Other files stay while ranks have them.
    pub(super) fn pin_waves(&mut self, waves: &RangeInclusive<u64>) {
        let used = self.files_of(|_| true);
        let recorded = self.files_of(|number| waves.contains(&number));
        if let Some(store) = &mut self.store {
            store.pin(recorded, |name| used.iter().any(|(_, _, used)| used == name));
        }
    }

    /// The agent's part of the record from which a later run begins at `wave`: the images there are now. The rest lies
    /// beside them.
    fn gather(&self, wave: u64, oldest: u64) -> io::Result<Gathered> {
        let mut state = self.state();
        state.ranks = state.ranks.into_iter().map(|rank| rank.of_wave(wave, oldest)).collect();
        Ok(Gathered {
            job: suspended::lasting(&self.job),
            state: serde_json::to_value(state)?,
        })
    }

    /// Starts a thread that writes the gathered part with the dispatcher's part.
    fn write_down(
        &self,
        gathered: Gathered,
        about: Value,
        input: Option<(OsString, u64)>,
    ) -> io::Result<InThread<u64>> {
        let store = self.store.as_ref().ok_or(io::ErrorKind::NotFound)?;
        let about: About = serde_json::from_value(about)?;
        let header = Header::of(about, gathered.job, gathered.state);
        let sections = vec![Section::default(), Section::default(), Section::of_input(input)?];
        let directory = store.directory().ok_or(io::ErrorKind::NotFound)?;
        let mut writer = Writer::begin(directory, store.key(), &header, sections)?;
        InThread::start(move || {
            while writer.step()? {}
            writer.sync()
        })
    }

    /// Makes the written file the job's record.
    fn name_wave(&self, wave: Wave, bytes: u64) -> io::Result<InThread<u64>> {
        let directory = self.directory().ok_or(io::ErrorKind::NotFound)?;
        if self.in_files(wave.number) < wave.ranks {
            return Err(io::Error::other("its images are not used any more"));
        }
        suspended::name(directory, true)?;
        let directory = directory.try_clone()?;
        InThread::start(move || {
            directory.sync();
            Ok(bytes)
        })
    }
}

impl Agent {
    /// All images of a wave are in files: records it, with those since `oldest`.
    pub(super) fn begin_recording(&mut self, number: u64, oldest: u64) -> io::Result<()> {
        if self.work.directory().is_none() || self.work.is_halting() {
            return Ok(());
        }
        // All may have returned to this wave while a newer one was being written down.
        self.give_up_recording();
        let work = &mut self.work;
        let ranks = work.in_files(number);
        let wave = Wave { number, oldest, ranks };
        if work.job.nodes.is_some() {
            let step = Step::Elsewhere;
            work.recording = Some(Recording { wave, step });
            return self.tell_state(Some((number, oldest)));
        }
        match work.gather(number, oldest) {
            Ok(gathered) => {
                let step = Step::Gathered(Box::new(gathered));
                work.recording = Some(Recording { wave, step });
                self.send(&ToDispatcher::WaveInFiles { number })
            }
            Err(error) => self.not_recorded(number, &error),
        }
    }

    /// The dispatcher has given its part.
    pub(super) fn record(&mut self, about: Value, input: Option<(OsString, u64)>) -> io::Result<()> {
        let work = &mut self.work;
        let of_wave = about["wave"].as_u64();
        let is_awaited = |recording: &mut Recording| {
            matches!(recording.step, Step::Gathered(_)) && of_wave == Some(recording.wave.number)
        };
        let Some(Recording {
            wave,
            step: Step::Gathered(gathered),
        }) = work.recording.take_if(is_awaited)
        else {
            return Ok(());
        };
        match work.write_down(*gathered, about, input) {
            Ok(thread) => self.go_on_recording(wave, thread, Step::Writing),
            Err(error) => self.not_recorded(wave.number, &error),
        }
    }

    fn go_on_recording(
        &mut self,
        wave: Wave,
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
            Step::Gathered(_) | Step::Elsewhere => {
                work.recording = Some(Recording { wave, step });
                return Ok(());
            }
        };
        match answer {
            Ok(thread) => self.go_on_recording(wave, thread, Step::Naming),
            Err(error) => self.not_recorded(wave.number, &error),
        }
    }

    /// The job can be resumed from the wave: files that only older waves need may go.
    fn recorded(&mut self, wave: Wave, bytes: u64) -> io::Result<()> {
        self.work.pin_waves(&(wave.oldest..=wave.number));
        let Some(directory) = self.work.directory() else {
            return Ok(());
        };
        let directory = directory.path().as_os_str().to_owned();
        self.send(&ToDispatcher::Recorded {
            number: wave.number,
            directory,
            bytes,
        })
    }

    fn not_recorded(&mut self, wave: u64, error: &io::Error) -> io::Result<()> {
        self.give_up_recording();
        let reason = error.to_string();
        self.send(&ToDispatcher::NotRecorded { number: wave, reason })
    }

    /// The record that is being written is not needed.
    pub(super) fn give_up_recording(&mut self) {
        let work = &mut self.work;
        // A running thread ends by itself; its answer is dropped.
        work.recording = None;
        if let Some(directory) = work.directory().filter(|_| work.job.nodes.is_none()) {
            suspended::give_up(directory);
        }
    }

    /// The job cannot be resumed from what has been written down.
    pub(super) fn forget_record(&mut self) {
        self.give_up_recording();
        let work = &mut self.work;
        if let Some(directory) = work.directory().filter(|_| work.job.nodes.is_none()) {
            suspended::forget(directory);
        }
        // No image stays for it.
        work.record_ended(RangeInclusive::new(1, 0), true);
    }
}
