//! One life of a rank: its process, and the agent's ends of its descriptors.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, PipeReader, PipeWriter, Seek, SeekFrom};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use command_fds::{CommandFdExt, FdMapping};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use resurgo_image::Socket;
use resurgo_pmi::{Place, Progress};
use resurgo_wire::control::{Job, Program, Stdin};
use resurgo_wire::node_memory::{
    ENV_RANK, IMAGE_FD, NET_FD, NODE_MEMORY_FD, PMI_FD, PROGRAM_FD, SPILL_FD, SURVIVOR_FD,
};

use super::images::Saved;
use super::net::Net;
use super::store::Store;
use crate::children;
use crate::sys::set_nonblocking;
use crate::trampoline::IMAGE_FILE_FD;

/// A running process of a rank. Its process group has the same number.
pub struct Life {
    pub pid: Pid,
    pub pmi: UnixStream,
    /// The beginning of a PMI line whose end has not come yet.
    pub said: Vec<u8>,
    /// Its progress through PMI.
    pub progress: Progress,
    /// Answers that the socket has not taken yet, and the number of bytes that it has.
    pub answers: Vec<u8>,
    pub heard: u64,
    /// Bytes of answers that the rank has got already when they come.
    pub ahead: usize,
    pub stdout: Option<PipeReader>,
    pub stderr: Option<PipeReader>,
    /// The socket for images, where there are any.
    pub image: Option<Socket>,
    /// The socket about failures, where the program deals with them.
    pub survivor: Option<UnixDatagram>,
    /// Its memory is not all there yet.
    pub filling: Option<Filling>,
}

/// The process that brings a running rank's memory from a file.
pub struct Filling {
    /// The image that it comes from.
    pub number: u64,
    pub socket: Socket,
    /// The userfaultfds: while they are open, a thread that touches a missing page waits for it. Without them it would
    /// read zeros.
    pub held: Vec<OwnedFd>,
}

/// The rank's ends of its connections to the agent.
pub struct Theirs {
    pub pmi: OwnedFd,
    pub stdout: OwnedFd,
    pub stderr: OwnedFd,
    pub image: Option<OwnedFd>,
    pub survivor: Option<OwnedFd>,
    pub stdin: Option<PipeReader>,
}

/// What a life begins from.
pub enum Begin<'a> {
    /// The program: this file, or what its path leads to.
    Program(Option<&'a File>),
    Image(&'a Saved),
}

/// The data that every life of every rank starts with.
pub struct Surroundings<'a> {
    pub job: &'a Job,
    pub node_memory: &'a File,
    pub spill: Option<&'a File>,
    pub net: Option<&'a Net>,
    /// Where its image files are.
    pub store: Option<&'a Store>,
}

impl Surroundings<'_> {
    /// The bell that wakes the mover. With image files there always is one: an image may come from, or go to, a node
    /// with a mover.
    fn bell(&self) -> io::Result<Option<OwnedFd>> {
        match (self.net, self.store) {
            (Some(net), _) => net.bell().try_clone_to_owned().map(Some),
            (None, Some(_)) => Ok(Some(EventFd::from_flags(EfdFlags::EFD_CLOEXEC)?.into())),
            (None, None) => Ok(None),
        }
    }

    /// The path of an image file, for people.
    fn shown(&self, image: &Saved) -> PathBuf {
        self.store
            .map_or(PathBuf::from(&image.name), |store| store.shown(&image.name))
    }
}

