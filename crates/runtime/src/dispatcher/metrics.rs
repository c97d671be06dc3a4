//! The state of the job as OpenMetrics: in a file (`--metrics-file`), and to whoever asks at an address (`--metrics`).
//!
//! Each has a thread that asks the dispatcher as any client does ([`Console::own`]). So neither a slow disk nor a slow
//! reader keeps the dispatcher waiting.

mod text;

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use resurgo_wire::console::{Reply, Request, State};

use super::console::Console;
use super::reports::Reports;
use super::start_error::{StartError, cannot};
use crate::jobs::Job;

/// How often the file is written.
const PERIOD: Duration = Duration::from_secs(5);
/// How long the last writing of the file may take once the job is over.
const LAST: Duration = Duration::from_secs(2);
/// How long a reader may take for its question, and again for the answer.
const READER: Duration = Duration::from_secs(2);
/// The longest question.
const LONGEST: usize = 8 << 10;

/// What can be written, and where readers may come.
pub struct Prepared {
    file: Option<PathBuf>,
    listener: Option<TcpListener>,
}

/// Checks both before the job begins. The file has nothing in it then: readers do not take a former job's for this one.
pub fn prepare(reports: &Reports) -> Result<Prepared, StartError> {
    let listener = reports.metrics.map(|address| {
        let listener = TcpListener::bind(address).and_then(|listener| Ok((listener.local_addr()?, listener)));
        listener.map_err(|error| StartError::Address {
            address,
            option: "--metrics",
            error,
        })
    });
    let listener = listener.transpose()?;
    if let Some((address, _)) = &listener
        && reports.metrics.is_some_and(|wanted| wanted.port() == 0)
    {
        eprintln!("resurgo: note: metrics are at http://{address}/metrics");
    }
    if let Some(path) = &reports.metrics_file {
        write(path, text::NOTHING).map_err(|error| StartError::UserFile {
            path: path.clone(),
            option: "--metrics-file",
            error,
        })?;
    }
    Ok(Prepared {
        file: reports.metrics_file.clone(),
        listener: listener.map(|(_, listener)| listener),
    })
}

/// What is written.
#[derive(Default)]
pub struct Metrics {
    file: Option<Writer>,
}

/// The thread that writes the file.
struct Writer {
    /// The end of the job.
    end: Sender<(Box<State>, i32)>,
    is_written: Receiver<io::Result<()>>,
    /// Its connection, to interrupt a question that nobody answers any more.
    connection: UnixStream,
    path: PathBuf,
}

impl Metrics {
    /// Begins to write and to answer.
    pub fn start(prepared: Prepared, console: &mut Console) -> Result<Metrics, StartError> {
        let mut own = || {
            let socket = console.own()?;
            let connection = socket.try_clone()?;
            io::Result::Ok((Job::own(socket)?, connection))
        };
        if let Some(listener) = prepared.listener {
            let (job, _) = own().map_err(cannot("make a socket"))?;
            spawn("metrics", move || serve(&listener, job))?;
        }
        let Some(path) = prepared.file else {
            return Ok(Metrics::default());
        };
        let (job, connection) = own().map_err(cannot("make a socket"))?;
        let (end, ends) = channel();
        let (written, is_written) = channel();
        let to = path.clone();
        spawn("metrics-file", move || {
            let _ = written.send(keep_writing(&to, job, &ends));
        })?;
        Ok(Metrics {
            file: Some(Writer {
                end,
                is_written,
                connection,
                path,
            }),
        })
    }

    /// The job is over. Why the file could not be written, if so.
    pub fn end(&mut self, state: impl FnOnce() -> State, exit_code: i32) -> Option<String> {
        let writer = self.file.take()?;
        let _ = writer.end.send((Box::new(state()), exit_code));
        let _ = writer.connection.shutdown(Shutdown::Both);
        let why = match writer.is_written.recv_timeout(LAST) {
            Ok(Ok(())) => return None,
            Ok(Err(error)) => error.to_string(),
            Err(_) => "it takes too long".to_string(),
        };
        let path = writer.path.display();
        Some(format!(
            "the file of --metrics-file, {path}, could not be written: {why}"
        ))
    }
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), StartError> {
    let thread = std::thread::Builder::new().name(name.to_string());
    thread.spawn(work).map(drop).map_err(cannot("start a thread"))
}

/// The state of the job now.
fn ask(job: &mut Job) -> io::Result<State> {
    match job.ask(&Request::State { after: u64::MAX }, &mut |_| {})? {
        Reply::State(state) => Ok(*state),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Writes the file again and again; at the end, what the job's end has told.
fn keep_writing(path: &Path, mut job: Job, ends: &Receiver<(Box<State>, i32)>) -> io::Result<()> {
    // Its first content comes soon.
    let mut wait = Duration::from_millis(200);
    loop {
        match ends.recv_timeout(wait) {
            Ok((state, exit_code)) => return write(path, &text::of(&state, Some(exit_code))),
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
            Err(RecvTimeoutError::Timeout) => {}
        }
        // If one writing fails, for example on a full disk, a later one may do. The last one counts.
        if let Ok(state) = ask(&mut job) {
            let _ = write(path, &text::of(&state, None));
        }
        wait = PERIOD;
    }
}

/// Replaces the file: a reader sees the old one or the new one.
fn write(path: &Path, text: &str) -> io::Result<()> {
    let mut new = path.as_os_str().to_owned();
    new.push(format!(".{}.new", std::process::id()));
    let mut file = File::create(&new)?;
    let written = file.write_all(text.as_bytes()).and_then(|()| fs::rename(&new, path));
    if written.is_err() {
        let _ = fs::remove_file(&new);
    }
    written
}

/// Answers one reader after the other.
fn serve(listener: &TcpListener, mut job: Job) {
    loop {
        match listener.accept() {
            // A reader that goes away has no answer.
            Ok((stream, _)) => drop(answer(stream, &mut job)),
            // No descriptor is free, for example.
            Err(_) => std::thread::sleep(Duration::from_millis(100)),
        }
    }
}

fn answer(mut stream: TcpStream, job: &mut Job) -> io::Result<()> {
    stream.set_write_timeout(Some(READER))?;
    let question = question(&mut stream)?;
    let mut words = question.split(' ');
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let path = path.split('?').next().unwrap_or_default();
    let (status, body) = match (method, path) {
        ("GET" | "HEAD", "/metrics") => match ask(job) {
            Ok(state) => ("200 OK", text::of(&state, None)),
            Err(error) => ("503 Service Unavailable", format!("the job does not answer: {error}\n")),
        },
        ("GET" | "HEAD", _) => ("404 Not Found", "there is only /metrics\n".to_string()),
        _ => ("405 Method Not Allowed", "there is only GET\n".to_string()),
    };
    let kind = match status {
        "200 OK" => text::CONTENT_TYPE,
        _ => "text/plain; charset=utf-8",
    };
    let length = body.len();
    let head =
        format!("HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
    let body = if method == "HEAD" { "" } else { &body };
    stream.write_all(format!("{head}{body}").as_bytes())?;
    stream.shutdown(Shutdown::Write)
}

/// The first line of what a reader sends, once the rest of its head is there, too: closing a connection before
/// everything is read would take the answer back.
fn question(stream: &mut TcpStream) -> io::Result<String> {
    let deadline = Instant::now() + READER;
    let (mut head, mut buffer) = (Vec::new(), [0; 1024]);
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() || head.len() > LONGEST {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut buffer)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            length => head.extend_from_slice(&buffer[..length]),
        }
    }
    let head = String::from_utf8_lossy(&head);
    Ok(head.lines().next().unwrap_or_default().to_string())
}
