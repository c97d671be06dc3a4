//! A thread that writes to one of the dispatcher's own streams, so that a slow reader does not stop the dispatcher.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, PipeWriter, Write};
use std::os::fd::AsFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::printed::Tally;
use crate::progress::Beside;

/// The thread's next task.
enum Chunk {
    /// Output of ranks.
    Printed(Vec<u8>),
    Said(Vec<u8>),
    /// What has been written goes to the disk.
    Sync,
}

impl Chunk {
    /// A sync counts as one.
    fn bytes(&self) -> usize {
        match self {
            Chunk::Printed(bytes) | Chunk::Said(bytes) => bytes.len(),
            Chunk::Sync => 1,
        }
    }
}

#[derive(Default)]
struct Queue {
    chunks: VecDeque<Chunk>,
    bytes: usize,
    /// Bytes queued so far.
    taken: u64,
    /// Output of ranks, over all runs of the job: bytes queued, and bytes written.
    counted: (u64, u64),
    /// So many bytes of it are skipped: an earlier run has written them.
    over: u64,
    tally: Option<Arc<Tally>>,
    writing: bool,
    closing: bool,
    failed: Option<io::ErrorKind>,
}

struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        // A panic while holding the lock aborts the process: the lock is never poisoned.
        self.queue.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// The way to one stream.
pub struct Writer {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    /// Starts the thread. It writes a byte to `wake` whenever its queue has become empty or it has failed.
    /// `beside`: what else is on the stream's terminal.
    pub fn start(stream: impl AsFd, wake: PipeWriter, beside: Beside) -> io::Result<Writer> {
        let file = File::from(stream.as_fd().try_clone_to_owned()?);
        let shared = Arc::new(Shared {
            queue: Mutex::new(Queue::default()),
            changed: Condvar::new(),
        });
        let theirs = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("writer".to_string())
            .spawn(move || serve(&theirs, file, wake, &beside))?;
        Ok(Writer {
            shared,
            thread: Some(thread),
        })
    }

    /// Queues output of ranks; drops it after a failure.
    pub fn write(&self, mut bytes: Vec<u8>) {
        let mut queue = self.shared.lock();
        let over = queue.over.min(bytes.len() as u64);
        queue.over -= over;
        bytes.drain(..over as usize);
        queue.counted.0 += bytes.len() as u64;
        drop(queue);
        self.queue(Chunk::Printed(bytes));
    }

    /// Queues text of the launcher.
    pub fn say(&self, bytes: Vec<u8>) {
        self.queue(Chunk::Said(bytes));
    }

    /// Brings what is queued now to the disk, once it is written.
    pub fn sync(&self) {
        self.queue(Chunk::Sync);
    }

    fn queue(&self, chunk: Chunk) {
        let mut queue = self.shared.lock();
        if chunk.bytes() > 0 && queue.failed.is_none() {
            queue.bytes += chunk.bytes();
            queue.taken += chunk.bytes() as u64;
            queue.chunks.push_back(chunk);
            self.shared.changed.notify_all();
        }
    }

    /// Output of ranks, over all runs of the job: bytes queued, and bytes written.
    pub fn counted(&self) -> (u64, u64) {
        self.shared.lock().counted
    }

    /// Earlier runs have written so much of the ranks' output; the next text was printed at `from`.
    pub fn begin_after(&self, written: u64, from: u64) {
        let mut queue = self.shared.lock();
        (queue.counted, queue.over) = ((written, written), written - from);
    }

    /// The next text is new: no earlier run has printed it.
    pub fn stop_passing_over(&self) {
        self.shared.lock().over = 0;
    }

    /// Counts written bytes there.
    pub fn count_in(&self, tally: Option<Tally>) {
        self.shared.lock().tally = tally.map(Arc::new);
    }

    /// Bytes queued so far, and how many of them have been written.
    pub fn progress(&self) -> (u64, u64) {
        let queue = self.shared.lock();
        (queue.taken, queue.taken - queue.bytes as u64)
    }

    /// Bytes queued.
    pub fn queued(&self) -> usize {
        self.shared.lock().bytes
    }

    /// Why the stream cannot be written any more.
    pub fn failed(&self) -> Option<io::ErrorKind> {
        self.shared.lock().failed
    }