impl Life {
    /// Makes all connections between a new life and the agent; its process comes later. For rank 0 of a job with
    /// streamed input, also returns the pipe to its input.
    pub fn connect(job: &Job, rank: usize) -> io::Result<(Life, Theirs, Option<PipeWriter>)> {
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        let (stdout, stdout_writer) = io::pipe()?;
        let (stderr, stderr_writer) = io::pipe()?;
        set_nonblocking(&stdout)?;
        set_nonblocking(&stderr)?;
        let (mut stdin, mut input) = (None, None);
        if job.stdin == Stdin::Stream && rank == 0 {
            let (reader, writer) = io::pipe()?;
            set_nonblocking(&writer)?;
            (stdin, input) = (Some(reader), Some(writer));
        }
        let (mut image, mut image_end) = (None, None);
        if job.images {
            let (ours, theirs) = Socket::pair()?;
            (image, image_end) = (Some(ours), Some(theirs));
        }
        let (mut survivor, mut survivor_end) = (None, None);
        if job.survives() {
            let (ours, theirs) = UnixDatagram::pair()?;
            ours.set_nonblocking(true)?;
            (survivor, survivor_end) = (Some(ours), Some(theirs.into()));
        }
        let life = Life {
            pid: Pid::from_raw(0),
            pmi: ours,
            said: Vec::new(),
            progress: Progress::default(),
            answers: Vec::new(),
            heard: 0,
            ahead: 0,
            stdout: Some(stdout),
            stderr: Some(stderr),
            image,
            survivor,
            filling: None,
        };
        let theirs = Theirs {
            pmi: theirs.into(),
            stdout: stdout_writer.into(),
            stderr: stderr_writer.into(),
            image: image_end,
            survivor: survivor_end,
            stdin,
        };
        Ok((life, theirs, input))
    }

    /// Starts the program of `rank` from its beginning, or from an image in a file. Returns as
    /// [`Life::connect`] does.
    pub fn start(
        around: &Surroundings,
        rank: usize,
        place: &Place,
        program: &Program,
        begin: Begin,
    ) -> io::Result<(Life, Option<PipeWriter>)> {
        let (mut life, theirs, input) = Life::connect(around.job, rank)?;
        // A file that cannot be opened counts as damaged: the process reports it.
        let (saved, unusable) = match (&begin, around.store) {
            (Begin::Image(image), Some(store)) => match store.image(&image.name) {
                Ok(file) => (Some(file), String::new()),
                Err(error) => (None, error.to_string()),
            },
            _ => (None, String::new()),
        };
        let mut command = command(around, rank, place, program, &begin, &unusable);
        command
            .stdin(standard_input(theirs.stdin, around.job, rank)?)
            .stdout(theirs.stdout)
            .stderr(theirs.stderr)
            .process_group(0);
        let mut mappings = vec![
            FdMapping {
                parent_fd: theirs.pmi,
                child_fd: PMI_FD,
            },
            FdMapping {
                parent_fd: around.node_memory.try_clone()?.into(),
                child_fd: NODE_MEMORY_FD,
            },
        ];
        if let Some(spill) = around.spill {
            mappings.push(FdMapping {
                parent_fd: spill.try_clone()?.into(),
                child_fd: SPILL_FD,
            });
        }
        if let Some(bell) = around.bell()? {
            mappings.push(FdMapping {
                parent_fd: bell,
                child_fd: NET_FD,
            });
        }
        if let Begin::Program(Some(file)) = begin {
            mappings.push(FdMapping {
                parent_fd: file.try_clone()?.into(),
                child_fd: PROGRAM_FD,
            });
        }
        for (end, number) in [(theirs.image, IMAGE_FD), (theirs.survivor, SURVIVOR_FD)] {
            mappings.extend(end.map(|end| FdMapping {
                parent_fd: end,
                child_fd: number,
            }));
        }
        if let Some(file) = saved {
            mappings.push(FdMapping {
                parent_fd: file.into(),
                child_fd: IMAGE_FILE_FD,
            });
        }
        command
            .fd_mappings(mappings)
            .map_err(|error| io::Error::other(error.to_string()))?;
        let child = command.spawn()?;
        life.pid = Pid::from_raw(child.id() as i32);
        Ok((life, input))
    }

    /// Sends `signal` to the process and everything in its group.
    pub fn signal(&self, signal: Signal) {
        assert!(self.pid.as_raw() > 0, "a life that has no process yet gets no signals");
        // Fails only with ESRCH: the number is ours until we reap the process.
        let group = killpg(self.pid, signal);
        // A woken process makes its group itself, and may not have done so yet.
        if group.is_err() || signal == Signal::SIGKILL {
            let _ = kill(self.pid, signal);
        }
    }

    /// Kills the rest of an ended life and reaps its process: nothing of it may touch the node memory when the next
    /// life begins. The group is killed before its leader is reaped: until then its number cannot belong to others.
    pub fn fence(&self, patience: Duration) {
        self.signal(Signal::SIGKILL);
        children::reap(self.pid);
        children::fence(self.pid, patience);
    }
}