    /// Waits until everything has been written, at most until `deadline` when there is one.
    pub fn finish(mut self, deadline: Option<Instant>) {
        let mut queue = self.shared.lock();
        queue.closing = true;
        self.shared.changed.notify_all();
        while (queue.writing || !queue.chunks.is_empty()) && queue.failed.is_none() {
            let left = match deadline {
                Some(deadline) => deadline.saturating_duration_since(Instant::now()),
                None => Duration::from_secs(3600),
            };
            if left.is_zero() {
                // The thread may hang in a write: it ends with the process.
                return;
            }
            queue = match self.shared.changed.wait_timeout(queue, left) {
                Ok((queue, _)) => queue,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
        drop(queue);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn serve(shared: &Shared, mut file: File, mut wake: PipeWriter, beside: &Beside) {
    loop {
        let mut queue = shared.lock();
        while queue.chunks.is_empty() && !queue.closing {
            queue = match shared.changed.wait(queue) {
                Ok(queue) => queue,
                Err(poisoned) => poisoned.into_inner(),
            };
        }
        let Some(chunk) = queue.chunks.pop_front() else {
            return;
        };
        queue.writing = true;
        let (tally, before) = (queue.tally.clone(), queue.counted.1);
        drop(queue);
        let mut turn = beside.turn();
        let result = match &chunk {
            Chunk::Printed(bytes) => write_counted(&mut file, bytes, |written, left| {
                if let Some(tally) = &tally {
                    tally.set(before + written, left);
                }
            }),
            Chunk::Said(bytes) => write_all(&mut file, bytes),
            Chunk::Sync => {
                // Pipes and terminals have no disk.
                let _ = file.sync_data();
                Ok(())
            }
        };
        if let Chunk::Printed(bytes) | Chunk::Said(bytes) = &chunk {
            turn.wrote(bytes);
        }
        drop(turn);
        let mut queue = shared.lock();
        queue.writing = false;
        queue.bytes = queue.bytes.saturating_sub(chunk.bytes());
        if let Chunk::Printed(bytes) = &chunk {
            queue.counted.1 += bytes.len() as u64;
        }
        if let Err(error) = result {
            queue.failed = Some(error.kind());
            queue.chunks.clear();
            queue.bytes = 0;
        }
        let tell = queue.chunks.is_empty();
        let failed = queue.failed.is_some();
        shared.changed.notify_all();
        drop(queue);
        if tell {
            // Non-blocking: a full pipe wakes the dispatcher as well.
            let _ = wake.write(&[0]);
        }
        if failed {
            return;
        }
    }
}

/// Like `write_all`, also on a stream that another process has made non-blocking.
pub(super) fn write_all(file: &mut File, bytes: &[u8]) -> io::Result<()> {
    write_counted(file, bytes, |_, _| ())
}

/// The same. Calls `count` before each write, and after the last, with the bytes written and left.
fn write_counted(file: &mut File, mut bytes: &[u8], mut count: impl FnMut(u64, u64)) -> io::Result<()> {
    let all = bytes.len() as u64;
    count(0, all);
    while !bytes.is_empty() {
        match file.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => {
                bytes = &bytes[written..];
                count(all - bytes.len() as u64, bytes.len() as u64);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let mut ready = [PollFd::new(file.as_fd(), PollFlags::POLLOUT)];
                let _ = poll(&mut ready, PollTimeout::NONE);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn everything_is_written_in_order() {
        let (mut reader, writer) = io::pipe().unwrap();
        let (_wake_reader, wake) = io::pipe().unwrap();
        let out = Writer::start(&writer, wake, Beside::none()).unwrap();
        drop(writer);
        for i in 0..100 {
            out.write(format!("{i}\n").into_bytes());
        }
        out.finish(None);
        let mut got = String::new();
        reader.read_to_string(&mut got).unwrap();
        assert_eq!(got, (0..100).map(|i| format!("{i}\n")).collect::<String>());
    }

    #[test]
    fn a_reader_that_goes_away_is_noticed() {
        let (reader, writer) = io::pipe().unwrap();
        let (mut wake_reader, wake) = io::pipe().unwrap();
        let out = Writer::start(&writer, wake, Beside::none()).unwrap();
        drop(reader);
        out.write(b"x".to_vec());
        wake_reader.read_exact(&mut [0]).unwrap();
        assert_eq!(out.failed(), Some(io::ErrorKind::BrokenPipe));
        out.finish(None);
    }

    #[test]
    fn a_reader_that_reads_nothing_is_not_waited_for_beyond_the_deadline() {
        let (_reader, writer) = io::pipe().unwrap();
        let (_wake_reader, wake) = io::pipe().unwrap();
        let out = Writer::start(&writer, wake, Beside::none()).unwrap();
        out.write(vec![0; 1 << 20]);
        out.finish(Some(Instant::now() + Duration::from_millis(50)));
    }
}