/// The same in every life of the rank: an address or a length that differs would move the program's memory.
fn environment(
    program: &Program,
    rank: usize,
    place: &Place,
    (local, locals): (usize, usize),
) -> Vec<(OsString, OsString)> {
    let mut all = program.environment.clone();
    let (own, size) = (place.rank.to_string(), place.size.to_string());
    let (local, locals) = (local.to_string(), locals.to_string());
    let mut set = |name: &str, value: String| {
        all.retain(|(known, _)| known != name);
        all.push((name.into(), value.into()));
    };
    set("PMI_FD", PMI_FD.to_string());
    set("PMI_RANK", own.clone());
    set("PMI_SIZE", size.clone());
    set("PMI_SPAWNED", u8::from(place.world > 0).to_string());
    set(ENV_RANK, rank.to_string());
    // The rank's number on its node, under MPICH's name and under other names by which scripts and programs choose a
    // GPU.
    for name in ["MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK", "PALS_LOCAL_RANKID"] {
        set(name, local.clone());
    }
    for name in ["MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE"] {
        set(name, locals.clone());
    }
    set("OMPI_COMM_WORLD_RANK", own);
    set("OMPI_COMM_WORLD_SIZE", size);
    // Otherwise every rank would see the batch script's 0. Outside of Slurm we set nothing.
    if program.environment.iter().any(|(name, _)| name == "SLURM_LOCALID") {
        set("SLURM_LOCALID", local);
    }
    all
}

/// The rank's number among this node's ranks of its world, and their number.
fn local(job: &Job, rank: usize, place: &Place) -> (usize, usize) {
    let Some(nodes) = &job.nodes else {
        return (place.rank, place.size);
    };
    let node = nodes.of_rank.get(rank).copied().unwrap_or(nodes.own);
    let first = rank - place.rank;
    let there = || {
        nodes
            .ranks_of(node)
            .filter(|other| (first..first + place.size).contains(other))
    };
    (there().filter(|other| *other < rank).count(), there().count())
}

/// The standard input of `rank`: its end of the pipe, the file that the user names, or nothing.
fn standard_input(pipe: Option<PipeReader>, job: &Job, rank: usize) -> io::Result<Stdio> {
    Ok(match (pipe, &job.stdin) {
        (Some(pipe), _) => Stdio::from(pipe),
        (None, Stdin::File(path, offset)) if rank == 0 => {
            let mut file = File::open(path)?;
            file.seek(SeekFrom::Start(*offset))?;
            Stdio::from(file)
        }
        _ => Stdio::from(OpenOptions::new().read(true).open("/dev/null")?),
    })
}

/// The trampoline that becomes the program, or rebuilds it from its image. `unusable`: why the image cannot be opened.
fn command(
    around: &Surroundings,
    rank: usize,
    place: &Place,
    program: &Program,
    begin: &Begin,
    unusable: &str,
) -> Command {
    let mut command = Command::new("/proc/self/exe");
    let agent = std::process::id().to_string();
    let files = format!("{}:{}", around.job.open_files.0, around.job.open_files.1);
    let cpus = around.job.cpus_of(rank).unwrap_or_default();
    let addresses = if around.job.addresses.are_fixed {
        "fixed"
    } else {
        "random"
    };
    match begin {
        Begin::Image(image) => command
            .arg(crate::trampoline::RESTORE_VERB)
            .args([
                &agent,
                addresses,
                &files,
                &cpus,
                &around.job.name,
                &image.digest,
                unusable,
            ])
            .arg(around.shown(image))
            .env_clear()
            // A process finds itself and its copies by this among the processes that have a file open.
            .env(ENV_RANK, rank.to_string()),
        Begin::Program(file) => command
            .arg(crate::trampoline::VERB)
            .arg(agent)
            .arg(addresses)
            .arg(files)
            .arg(cpus)
            .arg(if file.is_some() { "held" } else { "path" })
            .arg(&program.directory)
            .arg(&program.path)
            .args(&program.arguments)
            .env_clear()
            .envs(environment(program, rank, place, local(around.job, rank, place))),
    };
    command
}
